// The one way in which kernels use threads.
#pragma once
#include <omp.h>

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
/// reads. Threads take consecutive parts.
template <typename F>
void parallel_for(std::int64_t count, F f) {
    if (count <= 1) {
        FlushDenormals flush;
        if (count == 1) f(0);
        return;
    }
#pragma omp parallel
    {
        FlushDenormals flush;
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < count; ++i) f(i);
    }
}

}  // namespace milepost
