// Mixtures of experts. Rows are grouped by expert only to share the reading of its weights: each row's sums are those of
// `panel_sums`, and a row's experts are added in ascending order, so no row can tell who else went to its experts.
#pragma once
#include <vector>

#include "gemm.h"

namespace milepost {

/// The `chosen` largest of each row of logits [rows, experts], largest first, ties to the lower expert: ids [rows, chosen].
/// Weights fp32 [rows, chosen]: the softmax over all, or over the chosen ones alone.
template <typename T>
void route(const T* logits, std::int64_t* ids, float* weights, std::int64_t rows, std::int64_t experts, std::int64_t chosen,
           bool among_chosen) {
    parallel_for(rows, [&](std::int64_t r) {
        std::vector<float> row(experts);
        for_lanes(experts, [&](std::int64_t i, std::int64_t n) {
            store_upto(row.data() + i, load_upto(logits + r * experts + i, n), n);
        });
        std::vector<bool> taken(experts);
        std::int64_t* id = ids + r * chosen;
        float* weight = weights + r * chosen;
        for (std::int64_t rank = 0; rank < chosen; ++rank) {
            std::int64_t best = -1;
            for (std::int64_t e = 0; e < experts; ++e)
                if (!taken[e] && (best < 0 || row[e] > row[best])) best = e;
            taken[best] = true;
            id[rank] = best;
            weight[rank] = row[best];
        }
        const float top = weight[0];
        const auto rise = [&](vf value) { return exp(value - splat(top)); };
        const float* counted = among_chosen ? weight : row.data();
        vf total = {};
        for_lanes(among_chosen ? chosen : experts, [&](std::int64_t i, std::int64_t n) {
            float lanes[W] = {};
            store(lanes, rise(load_upto(counted + i, n)));
            total += load_n(lanes, n);
        });
        const float all = sum(total);
        for (std::int64_t rank = 0; rank < chosen; ++rank) {
            float lanes[W];
            store(lanes, rise(splat(weight[rank])));
            weight[rank] = lanes[0] / all;
        }
    });
}

/// x [rows, inputs], sorted by expert: rows starts[e] to starts[e + 1] go through expert e's packed weights. out [rows, outputs].
template <typename T>
void grouped_linear(const T* x, std::int64_t x_stride, const T* packed, const std::int64_t* starts, T* out, std::int64_t experts,
                    std::int64_t inputs, std::int64_t outputs) {
    struct Block {
        std::int64_t expert, row, rows;
    };
    std::vector<Block> blocks;
    for (std::int64_t e = 0; e < experts; ++e)
        for (std::int64_t row = starts[e]; row < starts[e + 1]; row += ROW_BLOCK)
            blocks.push_back({e, row, starts[e + 1] - row < ROW_BLOCK ? starts[e + 1] - row : ROW_BLOCK});
    const std::int64_t panels = (outputs + PANEL - 1) / PANEL;
    const std::int64_t panel_size = (inputs + GROUP<T> - 1) / GROUP<T> * GROUP<T> * PANEL;
    parallel_for(static_cast<std::int64_t>(blocks.size()) * panels, [&](std::int64_t task) {
        const Block& block = blocks[task / panels];
        const std::int64_t panel = task % panels, column = panel * PANEL;
        const T* weights = packed + (block.expert * panels + panel) * panel_size;
        linear_panel(x + block.row * x_stride, x_stride, weights, panel + 1 < panels ? weights + panel_size : weights, block.rows,
                     inputs, Output<T>{out + block.row * outputs + column, nullptr, outputs - column, outputs});
    });
}

/// out_r = sum over i of weights[r, i] made[places[r, i]], in the order given, products and sums rounded apart in fp32, the end
/// rounded once. made [.., size], places and weights [rows, count], out [rows, size].
template <typename T>
void weighted_sum(const T* made, const std::int64_t* places, const float* weights, T* out, std::int64_t rows, std::int64_t count,
                  std::int64_t size) {
    parallel_for(rows, [&](std::int64_t r) {
        for_lanes(size, [&](std::int64_t j, std::int64_t n) {
            vf total = {};
            for (std::int64_t i = 0; i < count; ++i)
                total += load_upto(made + places[r * count + i] * size + j, n) * splat(weights[r * count + i]);
            store_upto(out + r * size + j, total, n);
        });
    });
}

}  // namespace milepost
