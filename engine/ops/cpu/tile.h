// The register tile of fp32 products.
#pragma once

#include <algorithm>

#include "simd.h"

namespace {

constexpr int MR = 6;          // rows of a register tile
constexpr int PANEL = 32;      // columns of a panel
constexpr int STRIP = NV * W;  // columns of a register tile

// c[M][N * W] (+)= a[M][k] * b[k][N * W], summed over k in order.
//
// Column j of b lies at b + j / PANEL * panel + j % PANEL + k * ldb. `next` is memory to prefetch meanwhile,
// P cache lines for each k.
template <int M, int N, int P>
inline void tile(const float* a, long lda, const float* b, long ldb, long panel, long k, float* c, long ldc, bool add,
                 const char* next) {
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

}  // namespace
