// Threads that wait for work of the one who calls a kernel.
//
// OpenMP's regions end when every thread has arrived, also one that found nothing to do because something else runs on its
// core; and a thread that sleeps has to be woken for each region, which on a virtual machine can take longer than a kernel.
// Here the caller starts at once, and waits at the end for those alone who have taken some of the work: who comes late finds
// it done. So threads may look for work for as long as kernels usually leave between them, and cost little where cores are
// shared: they offer their core to others while they look, and sleep after MAX_LOOKING.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include <sched.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace milepost {

/// Between two looks.
inline void pause() {
#if defined(__SSE2__)
    _mm_pause();
#endif
}

class Pool {
  public:
    using Work = void (*)(void* context);

    /// Calls work(context) here and on up to `threads` - 1 others, at the same time; returns when all calls have. False, and
    /// nothing was called, while another caller has the pool.
    bool run(int threads, Work work, void* context) {
        if (busy_.test_and_set(std::memory_order_acquire)) return false;
        if (threads - 1 > workers_) hire(threads - 1);
        work_ = work, context_ = context, wanted_ = threads - 1;
        const std::uint64_t open = state_.load(std::memory_order_relaxed) + 1;
        state_.store(open);
        if (asleep_.load() > 0) wake();
        work(context);
        state_.store(open + 1);  // who comes now is too late
        for (int looks = 0; active_.load() > 0; ++looks) looks < LOOKS ? pause() : yield();
        busy_.clear(std::memory_order_release);
        return true;
    }

    /// The process's own. It is never destroyed: its threads end with the process.
    static Pool& get() {
        static Pool* pool = new Pool;
        return *pool;
    }

  private:
    static constexpr int LOOKS = 2000;  // some 20 us
    static constexpr std::chrono::microseconds MAX_LOOKING{2000};

    static void yield() { sched_yield(); }

    void hire(int count) {
        for (; workers_ < count; ++workers_) std::thread([this, number = workers_] { serve(number); }).detach();
    }

    void wake() {
        { std::lock_guard lock(mutex_); }
        sleepers_.notify_all();
    }

    void serve(int number) {
        for (std::uint64_t seen = 0;;) {
            const std::uint64_t open = next(seen);
            active_.fetch_add(1);
            // Either the caller sees that this thread is active, or this thread sees that the work is over.
            if (state_.load() == open && number < wanted_) work_(context_);
            active_.fetch_sub(1);
            seen = open;
        }
    }

    /// Waits for work that is not `seen`: odd states.
    std::uint64_t next(std::uint64_t seen) {
        const auto found = [&] {
            const std::uint64_t state = state_.load();
            return state % 2 && state != seen ? state : 0;
        };
        for (int looks = 0; looks < LOOKS; ++looks, pause())
            if (const auto state = found()) return state;
        const auto end = std::chrono::steady_clock::now() + MAX_LOOKING;
        do {
            if (const auto state = found()) return state;
            yield();
        } while (std::chrono::steady_clock::now() < end);
        std::unique_lock lock(mutex_);
        asleep_.fetch_add(1);
        std::uint64_t state = 0;
        sleepers_.wait(lock, [&] { return (state = found()) != 0; });
        asleep_.fetch_sub(1);
        return state;
    }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    alignas(64) std::atomic<std::uint64_t> state_{0};  // odd: there is work
    Work work_ = nullptr;
    void* context_ = nullptr;
    int wanted_ = 0;
    alignas(64) std::atomic<int> active_{0};
    alignas(64) std::atomic<int> asleep_{0};
    int workers_ = 0;
    std::mutex mutex_;
    std::condition_variable sleepers_;
};

}  // namespace milepost
