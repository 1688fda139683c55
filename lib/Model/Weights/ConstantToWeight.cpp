//===- ConstantToWeight.cpp - constants in the table of weights -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WeightTable.h"

#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTCONSTANTTOWEIGHTPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

static constexpr StringLiteral kConstants = "diffattn.constants";

namespace {
struct ConvertConstantToWeightPass final
    : diffattn::impl::ConvertConstantToWeightPassBase<
          ConvertConstantToWeightPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<memref::GetGlobalOp> uses;
    walkOwnOps(module, [&](Operation *op) {
      if (auto use = dyn_cast<memref::GetGlobalOp>(op))
        uses.push_back(use);
      return WalkResult::advance();
    });
    SmallVector<Attribute> values;
    if (auto known = module->getAttrOfType<ArrayAttr>(kConstants))
      llvm::append_range(values, known);
    const int64_t first = getNumWeightSlots(module);
    llvm::StringMap<int64_t> slots;
    SymbolTable symbols(module);
    OpBuilder b(&getContext());
    for (memref::GetGlobalOp use : uses) {
      auto global = symbols.lookup<memref::GlobalOp>(use.getName());
      Attribute value = global ? global.getConstantInitValue() : Attribute();
      if (!isa_and_nonnull<DenseElementsAttr, DenseResourceElementsAttr>(
              value)) {
        use.emitOpError() << "expected a constant with a value, because what a "
                             "kernel reads must lie on the device";
        return signalPassFailure();
      }
      auto [at, isNew] =
          slots.try_emplace(use.getName(), first + values.size());
      if (isNew)
        values.push_back(value);
      b.setInsertionPoint(use);
      Value slot = arith::ConstantIndexOp::create(b, use.getLoc(), at->second);
      Value buffer = WeightOp::create(b, use.getLoc(), use.getType(), slot);
      use.replaceAllUsesWith(buffer);
      use.erase();
    }
    if (!values.empty())
      module->setAttr(kConstants, b.getArrayAttr(values));
    for (auto &entry : slots)
      symbols.erase(symbols.lookup(entry.getKey()));
  }
};
} // namespace
