// How attention is cut into work: by sequence, rows, heads and splits of the tokens, never by threads.
//
// A job is some rows of one sequence. Jobs of many rows walk all splits that they see, keeping the sums in the caches. Of few
// rows (a decode) each split is a job of its own, so that a long context has work for several threads; their parts are merged
// after that. Neither changes a bit: a split is computed by itself in both, and merged in order of position.
#pragma once
#include <cstdint>

#include "gemm.h"

namespace milepost {

inline constexpr std::int64_t TILE = PANEL, SPLIT = 512, KV_BLOCK = 16, MAX_HEAD_DIM = 512;

/// A job's rows x heads of the queries: at most HEAD_ROWS, with at most HEAD_SUMS sums of values. The more, the more share the
/// packing of keys and values; their sums should fit into a core's caches.
inline constexpr std::int64_t HEAD_ROWS = 256, HEAD_SUMS = 32768;

/// Of these, at most so many go through a tile at once: their scores should fit into the innermost cache.
inline constexpr std::int64_t BLOCK_ROWS = 24;

/// Jobs of at most this many rows leave each split to a job of its own.
inline constexpr std::int64_t FEW_ROWS = 16;

/// Tokens [from, to) of some run of tokens.
struct Span {
    std::int64_t from, to;

    bool empty() const { return from >= to; }
    bool operator==(const Span& other) const { return from == other.from && to == other.to; }
};

struct AttentionShape {
    std::int64_t heads, kv_heads, dim, window;

    /// Values of a head's sums, in whole panels.
    std::int64_t columns() const { return (dim + PANEL - 1) / PANEL * PANEL; }
    std::int64_t group() const { return heads / kv_heads; }
    std::int64_t head_rows() const {
        const std::int64_t fit = HEAD_SUMS / columns();
        return fit < HEAD_ROWS ? fit : HEAD_ROWS;
    }
    std::int64_t heads_at_once() const { return group() < head_rows() ? group() : head_rows(); }
    std::int64_t head_blocks() const { return (group() + heads_at_once() - 1) / heads_at_once(); }
    std::int64_t rows_at_once() const { return head_rows() / heads_at_once(); }
    std::int64_t first_seen(std::int64_t position) const { return position < window ? 0 : position - window + 1; }

    /// What the rows at positions [first, last] see, together, of `count` tokens from `start` on.
    Span seen(std::int64_t first, std::int64_t last, std::int64_t start, std::int64_t count) const {
        const std::int64_t from = first_seen(first) - start, to = last + 1 - start;
        return {from < 0 ? 0 : from, to < count ? to : count};
    }
    /// Which of the rows at positions [first, first + count) see any of TILE tokens from `start` on, counted from `first`.
    Span seeing(std::int64_t first, std::int64_t count, std::int64_t start) const {
        const std::int64_t from = start - first, to = from + TILE + window - 1;
        return {from < 0 ? 0 : from, to < count ? to : count};
    }
    Span seen_by(std::int64_t position, std::int64_t start, std::int64_t count) const {
        return seen(position, position, start, count);
    }
    bool sees_split(std::int64_t position, std::int64_t split) const {
        return !seen_by(position, split * SPLIT, SPLIT).empty();
    }
};

/// New rows of some sequences: `starts` [sequences + 1] as in ForwardBatch, `lens` [sequences] the tokens with these rows.
struct AttentionRows {
    const std::int32_t *starts, *lens;
    std::int64_t sequences;
};

/// Rows [row, row + rows) of the batch, the first of them at `position` of its sequence, against `splits` splits from `split`.
/// `part`: -1 if these are all that the rows see; else where the parts of the rows begin, in rows. The first of the jobs that
/// share their rows says in `to_merge` how many they are, the others say 0.
struct Job {
    std::int64_t sequence, row, rows, position, split, splits, part, to_merge;
};

/// f(job) for all jobs, in order.
template <typename F>
void for_jobs(const AttentionRows& rows, const AttentionShape& shape, F f) {
    const std::int64_t at_once = shape.rows_at_once();
    std::int64_t part = 0;
    for (std::int64_t s = 0; s < rows.sequences; ++s) {
        const std::int64_t start = rows.starts[s], count = rows.starts[s + 1] - start, position = rows.lens[s] - count;
        for (std::int64_t r = 0; r < count; r += at_once) {
            const std::int64_t n = count - r < at_once ? count - r : at_once;
            const std::int64_t first = shape.first_seen(position + r) / SPLIT, last = (position + r + n - 1) / SPLIT;
            const std::int64_t splits = last - first + 1;
            if (splits == 1 || n > FEW_ROWS) {
                f(Job{s, start + r, n, position + r, first, splits, -1, 0});
                continue;
            }
            for (std::int64_t k = 0; k < splits; ++k, part += n)
                f(Job{s, start + r, n, position + r, first + k, 1, part, k ? 0 : splits});
        }
    }
}

/// A job's rows for `heads` heads from `first_head` on, which share a head of keys and values. Rows and heads are numbered
/// together, a row's heads one after another.
struct Item {
    Job job;
    std::int64_t kv_head, first_head, heads;

    /// Number `i` of a job's kv_heads x head_blocks items.
    Item(const AttentionShape& shape, const Job& job, std::int64_t i) : job(job), kv_head(i / shape.head_blocks()) {
        const std::int64_t skipped = i % shape.head_blocks() * shape.heads_at_once(), left = shape.group() - skipped;
        first_head = kv_head * shape.group() + skipped;
        heads = left < shape.heads_at_once() ? left : shape.heads_at_once();
    }
    std::int64_t head_rows() const { return job.rows * heads; }
    std::int64_t row(std::int64_t i) const { return i / heads; }
    std::int64_t position(std::int64_t i) const { return job.position + i / heads; }
    std::int64_t head(std::int64_t i) const { return first_head + i % heads; }
};

struct JobCounts {
    std::int64_t jobs = 0, parts = 0;  // parts: of one row and all heads
};

inline JobCounts count_jobs(const AttentionRows& rows, const AttentionShape& shape) {
    JobCounts counts;
    for_jobs(rows, shape, [&](const Job& job) {
        counts.jobs += 1;
        counts.parts += job.part < 0 ? 0 : job.rows;
    });
    return counts;
}

/// Floats of one head's part: the sums of values, then the largest score and the sum of weights.
inline std::int64_t part_size(const AttentionShape& shape) { return shape.columns() + 16; }

/// Bytes that `attention` works in.
inline std::int64_t attention_scratch(const AttentionRows& rows, const AttentionShape& shape) {
    const JobCounts counts = count_jobs(rows, shape);
    return counts.jobs * sizeof(Job) + counts.parts * shape.heads * part_size(shape) * sizeof(float);
}

/// A number without a common factor with `count`, about 5/8 of it: any run of its multiples, modulo count, is spread over all.
inline std::int64_t stride_over(std::int64_t count) {
    for (std::int64_t stride = count * 5 / 8 + 1;; ++stride) {
        std::int64_t a = count, b = stride;
        while (b) {
            const std::int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return stride;
    }
}

}  // namespace milepost
