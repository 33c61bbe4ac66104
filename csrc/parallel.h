// The one way in which kernels use threads.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace milepost {

/// Denormal numbers count as 0 while this lives: states that fade would otherwise cost a hundred times their arithmetic. Each
/// thread has its own setting, so each sets it, and gives it back as it was.
class FlushDenormals {
  public:
#if defined(__SSE2__)
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#endif
};

/// f(i) for each i < count. Calls must not depend on each other, nor on which thread runs them: what one writes, no other
/// reads. A thread takes the next few, one after the other, as it comes free: many at first, single ones at the end. So one that
/// is held up, or has the longer ones, holds up no other, and what it has done tells it what is likely next.
template <typename F>
void parallel_for(std::int64_t count, F f) {
    if (count <= 1) {
        FlushDenormals flush;
        if (count == 1) f(0);
        return;
    }
    std::atomic<std::int64_t> next{0};
#pragma omp parallel
    {
        FlushDenormals flush;
        const std::int64_t share = 4 * omp_get_num_threads();
        for (std::int64_t first = 0; first < count;) {
            const std::int64_t taken = 1 + (count - first) / share;
            if (!next.compare_exchange_weak(first, first + taken, std::memory_order_relaxed)) continue;
            for (std::int64_t i = first; i < first + taken; ++i) f(i);
            first = next.load(std::memory_order_relaxed);
        }
    }
}

}  // namespace milepost
