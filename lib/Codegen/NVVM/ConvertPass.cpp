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
    SmallVector<std::pair<AttentionOp, SmallVector<ScheduleCase>>> ops;
    WalkResult walk = module.walk([&](AttentionOp op) {
      SmallVector<ScheduleCase> cases =
          getScheduleCases(op, ScheduleTarget::GPU);
      if (cases.empty() || isa<LinalgAttr>(cases.front().schedule))
        return WalkResult::advance();
      if (failed(checkCases(op, *target, cases)))
        return WalkResult::interrupt();
      ops.push_back({op, cases});
      return WalkResult::advance();
    });
    if (walk.wasInterrupted())
      return signalPassFailure();
    if (ops.empty())
      return;

    IRRewriter rewriter(&getContext());
    gpu::GPUModuleOp kernels = getOrCreateKernelModule(module, *target);
    for (auto &[op, cases] : ops)
      replaceByLaunch(rewriter, op, kernels, cases);
  }

  /// Schedules may be written by hand: what the op and the chip do not allow is
  /// refused.
  static LogicalResult checkCases(AttentionOp op, const GpuTarget &target,
                                  ArrayRef<ScheduleCase> cases) {
    if (!isa<MemRefType>(op.getInit().getType()))
      return op.emitOpError()
             << "expected memrefs, but got tensors: bufferize first";
    std::string reason = getGpuUnsupportedReason(op);
    if (!reason.empty())
      return op.emitOpError() << reason;
    if (failed(verifyScheduleCases(op, cases)))
      return failure();
    for (const ScheduleCase &choice : cases)
      if (reason = whyNot(op, choice.schedule, target); !reason.empty())
        return op.emitOpError() << reason;
    return success();
  }

  static std::string whyNot(AttentionOp op, ScheduleAttrInterface schedule,
                            const GpuTarget &target) {
    GpuAttentionShape shape = getGpuAttentionShape(op);
    if (isa<GpuPlainAttr>(schedule) != shape.elementType.isF32())
      return "expected gpu_plain for f32 and for nothing else, but got " +
             schedule.getFamily().str();
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
