//===- AttentionBackward.h - gradients of attention, in f64 -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The oracle of `diffattn.attention_backward`: docs/spec.md, computed on the
// host in f64, one row after another. It knows no MLIR types.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_REFERENCE_ATTENTIONBACKWARD_H
#define DIFFATTN_TESTING_REFERENCE_ATTENTIONBACKWARD_H

#include "DiffAttn/Testing/Reference/Attention.h"

namespace mlir::diffattn::reference {

/// A gradient, dense, with the axes of the operand in layout `bhtd`. Without
/// elements where there is no such operand.
struct Gradient {
  std::vector<double> values;
  /// Magnitude that an error of each element is relative to: the sum of the
  /// magnitudes of its terms. Terms cancel, in the difference of the maps and
  /// in that of a weight's gradient and its row's mean, so the gradient itself
  /// may be far smaller.
  std::vector<double> magnitudes;
};

struct AttentionGradients {
  Gradient q1, k1, q2, k2, v, lambda, normWeight, gate;
  /// Empty for a boolean bias too.
  Gradient bias;
  /// [B,Hs,Tq]: each row of map 1, and of map 2, times its gradient before
  /// lambda: the sums of A1 (dX v^T) and A2 (dX v^T). 0 without keys.
  Gradient d1, d2;
};

/// Zeros in the shapes of all that `attentionBackward` computes.
AttentionGradients zeroGradients(const AttentionArguments &arguments);

/// The gradient of the row `x` of `finishRow`, for the gradient `dOut`,
/// [B,Hs,Tq,dv], of the output; the magnitudes of `x` are what its errors are
/// relative to. The parts of the norm weight and of the gate are added to
/// `gradients`. Operands of the maps are not read, but for sizes of q1.
Gradient finishRowBackward(const AttentionArguments &arguments,
                           const View &dOut, int64_t b, int64_t s, int64_t i,
                           const Gradient &x, AttentionGradients &gradients);

/// Adds the part of a row to the gradient of lambda: `d2` is its element of d2,
/// and `magnitude` that of its terms.
void addLambdaGradient(const AttentionArguments &arguments, int64_t b,
                       int64_t s, int64_t i, double d2, double magnitude,
                       AttentionGradients &gradients);

/// The gradients of all operands, for the gradient `dOut`, [B,Hs,Tq,dv], of the
/// output. Where k2 is k1, d_k1 of the op is the sum of both. `check` must have
/// found nothing, and there must be no pages and no `integral`.
AttentionGradients attentionBackward(const AttentionArguments &arguments,
                                     const View &dOut);

} // namespace mlir::diffattn::reference

#endif // DIFFATTN_TESTING_REFERENCE_ATTENTIONBACKWARD_H
