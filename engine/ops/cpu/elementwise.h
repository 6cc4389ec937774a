// What is computed row by row: norms, rotation, gates.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace {

void norm_row(const float* x, const float* weight, float eps, long n, float* out) {
  F squares{};
  long i = 0;
  for (; i + W <= n; i += W) squares += load(x + i) * load(x + i);
  if (i < n) squares += load_part(x + i, n - i) * load_part(x + i, n - i);
  float scale = 1.0f / std::sqrt(sum_lanes(squares) / n + eps);
  for (i = 0; i + W <= n; i += W) store(out + i, load(x + i) * scale * load(weight + i));
  if (i < n) store_part(out + i, load_part(x + i, n - i) * scale * load_part(weight + i, n - i), n - i);
}

}  // namespace
