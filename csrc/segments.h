// How a batch's rows lie on the grid: `ForwardBatch.segment_table`.
#pragma once
#include "parallel.h"

namespace milepost {

/// Rows of a chunk. The same in `specs.py`.
inline constexpr std::int64_t CHUNK = 64;

/// New rows of one sequence within one chunk: places `offset` to `end` of it, from `row` of the batch on. `state_slot`: the
/// checkpoint at the chunk's start, or -1: the segment goes on from the one before. `grid_slot`: the checkpoint to write at the
/// chunk's end, or -1: none.
struct Segment {
    std::int64_t row, offset, end, state_slot, window_slot, grid_slot;

    std::int64_t rows() const { return end - offset; }
    bool reaches_grid() const { return end == CHUNK; }
    bool begins_sequence() const { return state_slot >= 0; }
};

/// f(first, last, part) for each sequence, from its first segment to behind its last, and each part < `parts` of it.
template <typename F>
void for_sequences(const Segment* segments, std::int64_t count, std::int64_t parts, F f) {
    // all sequences' first parts, then their second ones: equal runs of tasks are about equal work also with one sequence
    parallel_for(parts * count, [&](std::int64_t task) {
        const Segment *first = segments + task % count, *last = first + 1;
        if (!first->begins_sequence()) return;
        while (last < segments + count && !last->begins_sequence()) ++last;
        f(first, last, task / count);
    });
}

}  // namespace milepost
