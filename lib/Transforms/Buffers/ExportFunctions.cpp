//===- ExportFunctions.cpp - what the object shows -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_EXPORTFUNCTIONSPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct ExportFunctionsPass final
    : diffattn::impl::ExportFunctionsPassBase<ExportFunctionsPass> {
  void runOnOperation() override {
    if (failed(checkNames()))
      return signalPassFailure();
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

private:
  /// A function called as one of the C library's that an op of the dialect math
  /// becomes a call of would be called in its place.
  LogicalResult checkNames() {
    SymbolTable symbols(getOperation());
    WalkResult result = getOperation()->walk([&](Operation *op) {
      if (!isa_and_nonnull<math::MathDialect>(op->getDialect()))
        return WalkResult::advance();
      StringRef mnemonic = op->getName().stripDialect();
      StringRef routine = mnemonic == "powf"   ? "pow"
                          : mnemonic == "absf" ? "fabs"
                                               : mnemonic;
      for (const std::string &name : {routine.str(), (routine + "f").str()}) {
        auto function = symbols.lookup<func::FuncOp>(name);
        if (function && !function.isDeclaration()) {
          function.emitError("expected another name: the C library's '")
              << name << "' is what " << op->getName() << " may call";
          return WalkResult::interrupt();
        }
      }
      return WalkResult::advance();
    });
    return failure(result.wasInterrupted());
  }
};
} // namespace
