// out = x w^T + bias, with weights packed once.
//
// Order. Each element of out is one chain of additions along the inputs, from the first to the last, in one lane of one
// register. It is the same chain whatever the number of rows, the tile that a row falls into, or the thread: tiles only
// decide which chains run at once. In blocks of K_BLOCK inputs the chains rest in memory in between, as fp32, unrounded.
//
// Packing. Columns of out are in panels of PANEL, padded with zeros; within a panel, all columns' weights of one input
// (fp32) or of two (bf16: the dot instructions' pairs) lie side by side:
//     fp32  [panels][inputs][PANEL]          bf16  [panels][inputs / 2, rounded up][PANEL][2]
// A panel is read from its first to its last byte, by one row as by many. While a block of rows goes through one panel, the
// next is fetched from memory; the lines that results will go to are asked for before the last sums are made.
#pragma once
#include "parallel.h"
#include "simd.h"

namespace milepost {

inline constexpr std::int64_t PANEL = 64, K_BLOCK = 2048, ROW_BLOCK = 96;

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

/// Memory that will be read soon, asked for a line at a time between arithmetic.
struct Ahead {
    const char *at, *end;

    void ask() {
        if (at >= end) return;
        __builtin_prefetch(at, 0, 2);
        at += 64;
    }
};

/// Adds `groups` groups of inputs to the sums of some columns of a panel: to those in sums [ROWS][PANEL], or to zeros if
/// `first`. put(row, vector, sum) gets each when it is `last`, else sums does.
template <int ROWS, typename T, typename F>
void tile(const T* x, std::int64_t stride, const T* w, std::int64_t groups, float* sums, bool first, bool last, Ahead& ahead,
          F put) {
    vf held[ROWS][TILE_VECTORS];
#pragma GCC unroll 8  // every index a constant: else the sums would go through memory before and after the arithmetic
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) held[r][v] = first ? vf{} : load(sums + r * PANEL + v * W);
    std::int64_t g = 0;
    for (; g + 4 <= groups; g += 4) {
        ahead.ask();
        ahead.ask();
        for (int i = 0; i < 4; ++i) step<ROWS>(held, x + (g + i) * GROUP<T>, stride, w + (g + i) * PANEL * GROUP<T>);
    }
    for (; g < groups; ++g) step<ROWS>(held, x + g * GROUP<T>, stride, w + g * PANEL * GROUP<T>);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v)
            if (last)
                put(r, v, held[r][v]);
            else
                store(sums + r * PANEL + v * W, held[r][v]);
}

template <int ROWS, typename T, typename F>
void tile_of(std::int64_t rows, const T* x, std::int64_t stride, const T* w, std::int64_t groups, float* sums, bool first,
             bool last, Ahead& ahead, F put) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return tile_of<ROWS - 1, T>(rows, x, stride, w, groups, sums, first, last, ahead, put);
    }
    tile<ROWS, T>(x, stride, w, groups, sums, first, last, ahead, put);
}

/// The sums of one panel over all inputs: to.put(row, column, W of them) for rows < `rows`, which is at most ROW_BLOCK; before
/// the last sums of a row are made, to.expect(row). With an odd number of inputs in pairs, x must have one more value a row,
/// which meets zero weights and must be finite.
template <typename T, typename To>
void panel_sums(const T* x, std::int64_t stride, const T* panel, std::int64_t rows, std::int64_t inputs, Ahead ahead,
                const To& to) {
    const std::int64_t groups = (inputs + GROUP<T> - 1) / GROUP<T>, block = K_BLOCK / GROUP<T>;
    float sums[ROW_BLOCK * PANEL];
    std::int64_t g = 0;
    do {  // once for no inputs too
        const std::int64_t count = groups - g < block ? groups - g : block;
        const bool last = g + count == groups;
        for (std::int64_t r = 0; r < rows; r += TILE_ROWS) {
            for (std::int64_t i = r; last && i < rows && i < r + TILE_ROWS; ++i) to.expect(i);
            for (std::int64_t c = 0; c < PANEL; c += TILE_VECTORS * W)
                tile_of<TILE_ROWS, T>(rows - r, x + r * stride + g * GROUP<T>, stride, panel + (g * PANEL + c) * GROUP<T>, count,
                                      sums + r * PANEL + c, g == 0, last, ahead,
                                      [&](int i, int v, vf sum) { to.put(r + i, c + v * W, sum); });
        }
    } while ((g += block) < groups);
}

/// Where a panel's sums go: the first `columns` columns, plus bias, if there is one, rounded, to rows of out `stride` apart.
template <typename T>
struct Output {
    T* out;
    const T* bias;
    std::int64_t columns, stride;

    /// Asks for the lines of a row, to write them: rows whose strides are powers of two would else wait for each other.
    void expect(std::int64_t r) const {
        for (std::int64_t c = 0; c < PANEL; c += 64 / sizeof(T)) __builtin_prefetch(out + r * stride + c, 1, 3);
    }

    void put(std::int64_t r, std::int64_t c, vf sum) const {
        const std::int64_t n = columns - c < W ? columns - c : W;
        if (n <= 0) return;
        if (bias) sum += load_upto(bias + c, n);
        store_upto(out + r * stride + c, sum, n);
    }
};

/// `rows` rows of x through one panel of weights. `next`: the panel that this thread will likely read after this one.
template <typename T>
void linear_panel(const T* x, std::int64_t x_stride, const T* panel, const T* next, std::int64_t rows, std::int64_t inputs,
                  const Output<T>& to) {
    // A few rows are done before memory could answer: then the processor's own guess does better.
    const char* at = reinterpret_cast<const char*>(next);
    const std::int64_t size = rows < 4 * TILE_ROWS ? 0 : (inputs + GROUP<T> - 1) / GROUP<T> * GROUP<T> * PANEL * sizeof(T);
    panel_sums(x, x_stride, panel, rows, inputs, Ahead{at, at + size}, to);
}

/// x [rows, inputs], rows `x_stride` values apart; packed weights of [outputs, inputs]; bias [outputs] or null;
/// out [rows, outputs].
template <typename T>
void linear(const T* x, std::int64_t x_stride, const T* packed, const T* bias, T* out, std::int64_t rows, std::int64_t inputs,
            std::int64_t outputs) {
    const std::int64_t panels = (outputs + PANEL - 1) / PANEL, row_blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    if (rows == 0) return;
    // About equal blocks, of whole tiles: a small one would read all weights for few rows.
    const std::int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, block = (tiles + row_blocks - 1) / row_blocks * TILE_ROWS;
    const std::int64_t panel_size = (inputs + GROUP<T> - 1) / GROUP<T> * GROUP<T> * PANEL;
    parallel_for(row_blocks * panels, [&](std::int64_t task) {
        const std::int64_t row = task / panels * block, panel = task % panels, column = panel * PANEL;
        const std::int64_t count = rows - row < block ? rows - row : block;
        linear_panel(x + row * x_stride, x_stride, packed + panel * panel_size, packed + (panel + 1) % panels * panel_size, count,
                     inputs, Output<T>{out + row * outputs + column, bias ? bias + column : nullptr, outputs - column, outputs});
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
