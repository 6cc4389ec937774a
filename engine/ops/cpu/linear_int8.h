// The int8 linear layer: weights have a scale for each column, inputs one for each row and GROUP inputs.
//
// Weights lie as [ceil(out / 32)][in / 4][32][4], as the dot product instructions want them, with 128 added.
#pragma once

#include "linear.h"

namespace {

constexpr long GROUP = 64;  // inputs that share one scale

// Quantises a row of n inputs, padded with zeros to groups of GROUP.
void quantise_row(const float* x, long n, int8_t* q, float* scales, int32_t* zeros) {
  constexpr int VECTORS = GROUP / W;
  typedef int8_t Bytes __attribute__((vector_size(W)));
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
      Bytes bytes = __builtin_convertvector(value, Bytes);
      std::memcpy(q + g * GROUP + i * W, &bytes, W);
      sum += value;
    }
    // What is no number, or infinite, has no int8: the scale tells of it.
    scales[g] = peak / 127.0f + (peak - peak);
    // Weights are stored with 128 added: this takes it off again.
    zeros[g] = -128 * sum_lanes(sum);
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
      for (int j = 0; j < N; ++j) w[j] = load_ints(column[j] + l * PANEL * 4);
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

template <class Epilogue> void linear_int8(const Inputs& inputs, const uint8_t* w, const Epilogue& epilogue) {
  static thread_local Scratch<int8_t> bytes;
  static thread_local Scratch<float> floats;
  static thread_local Scratch<int32_t> integers;
  long rows = inputs.rows, in = inputs.in, groups = (in + GROUP - 1) / GROUP, padded = groups * GROUP;
  const float* x = inputs.normed();
  Quantised a{bytes.get(rows * padded), floats.get(rows * groups), integers.get(rows * groups), groups};
  split(rows, in * 4, [&](long begin, long end) {
    for (long i = begin; i < end; ++i)
      quantise_row(x + i * in, in, a.q + i * padded, a.scales + i * groups, a.zeros + i * groups);
  });
  linear(rows, padded, padded * PANEL, epilogue, [&](long first, long count, long panel, long panels, float* c) {
    long passes = (count + MR - 1) / MR, stride = padded * PANEL, width = panels * PANEL;
    const uint8_t* b = w + panel * stride;
    for (long pass = 0; pass < passes; ++pass) {
      long row = count * pass / passes, taken = count * (pass + 1) / passes - row;
      Quantised part{a.q + (first + row) * padded, a.scales + (first + row) * groups,
                     a.zeros + (first + row) * groups, groups};
      // A single pass is over sooner than the hardware foresees anything.
      int lines = passes == 1 ? 4 : pass < FETCHING;
      const char* next = (const char*)(b + panels * stride) + pass * padded / 4 * lines * 64;
      for (long at = 0; at < width; at += STRIP) {
        const uint8_t* from = b + at / PANEL * stride + at % PANEL * 4;
        float* to = c + at;
        if (width - at < STRIP) rows_int8<PANEL / W < NV ? PANEL / W : NV, 0>(taken, part, from, stride, to, next);
        else if (at || !lines) rows_int8<NV, 0>(taken, part, from, stride, to, next);
        else if (lines == 1) rows_int8<NV, 1>(taken, part, from, stride, to, next);
        else rows_int8<NV, 4>(taken, part, from, stride, to, next);
      }
      epilogue(c, first + row, taken, panel, panels);
    }
  });
}

}  // namespace
