// Norms of single rows.
// A row's sum of squares runs in W fixed partial sums, folded in one order: its bits depend on the row alone, never on how
// many rows or threads run.
#pragma once
#include "parallel.h"
#include "simd.h"

namespace milepost {

template <typename T>
float sum_of_squares(const T* row, std::int64_t size) {
    vf total = {};
    for_lanes(size, [&](std::int64_t i, std::int64_t n) {
        const vf value = load_upto(row + i, n);
        total = fma(value, value, total);
    });
    return sum(total);
}

/// x / sqrt(mean(x^2) + eps) * weight, over rows of `size`. The normalised value is rounded to T before it meets the weight,
/// as the reference does.
template <typename T>
void rms_norm(const T* x, const T* weight, T* out, std::int64_t rows, std::int64_t size, float eps) {
    parallel_for(rows, [&](std::int64_t r) {
        const T* row = x + r * size;
        const vf scale = splat(1.0f / std::sqrt(sum_of_squares(row, size) / static_cast<float>(size) + eps));
        for_lanes(size, [&](std::int64_t i, std::int64_t n) {
            const vf normal = rounded_to(load_upto(row + i, n) * scale, row);
            store_upto(out + r * size + i, normal * load_upto(weight + i, n), n);
        });
    });
}

}  // namespace milepost
