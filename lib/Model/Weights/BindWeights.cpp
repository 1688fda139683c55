//===- BindWeights.cpp - slots for the weights of a model -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_BINDWEIGHTSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// The slots of an extern global: one, or one for each layer.
struct SlotRange {
  int64_t first = 0, count = 0;
};
/// Slots of one module's weights, by the global's name.
using SlotTable = llvm::StringMap<SlotRange>;

struct BindWeightsPass final
    : diffattn::impl::BindWeightsPassBase<BindWeightsPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    Builder builder(&getContext());
    SmallVector<Attribute> list;
    SlotTable slots;
    int64_t slot = 0;
    SmallVector<ml_program::GlobalOp> globals;
    for (auto global : module.getOps<ml_program::GlobalOp>()) {
      globals.push_back(global);
      auto value = global.getValueAttr();
      if (!isa_and_nonnull<ml_program::ExternAttr>(value)) {
        if (value && isa<TypedAttr>(value) && !global.getIsMutable())
          continue; // a constant
        global.emitOpError("expected an extern value or a constant, but got a ")
            << (global.getIsMutable() ? "mutable global" : "global of neither");
        return signalPassFailure();
      }
      FailureOr<WeightAttr> weight =
          WeightAttr::ofGlobal(global, [&] { return global.emitOpError(); });
      if (failed(weight))
        return signalPassFailure();
      list.push_back(*weight);
      slots[global.getSymName()] = {slot, weight->getNumSlots()};
      slot += weight->getNumSlots();
    }
    if (globals.empty())
      return;
    if (failed(rewriteUses(slots)))
      return signalPassFailure();
    for (ml_program::GlobalOp global : globals)
      global.erase();
    if (!list.empty())
      module->setAttr(kWeightsName, builder.getArrayAttr(list));
  }

private:
  LogicalResult rewriteUses(const SlotTable &slots) {
    SymbolTable symbols(getOperation());
    auto rewrite = [&](Operation *op) {
      OpBuilder builder(op);
      if (isa<ml_program::GlobalLoadOp, ml_program::GlobalStoreOp>(op)) {
        op->emitOpError("expected weights to be read by "
                        "ml_program.global_load_const only");
        return WalkResult::interrupt();
      }
      if (auto load = dyn_cast<ml_program::GlobalLoadConstOp>(op)) {
        StringRef name = load.getGlobal().getLeafReference();
        auto global = symbols.lookup<ml_program::GlobalOp>(name);
        if (global && !slots.count(name)) {
          auto value = cast<TypedAttr>(global.getValueAttr());
          load.replaceAllUsesWith(
              arith::ConstantOp::create(builder, load.getLoc(), value)
                  .getResult());
          load.erase();
          return WalkResult::skip();
        }
        replace(builder, load,
                arith::ConstantIndexOp::create(builder, load.getLoc(),
                                               slots.lookup(name).first));
        return WalkResult::skip();
      }
      if (auto weight = dyn_cast<LayerWeightOp>(op)) {
        const SlotRange range = slots.lookup(weight.getPattern());
        if (failed(checkLayer(builder, weight, range.count)))
          return WalkResult::interrupt();
        Value first =
            arith::ConstantIndexOp::create(builder, op->getLoc(), range.first);
        replace(builder, weight,
                arith::AddIOp::create(builder, op->getLoc(), weight.getLayer(),
                                      first));
        return WalkResult::skip();
      }
      return WalkResult::advance();
    };
    return failure(walkOwnOps(getOperation(), rewrite).wasInterrupted());
  }

  /// The table has a slot for each layer, and no more.
  static LogicalResult checkLayer(OpBuilder &builder, LayerWeightOp op,
                                  int64_t count) {
    if (std::optional<int64_t> layer = getConstantIntValue(op.getLayer())) {
      if (*layer >= 0 && *layer < count)
        return success();
      return op.emitOpError("expected a layer from 0 and below ")
             << count << ", but got " << *layer;
    }
    Location loc = op.getLoc();
    Value below = arith::CmpIOp::create(
        builder, loc, arith::CmpIPredicate::ult, op.getLayer(),
        arith::ConstantIndexOp::create(builder, loc, count));
    cf::AssertOp::create(
        builder, loc, below,
        "layer_weight: expected a layer from 0 and below {1}, but got {0}");
    return success();
  }

  /// A tensor that bufferization may alias and must not write.
  static void replace(OpBuilder &builder, Operation *op, Value slot) {
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    auto memref = MemRefType::get(type.getShape(), type.getElementType());
    Value buffer = WeightOp::create(builder, op->getLoc(), memref, slot);
    op->getResult(0).replaceAllUsesWith(bufferization::ToTensorOp::create(
        builder, op->getLoc(), type, buffer, /*restrict=*/true));
    op->erase();
  }
};
} // namespace
