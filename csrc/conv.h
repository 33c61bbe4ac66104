// Short convolutions over time.
//
// Each value of out is one chain: products from the oldest tap to the row's own, then the bias, each product and each sum
// rounded apart, as the reference does: the bits are the reference's.
//
// A row's inputs are read where they lie: those of the sequence's new rows in x, those before in its window, or in the
// checkpoint if its first new row is the first after a grid point. States and windows are written afterwards.
#pragma once
#include <type_traits>

#include "functions.h"
#include "segments.h"

namespace milepost {

/// Channels of one task.
inline constexpr std::int64_t CONV_BLOCK = 128;
/// More cannot be kept in a window.
inline constexpr std::int64_t MAX_TAPS = CHUNK + 1;

/// x, out [rows, channels], x's rows `x_stride` values apart; weight [channels, taps]; bias [channels] or null; state
/// [slots, taps - 1, channels]; window [windows, taps - 1 + CHUNK, channels]. SILU: of each value, rounded to T, silu is taken
/// in fp32 and stays it.
template <typename T, bool SILU>
struct Conv {
    using Out = std::conditional_t<SILU, float, T>;

    const T* x;
    std::int64_t x_stride;
    const T *weight, *bias;
    T *state, *window;
    Out* out;
    std::int64_t channels, taps;

    std::int64_t before() const { return taps - 1; }
    T* state_row(std::int64_t slot, std::int64_t entry) const { return state + (slot * before() + entry) * channels; }
    T* window_row(std::int64_t slot, std::int64_t entry) const {
        return window + (slot * (before() + CHUNK) + entry) * channels;
    }
};

/// The new rows of one sequence, and the inputs before them.
template <typename T>
struct Inputs {
    const T *past, *x;
    std::int64_t past_stride, x_stride, before;

    template <bool SILU>
    Inputs(const Conv<T, SILU>& conv, const Segment& first)
        : past(first.offset ? conv.window_row(first.window_slot, first.offset) : conv.state_row(first.state_slot, 0)),
          x(conv.x + first.row * conv.x_stride),
          past_stride(conv.channels),
          x_stride(conv.x_stride),
          before(conv.before()) {}

    /// Row 0 is the first new one; rows from -before on are there.
    const T* operator()(std::int64_t row) const { return row < 0 ? past + (before + row) * past_stride : x + row * x_stride; }
};

/// Some channels of one piece: `count` of them from `channel` on, with their weights as fp32 [taps][CONV_BLOCK].
template <typename T, bool SILU>
struct ConvBlock {
    using Out = typename Conv<T, SILU>::Out;

    const Conv<T, SILU>& conv;
    const Inputs<T>& inputs;
    Out* out;
    std::int64_t channel, count;
    const float (*weight)[CONV_BLOCK];

    const T* input(std::int64_t row, std::int64_t i) const { return inputs(row) + channel + i; }
    void put(std::int64_t row, std::int64_t i, vf total, std::int64_t n) const {
        if (conv.bias) total += load_upto(conv.bias + channel + i, n);
        if constexpr (SILU) total = silu(rounded_to(total, conv.x));
        store_upto(out + row * conv.channels + channel + i, total, n);
    }
};

/// Rows [first, end) of VECTORS vectors of n channels each: weights and the last inputs stay in registers.
template <int TAPS, int VECTORS, typename T, bool SILU>
inline void conv_strip(const ConvBlock<T, SILU>& block, std::int64_t first, std::int64_t end, std::int64_t i, std::int64_t n) {
    vf weight[VECTORS][TAPS], last[VECTORS][TAPS];
    for (int v = 0; v < VECTORS; ++v)
        for (int t = 0; t < TAPS; ++t) weight[v][t] = load_upto(block.weight[t] + i + v * W, n);
    for (int v = 0; v < VECTORS; ++v)
        for (int t = 1; t < TAPS; ++t) last[v][t] = load_upto(block.input(first - TAPS + t, i + v * W), n);
    for (std::int64_t r = first; r < end; ++r)
        for (int v = 0; v < VECTORS; ++v) {
            for (int t = 1; t < TAPS; ++t) last[v][t - 1] = last[v][t];
            last[v][TAPS - 1] = load_upto(block.input(r, i + v * W), n);
            vf total = last[v][0] * weight[v][0];
            for (int t = 1; t < TAPS; ++t) total += last[v][t] * weight[v][t];
            block.put(r, i + v * W, total, n);
        }
}

template <int TAPS, typename T, bool SILU>
void conv_rows(const ConvBlock<T, SILU>& block, std::int64_t rows) {
    constexpr std::int64_t TOGETHER = 32;  // rows: few enough pages at once
    constexpr int VECTORS = 2;
    for (std::int64_t first = 0; first < rows; first += TOGETHER) {
        const std::int64_t end = first + TOGETHER < rows ? first + TOGETHER : rows;
        std::int64_t i = 0;
        for (; i + VECTORS * W <= block.count; i += VECTORS * W) conv_strip<TAPS, VECTORS>(block, first, end, i, W);
        for (; i < block.count; i += W) conv_strip<TAPS, 1>(block, first, end, i, block.count - i < W ? block.count - i : W);
    }
}

/// The same for any number of taps.
template <typename T, bool SILU>
void conv_rows_of_many_taps(const ConvBlock<T, SILU>& block, std::int64_t rows) {
    const std::int64_t taps = block.conv.taps;
    for (std::int64_t r = 0; r < rows; ++r)
        for_lanes(block.count, [&](std::int64_t i, std::int64_t n) {
            vf total = load_upto(block.input(r - taps + 1, i), n) * load_upto(block.weight[0] + i, n);
            for (std::int64_t t = 1; t < taps; ++t)
                total += load_upto(block.input(r - taps + 1 + t, i), n) * load_upto(block.weight[t] + i, n);
            block.put(r, i, total, n);
        });
}

/// TAPS 0: any number of them.
template <int TAPS, typename T, bool SILU>
void conv_piece(const Conv<T, SILU>& conv, const Inputs<T>& inputs, typename Conv<T, SILU>::Out* out, std::int64_t rows,
                std::int64_t channel, std::int64_t count) {
    const std::int64_t taps = TAPS ? TAPS : conv.taps;
    float weight[TAPS ? TAPS : MAX_TAPS][CONV_BLOCK];
    for (std::int64_t c = 0; c < count; ++c)
        for (std::int64_t t = 0; t < taps; ++t) weight[t][c] = widen(conv.weight[(channel + c) * taps + t]);
    const ConvBlock<T, SILU> block{conv, inputs, out, channel, count, weight};
    if constexpr (TAPS > 0)
        conv_rows<TAPS>(block, rows);
    else
        conv_rows_of_many_taps(block, rows);
}

/// Keeps what the sequence needs later: the inputs before each grid point that is wanted, and before and in its last chunk.
template <typename T, bool SILU>
void keep_inputs(const Conv<T, SILU>& conv, const Inputs<T>& inputs, const Segment* first, const Segment* last, std::int64_t channel,
                 std::int64_t count) {
    const std::int64_t before = conv.before();
    const auto copy = [&](T* to, std::int64_t row) { std::memcpy(to + channel, inputs(row) + channel, count * sizeof(T)); };
    for (const Segment* s = first; s < last; ++s)
        if (s->reaches_grid() && s->grid_slot >= 0)
            for (std::int64_t j = 0; j < before; ++j)
                copy(conv.state_row(s->grid_slot, j), s->row + s->rows() - first->row - before + j);
    const Segment& open = last[-1];
    if (open.reaches_grid()) return;
    // in a new chunk the first entries may come from the end of the same window: from beyond all that they overwrite
    const std::int64_t row = open.row - first->row, from = open.offset ? 0 : -before;
    for (std::int64_t j = from; j < open.rows(); ++j) copy(conv.window_row(open.window_slot, before + open.offset + j), row + j);
}

template <typename T, bool SILU>
void causal_conv(const Conv<T, SILU>& conv, const Segment* segments, std::int64_t count) {
    const std::int64_t blocks = (conv.channels + CONV_BLOCK - 1) / CONV_BLOCK;
    for_sequences(segments, count, blocks, [&](const Segment* first, const Segment* last, std::int64_t block) {
        const std::int64_t channel = block * CONV_BLOCK;
        const std::int64_t n = conv.channels - channel < CONV_BLOCK ? conv.channels - channel : CONV_BLOCK;
        const std::int64_t rows = last[-1].row + last[-1].rows() - first->row;
        const Inputs<T> inputs(conv, *first);
        auto* out = conv.out + first->row * conv.channels;
        if (conv.taps == 4)
            conv_piece<4>(conv, inputs, out, rows, channel, n);
        else if (conv.taps == 3)
            conv_piece<3>(conv, inputs, out, rows, channel, n);
        else
            conv_piece<0>(conv, inputs, out, rows, channel, n);
        keep_inputs(conv, inputs, first, last, channel, n);
    });
}

}  // namespace milepost
