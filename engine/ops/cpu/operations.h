// Operations as Python hands them over: lists of these, each with its arguments, computed one after the other.
//
// Mirrored by operations.py. Sizes are in elements; what may be null is said.
#pragma once

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "linear_int8.h"

namespace {

// out = norm(x) w + bias, added to what is there, or gated: activation(gate) * up, where panels of gate and up
// alternate. scales and bias are first gate's, then up's.
struct LinearCall {
  enum Form : int64_t { WRITTEN, ADDED, SILU, GELU };
  const float* x;       // [rows][in]
  const float* norm;    // weights, or null
  const void* panels;   // as from kv_pack, or where there are scales kv_pack_int8
  const float* scales;  // of outputs; null for fp32
  const float* bias;    // or null
  float* out;           // [rows][columns]
  int64_t in, columns, form;
  float eps;
};

// The first num_query heads of head_dim each, then num_key, are normed and rotated by `half` angles.
struct RotateCall {
  float* heads;             // [rows][stride]
  const float *cos, *sin;   // [rows][half]
  const float* query_norm;  // or null, then so is key_norm
  const float* key_norm;
  int64_t stride, num_query, num_key, head_dim, half;
  float query_eps, key_eps;
};

// coarse: numbers may be rounded to bfloat16 before they are multiplied, which is done where the CPU gains by it.
struct AttendCall {
  const Step* step;
  const float *query, *key, *value;
  float* out;
  int64_t query_stride, key_stride;
  int64_t place;  // of the layer in a block
  int64_t window, coarse;
  float scale, softcap;
};

struct NormCall {
  const float *x, *weight;  // [rows][width], [width]
  float* out;               // may be x where nothing is added
  int64_t width, add;
  float eps;
};

struct CopyCall {
  const float* x;         // [rows][width]
  float* out;             // [rows][stride], its first `width` columns
  int64_t width, stride;
};

struct Operation {
  enum Kind : int64_t { LINEAR, ROTATE, ATTEND, NORM, COPY };
  int64_t kind, rows;
  union {
    LinearCall linear;
    RotateCall rotate;
    AttendCall attend;
    NormCall norm;
    CopyCall copy;
  };
};

void compute(const LinearCall& c, long rows) {
  Inputs inputs{c.x, rows, c.in, c.norm, c.eps};
  auto apply = [&](const auto& epilogue) {
    c.scales ? linear_int8(inputs, (const uint8_t*)c.panels, epilogue)
             : linear_fp32(inputs, (const float*)c.panels, epilogue);
  };
  if (c.form < LinearCall::SILU) apply(Plain{c.scales, c.bias, c.out, c.columns, c.form == LinearCall::ADDED});
  else apply(Gated{c.scales, c.bias, c.out, c.columns, c.form == LinearCall::GELU});
}

void compute(const RotateCall& c, long rows) {
  split(rows, (c.num_query + c.num_key) * c.head_dim * 8, [&](long begin, long end) {
    for (long t = begin; t < end; ++t)
      for (long h = 0; h < c.num_query + c.num_key; ++h) {
        float* x = c.heads + t * c.stride + h * c.head_dim;
        bool query = h < c.num_query;
        if (c.query_norm)
          norm_row(x, query ? c.query_norm : c.key_norm, query ? c.query_eps : c.key_eps, c.head_dim, x);
        for (long j = 0; j < c.half; j += W) {
          long n = std::min<long>(W, c.half - j);
          F a = load_part(x + j, n), b = load_part(x + c.half + j, n);
          F cos = load_part(c.cos + t * c.half + j, n), sin = load_part(c.sin + t * c.half + j, n);
          store_part(x + j, a * cos - b * sin, n);
          store_part(x + c.half + j, b * cos + a * sin, n);
        }
      }
  });
}

void compute(const AttendCall& c) {
  Layer layer{c.query, c.query_stride, c.key, c.value, c.key_stride, c.step->kv + c.place * c.step->layer_stride,
              c.out, c.scale, c.softcap, c.window};
  long group = c.step->heads / c.step->kv_heads;
  c.coarse ? Attention<HAS_BF16>{*c.step, layer, group}.run() : Attention<false>{*c.step, layer, group}.run();
}

void compute(const NormCall& c, long rows) {
  split(rows, c.width * 4, [&](long begin, long end) {
    static thread_local Scratch<float> scratch;
    float* row = c.add ? scratch.get(c.width) : nullptr;
    for (long i = begin; i < end; ++i) {
      float* to = c.out + i * c.width;
      norm_row(c.x + i * c.width, c.weight, c.eps, c.width, c.add ? row : to);
      if (!c.add) continue;
      for (long j = 0; j < c.width; j += W) {
        long n = std::min<long>(W, c.width - j);
        store_part(to + j, load_part(to + j, n) + load_part(row + j, n), n);
      }
    }
  });
}

void compute(const CopyCall& c, long rows) {
  split(rows, c.width, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) std::memcpy(c.out + i * c.stride, c.x + i * c.width, c.width * sizeof(float));
  });
}

void compute(const Operation& o) {
  switch (o.kind) {
    case Operation::LINEAR: return compute(o.linear, o.rows);
    case Operation::ROTATE: return compute(o.rotate, o.rows);
    case Operation::ATTEND: return compute(o.attend);
    case Operation::NORM: return compute(o.norm, o.rows);
    case Operation::COPY: return compute(o.copy, o.rows);
  }
}

}  // namespace
