//===- BackwardSpec.h - parameters of a gradient kernel ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_BACKWARDSPEC_H
#define DIFFATTN_LIB_CODEGEN_CPU_BACKWARDSPEC_H

#include "AttentionSpec.h"

namespace mlir::diffattn {

/// The specification of a kernel of gradients. Gradients that are not computed
/// are absent.
struct BackwardSpec {
  /// The operands and rules of attention, without an output; `prefill` has the
  /// tiles of the phases that both kernels share.
  AttentionSpec attention;
  CpuBackwardAttr schedule;
  SpecOperand dOut;
  /// The gradients of queries and keys of map 1 and map 2.
  SpecOperand dQ[2], dK[2];
  SpecOperand dV, dLambda, dNormWeight, dGate;
  /// Whether k2 is k1, whose gradient is then that of both.
  bool sharesKeys = false;
  int64_t lambdaRank = 0;
  /// Groups of heads of a batch that share nothing with each other; slices of
  /// queries, and the queries of each but the last.
  SpecSize groups, slices, sliceQueries;

  /// The gradient that keys of a map are added to; absent if there is none.
  const SpecOperand &keySums(int map) const { return dK[sharesKeys ? 0 : map]; }
  /// Whether some destination needs gradients of scores.
  bool wantsScores() const {
    return dQ[0].present() || dQ[1].present() || keySums(0).present() ||
           keySums(1).present();
  }
  /// Whether the products of row gradients and values are.
  bool wantsValueProducts() const { return wantsScores() || dLambda.present(); }
  /// Whether the output before norm and gate is.
  bool wantsOutput() const {
    return attention.epilogue.rmsNorm || dGate.present();
  }
  /// Whether the gradient of lambda has sums over queries.
  bool sumsLambda() const { return dLambda.present() && lambdaRank != 3; }
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_BACKWARDSPEC_H
