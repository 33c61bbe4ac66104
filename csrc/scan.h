// The recurrence with one decay per channel and state entry (Mamba-1).
//
// Each pair of channel and entry is one chain over the rows; out is one chain over the entries, from the first to the last.
// Lanes lie along channels: W of them run side by side, in tiles of W entries, and no lane meets another.
#pragma once
#include "segments.h"
#include "simd.h"

namespace milepost {

/// x, dt, b, c: rows `..._stride` values apart; out [rows, channels]; a [channels, size]; state and window
/// [slots, channels, size].
struct Scan {
    const float *x, *dt, *a, *b, *c;
    std::int64_t x_stride, dt_stride, b_stride, c_stride;
    float *state, *window, *out;
    std::int64_t channels, size;
};

/// W channels and W entries of [channels, size], at most: those beyond `channels` and `entries` are 0, and are not stored.
struct Tile {
    std::int64_t channel, channels, entry, entries;

    /// One vector per entry.
    void load(const float* from, std::int64_t size, vf (&tile)[W]) const {
        for (int i = 0; i < W; ++i) tile[i] = i < channels ? load_upto(from + (channel + i) * size + entry, entries) : vf{};
        transpose(tile);
    }

    void store(float* to, std::int64_t size, const vf (&tile)[W]) const {
        vf turned[W];
        std::memcpy(turned, tile, sizeof turned);
        transpose(turned);
        for (int i = 0; i < channels; ++i) store_upto(to + (channel + i) * size + entry, turned[i], entries);
    }
};

/// One row of one tile: h = exp(dt a) h + dt x b, out += h c.
inline void scan_row(const Scan& s, std::int64_t row, const Tile& tile, const vf (&a)[W], vf (&h)[W]) {
    const vf dt = load_upto(s.dt + row * s.dt_stride + tile.channel, tile.channels);
    const vf scaled = dt * load_upto(s.x + row * s.x_stride + tile.channel, tile.channels);
    const float *b = s.b + row * s.b_stride + tile.entry, *c = s.c + row * s.c_stride + tile.entry;
    float* out = s.out + row * s.channels + tile.channel;
    vf total = tile.entry ? load_upto(out, tile.channels) : vf{};
    for (int e = 0; e < tile.entries; ++e) {
        h[e] = fma(exp(dt * a[e]), h[e], scaled * splat(b[e]));
        total = fma(h[e], splat(c[e]), total);
    }
    store_upto(out, total, tile.channels);
}

inline void selective_scan(const Scan& s, const Segment* segments, std::int64_t count) {
    const std::int64_t blocks = (s.channels + W - 1) / W, slot_size = s.channels * s.size;
    for_sequences(segments, count, blocks, [&](const Segment* first, const Segment* last, std::int64_t block) {
        const std::int64_t channel = block * W, channels = s.channels - channel < W ? s.channels - channel : W;
        const float* before =
            first->offset ? s.window + first->window_slot * slot_size : s.state + first->state_slot * slot_size;
        for (std::int64_t entry = 0; entry < s.size; entry += W) {
            const Tile tile{channel, channels, entry, s.size - entry < W ? s.size - entry : W};
            vf a[W], h[W];
            tile.load(s.a, s.size, a);
            tile.load(before, s.size, h);
            for (const Segment* segment = first; segment < last; ++segment) {
                for (std::int64_t r = 0; r < segment->rows(); ++r) scan_row(s, segment->row + r, tile, a, h);
                if (!segment->reaches_grid())
                    tile.store(s.window + segment->window_slot * slot_size, s.size, h);
                else if (segment->grid_slot >= 0)
                    tile.store(s.state + segment->grid_slot * slot_size, s.size, h);
            }
        }
    });
}

}  // namespace milepost
