//===- ConvertPass.cpp - the pass that emits GPU kernels ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "DiffAttn/Codegen/Passes.h"
#include "GradientLaunch.h"
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
    IRRewriter rewriter(&getContext());
    if (failed(splitKeys(rewriter, module)))
      return signalPassFailure();
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
    SmallVector<OnlineAttentionOp> splits;
    SmallVector<MergedEnd> ends;
    SmallVector<AttentionBackwardOp> gradients;
    if (walk.wasInterrupted() ||
        failed(findStates(module, *target, splits, ends)) ||
        failed(findGradients(module, *target, gradients)))
      return signalPassFailure();
    if (ops.empty() && splits.empty() && ends.empty() && gradients.empty())
      return;

    gpu::GPUModuleOp kernels = getOrCreateKernelModule(module, *target);
    for (auto &[op, cases] : ops)
      replaceByLaunch(rewriter, op, kernels, cases);
    for (OnlineAttentionOp op : splits)
      replaceByLaunch(rewriter, op, kernels);
    for (const MergedEnd &end : ends)
      replaceByLaunch(rewriter, end, kernels);
    for (AttentionBackwardOp op : gradients)
      replaceByLaunch(rewriter, op, kernels);
  }

  /// The ops of gradients that have kernels.
  static LogicalResult
  findGradients(ModuleOp module, const GpuTarget &target,
                SmallVectorImpl<AttentionBackwardOp> &gradients) {
    WalkResult walk = module.walk([&](AttentionBackwardOp op) {
      if (!isa_and_nonnull<GpuBackwardAttr>(
              findSchedule(op, ScheduleTarget::GPU)))
        return WalkResult::advance();
      if (!isa<MemRefType>(op.getDOut().getType())) {
        op.emitOpError() << "expected memrefs, but got tensors: bufferize "
                            "first";
        return WalkResult::interrupt();
      }
      if (std::string reason = getGpuGradientReason(op); !reason.empty()) {
        op.emitOpError() << reason;
        return WalkResult::interrupt();
      }
      for (GpuKernelKind kind :
           {GpuKernelKind::GradientKeys, GpuKernelKind::GradientQueries})
        for (GradientCopies copies :
             {GradientCopies::Maps, GradientCopies::Chunks}) {
          std::optional<GpuKernelSpec> spec = getGradientSpec(op, kind, copies);
          if (!spec)
            continue;
          std::string reason;
          if (copies == GradientCopies::Maps)
            reason = getGpuWgmmaGradientReason(
                getGpuAttentionShape(
                    cast<DifferentialMapsOpInterface>(op.getOperation())),
                target);
          if (reason.empty())
            reason = getSizeRefusal(*spec, target);
          if (!reason.empty()) {
            op.emitOpError() << reason;
            return WalkResult::interrupt();
          }
        }
      gradients.push_back(op);
      return WalkResult::advance();
    });
    return failure(walk.wasInterrupted());
  }

  /// Checks schedules, which may be written by hand, against the op and the
  /// chip.
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
    for (const ScheduleCase &choice : cases) {
      if (reason =
              getKernelRefusal(choice.schedule, target,
                               getGpuKernelSpec(op, choice.schedule, false));
          !reason.empty())
        return op.emitOpError() << reason;
    }
    return success();
  }

  /// Why no kernel of `schedule` computes `spec`; empty if one does.
  static std::string getKernelRefusal(ScheduleAttrInterface schedule,
                                      const GpuTarget &target,
                                      const GpuKernelSpec &spec) {
    if (isa<GpuPlainAttr>(schedule) != spec.elementType.isF32())
      return "expected gpu_plain for f32 and for nothing else, but got " +
             schedule.getFamily().str();
    if (spec.headDim > 256 || spec.valueDim > 256)
      return "expected widths of heads up to 256, but got " +
             std::to_string(spec.headDim) + " and " +
             std::to_string(spec.valueDim);
    const bool isBulk =
        isa<GpuSplitKVAttr>(schedule) && GpuTiles::of(schedule).bulk;
    if ((isBulk || spec.isWgmma()) && !target.hasWgmma)
      return "expected a chip with tensor maps for " +
             schedule.getFamily().str() + ", but got " + target.chip;
    if (isBulk && (spec.hasTileMasks() || !mayCopyChunks(spec)))
      return "expected widths that are multiples of 8 and no segments for "
             "gpu_split_kv with bulk_copies, but got others";
    return getSizeRefusal(spec, target);
  }

  static std::string getSizeRefusal(const GpuKernelSpec &spec,
                                    const GpuTarget &target) {
    int64_t bytes = spec.getSharedLayout().total;
    if (bytes > target.sharedBytesPerBlock)
      return "expected a schedule with at most " +
             std::to_string(target.sharedBytesPerBlock) +
             " bytes of shared memory for " + target.chip + ", but got " +
             std::to_string(bytes);
    return "";
  }

  /// The ops on states that have kernels: ranges of keys with a schedule, and
  /// the ends of the like.
  static LogicalResult findStates(ModuleOp module, const GpuTarget &target,
                                  SmallVectorImpl<OnlineAttentionOp> &splits,
                                  SmallVectorImpl<MergedEnd> &ends) {
    WalkResult walk = module.walk([&](OnlineAttentionOp op) {
      if (!op.getScheduleAttr())
        return WalkResult::advance();
      if (failed(checkStates(op, target)))
        return WalkResult::interrupt();
      splits.push_back(op);
      return WalkResult::advance();
    });
    if (walk.wasInterrupted())
      return failure();
    walk = module.walk([&](MergeOp op) {
      if (!op.joinsRanges())
        return WalkResult::advance();
      for (Operation *user : op.getInitAcc().getUsers()) {
        auto finalize = dyn_cast<FinalizeOp>(user);
        if (!finalize || finalize.getAcc1() != op.getInitAcc())
          continue;
        FailureOr<MergedEnd> end = findMerges(finalize);
        if (failed(end))
          return WalkResult::interrupt();
        ends.push_back(*end);
      }
      return WalkResult::advance();
    });
    return failure(walk.wasInterrupted());
  }

  static LogicalResult checkStates(OnlineAttentionOp op,
                                   const GpuTarget &target) {
    std::string reason = getGpuUnsupportedReason(op);
    if (reason.empty())
      reason = getKernelRefusal(op.getScheduleAttr(), target,
                                getGpuKernelSpec(op, /*elementwise=*/false));
    if (!reason.empty())
      return op.emitOpError() << reason;
    for (Value state : op.getDpsInits()) {
      auto type = dyn_cast<MemRefType>(state.getType());
      if (!type || !type.getLayout().isIdentity())
        return op.emitOpError()
               << "expected states that are memrefs without strides, but got "
               << state.getType();
    }
    return success();
  }
};
} // namespace
