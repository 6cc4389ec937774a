// Kernels of the CPU path: plain C functions over pointers, called through ctypes.
//
// Everything is fp32, but for linear layers that are called int8 and attention that may be coarse. Two properties hold
// throughout:
// - A row's result does not depend on the other rows, on how many there are, or on the number of threads:
//   every sum runs over its terms in one fixed order. So tokens are the same in any batch and any chunking.
// - Vectors are the compiler's own (vector_size), so that one source serves AVX-512, AVX2 and ARM.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "linear_int8.h"

// ---- What Python calls. Sizes are in elements; `norm` and `bias` may be null.

extern "C" {

void kv_threads(int threads) { pool.resize(threads); }

// weight [out][in] -> panels, every `step`-th of those at `panels`.
void kv_pack(const float* weight, long out, long in, float* panels, long step) {
  split(panels_of(out), in * PANEL * 4, [&](long begin, long end) {
    for (long p = begin; p < end; ++p)
      for (long k = 0; k < in; ++k)
        for (long j = 0; j < PANEL; ++j) {
          long row = p * PANEL + j;
          panels[(p * step * in + k) * PANEL + j] = row < out ? weight[row * in + k] : 0.0f;
        }
  });
}

// weight [out][in] -> int8 panels, likewise; what pads them counts as 0.
void kv_pack_int8(const int8_t* weight, long out, long in, uint8_t* panels, long step) {
  long size = (in + GROUP - 1) / GROUP * GROUP * PANEL;
  split(panels_of(out), in * PANEL, [&](long begin, long end) {
    for (long p = begin; p < end; ++p) {
      uint8_t* to = panels + p * step * size;
      std::memset(to, 128, size);
      for (long j = 0; j < std::min<long>(PANEL, out - p * PANEL); ++j)
        for (long k = 0; k < in; ++k)
          to[k / 4 * PANEL * 4 + j * 4 + k % 4] = (uint8_t)(128 + weight[(p * PANEL + j) * in + k]);
    }
  });
}

// out (+)= norm(x) w + bias
void kv_linear(const float* x, long rows, long in, const float* norm, float eps, const float* w, const float* bias,
               float* out, long columns, int add) {
  linear_fp32({x, rows, in, norm, eps}, w, Plain{nullptr, bias, out, columns, add != 0});
}

// As kv_linear, weights from kv_pack_int8; inputs are quantised in groups of 64.
void kv_linear_int8(const float* x, long rows, long in, const float* norm, float eps, const uint8_t* w,
                    const float* scales, const float* bias, float* out, long columns, int add) {
  linear_int8({x, rows, in, norm, eps}, w, Plain{scales, bias, out, columns, add != 0});
}

// out = activation(gate) * up of norm(x) w + bias, where panels of gate and up alternate; out has `columns` columns,
// scales and bias first gate's, then up's. gelu: the tanh form, else SiLU.
void kv_gated_linear(const float* x, long rows, long in, const float* norm, float eps, const float* w,
                     const float* bias, float* out, long columns, int gelu) {
  linear_fp32({x, rows, in, norm, eps}, w, Gated{nullptr, bias, out, columns, gelu != 0});
}

void kv_gated_linear_int8(const float* x, long rows, long in, const float* norm, float eps, const uint8_t* w,
                          const float* scales, const float* bias, float* out, long columns, int gelu) {
  linear_int8({x, rows, in, norm, eps}, w, Gated{scales, bias, out, columns, gelu != 0});
}

void kv_rms_norm(const float* x, long rows, long n, const float* weight, float eps, float* out) {
  split(rows, n * 4, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) norm_row(x + i * n, weight, eps, n, out + i * n);
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

// coarse: numbers may be rounded to bfloat16 before they are multiplied, which is done where the CPU gains by it.
void kv_attend(const Step* step, const float* query, long query_stride, const float* key, const float* value,
               long key_stride, float* kv, float* out, float scale, float softcap, long window, int coarse) {
  Layer layer{query, query_stride, key, value, key_stride, kv, out, scale, softcap, window};
  long group = step->heads / step->kv_heads;
  coarse ? Attention<HAS_BF16>{*step, layer, group}.run() : Attention<false>{*step, layer, group}.run();
}

}  // extern "C"
