// The register tile of products, of fp32 numbers or (BF16) of pairs of bfloat16 numbers.
#pragma once

#include <algorithm>

#include "bf16.h"
#include "simd.h"

namespace {

constexpr int MR = 6;          // rows of a register tile
constexpr int PANEL = 32;      // columns of a panel
constexpr int STRIP = NV * W;  // columns of a register tile
// Few rows leave registers for a strip of twice the columns, where a panel has room for it.
constexpr int FEW = 2 * STRIP <= PANEL ? MR / 2 : 0;

inline long strip_of(long rows) { return rows <= FEW ? 2 * STRIP : STRIP; }

// c[M][N * W] (+)= a[M][k] * b[k][N * W], summed over k in order.
//
// Column j of b lies at b + j / PANEL * panel + j % PANEL + k * ldb. `next` is memory to prefetch meanwhile: for each k
// P cache lines, which begin `pace` bytes behind the last ones.
template <bool BF16, int M, int N, int P>
inline void tile(const float* a, long lda, const float* b, long ldb, long panel, long k, float* c, long ldc, bool add,
                 const char* next, long pace) {
  F sum[M][N] = {};
  const float* column[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) column[j] = b + j * W / PANEL * panel + j * W % PANEL;
  if (add)
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[i][j] = load(c + i * ldc + j * W);
  for (long l = 0; l < k; ++l) {
    F w[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) w[j] = load(column[j] + l * ldb);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) __builtin_prefetch(next + l * pace + p * 64, 0, 2);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      F x = splat_lane(a + i * lda + l);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j)
        if constexpr (BF16) sum[i][j] = add_products(sum[i][j], x, w[j]);
        else sum[i][j] += x * w[j];
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
  const char* next;  // to prefetch, or null: for each strip and k `pace` bytes
  long pace;
};

// b and c are where a strip of the tile's columns begins.
template <bool BF16, int N, int P, int M>
inline void rows_of(const Tile& t, const float* b, float* c, const char* next, long rows) {
  if constexpr (M > 0) {
    if (rows == M) tile<BF16, M, N, P>(t.a, t.lda, b, t.ldb, t.panel, t.k, c, t.ldc, t.add, next, t.pace);
    else rows_of<BF16, N, P, M - 1>(t, b, c, next, rows);
  }
}
template <bool BF16, int N, int M>
inline void columns_of(const Tile& t, const float* b, float* c, long rows, long vectors) {
  if constexpr (N > 0) {
    if (vectors == N) rows_of<BF16, N, 0, M>(t, b, c, nullptr, rows);
    else columns_of<BF16, N - 1, M>(t, b, c, rows, vectors);
  }
}

// Strips of N vectors for at most M rows.
template <bool BF16, int N, int M> void strips(const Tile& t, long rows, long columns) {
  const char* next = t.next;
  for (long at = 0; at < columns; at += N * W) {
    const float* b = t.b + at / PANEL * t.panel + at % PANEL;
    float* c = t.c + at;
    long vectors = std::min<long>((columns - at) / W, N);
    if (vectors < N || !next) {
      columns_of<BF16, N, M>(t, b, c, rows, vectors);
      continue;
    }
    if (t.pace > 128) rows_of<BF16, N, 4, M>(t, b, c, next, rows);
    else if (t.pace > 64) rows_of<BF16, N, 2, M>(t, b, c, next, rows);
    else rows_of<BF16, N, 1, M>(t, b, c, next, rows);
    next += t.k * t.pace;
  }
}

// c[rows][columns] for rows <= MR and columns a multiple of W. The tile is not copied: a copy would be read in larger
// pieces than it was written in, which waits until all that was written before has reached the cache.
template <bool BF16 = false> void product(const Tile& t, long rows, long columns) {
  if constexpr (FEW > 0) {
    if (rows <= FEW) return strips<BF16, 2 * NV, FEW>(t, rows, columns);
  }
  strips<BF16, NV, MR>(t, rows, columns);
}

}  // namespace
