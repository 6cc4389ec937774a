// Threads: a pool whose waits spin for some microseconds, then sleep.
//
// Each thread has a share of the items, one after the other, so that it reads memory in order and finds in its own
// cache what it wrote before: equal divisions of rows go to the same thread in one operation after the other. Who has
// no more takes from the ends of other shares, and the caller works too: a worker that the kernel has not scheduled
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
    threads = std::clamp(threads, 1, MOST);
    active_ = threads;
    for (; started_ < threads - 1; ++started_) std::thread(&Pool::work, this, started_ + 1).detach();
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
    ++generation_;
    for (long t = 0, threads = active_; t < threads; ++t) {
      uint64_t begin = items * t / threads, end = items * (t + 1) / threads;
      shares_[t].bits.store(generation_ << 48 | begin << 24 | end, std::memory_order_seq_cst);
    }
    if (sleepers_.load(std::memory_order_seq_cst)) wake();
    work_off(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != items; ++spins)
      spins < 2000 ? pause() : (void)sched_yield();
  }

 private:
  static constexpr int MOST = 256;  // threads

  // What is left of a thread's items: generation, first, end. A claim can only succeed in the generation that it has
  // seen.
  struct alignas(128) Share {
    std::atomic<uint64_t> bits{0};
    static bool empty(uint64_t seen) { return (seen >> 24 & 0xffffff) >= (seen & 0xffffff); }
  };

  // The next item of thread `own`: the first that it has left, or the last of another's; -1 for none.
  long claim(int own) {
    for (int t = 0, threads = active_; t < threads; ++t) {
      std::atomic<uint64_t>& share = shares_[(own + t) % threads].bits;
      uint64_t seen = share.load(std::memory_order_acquire);
      while (!Share::empty(seen)) {
        uint64_t left = t == 0 ? seen + (1 << 24) : seen - 1;
        if (share.compare_exchange_weak(seen, left, std::memory_order_acq_rel))
          return t == 0 ? seen >> 24 & 0xffffff : left & 0xffffff;
      }
    }
    return -1;
  }
  // Whether there was any. What was done is told once, for all threads write there.
  bool work_off(int own) {
    long count = 0;
    for (long item; (item = claim(own)) >= 0; ++count) call_(context_, item);
    if (count) done_.fetch_add(count, std::memory_order_release);
    return count;
  }
  void work(int index) {
    for (int spins = 0;;) {
      if (index < active_ && work_off(index)) spins = 0;
      else if (++spins < 1000) pause();
      else sleep(), spins = 0;
    }
  }
  bool idle() const {
    for (int t = 0; t < active_; ++t)
      if (!Share::empty(shares_[t].bits.load(std::memory_order_seq_cst))) return false;
    return true;
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

  Share shares_[MOST];
  alignas(128) std::atomic<long> done_{0};
  alignas(128) std::atomic<int32_t> word_{0};
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
