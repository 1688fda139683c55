//===- Rows.cpp - rows of maps, in f64 ------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Rows.h"

#include <algorithm>
#include <cmath>

using namespace mlir::diffattn::reference;

double mlir::diffattn::reference::sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

std::vector<const View *>
mlir::diffattn::reference::operandsOfMaps(const AttentionArguments &a) {
  if (a.q2 || a.k2)
    return {&a.q1, &a.k1, &a.q2, &a.k2, &a.v};
  return {&a.q1, &a.k1, &a.v};
}

void mlir::diffattn::reference::readRow(const View &view, int64_t b,
                                        int64_t head, int64_t i,
                                        std::vector<double> &row) {
  const int64_t bytes = byteSize(view.element);
  const char *from =
      static_cast<const char *>(view.data) +
      (b * view.strides[0] + head * view.strides[1] + i * view.strides[2]) *
          bytes;
  row.resize(view.sizes[3]);
  for (double &element : row) {
    element = load(view.element, from);
    from += view.strides[3] * bytes;
  }
}

MapRow mlir::diffattn::reference::mapRow(
    const AttentionArguments &a, const View &q, const View &k, int64_t b,
    int64_t head, int64_t keyHead, int64_t i, const std::vector<bool> &visible,
    const std::vector<double> &bias, const View &sink) {
  int64_t tk = k.sizes[2], d = q.sizes[3];
  MapRow row;
  row.weights.assign(tk, 0.0);
  row.scores = row.weights;
  row.logits.assign(tk, -kInf);
  std::vector<double> query, key;
  readRow(q, b, head, i, query);
  double max = -kInf;
  for (int64_t j = 0; j < tk; ++j) {
    if (!visible[j])
      continue;
    readRow(k, b, keyHead, j, key);
    double dot = 0.0, magnitude = 0.0;
    for (int64_t x = 0; x < d; ++x) {
      double product = query[x] * key[x];
      dot += product;
      magnitude += std::fabs(product);
    }
    double score = a.scale * dot;
    row.scoreMagnitude =
        std::max(row.scoreMagnitude, std::fabs(a.scale) * magnitude);
    if (a.softcap)
      score = *a.softcap * std::tanh(score / *a.softcap);
    row.scores[j] = score;
    row.logits[j] = score + bias[j];
    // A NaN stays the maximum, so that it reaches the whole row.
    if (!std::isnan(max) && !(row.logits[j] <= max))
      max = row.logits[j];
  }
  const bool hasKeys = max != -kInf;
  double sum = 0.0;
  if (sink && hasKeys) {
    const double score = sink.at({head});
    if (!(score <= max))
      max = score;
    sum = score == -kInf ? 0.0 : std::exp(score - max);
  }
  for (int64_t j = 0; j < tk; ++j) {
    if (!visible[j])
      continue;
    row.weights[j] =
        row.logits[j] == -kInf ? 0.0 : std::exp(row.logits[j] - max);
    sum += row.weights[j];
  }
  // A row that sees no key is a row of zeros.
  if (sum != 0.0)
    for (double &weight : row.weights)
      weight /= sum;
  if (hasKeys)
    row.lse = max + std::log(sum);
  return row;
}

MapRow mlir::diffattn::reference::mapRow(const AttentionArguments &a, int map,
                                         int64_t b, int64_t head, int64_t i,
                                         int64_t firstKey, int64_t endKey) {
  const View &q = map ? a.q2 : a.q1, &k = map ? a.k2 : a.k1;
  const int64_t heads = q.sizes[1], tk = k.sizes[2],
                group = head / (heads / a.noiseHeads());
  std::vector<bool> visible(tk);
  std::vector<double> bias(tk);
  for (int64_t j = std::max<int64_t>(0, firstKey); j < std::min(endKey, tk);
       ++j)
    visible[j] = isVisible(a, b, group, i, j, bias[j]);
  return mapRow(a, q, k, b, head, head / (heads / k.sizes[1]), i, visible, bias,
                map ? a.sink2 : a.sink);
}

double mlir::diffattn::reference::lambdaAt(const AttentionArguments &a,
                                           int64_t b, int64_t s, int64_t group,
                                           int64_t i) {
  double lambda;
  if (a.lambda.rank() == 0)
    lambda = a.lambda.at({});
  else if (a.lambda.rank() == 1)
    lambda = a.lambda.at({s});
  else
    lambda =
        a.lambda.at({b, i, a.lambda.sizes[2] == a.q1.sizes[1] ? s : group});
  return a.lambdaSigmoid ? sigmoid(lambda) : lambda;
}

double mlir::diffattn::reference::outputFactor(const AttentionArguments &a,
                                               int64_t b, int64_t s, int64_t i,
                                               int64_t c) {
  double factor = a.outScale;
  if (a.normWeight)
    factor *= a.normWeight.at({c});
  if (a.gate)
    factor *= sigmoid(a.gate.at({b, s, i, c}));
  return factor;
}

double mlir::diffattn::reference::normRoot(const AttentionArguments &a,
                                           const std::vector<double> &x) {
  if (!a.rmsNorm)
    return 1.0;
  const double rms = rootMeanSquare(x.data(), static_cast<int64_t>(x.size()));
  return a.epsOutside ? rms + a.normEps : std::sqrt(rms * rms + a.normEps);
}

std::vector<double>
mlir::diffattn::reference::finishRow(const AttentionArguments &a, int64_t b,
                                     int64_t s, int64_t i,
                                     const std::vector<double> &x) {
  const double root = normRoot(a, x);
  std::vector<double> row(x.size());
  // A row of zeros stays one, also where eps is 0.
  for (size_t c = 0; c < x.size(); ++c)
    row[c] = (x[c] == 0.0 ? 0.0 : x[c] / root) *
             outputFactor(a, b, s, i, static_cast<int64_t>(c));
  return row;
}

double mlir::diffattn::reference::rootMeanSquare(const double *x, int64_t n) {
  double sum = 0.0;
  for (int64_t c = 0; c < n; ++c)
    sum += x[c] * x[c];
  return std::sqrt(sum / static_cast<double>(n));
}
