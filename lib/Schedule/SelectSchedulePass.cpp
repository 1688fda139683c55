//===- SelectSchedulePass.cpp - diffattn-select-schedule ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/KernelLimits.h"
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
        select(op, *target, getKernelRefusal(op), "attention");
    });
    getOperation()->walk([&](AttentionBackwardOp op) {
      if (!findSchedule(op, ScheduleTarget::CPU))
        select(op, *target, getKernelRefusal(op), "the gradient of attention");
    });
  }

  /// Gives `op` schedules, or none of kernels for `reason`, if it is not empty.
  template <typename Op>
  void select(Op op, const CpuTarget &target, std::string reason,
              StringRef subject) {
    if (linalg)
      reason = "the linalg path was asked for";
    if (!reason.empty()) {
      remark::missed(op.getLoc(), kRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary", subject.str() +
                                           " runs as loops over maps in "
                                           "memory, not as one kernel");
      appendSchedules(op, LinalgAttr::get(&getContext()));
      return;
    }
    SmallVector<Attribute> schedules = getSchedules(op, getShape(op), target);
    appendSchedules(op, schedules);
    remark::passed(op.getLoc(), kRemark)
        << remark::metric("Schedules", Builder(op).getArrayAttr(schedules))
        << remark::metric("Summary", subject.str() + " is one kernel");
  }

  static SmallVector<Attribute> getSchedules(AttentionOp,
                                             const AttentionShape &shape,
                                             const CpuTarget &target) {
    return selectCpuSchedules(shape, target);
  }
  static SmallVector<Attribute> getSchedules(AttentionBackwardOp op,
                                             AttentionShape shape,
                                             const CpuTarget &target) {
    // A d_out of f32 is not rounded: operands are widened beside it.
    Type dOut = getElementTypeOrSelf(op.getDOut().getType());
    if (dOut != shape.elementType)
      shape.elementType = Float32Type::get(op.getContext());
    return {selectCpuBackward(shape, target)};
  }

  static AttentionShape getShape(DifferentialMapsOpInterface op) {
    AttentionShape shape;
    auto sizeOf = [&](Value operand, Layout layout) {
      return op.getShaped(operand).getDimSize(
          DifferentialMapsOpInterface::lengthAxis(layout));
    };
    shape.elementType = commonElementType(op);
    shape.queries = sizeOf(op.getQ1(), op.getQLayout());
    auto attention = dyn_cast<AttentionOp>(op.getOperation());
    shape.keys = attention ? attention.getKeyCount()
                           : sizeOf(op.getK1(), op.getKLayout());
    shape.headDim = op.getHeadDim();
    shape.valueDim = op.getValueDim();
    shape.scale = op.getScale().convertToFloat();
    shape.maps = op.hasSecondMap() ? 2 : 1;
    const int64_t heads = op.getSignalHeads();
    const int64_t keyHeads =
        std::min({op.getKey1Heads(), op.getKey2Heads(), op.getValueHeads()});
    if (!ShapedType::isDynamic(heads) && keyHeads > 0)
      shape.group = heads / keyHeads;
    return shape;
  }

  /// The element type of all large operands, or f32 where they differ: it
  /// decides the arithmetic.
  static Type commonElementType(DifferentialMapsOpInterface op) {
    Type type = getElementTypeOrSelf(op.getQ1().getType());
    for (Value operand : {op.getK1(), op.getQ2(), op.getK2(), op.getV()})
      if (operand && getElementTypeOrSelf(operand.getType()) != type)
        return Float32Type::get(op->getContext());
    return type;
  }

  /// Why no kernel takes `op`; empty if one can.
  static std::string getKernelRefusal(AttentionOp op) {
    if (op.getIntegral())
      return "no kernel computes integral attention";
    if (op.getO2())
      return "no kernel of CPUs writes o2";
    return getKernelRefusal(
        cast<DifferentialMapsOpInterface>(op.getOperation()));
  }
  static std::string getKernelRefusal(AttentionBackwardOp op) {
    if (op.getDBias())
      return "no kernel computes the gradient of a bias";
    return getKernelRefusal(
        cast<DifferentialMapsOpInterface>(op.getOperation()));
  }
  static std::string getKernelRefusal(DifferentialMapsOpInterface op) {
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
