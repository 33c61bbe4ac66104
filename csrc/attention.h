// Softmax attention over paged keys and values.
//
// Order. A row's tokens are taken in order of position, in splits of SPLIT tokens and, within these, in tiles of TILE, both
// counted from the sequence's first token. Each split has an online softmax of its own (Milakov and Gimelshein, 2018): the
// largest score so far, the sum of exp(score - largest), and the sums of values under the same weights (FlashAttention: Dao et
// al., 2022). Splits are merged one after another in order of position, then the sink. A score is one chain of additions along
// the head's values; a tile's sum of values is one along its tokens, from 0, and is added to that of the tiles before. None of
// this depends on which rows are computed together: one routine serves a row of a decode and the many of a prefill.
//
// Weights are rounded to the values' type before they meet them, as in FlashAttention; the sum of the weights is of those that
// are not rounded. A tile's keys are put into the order of `gemm.h`'s packed weights, with tokens in the place of outputs, and
// its values, with tokens in the place of inputs: scores are what a linear layer makes of the queries, sums of values are what
// one makes of the weights.
//
// Tokens that a row does not see take no part in its sums. Their scores are selected away, so their weights are 0; 0 times a
// finite value changes nothing but a zero's sign, which is dropped at the end; and a value that is not finite is kept from the
// rows that do not see it. A tile or split without any token seen is no operation for the row. The memory behind tokens that no
// row sees may hold anything.
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

/// Scores are kept times this: weights are powers of 2.
inline constexpr float LOG2E = 1.44269504088896341f;

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
    const vf before = exp2(splat(all.top - base)), now = exp2(splat(part.top - base));
    for (std::int64_t c = 0; c < columns; c += W)
        store(all.sums + c, fma(load(part.sums + c), now, load(all.sums + c) * before));
    all.total = fma(part.total, now[0], all.total * before[0]);
    all.top = top;
}

/// Takes in the head's sink (one more score, without a value), divides, and rounds to out. A sum that is 0 may be -0 for what
/// the row does not see: + 0.0f makes it 0.
template <typename T>
void finish(const Attention<T>& a, const Part& all, std::int64_t row, std::int64_t head) {
    float factor = 1.0f, total = all.total;
    if (a.sinks) {
        const float sink = a.sinks[head] * LOG2E, base = base_of(all.top > sink ? all.top : sink);
        factor = exp2(splat(all.top - base))[0];
        total = fma(total, factor, exp2(splat(sink - base))[0]);
    }
    const vf share = splat(factor / total);
    T* out = a.out + (row * a.shape.heads + head) * a.shape.dim;
    for_lanes(a.shape.dim, [&](std::int64_t i, std::int64_t n) {
        store_upto(out + i, (load(all.sums + i) + 0.0f) * share, n);
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

/// W columns of the next tokens' values, one unit each: a token's, or two tokens' side by side.
inline vu value_units(const float* const* tokens, std::int64_t column, std::int64_t n) {
    return as_bits(load_upto(tokens[0] + column, n));
}
inline vu value_units(const bf16* const* tokens, std::int64_t column, std::int64_t n) {
    return as_bits(load_upto(tokens[0] + column, n)) >> 16 | as_bits(load_upto(tokens[1] + column, n));
}

/// An exponent of all ones, as infinity and NaN have it, and what makes it carry, in each value of a unit.
template <typename T>
inline constexpr std::uint32_t EXPONENTS = sizeof(T) == 2 ? 0x7f807f80u : 0x7f800000u;
template <typename T>
inline constexpr std::uint32_t EXPONENT_ONES = sizeof(T) == 2 ? 0x00800080u : 0x00800000u;

/// The values of a tile's tokens around `span`, in whole units, as packed weights with tokens as inputs, [panels][TILE][PANEL];
/// columns beyond dim are 0. Returns whether all are finite, if that is CHECKED.
template <bool CHECKED, typename T>
bool load_values(const T* const (&tokens)[TILE], Span span, const AttentionShape& shape, T* values) {
    vu carries = {};
    for (std::int64_t column = 0; column < shape.columns(); column += W) {
        const std::int64_t left = shape.dim - column, n = left < 0 ? 0 : left < W ? left : W;
        T* to = values + column / PANEL * PANEL * TILE + column % PANEL * GROUP<T>;
        for (std::int64_t t = span.from / GROUP<T> * GROUP<T>; t < span.to; t += GROUP<T>) {
            const vu units = value_units(tokens + t, column, n);
            std::memcpy(to + t * PANEL, &units, sizeof units);
            if (CHECKED) carries |= (units & EXPONENTS<T>) + EXPONENT_ONES<T>;
        }
    }
    std::uint32_t lane[W], any = 0;
    std::memcpy(lane, &carries, sizeof lane);
    for (const std::uint32_t bits : lane) any |= bits;
    return (any & (EXPONENTS<T> + EXPONENT_ONES<T>)) == 0;
}

/// The softmaxes of the rows and heads of an item.
struct Softmaxes {
    alignas(64) float sums[HEAD_SUMS];
    float top[HEAD_ROWS], total[HEAD_ROWS];

    Part part(std::int64_t i, std::int64_t columns) { return {top[i], total[i], sums + i * columns}; }
};

/// What an item works in: its queries, a tile of keys and values, some rows' scores and weights, and the softmaxes over the
/// split that is being read (their sums of weights still in lanes) and over those before.
template <typename T>
struct Workspace {
    alignas(64) T queries[HEAD_SUMS];
    alignas(64) T keys[MAX_HEAD_DIM * TILE];
    alignas(64) T values[MAX_HEAD_DIM * TILE];
    alignas(64) float scores[BLOCK_ROWS * TILE];
    alignas(64) T weights[BLOCK_ROWS * TILE];
    alignas(64) float lane_totals[HEAD_ROWS * W];
    Softmaxes now, before;
};

/// Where the keys and values of a tile's tokens begin.
template <typename T>
struct Tokens {
    const T *keys[TILE], *values[TILE];
};

/// TILE tokens from `start` on; those beyond `seen` are zeros.
template <typename T>
Tokens<T> find_tokens(const Attention<T>& a, const Item& item, std::int64_t start, Span seen) {
    static constexpr T zeros[MAX_HEAD_DIM] = {};
    const std::int32_t* table = a.tables + item.job.sequence * a.table_width;
    const std::int64_t step = a.shape.kv_heads * a.shape.dim;
    Tokens<T> tokens;
    for (std::int64_t block = 0; block < TILE; block += KV_BLOCK) {
        const bool any = block < seen.to && seen.from < block + KV_BLOCK;
        const std::int64_t slot = any ? table[(start + block) / KV_BLOCK] * KV_BLOCK : 0;
        const std::int64_t place = slot * step + item.kv_head * a.shape.dim;
        for (std::int64_t t = block; t < block + KV_BLOCK; ++t) {
            const bool in = seen.from <= t && t < seen.to;
            tokens.keys[t] = in ? a.k + place + (t - block) * step : zeros;
            tokens.values[t] = in ? a.v + place + (t - block) * step : zeros;
        }
    }
    return tokens;
}

/// Where a tile's scores go: [rows][TILE].
struct Scores {
    float* to;
    float scale;

    void expect(std::int64_t) const {}
    void put(std::int64_t r, std::int64_t c, vf sum) const { store(to + r * TILE + c, sum * scale); }
};

/// Where a tile's sums of values go: to those of the tiles before, [rows][columns], of which `fades` are left.
struct Faded {
    float* to;
    std::int64_t columns;
    const float* fades;

    void expect(std::int64_t) const {}
    void put(std::int64_t r, std::int64_t c, vf sum) const {
        float* place = to + r * columns + c;
        store(place, fma(load(place), splat(fades[r]), sum));
    }
};

/// Caps the scores [TILE] of one row and head, whose cap is `soft_cap`.
inline void cap(float* scores, float soft_cap) {
    for (std::int64_t t = 0; t < TILE; t += W) store(scores + t, tanh(load(scores + t)) * soft_cap);
}

/// Scores [TILE] of tokens beyond `span` become -inf.
inline void hide(float* scores, Span span) {
    vi lane;
    for (int i = 0; i < W; ++i) lane[i] = i;
    const std::int32_t from = span.from, to = span.to;
    for (std::int32_t t = 0; t < TILE; t += W)
        store(scores + t, select((lane + t >= from) & (lane + t < to), load(scores + t), splat(-INFINITY)));
}

inline float highest_of(const float* scores) {
    vf high = load(scores);
    for (std::int64_t t = W; t < TILE; t += W) high = max(high, load(scores + t));
    return largest(high);
}

/// Turns the scores [TILE] of one row and head into weights, rounded. Returns their sums, before that, in lanes.
template <typename T>
vf weigh(const float* scores, float base, T* weights) {
    vf total = {};
    for (std::int64_t t = 0; t < TILE; t += W) {
        const vf weight = exp2(load(scores + t) - base);
        store(weights + t, weight);
        total += weight;
    }
    return total;
}

/// The softmaxes of `count` rows and heads from `first` on go on by the scores of a tile, which become weights. fades [count]:
/// what is left of the sums before.
template <typename T>
void soften(Workspace<T>& w, std::int64_t first, std::int64_t count, float* fades) {
    float bases[BLOCK_ROWS];
    for (std::int64_t r = 0; r < count; ++r) {
        float& top = w.now.top[first + r];
        const float before = top, highest = highest_of(w.scores + r * TILE);
        top = highest > before ? highest : before;
        bases[r] = base_of(top);
        fades[r] = before - bases[r];
    }
    for (std::int64_t r = 0; r < count; r += W) store(fades + r, exp2(load(fades + r)));
    for (std::int64_t r = 0; r < count; ++r) {
        float* totals = w.lane_totals + (first + r) * W;
        const vf more = weigh(w.scores + r * TILE, bases[r], w.weights + r * TILE);
        store(totals, fma(load(totals), splat(fades[r]), more));
    }
}

/// Takes in a tile, whose keys and values are packed, for `count` rows and heads from `first` on. Each sees some of it.
template <typename T>
void add_block(const Attention<T>& a, const Item& item, std::int64_t start, std::int64_t first, std::int64_t count,
               Workspace<T>& w) {
    const std::int64_t size = padded<T>(a.shape.dim), columns = a.shape.columns();
    const bool capped = a.soft_cap != 0.0f;
    panel_sums(w.queries + first * size, size, w.keys, count, a.shape.dim, Ahead{},
               Scores{w.scores, capped ? a.scale / a.soft_cap : a.scale * LOG2E});
    if (capped)
        for (std::int64_t r = 0; r < count; ++r) cap(w.scores + r * TILE, a.soft_cap * LOG2E);
    const auto span_of = [&](std::int64_t r) { return a.shape.seen_by(item.position(first + r), start, TILE); };
    // tokens that none of these rows sees are left out below: their weights are 0
    const Span seen{span_of(0).from, span_of(count - 1).to}, common{span_of(count - 1).from, span_of(0).to};
    if (!(common == Span{0, TILE}))
        for (std::int64_t r = 0; r < count; ++r) hide(w.scores + r * TILE, span_of(r));
    float fades[(BLOCK_ROWS + W - 1) / W * W] = {};
    soften(w, first, count, fades);
    const std::int64_t from = seen.from / GROUP<T> * GROUP<T>;
    for (std::int64_t c = 0; c < columns; c += PANEL)
        panel_sums(w.weights + from, TILE, w.values + c * TILE + from * PANEL, count, seen.to - from, Ahead{},
                   Faded{w.now.sums + first * columns + c, columns, fades});
}

/// The same for rows and heads [from, to).
template <typename T>
void add_blocks(const Attention<T>& a, const Item& item, std::int64_t start, std::int64_t from, std::int64_t to,
                Workspace<T>& w) {
    for (std::int64_t i = from; i < to; i += BLOCK_ROWS)
        add_block(a, item, start, i, to - i < BLOCK_ROWS ? to - i : BLOCK_ROWS, w);
}

/// One tile of tokens from `start` on, for the rows that see any of it.
template <typename T>
void add_tile(const Attention<T>& a, const Item& item, std::int64_t start, Workspace<T>& w) {
    const AttentionShape& shape = a.shape;
    const std::int64_t first = item.job.position, last = first + item.job.rows - 1;
    const Span seen = shape.seen(first, last, start, TILE), rows = shape.seeing(first, item.job.rows, start);
    if (seen.empty()) return;
    const Tokens<T> tokens = find_tokens(a, item, start, seen);
    load_keys(tokens.keys, shape.dim, w.keys);
    const bool alike = shape.seen_by(first, start, TILE) == shape.seen_by(last, start, TILE);
    if (alike ? load_values<false>(tokens.values, seen, shape, w.values)
              : load_values<true>(tokens.values, seen, shape, w.values))
        return add_blocks(a, item, start, rows.from * item.heads, rows.to * item.heads, w);
    // 0 times a value that is not finite is NaN: each row gets the tile without what it does not see
    for (std::int64_t row = rows.from; row < rows.to; ++row) {
        const Span mine = shape.seen_by(first + row, start, TILE);
        load_values<false>(find_tokens(a, item, start, mine).values, mine, shape, w.values);
        add_blocks(a, item, start, row * item.heads, (row + 1) * item.heads, w);
    }
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
