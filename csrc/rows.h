// Rows in tensors that need not be dense, and how work on them is shared out.
#pragma once
#include "parallel.h"

namespace milepost {

/// Where the rows of a tensor begin: groups of `inner` rows, `outer_stride` values from group to group and `inner_stride`
/// from row to row. So heads are read where they lie in the rows of a wider tensor.
struct RowPlaces {
    std::int64_t inner, outer_stride, inner_stride;

    std::int64_t operator()(std::int64_t row) const { return row / inner * outer_stride + row % inner * inner_stride; }
};

/// Values that are worth a task of their own: a few microseconds.
inline constexpr std::int64_t TASK_VALUES = 8192;

/// f(row) for each of `rows` rows of `size` values; short rows share a task.
template <typename F>
void for_rows(std::int64_t rows, std::int64_t size, F f) {
    const std::int64_t together = size < TASK_VALUES ? TASK_VALUES / (size < 1 ? 1 : size) : 1;
    parallel_for((rows + together - 1) / together, [&](std::int64_t task) {
        const std::int64_t first = task * together, end = first + together < rows ? first + together : rows;
        for (std::int64_t row = first; row < end; ++row) f(row);
    });
}

/// f(row, first, count) for runs of values that cover each of `rows` rows of `size` values; long rows make several tasks.
template <typename F>
void for_row_parts(std::int64_t rows, std::int64_t size, F f) {
    if (size <= TASK_VALUES) return for_rows(rows, size, [&](std::int64_t row) { f(row, std::int64_t{0}, size); });
    const std::int64_t parts = (size + TASK_VALUES - 1) / TASK_VALUES;
    parallel_for(rows * parts, [&](std::int64_t task) {
        const std::int64_t first = task % parts * TASK_VALUES;
        f(task / parts, first, size - first < TASK_VALUES ? size - first : TASK_VALUES);
    });
}

}  // namespace milepost
