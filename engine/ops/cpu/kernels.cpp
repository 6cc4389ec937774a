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


#include <sys/mman.h>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "linear_int8.h"

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
