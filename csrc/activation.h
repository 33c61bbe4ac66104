// Elementwise functions. Computed in fp32 and rounded to T wherever the reference's stages round.
#pragma once
#include "functions.h"
#include "rows.h"

namespace milepost {

/// out = f(x), rows of `size` values; out is dense.
template <typename T, typename To, typename F>
void each_value(const T* x, RowPlaces places, To* out, std::int64_t rows, std::int64_t size, F f) {
    for_row_parts(rows, size, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
        const T* from = x + places(row) + first;
        To* to = out + row * size + first;
        for_lanes(count, [&](std::int64_t i, std::int64_t n) { store_upto(to + i, f(load_upto(from + i, n)), n); });
    });
}

/// out = f(x, y), the same.
template <typename T, typename F>
void each_pair(const T* x, RowPlaces x_places, const T* y, RowPlaces y_places, T* out, std::int64_t rows, std::int64_t size,
               F f) {
    for_row_parts(rows, size, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
        const T *left = x + x_places(row) + first, *right = y + y_places(row) + first;
        T* to = out + row * size + first;
        for_lanes(count, [&](std::int64_t i, std::int64_t n) {
            store_upto(to + i, f(load_upto(left + i, n), load_upto(right + i, n)), n);
        });
    });
}

/// cap * tanh(x / cap).
template <typename T>
void soft_cap(const T* x, RowPlaces places, T* out, std::int64_t rows, std::int64_t size, float cap) {
    each_value(x, places, out, rows, size, [&](vf value) {
        return rounded_to(tanh(rounded_to(value / cap, x)), x) * cap;
    });
}

/// silu(gate) * up.
template <typename T>
void silu_mul(const T* gate, RowPlaces gate_places, const T* up, RowPlaces up_places, T* out, std::int64_t rows,
              std::int64_t size) {
    each_pair(gate, gate_places, up, up_places, out, rows, size, [&](vf g, vf u) { return rounded_to(silu(g), gate) * u; });
}

/// gelu(gate) * up, gelu in its tanh form.
template <typename T>
void gelu_tanh_mul(const T* gate, RowPlaces gate_places, const T* up, RowPlaces up_places, T* out, std::int64_t rows,
                   std::int64_t size) {
    each_pair(gate, gate_places, up, up_places, out, rows, size,
              [&](vf g, vf u) { return rounded_to(gelu_tanh(g), gate) * u; });
}

/// sigmoid(gate) * x with a gate for each value.
template <typename T>
void sigmoid_mul(const T* gate, RowPlaces gate_places, const T* x, RowPlaces x_places, T* out, std::int64_t rows,
                 std::int64_t size) {
    each_pair(gate, gate_places, x, x_places, out, rows, size, [](vf g, vf value) { return sigmoid(g) * value; });
}

/// f(factor) * x with one factor for each row.
template <typename T, typename F>
void each_row(const T* factor, RowPlaces factor_places, const T* x, RowPlaces x_places, T* out, std::int64_t rows,
              std::int64_t size, F f) {
    for_row_parts(rows, size, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
        const vf by = f(splat(widen(factor[factor_places(row)])));
        const T* from = x + x_places(row) + first;
        T* to = out + row * size + first;
        for_lanes(count, [&](std::int64_t i, std::int64_t n) { store_upto(to + i, by * load_upto(from + i, n), n); });
    });
}

/// sigmoid(gate) * x with one gate for each row.
template <typename T>
void sigmoid_mul_rows(const T* gate, RowPlaces gate_places, const T* x, RowPlaces x_places, T* out, std::int64_t rows,
                      std::int64_t size) {
    each_row(gate, gate_places, x, x_places, out, rows, size, [](vf value) { return sigmoid(value); });
}

/// x + y * factor, the product rounded to T first.
template <typename T>
void add(const T* x, RowPlaces x_places, const T* y, RowPlaces y_places, T* out, std::int64_t rows, std::int64_t size,
         float factor) {
    each_pair(x, x_places, y, y_places, out, rows, size, [&](vf a, vf b) { return a + rounded_to(b * factor, x); });
}

/// x * y.
template <typename T>
void mul(const T* x, RowPlaces x_places, const T* y, RowPlaces y_places, T* out, std::int64_t rows, std::int64_t size) {
    each_pair(x, x_places, y, y_places, out, rows, size, [](vf a, vf b) { return a * b; });
}

/// factor * x with one factor for each row.
template <typename T>
void mul_rows(const T* factor, RowPlaces factor_places, const T* x, RowPlaces x_places, T* out, std::int64_t rows,
              std::int64_t size) {
    each_row(factor, factor_places, x, x_places, out, rows, size, [](vf value) { return value; });
}

}  // namespace milepost
