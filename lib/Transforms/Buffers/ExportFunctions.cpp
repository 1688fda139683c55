//===- ExportFunctions.cpp - what the object shows -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_EXPORTFUNCTIONSPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct ExportFunctionsPass final
    : diffattn::impl::ExportFunctionsPassBase<ExportFunctionsPass> {
  void runOnOperation() override {
    MLIRContext *context = &getContext();
    for (func::FuncOp function : getOperation().getOps<func::FuncOp>()) {
      if (function.isDeclaration())
        continue;
      if (function.isPublic())
        function->setAttr(LLVM::LLVMDialect::getEmitCWrapperAttrName(),
                          UnitAttr::get(context));
      else
        function->setAttr(
            "llvm.linkage",
            LLVM::LinkageAttr::get(context, LLVM::Linkage::Internal));
    }
  }
};
} // namespace
