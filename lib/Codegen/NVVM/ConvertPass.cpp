//===- ConvertPass.cpp - the pass that emits GPU kernels ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/Passes.h"
#include "GpuKernelModule.h"
#include "HostLaunch.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Remarks.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTDIFFATTNTOGPUPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
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
    SmallVector<std::pair<AttentionOp, GpuSchedules>> ops;
    WalkResult walk = module.walk([&](AttentionOp op) {
      if (!op->hasAttr(kGpuScheduleName))
        return WalkResult::advance();
      GpuSchedules schedules;
      std::string reason = readSchedules(op, *target, schedules);
      if (!reason.empty()) {
        op.emitOpError() << reason;
        return WalkResult::interrupt();
      }
      ops.push_back({op, schedules});
      return WalkResult::advance();
    });
    if (walk.wasInterrupted())
      return signalPassFailure();
    if (ops.empty())
      return;

    IRRewriter rewriter(&getContext());
    gpu::GPUModuleOp kernels = getOrCreateKernelModule(module, *target);
    for (auto [op, schedules] : ops)
      replaceByLaunch(rewriter, op, kernels, schedules);
  }

  /// The schedules on `op`; says what forbids them.
  static std::string readSchedules(AttentionOp op, const GpuTarget &target,
                                   GpuSchedules &schedules) {
    if (!isa<MemRefType>(op.getInit().getType()))
      return "expected memrefs, but got tensors: bufferize first";
    std::string reason = getGpuUnsupportedReason(op);
    auto read = [&](StringRef name, GpuScheduleAttr otherwise) {
      auto schedule = op->getAttrOfType<GpuScheduleAttr>(name);
      if (reason.empty() && op->hasAttr(name))
        reason = schedule ? checkSchedule(op, schedule, target)
                          : "expected " + name.str() +
                                " to be a #diffattn.gpu_schedule";
      return schedule ? schedule : otherwise;
    };
    schedules.chunks = read(kGpuScheduleName, {});
    schedules.elements = read(kGpuElementScheduleName, schedules.chunks);
    schedules.decode = read(kGpuDecodeScheduleName, {});
    if (!reason.empty())
      return reason;
    if (schedules.decode && !schedules.decode.getSplitKeys())
      return "expected " + kGpuDecodeScheduleName.str() + " to have split_keys";
    bool dynamic = ShapedType::isDynamic(getGpuAttentionShape(op).queries);
    for (GpuScheduleAttr schedule : {schedules.chunks, schedules.elements})
      if (schedule.getSplitKeys() && (dynamic || !fitsDecode(op)))
        return "expected at most 8 rows of queries with split_keys";
    if (schedules.chunks.getSplitKeys() != schedules.elements.getSplitKeys())
      return "expected the split_keys of " + kGpuScheduleName.str() + " in " +
             kGpuElementScheduleName.str() + ", but got " +
             std::to_string(schedules.elements.getSplitKeys());
    return "";
  }

  static bool fitsDecode(AttentionOp op) {
    GpuAttentionShape shape = getGpuAttentionShape(op);
    return shape.queries * shape.group <= kGpuDecodeRows;
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
    int64_t bytes =
        getGpuKernelSpec(op, schedule, false).getSharedLayout().total;
    if (bytes > target.sharedBytesPerBlock)
      return "expected a schedule with at most " +
             std::to_string(target.sharedBytesPerBlock) +
             " bytes of shared memory for " + target.chip + ", but got " +
             std::to_string(bytes);
    return "";
  }
};
} // namespace
