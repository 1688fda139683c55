//===- GpuTensorMapOperands.cpp - operands without tensor maps ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The conditions of LaunchBuilder::canUseMaps, as far as types decide them.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

/// `isMapped`: a map describes it; else it is copied by 16 bytes alone.
static std::string getReason(StringRef name, Value operand, bool isMapped) {
  if (!operand)
    return "";
  auto expected = [&](const Twine &what, int64_t number, int64_t axis) {
    return ("expected " + name + " with " + what + ", but got " +
            Twine(number) + " on axis " + Twine(axis))
        .str();
  };
  auto type = cast<ShapedType>(operand.getType());
  for (auto [axis, size] : llvm::enumerate(type.getShape()))
    if (isMapped && size == 0)
      return expected("at least one element on each axis", 0, axis);
  auto memref = dyn_cast<MemRefType>(type);
  SmallVector<int64_t> strides;
  int64_t offset;
  if (!memref || failed(memref.getStridesAndOffset(strides, offset)) ||
      strides.empty())
    return "";
  const int64_t inner = strides.pop_back_val();
  if (!ShapedType::isDynamic(inner) && inner != 1)
    return expected("an innermost stride of 1", inner, strides.size());
  const int64_t bytes = memref.getElementTypeBitWidth() / 8;
  for (auto [axis, stride] : llvm::enumerate(strides)) {
    if (ShapedType::isDynamic(stride))
      continue;
    if (stride * bytes % GpuTarget::kCopiedBytes)
      return expected("strides that are multiples of " +
                          Twine(GpuTarget::kCopiedBytes) + " bytes",
                      stride * bytes, axis);
    // An axis of one element is never stepped along.
    const int64_t size = memref.getDimSize(axis);
    const bool fits = stride > 0 && stride < GpuTarget::kMaxMapStride / bytes;
    if (isMapped && !ShapedType::isDynamic(size) && size != 1 && !fits)
      return expected("strides above 0 and below 2^40 bytes", stride * bytes,
                      axis);
  }
  return "";
}

std::string mlir::diffattn::getTensorMapReason(AttentionOp op) {
  if (op.isPaged()) {
    const int64_t rows =
        op.getShaped(op.getK1())
            .getDimSize(AttentionOp::lengthAxis(op.getKLayout()));
    if (!ShapedType::isDynamic(rows) && rows % kGpuMapBoxRows)
      return "expected pages of a multiple of " +
             std::to_string(kGpuMapBoxRows) + " keys, but got " +
             std::to_string(rows);
  }
  const std::tuple<StringRef, Value, bool> operands[] = {
      {"q1", op.getQ1(), true},      {"k1", op.getK1(), true},
      {"q2", op.getQ2(), true},      {"k2", op.getK2(), true},
      {"v", op.getV(), true},        {"init", op.getInit(), false},
      {"gate", op.getGate(), false}, {"x", op.getX(), false},
      {"o2", op.getO2(), false}};
  for (auto [name, operand, isMapped] : operands)
    if (std::string reason = getReason(name, operand, isMapped);
        !reason.empty())
      return reason;
  return "";
}
