//===- Attention.cpp - the meaning of attention, in f64 -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Reference/Attention.h"

#include "Rows.h"
#include "Sequences.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace mlir::diffattn::reference;

static std::string shapeOf(const View &view) {
  std::string text = "[";
  for (int64_t axis = 0; axis < view.rank(); ++axis)
    text += (axis ? "," : "") + std::to_string(view.sizes[axis]);
  return text + "]";
}

std::string mlir::diffattn::reference::check(const AttentionArguments &a) {
  if (hasTables(a))
    return checkWithTables(a);
  std::string error;
  auto require = [&](bool holds, const std::string &expected,
                     const std::string &got) {
    if (!holds && error.empty())
      error = "expected " + expected + ", but got " + got;
  };
  for (const View *view : operandsOfMaps(a))
    require(view->rank() == 4, "q1, k1, q2, k2 and v of rank 4",
            shapeOf(*view));
  if (!error.empty())
    return error;
  int64_t batch = a.q1.sizes[0], hs = a.q1.sizes[1], tq = a.q1.sizes[2],
          d = a.q1.sizes[3];
  int64_t hn = a.noiseHeads(), hk1 = a.k1.sizes[1], hv = a.v.sizes[1];
  int64_t tk = a.k1.sizes[2], dv = a.v.sizes[3];
  auto shape = [&](const char *name, const View &view,
                   std::vector<int64_t> sizes) {
    View expected(nullptr, view.element, std::move(sizes));
    require(view.sizes == expected.sizes,
            std::string(name) + " of shape " + shapeOf(expected),
            shapeOf(view));
  };
  if (a.hasSecondMap()) {
    shape("q2", a.q2, {batch, hn, tq, d});
    shape("k2", a.k2, {batch, a.k2.sizes[1], tk, d});
  }
  shape("k1", a.k1, {batch, hk1, tk, d});
  shape("v", a.v, {batch, hv, tk, dv});
  auto divides = [&](const char *name, int64_t part, const char *wholeName,
                     int64_t whole) {
    require(part > 0 && whole % part == 0,
            std::string("heads of ") + name + " to divide heads of " +
                wholeName,
            std::to_string(part) + " and " + std::to_string(whole));
  };
  divides("q2", hn, "q1", hs);
  divides("k1", hk1, "q1", hs);
  if (a.hasSecondMap())
    divides("k2", a.k2.sizes[1], "q2", hn);
  divides("v", hv, "q1", hs);
  if (!a.hasSecondMap())
    require(!a.lambda && !a.lambdaSigmoid && !a.integral,
            "neither lambda nor integral with one map", "one");
  else if (a.lambda.rank() == 1)
    shape("lambda", a.lambda, {hs});
  else if (a.lambda.rank() == 3)
    shape("lambda", a.lambda, {batch, tq, a.lambda.sizes[2] == hs ? hs : hn});
  else
    require(a.lambda.rank() == 0 && a.lambda.data, "lambda of rank 0, 1 or 3",
            shapeOf(a.lambda));
  if (a.bias)
    require(a.bias.rank() == 4 &&
                (a.bias.sizes[0] == 1 || a.bias.sizes[0] == batch) &&
                (a.bias.sizes[1] == 1 || a.bias.sizes[1] == hn) &&
                (a.bias.sizes[2] == 1 || a.bias.sizes[2] == tq) &&
                a.bias.sizes[3] == tk,
            "bias of shape [1|B,1|Hn,1|Tq,Tk]", shapeOf(a.bias));
  if (a.sink)
    shape("sink", a.sink, {hs});
  if (a.sink2)
    shape("sink2", a.sink2, {hn});
  require(!a.sink2 || a.hasSecondMap(), "two maps with sink2", "one");
  require((!a.sink && !a.sink2) || !a.integral, "no sinks with integral",
          "both");
  if (a.normWeight)
    shape("norm_weight", a.normWeight, {dv});
  if (a.gate)
    shape("gate", a.gate, {batch, hs, tq, dv});
  if (a.kvLen)
    shape("kv_len", a.kvLen, {batch});
  if (a.qOffset)
    shape("q_offset", a.qOffset, {batch});
  require(a.qSegments.rank() == a.kvSegments.rank(),
          "q_segments and kv_segments together", "one of them");
  if (a.qSegments.rank()) {
    shape("q_segments", a.qSegments, {batch, tq});
    shape("kv_segments", a.kvSegments, {batch, tk});
  }
  return error;
}

static double largestWeight(const std::vector<double> &weights) {
  double largest = 0.0;
  for (double weight : weights)
    largest = std::max(largest, weight);
  return largest;
}

/// a + b, or the end of the range that the sum lies beyond.
static int64_t saturatingAdd(int64_t a, int64_t b) {
  constexpr int64_t lowest = std::numeric_limits<int64_t>::min(),
                    highest = std::numeric_limits<int64_t>::max();
  if (b >= 0)
    return std::min(a, highest - b) + b;
  return std::max(a, lowest - b) + b;
}

bool mlir::diffattn::reference::isVisible(const AttentionArguments &a,
                                          int64_t b, int64_t group, int64_t i,
                                          int64_t j, double &bias) {
  int64_t tq = a.q1.sizes[2], tk = a.k1.sizes[2];
  int64_t length =
      a.kvLen ? a.kvLen.integerAt({b}) : saturatingAdd(a.keyOffset, tk);
  int64_t offset =
      a.qOffset ? a.qOffset.integerAt({b}) : saturatingAdd(length, -tq);
  // From the query's own number to the key's; the offset joins the limits.
  int64_t position = saturatingAdd(a.keyOffset, j), distance = position - i;
  bias = 0.0;
  if (position >= length || (a.isCausal && distance > offset) ||
      (a.left >= 0 && distance < saturatingAdd(offset, -a.left)) ||
      (a.right >= 0 && distance > saturatingAdd(offset, a.right)))
    return false;
  if (a.qSegments.rank() &&
      a.qSegments.integerAt({b, i}) != a.kvSegments.integerAt({b, j}))
    return false;
  if (!a.bias)
    return true;
  double element =
      a.bias.at({a.bias.sizes[0] == 1 ? 0 : b, a.bias.sizes[1] == 1 ? 0 : group,
                 a.bias.sizes[2] == 1 ? 0 : i, j});
  if (a.bias.element == Element::Bool)
    return element != 0.0;
  bias = element;
  return element != -kInf;
}

/// Carries the magnitude of a row `x` of width `dv` through norm, weight, scale
/// and gate.
static void finishMagnitude(const AttentionArguments &a, int64_t b, int64_t s,
                            int64_t i, const std::vector<double> &x,
                            double *magnitudes) {
  const auto dv = static_cast<int64_t>(x.size());
  const double magnitudeRms = rootMeanSquare(magnitudes, dv),
               rms = rootMeanSquare(x.data(), dv), root = normRoot(a, x);
  for (int64_t c = 0; c < dv; ++c) {
    double &magnitude = magnitudes[c];
    if (a.rmsNorm && magnitude != 0.0) {
      // An error of the row reaches y = x / root directly and through the root.
      const double spread =
          rms > 0.0 ? std::fabs(x[c]) / root * magnitudeRms : 0.0;
      magnitude = (magnitude + spread) / root;
    }
    magnitude *= std::fabs(outputFactor(a, b, s, i, c));
  }
}

namespace {
/// Mean of map 1's product with the values over all rows, and means of its
/// magnitudes.
struct MeanRow {
  std::vector<double> values, magnitudes, flatMagnitudes;
};
} // namespace

static MeanRow meanRow(const AttentionArguments &a, int64_t b, int64_t s) {
  int64_t hs = a.q1.sizes[1], tq = a.q1.sizes[2], hn = a.q2.sizes[1],
          tk = a.k1.sizes[2], dv = a.v.sizes[3];
  const std::vector<double> zeros(dv, 0.0);
  MeanRow mean{zeros, zeros, zeros};
  std::vector<bool> visible(tk);
  std::vector<double> bias(tk), values;
  for (int64_t i = 0; i < tq; ++i) {
    for (int64_t j = 0; j < tk; ++j)
      visible[j] = isVisible(a, b, s / (hs / hn), i, j, bias[j]);
    MapRow map =
        mapRow(a, a.q1, a.k1, b, s, s / (hs / a.k1.sizes[1]), i, visible, bias);
    const double largest = largestWeight(map.weights) / static_cast<double>(tq);
    for (int64_t j = 0; j < tk; ++j) {
      if (!visible[j])
        continue;
      readRow(a.v, b, s / (hs / a.v.sizes[1]), j, values);
      for (int64_t c = 0; c < dv; ++c) {
        double product = map.weights[j] * values[c] / static_cast<double>(tq);
        mean.values[c] += product;
        mean.magnitudes[c] += std::fabs(product);
        mean.flatMagnitudes[c] += largest * std::fabs(values[c]);
      }
    }
  }
  return mean;
}

AttentionResult
mlir::diffattn::reference::attention(const AttentionArguments &a) {
  if (hasTables(a))
    return attentionWithTables(a);
  int64_t batch = a.q1.sizes[0], hs = a.q1.sizes[1], tq = a.q1.sizes[2];
  int64_t hn = a.noiseHeads(), tk = a.k1.sizes[2], dv = a.v.sizes[3];
  int64_t perKey1 = hs / a.k1.sizes[1];
  int64_t perNoise = hs / hn, perValue = hs / a.v.sizes[1];
  AttentionResult result;
  result.output.assign(batch * hs * tq * dv, 0.0);
  result.magnitude = result.flatMagnitude = result.output;
  result.x = result.xMagnitude = result.xFlatMagnitude = result.output;
  if (a.hasSecondMap())
    result.o2 = result.o2Magnitude = result.o2FlatMagnitude = result.output;
  std::vector<bool> visible(tk);
  std::vector<double> bias(tk), values;

  for (int64_t b = 0; b < batch; ++b)
    for (int64_t s = 0; s < hs; ++s) {
      MeanRow mean;
      if (a.integral)
        mean = meanRow(a, b, s);
      for (int64_t i = 0; i < tq; ++i) {
        int64_t group = s / perNoise;
        double largestBias = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < tk; ++j) {
          visible[j] = isVisible(a, b, group, i, j, bias[j]);
          if (visible[j])
            largestBias = std::max(largestBias, bias[j]);
        }
        result.largestBias.push_back(largestBias);
        MapRow map1 =
            mapRow(a, a.q1, a.k1, b, s, s / perKey1, i, visible, bias, a.sink);
        result.lse1.push_back(map1.lse);
        // Without a second map, one of zeros.
        MapRow map2;
        map2.weights.assign(tk, 0.0);
        double lambda = 0.0;
        if (a.hasSecondMap()) {
          const int64_t perKey2 = hn / a.k2.sizes[1];
          map2 = mapRow(a, a.q2, a.k2, b, group, group / perKey2, i, visible,
                        bias, a.sink2);
          if (s % perNoise == 0)
            result.lse2.push_back(map2.lse);
          lambda = lambdaAt(a, b, s, group, i);
        }
        result.scoreMagnitude = std::max(
            {result.scoreMagnitude, map1.scoreMagnitude, map2.scoreMagnitude});
        const int64_t row = ((b * hs + s) * tq + i) * dv;
        double *x = &result.output[row], *magnitude = &result.magnitude[row],
               *flat = &result.flatMagnitude[row];
        const double largest2 = largestWeight(map2.weights),
                     largest = largestWeight(map1.weights) +
                               std::fabs(lambda) * largest2;
        for (int64_t j = 0; j < tk; ++j) {
          if (!visible[j])
            continue;
          double weight = map1.weights[j] - lambda * map2.weights[j];
          double absolute =
              map1.weights[j] + std::fabs(lambda) * map2.weights[j];
          readRow(a.v, b, s / perValue, j, values);
          for (int64_t c = 0; c < dv; ++c) {
            double value = values[c];
            if (a.hasSecondMap()) {
              result.o2[row + c] += map2.weights[j] * value;
              result.o2Magnitude[row + c] += map2.weights[j] * std::fabs(value);
              result.o2FlatMagnitude[row + c] += largest2 * std::fabs(value);
            }
            x[c] += weight * value;
            magnitude[c] += absolute * std::fabs(value);
            flat[c] += largest * std::fabs(value);
          }
        }
        for (int64_t c = 0; a.integral && c < dv; ++c) {
          x[c] += lambda * mean.values[c];
          magnitude[c] += std::fabs(lambda) * mean.magnitudes[c];
          flat[c] += std::fabs(lambda) * mean.flatMagnitudes[c];
        }
        std::copy_n(x, dv, &result.x[row]);
        std::copy_n(magnitude, dv, &result.xMagnitude[row]);
        std::copy_n(flat, dv, &result.xFlatMagnitude[row]);
        const std::vector<double> before(x, x + dv);
        finishMagnitude(a, b, s, i, before, magnitude);
        finishMagnitude(a, b, s, i, before, flat);
        const std::vector<double> end = finishRow(a, b, s, i, before);
        std::copy(end.begin(), end.end(), x);
      }
    }
  return result;
}

double mlir::diffattn::reference::errorBound(Element element, int64_t headDim,
                                             int64_t keys,
                                             double scoreMagnitude) {
  const double f32 = std::ldexp(1.0, -24);
  double out = 0.0;
  if (element == Element::F32)
    out = f32;
  else if (element == Element::F16)
    out = std::ldexp(1.0, -11);
  else if (element == Element::BF16)
    out = std::ldexp(1.0, -8);
  // Rounding of the result or of the weights; of the scores, which the
  // exponential turns into a relative error of the weights; of the sums over
  // the keys; and a few operations an element (exponential, division,
  // epilogue).
  return 2.0 * out +
         f32 *
             (4.0 * std::sqrt(static_cast<double>(headDim)) *
                  std::max(scoreMagnitude, 1.0) +
              2.0 * std::sqrt(static_cast<double>(std::max<int64_t>(keys, 1))) +
              16.0);
}

double mlir::diffattn::reference::subnormalError(Element element) {
  switch (element) {
  case Element::F64:
    return 0.0; // 2^-1075, which f64 does not hold
  case Element::F32:
    return std::ldexp(1.0, -150);
  case Element::F16:
    return std::ldexp(1.0, -25);
  case Element::BF16:
    return std::ldexp(1.0, -134);
  case Element::I64:
  case Element::Bool:
    break;
  }
  return 0.0;
}
