// The one way in which kernels use threads.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>

#include "pool.h"

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

/// Tasks that some threads divide among themselves.
template <typename F>
struct Tasks {
    F& f;
    std::int64_t count, share;
    std::atomic<std::int64_t> next{0};

    static void work(void* context) {
        Tasks& tasks = *static_cast<Tasks*>(context);
        FlushDenormals flush;
        for (std::int64_t first = 0; first < tasks.count;) {
            const std::int64_t taken = 1 + (tasks.count - first) / tasks.share;
            if (!tasks.next.compare_exchange_weak(first, first + taken, std::memory_order_relaxed)) continue;
            for (std::int64_t i = first; i < first + taken; ++i) tasks.f(i);
            first = tasks.next.load(std::memory_order_relaxed);
        }
    }
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
    const int threads = omp_get_max_threads();  // of this thread: what torch was told
    Tasks<F> tasks{f, count, 4 * threads};
    if (threads == 1 || !Pool::get().run(threads, Tasks<F>::work, &tasks)) Tasks<F>::work(&tasks);
}

}  // namespace milepost
