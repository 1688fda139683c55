//===- ImportWeights.cpp - diffattn-import-weights ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Contract.h"

#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_IMPORTWEIGHTSPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::import;

namespace {
struct ImportWeightsPass final
    : diffattn::impl::ImportWeightsPassBase<ImportWeightsPass> {
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (failed(importWeights(function)) || failed(markWritable(function)))
        return signalPassFailure();
  }

private:
  LogicalResult importWeights(func::FuncOp function);
  LogicalResult markWritable(func::FuncOp function);
  /// The extern global of a weight; one that is there is shared.
  FailureOr<ml_program::GlobalOp> getGlobal(func::FuncOp function,
                                            unsigned argument, StringAttr name);
  InFlightDiagnostic emitFault(func::FuncOp function, unsigned argument) {
    return function.emitError("argument ")
           << argument << " of '" << function.getSymName() << "': ";
  }
};
} // namespace

FailureOr<ml_program::GlobalOp>
ImportWeightsPass::getGlobal(func::FuncOp function, unsigned argument,
                             StringAttr name) {
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[argument]);
  // import_c1
  if (!type || !type.hasStaticShape())
    return emitFault(function, argument)
           << "expected a tensor of known sizes as weight " << name
           << ", but got " << function.getArgumentTypes()[argument];
  const auto value = ml_program::ExternAttr::get(&getContext(), type);
  // import_c2
  if (Operation *known = SymbolTable::lookupSymbolIn(getOperation(), name)) {
    auto global = dyn_cast<ml_program::GlobalOp>(known);
    if (!global || global.getValueAttr() != value)
      return emitFault(function, argument)
             << "expected a name that no other symbol has, but got weight "
             << name;
    return global;
  }
  OpBuilder builder(function);
  return ml_program::GlobalOp::create(builder, function.getLoc(), name, type,
                                      /*is_mutable=*/false, value,
                                      builder.getStringAttr("private"));
}

LogicalResult ImportWeightsPass::importWeights(func::FuncOp function) {
  BitVector weights(function.getNumArguments());
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (function.getArgAttr(i, kWeight))
      weights.set(i);
  if (weights.none())
    return success();
  if (function.isExternal() ||
      !SymbolTable::symbolKnownUseEmpty(function, getOperation()))
    return function.emitError("expected weights among the arguments of a "
                              "function that has a body and is not called, "
                              "but got '")
           << function.getSymName() << "'";
  OpBuilder builder(function.getBody());
  for (unsigned i : weights.set_bits()) {
    auto name = function.getArgAttrOfType<StringAttr>(i, kWeight);
    if (!name || name.empty())
      return emitFault(function, i)
             << "expected " << kWeight << " to be the name of a weight, but "
             << "got " << function.getArgAttr(i, kWeight);
    if (function.getArgAttr(i, kWritable)) // import_c3
      return emitFault(function, i)
             << "expected a weight that is not written to, but got "
             << kWritable << " beside " << name;
    FailureOr<ml_program::GlobalOp> global = getGlobal(function, i, name);
    if (failed(global))
      return failure();
    Value weight = ml_program::GlobalLoadConstOp::create(
        builder, function.getLoc(), global->getType(),
        FlatSymbolRefAttr::get(name));
    function.getArgument(i).replaceAllUsesWith(weight);
  }
  return function.eraseArguments(weights);
}

LogicalResult ImportWeightsPass::markWritable(func::FuncOp function) {
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    Attribute writable = function.removeArgAttr(i, kWritable);
    if (!writable)
      continue;
    if (!isa<UnitAttr>(writable) ||
        !isa<RankedTensorType>(function.getArgumentTypes()[i]))
      return emitFault(function, i)
             << "expected " << kWritable
             << " without a value, on a tensor, but got " << writable << " on "
             << function.getArgumentTypes()[i];
    function.setArgAttr(i,
                        bufferization::BufferizationDialect::kWritableAttrName,
                        BoolAttr::get(&getContext(), true));
  }
  return success();
}
