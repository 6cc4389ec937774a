// The int8 linear layer: weights have a scale for each column, inputs one for each row and GROUP inputs.
//
// Weights lie as [ceil(out / 32)][in / 4][32][4], as the dot product instructions want them, with 128 added.
#pragma once

#include "linear.h"

namespace {

constexpr long GROUP = 64;  // inputs that share one scale

// Where the CPU has no dot product of bytes, inputs are kept in 16 bits, the even ones of four before the odd ones.
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
constexpr bool HAS_DOT = true;
typedef int8_t Input;
#else
constexpr bool HAS_DOT = false;
typedef int16_t Input;
#endif

template <int... L> inline I evens_first(I v, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(v, v, (L / 4 * 4 + L % 2 * 2 + L % 4 / 2)...);
}

// Quantises a row of n inputs, padded with zeros to groups of GROUP.
void quantise_row(const float* x, long n, Input* q, float* scales, int32_t* zeros) {
  constexpr int VECTORS = GROUP / W;
  typedef Input Narrow __attribute__((vector_size(W * sizeof(Input))));
  const F magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  for (long g = 0; g * GROUP < n; ++g) {
    F v[VECTORS];
    I largest{};
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; ++i) {
      v[i] = load_part(x + g * GROUP + i * W, std::max(0L, n - g * GROUP - i * W));
      // As integers, so that what is no number counts as larger than all numbers.
      largest = vmax(largest, (I)v[i] & 0x7fffffff);
    }
    int32_t bits = max_lanes(largest);
    float peak;
    std::memcpy(&peak, &bits, 4);
    float inverse = peak > 0 ? 127.0f / peak : 0.0f;
    I sum{};
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; ++i) {
      I value = (I)(v[i] * inverse + magic) - (I)magic;
      sum += value;
      if constexpr (!HAS_DOT) value = evens_first(value, Lanes{});
      Narrow narrow = __builtin_convertvector(value, Narrow);
      std::memcpy(q + g * GROUP + i * W, &narrow, sizeof narrow);
    }
    // What is no number, or infinite, has no int8: the scale tells of it.
    scales[g] = peak / 127.0f + (peak - peak);
    // Weights are stored with 128 added: this takes it off again.
    zeros[g] = -128 * sum_lanes(sum);
  }
}

inline I all_lanes(const void* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return I{} + bits;
}

// Sums of products: of 4 unsigned and 4 signed bytes in each lane, or of two numbers of 16 bits, all signed.
inline I dot(I sum, I w, I a) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
#elif defined(__AVX512BW__)
  return sum + (I)_mm512_madd_epi16((__m512i)w, (__m512i)a);
#elif defined(__AVX2__)
  sum += (I)_mm256_madd_epi16((__m256i)w, (__m256i)a);
  // Else the compiler adds products to each other first, for which it has no registers.
  asm("" : "+x"(sum));
  return sum;
#else
  return sum + ((w << 16) >> 16) * ((a << 16) >> 16) + (w >> 16) * (a >> 16);
#endif
}

struct Quantised {
  Input* q;        // [rows][groups * GROUP]
  float* scales;   // [rows][groups]
  int32_t* zeros;  // [rows][groups]
  long groups;
};

// c[M][N * W] (+)= (a * scales) * (b - 128), the groups [first, last) summed in order. b is where group 0 begins;
// `next` is as in tile.h.
template <int M, int N, int P>
inline void tile_int8(const Quantised& a, const char* b, long panel, long first, long last, float* c, bool add,
                      const char* next, long pace) {
  typedef uint16_t H __attribute__((vector_size(W * 4)));
  F sum[M][N] = {};
  const char* column[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) column[j] = b + (j * W / PANEL * panel + j * W % PANEL * 4);
  if (add)
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[i][j] = load(c + i * PAIR + j * W);
  for (long g = first; g < last; ++g) {
    I part[M][N];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) part[i][j] = I{} + a.zeros[i * a.groups + g];
    for (long l = g * GROUP / 4; l < (g + 1) * GROUP / 4; ++l) {
      I w[N];
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) w[j] = load_ints(column[j] + l * LINE);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) __builtin_prefetch(next + (l - first * GROUP / 4) * pace + p * 64, 0, 2);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const Input* four = a.q + i * a.groups * GROUP + l * 4;
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j)
          if constexpr (HAS_DOT) part[i][j] = dot(part[i][j], w[j], all_lanes(four));
          else part[i][j] = dot(part[i][j], w[j] & 0x00ff00ff, all_lanes(four));
      }
      if constexpr (!HAS_DOT)
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          const Input* four = a.q + i * a.groups * GROUP + l * 4;
#pragma GCC unroll 8
          for (int j = 0; j < N; ++j) part[i][j] = dot(part[i][j], (I)((H)w[j] >> 8), all_lanes(four + 2));
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

template <int N, int P, int M>
inline void rows_int8(const Quantised& a, const Pass& p, const char* b, long panel, float* c, const char* next) {
  if constexpr (M > 0) {
    constexpr long LINES = GROUP / 4;
    if (p.rows == M)
      tile_int8<M, N, P>(a, b, panel, p.line / LINES, (p.line + p.lines) / LINES, c, p.add, next, p.ahead.pace);
    else rows_int8<N, P, M - 1>(a, p, b, panel, c, next);
  }
}

template <int N, int M> void strips_int8(const Quantised& a, const Pass& p, long panel) {
  const char* next = p.ahead.at;
  for (long at = 0, width = p.panels * PANEL; at < width; at += N * W) {
    const char* b = p.panel + at / PANEL * panel + at % PANEL * 4;
    float* c = p.sums + at;
    if (width - at < N * W) rows_int8<PANEL / W < N ? PANEL / W : N, 0, M>(a, p, b, panel, c, nullptr);
    else if (!next) rows_int8<N, 0, M>(a, p, b, panel, c, nullptr);
    else if (p.ahead.pace <= 64) rows_int8<N, 1, M>(a, p, b, panel, c, next);
    else if (STRIP < PAIR || p.ahead.pace <= 128) rows_int8<N, 2, M>(a, p, b, panel, c, next);
    else rows_int8<N, 4, M>(a, p, b, panel, c, next);
    if (next) next += p.lines * p.ahead.pace;
  }
}

template <class Epilogue> void linear_int8(const Inputs& inputs, const uint8_t* w, const Epilogue& epilogue) {
  static thread_local Scratch<Input> bytes;
  static thread_local Scratch<float> floats;
  static thread_local Scratch<int32_t> integers;
  long rows = inputs.rows, in = inputs.in, groups = (in + GROUP - 1) / GROUP, padded = groups * GROUP;
  const float* x = inputs.normed();
  Quantised a{bytes.get(rows * padded), floats.get(rows * groups), integers.get(rows * groups), groups};
  split(rows, in * 4, [&](long begin, long end) {
    for (long i = begin; i < end; ++i)
      quantise_row(x + i * in, in, a.q + i * padded, a.scales + i * groups, a.zeros + i * groups);
  });
  long lines = padded / 4;
  linear(rows, padded * sizeof(Input), lines * LINE, epilogue,
         [&](long first, long count, long panel, long panels, float* c) {
           auto fetch = [&](const char* next, long depth, long pass, long passes) {
             return ahead_of_pair(next, lines, depth, pass, fetched_by_each(passes));
           };
           auto products = [&](const Pass& p) {
             Quantised part{a.q + p.row * padded, a.scales + p.row * groups, a.zeros + p.row * groups, groups};
             if constexpr (FEW > 0) {
               if (p.rows <= FEW) return strips_int8<2 * NV, FEW>(part, p, lines * LINE);
             }
             strips_int8<NV, MR>(part, p, lines * LINE);
           };
           passes_over(first, count, (const char*)w, lines, panel, panels, c, lines, fetch, epilogue, products);
         });
}

}  // namespace
