//===- AttentionBackward.cpp - gradients of attention, in f64 -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Reference/AttentionBackward.h"

#include "Rows.h"
#include "Sequences.h"

#include <cmath>

using namespace mlir::diffattn::reference;

namespace {
/// A product that is added up, with its magnitude.
struct Dot {
  double value = 0.0, magnitude = 0.0;
};

/// Numbers, and what their errors are judged against.
struct Row : Gradient {
  explicit Row(int64_t size)
      : Gradient{std::vector<double>(size, 0.0),
                 std::vector<double>(size, 0.0)} {}
  void add(int64_t index, double value, double magnitude) {
    values[index] += value;
    magnitudes[index] += std::fabs(magnitude);
  }
};

/// The backward pass of one query at a time, whose terms are added to all
/// gradients.
class RowBackward {
public:
  RowBackward(const AttentionArguments &arguments, const View &dOut,
              AttentionGradients &gradients)
      : a(arguments), dOut(dOut), gradients(gradients), batch(a.q1.sizes[0]),
        hs(a.q1.sizes[1]), tq(a.q1.sizes[2]), d(a.q1.sizes[3]),
        hn(a.noiseHeads()), tk(a.k1.sizes[2]), dv(a.v.sizes[3]), visible(tk),
        bias(tk) {}

  /// Query `i` of the signal heads that noise head `group` serves.
  void run(int64_t b, int64_t group, int64_t i);

private:
  /// A row of the difference of the maps; of map 1 where it is the only one.
  Row difference(double lambda, const MapRow &map1, const MapRow &map2) const;
  /// X of a row before the norm, of its `weights`.
  Row output(int64_t b, int64_t s, const Row &weights) const;
  /// Adds dS of a map to the gradients of its queries and keys, and of a bias.
  void addScores(const Row &dZ, const MapRow &map, const View &q, const View &k,
                 Gradient &dq, Gradient &dk, int64_t b, int64_t head,
                 int64_t keyHead, int64_t group, int64_t i);

  const AttentionArguments &a;
  const View &dOut;
  AttentionGradients &gradients;
  int64_t batch, hs, tq, d, hn, tk, dv;
  std::vector<bool> visible;
  std::vector<double> bias;
};
} // namespace

static void add(Gradient &gradient, int64_t index, double value,
                double magnitude) {
  gradient.values[index] += value;
  gradient.magnitudes[index] += std::fabs(magnitude);
}

Row RowBackward::difference(double lambda, const MapRow &map1,
                            const MapRow &map2) const {
  Row weights(tk);
  for (int64_t j = 0; j < tk; ++j) {
    if (!visible[j])
      continue;
    weights.add(j, map1.weights[j], map1.weights[j]);
    if (a.hasSecondMap())
      weights.add(j, -lambda * map2.weights[j], lambda * map2.weights[j]);
  }
  return weights;
}

Row RowBackward::output(int64_t b, int64_t s, const Row &weights) const {
  Row x(dv);
  std::vector<double> values;
  for (int64_t j = 0; j < tk; ++j) {
    if (!visible[j])
      continue;
    readRow(a.v, b, s / (hs / a.v.sizes[1]), j, values);
    for (int64_t c = 0; c < dv; ++c)
      x.add(c, weights.values[j] * values[c],
            weights.magnitudes[j] * values[c]);
  }
  return x;
}

Gradient mlir::diffattn::reference::finishRowBackward(
    const AttentionArguments &a, const View &dOut, int64_t b, int64_t s,
    int64_t i, const Gradient &x, AttentionGradients &gradients) {
  const int64_t hs = a.q1.sizes[1], tq = a.q1.sizes[2],
                dv = static_cast<int64_t>(x.values.size());
  const double rho = normRoot(a, x.values),
               slope = a.rmsNorm && a.epsOutside
                           ? rootMeanSquare(x.values.data(), dv)
                           : rho,
               magnitudeRms =
                   a.rmsNorm ? rootMeanSquare(x.magnitudes.data(), dv) : 0.0;
  auto divided = [](double value, double by) {
    return by == 0.0 ? 0.0 : value / by;
  };
  // Errors to first order, as of the output: an error of the row reaches what
  // is divided by its root through that too.
  auto dividedMagnitude = [&](double value, double magnitude, double by) {
    return divided(magnitude + divided(std::fabs(value) * magnitudeRms, by),
                   by);
  };
  Row dn(dv), n(dv), dX(dv);
  Dot mean;
  for (int64_t c = 0; c < dv; ++c) {
    n.add(c, divided(x.values[c], rho),
          dividedMagnitude(x.values[c], x.magnitudes[c], rho));
    const double weight =
        a.outScale * (a.normWeight ? a.normWeight.at({c}) : 1.0);
    double dU = dOut.at({b, s, i, c});
    if (a.gate) {
      const double gate = sigmoid(a.gate.at({b, s, i, c}));
      const double gateSlope = dU * weight * gate * (1.0 - gate);
      add(gradients.gate, ((b * hs + s) * tq + i) * dv + c,
          gateSlope * n.values[c], gateSlope * n.magnitudes[c]);
      dU *= gate;
    }
    if (a.normWeight)
      add(gradients.normWeight, c, a.outScale * dU * n.values[c],
          a.outScale * dU * n.magnitudes[c]);
    dn.add(c, weight * dU, weight * dU);
    mean.value += dn.values[c] * n.values[c] / static_cast<double>(dv);
    mean.magnitude +=
        dn.magnitudes[c] * n.magnitudes[c] / static_cast<double>(dv);
  }
  if (!a.rmsNorm)
    return dn;
  for (int64_t c = 0; c < dv; ++c) {
    const double along = n.values[c] * mean.value;
    dX.add(c, divided(dn.values[c], rho) - divided(along, slope),
           dividedMagnitude(dn.values[c], dn.magnitudes[c], rho) +
               dividedMagnitude(along,
                                n.magnitudes[c] * std::fabs(mean.value) +
                                    std::fabs(n.values[c]) * mean.magnitude,
                                slope));
  }
  return dX;
}

void RowBackward::addScores(const Row &dZ, const MapRow &map, const View &q,
                            const View &k, Gradient &dq, Gradient &dk,
                            int64_t b, int64_t head, int64_t keyHead,
                            int64_t group, int64_t i) {
  std::vector<double> query, key;
  readRow(q, b, head, i, query);
  const int64_t row = ((b * q.sizes[1] + head) * tq + i) * d;
  for (int64_t j = 0; j < tk; ++j) {
    if (!visible[j])
      continue;
    if (!gradients.bias.values.empty()) {
      const std::vector<int64_t> &sizes = a.bias.sizes;
      const int64_t at =
          (((sizes[0] == 1 ? 0 : b) * sizes[1] + (sizes[1] == 1 ? 0 : group)) *
               sizes[2] +
           (sizes[2] == 1 ? 0 : i)) *
              tk +
          j;
      add(gradients.bias, at, dZ.values[j], dZ.magnitudes[j]);
    }
    double slope = a.scale;
    if (a.softcap) {
      const double capped = map.scores[j] / *a.softcap;
      slope *= 1.0 - capped * capped;
    }
    readRow(k, b, keyHead, j, key);
    const int64_t keyRow = ((b * k.sizes[1] + keyHead) * tk + j) * d;
    for (int64_t x = 0; x < d; ++x) {
      add(dq, row + x, slope * dZ.values[j] * key[x],
          slope * dZ.magnitudes[j] * key[x]);
      add(dk, keyRow + x, slope * dZ.values[j] * query[x],
          slope * dZ.magnitudes[j] * query[x]);
    }
  }
}

void mlir::diffattn::reference::addLambdaGradient(
    const AttentionArguments &a, int64_t b, int64_t s, int64_t i, double d2,
    double magnitude, AttentionGradients &gradients) {
  const int64_t hs = a.q1.sizes[1], tq = a.q1.sizes[2],
                group = s / (hs / a.noiseHeads());
  const double lambda = lambdaAt(a, b, s, group, i);
  int64_t at = 0;
  if (a.lambda.rank() == 1)
    at = s;
  else if (a.lambda.rank() == 3)
    at = (b * tq + i) * a.lambda.sizes[2] +
         (a.lambda.sizes[2] == hs ? s : group);
  const double slope = a.lambdaSigmoid ? lambda * (1.0 - lambda) : 1.0;
  add(gradients.lambda, at, -slope * d2, slope * magnitude);
}

void RowBackward::run(int64_t b, int64_t group, int64_t i) {
  bool seesAny = false;
  for (int64_t j = 0; j < tk; ++j) {
    visible[j] = isVisible(a, b, group, i, j, bias[j]);
    seesAny |= visible[j];
  }
  if (!seesAny)
    return;
  const bool hasSecond = a.hasSecondMap();
  const int64_t perNoise = hs / hn,
                keyHead2 = hasSecond ? group / (hn / a.k2.sizes[1]) : 0;
  MapRow map2;
  if (hasSecond)
    map2 = mapRow(a, a.q2, a.k2, b, group, keyHead2, i, visible, bias);
  Row dZ2(tk);
  std::vector<double> values;
  for (int64_t s = group * perNoise; s < (group + 1) * perNoise; ++s) {
    const int64_t keyHead1 = s / (hs / a.k1.sizes[1]),
                  valueHead = s / (hs / a.v.sizes[1]);
    const MapRow map1 = mapRow(a, a.q1, a.k1, b, s, keyHead1, i, visible, bias);
    const double lambda = hasSecond ? lambdaAt(a, b, s, group, i) : 0.0;
    const Row weights = difference(lambda, map1, map2);
    const Gradient dX =
        finishRowBackward(a, dOut, b, s, i, output(b, s, weights), gradients);
    Row dP(tk), dZ1(tk);
    Dot d1, d2;
    for (int64_t j = 0; j < tk; ++j) {
      if (!visible[j])
        continue;
      readRow(a.v, b, valueHead, j, values);
      const int64_t row = ((b * a.v.sizes[1] + valueHead) * tk + j) * dv;
      for (int64_t c = 0; c < dv; ++c) {
        dP.add(j, dX.values[c] * values[c], dX.magnitudes[c] * values[c]);
        add(gradients.v, row + c, weights.values[j] * dX.values[c],
            weights.magnitudes[j] * dX.magnitudes[c]);
      }
      d1.value += map1.weights[j] * dP.values[j];
      d1.magnitude += map1.weights[j] * dP.magnitudes[j];
      if (!hasSecond)
        continue;
      d2.value += map2.weights[j] * dP.values[j];
      d2.magnitude += map2.weights[j] * dP.magnitudes[j];
    }
    for (int64_t j = 0; j < tk; ++j) {
      if (!visible[j])
        continue;
      dZ1.add(j, map1.weights[j] * (dP.values[j] - d1.value),
              map1.weights[j] * (dP.magnitudes[j] + d1.magnitude));
      if (!hasSecond)
        continue;
      dZ2.add(j, -map2.weights[j] * lambda * (dP.values[j] - d2.value),
              map2.weights[j] * lambda * (dP.magnitudes[j] + d2.magnitude));
    }
    const int64_t row = (b * hs + s) * tq + i;
    add(gradients.d1, row, d1.value, d1.magnitude);
    if (hasSecond) {
      add(gradients.d2, row, d2.value, d2.magnitude);
      addLambdaGradient(a, b, s, i, d2.value, d2.magnitude, gradients);
    }
    addScores(dZ1, map1, a.q1, a.k1, gradients.q1, gradients.k1, b, s, keyHead1,
              group, i);
  }
  if (hasSecond)
    addScores(dZ2, map2, a.q2, a.k2, gradients.q2, gradients.k2, b, group,
              keyHead2, group, i);
}

/// A gradient of zeros of the size of `like`; without elements where it is
/// absent.
static Gradient zeros(const View &like) {
  if (!like)
    return {};
  int64_t count = 1;
  for (int64_t size : like.sizes)
    count *= size;
  return {std::vector<double>(count, 0.0), std::vector<double>(count, 0.0)};
}

/// The shape of a number for each row, without data.
static View getRows(const AttentionArguments &a) {
  return View(nullptr, Element::F64,
              {a.q1.sizes[0], a.q1.sizes[1], a.q1.sizes[2]});
}

/// Adds the gradient of rows `rows` along `axis` of an operand of shape
/// `whole`; that of all of it, which sequences share, where there is no such
/// axis.
static void addRows(Gradient &to, const View &whole, int64_t axis,
                    const SequenceRows &rows, const Gradient &from) {
  int64_t inner = 1, outer = 1;
  const bool isShared = whole.rank() <= axis;
  for (int64_t i = 0; !isShared && i < whole.rank(); ++i)
    if (i != axis)
      (i < axis ? outer : inner) *= whole.sizes[i];
  const int64_t length = isShared ? to.values.size() : whole.sizes[axis],
                first = isShared ? 0 : rows.first,
                count = isShared ? length : rows.count;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < count * inner; ++i) {
      const int64_t at = (o * length + first) * inner + i,
                    part = o * count * inner + i;
      to.values[at] += from.values[part];
      to.magnitudes[at] += from.magnitudes[part];
    }
}

/// Adds the gradients of each of packed sequences, computed alone.
static void addSequences(const AttentionArguments &a, const View &dOut,
                         AttentionGradients &gradients) {
  for (int64_t n = 0; n < countSequences(a); ++n) {
    const PackedSequence one = getPackedSequence(a, n);
    const AttentionGradients part =
        attentionBackward(one.arguments, one.queries.of(dOut, 2));
    addRows(gradients.q1, a.q1, 2, one.queries, part.q1);
    addRows(gradients.k1, a.k1, 2, one.keys, part.k1);
    addRows(gradients.v, a.v, 2, one.keys, part.v);
    if (a.hasSecondMap()) {
      addRows(gradients.q2, a.q2, 2, one.queries, part.q2);
      addRows(gradients.k2, a.k2, 2, one.keys, part.k2);
      addRows(gradients.lambda, a.lambda.rank() == 3 ? a.lambda : View(), 1,
              one.queries, part.lambda);
    }
    if (a.normWeight)
      addRows(gradients.normWeight, View(), 1, one.queries, part.normWeight);
    if (a.gate)
      addRows(gradients.gate, a.gate, 2, one.queries, part.gate);
    addRows(gradients.d1, getRows(a), 2, one.queries, part.d1);
    if (a.hasSecondMap())
      addRows(gradients.d2, getRows(a), 2, one.queries, part.d2);
  }
}

AttentionGradients
mlir::diffattn::reference::zeroGradients(const AttentionArguments &a) {
  AttentionGradients gradients;
  gradients.q1 = zeros(a.q1);
  gradients.k1 = zeros(a.k1);
  gradients.q2 = zeros(a.q2);
  gradients.k2 = zeros(a.k2);
  gradients.v = zeros(a.v);
  gradients.lambda = zeros(a.lambda);
  gradients.normWeight = zeros(a.normWeight);
  gradients.gate = zeros(a.gate);
  if (a.bias && a.bias.element != Element::Bool)
    gradients.bias = zeros(a.bias);
  const int64_t rows = a.q1.sizes[0] * a.q1.sizes[1] * a.q1.sizes[2];
  gradients.d1 = Row(rows);
  if (a.hasSecondMap())
    gradients.d2 = Row(rows);
  return gradients;
}

AttentionGradients
mlir::diffattn::reference::attentionBackward(const AttentionArguments &a,
                                             const View &dOut) {
  AttentionGradients gradients = zeroGradients(a);
  if (isPacked(a)) {
    addSequences(a, dOut, gradients);
    return gradients;
  }
  RowBackward rows(a, dOut, gradients);
  for (int64_t b = 0; b < a.q1.sizes[0]; ++b)
    for (int64_t group = 0; group < a.noiseHeads(); ++group)
      for (int64_t i = 0; i < a.q1.sizes[2]; ++i)
        rows.run(b, group, i);
  return gradients;
}
