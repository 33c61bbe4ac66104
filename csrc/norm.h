// x / sqrt(mean(x^2) + eps) * weight, row by row.
// A row's sum of squares runs in LANES fixed partial sums, folded in one order: its bits depend on the row alone, never on
// how many rows or threads run. The normalised value is rounded to T before it meets the weight, as the reference does.
#pragma once
#include <cmath>
#include <cstdint>

#include "bf16.h"

namespace milepost {

inline constexpr int LANES = 16;

template <typename T>
float sum_of_squares(const T* row, std::int64_t size) {
    float lane[LANES] = {};
    std::int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int j = 0; j < LANES; ++j) lane[j] += widen(row[i + j]) * widen(row[i + j]);
    for (int j = 0; i + j < size; ++j) lane[j] += widen(row[i + j]) * widen(row[i + j]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0];
}

template <typename T>
void rms_norm(const T* x, const T* weight, T* out, std::int64_t rows, std::int64_t size, float eps) {
#pragma omp parallel for if (rows > 1)
    for (std::int64_t r = 0; r < rows; ++r) {
        const T* row = x + r * size;
        const float scale = 1.0f / std::sqrt(sum_of_squares(row, size) / static_cast<float>(size) + eps);
        for (std::int64_t i = 0; i < size; ++i) {
            T normal;
            narrow(widen(row[i]) * scale, normal);
            narrow(widen(normal) * widen(weight[i]), out[r * size + i]);
        }
    }
}

}  // namespace milepost
