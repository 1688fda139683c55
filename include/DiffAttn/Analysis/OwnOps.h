//===- OwnOps.h - the ops of a module without nested modules ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_OWNOPS_H
#define DIFFATTN_ANALYSIS_OWNOPS_H

#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// Walks the ops of `module` in pre-order and leaves out nested modules: a name
/// in one of those is looked up there, so that nothing of `module`, neither a
/// global nor a slot of its weights, is meant by it. `visit` takes an Operation
/// * and returns a WalkResult: skip if it erased the op.
template <typename Visit>
WalkResult walkOwnOps(ModuleOp module, Visit &&visit) {
  return module->walk<WalkOrder::PreOrder>([&](Operation *op) -> WalkResult {
    if (op == module)
      return WalkResult::advance();
    if (isa<ModuleOp>(op))
      return WalkResult::skip();
    return visit(op);
  });
}

} // namespace mlir::diffattn

#endif // DIFFATTN_ANALYSIS_OWNOPS_H
