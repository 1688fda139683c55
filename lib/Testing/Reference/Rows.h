//===- Rows.h - rows of maps, in f64 ----------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Rows of maps, one at a time, for attention and for its gradients.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_REFERENCE_ROWS_H
#define DIFFATTN_LIB_TESTING_REFERENCE_ROWS_H

#include "DiffAttn/Testing/Reference/Attention.h"

#include <limits>

namespace mlir::diffattn::reference {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// The row of query `i` of `head` over the keys of `keyHead`; `visible` and
/// `bias` have an element for each key, and `sink` for each head; it may be
/// absent.
MapRow mapRow(const AttentionArguments &arguments, const View &q, const View &k,
              int64_t b, int64_t head, int64_t keyHead, int64_t i,
              const std::vector<bool> &visible, const std::vector<double> &bias,
              const View &sink = {});

/// q1, k1, q2, k2 and v as far as they are there.
std::vector<const View *> operandsOfMaps(const AttentionArguments &arguments);

/// The elements of the last axis at [b, head, i].
void readRow(const View &view, int64_t b, int64_t head, int64_t i,
             std::vector<double> &row);

double sigmoid(double x);

/// The factor of column `c` of a row behind its norm: scale, norm weight and
/// gate.
double outputFactor(const AttentionArguments &arguments, int64_t b, int64_t s,
                    int64_t i, int64_t c);

/// The root of the mean of `n` squares.
double rootMeanSquare(const double *x, int64_t n);

} // namespace mlir::diffattn::reference

#endif // DIFFATTN_LIB_TESTING_REFERENCE_ROWS_H
