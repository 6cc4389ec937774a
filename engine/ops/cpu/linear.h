// Linear layers: how rows and panels are shared out, and the fp32 one.
#pragma once

#include <algorithm>

#include "elementwise.h"
#include "simd.h"
#include "threads.h"
#include "tile.h"

namespace {

constexpr int PAIR = 2 * PANEL; // columns that one pass over the rows takes
constexpr long ROW_BLOCK = 192; // rows whose activations stay in the second-level cache
constexpr long K_BLOCK = 2048;  // inputs whose weights (of a pair) stay there

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

}  // namespace
