// Linear layers: how rows and panels are shared out, what becomes of the sums, and the fp32 layer.
//
// Weights lie in panels of 32 columns, padded with zeros: [ceil(out / 32)][in][32]. A pair of panels at a time
// meets up to MR rows in registers.
#pragma once

#include <algorithm>

#include "elementwise.h"
#include "simd.h"
#include "threads.h"
#include "tile.h"

namespace {

constexpr long LINE = PANEL * 4;  // bytes of a line of a panel: one input of its columns, or four in int8
constexpr int PAIR = 2 * PANEL;  // columns that one pass over the rows takes
constexpr long ROW_BLOCK = 192;  // most rows that pass over a pair before the next pair is taken
constexpr long ROW_BYTES = 400 << 10;  // their inputs stay in the second-level cache
constexpr long K_BLOCK = 768;  // inputs whose weights (of a pair) stay there
// Where registers hold no pair of panels, few rows take one panel after the other, and of each as many lines as stay
// in the first-level cache.
constexpr long NARROW_PASSES = STRIP < PAIR ? 8 : 0;
constexpr long NARROW_BLOCK = 192;
constexpr long OWN_ROWS = 48;  // rows for which a thread reads all weights

inline long panels_of(long columns) { return (columns + PANEL - 1) / PANEL; }

// What is done with the sums of a pair of panels, c [rows][PAIR]: they are written, or added to what is there.
struct Plain {
  static constexpr long UNIT = 1;  // panels that belong together
  const float* scale;              // of columns, or null
  const float* bias;               // or null
  float* out;                      // [rows][columns]
  long columns;
  bool add;

  long panels() const { return panels_of(columns); }

  void operator()(const float* c, long first_row, long rows, long panel, long taken) const {
    long first = panel * PANEL, width = std::min(taken * PANEL, columns - first);
    for (long i = 0; i < rows; ++i)
      for (long j = 0; j < width; j += W) {
        long n = std::min<long>(W, width - j), column = first + j;
        float* to = out + (first_row + i) * columns + column;
        F v = load(c + i * PAIR + j);
        if (scale) v *= load_part(scale + column, n);
        if (bias) v += load_part(bias + column, n);
        if (add) v = load_part(to, n) + v;
        store_part(to, v, n);
      }
  }
};

// A feed-forward's gate and up, whose panels alternate: activation(gate) * up is written. Both activations are
// gate * sigmoid(inner): SiLU, and the tanh form of GELU.
struct Gated {
  static constexpr long UNIT = 2;
  const float* scale;  // of gate's columns, then up's, or null
  const float* bias;   // likewise
  float* out;          // [rows][columns]
  long columns;
  bool gelu;

  long panels() const { return 2 * panels_of(columns); }

  void operator()(const float* c, long first_row, long rows, long panel, long) const {
    long first = panel / 2 * PANEL, width = std::min<long>(PANEL, columns - first);
    for (long j = 0; j < width; j += W) {
      long n = std::min<long>(W, width - j), column = first + j;
      F one = splat(1.0f), zero{};
      F gate_scale = scale ? load_part(scale + column, n) : one;
      F up_scale = scale ? load_part(scale + columns + column, n) : one;
      F gate_bias = bias ? load_part(bias + column, n) : zero;
      F up_bias = bias ? load_part(bias + columns + column, n) : zero;
      for (long i = 0; i < rows; ++i) {
        F gate = load(c + i * PAIR + j) * gate_scale + gate_bias;
        F up = load(c + i * PAIR + PANEL + j) * up_scale + up_bias;
        F inner = gelu ? 1.59576912f * (gate + 0.044715f * gate * gate * gate) : gate;
        store_part(out + (first_row + i) * columns + column, gate * sigmoid(inner) * up, n);
      }
    }
  }
};

// Calls part(row, rows, panel, taken, c) for blocks of rows and pairs of panels, of which `taken` are there; c has room
// for [rows][PAIR]. The part calls the epilogue after each pass: few rows at a time, so that their way to memory overlaps
// with the next pass.
//
// Many rows are divided among the threads, else the panels are: each thread reads a stretch of memory in order.
template <class Epilogue, class Part>
void linear(long rows, long row_bytes, long panel_bytes, const Epilogue& epilogue, const Part& part) {
  constexpr long UNIT = Epilogue::UNIT;
  long units = epilogue.panels() / UNIT, threads = pool.threads();
  long most = std::clamp(ROW_BYTES / row_bytes, OWN_ROWS, ROW_BLOCK), blocks = (rows + most - 1) / most;
  if (rows >= threads * OWN_ROWS) blocks = (blocks + threads - 1) / threads * threads;
  long passes = (std::min(rows, most) + MR - 1) / MR;
  bool small = units * UNIT * panel_bytes * passes < 65536;
  long parts = blocks == 1 && !small ? std::min(units, threads) : 1;
  long pairs = ((units + parts - 1) / parts * UNIT + 1) / 2;
  auto item = [&](long i) {
    alignas(64) static thread_local float c[ROW_BLOCK * PAIR];
    long block = i / (parts * pairs), index = i / pairs % parts;
    long first = rows * block / blocks, count = rows * (block + 1) / blocks - first;
    long panel = units * index / parts * UNIT + i % pairs * 2, end = units * (index + 1) / parts * UNIT;
    if (panel < end) part(first, count, panel, std::min(2L, end - panel), c);
  };
  if (!small) return pool.run(blocks * parts * pairs, item);
  for (long i = 0; i < blocks * pairs; ++i) item(i);
}

// The inputs of a linear layer [rows][in], normed where it has a norm.
struct Inputs {
  const float* x;
  long rows, in;
  const float* norm;  // weights, or null
  float eps;

  const float* normed() const {
    static thread_local Scratch<float> scratch;
    if (!norm) return x;
    float* to = scratch.get(rows * in);
    split(rows, in * 4, [&](long begin, long end) {
      for (long i = begin; i < end; ++i) norm_row(x + i * in, norm, eps, in, to + i * in);
    });
    return to;
  }
};

// What a pass over a block of inputs fetches meanwhile.
struct Ahead {
  const char* at;  // or null
  long pace;       // bytes for each strip and line of a panel
};

// The passes over a pair of panels also fetch the next pair, of which each line has 4 times 64 bytes: all of them where
// the pass is the only one, two each where two or three are, else one each of the first four. Memory works while
// registers do, and has no more to do at a time than it must.
constexpr long FETCHING = 4;
inline long fetched_by_each(long passes) { return passes == 1 ? FETCHING : passes < FETCHING ? 2 : 1; }
inline Ahead ahead_of_pair(const char* next, long lines, long depth, long pass, long share) {
  long part = pass * share;
  if (part >= FETCHING) return {nullptr, 0};
  return {next + part / 2 * lines * LINE + part % 2 * depth * 64, share * 64 * STRIP / PAIR};
}

// What follows a block of a single panel is the next block. The strips over it, at most so many, fetch equal parts.
constexpr long FETCHING_STRIPS = 8;
inline Ahead ahead_of_block(const char* next, long depth, long pass, long passes, long rows) {
  long strips = 0, before = 0;
  for (long i = 0; i < passes; ++i) {
    if (i == pass) before = strips;
    strips += PANEL / strip_of(rows * (i + 1) / passes - rows * i / passes);
  }
  strips = std::min(strips, FETCHING_STRIPS);
  if (before >= strips) return {nullptr, 0};
  long pace = (LINE + strips - 1) / strips;
  return {next + before * depth * pace, pace};
}

// A pass of up to MR rows over lines of panels that lie side by side: sums [rows][PAIR] (+)= their products.
struct Pass {
  long row, rows;
  const char* panel;  // where its first line is
  long panels;
  long line, lines;
  float* sums;
  bool add;
  Ahead ahead;
};

// Takes `count` rows over `panels` panels of `lines` lines each: over narrow blocks or, where registers hold more or
// rows are many, over `block` lines of all panels. fetch(next, depth, pass, passes) says what passes over such fetch.
template <class Epilogue, class Fetch, class Fn>
void passes_over(long first, long count, const char* w, long lines, long panel, long panels, float* c, long block,
                 const Fetch& fetch, const Epilogue& epilogue, const Fn& fn) {
  long passes = (count + MR - 1) / MR;
  bool narrow = passes <= NARROW_PASSES;
  long step = narrow ? NARROW_BLOCK : block, wide = narrow ? 1 : panels;
  bool kept = step < lines || wide < panels;  // sums, until the last pass over these rows
  for (long p = 0; p < panels; p += wide)
    for (long line = 0; line < lines; line += step) {
      long depth = std::min(step, lines - line);
      const char* at = w + (panel + p) * lines * LINE;
      // What comes next: further inputs of these panels, or the next panels.
      const char* next = at + (line + depth < lines ? line + depth : wide * lines) * LINE;
      for (long pass = 0; pass < passes; ++pass) {
        long row = count * pass / passes, taken = count * (pass + 1) / passes - row;
        Ahead ahead = narrow ? ahead_of_block(next, depth, pass, passes, count) : fetch(next, depth, pass, passes);
        float* sums = c + (kept ? row : 0) * PAIR;
        fn(Pass{first + row, taken, at, wide, line, depth, sums + p * PANEL, line > 0, ahead});
        if (line + depth == lines && p + wide == panels) epilogue(sums, first + row, taken, panel, panels);
      }
    }
}

template <class Epilogue> void linear_fp32(const Inputs& inputs, const float* w, const Epilogue& epilogue) {
  const float* x = inputs.normed();
  long in = inputs.in;
  linear(inputs.rows, in * 4, in * LINE, epilogue, [&](long first, long count, long panel, long panels, float* c) {
    auto fetch = [&](const char* next, long depth, long pass, long passes) {
      // What so few rows leave the hardware foresees.
      return ahead_of_pair(next, in, depth, pass, count <= 2 ? 1 : fetched_by_each(passes));
    };
    passes_over(first, count, (const char*)w, in, panel, panels, c, count <= MR ? in : K_BLOCK, fetch, epilogue,
                [&](const Pass& p) {
                  product({x + p.row * in + p.line, in, (const float*)(p.panel + p.line * LINE), PANEL, in * PANEL,
                           p.lines, p.sums, PAIR, p.add, p.ahead.at, p.ahead.pace},
                          p.rows, p.panels * PANEL);
                });
  });
}

}  // namespace
