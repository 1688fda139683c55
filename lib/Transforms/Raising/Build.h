//===- Build.h - writing the op ---------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_BUILD_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_BUILD_H

#include "DiffAttn/IR/DiffAttn.h"
#include "Epilogue.h"

namespace mlir::diffattn::raise {

/// Writes the op, with queries, keys and values of type `elements`, before the
/// op that makes `epilogue.result`, with the tensor that takes that result's
/// place; null, with nothing written and a `reason`, where the op does not hold
/// a number, or the order of the result's axes cannot be reached.
Value build(ExprGraph &graph, const Differential &match,
            const Epilogue &epilogue, Type elements,
            const llvm::SetVector<Operation *> &dying, AttentionOp &attention,
            std::string &reason);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_BUILD_H
