//===- ConvertPass.cpp - passes that choose and emit GPU kernels ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "../GpuKernelModule.h"
#include "DiffAttn/Conversion/Passes.h"
#include "HostLaunch.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Remarks.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SELECTGPUSCHEDULEPASS
#define GEN_PASS_DEF_CONVERTDIFFATTNTOGPUPASS
#include "DiffAttn/Conversion/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

static constexpr StringLiteral kScheduleName = "diffattn.gpu_schedule";

/// Why `op` has no GPU kernel; empty if it has one.
static std::string getObstacle(AttentionOp op) {
  Type element = op.getShaped(op.getQ1()).getElementType();
  for (Value value :
       {op.getK1(), op.getQ2(), op.getK2(), op.getV(), op.getInit()})
    if (op.getShaped(value).getElementType() != element)
      return "expected q1, k1, q2, k2, v and init to have one element type";
  return "";
}

namespace {
struct SelectGpuSchedulePass final
    : diffattn::impl::SelectGpuSchedulePassBase<SelectGpuSchedulePass> {
  using SelectGpuSchedulePassBase::SelectGpuSchedulePassBase;

  void runOnOperation() override {
    std::string error;
    std::optional<GpuTarget> target = getGpuTarget(chip, error);
    if (!target) {
      getOperation()->emitError() << error;
      return signalPassFailure();
    }
    getOperation()->walk([&](AttentionOp op) {
      if (op->hasAttr(kScheduleName))
        return;
      std::string reason = getObstacle(op);
      GpuScheduleAttr schedule;
      if (reason.empty())
        schedule = selectGpuSchedule(&getContext(), getGpuAttentionShape(op),
                                     *target, reason);
      if (!schedule) {
        remark::missed(op.getLoc(),
                       remark::RemarkOpts::name("SelectGpuSchedule")
                           .category("diffattn-gpu"))
            << remark::reason("{0}", reason);
        return;
      }
      if (!target->tuned)
        remark::analysis(op.getLoc(),
                         remark::RemarkOpts::name("SelectGpuSchedule")
                             .category("diffattn-gpu"))
            << ("untuned: " + chip + " gets the code and the schedules of " +
                target->chip);
      op->setAttr(kScheduleName, schedule);
    });
  }
};

struct ConvertDiffAttnToGpuPass final
    : diffattn::impl::ConvertDiffAttnToGpuPassBase<ConvertDiffAttnToGpuPass> {
  using ConvertDiffAttnToGpuPassBase::ConvertDiffAttnToGpuPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    std::string error;
    std::optional<GpuTarget> target = getGpuTarget(chip, error);
    if (!target) {
      module.emitError() << error;
      return signalPassFailure();
    }
    SmallVector<AttentionOp> ops;
    WalkResult walk =
        module.walk([&](AttentionOp op) {
          auto schedule = op->getAttrOfType<GpuScheduleAttr>(kScheduleName);
          if (!schedule)
            return WalkResult::advance();
          if (!isa<MemRefType>(op.getInit().getType())) {
            op.emitOpError()
                << "expected memrefs, but got tensors: bufferize first";
            return WalkResult::interrupt();
          }
          std::string obstacle = getObstacle(op);
          if (obstacle.empty())
            obstacle = checkSchedule(op, schedule, *target);
          if (!obstacle.empty()) {
            op.emitOpError() << obstacle;
            return WalkResult::interrupt();
          }
          ops.push_back(op);
          return WalkResult::advance();
        });
    if (walk.wasInterrupted())
      return signalPassFailure();
    if (ops.empty())
      return;

    IRRewriter rewriter(&getContext());
    gpu::GPUModuleOp kernels = getOrCreateKernelModule(module, *target);
    for (AttentionOp op : ops) {
      auto schedule = op->getAttrOfType<GpuScheduleAttr>(kScheduleName);
      GpuAttentionShape shape = getGpuAttentionShape(op);
      shape.needsRegisters = true;
      // Decode or not is one choice for both ways to copy.
      if (!schedule.getSplitKeys())
        shape.queries = ShapedType::kDynamic;
      std::string reason;
      GpuScheduleAttr elements =
          selectGpuSchedule(&getContext(), shape, *target, reason);
      if (schedule.getSplitKeys())
        elements = schedule;
      replaceByLaunch(rewriter, op, kernels, schedule, elements);
    }
  }

  /// A schedule may be written by hand: what the op and the chip do not allow
  /// is refused.
  static std::string checkSchedule(AttentionOp op, GpuScheduleAttr schedule,
                                   const GpuTarget &target) {
    bool plain = schedule.getPlacement() == GpuPlacement::Plain;
    GpuAttentionShape shape = getGpuAttentionShape(op);
    if (plain != shape.elementType.isF32())
      return "expected placement plain for f32 and for nothing else, but got " +
             stringifyGpuPlacement(schedule.getPlacement()).str();
    if (shape.headDim > 256 || shape.valueDim > 256)
      return "expected widths of heads up to 256, but got " +
             std::to_string(shape.headDim) + " and " +
             std::to_string(shape.valueDim);
    if (schedule.getSplitKeys() && (ShapedType::isDynamic(shape.queries) ||
                                    shape.queries * shape.group > 8))
      return "expected at most 8 rows of queries with split_keys";
    int64_t bytes = getGpuKernelSpec(op, schedule, false).getSharedBytes();
    if (bytes > target.sharedBytesPerBlock)
      return "expected a schedule with at most " +
             std::to_string(target.sharedBytesPerBlock) +
             " bytes of shared memory for " + target.chip + ", but got " +
             std::to_string(bytes);
    return "";
  }
};
} // namespace
