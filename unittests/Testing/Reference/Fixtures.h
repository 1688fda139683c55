//===- Fixtures.h - inputs of the golden vectors ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Element i of the input with tag t is sin(0.7 (i + 1) + t); inputs are stored
// token by token, [T][heads * width], with one batch.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_REFERENCE_FIXTURES_H
#define DIFFATTN_UNITTESTS_TESTING_REFERENCE_FIXTURES_H

#include "DiffAttn/Testing/Reference/Attention.h"

#include <cmath>
#include <deque>
#include <functional>
#include <limits>

namespace fixtures {
using namespace mlir::diffattn::reference;

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kTagQ = 0.1, kTagK = 0.2, kTagV = 0.3, kTagNorm = 0.8,
                 kTagLambda = 0.5, kTagGate = 0.6;

inline double wave(int64_t i, double tag) {
  return std::sin(0.7 * static_cast<double>(i + 1) + tag);
}

/// Owns the memory of views.
class Pool {
public:
  /// A dense array of the given sizes filled by `f` of the flat index.
  View make(std::vector<int64_t> sizes,
            const std::function<double(int64_t)> &f) {
    int64_t count = 1;
    for (int64_t size : sizes)
      count *= size;
    std::vector<double> &data =
        storage.emplace_back(std::max<int64_t>(count, 1));
    for (int64_t i = 0; i < count; ++i)
      data[i] = f(i);
    return View(data.data(), Element::F64, std::move(sizes));
  }
  /// [1][heads][T][width] of an input with `tag` stored token by token.
  View heads(int64_t tokens, int64_t heads, int64_t width, double tag) {
    return make({1, tokens, heads, width},
                [&](int64_t i) { return wave(i, tag); })
        .transposed(1, 2);
  }
  View scalar(double value) {
    return make({}, [&](int64_t) { return value; });
  }
  View integers(std::vector<int64_t> values) {
    std::vector<int64_t> &data = indices.emplace_back(std::move(values));
    return View(data.data(), Element::I64, {static_cast<int64_t>(data.size())});
  }
  /// The heads of `view` in the order of `order`, copied.
  View gather(const View &view, const std::vector<int64_t> &order) {
    int64_t t = view.sizes[2], w = view.sizes[3],
            n = static_cast<int64_t>(order.size());
    return make({1, n, t, w}, [&](int64_t i) {
      return view.at({0, order[i / (t * w)], i / w % t, i % w});
    });
  }
  /// Heads a[i] and b[i] of `view` side by side as one head of twice the width.
  View joined(const View &view, const std::vector<int64_t> &a,
              const std::vector<int64_t> &b) {
    int64_t t = view.sizes[2], w = view.sizes[3],
            n = static_cast<int64_t>(a.size());
    return make({1, n, t, 2 * w}, [&](int64_t i) {
      int64_t head = i / (2 * w * t), x = i % (2 * w);
      return view.at({0, x < w ? a[head] : b[head], i / (2 * w) % t, x % w});
    });
  }
  View normWeight(int64_t width) {
    return make({width},
                [](int64_t i) { return 1.0 + 0.1 * wave(i, kTagNorm); });
  }

private:
  std::deque<std::vector<double>> storage;
  std::deque<std::vector<int64_t>> indices;
};

/// Every second head, from `first` on.
inline View everySecond(const View &view, int64_t first) {
  return view.sliced(1, first, view.sizes[1] / 2, 2);
}

inline double lambdaInit(double depth) {
  return 0.8 - 0.6 * std::exp(-0.3 * depth);
}

/// exp(q1.k1) - exp(q2.k2) + lambda_init with vectors of 0.1 times the wave.
inline double reparam(int64_t d, double depth) {
  double dot1 = 0.0, dot2 = 0.0;
  for (int64_t i = 0; i < d; ++i) {
    dot1 += 0.01 * wave(i, 0.4) * wave(i, 0.5);
    dot2 += 0.01 * wave(i, 0.6) * wave(i, 0.7);
  }
  return std::exp(dot1) - std::exp(dot2) + lambdaInit(depth);
}

/// Adjacent heads of width d paired, V of width 2d, normed: the V1 form.
inline AttentionArguments v1(Pool &pool, int64_t tokens, int64_t heads,
                             int64_t kvHeads, int64_t d, double depth) {
  AttentionArguments a;
  View q = pool.heads(tokens, 2 * heads, d, kTagQ),
       k = pool.heads(tokens, 2 * kvHeads, d, kTagK);
  a.q1 = everySecond(q, 0);
  a.q2 = everySecond(q, 1);
  a.k1 = everySecond(k, 0);
  a.k2 = everySecond(k, 1);
  a.v = pool.heads(tokens, kvHeads, 2 * d, kTagV);
  a.lambda = pool.scalar(reparam(d, depth));
  a.normWeight = pool.normWeight(2 * d);
  a.scale = 1.0 / std::sqrt(static_cast<double>(d));
  a.isCausal = a.rmsNorm = true;
  a.outScale = 1.0 - lambdaInit(depth);
  return a;
}

/// `groups` groups of r signal heads and one noise head over shared keys.
inline AttentionArguments grouped(Pool &pool, int64_t tokens, int64_t groups,
                                  int64_t r, int64_t d, int64_t dv,
                                  int64_t lambdaHeads) {
  AttentionArguments a;
  View q = pool.heads(tokens, groups * (r + 1), d, kTagQ);
  std::vector<int64_t> signal, noise;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < r; ++i)
      signal.push_back(g * (r + 1) + i);
    noise.push_back(g * (r + 1) + r);
  }
  a.q1 = pool.gather(q, signal);
  a.q2 = pool.gather(q, noise);
  a.k1 = a.k2 = pool.heads(tokens, groups, d, kTagK);
  a.v = pool.heads(tokens, groups, dv, kTagV);
  a.lambda = pool.make({1, tokens, lambdaHeads},
                       [](int64_t i) { return wave(i, kTagLambda); });
  a.lambdaSigmoid = true;
  a.scale = 1.0 / std::sqrt(static_cast<double>(d));
  a.isCausal = true;
  return a;
}

/// Microsoft's V2: adjacent query heads, shared keys, lambda per token and
/// head.
inline AttentionArguments v2(Pool &pool, int64_t tokens, int64_t heads,
                             int64_t kvHeads, int64_t d) {
  AttentionArguments a;
  View q = pool.heads(tokens, 2 * heads, d, kTagQ);
  a.q1 = everySecond(q, 0);
  a.q2 = everySecond(q, 1);
  a.k1 = a.k2 = pool.heads(tokens, kvHeads, d, kTagK);
  a.v = pool.heads(tokens, kvHeads, d, kTagV);
  a.lambda = pool.make({1, tokens, heads},
                       [](int64_t i) { return wave(i, kTagLambda); });
  a.lambdaSigmoid = true;
  a.scale = 1.0 / std::sqrt(static_cast<double>(d));
  a.isCausal = true;
  return a;
}

/// The result token by token, head by head: the order of the golden vectors.
inline std::vector<double> tokenMajor(const AttentionArguments &a,
                                      const AttentionResult &r) {
  int64_t h = a.q1.sizes[1], t = a.q1.sizes[2], w = a.v.sizes[3];
  std::vector<double> out(r.output.size());
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i)
    out[((i / w % t) * h + i / (w * t)) * w + i % w] = r.output[i];
  return out;
}

inline std::vector<double> run(const AttentionArguments &a) {
  return tokenMajor(a, attention(a));
}

} // namespace fixtures

#endif // DIFFATTN_UNITTESTS_TESTING_REFERENCE_FIXTURES_H
