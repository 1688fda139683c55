//===- SelectSchedulePass.cpp - diffattn-select-schedule ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/ScheduleCases.h"
#include "DiffAttn/Schedule/CpuSchedule.h"
#include "DiffAttn/Schedule/Passes.h"

#include "mlir/IR/Remarks.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringExtras.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SELECTSCHEDULEPASS
#include "DiffAttn/Schedule/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// Models have heads of 32 to 512. A kernel for 4096 takes 10 s to compile, one
/// for 16384 minutes.
static constexpr int64_t kMaxHeadDim = 1024;

static constexpr auto kRemark =
    remark::RemarkOpts::name("SelectSchedule").category("diffattn-schedule");

namespace {
struct SelectSchedulePass final
    : diffattn::impl::SelectSchedulePassBase<SelectSchedulePass> {
  using SelectSchedulePassBase::SelectSchedulePassBase;
  void runOnOperation() override {
    llvm::Expected<CpuTarget> target = getCpuTarget(isa, prefetchBytes);
    if (!target) {
      getOperation()->emitError() << llvm::toString(target.takeError());
      return signalPassFailure();
    }
    if (std::string refusal = isa == "native" ? getNativeRefusal() : "";
        !refusal.empty())
      remark::missed(getOperation()->getLoc(), kRemark)
          << remark::reason("{0}", refusal)
          << remark::metric("Summary",
                            "code is made for " + target->name.str());
    getOperation()->walk([&](AttentionOp op) {
      if (!takeEveryCall(getScheduleCases(op, ScheduleTarget::CPU)))
        select(op, *target);
    });
  }

  void select(AttentionOp op, const CpuTarget &target) {
    std::string reason =
        linalg ? "the linalg path was asked for" : whyNoKernel(op);
    if (!reason.empty()) {
      remark::missed(op.getLoc(), kRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary", "attention runs as loops over maps in "
                                       "memory, not as one kernel");
      appendSchedules(op, LinalgAttr::get(&getContext()));
      return;
    }
    AttentionShape shape;
    auto q1 = cast<ShapedType>(op.getQ1().getType());
    shape.elementType = commonElementType(op);
    shape.queries = q1.getDimSize(AttentionOp::lengthAxis(op.getQLayout()));
    shape.keys = op.getKeyCount();
    shape.headDim = op.getHeadDim();
    shape.valueDim = op.getValueDim();
    shape.scale = op.getScale().convertToFloat();
    const int64_t heads = op.getSignalHeads();
    const int64_t keyHeads =
        std::min({op.getKey1Heads(), op.getKey2Heads(), op.getValueHeads()});
    if (!ShapedType::isDynamic(heads) && keyHeads > 0)
      shape.group = heads / keyHeads;
    SmallVector<Attribute> schedules = selectCpuSchedules(shape, target);
    appendSchedules(op, schedules);
    remark::passed(op.getLoc(), kRemark)
        << remark::metric("Schedules", Builder(op).getArrayAttr(schedules))
        << remark::metric("Summary", "attention is one kernel");
  }

  /// The element type of all large operands, or f32 where they differ: it
  /// decides the arithmetic.
  static Type commonElementType(AttentionOp op) {
    Type type = getElementTypeOrSelf(op.getQ1().getType());
    for (Value operand : {op.getK1(), op.getQ2(), op.getK2(), op.getV()})
      if (getElementTypeOrSelf(operand.getType()) != type)
        return Float32Type::get(op.getContext());
    return type;
  }

  /// Why no kernel takes `op`; empty if it can.
  static std::string whyNoKernel(AttentionOp op) {
    if (op.getIntegral())
      return "no kernel computes integral attention";
    for (int64_t size : {op.getHeadDim(), op.getValueDim()})
      if (!ShapedType::isDynamic(size) && size > kMaxHeadDim)
        return "a head of " + std::to_string(size) + " is above " +
               std::to_string(kMaxHeadDim) +
               ", and the code of a kernel grows with it";
    for (Value operand : op->getOperands()) {
      auto memref = dyn_cast<MemRefType>(operand.getType());
      if (memref && !memref.isStrided())
        return "an operand's memory is not strided";
      if (memref && memref.getMemorySpace())
        return "an operand lies in another memory space";
    }
    return "";
  }
};
} // namespace
