// Norms of single rows.
// A row's sum of squares runs in 4 W fixed partial sums, folded in one order: its bits depend on the row alone, never on how
// many rows or threads run.
#pragma once
#include <vector>

#include "functions.h"
#include "rows.h"

namespace milepost {

template <typename T>
float sum_of_squares(const T* row, std::int64_t size) {
    constexpr std::int64_t PARTS = 4;
    vf total[PARTS] = {};
    std::int64_t i = 0;
    for (; i + PARTS * W <= size; i += PARTS * W)
        for (std::int64_t j = 0; j < PARTS; ++j) {
            const vf value = load(row + i + j * W);
            total[j] = fma(value, value, total[j]);
        }
    for (std::int64_t j = 0; j < PARTS && i < size; ++j, i += W) {
        const vf value = load_upto(row + i, size - i < W ? size - i : W);
        total[j] = fma(value, value, total[j]);
    }
    return sum((total[0] + total[1]) + (total[2] + total[3]));
}

/// out = finish(row)(x / sqrt(sum(x^2) / count + eps), i, n) over rows of `size`: what `finish` returns for a row gets n values
/// of it from the i-th on. out is dense.
template <typename X, typename T, typename F>
void norm_rows(const X* x, RowPlaces places, T* out, std::int64_t rows, std::int64_t size, float count, float eps, F finish) {
    for_rows(rows, size, [&](std::int64_t r) {
        const X* row = x + places(r);
        T* to = out + r * size;
        const vf scale = splat(1.0f / std::sqrt(sum_of_squares(row, size) / count + eps));
        const auto finish_row = finish(r);
        for_lanes(size, [&](std::int64_t i, std::int64_t n) {
            store_upto(to + i, finish_row(load_upto(row + i, n) * scale, i, n), n);
        });
    });
}

/// x / sqrt(mean(x^2) + eps) * weight. The normalised value is rounded to T before it meets the weight, as the reference does.
template <typename T>
void rms_norm(const T* x, RowPlaces places, const T* weight, T* out, std::int64_t rows, std::int64_t size, float eps) {
    norm_rows(x, places, out, rows, size, static_cast<float>(size), eps, [=](std::int64_t) {
        return [=](vf normal, std::int64_t i, std::int64_t n) { return rounded_to(normal, x) * load_upto(weight + i, n); };
    });
}

/// x / sqrt(mean(x^2) + eps) * (1 + weight), rounded once.
template <typename T>
void offset_rms_norm(const T* x, RowPlaces places, const T* weight, T* out, std::int64_t rows, std::int64_t size, float eps) {
    norm_rows(x, places, out, rows, size, static_cast<float>(size), eps, [=](std::int64_t) {
        return [=](vf normal, std::int64_t i, std::int64_t n) { return normal * (1.0f + load_upto(weight + i, n)); };
    });
}

/// x / sqrt(mean(x^2) + eps) * weight * silu(gate), x in fp32, rounded once.
template <typename T>
void gated_rms_norm(const float* x, RowPlaces places, const T* gate, RowPlaces gate_places, const T* weight, T* out,
                    std::int64_t rows, std::int64_t size, float eps) {
    norm_rows(x, places, out, rows, size, static_cast<float>(size), eps, [=](std::int64_t row) {
        return [weight, row_gate = gate + gate_places(row)](vf normal, std::int64_t i, std::int64_t n) {
            return normal * load_upto(weight + i, n) * silu(load_upto(row_gate + i, n));
        };
    });
}

/// x / sqrt(sum(x^2) + eps) * factor.
template <typename T>
void l2_norm(const T* x, RowPlaces places, T* out, std::int64_t rows, std::int64_t size, float eps, float factor) {
    norm_rows(x, places, out, rows, size, 1.0f, eps, [=](std::int64_t) {
        return [=](vf normal, std::int64_t, std::int64_t) { return normal * factor; };
    });
}

/// What follows a scan: y + x * skip, gated through silu, and normed over each of `groups` equal parts of a row, if `weight` is not
/// null, before that or after. y, x fp32 [rows, size], y dense; skip fp32 [size]; gate, out T [rows, size]; rounded once.
template <typename T>
struct ScanOutput {
    const float *y, *x;
    RowPlaces x_places;
    const float* skip;
    const T* gate;
    RowPlaces gate_places;
    const T* weight;
    T* out;
    std::int64_t rows, size, groups;
    float eps;
    bool gate_first;
};

template <typename T>
void scan_output(const ScanOutput<T>& s) {
    for_rows(s.rows, s.size, [&](std::int64_t r) {
        static thread_local std::vector<float> held;
        held.resize(s.size);
        float* row = held.data();
        const float *y = s.y + r * s.size, *x = s.x + s.x_places(r);
        const T* gate = s.gate + s.gate_places(r);
        T* out = s.out + r * s.size;
        const bool gate_now = s.gate_first || !s.weight;
        for_lanes(s.size, [&](std::int64_t i, std::int64_t n) {
            vf value = load_upto(y + i, n) + load_upto(x + i, n) * load_upto(s.skip + i, n);
            if (gate_now) value = silu(load_upto(gate + i, n)) * value;
            if (s.weight)
                store_upto(row + i, value, n);
            else
                store_upto(out + i, value, n);
        });
        if (!s.weight) return;
        const std::int64_t width = s.size / s.groups;
        for (std::int64_t g = 0; g < s.groups; ++g) {
            const std::int64_t start = g * width;
            const float mean = sum_of_squares(row + start, width) / static_cast<float>(width);
            const vf scale = splat(1.0f / std::sqrt(mean + s.eps));
            for_lanes(width, [&](std::int64_t i, std::int64_t n) {
                const std::int64_t at = start + i;
                vf value = load_upto(row + at, n) * scale * load_upto(s.weight + at, n);
                if (!s.gate_first) value = silu(load_upto(gate + at, n)) * value;
                store_upto(out + at, value, n);
            });
        }
    });
}

}  // namespace milepost
