//===- MarkReadOnlyArguments.cpp - inputs stay as they came -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_MARKREADONLYARGUMENTSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct MarkReadOnlyArgumentsPass final
    : diffattn::impl::MarkReadOnlyArgumentsPassBase<MarkReadOnlyArgumentsPass> {
  void runOnOperation() override {
    StringRef writable = bufferization::BufferizationDialect::kWritableAttrName;
    for (func::FuncOp function : getOperation().getOps<func::FuncOp>()) {
      if (function.isPrivate() || function.isDeclaration())
        continue;
      for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i)
        if (isa<TensorType>(function.getArgument(i).getType()) &&
            !function.getArgAttr(i, writable))
          function.setArgAttr(i, writable, BoolAttr::get(&getContext(), false));
    }
  }
};
} // namespace
