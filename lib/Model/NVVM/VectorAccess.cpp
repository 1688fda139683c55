//===- VectorAccess.cpp - 16 bytes at a time -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "VectorAccess.h"

#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

VectorPlan VectorPlan::byElements(bool sameShares) const {
  VectorPlan plan = *this;
  plan.condition = Value();
  if (!sameShares)
    plan.width = 1;
  for (auto &of : plan.kinds)
    for (AccessKind &kind : of)
      if (kind == AccessKind::Vector)
        kind = AccessKind::Element;
  return plan;
}

/// The axis along which `access` runs by 1 with loop `loop`, if it does.
static std::optional<int64_t> findContiguousAxis(const Access &access,
                                                 unsigned loop) {
  std::optional<int64_t> axis;
  auto strides =
      cast<MemRefType>(access.memref.getType()).getStridesAndOffset().first;
  for (auto [i, expr] : llvm::enumerate(access.map.getResults())) {
    if (!expr.isFunctionOfDim(loop))
      continue;
    if (axis || !isa<AffineDimExpr>(expr) || strides[i] != 1)
      return std::nullopt;
    axis = i;
  }
  return axis;
}

namespace {
/// Byte counts and addresses that must be multiples of a chunk's bytes.
/// `possible` is false if one is known not to be; `bytes` are tested at run
/// time.
struct Alignment {
  bool possible = true;
  SmallVector<Value> bytes;
};

class AlignmentFinder {
public:
  AlignmentFinder(ImplicitLocOpBuilder &host, ArrayRef<scf::ForOp> loops)
      : host(host), loops(loops) {}

  Alignment find(const Access &access, int64_t axis, int64_t chunk) {
    Alignment result;
    addStrides(access.memref, axis, chunk, result);
    Value base = access.memref;
    // Where an offset is computed on the device, its steps are what counts.
    while (!constantOf(base) && (DeviceValues::contains(base) ||
                                 DeviceValues::dependsOn(base, loops))) {
      Operation *op = base.getDefiningOp();
      auto part = dyn_cast<memref::SubViewOp>(op);
      base = op->getOperand(0);
      if (part)
        addSteps(part, chunk, result);
    }
    if (base != access.memref)
      addStrides(base, /*axis=*/std::nullopt, chunk, result);
    if (memref::GetGlobalOp constant = constantOf(base)) {
      if (base != constant.getResult())
        result.possible = false;
    } else if (!isKnownAligned(base, chunk)) {
      result.bytes.push_back(addressOf(host, base));
    }
    return result;
  }

private:
  /// Adds the strides of all axes but `axis`; without it, all strides but 1.
  void addStrides(Value memref, std::optional<int64_t> axis, int64_t chunk,
                  Alignment &to) {
    auto type = cast<MemRefType>(memref.getType());
    bool own = !DeviceValues::contains(memref) &&
               !DeviceValues::dependsOn(memref, loops) && !constantOf(memref);
    for (auto [i, stride] : llvm::enumerate(type.getStridesAndOffset().first)) {
      if ((axis ? static_cast<int64_t>(i) == *axis : stride == 1) ||
          type.getDimSize(i) == 1)
        continue;
      // Dynamic strides of a view that the device makes are its source's.
      if (ShapedType::isDynamic(stride) && !own)
        continue;
      addStride(strideOf(host, memref, i), type, chunk, to);
    }
  }

  void addStride(OpFoldResult stride, MemRefType type, int64_t chunk,
                 Alignment &to) {
    int64_t bytes = bytesOf(type.getElementType());
    if (std::optional<int64_t> constant = getConstantIntValue(stride)) {
      to.possible &= *constant * bytes % chunk == 0;
      return;
    }
    to.bytes.push_back(
        arith::MulIOp::create(host, cast<Value>(stride),
                              arith::ConstantIndexOp::create(host, bytes)));
  }

  void addSteps(memref::SubViewOp part, int64_t chunk, Alignment &to) {
    auto type = part.getSourceType();
    int64_t bytes = bytesOf(type.getElementType());
    auto strides = type.getStridesAndOffset().first;
    bool own = !DeviceValues::contains(part.getSource()) &&
               !DeviceValues::dependsOn(part.getSource(), loops);
    for (auto [i, at] : llvm::enumerate(part.getMixedOffsets())) {
      std::optional<int64_t> known = getConstantIntValue(at);
      if (known && *known == 0)
        continue;
      if (!ShapedType::isDynamic(strides[i])) {
        int64_t step = strides[i] * bytes * known.value_or(1);
        to.possible &= step % chunk == 0;
      } else if (own) {
        addStride(strideOf(host, part.getSource(), i), type, chunk, to);
      }
    }
  }

  ImplicitLocOpBuilder &host;
  ArrayRef<scf::ForOp> loops;
};
} // namespace

/// A number that is known to divide the size of the last loop of `phase`.
static int64_t findKnownFactor(const Phase &phase) {
  auto size = phase.findSize(phase.getLoops().size() - 1);
  if (!size)
    return 1; // a loop of the host
  auto [memref, axis] = *size;
  auto type = cast<MemRefType>(memref.getType());
  if (!type.isDynamicDim(axis))
    return type.getDimSize(axis);
  auto collapse = memref.getDefiningOp<memref::CollapseShapeOp>();
  if (!collapse)
    return 1;
  int64_t factor = 1;
  ReassociationIndices group = collapse.getReassociationIndices()[axis];
  for (int64_t i : group)
    if (!collapse.getSrcType().isDynamicDim(i))
      factor *= std::max<int64_t>(collapse.getSrcType().getDimSize(i), 1);
  return factor;
}

VectorPlan linalggpu::planVectors(ArrayRef<Phase> phases, OpFoldResult extent,
                                  ImplicitLocOpBuilder &host) {
  VectorPlan plan;
  int64_t smallest = 16;
  bool possible = true;
  for (const Phase &phase : phases) {
    auto &kinds = plan.kinds.emplace_back();
    unsigned last = phase.getLoops().size() - 1;
    for (const Access &access : phase.getOperands()) {
      kinds.push_back(AccessKind::Element);
      if (!access.memref) {
        kinds.back() = AccessKind::Broadcast;
        continue;
      }
      bool runs = llvm::any_of(access.map.getResults(), [&](AffineExpr expr) {
        return expr.isFunctionOfDim(last);
      });
      if (!runs && !access.isWrite)
        kinds.back() = AccessKind::Broadcast;
      else if (findContiguousAxis(access, last))
        kinds.back() = AccessKind::Vector;
      // A reduction's result is written once a row.
      bool reduced = access.isWrite && !runs &&
                     linalg::isReductionIterator(phase.getLoops().back());
      if (reduced)
        kinds.back() = AccessKind::Broadcast;
      if (access.isWrite && kinds.back() == AccessKind::Element)
        possible = false;
      if (kinds.back() == AccessKind::Vector)
        smallest = std::min(
            smallest,
            bytesOf(
                cast<MemRefType>(access.memref.getType()).getElementType()));
    }
  }
  std::optional<int64_t> known = getConstantIntValue(extent);
  plan.width = selectGpuVectorWidth(smallest, known);
  bool useful = llvm::any_of(plan.kinds, [](const auto &kinds) {
    return llvm::is_contained(kinds, AccessKind::Vector);
  });
  if (!possible || !useful || plan.width == 1)
    return plan.byElements();

  SmallVector<Value> rests;
  auto mustDivide = [&](Value bytes, int64_t chunk) {
    rests.push_back(arith::AndIOp::create(
        host, bytes, arith::ConstantIndexOp::create(host, chunk - 1)));
  };
  if (!known && llvm::none_of(phases, [&](const Phase &phase) {
        return findKnownFactor(phase) % plan.width == 0;
      }))
    mustDivide(cast<Value>(extent), plan.width);
  for (auto [phase, kinds] : llvm::zip_equal(phases, plan.kinds)) {
    AlignmentFinder finder(host, phase.getEnclosing());
    unsigned last = phase.getLoops().size() - 1;
    for (auto [access, kind] : llvm::zip_equal(phase.getOperands(), kinds)) {
      if (kind != AccessKind::Vector)
        continue;
      int64_t bytes =
          bytesOf(cast<MemRefType>(access.memref.getType()).getElementType());
      int64_t chunk = std::min<int64_t>(16, plan.width * bytes);
      Alignment alignment =
          finder.find(access, *findContiguousAxis(access, last), chunk);
      if (!alignment.possible) {
        if (access.isWrite)
          return plan.byElements();
        kind = AccessKind::Element;
        continue;
      }
      for (Value value : alignment.bytes)
        mustDivide(value, chunk);
    }
  }
  if (rests.empty())
    return plan;
  Value all = rests.front();
  for (Value rest : ArrayRef(rests).drop_front())
    all = arith::OrIOp::create(host, all, rest);
  plan.condition =
      arith::CmpIOp::create(host, arith::CmpIPredicate::eq, all,
                            arith::ConstantIndexOp::create(host, 0));
  return plan;
}
