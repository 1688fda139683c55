//===- NearMiss.h - differences of softmaxes that stay ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_NEARMISS_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_NEARMISS_H

#include "Maps.h"

namespace mlir::diffattn::raise {

/// An op in which two softmaxes, or products of these with values, are
/// subtracted or added.
struct NearMiss {
  Operation *op = nullptr;
  /// The results of these softmaxes.
  llvm::SetVector<Value> softmaxes;
  /// Whether each of these was recognized.
  bool recognized = true;
};

/// All of these in `function`, in its order. Follows values through any op, and
/// asks less of a softmax than raising does: a difference that cannot be read
/// is found too.
SmallVector<NearMiss> findNearMisses(ExprGraph &graph, const Maps &maps,
                                     Operation *function);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_NEARMISS_H
