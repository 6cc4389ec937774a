// Products of bfloat16 numbers, summed in fp32, where the CPU has instructions for them: two numbers side by side in
// each lane, so that one instruction does the work of two.
#pragma once

#include "simd.h"

namespace {

// sum + both products of each lane.
inline F add_products(F sum, F x, F w);
// Rounds W numbers to nearest; `to` has room for W / 2 lanes.
inline void round_to(float* to, F v);
// 2 W numbers, neighbours sharing a lane.
inline F pair_neighbours(F low, F high);
// Each lane of two vectors, sharing a lane.
inline F pair_lanes(F first, F second);

#if defined(__AVX512BF16__) && defined(__AVX512F__)
constexpr bool HAS_BF16 = true;

inline F add_products(F sum, F x, F w) { return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w); }
inline void round_to(float* to, F v) {
  __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &rounded, sizeof rounded);
}
inline F pair_neighbours(F low, F high) { return (F)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low); }
inline F pair_lanes(F first, F second) {
  typedef int16_t H __attribute__((vector_size(W * 4)));
  H v = (H)pair_neighbours(first, second);
  return (F)__builtin_shufflevector(v, v, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26,
                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#else
constexpr bool HAS_BF16 = false;  // and nothing calls the above
#endif

}  // namespace
