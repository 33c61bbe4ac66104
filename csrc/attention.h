// Softmax attention over paged keys and values.
//
// Order. A row's tokens are taken in order of position, in splits of SPLIT tokens and, within these, in tiles of TILE, both
// counted from the sequence's first token. Each split has an online softmax of its own (Milakov and Gimelshein, 2018): the
// largest score so far, the sum of exp(score - largest), and the sums of values under the same weights (FlashAttention: Dao et
// al., 2022). Splits are merged one after another in order of position, then the sink. A score is one chain of additions along
// the head's values, a sum of values one chain along the tokens. None of this depends on which rows are computed together: one
// routine serves a row of a decode and the many of a prefill.
//
// Tokens that a row does not see take no part in its sums: their scores are selected away, their values are not touched, and a
// tile or split without any token seen is no operation for the row. The memory behind them may hold anything.
//
// A tile's keys are turned into `gemm.h`'s order of packed weights, with tokens in the place of outputs: a score is what a linear
// layer of these weights makes of the query.
#pragma once
#include "attention_jobs.h"
#include "functions.h"
#include "rows.h"

namespace milepost {

/// q [rows, heads, dim], rows q_row and heads q_head values apart; k, v [blocks, KV_BLOCK, kv_heads, dim]; tables [sequences,
/// table_width]; sinks [heads] or null; soft_cap 0: none; out [rows, heads, dim].
template <typename T>
struct Attention {
    AttentionShape shape;
    AttentionRows rows;
    const T* q;
    std::int64_t q_row, q_head;
    const T *k, *v;
    const std::int32_t* tables;
    std::int64_t table_width;
    const float* sinks;
    float scale, soft_cap;
    T* out;
};

/// The softmax of one row and head over some tokens, with its sums of values [columns].
struct Part {
    float &top, &total;
    float* sums;
};

/// What scores are measured from: the largest of them, but 0 as long as all are -inf.
inline float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

inline void clear(const Part& part, std::int64_t columns) {
    part.top = -INFINITY;
    part.total = 0.0f;
    for (std::int64_t c = 0; c < columns; c += W) store(part.sums + c, vf{});
}

inline void copy(const Part& to, const Part& from, std::int64_t columns) {
    to.top = from.top;
    to.total = from.total;
    for (std::int64_t c = 0; c < columns; c += W) store(to.sums + c, load(from.sums + c));
}

/// Takes in the next part.
inline void merge(const Part& all, const Part& part, std::int64_t columns) {
    const float top = all.top > part.top ? all.top : part.top, base = base_of(top);
    const vf before = exp(splat(all.top - base)), now = exp(splat(part.top - base));
    for (std::int64_t c = 0; c < columns; c += W)
        store(all.sums + c, fma(load(part.sums + c), now, load(all.sums + c) * before));
    all.total = fma(part.total, now[0], all.total * before[0]);
    all.top = top;
}

/// Takes in the head's sink (one more score, without a value), divides, and rounds to out.
template <typename T>
void finish(const Attention<T>& a, const Part& all, std::int64_t row, std::int64_t head) {
    vf factor = splat(1.0f);
    float total = all.total;
    if (a.sinks) {
        const float sink = a.sinks[head], base = base_of(all.top > sink ? all.top : sink);
        factor = exp(splat(all.top - base));
        total = fma(total, factor[0], exp(splat(sink - base))[0]);
    }
    T* out = a.out + (row * a.shape.heads + head) * a.shape.dim;
    for_lanes(a.shape.dim, [&](std::int64_t i, std::int64_t n) {
        store_upto(out + i, load(all.sums + i) * factor / splat(total), n);
    });
}

/// The next W units of 32 bits (one fp32 or two bf16) of a row with `left` values left; what is beyond them is 0.
template <typename T>
vu load_units(const T* p, std::int64_t left) {
    vu units = {};
    if (left >= W * GROUP<T>)
        std::memcpy(&units, p, sizeof units);
    else
        std::memcpy(&units, p, left * sizeof(T));
    return units;
}

/// Values of a query, such that they are whole units.
template <typename T>
std::int64_t padded(std::int64_t dim) {
    return (dim + GROUP<T> - 1) / GROUP<T> * GROUP<T>;
}

/// An item's queries, [head_rows][padded].
template <typename T>
void load_queries(const Attention<T>& a, const Item& item, T* queries) {
    const std::int64_t size = padded<T>(a.shape.dim);
    for (std::int64_t i = 0; i < item.head_rows(); ++i) {
        const T* from = a.q + (item.job.row + item.row(i)) * a.q_row + item.head(i) * a.q_head;
        queries[i * size + size - 1] = T{};
        std::memcpy(queries + i * size, from, a.shape.dim * sizeof(T));
    }
}

/// The keys of a tile's tokens as packed weights of TILE outputs, [units][TILE].
template <typename T>
void load_keys(const T* const (&tokens)[TILE], std::int64_t dim, T* keys) {
    for (std::int64_t t = 0; t < TILE; t += W)
        for (std::int64_t d = 0; d < dim; d += W * GROUP<T>) {
            vu rows[W];
            for (int i = 0; i < W; ++i) rows[i] = load_units(tokens[t + i] + d, dim - d);
            transpose(rows);
            const std::int64_t units = (dim - d + GROUP<T> - 1) / GROUP<T>;
            for (int i = 0; i < W && i < units; ++i)
                std::memcpy(keys + (d + i * GROUP<T>) * TILE + t * GROUP<T>, &rows[i], sizeof rows[i]);
        }
}

/// The values of the tokens in `span` as fp32 [TILE][columns], and where they are; those beyond dim are 0.
template <typename T>
void load_values(const T* const (&tokens)[TILE], Span span, const AttentionShape& shape, float* values,
                 const float* (&places)[TILE]) {
    const std::int64_t columns = shape.columns();
    for (std::int64_t t = span.from; t < span.to; ++t) {
        float* to = values + t * columns;
        for_lanes(shape.dim, [&](std::int64_t i, std::int64_t n) { store(to + i, load_upto(tokens[t] + i, n)); });
        for (std::int64_t i = (shape.dim + W - 1) / W * W; i < columns; i += W) store(to + i, vf{});
        places[t] = to;
    }
}

/// The softmaxes of the rows and heads of an item.
struct Softmaxes {
    alignas(64) float sums[HEAD_SUMS];
    float top[HEAD_ROWS], total[HEAD_ROWS];

    Part part(std::int64_t i, std::int64_t columns) { return {top[i], total[i], sums + i * columns}; }
};

/// What an item works in: its queries, a tile of keys and values, the scores, which become weights, and the softmaxes over the
/// split that is being read (their sums of weights still in lanes) and over those before.
template <typename T>
struct Workspace {
    alignas(64) T queries[HEAD_SUMS];
    alignas(64) T keys[MAX_HEAD_DIM * TILE];
    alignas(64) float values[MAX_HEAD_DIM * TILE];
    alignas(64) float scores[HEAD_ROWS * TILE];
    alignas(64) float lane_totals[HEAD_ROWS * W];
    Softmaxes now, before;
};

/// yes in the lanes of `span`, no in the others.
inline vf within(Span span, vf yes, vf no) {
    vi lane;
    for (int i = 0; i < W; ++i) lane[i] = i;
    return select((lane >= static_cast<std::int32_t>(span.from)) & (lane < static_cast<std::int32_t>(span.to)), yes, no);
}

/// Scales and caps the scores [TILE] of one row and head, those beyond `span` become -inf, up to whole vectors around it.
/// Returns the largest.
inline float rate(float* scores, Span span, float scale, float soft_cap) {
    vf high = splat(-INFINITY);
    for (std::int64_t t = span.from / W * W; t < span.to; t += W) {
        vf score = load(scores + t) * scale;
        if (soft_cap != 0.0f) score = tanh(score / soft_cap) * soft_cap;
        if (t < span.from || t + W > span.to) score = within({span.from - t, span.to - t}, score, splat(-INFINITY));
        store(scores + t, score);
        high = max(high, score);
    }
    return largest(high);
}

/// One row and head's softmax goes on by the scores [TILE] of a tile, which become weights: 0 beyond `span`, up to whole
/// vectors around it.
inline void soften(float* scores, Span span, float scale, float soft_cap, const Part& part, float* lane_totals,
                   std::int64_t columns) {
    const float highest = rate(scores, span, scale, soft_cap), top = highest > part.top ? highest : part.top;
    const float base = base_of(top);
    vf total = load(lane_totals);
    if (top != part.top) {  // else the factor is 1
        const vf fade = exp(splat(part.top - base));
        total *= fade;
        for (std::int64_t c = 0; c < columns; c += W) store(part.sums + c, load(part.sums + c) * fade);
        part.top = top;
    }
    for (std::int64_t t = span.from / W * W; t < span.to; t += W) {
        const vf weight = exp(load(scores + t) - base);
        store(scores + t, weight);
        total += weight;
    }
    store(lane_totals, total);
}

/// Adds weights [ROWS][TILE] x values of the tokens in `span` to COLUMNS of the sums of ROWS rows and heads, `columns` apart.
template <int ROWS, typename T>
void add_columns(const float* weights, const T* const (&values)[TILE], Span span, std::int64_t column, float* sums,
                 std::int64_t columns) {
    vf held[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) held[r][v] = load(sums + r * columns + v * W);
    for (std::int64_t t = span.from; t < span.to; ++t) {
        vf value[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; ++v) value[v] = load(values[t] + column + v * W);
        for (int r = 0; r < ROWS; ++r) {
            const vf weight = splat(weights[r * TILE + t]);
            for (int v = 0; v < TILE_VECTORS; ++v) held[r][v] = fma(weight, value[v], held[r][v]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) store(sums + r * columns + v * W, held[r][v]);
}

/// The same for all columns of `rows` <= ROWS.
template <int ROWS, typename T>
void add_span(const float* weights, const T* const (&values)[TILE], Span span, std::int64_t rows, float* sums,
              std::int64_t columns) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return add_span<ROWS - 1>(weights, values, span, rows, sums, columns);
    }
    if (span.empty()) return;
    for (std::int64_t c = 0; c < columns; c += COLUMNS) add_columns<ROWS>(weights, values, span, c, sums + c, columns);
}

/// The same for all of n rows and heads, of which number i sees the tokens span_of(i).
template <typename T, typename F>
void add_values(const float* weights, const T* const (&values)[TILE], std::int64_t n, float* sums, std::int64_t columns,
                F span_of) {
    for (std::int64_t i = 0; i < n; i += TILE_ROWS) {
        const std::int64_t rows = n - i < TILE_ROWS ? n - i : TILE_ROWS;
        const auto add = [&](std::int64_t row, std::int64_t count, std::int64_t from, std::int64_t to) {
            add_span<TILE_ROWS>(weights + row * TILE, values, {from, to}, count, sums + row * columns, columns);
        };
        // tokens that all of these rows see are added to all at once, those before and after them row by row
        Span common = {span_of(i + rows - 1).from, span_of(i).to};
        if (common.empty()) common = {TILE, TILE};
        for (std::int64_t r = i; r < i + rows; ++r) {
            const Span span = span_of(r);
            add(r, 1, span.from, span.to < common.from ? span.to : common.from);
        }
        add(i, rows, common.from, common.to);
        for (std::int64_t r = i; r < i + rows; ++r) add(r, 1, common.to, span_of(r).to);
    }
}

/// Where the keys and values of the tokens in `span` (from `start` on) begin; keys of others are 0.
template <typename T>
void find_tokens(const Attention<T>& a, const Item& item, std::int64_t start, Span span, const T* (&keys)[TILE],
                 const T* (&values)[TILE]) {
    static constexpr T zeros[MAX_HEAD_DIM] = {};
    const std::int32_t* table = a.tables + item.job.sequence * a.table_width;
    for (const T*& key : keys) key = zeros;
    for (std::int64_t t = span.from; t < span.to; ++t) {
        const std::int64_t slot = table[(start + t) / KV_BLOCK] * KV_BLOCK + t % KV_BLOCK;
        const std::int64_t place = (slot * a.shape.kv_heads + item.kv_head) * a.shape.dim;
        keys[t] = a.k + place;
        values[t] = a.v + place;
    }
}

/// Where a tile's scores go: [rows][TILE].
struct Scores {
    float* to;

    void expect(std::int64_t) const {}
    void put(std::int64_t r, std::int64_t c, vf sum) const { store(to + r * TILE + c, sum); }
};

/// One tile of tokens from `start` on, for the rows that see any of it.
template <typename T>
void add_tile(const Attention<T>& a, const Item& item, std::int64_t start, Workspace<T>& w) {
    const AttentionShape& shape = a.shape;
    const std::int64_t n = item.head_rows(), first = item.job.position, columns = shape.columns();
    const Span any = shape.seen(first, first + item.job.rows - 1, start, TILE);
    if (any.empty()) return;
    const T *keys[TILE], *values[TILE];
    find_tokens(a, item, start, any, keys, values);
    load_keys(keys, shape.dim, w.keys);
    panel_sums(w.queries, padded<T>(shape.dim), w.keys, n, shape.dim, Ahead{}, Scores{w.scores});
    const auto span_of = [&](std::int64_t i) { return shape.seen(item.position(i), item.position(i), start, TILE); };
    for (std::int64_t i = 0; i < n; ++i)
        if (const Span span = span_of(i); !span.empty())
            soften(w.scores + i * TILE, span, a.scale, a.soft_cap, w.now.part(i, columns), w.lane_totals + i * W, columns);
    if (n <= TILE_ROWS && columns == shape.dim) {  // each value is read but once
        add_values(w.scores, values, n, w.now.sums, columns, span_of);
        return;
    }
    const float* widened[TILE];
    load_values(values, any, shape, w.values, widened);
    add_values(w.scores, widened, n, w.now.sums, columns, span_of);
}

/// One split: leaves its softmax in w.now, for the rows that see any of it.
template <typename T>
void add_split(const Attention<T>& a, const Item& item, std::int64_t split, Workspace<T>& w) {
    const std::int64_t n = item.head_rows(), columns = a.shape.columns();
    for (std::int64_t i = 0; i < n; ++i) {
        clear(w.now.part(i, columns), columns);
        store(w.lane_totals + i * W, vf{});
    }
    for (std::int64_t t = 0; t < SPLIT; t += TILE) add_tile(a, item, split * SPLIT + t, w);
    for (std::int64_t i = 0; i < n; ++i) w.now.total[i] = sum(load(w.lane_totals + i * W));
}

/// The stored part of one row (counted over all parts) and head.
inline Part stored(const AttentionShape& shape, float* parts, std::int64_t row, std::int64_t head) {
    float* sums = parts + (row * shape.heads + head) * part_size(shape);
    float* rest = sums + shape.columns();
    return {rest[0], rest[1], sums};
}

/// All splits of an item's job: to out, or to its part.
template <typename T>
void attend(const Attention<T>& a, const Item& item, float* parts) {
    const AttentionShape& shape = a.shape;
    const Job& job = item.job;
    const std::int64_t n = item.head_rows(), columns = shape.columns();
    Workspace<T> w;
    load_queries(a, item, w.queries);
    for (std::int64_t i = 0; i < n; ++i) clear(w.before.part(i, columns), columns);
    for (std::int64_t split = job.split; split < job.split + job.splits; ++split) {
        add_split(a, item, split, w);
        for (std::int64_t i = 0; i < n; ++i) {
            if (!shape.sees_split(item.position(i), split)) continue;
            if (job.part < 0)
                merge(w.before.part(i, columns), w.now.part(i, columns), columns);
            else
                copy(stored(shape, parts, job.part + item.row(i), item.head(i)), w.now.part(i, columns), columns);
        }
    }
    if (job.part < 0)
        for (std::int64_t i = 0; i < n; ++i) finish(a, w.before.part(i, columns), job.row + item.row(i), item.head(i));
}

/// Merges the parts of one head of the rows of `job` and the jobs after it that share them.
template <typename T>
void merge_parts(const Attention<T>& a, const Job& job, std::int64_t head, float* parts) {
    float sums[MAX_HEAD_DIM], top, total;
    const Part all{top, total, sums};
    for (std::int64_t r = 0; r < job.rows; ++r) {
        clear(all, a.shape.columns());
        for (std::int64_t k = 0; k < job.to_merge; ++k)
            if (a.shape.sees_split(job.position + r, job.split + k))
                merge(all, stored(a.shape, parts, job.part + k * job.rows + r, head), a.shape.columns());
        finish(a, all, job.row + r, head);
    }
}

/// Causal attention of new rows over their sequences' stored keys and values. `scratch`: attention_scratch bytes.
template <typename T>
void attention(const Attention<T>& a, void* scratch) {
    const AttentionShape& shape = a.shape;
    const JobCounts counts = count_jobs(a.rows, shape);
    Job* jobs = static_cast<Job*>(scratch);
    float* parts = reinterpret_cast<float*>(jobs + counts.jobs);
    for_jobs(a.rows, shape, [&, i = 0](const Job& job) mutable { jobs[i++] = job; });
    // late rows of a prompt see more than early ones, and a thread takes consecutive items: neighbours come from far apart
    const std::int64_t stride = stride_over(counts.jobs), items = shape.kv_heads * shape.head_blocks();
    parallel_for(counts.jobs * items, [&](std::int64_t i) {
        attend(a, Item(shape, jobs[i / items * stride % counts.jobs], i % items), parts);
    });
    if (counts.parts == 0) return;
    parallel_for(counts.jobs * shape.heads, [&](std::int64_t i) {
        const Job& job = jobs[i / shape.heads];
        if (job.to_merge) merge_parts(a, job, i % shape.heads, parts);
    });
}

/// Copies rows [rows, size] of k and v, k_row and v_row values apart, to their slots.
template <typename T>
void store_kv(const T* k, std::int64_t k_row, const T* v, std::int64_t v_row, T* to_k, T* to_v, const std::int64_t* slots,
              std::int64_t rows, std::int64_t size) {
    for_rows(rows, 2 * size, [&](std::int64_t r) {
        std::memcpy(to_k + slots[r] * size, k + r * k_row, size * sizeof(T));
        std::memcpy(to_v + slots[r] * size, v + r * v_row, size * sizeof(T));
    });
}

}  // namespace milepost
