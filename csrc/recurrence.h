// The chunked recurrences S_t = g_t S_{t-1} + k_t (x) u_t, out_t = q_t . S_t: Mamba-2, where u is given, and the gated delta
// rule, u_t = beta_t (v_t - g_t S_{t-1}^T k_t). ops/torch/mamba2.py and gated_delta.py say what they mean, ops/chunks.py what
// grid, window and segment are.
//
// Order. With rows counted from the grid point, S the state there, and every letter of one head:
//   s_i    the sum of log decays 0 to i, one after the other in float64; a decay is the exp of a difference, rounded to fp32
//   dots   q_i . k_j (in the delta rule also k_i . k_j): W partial sums along K, folded in one order
//   out_i  sum over k = 0, 1, ... of q_i[k] S[k]; times exp(s_i); plus (q_i . k_j) exp(s_i - s_j) u_j for j = 0, 1, ... i
//   u_i    of the delta rule: beta_i (v_i - the same with k_i for q_i and j < i), row after row: an inverted triangle would
//          be another order
//   next   at the grid point: sum over j = 0, 1, ... 63 of k_j (exp(s_63 - s_j) u_j); plus exp(s_63) S
// Each value of out, u and next is a chain in one lane. Nothing here depends on which rows are new: tiles of rows decide only
// which chains run at once. Rows after i meet no chain of row i, whatever they hold.
//
// Waves. A sequence's segments need each other's states, two sequences nothing of each other: wave w runs the w-th segment of
// every sequence, first the dots, once for the heads of a group, then the heads.
#pragma once
#include <utility>

#include "segments.h"
#include "simd.h"

namespace milepost::recurrence {

/// New rows whose dots are one task; heads of one sequence that tasks take one after another, since their values are
/// neighbours in memory.
inline constexpr std::int64_t DOT_ROWS = 16, HEAD_RUN = 4;

/// Keys of at most this size are copied together for several rows: far apart, in strides of a power of two, they would
/// evict each other from the cache.
inline constexpr std::int64_t NEAR_SIZE = 256;

// A tile: TILE_ROWS chains of rows (in the delta rule, those of q and of k) x TILE_VECTORS vectors of values, in registers.
inline constexpr int TILE_ROWS = 6;
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
inline constexpr int TILE_VECTORS = 4;
#else
inline constexpr int TILE_VECTORS = 2;
#endif

/// What meets the state and the keys: q, and in the delta rule k as well.
template <bool DELTA>
inline constexpr int PARTS = DELTA ? 2 : 1;

/// Rows `stride` values apart.
struct Rows {
    const float* data;
    std::int64_t stride;

    const float* operator[](std::int64_t i) const { return data + i * stride; }
    Rows from(std::int64_t row, std::int64_t column) const { return {data + row * stride + column, stride}; }
};

/// A segment of the wave: its line, its sequence, and the place of its first row in the wave's dots.
struct Active {
    std::int64_t segment, sequence, row;
};

/// The arguments of a call. Rows are [heads or groups][size]; state [slots][heads][k_size][v_size]; windows
/// [slots][CHUNK][heads or groups][size]; `carried` [sequences] as state, for those that nobody wants at a grid point.
struct Call {
    std::int64_t heads, groups, k_size, v_size, num_segments;
    Rows q, k, u, log_g, beta;
    float *state, *window_k, *window_u, *window_log_g, *carried, *out;
    const Segment* segments;
    Active* active;
    float* dots;

    std::int64_t heads_per_group() const { return heads / groups; }
    std::int64_t group_of(std::int64_t head) const { return head / heads_per_group(); }
    bool goes_on(std::int64_t segment) const { return segment + 1 < num_segments && !segments[segment + 1].begins_sequence(); }

    const float* state_before(const Active& a, std::int64_t head) const {
        const std::int64_t slot = segments[a.segment].state_slot;
        return slot >= 0 ? state + (slot * heads + head) * k_size * v_size : state_after(a.segment - 1, a.sequence, head);
    }

    /// Where a segment that reaches the grid leaves its state; null if nobody needs it.
    float* state_after(std::int64_t segment, std::int64_t sequence, std::int64_t head) const {
        const std::int64_t slot = segments[segment].grid_slot;
        if (slot >= 0) return state + (slot * heads + head) * k_size * v_size;
        return goes_on(segment) ? carried + (sequence * heads + head) * k_size * v_size : nullptr;
    }
};

/// A chunk's rows: those before `offset` are in the window, the others in the batch.
struct ChunkRows {
    Rows old, fresh;
    std::int64_t offset;

    const float* operator[](std::int64_t j) const { return j < offset ? old[j] : fresh[j - offset]; }
};

inline ChunkRows chunk_rows(const Segment& s, const float* window, std::int64_t width, const Rows& rows, std::int64_t column) {
    const Rows old{window + s.window_slot * CHUNK * width + column, width};
    return {old, rows.from(s.row, column), s.offset};
}

/// Asks for n values that will be read soon: rows far apart are a pattern that processors do not foresee.
inline void fetch(const float* p, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i, 0, 2);  // 2: into the second cache
}

/// The lower halves (UPPER = 0) or upper halves (1) of a's and b's blocks of SIZE lanes.
template <int SIZE, int UPPER, int... LANE>
inline vf block_halves(vf a, vf b, std::integer_sequence<int, LANE...>) {
    return shuffled<(LANE / (SIZE / 2) * SIZE + LANE % (SIZE / 2) + UPPER * SIZE / 2)...>(a, b);
}

/// Lane i: the sum of v[i]'s lanes, in the order of `sum`. Changes v.
template <int SIZE = W>
inline vf sums_of(vf* v) {
    if constexpr (SIZE == 1) {
        return v[0];
    } else {
        const auto lanes = std::make_integer_sequence<int, W>();
        for (int i = 0; i < SIZE / 2; ++i)
            v[i] = block_halves<SIZE, 0>(v[2 * i], v[2 * i + 1], lanes) + block_halves<SIZE, 1>(v[2 * i], v[2 * i + 1], lanes);
        return sums_of<SIZE / 2>(v);
    }
}

/// Adds the products of values i to i + n - 1 (W, if WHOLE) to the partial sums of PARTS rows with W / PARTS keys.
template <int PARTS, bool WHOLE>
[[gnu::always_inline]] inline void add_dots(vf (&sums)[PARTS][W / PARTS], const float* const (&rows)[PARTS],
                                            const float* const (&keys)[W / PARTS], std::int64_t i, std::int64_t n) {
    vf x[PARTS];
    for (int p = 0; p < PARTS; ++p) x[p] = WHOLE ? load(rows[p] + i) : load_n(rows[p] + i, n);
    for (int j = 0; j < W / PARTS; ++j) {
        const vf key = WHOLE ? load(keys[j] + i) : load_n(keys[j] + i, n);
        for (int p = 0; p < PARTS; ++p) sums[p][j] = fma(x[p], key, sums[p][j]);
    }
}

/// Products of PARTS rows with W / PARTS keys, part p's to out[p * CHUNK], side by side.
template <int PARTS>
inline void dots_of(const float* const (&rows)[PARTS], const float* const (&keys)[W / PARTS], std::int64_t size, float* out) {
    constexpr int KEYS = W / PARTS;
    vf sums[PARTS][KEYS];
    for (int p = 0; p < PARTS; ++p)
        for (int j = 0; j < KEYS; ++j) sums[p][j] = vf{};
    std::int64_t i = 0;
    for (; i + W <= size; i += W) add_dots<PARTS, true>(sums, rows, keys, i, W);
    if (i < size) add_dots<PARTS, false>(sums, rows, keys, i, size - i);
    float lanes[W];
    store(lanes, sums_of(&sums[0][0]));
    for (int p = 0; p < PARTS; ++p) std::memcpy(out + p * CHUNK, lanes + p * KEYS, KEYS * sizeof(float));
}

/// Puts a segment's new rows [from, to) of one group into the window, unless the grid point voids it. u of the delta rule
/// is not known yet.
template <bool DELTA>
void keep(const Call& c, const Segment& s, std::int64_t group, std::int64_t from, std::int64_t to) {
    if (s.reaches_grid()) return;
    const std::int64_t heads = c.heads_per_group(), head = group * heads;
    for (std::int64_t i = from; i < to; ++i) {
        const std::int64_t row = s.row + i, entry = s.window_slot * CHUNK + s.offset + i;
        std::memcpy(c.window_k + (entry * c.groups + group) * c.k_size, c.k[row] + group * c.k_size, c.k_size * sizeof(float));
        std::memcpy(c.window_log_g + entry * c.heads + head, c.log_g[row] + head, heads * sizeof(float));
        if constexpr (!DELTA)
            std::memcpy(c.window_u + (entry * c.heads + head) * c.v_size, c.u[row] + head * c.v_size,
                        heads * c.v_size * sizeof(float));
    }
}

/// Dots of a segment's new rows [from, to) with the chunk's rows up to each, [row][group][PARTS][CHUNK]; what follows in
/// the last vector is void.
template <bool DELTA>
void group_dots(const Call& c, const Active& a, std::int64_t group, std::int64_t from, std::int64_t to) {
    constexpr int KEYS = W / PARTS<DELTA>;
    const Segment& s = c.segments[a.segment];
    const Rows q = c.q.from(s.row, group * c.k_size), k = c.k.from(s.row, group * c.k_size);
    const ChunkRows keys = chunk_rows(s, c.window_k, c.groups * c.k_size, c.k, group * c.k_size);
    for (std::int64_t j = 0; j < s.offset; ++j) fetch(keys[j], c.k_size);
    for (std::int64_t i = from; i < to; ++i) {
        fetch(q[i], c.k_size);
        fetch(k[i], c.k_size);
    }
    for (std::int64_t j = 0; j < s.offset + to; j += KEYS) {
        const float* block[KEYS];
        for (int l = 0; l < KEYS; ++l) block[l] = keys[j + l < s.end ? j + l : s.end - 1];
        float near[KEYS][NEAR_SIZE];
        if (to - from > 1 && c.k_size <= NEAR_SIZE)
            for (int l = 0; l < KEYS; ++l) {
                std::memcpy(near[l], block[l], c.k_size * sizeof(float));
                block[l] = near[l];
            }
        for (std::int64_t i = from > j - s.offset ? from : j - s.offset; i < to; ++i) {
            float* out = c.dots + ((a.row + i) * c.groups + group) * PARTS<DELTA> * CHUNK + j;
            if constexpr (DELTA)
                dots_of<2>({q[i], k[i]}, block, c.k_size, out);
            else
                dots_of<1>({q[i]}, block, c.k_size, out);
        }
    }
}

/// One head's part of a segment: the segment's new rows of q, k, dots, v, beta, new_u and out, and the chunk's rows of keys
/// and u. v, beta and new_u are the delta rule's, where new rows of u are made in the window.
struct Head {
    std::int64_t k_size, v_size, offset, num_new;
    const float* start;  // the state at the grid point
    Rows q, k, dots, v, beta;
    ChunkRows keys, u;
    float *new_u, *out;
    std::int64_t stride;  // between rows of new_u and of out
    double sums[CHUNK];   // of log decays from the grid point
    float since_start[CHUNK];
};

/// Sums of a head's log decays, and what is left of the state at each new row.
inline void sum_decays(Head& h, const ChunkRows& log_g) {
    double total = 0.0;
    const std::int64_t end = h.offset + h.num_new;
    for (std::int64_t j = 0; j < end; ++j) h.sums[j] = total += static_cast<double>(*log_g[j]);
    for (std::int64_t j = h.offset / W * W; j < end; j += W) {
        float sums[W];
        for (int l = 0; l < W; ++l) sums[l] = static_cast<float>(h.sums[j + l]);
        store(h.since_start + j, exp(load(sums)));
    }
}

/// What is left at row i of the W rows from j on; void where they come after i.
inline vf decays(const Head& h, std::int64_t i, std::int64_t j) {
    float differences[W];
    for (int l = 0; l < W; ++l) differences[l] = static_cast<float>(h.sums[i] - h.sums[j + l]);
    return exp(load(differences));
}

/// The chains of ROWS rows from chunk row i on, over VECTORS vectors of values from `column` on or, if not WHOLE, over n < W
/// values. `weights`: decayed dots.
template <bool DELTA, int ROWS, int VECTORS, bool WHOLE>
void tile(const Head& h, const float (&weights)[PARTS<DELTA>][ROWS][CHUNK], std::int64_t i, std::int64_t column,
          std::int64_t n) {
    const auto get = [&](const float* row, int v) { return WHOLE ? load(row + column + v * W) : load_n(row + column, n); };
    const auto put = [&](float* row, int v, vf x) { store_upto(row + column + v * W, x, WHOLE ? W : n); };
    const std::int64_t first = i - h.offset, k_size = h.k_size, v_size = h.v_size, stride = h.stride;
    const Rows q = h.q.from(first, 0), k = h.k.from(first, 0), new_v = h.v.from(first, 0), beta = h.beta.from(first, 0);
    const ChunkRows u = h.u;
    float *out = h.out + first * stride, *new_u = DELTA ? h.new_u + first * stride : nullptr;

    vf sums[PARTS<DELTA>][ROWS][VECTORS], values[VECTORS];
    for (int p = 0; p < PARTS<DELTA>; ++p)
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[p][r][v] = vf{};
    const auto add = [&](int p, int r, float weight) {
        for (int v = 0; v < VECTORS; ++v) sums[p][r][v] = fma(splat(weight), values[v], sums[p][r][v]);
    };
    const float* state = h.start;
    for (std::int64_t d = 0; d < k_size; ++d, state += v_size) {
        for (int v = 0; v < VECTORS; ++v) values[v] = get(state, v);
        for (int r = 0; r < ROWS; ++r) {
            add(0, r, q[r][d]);
            if constexpr (DELTA) add(1, r, k[r][d]);
        }
    }
    for (int p = 0; p < PARTS<DELTA>; ++p)
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[p][r][v] *= splat(h.since_start[i + r]);
    for (std::int64_t j = 0; j < i; ++j) {
        const float* row = u[j];
        for (int v = 0; v < VECTORS; ++v) values[v] = get(row, v);
        for (int p = 0; p < PARTS<DELTA>; ++p)
            for (int r = 0; r < ROWS; ++r) add(p, r, weights[p][r][j]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m) {  // the tile's own rows: u of row m, for itself and for the rows after it
        for (int v = 0; v < VECTORS; ++v) {
            if constexpr (DELTA) {
                values[v] = splat(*beta[m]) * (get(new_v[m], v) - sums[1][m][v]);
                put(new_u + m * stride, v, values[v]);
            } else {
                values[v] = get(u[i + m], v);
            }
        }
        for (int r = m; r < ROWS; ++r) {
            add(0, r, weights[0][r][i + m]);
            if constexpr (DELTA)
                if (r > m) add(1, r, weights[1][r][i + m]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) put(out + r * stride, v, sums[0][r][v]);
}

template <bool DELTA, int ROWS, int VECTORS>
void tile_of(std::int64_t vectors, const Head& h, const float (&weights)[PARTS<DELTA>][ROWS][CHUNK], std::int64_t i,
             std::int64_t column) {
    if constexpr (VECTORS > 1) {
        if (vectors < VECTORS) return tile_of<DELTA, ROWS, VECTORS - 1>(vectors, h, weights, i, column);
    }
    tile<DELTA, ROWS, VECTORS, true>(h, weights, i, column, W);
}

/// u (delta rule) and out of ROWS rows from chunk row i on. One row alone takes twice the vectors: it has registers for
/// them, and reads the state in longer runs.
template <bool DELTA, int ROWS>
void row_tile(const Head& h, std::int64_t i) {
    constexpr int VECTORS = ROWS == 1 ? 2 * TILE_VECTORS : TILE_VECTORS;
    float weights[PARTS<DELTA>][ROWS][CHUNK];
    for (int r = 0; r < ROWS; ++r)
        for (std::int64_t j = 0; j <= i + r; j += W) {
            const vf left = decays(h, i + r, j);
            for (int p = 0; p < PARTS<DELTA>; ++p)
                store(weights[p][r] + j, load(h.dots[i - h.offset + r] + p * CHUNK + j) * left);
        }
    const std::int64_t whole = h.v_size / W;
    for (std::int64_t v = 0; v < whole; v += VECTORS)
        tile_of<DELTA, ROWS, VECTORS>(whole - v, h, weights, i, v * W);
    if (whole * W < h.v_size) tile<DELTA, ROWS, 1, false>(h, weights, i, whole * W, h.v_size - whole * W);
}

template <bool DELTA, int ROWS>
void row_tile_of(std::int64_t rows, const Head& h, std::int64_t i) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return row_tile_of<DELTA, ROWS - 1>(rows, h, i);
    }
    row_tile<DELTA, ROWS>(h, i);
}

/// Values of a chunk's u as they are left at its end.
using Left = float[CHUNK][TILE_VECTORS * W];

/// The next state's rows k to k + ROWS - 1, VECTORS vectors from `column` on (n values, if not WHOLE). `next` may be the
/// state itself.
template <int ROWS, int VECTORS, bool WHOLE>
void fold_tile(const Head& h, const Left& left, std::int64_t k, std::int64_t column, std::int64_t n, float* next) {
    vf sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = vf{};
    for (std::int64_t j = 0; j < CHUNK; ++j) {
        const float* key = h.keys[j] + k;
        vf values[VECTORS];
        for (int v = 0; v < VECTORS; ++v) values[v] = load(left[j] + v * W);
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(splat(key[r]), values[v], sums[r][v]);
    }
    const vf kept = splat(h.since_start[CHUNK - 1]);
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) {
            const std::int64_t at = (k + r) * h.v_size + column + v * W;
            const vf before = WHOLE ? load(h.start + at) : load_n(h.start + at, n);
            store_upto(next + at, fma(kept, before, sums[r][v]), n);
        }
}

template <int ROWS, int VECTORS, bool WHOLE>
void fold_tile_of(std::int64_t rows, const Head& h, const Left& left, std::int64_t k, std::int64_t column, std::int64_t n,
                  float* next) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return fold_tile_of<ROWS - 1, VECTORS, WHOLE>(rows, h, left, k, column, n, next);
    }
    fold_tile<ROWS, VECTORS, WHOLE>(h, left, k, column, n, next);
}

/// The next state's values from `column` on: VECTORS vectors, or n values of one.
template <int VECTORS, bool WHOLE>
void fold_columns(const Head& h, const float (&ends)[CHUNK], std::int64_t column, std::int64_t n, float* next) {
    Left left;
    for (std::int64_t j = 0; j < CHUNK; ++j)
        for (int v = 0; v < VECTORS; ++v) {
            const float* u = h.u[j] + column + v * W;
            store(left[j] + v * W, splat(ends[j]) * (WHOLE ? load(u) : load_n(u, n)));
        }
    for (std::int64_t k = 0; k < h.k_size; k += TILE_ROWS)
        fold_tile_of<TILE_ROWS, VECTORS, WHOLE>(h.k_size - k, h, left, k, column, n, next);
}

template <int VECTORS>
void fold_columns_of(std::int64_t vectors, const Head& h, const float (&ends)[CHUNK], std::int64_t column, float* next) {
    if constexpr (VECTORS > 1) {
        if (vectors < VECTORS) return fold_columns_of<VECTORS - 1>(vectors, h, ends, column, next);
    }
    fold_columns<VECTORS, true>(h, ends, column, W, next);
}

/// The state at the grid point that the head's rows have reached.
inline void fold(const Head& h, float* next) {
    float ends[CHUNK];
    for (std::int64_t j = 0; j < CHUNK; j += W) store(ends + j, decays(h, CHUNK - 1, j));
    const std::int64_t whole = h.v_size / W;
    for (std::int64_t v = 0; v < whole; v += TILE_VECTORS) fold_columns_of<TILE_VECTORS>(whole - v, h, ends, v * W, next);
    if (whole * W < h.v_size) fold_columns<1, false>(h, ends, whole * W, h.v_size - whole * W, next);
}

template <bool DELTA>
Head head_of(const Call& c, const Active& a, std::int64_t head) {
    const Segment& s = c.segments[a.segment];
    const std::int64_t group = c.group_of(head), key = group * c.k_size, value = head * c.v_size, width = c.heads * c.v_size;
    const std::int64_t dots = PARTS<DELTA> * CHUNK;
    Head h{};
    h.k_size = c.k_size, h.v_size = c.v_size, h.offset = s.offset, h.num_new = s.rows();
    h.start = c.state_before(a, head);
    h.q = c.q.from(s.row, key), h.k = c.k.from(s.row, key);
    h.dots = {c.dots + (a.row * c.groups + group) * dots, c.groups * dots};
    h.keys = chunk_rows(s, c.window_k, c.groups * c.k_size, c.k, key);
    h.u = chunk_rows(s, c.window_u, width, c.u, value);
    h.out = c.out + s.row * width + value, h.stride = width;
    if constexpr (DELTA) {
        h.v = h.u.fresh, h.beta = c.beta.from(s.row, head);
        h.new_u = c.window_u + (s.window_slot * CHUNK + s.offset) * width + value;
        h.u.fresh = {h.new_u, width};
    }
    for (std::int64_t j = 0; j < s.offset; ++j) fetch(h.u[j], c.v_size);
    sum_decays(h, chunk_rows(s, c.window_log_g, c.heads, c.log_g, head));
    return h;
}

/// All of a segment for one head: its rows, and the state where they reach the grid point.
template <bool DELTA>
void run_head(const Call& c, const Active& a, std::int64_t head) {
    constexpr int ROWS = TILE_ROWS / PARTS<DELTA>;
    const Segment& s = c.segments[a.segment];
    const Head h = head_of<DELTA>(c, a, head);
    for (std::int64_t i = s.offset; i < s.end; i += ROWS) row_tile_of<DELTA, ROWS>(s.end - i, h, i);
    float* next = s.reaches_grid() ? c.state_after(a.segment, a.sequence, head) : nullptr;
    if (next) fold(h, next);
}

/// The first wave: the first segment of each sequence. Returns how many.
inline std::int64_t first_wave(const Call& c) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < c.num_segments; ++i)
        if (c.segments[i].begins_sequence()) {
            c.active[count] = {i, count, 0};
            ++count;
        }
    return count;
}

/// The wave after one of `count` segments: of each sequence that goes on, the next one.
inline std::int64_t next_wave(const Call& c, std::int64_t count) {
    std::int64_t going = 0;
    for (std::int64_t i = 0; i < count; ++i)
        if (c.goes_on(c.active[i].segment)) c.active[going++] = {c.active[i].segment + 1, c.active[i].sequence, 0};
    return going;
}

/// Gives the wave's rows their places for dots; returns the most rows of a segment.
inline std::int64_t place_rows(const Call& c, std::int64_t count) {
    std::int64_t row = 0, most = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t rows = c.segments[c.active[i].segment].rows();
        c.active[i].row = row;
        row += rows;
        most = rows > most ? rows : most;
    }
    return most;
}

/// Rows for the window and dots, by group.
template <bool DELTA>
void run_dots(const Call& c, std::int64_t count, std::int64_t most_rows) {
    const std::int64_t blocks = (most_rows + DOT_ROWS - 1) / DOT_ROWS;
    parallel_for(c.groups * blocks * count, [&](std::int64_t task) {
        const Active& a = c.active[task % count];
        const Segment& s = c.segments[a.segment];
        const std::int64_t group = task / count / blocks, from = task / count % blocks * DOT_ROWS;
        const std::int64_t to = s.rows() - from < DOT_ROWS ? s.rows() : from + DOT_ROWS;
        if (from >= to) return;
        keep<DELTA>(c, s, group, from, to);
        group_dots<DELTA>(c, a, group, from, to);
    });
}

/// All the rest, by head. Threads take consecutive tasks: some heads of every sequence, so that a long one burdens them all.
template <bool DELTA>
void run_heads(const Call& c, std::int64_t count) {
    const std::int64_t runs = (c.heads + HEAD_RUN - 1) / HEAD_RUN;
    parallel_for(runs * count * HEAD_RUN, [&](std::int64_t task) {
        const std::int64_t run = task / HEAD_RUN / count, head = run * HEAD_RUN + task % HEAD_RUN;
        if (head < c.heads) run_head<DELTA>(c, c.active[task / HEAD_RUN % count], head);
    });
}

/// All segments, wave by wave.
template <bool DELTA>
void run(const Call& c) {
    for (std::int64_t count = first_wave(c); count > 0; count = next_wave(c, count)) {
        run_dots<DELTA>(c, count, place_rows(c, count));
        run_heads<DELTA>(c, count);
    }
}

}  // namespace milepost::recurrence
