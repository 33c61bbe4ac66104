// Threads that wait for work of the one who calls a kernel.
//
// OpenMP's regions end when every thread has arrived, also one that found nothing to do because something else runs on its
// core; and a thread that sleeps has to be woken for each region, which on a virtual machine can take longer than a kernel.
// Here the caller starts at once, and waits at the end for those alone who have begun: who comes late finds the work done. So threads may look for work for as long as kernels usually leave between them, and cost little where cores are
// shared: they offer their core to others while they look, and sleep after MAX_LOOKING.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include <pthread.h>
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

    /// Calls work(context), which must not throw, here and on up to `threads` - 1 others, at the same time; returns when all
    /// calls have. False, and nothing was called, while another caller has the pool.
    bool run(int threads, Work work, void* context) {
        if (busy_.test_and_set(std::memory_order_acquire)) return false;
        if (threads - 1 > workers_) hire(threads - 1);
        work_ = work, context_ = context;
        wanted_.store(threads - 1, std::memory_order_relaxed);
        const std::uint64_t open = state_.load(std::memory_order_relaxed) + 1;
        state_.store(open);
        if (asleep_.load() > 0) wake();
        work(context);
        state_.store(open + 1);  // who comes now is too late
        for (int looks = 0; active_.load() > 0;) {
            if (looks < LOOKS) {
                ++looks;
                pause();
            } else {
                yield();
            }
        }
        busy_.clear(std::memory_order_release);
        return true;
    }

    /// The process's own. It is never destroyed: its threads end with the process. A forked process has none of them, and
    /// whatever they were at is as it was: it starts with a pool of its own.
    static Pool& get() {
        static const int forks = pthread_atfork(nullptr, nullptr, [] { own() = new Pool; });
        static_cast<void>(forks);
        return *own();
    }

  private:
    static constexpr int LOOKS = 2000;  // some 20 us
    static constexpr std::chrono::microseconds MAX_LOOKING{2000};

    static Pool*& own() {
        static Pool* pool = new Pool;
        return pool;
    }

    static void yield() { sched_yield(); }

    /// Where the system gives no more threads there are fewer, from then on.
    void hire(int count) {
        try {
            for (; workers_ < count && !refused_; ++workers_)
                std::thread([this, number = workers_] { serve(number); }).detach();
        } catch (const std::system_error&) {
            refused_ = true;
        }
    }

    void wake() {
        { std::lock_guard lock(mutex_); }
        sleepers_.notify_all();
    }

    void serve(int number) {
        for (std::uint64_t seen = 0;;) {
            const std::uint64_t open = next(seen);
            seen = open;
            if (number >= wanted_.load(std::memory_order_relaxed)) continue;
            active_.fetch_add(1);
            // Either the caller sees that this thread is active, or this thread sees that the work is over.
            if (state_.load() == open) work_(context_);
            active_.fetch_sub(1);
        }
    }

    /// Waits for work that is not `seen`: odd states.
    std::uint64_t next(std::uint64_t seen) {
        const auto found = [&] {
            const std::uint64_t state = state_.load();
            return state % 2 && state != seen ? state : 0;
        };
        for (;;) {
            for (int looks = 0; looks < LOOKS; ++looks, pause())
                if (const auto state = found()) return state;
            const auto end = std::chrono::steady_clock::now() + MAX_LOOKING;
            do {
                if (const auto state = found()) return state;
                yield();
            } while (std::chrono::steady_clock::now() < end);
            std::unique_lock lock(mutex_);
            asleep_.fetch_add(1);
            if (!found()) sleepers_.wait(lock);  // whoever is woken, even too late, looks again: more may come soon
            asleep_.fetch_sub(1);
        }
    }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    alignas(64) std::atomic<std::uint64_t> state_{0};  // odd: there is work
    Work work_ = nullptr;
    void* context_ = nullptr;
    std::atomic<int> wanted_{0};
    alignas(64) std::atomic<int> active_{0};
    alignas(64) std::atomic<int> asleep_{0};
    int workers_ = 0;
    bool refused_ = false;
    std::mutex mutex_;
    std::condition_variable sleepers_;
};

}  // namespace milepost
