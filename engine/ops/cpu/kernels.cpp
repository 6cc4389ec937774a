// Kernels of the CPU path: plain C functions over pointers, called through ctypes.
//
// Everything is fp32 unless its name says int8. Two properties hold throughout:
// - A row's result does not depend on the other rows, on how many there are, or on the number of threads:
//   every sum runs over its terms in one fixed order. So tokens are the same in any batch and any chunking.
// - Vectors are the compiler's own (vector_size), so that one source serves AVX-512, AVX2 and ARM.
//
// Weights lie in panels of 32 columns: [ceil(out / 32)][in][32], padded with zeros; a pair of panels at a
// time meets up to 6 rows in registers. int8 weights lie as [ceil(out / 32)][in / 4][32][4], as the dot
// product instructions want them.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, NV = 4;  // lanes of a vector; vectors of a register tile
#elif defined(__AVX__)
constexpr int W = 8, NV = 2;
#elif defined(__aarch64__)
constexpr int W = 4, NV = 4;
#else
constexpr int W = 4, NV = 2;
#endif
constexpr int MR = 6;           // rows of a register tile
constexpr int PANEL = 32;       // columns of a panel
constexpr int STRIP = NV * W;   // columns of a register tile
constexpr int PAIR = 2 * PANEL; // columns that one pass over the rows takes
constexpr long ROW_BLOCK = 192; // rows whose activations stay in the second-level cache
constexpr long K_BLOCK = 2048;  // inputs whose weights (of a pair) stay there
constexpr long GROUP = 64;      // inputs that share one scale of quantised activations
constexpr long KEYS = 64;       // keys of an attention tile, aligned to absolute positions
constexpr long SPAN = 256;      // keys that are reduced on their own, then merged in order
constexpr long QUERIES = 96;    // most rows (tokens x heads of a group) of an attention tile

typedef float F __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));

inline F load(const float* p) { F v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
inline F splat(float x) { return F{} + x; }
inline F vmax(F a, F b) { return a > b ? a : b; }

// The first n lanes, the others 0.
inline F load_part(const float* p, long n) {
  if (n >= W) return load(p);
  F v{};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}
inline void store_part(float* p, F v, long n) { n >= W ? store(p, v) : (void)std::memcpy(p, &v, n * sizeof(float)); }

template <int S, int... L> inline F rotated(F v, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(v, v, ((L + S) % W)...);
}
using Lanes = std::make_integer_sequence<int, W>;

template <int S = W / 2> inline float sum_lanes(F v) {
  if constexpr (S == 0) return v[0];
  else return sum_lanes<S / 2>(v + rotated<S>(v, Lanes{}));
}
template <int S = W / 2> inline float max_lanes(F v) {
  if constexpr (S == 0) return v[0];
  else return max_lanes<S / 2>(vmax(v, rotated<S>(v, Lanes{})));
}

// e^x within 2 units in the last place; 0 below -87, where results would be subnormal.
inline F exp_of(F x) {
  const F magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  F clamped = x > 88.0f ? splat(88.0f) : x;
  F shifted = clamped * 1.44269504f + magic;
  F n = shifted - magic;
  F r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  F p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  I bits = ((I)shifted - (I)magic) << 23;
  F result = (F)((I)p + bits);
  return x < -87.0f ? F{} : result;
}
inline F sigmoid(F x) { return 1.0f / (1.0f + exp_of(-x)); }
inline F tanh_of(F x) { return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f); }

// ---- Threads: a pool whose waits spin for some microseconds, then sleep.
//
// Items are claimed one at a time, and the caller works too: a worker that the kernel has not scheduled
// delays nothing. That is what keeps several processes on the same cores from waiting for each other.

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

// ---- The register tile: c[M][N * W] (+)= a[M][k] * b[k][N * W], summed over k in order.
//
// Column j of b lies at b + j / PANEL * panel + j % PANEL + k * ldb. `next` is memory to prefetch meanwhile,
// P cache lines for each k.
template <int M, int N, int P>
inline void tile(const float* a, long lda, const float* b, long ldb, long panel, long k, float* c, long ldc, bool add,
                 const char* next) {
  F sum[M][N];
  const float* column[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
    column[j] = b + j * W / PANEL * panel + j * W % PANEL;
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) sum[i][j] = add ? load(c + i * ldc + j * W) : F{};
  }
  for (long l = 0; l < k; ++l) {
    F w[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) w[j] = load(column[j] + l * ldb);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) __builtin_prefetch(next + (l * P + p) * 64, 0, 2);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      F x = splat(a[i * lda + l]);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[i][j] += x * w[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) store(c + i * ldc + j * W, sum[i][j]);
}

struct Tile {
  const float* a; long lda;
  const float* b; long ldb, panel;
  long k;
  float* c; long ldc;
  bool add;
  const char* next; int lines;
};

template <int N, int P, int M = MR> inline void rows_of(const Tile& t, long rows) {
  if constexpr (M > 0) {
    if (rows == M) tile<M, N, P>(t.a, t.lda, t.b, t.ldb, t.panel, t.k, t.c, t.ldc, t.add, t.next);
    else rows_of<N, P, M - 1>(t, rows);
  }
}
template <int N> inline void columns_of(const Tile& t, long rows, long vectors) {
  if constexpr (N > 0) {
    if (vectors == N) rows_of<N, 0>(t, rows);
    else columns_of<N - 1>(t, rows, vectors);
  }
}

// c[rows][columns] for rows <= MR and columns a multiple of W.
void product(Tile t, long rows, long columns) {
  const float* b = t.b;
  for (long at = 0; at < columns; at += STRIP) {
    t.b = b + at / PANEL * t.panel + at % PANEL;
    long vectors = std::min<long>((columns - at) / W, NV);
    if (vectors < NV || !t.lines) columns_of<NV>(t, rows, vectors);
    else if (t.lines == 1) rows_of<NV, 1>(t, rows);
    else if (t.lines == 2) rows_of<NV, 2>(t, rows);
    else rows_of<NV, 4>(t, rows);
    t.c += STRIP;
    t.lines = 0;
  }
}

// ---- Linear layers

struct Epilogue {
  const float* scale;  // of columns, or null
  const float* bias;   // or null
  float* out;          // [rows][columns]
  long columns;
  bool add;            // to what is in `out`

  // c is [rows][PAIR], of which `width` columns are wanted.
  void operator()(const float* c, long first_row, long rows, long first_column, long width) const {
    for (long i = 0; i < rows; ++i)
      for (long j = 0; j < width; j += W) {
        long n = std::min<long>(W, width - j), column = first_column + j;
        float* to = out + (first_row + i) * columns + column;
        F v = load(c + i * PAIR + j);
        if (scale) v *= load_part(scale + column, n);
        if (bias) v += load_part(bias + column, n);
        if (add) v = load_part(to, n) + v;
        store_part(to, v, n);
      }
  }
};

// A pass over a pair of panels also fetches a share of the next pair: memory works while registers do.
inline int lines_of_pass(long pass, long passes) {
  if (passes == 1) return 4;
  if (passes < 4) return pass < 2 ? 2 : 0;
  return pass < 4 ? 1 : 0;
}

// Calls part(row, rows, panel, columns, c) for blocks of rows and pairs of panels, c being [rows][PAIR].
template <class Part> void linear(long rows, long panel_bytes, const Epilogue& epilogue, const Part& part) {
  long panels = (epilogue.columns + PANEL - 1) / PANEL, threads = pool.threads();
  long blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
  // As many parts for each thread, of equal size; several where they are large, so that a slow thread holds
  // none up.
  long passes = (std::min(rows, ROW_BLOCK) + MR - 1) / MR;
  long work = panels * panel_bytes * passes;
  long parts = work < 65536 ? 1 : std::min(panels, threads * std::clamp(work / (threads * 524288), 1L, 8L));
  pool.run(parts * blocks, [&](long item) {
    alignas(64) static thread_local float c[ROW_BLOCK * PAIR];
    long block = item % blocks, index = item / blocks;
    long first = rows * block / blocks, count = rows * (block + 1) / blocks - first;
    long end = panels * (index + 1) / parts;
    for (long panel = panels * index / parts; panel < end; panel += 2) {
      long columns = std::min(2L, end - panel) * PANEL;
      part(first, count, panel, columns, c);
      epilogue(c, first, count, panel * PANEL, std::min(columns, epilogue.columns - panel * PANEL));
    }
  });
}

void norm_row(const float* x, const float* weight, float eps, long n, float* out) {
  F squares{};
  long i = 0;
  for (; i + W <= n; i += W) squares += load(x + i) * load(x + i);
  if (i < n) squares += load_part(x + i, n - i) * load_part(x + i, n - i);
  float scale = 1.0f / std::sqrt(sum_lanes(squares) / n + eps);
  for (i = 0; i + W <= n; i += W) store(out + i, load(x + i) * scale * load(weight + i));
  if (i < n) store_part(out + i, load_part(x + i, n - i) * scale * load_part(weight + i, n - i), n - i);
}

// Quantises a row of n inputs, padded with zeros to groups of GROUP.
void quantise_row(const float* x, long n, int8_t* q, float* scales, int32_t* zeros) {
  for (long g = 0; g * GROUP < n; ++g) {
    long count = std::min(GROUP, n - g * GROUP);
    float values[GROUP] = {};
    std::memcpy(values, x + g * GROUP, count * sizeof(float));
    F largest{}, nothing{};
    for (long i = 0; i < GROUP; i += W) {
      F v = load(values + i);
      largest = vmax(largest, vmax(v, -v));
      nothing += v - v;
    }
    float peak = max_lanes(largest), inverse = peak > 0 ? 127.0f / peak : 0.0f;
    int32_t sum = 0;
    for (long i = 0; i < GROUP; ++i) {
      // Adding 1.5 * 2^23 rounds to the nearest integer.
      float rounded = values[i] * inverse + 12582912.0f;
      int32_t bits;
      std::memcpy(&bits, &rounded, 4);
      int8_t value = (int8_t)bits;
      q[g * GROUP + i] = value;
      sum += value;
    }
    // What is no number has no int8, and a maximum passes over it: the scale tells of it.
    scales[g] = peak / 127.0f + sum_lanes(nothing);
    // Weights are stored with 128 added: this takes it off again.
    zeros[g] = -128 * sum;
  }
}

// sum + dot product of 4 unsigned and 4 signed bytes in each lane.
inline I dot(I sum, I w, I a) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
#else
  typedef int16_t H __attribute__((vector_size(W * 4)));
  H even = (H)(w & 0x00ff00ff), odd = (H)((w >> 8) & 0x00ff00ff), a_even = ((H)a << 8) >> 8, a_odd = (H)a >> 8;
#if defined(__AVX512BW__)
  return sum + (I)_mm512_madd_epi16((__m512i)even, (__m512i)a_even) + (I)_mm512_madd_epi16((__m512i)odd, (__m512i)a_odd);
#elif defined(__AVX2__)
  return sum + (I)_mm256_madd_epi16((__m256i)even, (__m256i)a_even) + (I)_mm256_madd_epi16((__m256i)odd, (__m256i)a_odd);
#else
  // Products of 8 bits and 8 bits, each within 16: low and high halves of each lane.
  I e = (I)even, o = (I)odd, x = (I)a_even, y = (I)a_odd;
  return sum + ((e << 16) >> 16) * ((x << 16) >> 16) + (e >> 16) * (x >> 16) + ((o << 16) >> 16) * ((y << 16) >> 16) +
         (o >> 16) * (y >> 16);
#endif
#endif
}

struct Quantised {
  int8_t* q;       // [rows][groups * GROUP]
  float* scales;   // [rows][groups]
  int32_t* zeros;  // [rows][groups]
  long groups;
};

// c[M][N * W] = (a * scales) * (b - 128), the groups summed in order.
template <int M, int N, int P>
inline void tile_int8(const Quantised& a, const uint8_t* b, long panel, float* c, const char* next) {
  F sum[M][N] = {};
  const uint8_t* column[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) column[j] = b + (j * W / PANEL * panel + j * W % PANEL * 4);
  for (long g = 0; g < a.groups; ++g) {
    I part[M][N];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) part[i][j] = I{} + a.zeros[i * a.groups + g];
    for (long l = g * GROUP / 4; l < (g + 1) * GROUP / 4; ++l) {
      I w[N];
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) std::memcpy(&w[j], column[j] + l * PANEL * 4, sizeof(I));
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) __builtin_prefetch(next + (l * P + p) * 64, 0, 2);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        int32_t four;
        std::memcpy(&four, a.q + i * a.groups * GROUP + l * 4, 4);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) part[i][j] = dot(part[i][j], w[j], I{} + four);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j)
        sum[i][j] += __builtin_convertvector(part[i][j], F) * a.scales[i * a.groups + g];
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) store(c + i * PAIR + j * W, sum[i][j]);
}

template <int N, int P, int M = MR>
inline void rows_int8(long rows, const Quantised& a, const uint8_t* b, long panel, float* c, const char* next) {
  if constexpr (M > 0) {
    if (rows == M) tile_int8<M, N, P>(a, b, panel, c, next);
    else rows_int8<N, P, M - 1>(rows, a, b, panel, c, next);
  }
}

// The inputs of a linear layer, normed where it has a norm.
const float* prepare(const float* x, const float* norm, float eps, long rows, long in) {
  static thread_local Scratch<float> scratch;
  if (!norm) return x;
  float* normed = scratch.get(rows * in);
  split(rows, in * 4, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) norm_row(x + i * in, norm, eps, in, normed + i * in);
  });
  return normed;
}

// ---- Attention

// Lanes with bit B of their index set change places between two vectors.
template <int B, int... L> inline void exchange(F& a, F& b, std::integer_sequence<int, L...>) {
  F low = __builtin_shufflevector(a, b, (L & B ? W + (L ^ B) : L)...);
  b = __builtin_shufflevector(a, b, (L & B ? W + L : (L ^ B))...);
  a = low;
}
template <int B> inline void exchange_all(F* v) {
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    if (!(i & B)) exchange<B>(v[i], v[i | B], Lanes{});
  if constexpr (B * 2 < W) exchange_all<B * 2>(v);
}

// What all layers of a step share. Mirrored by engine/attention/cpu.py.
struct Step {
  const int64_t* slots;         // [tokens]
  const int64_t* tables;        // [sequences][table_width]
  const int64_t* query_starts;  // [sequences + 1]
  const int64_t* contexts;      // [sequences]
  int64_t tokens, sequences, table_width;
  int64_t heads, kv_heads, head_dim, block_size, block_stride;
};

struct Layer {
  const float* query; long query_stride;
  const float* key; const float* value; long key_stride;
  float* kv;  // of this layer in block 0: [2][kv_heads][block_size][head_dim]
  float* out; // [tokens][heads][head_dim]
  float scale, softcap;
  long window;
};

// Running softmax of the rows of a tile: what was summed so far, relative to the largest score.
struct Running {
  float* sums;     // [rows][head_dim]
  float* weights;  // [rows][W], summed over the lanes at the end
  float* largest;  // [rows]
};

struct Attention {
  const Step& s;
  const Layer& y;
  long group;

  struct Work { long sequence, first, tokens, head; };

  long floats_of(long rows) const { return rows * (s.head_dim + W + 1); }
  Running running(float* memory, long rows) const {
    return {memory, memory + rows * s.head_dim, memory + rows * (s.head_dim + W)};
  }
  long position(const Work& w, long token) const {
    return s.contexts[w.sequence] - (s.query_starts[w.sequence + 1] - s.query_starts[w.sequence]) + token;
  }
  long oldest(long position) const { return y.window && position >= y.window ? position - y.window + 1 : 0; }

  void write(long token) const {
    long block = s.slots[token] / s.block_size, offset = s.slots[token] % s.block_size, d = s.head_dim;
    float* to = y.kv + block * s.block_stride + offset * d;
    for (long h = 0; h < s.kv_heads; ++h) {
      std::memcpy(to + h * s.block_size * d, y.key + token * y.key_stride + h * d, d * 4);
      std::memcpy(to + (s.kv_heads + h) * s.block_size * d, y.value + token * y.key_stride + h * d, d * 4);
    }
  }

  // The tile to fetch while another is worked on: blocks lie far apart, where no hardware foresees them.
  struct Ahead { const Work* work; long start, count; };
  Ahead ahead_of(const Work& w, long start, const Work* after) const {
    long end = last(w) + 1;
    if (start < end) return {&w, start, std::min(KEYS, end - start)};
    if (!after) return {nullptr, 0, 0};
    start = oldest(position(*after, after->first)) / KEYS * KEYS;
    return {after, start, std::min(KEYS, last(*after) + 1 - start)};
  }
  long last(const Work& w) const { return position(w, w.first + w.tokens - 1); }

  // Where the keys [start, start + count) lie; those before `oldest` and behind are zeros.
  void find(const Work& w, long start, long count, long oldest, const float** rows) const {
    alignas(64) static const float zeros[512] = {};
    long i = std::clamp(oldest - start, 0L, count), d = s.head_dim;
    std::fill(rows, rows + i, zeros);
    std::fill(rows + count, rows + KEYS, zeros);
    while (i < count) {
      long block = (start + i) / s.block_size, offset = (start + i) % s.block_size;
      const float* row = y.kv + s.tables[w.sequence * s.table_width + block] * s.block_stride;
      row += (w.head * s.block_size + offset) * d;
      for (long n = std::min(s.block_size - offset, count - i); n > 0; --n, row += d) rows[i++] = row;
    }
  }

  // Copies the keys of a tile, turned, to [head_dim][KEYS] and its values to [KEYS][head_dim]. Keys before `oldest` are
  // seen by nobody, and their blocks may be somebody else's: they count as zeros. A tile is fetched while the one before
  // it is worked on, a line here and there, so that memory and arithmetic overlap.
  void gather(const Work& w, long start, long count, long oldest, const Ahead& ahead, float* keys,
              float* values) const {
    const float *rows[KEYS], *next[KEYS];
    long d = s.head_dim, values_at = s.kv_heads * s.block_size * d;
    find(w, start, count, oldest, rows);
    if (ahead.work) find(*ahead.work, ahead.start, ahead.count, 0, next);
    for (long i = 0; i < count; i += W)
      for (long j = 0; j < d; j += W) {
        F v[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) v[l] = load(rows[i + l] + j);
        exchange_all<1>(v);
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) store(keys + (j + l) * KEYS + i, v[l]);
        if (j % 16 == 0)
          for (long l = i; l < std::min(i + W, ahead.count); ++l) __builtin_prefetch(next[l] + j, 0, 2);
      }
    for (long i = 0; i < count; ++i) {
      const float* value = start + i < oldest ? rows[i] : rows[i] + values_at;
      for (long j = 0; j < d; j += W) store(values + i * d + j, load(value + j));
      if (i < ahead.count)
        for (long j = 0; j < d; j += 16) __builtin_prefetch(next[i] + values_at + j, 0, 2);
    }
  }

  // Scales and masks the scores of a row; returns the largest, -infinity where no key is seen.
  float seen_scores(float* scores, long start, long count, long from, long to) const {
    const F none = splat(-INFINITY);
    F lane;
    for (int i = 0; i < W; ++i) lane[i] = i;
    F best = none;
    for (long i = 0; i < count; i += W) {
      F v = load(scores + i) * y.scale;
      if (y.softcap > 0) v = tanh_of(v / y.softcap) * y.softcap;
      if (start + i + W > to || start + i < from) {
        F at = lane + (float)i;
        v = at < (float)(to - start) ? v : none;
        v = at >= (float)(from - start) ? v : none;
      }
      store(scores + i, v);
      best = vmax(best, v);
    }
    return max_lanes(best);
  }

  // Scores of rows become weights, and what was summed before is scaled to the largest score so far. Each pass goes
  // over all rows, for one row's chain of dependencies would leave most of the machine idle.
  void softmax(float* scores, long count, const float* best, const Running& r, long first, long rows) const {
    constexpr int LANES = (MR + W - 1) / W * W;
    alignas(64) float factor[LANES] = {}, largest[LANES] = {};
    for (long i = 0; i < rows; ++i) {
      float before = r.largest[first + i];
      largest[i] = std::max(before, best[i]);
      // No key was seen yet: the difference of infinities is no number.
      factor[i] = largest[i] == -INFINITY ? 0.0f : before - largest[i];
    }
    for (int i = 0; i < LANES; i += W) store(factor + i, exp_of(load(factor + i)));
    for (long i = 0; i < rows; ++i) {
      float *row = scores + i * KEYS, *sums = r.sums + (first + i) * s.head_dim;
      if (largest[i] == -INFINITY) {
        std::memset(row, 0, count * sizeof(float));
        continue;
      }
      F total = load(r.weights + (first + i) * W) * factor[i];
      for (long j = 0; j < count; j += W) {
        F p = exp_of(load(row + j) - largest[i]);
        store(row + j, p);
        total += p;
      }
      store(r.weights + (first + i) * W, total);
      if (largest[i] != r.largest[first + i])
        for (long j = 0; j < s.head_dim; j += W) store(sums + j, load(sums + j) * factor[i]);
      r.largest[first + i] = largest[i];
    }
  }
  static float factor_of(float before, float largest) {
    return before == largest ? 1.0f : exp_of(splat(before - largest))[0];
  }

  // into = what two spans found together.
  void merge(const Running& into, const Running& other, long rows) const {
    for (long r = 0; r < rows; ++r) {
      if (other.largest[r] == -INFINITY) continue;
      float largest = std::max(into.largest[r], other.largest[r]);
      float a = factor_of(into.largest[r], largest), b = factor_of(other.largest[r], largest);
      store(into.weights + r * W, load(into.weights + r * W) * a + load(other.weights + r * W) * b);
      for (long j = 0; j < s.head_dim; j += W) {
        float* to = into.sums + r * s.head_dim + j;
        store(to, load(to) * a + load(other.sums + r * s.head_dim + j) * b);
      }
      into.largest[r] = largest;
    }
  }
  void clear(const Running& r, long rows) const {
    std::memset(r.sums, 0, rows * (s.head_dim + W) * sizeof(float));
    std::fill(r.largest, r.largest + rows, -INFINITY);
  }

  // Attends to the keys of one span.
  void attend(const Work& w, const Work* after, long span, const Running& r, const float* query,
              float* memory) const {
    long rows = w.tokens * group, d = s.head_dim;
    float *keys = memory, *values = keys + KEYS * d, *scores = values + KEYS * d;
    clear(r, rows);
    long end = std::min((span + 1) * SPAN, last(w) + 1);
    long seen = oldest(position(w, w.first)), begin = std::max(span * SPAN, seen / KEYS * KEYS);
    for (long start = begin; start < end; start += KEYS) {
      long count = std::min(KEYS, end - start);
      gather(w, start, count, seen, ahead_of(w, start + KEYS, after), keys, values);
      for (long row = 0; row < rows; row += MR) {
        long taken = std::min<long>(MR, rows - row);
        // Keys behind the last of these rows are seen by none of them.
        long seen_by = position(w, w.first + (row + taken - 1) / group) + 1 - start;
        if (seen_by <= 0) continue;
        long near = std::min(count, seen_by), wide = (near + W - 1) / W * W;
        product({query + row * d, d, keys, KEYS, PANEL, d, scores, KEYS, false, nullptr, 0}, taken, wide);
        float best[MR];
        for (long i = 0; i < taken; ++i) {
          long at = position(w, w.first + (row + i) / group);
          best[i] = seen_scores(scores + i * KEYS, start, wide, oldest(at), at + 1);
        }
        softmax(scores, wide, best, r, row, taken);
        product({scores, KEYS, values, d, PANEL, near, r.sums + row * d, d, true, nullptr, 0}, taken, d);
      }
    }
  }

  void finish(const Work& w, const Running& r) const {
    for (long row = 0; row < w.tokens * group; ++row) {
      long token = s.query_starts[w.sequence] + w.first + row / group;
      float* out = y.out + (token * s.heads + w.head * group + row % group) * s.head_dim;
      float inverse = 1.0f / sum_lanes(load(r.weights + row * W));
      for (long j = 0; j < s.head_dim; j += W) store(out + j, load(r.sums + row * s.head_dim + j) * inverse);
    }
  }

  // The spans [begin, end) of one tile of queries, into `total`. `after` is what this thread does next, or null.
  void spans(const Work& w, const Work* after, long begin, long end, const Running& total) const {
    static thread_local Scratch<float> scratch;
    long rows = w.tokens * group, d = s.head_dim;
    float* memory = scratch.get(rows * d + floats_of(rows) + KEYS * (2 * d + MR));
    float* query = memory;
    for (long r = 0; r < rows; ++r) {
      long token = s.query_starts[w.sequence] + w.first + r / group;
      std::memcpy(query + r * d, y.query + token * y.query_stride + (w.head * group + r % group) * d, d * 4);
    }
    Running part = running(memory + rows * d, rows);
    float* tiles = memory + rows * d + floats_of(rows);
    attend(w, after, begin, total, query, tiles);
    for (long span = begin + 1; span < end; ++span) {
      attend(w, after, span, part, query, tiles);
      merge(total, part, rows);
    }
  }

  void run() const {
    split(s.tokens, s.kv_heads * s.head_dim * 8, [&](long begin, long end) {
      for (long token = begin; token < end; ++token) write(token);
    });
    long each = std::max(1L, QUERIES / group);
    std::vector<Work> works;
    long most = 0;
    // The last tiles of a chunk see most keys: they come first.
    for (long q = 0; q < s.sequences; ++q) {
      long count = s.query_starts[q + 1] - s.query_starts[q];
      for (long first = (count - 1) / each * each; first >= 0; first -= each)
        for (long h = 0; h < s.kv_heads; ++h) works.push_back({q, first, std::min(each, count - first), h});
      most = std::max(most, (s.contexts[q] + SPAN - 1) / SPAN);
    }
    long items = works.size();
    auto range = [&](const Work& w) {
      return std::pair{oldest(position(w, w.first)) / SPAN, last(w) / SPAN + 1};
    };
    static thread_local Scratch<float> shared;
    long size = floats_of(each * group);
    if (items >= 4L * pool.threads() || most == 1 || pool.threads() == 1) {
      long parts = std::min(items, 8L * pool.threads());
      pool.run(parts, [&](long part) {
        static thread_local Scratch<float> own;
        long stop = items * (part + 1) / parts;
        for (long i = items * part / parts; i < stop; ++i) {
          const Work& w = works[i];
          Running total = running(own.get(size), w.tokens * group);
          auto [begin, end] = range(w);
          spans(w, i + 1 < stop ? &works[i + 1] : nullptr, begin, end, total);
          finish(w, total);
        }
      });
      return;
    }
    // Few tiles over long contexts: each span is a piece of work.
    float* memory = shared.get(items * most * size);
    pool.run(items * most, [&](long i) {
      const Work& w = works[i / most];
      auto [begin, end] = range(w);
      long span = i % most;
      if (span >= begin && span < end) spans(w, nullptr, span, span + 1, running(memory + i * size, w.tokens * group));
    });
    for (long i = 0; i < items; ++i) {
      const Work& w = works[i];
      auto [begin, end] = range(w);
      Running total = running(memory + (i * most + begin) * size, w.tokens * group);
      for (long span = begin + 1; span < end; ++span)
        merge(total, running(memory + (i * most + span) * size, w.tokens * group), w.tokens * group);
      finish(w, total);
    }
  }
};

}  // namespace

// ---- What Python calls. Sizes are in elements; `norm` and `bias` may be null.

extern "C" {

void kv_threads(int threads) { pool.resize(threads); }

void kv_huge_pages(void* start, long bytes) {
#ifdef __linux__
  uintptr_t from = ((uintptr_t)start + 4095) / 4096 * 4096;
  madvise((void*)from, (uintptr_t)start + bytes - from, MADV_HUGEPAGE);
#endif
}

// weight [out][in] -> panels.
void kv_pack(const float* weight, long out, long in, float* panels) {
  split((out + PANEL - 1) / PANEL, in * PANEL * 4, [&](long begin, long end) {
    for (long p = begin; p < end; ++p)
      for (long k = 0; k < in; ++k)
        for (long j = 0; j < PANEL; ++j) {
          long row = p * PANEL + j;
          panels[(p * in + k) * PANEL + j] = row < out ? weight[row * in + k] : 0.0f;
        }
  });
}

// weight [out][in] -> int8 panels; what pads them counts as 0.
void kv_pack_int8(const int8_t* weight, long out, long in, uint8_t* panels) {
  long padded = (in + GROUP - 1) / GROUP * GROUP;
  std::memset(panels, 128, (out + PANEL - 1) / PANEL * PANEL * padded);
  split(out, in, [&](long begin, long end) {
    for (long row = begin; row < end; ++row) {
      uint8_t* to = panels + row / PANEL * PANEL * padded + row % PANEL * 4;
      for (long k = 0; k < in; ++k) to[k / 4 * PANEL * 4 + k % 4] = (uint8_t)(128 + weight[row * in + k]);
    }
  });
}

// out (+)= norm(x) w + bias
void kv_linear(const float* x, long rows, long in, const float* norm, float eps, const float* w, const float* bias,
               float* out, long columns, int add) {
  x = prepare(x, norm, eps, rows, in);
  Epilogue epilogue{nullptr, bias, out, columns, add != 0};
  linear(rows, in * PANEL * 4, epilogue, [&](long first, long count, long panel, long width, float* c) {
    long passes = (count + MR - 1) / MR, step = passes == 1 ? in : K_BLOCK;
    const float* b = w + panel * in * PANEL;
    const char* next = (const char*)(b + 2 * in * PANEL);
    for (long k = 0; k < in; k += step)
      for (long pass = 0; pass < passes; ++pass) {
        long row = count * pass / passes, taken = count * (pass + 1) / passes - row, depth = std::min(step, in - k);
        int lines = depth == in ? lines_of_pass(pass, passes) : 0;
        product({x + (first + row) * in + k, in, b + k * PANEL, PANEL, in * PANEL, depth, c + row * PAIR, PAIR, k > 0,
                 next + pass * in * lines * 64, lines}, taken, width);
      }
  });
}

// As kv_linear, weights from kv_pack_int8; inputs are quantised in groups of 64.
void kv_linear_int8(const float* x, long rows, long in, const float* norm, float eps, const uint8_t* w,
                    const float* scales, const float* bias, float* out, long columns, int add) {
  static thread_local Scratch<int8_t> bytes;
  static thread_local Scratch<float> floats;
  static thread_local Scratch<int32_t> integers;
  long groups = (in + GROUP - 1) / GROUP, padded = groups * GROUP;
  x = prepare(x, norm, eps, rows, in);
  Quantised a{bytes.get(rows * padded), floats.get(rows * groups), integers.get(rows * groups), groups};
  split(rows, in * 4, [&](long begin, long end) {
    for (long i = begin; i < end; ++i)
      quantise_row(x + i * in, in, a.q + i * padded, a.scales + i * groups, a.zeros + i * groups);
  });
  Epilogue epilogue{scales, bias, out, columns, add != 0};
  linear(rows, padded * PANEL, epilogue, [&](long first, long count, long panel, long width, float* c) {
    long passes = (count + MR - 1) / MR, stride = padded * PANEL;
    const uint8_t* b = w + panel * stride;
    for (long pass = 0; pass < passes; ++pass) {
      long row = count * pass / passes, taken = count * (pass + 1) / passes - row;
      Quantised part{a.q + (first + row) * padded, a.scales + (first + row) * groups,
                     a.zeros + (first + row) * groups, groups};
      int lines = lines_of_pass(pass, passes);
      const char* next = (const char*)(b + 2 * stride) + pass * padded / 4 * lines * 64;
      for (long at = 0; at < width; at += STRIP) {
        const uint8_t* from = b + at / PANEL * stride + at % PANEL * 4;
        float* to = c + row * PAIR + at;
        if (width - at < STRIP) rows_int8<PANEL / W < NV ? PANEL / W : NV, 0>(taken, part, from, stride, to, next);
        else if (at || !lines) rows_int8<NV, 0>(taken, part, from, stride, to, next);
        else if (lines == 1) rows_int8<NV, 1>(taken, part, from, stride, to, next);
        else if (lines == 2) rows_int8<NV, 2>(taken, part, from, stride, to, next);
        else rows_int8<NV, 4>(taken, part, from, stride, to, next);
      }
    }
  });
}

void kv_rms_norm(const float* x, long rows, long n, const float* weight, float eps, float* out) {
  split(rows, n * 4, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) norm_row(x + i * n, weight, eps, n, out + i * n);
  });
}

// gate_up [rows][2 * n] -> out [rows][n]; gelu: the tanh form, else SiLU.
void kv_gated(const float* gate_up, long rows, long n, int gelu, float* out) {
  split(rows, n * 16, [&](long begin, long end) {
    for (long i = begin; i < end; ++i)
      for (long j = 0; j < n; j += W) {
        long count = std::min<long>(W, n - j);
        F gate = load_part(gate_up + i * 2 * n + j, count), up = load_part(gate_up + (i * 2 + 1) * n + j, count);
        F inner = gelu ? 1.59576912f * (gate + 0.044715f * gate * gate * gate) : gate;
        store_part(out + i * n + j, gate * sigmoid(inner) * up, count);
      }
  });
}

// heads [tokens][stride]; the first num_query of head_dim each, then num_key, are normed and rotated by `half` angles.
void kv_rotate(float* heads, long stride, long tokens, long num_query, long num_key, long head_dim, const float* cos,
               const float* sin, long half, const float* query_norm, const float* key_norm, float query_eps,
               float key_eps) {
  split(tokens, (num_query + num_key) * head_dim * 8, [&](long begin, long end) {
    for (long t = begin; t < end; ++t)
      for (long h = 0; h < num_query + num_key; ++h) {
        float* x = heads + t * stride + h * head_dim;
        bool query = h < num_query;
        if (query_norm) norm_row(x, query ? query_norm : key_norm, query ? query_eps : key_eps, head_dim, x);
        for (long j = 0; j < half; j += W) {
          long n = std::min<long>(W, half - j);
          F a = load_part(x + j, n), b = load_part(x + half + j, n);
          F c = load_part(cos + t * half + j, n), s = load_part(sin + t * half + j, n);
          store_part(x + j, a * c - b * s, n);
          store_part(x + half + j, b * c + a * s, n);
        }
      }
  });
}

void kv_attend(const Step* step, const float* query, long query_stride, const float* key, const float* value,
               long key_stride, float* kv, float* out, float scale, float softcap, long window) {
  Layer layer{query, query_stride, key, value, key_stride, kv, out, scale, softcap, window};
  Attention{*step, layer, step->heads / step->kv_heads}.run();
}

}  // extern "C"
