//===- Epilogue.h - ops after the difference, per head ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_EPILOGUE_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_EPILOGUE_H

#include "Differential.h"

#include "llvm/ADT/SetVector.h"

namespace mlir::diffattn::raise {

/// result = outScale * weights * X / rms(X) * sigmoid(gate), where X is the
/// difference and every part but X may be missing.
struct Epilogue {
  Value result;
  /// The element of `result`, in the loops of the roles.
  SmallVector<IndexPoly> position;
  bool norm = false;
  double eps = 0;
  bool epsOutside = false;
  SmallVector<Expr> weights;
  Expr gate = nullptr;
  double outScale = 1;
  /// The 16-bit types that the difference is rounded to on the way to `result`.
  llvm::SmallSetVector<Type, 2> roundedTo;
};

/// Ops without another use than to compute `value`.
llvm::SetVector<Operation *> onlyFor(Value value);

/// The logits if `sigmoid` is their sigmoid, else null.
Expr logitsOf(ExprGraph &graph, Expr sigmoid);

/// The last result after `match.root` that depends on one head alone.
Epilogue findEpilogue(ExprGraph &graph, const Differential &match);

/// The numbers of the op that stands for a difference and what follows it.
struct OutputNumbers {
  double outScale = 1, eps = 1e-5;
};

/// None, with a `reason`, where the op's f32 does not hold them or lambda.
std::optional<OutputNumbers> outputNumbers(const Differential &match,
                                           const Epilogue &epilogue,
                                           std::string &reason);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_EPILOGUE_H
