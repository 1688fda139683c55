//===- ExportFunctions.cpp - public symbols of the object -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Runtime/ABI/Table.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_EXPORTFUNCTIONSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

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
  /// A function called as one that compiled code calls would be called in its
  /// place.
  LogicalResult checkNames() {
    SymbolTable symbols(getOperation());
    auto refuse = [&](StringRef name, const Twine &reason) {
      auto function = symbols.lookup<func::FuncOp>(name);
      if (!function || function.isDeclaration())
        return false;
      function.emitError("expected another name: ") << reason;
      return true;
    };
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      StringRef name = function.getName();
      const bool isRuntime = isRuntimeFunctionName(name) ||
                             name == DIFFATTN_WEIGHTS_SYMBOL ||
                             name == DIFFATTN_RELEASE_SYMBOL;
      if (isRuntime && refuse(name, "'" + name + "' is the runtime's"))
        return failure();
    }
    // LLVM makes calls of these out of loads, stores and loops.
    for (StringRef name : {"memcpy", "memmove", "memset", "memcmp", "bcmp"})
      if (refuse(name,
                 "the C library's '" + name + "' is what any code may call"))
        return failure();
    WalkResult result = getOperation()->walk([&](Operation *op) {
      StringRef routine = getRoutine(op);
      if (routine.empty())
        return WalkResult::advance();
      for (const std::string &name : {routine.str(), (routine + "f").str()})
        if (refuse(name, "the C library's '" + name + "' is what " +
                             op->getName().getStringRef() + " may call"))
          return WalkResult::interrupt();
      return WalkResult::advance();
    });
    return failure(result.wasInterrupted());
  }

  /// The C library's function of f64 that `op` may become a call of, or none.
  static StringRef getRoutine(Operation *op) {
    if (isa<arith::RemFOp>(op))
      return "fmod";
    if (!isa_and_nonnull<math::MathDialect>(op->getDialect()))
      return {};
    StringRef mnemonic = op->getName().stripDialect();
    return mnemonic == "powf" ? "pow" : mnemonic == "absf" ? "fabs" : mnemonic;
  }
};
} // namespace
