// Paged attention.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "bf16.h"
#include "simd.h"
#include "threads.h"
#include "tile.h"

namespace {

constexpr long KEYS = 64;       // keys of an attention tile, aligned to absolute positions
constexpr long SPAN = 256;     // keys that are reduced on their own, then merged in order
constexpr long QUERIES = 192;  // most rows (tokens x heads of a group) of an attention tile
constexpr long FETCHED = 6;    // keys that are fetched during a product, about what memory delivers meanwhile
constexpr long DIRECT = 12;    // rows for which values are not worth a copy

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

// What all layers of a step share. Mirrored by operations.py.
struct Step {
  const int64_t* slots;         // [tokens]
  const int64_t* tables;        // [sequences][table_width]
  const int64_t* query_starts;  // [sequences + 1]
  const int64_t* contexts;      // [sequences]
  const int64_t* positions;     // [tokens]
  const int64_t* visible;       // [tokens]: bits of the tree's tokens that a token sees, 0 for causal order; or null
  const int64_t* tree_starts;   // [sequences]: the key of bit 0; null where `visible` is
  const int64_t* first_keys;    // [sequences]: what lies before is not there; or null
  float* kv;                    // the pool: [blocks][layers][2][kv_heads][block_size][head_dim]
  int64_t tokens, sequences, table_width;
  int64_t heads, kv_heads, head_dim, block_size, block_stride, layer_stride;
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

// BF16: queries, keys, values and weights are rounded to bfloat16 before they are multiplied; the softmax and all sums
// stay fp32. Two numbers share a lane then: two dimensions of a query or key, the values or weights of two keys.
template <bool BF16> struct Attention {
  static constexpr long PER_LANE = BF16 ? 2 : 1;

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
  // The bits of a token of a tile; 0 for causal order.
  uint64_t bits(const Work& w, long token) const {
    return s.visible ? (uint64_t)s.visible[s.query_starts[w.sequence] + token] : 0;
  }
  // The first key that a token of a tile sees. Those of a tree may stand further back than they lie.
  long oldest(const Work& w, long token) const {
    long first = s.first_keys ? s.first_keys[w.sequence] : 0;
    long at = bits(w, token) ? s.positions[s.query_starts[w.sequence] + token] : position(w, token);
    return y.window ? std::max(first, at - y.window + 1) : first;
  }
  long oldest(const Work& w) const {
    long found = oldest(w, w.first);
    for (long t = 1; s.visible && t < w.tokens; ++t) found = std::min(found, oldest(w, w.first + t));
    return found;
  }

  void write(long token) const {
    long block = s.slots[token] / s.block_size, offset = s.slots[token] % s.block_size, d = s.head_dim;
    float* to = y.kv + block * s.block_stride + offset * d;
    for (long h = 0; h < s.kv_heads; ++h) {
      std::memcpy(to + h * s.block_size * d, y.key + token * y.key_stride + h * d, d * 4);
      std::memcpy(to + (s.kv_heads + h) * s.block_size * d, y.value + token * y.key_stride + h * d, d * 4);
    }
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

  // The tile that comes next is fetched while another is worked on, a key and its value here and there, so that memory
  // and arithmetic overlap: blocks lie apart, where no hardware foresees them.
  struct Ahead {
    const float* rows[KEYS];  // of keys; values lie `values` behind
    long count, done, dim, values;

    void fetch(long upto) {
      for (upto = std::min(upto, count); done < upto; ++done)
        for (long j = 0; j < dim; j += 16) {
          __builtin_prefetch(rows[done] + j, 0, 2);
          __builtin_prefetch(rows[done] + values + j, 0, 2);
        }
    }
  };
  // What follows the keys before `start`: more of the same queries, or the first of what this thread does next.
  Ahead ahead_of(const Work& w, long start, const Work* after) const {
    Ahead ahead{{}, 0, 0, s.head_dim, s.kv_heads * s.block_size * s.head_dim};
    const Work* next = start <= last(w) ? &w : after;
    if (!next) return ahead;
    if (next == after) start = oldest(*next) / KEYS * KEYS;
    ahead.count = std::min(KEYS, last(*next) + 1 - start);
    find(*next, start, ahead.count, 0, ahead.rows);
    return ahead;
  }

  // Copies the keys of a tile, turned, to [head_dim][KEYS]; pairs of dimensions share a lane where BF16. Keys of the next
  // tile are fetched meanwhile, up to `fetched`.
  void turn(const float* const* rows, long count, Ahead& ahead, long fetched, float* keys) const {
    constexpr long DIMS = W * PER_LANE;
    long d = s.head_dim, steps = (count + W - 1) / W * ((d + DIMS - 1) / DIMS), each = (fetched + steps - 1) / steps;
    for (long i = 0; i < count; i += W)
      for (long j = 0; j < d; j += DIMS) {
        F v[W];
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l) {
          v[l] = load(rows[i + l] + j);
          if constexpr (BF16) v[l] = pair_neighbours(v[l], j + W < d ? load(rows[i + l] + j + W) : F{});
        }
        exchange_all<1>(v);
#pragma GCC unroll 16
        for (int l = 0; l < W; ++l)
          if (!BF16 || j + 2 * l < d) store(keys + (j / PER_LANE + l) * KEYS + i, v[l]);
        ahead.fetch(std::min(ahead.done + each, fetched));
      }
  }
  // Copies its values to [KEYS][head_dim], those of two keys into each lane where BF16.
  void copy(const float* const* rows, long count, Ahead& ahead, long fetched, float* values) const {
    for (long i = 0; i < count; i += PER_LANE) {
      for (long j = 0; j < s.head_dim; j += W) {
        F v = load(rows[i] + j);
        // Behind the last key are zeros.
        if constexpr (BF16) v = pair_lanes(v, load(rows[i + 1] + j));
        store(values + i / PER_LANE * s.head_dim + j, v);
      }
      ahead.fetch(std::min(ahead.done + PER_LANE, fetched));
    }
  }

  // Caps and masks the scores of a row; returns the largest, -infinity where no key is seen.
  float seen_scores(float* scores, long start, long count, long from, long to) const {
    const F none = splat(-INFINITY);
    F best = none;
    if (y.softcap > 0)
      for (long i = 0; i < count; i += W)
        store(scores + i, tanh_of(load(scores + i) * (y.scale / y.softcap)) * y.softcap);
    if (start + count > to || start < from) {
      F lane;
      for (int i = 0; i < W; ++i) lane[i] = i;
      for (long i = 0; i < count; i += W) {
        F at = lane + (float)i, v = load(scores + i);
        v = at < (float)(to - start) ? v : none;
        store(scores + i, at >= (float)(from - start) ? v : none);
      }
    }
    for (long i = 0; i < count; i += W) best = vmax(best, load(scores + i));
    return max_lanes(best);
  }

  // Masks scores of keys from `tree` on by the bits that say which are seen; returns the largest that is left.
  float tree_scores(float* scores, long start, long count, long tree, uint64_t bits) const {
    for (long i = std::max(tree - start, 0L); i < count; ++i) {
      long node = start + i - tree;
      if (node > 63 || !(bits >> node & 1)) scores[i] = -INFINITY;
    }
    F best = load(scores);
    for (long i = W; i < count; i += W) best = vmax(best, load(scores + i));
    return max_lanes(best);
  }

  // What scores are multiplied by to be powers of 2; a cap has scaled them already.
  float power() const { return (y.softcap > 0 ? 1.0f : y.scale) * 1.44269504f; }

  // Scores of rows become weights, and what was summed before is scaled to the largest score so far.
  void softmax(float* scores, long count, const float* best, const Running& r, long first, long rows) const {
    F factor = splat(power());
    for (long i = 0; i < rows; ++i) {
      float *row = scores + i * KEYS, *sums = r.sums + (first + i) * s.head_dim, *weights = r.weights + (first + i) * W;
      float before = r.largest[first + i], largest = std::max(before, best[i]);
      if (largest == -INFINITY) {
        std::memset(row, 0, count * sizeof(float));
        continue;
      }
      F total{};
      for (long j = 0; j < count; j += W) {
        F p = exp2_of(load(row + j) - largest, factor);
        if constexpr (BF16) round_to(row + j / 2, p);
        else store(row + j, p);
        total += p;
      }
      if (largest != before) {
        F shrink = exp2_of(splat(before - largest), factor);
        store(weights, load(weights) * shrink);
        for (long j = 0; j < s.head_dim; j += W) store(sums + j, load(sums + j) * shrink);
        r.largest[first + i] = largest;
      }
      store(weights, load(weights) + total);
    }
  }

  // into = what two spans found together.
  void merge(const Running& into, const Running& other, long rows) const {
    F factor = splat(power());
    for (long r = 0; r < rows; ++r) {
      if (other.largest[r] == -INFINITY) continue;
      float largest = std::max(into.largest[r], other.largest[r]);
      F a = exp2_of(splat(into.largest[r] - largest), factor), b = exp2_of(splat(other.largest[r] - largest), factor);
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
    bool direct = !BF16 && rows <= DIRECT;
    clear(r, rows);
    long end = std::min((span + 1) * SPAN, last(w) + 1);
    long seen = oldest(w), begin = std::max(span * SPAN, seen / KEYS * KEYS);
    for (long start = begin; start < end; start += KEYS) {
      long count = std::min(KEYS, end - start), first = std::clamp(seen - start, 0L, count);
      const float* lines[KEYS];
      // Keys before `seen` are seen by nobody, and their blocks may be somebody else's: they count as zeros.
      find(w, start, count, seen, lines);
      Ahead ahead = ahead_of(w, start + KEYS, after);
      long fetched = KEYS - rows / MR * 2 * FETCHED;
      turn(lines, count, ahead, direct ? fetched : fetched / 2, keys);
      for (long i = first; i < count; ++i) lines[i] += ahead.values;
      if (!direct) copy(lines, count, ahead, fetched, values);
      for (long row = 0; row < rows; row += MR) {
        long taken = std::min<long>(MR, rows - row);
        // Keys behind the last of these rows are seen by none of them.
        long seen_by = position(w, w.first + (row + taken - 1) / group) + 1 - start;
        if (seen_by <= 0) continue;
        long near = std::min(count, seen_by), wide = (near + W - 1) / W * W;
        long lanes = d / PER_LANE;
        ahead.fetch(ahead.done + FETCHED);
        product<BF16>({query + row * lanes, lanes, keys, KEYS, PANEL, lanes, scores, KEYS, false, nullptr, 0}, taken,
                      wide);
        float best[MR];
        for (long i = 0; i < taken; ++i) {
          long token = w.first + (row + i) / group;
          float* own = scores + i * KEYS;
          best[i] = seen_scores(own, start, wide, oldest(w, token), position(w, token) + 1);
          if (uint64_t tree = bits(w, token)) best[i] = tree_scores(own, start, wide, s.tree_starts[w.sequence], tree);
        }
        softmax(scores, wide, best, r, row, taken);
        ahead.fetch(ahead.done + FETCHED);
        long seen_lanes = (near + PER_LANE - 1) / PER_LANE;
        if (!direct)
          product<BF16>({scores, KEYS, values, d, PANEL, seen_lanes, r.sums + row * d, d, true, nullptr, 0}, taken, d);
        else
          for (long i = first, n; i < near; i += n) {
            n = std::min(s.block_size - (start + i) % s.block_size, near - i);
            product({scores + i, KEYS, lines[i], d, PANEL, n, r.sums + row * d, d, true, nullptr, 0}, taken, d);
          }
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
      const float* from = y.query + token * y.query_stride + (w.head * group + r % group) * d;
      if constexpr (BF16)
        for (long j = 0; j < d; j += W) round_to(query + (r * d + j) / 2, load(from + j));
      else std::memcpy(query + r * d, from, d * 4);
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
    long each = std::max(1L, QUERIES / group), longest = 0, most = 0;
    for (long q = 0; q < s.sequences; ++q) {
      longest = std::max(longest, s.query_starts[q + 1] - s.query_starts[q]);
      most = std::max(most, (s.contexts[q] + SPAN - 1) / SPAN);
    }
    // Halves of the queries, where the threads would have unequal parts else.
    long whole = s.sequences * s.kv_heads, threads = pool.threads();
    if (most == 1 && whole < 2 * threads && whole % threads && longest * group > DIRECT)
      each = std::min(each, (longest + 1) / 2);
    std::vector<Work> works;
    // The last tiles of a chunk see most keys: they come first.
    for (long q = 0; q < s.sequences; ++q) {
      long count = s.query_starts[q + 1] - s.query_starts[q];
      for (long first = (count - 1) / each * each; first >= 0; first -= each)
        for (long h = 0; h < s.kv_heads; ++h) works.push_back({q, first, std::min(each, count - first), h});
    }
    long items = works.size();
    auto range = [&](const Work& w) {
      return std::pair{oldest(w) / SPAN, last(w) / SPAN + 1};
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
          spans(w, i + 1 < items ? &works[i + 1] : nullptr, begin, end, total);
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
