// Threads: a pool whose waits spin for some microseconds, then sleep.
//
// Items are claimed one at a time, and the caller works too: a worker that the kernel has not scheduled
// delays nothing. That is what keeps several processes on the same cores from waiting for each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include <sched.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  void resize(int threads) {
    std::lock_guard<std::mutex> lock(busy_);
    active_ = threads;
    for (; started_ < threads - 1; ++started_) std::thread(&Pool::work, this, started_).detach();
  }
  int threads() const { return active_; }

  template <class Fn> void run(long items, const Fn& fn) {
    std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
    if (items <= 1 || active_ <= 1 || !lock.try_lock()) {
      for (long i = 0; i < items; ++i) fn(i);
      return;
    }
    call_ = [](const void* context, long i) { (*static_cast<const Fn*>(context))(i); };
    context_ = &fn;
    done_.store(0, std::memory_order_relaxed);
    // Generation, items, next item: a claim can only succeed in the generation that it has seen.
    ticket_.store(++generation_ << 48 | (uint64_t)items << 24, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) wake();
    while (claim()) {}
    for (int spins = 0; done_.load(std::memory_order_acquire) != items; ++spins)
      spins < 2000 ? pause() : (void)sched_yield();
  }

 private:
  bool claim() {
    uint64_t seen = ticket_.load(std::memory_order_acquire);
    for (;;) {
      long next = seen & 0xffffff, items = seen >> 24 & 0xffffff;
      if (next >= items) return false;
      if (ticket_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
        call_(context_, next);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
  }
  void work(int index) {
    for (int spins = 0;;) {
      if (index < active_ - 1 && claim()) spins = 0;
      else if (++spins < 1000) pause();
      else sleep(), spins = 0;
    }
  }
  bool idle() const {
    uint64_t seen = ticket_.load(std::memory_order_seq_cst);
    return (seen & 0xffffff) >= (seen >> 24 & 0xffffff);
  }
#ifdef __linux__
  void sleep() {
    int32_t seen = word_.load();
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (idle()) syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void wake() {
    word_.fetch_add(1);
    syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }
#else
  void sleep() { sched_yield(); }
  void wake() {}
#endif

  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<long> done_{0};
  alignas(64) std::atomic<int32_t> word_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> active_{1};
  std::mutex busy_;
  uint64_t generation_ = 0;
  int started_ = 0;
  void (*call_)(const void*, long) = nullptr;
  const void* context_ = nullptr;
};
// Never destroyed: its threads may still look at it while the process ends.
Pool& pool = *new Pool;

// Memory of a thread that only grows.
template <class T> struct Scratch {
  T* data = nullptr;
  size_t size = 0;
  T* get(size_t wanted) {
    if (wanted > size) {
      std::free(data);
      size = wanted;
      data = static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64));
      if (!data) throw std::bad_alloc();
    }
    return data;
  }
  ~Scratch() { std::free(data); }
};

// Runs fn(begin, end) over [0, count) in parts that are worth a thread; `work` is about one of them in bytes.
template <class Fn> void split(long count, long work, const Fn& fn) {
  long parts = std::clamp(count * work / 32768, 1L, std::min(count, 4L * pool.threads()));
  pool.run(parts, [&](long i) { fn(i * count / parts, (i + 1) * count / parts); });
}

}  // namespace
