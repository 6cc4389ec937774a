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

#include "operations.h"

// ---- What Python calls. Sizes are in elements.

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

// Computes operations one after the other.
void kv_compute(const Operation* operations, long count) {
  for (long i = 0; i < count; ++i) compute(operations[i]);
}

}  // extern "C"
