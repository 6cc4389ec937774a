// Vectors as the compiler has them (vector_size), so that one source serves AVX-512, AVX2 and ARM.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, NV = 4;  // lanes of a vector; vectors of a register tile
#elif defined(__AVX__)
constexpr int W = 8, NV = 2;
#elif defined(__aarch64__)
constexpr int W = 4, NV = 4;
#else
constexpr int W = 4, NV = 2;
#endif

typedef float F __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));

// Not by memcpy: the compiler would keep what goes through it on the stack.
typedef float Unaligned __attribute__((vector_size(W * 4), aligned(4), may_alias));
inline F load(const float* p) { return *(const Unaligned*)p; }
inline F splat_lane(const float* p) {  // whatever its bits mean
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return (F)(I{} + bits);
}
inline I load_ints(const void* p) { return (I)load((const float*)p); }
inline void store(float* p, F v) { *(Unaligned*)p = v; }
inline F splat(float x) { return x - F{}; }  // x + 0 would be computed, for the sake of -0
template <class V> inline V vmax(V a, V b) { return a > b ? a : b; }

// The first n lanes, the others 0.
inline F load_part(const float* p, long n) {
  if (n >= W) return load(p);
  F v{};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}
inline void store_part(float* p, F v, long n) { n >= W ? store(p, v) : (void)std::memcpy(p, &v, n * sizeof(float)); }

template <int S, class V, int... L> inline V rotated(V v, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(v, v, ((L + S) % W)...);
}
using Lanes = std::make_integer_sequence<int, W>;

template <int S = W / 2, class V> inline auto sum_lanes(V v) {
  if constexpr (S == 0) return v[0];
  else return sum_lanes<S / 2>(v + rotated<S>(v, Lanes{}));
}
template <int S = W / 2, class V> inline auto max_lanes(V v) {
  if constexpr (S == 0) return v[0];
  else return max_lanes<S / 2>(vmax(v, rotated<S>(v, Lanes{})));
}

// e^x within 2 units in the last place; 0 below -87, where results would be subnormal.
inline F exp_of(F x) {
  const F magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  F clamped = x > 88.0f ? splat(88.0f) : x;
  F shifted = clamped * 1.44269504f + magic;
  F n = shifted - magic;
  F r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  F p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  I bits = ((I)shifted - (I)magic) << 23;
  F result = (F)((I)p + bits);
  return x < -87.0f ? F{} : result;
}
// 2^(x * factor) for x * factor <= 0 within 2 units in the last place, 1 for 0; 0 below -126, where results would be
// subnormal. The polynomial is that of least relative error.
inline F exp2_of(F x, F factor) {
  const F magic = splat(12582912.0f);
  F shifted = x * factor + magic;
  F n = shifted - magic;
  F r = x * factor - n;
  F p = splat(1.326472731e-03f);
  p = p * r + 9.671512991e-03f;
  p = p * r + 5.550733581e-02f;
  p = p * r + 2.402224243e-01f;
  p = p * r + 6.931470037e-01f;
  p = p * r + 1.0f;
  F result = (F)((I)p + ((I)shifted << 23));
  return n < -126.0f ? F{} : result;  // what is no number stays so
}
inline F sigmoid(F x) { return 1.0f / (1.0f + exp_of(-x)); }
inline F tanh_of(F x) { return 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f); }

}  // namespace
