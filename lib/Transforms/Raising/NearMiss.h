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

/// All near misses in `function`, in its order. Follows values through any op,
/// and accepts more as a softmax than raising does, so that differences which
/// cannot be read are among them.
SmallVector<NearMiss> findNearMisses(ExprGraph &graph, const Maps &maps,
                                     Operation *function);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_NEARMISS_H
