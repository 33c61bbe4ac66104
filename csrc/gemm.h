// out = x w^T + bias, with weights packed once.
//
// Order. Each element of out is one chain of additions along the inputs, from the first to the last, in one lane of one
// register. It is the same chain whatever the number of rows, the tile that a row falls into, or the thread: tiles only
// decide which chains run at once. In blocks of K_BLOCK inputs the chains rest in memory in between, as fp32, unrounded.
//
// Packing. Columns of out are in panels of PANEL, padded with zeros; within a panel, all columns' weights of one input
// (fp32) or of two (bf16: the dot instructions' pairs) lie side by side:
//     fp32  [panels][inputs][PANEL]          bf16  [panels][inputs / 2, rounded up][PANEL][2]
// A panel is read from its first to its last byte, by one row as by many.
#pragma once
#include "parallel.h"
#include "simd.h"

namespace milepost {

inline constexpr std::int64_t PANEL = 64, K_BLOCK = 512, ROW_BLOCK = 96;

// A tile: TILE_ROWS rows x TILE_VECTORS vectors of columns, all sums in registers.
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
inline constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#else
inline constexpr int TILE_ROWS = 4, TILE_VECTORS = 2;
#endif

/// Inputs that lie side by side in the packed weights.
template <typename T>
inline constexpr std::int64_t GROUP = sizeof(T) == 2 ? 2 : 1;

/// One step of a tile's sums: the next group of inputs, of `rows` rows, whose values lie `stride` apart.
template <int ROWS>
inline void step(vf (&sums)[ROWS][TILE_VECTORS], const float* x, std::int64_t stride, const float* w) {
    vf weights[TILE_VECTORS];
    for (int v = 0; v < TILE_VECTORS; ++v) weights[v] = load(w + v * W);
    for (int r = 0; r < ROWS; ++r) {
        const vf value = splat(x[r * stride]);
        for (int v = 0; v < TILE_VECTORS; ++v) sums[r][v] = fma(value, weights[v], sums[r][v]);
    }
}

template <int ROWS>
inline void step(vf (&sums)[ROWS][TILE_VECTORS], const bf16* x, std::int64_t stride, const bf16* w) {
#if defined(MILEPOST_AVX512BF16)
    __m512bh weights[TILE_VECTORS];
    for (int v = 0; v < TILE_VECTORS; ++v) weights[v] = (__m512bh)_mm512_loadu_si512(w + v * 2 * W);
    for (int r = 0; r < ROWS; ++r) {
        std::int32_t pair;
        std::memcpy(&pair, x + r * stride, sizeof pair);
        const __m512bh values = (__m512bh)_mm512_set1_epi32(pair);
        for (int v = 0; v < TILE_VECTORS; ++v) sums[r][v] = (vf)_mm512_dpbf16_ps((__m512)sums[r][v], values, weights[v]);
    }
#else
    vf even[TILE_VECTORS], odd[TILE_VECTORS];
    for (int v = 0; v < TILE_VECTORS; ++v) {
        vu pairs;
        std::memcpy(&pairs, w + v * 2 * W, sizeof pairs);
        even[v] = as_float(pairs << 16);
        odd[v] = as_float(pairs & 0xffff0000u);
    }
    for (int r = 0; r < ROWS; ++r) {
        const vf first = splat(widen(x[r * stride])), second = splat(widen(x[r * stride + 1]));
        for (int v = 0; v < TILE_VECTORS; ++v) {
            sums[r][v] = fma(first, even[v], sums[r][v]);
            sums[r][v] = fma(second, odd[v], sums[r][v]);
        }
    }
#endif
}

/// Adds `groups` groups of inputs to the sums [ROWS][PANEL] of some columns of a panel.
template <int ROWS, typename T>
void tile(const T* x, std::int64_t stride, const T* w, std::int64_t groups, float* sums) {
    vf held[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) held[r][v] = load(sums + r * PANEL + v * W);
    for (std::int64_t g = 0; g < groups; ++g) step<ROWS>(held, x + g * GROUP<T>, stride, w + g * PANEL * GROUP<T>);
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) store(sums + r * PANEL + v * W, held[r][v]);
}

template <int ROWS, typename T>
void tile_of(std::int64_t rows, const T* x, std::int64_t stride, const T* w, std::int64_t groups, float* sums) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return tile_of<ROWS - 1, T>(rows, x, stride, w, groups, sums);
    }
    tile<ROWS, T>(x, stride, w, groups, sums);
}

/// sums [rows][PANEL] of one panel over all inputs; rows <= ROW_BLOCK. With an odd number of inputs in pairs, x must have one
/// more value a row, which meets zero weights and must be finite.
template <typename T>
void panel_sums(const T* x, std::int64_t stride, const T* panel, std::int64_t rows, std::int64_t inputs, float* sums) {
    const std::int64_t groups = (inputs + GROUP<T> - 1) / GROUP<T>, block = K_BLOCK / GROUP<T>;
    for (std::int64_t i = 0; i < rows * PANEL; ++i) sums[i] = 0.0f;
    for (std::int64_t g = 0; g < groups; g += block) {
        const std::int64_t count = groups - g < block ? groups - g : block;
        for (std::int64_t r = 0; r < rows; r += TILE_ROWS)
            for (std::int64_t c = 0; c < PANEL; c += TILE_VECTORS * W)
                tile_of<TILE_ROWS, T>(rows - r, x + r * stride + g * GROUP<T>, stride, panel + (g * PANEL + c) * GROUP<T>, count,
                                      sums + r * PANEL + c);
    }
}

/// Rounds the sums (plus bias, if there is one) of a panel's first `columns` columns to out, whose rows are `stride` apart.
template <typename T>
void finish(const float* sums, const T* bias, std::int64_t rows, std::int64_t columns, T* out, std::int64_t stride) {
    for (std::int64_t r = 0; r < rows; ++r)
        for_lanes(columns, [&](std::int64_t i, std::int64_t n) {
            vf value = load(sums + r * PANEL + i);
            if (bias) value += load_upto(bias + i, n);
            store_upto(out + r * stride + i, value, n);
        });
}

/// x [rows, inputs], rows `x_stride` values apart; packed weights of [outputs, inputs]; bias [outputs] or null;
/// out [rows, outputs].
template <typename T>
void linear(const T* x, std::int64_t x_stride, const T* packed, const T* bias, T* out, std::int64_t rows, std::int64_t inputs,
            std::int64_t outputs) {
    const std::int64_t panels = (outputs + PANEL - 1) / PANEL, row_blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    const std::int64_t panel_size = (inputs + GROUP<T> - 1) / GROUP<T> * GROUP<T> * PANEL;
    parallel_for(row_blocks * panels, [&](std::int64_t task) {
        const std::int64_t row = task / panels * ROW_BLOCK, panel = task % panels, column = panel * PANEL;
        const std::int64_t count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
        const std::int64_t columns = outputs - column < PANEL ? outputs - column : PANEL;
        float sums[ROW_BLOCK * PANEL];
        panel_sums(x + row * x_stride, x_stride, packed + panel * panel_size, count, inputs, sums);
        finish(sums, bias ? bias + column : nullptr, count, columns, out + row * outputs + column, outputs);
    });
}

/// w [outputs, inputs] in the order that `linear` reads.
template <typename T>
void pack(const T* w, T* packed, std::int64_t inputs, std::int64_t outputs) {
    const std::int64_t panels = (outputs + PANEL - 1) / PANEL, groups = (inputs + GROUP<T> - 1) / GROUP<T>;
    parallel_for(panels, [&](std::int64_t panel) {
        T* to = packed + panel * groups * GROUP<T> * PANEL;
        for (std::int64_t g = 0; g < groups; ++g)
            for (std::int64_t c = 0; c < PANEL; ++c)
                for (std::int64_t j = 0; j < GROUP<T>; ++j) {
                    const std::int64_t k = g * GROUP<T> + j, n = panel * PANEL + c;
                    to[(g * PANEL + c) * GROUP<T> + j] = k < inputs && n < outputs ? w[n * inputs + k] : T{};
                }
    });
}

/// Rows `ids` [count] of the packed weights, as they were: out [count, inputs].
template <typename T>
void unpack_rows(const T* packed, const std::int64_t* ids, T* out, std::int64_t count, std::int64_t inputs) {
    const std::int64_t groups = (inputs + GROUP<T> - 1) / GROUP<T>;
    parallel_for(count, [&](std::int64_t i) {
        const T* from = packed + ids[i] / PANEL * groups * GROUP<T> * PANEL + ids[i] % PANEL * GROUP<T>;
        for (std::int64_t k = 0; k < inputs; ++k) out[i * inputs + k] = from[k / GROUP<T> * PANEL * GROUP<T> + k % GROUP<T>];
    });
}

}  // namespace milepost
