//===- MergeGemms.cpp - products of the same rows become one --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Schedule/MergedGemm.h"

#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_MERGEGEMMSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// A slot of the table of weights: one weight, or that of a layer.
struct WeightSlot {
  int64_t weight; // its place in the list of the module
  Value layer;    // null: a constant layer, or none
  int64_t constantLayer = 0;
};

/// A product that may become a part of a larger one.
struct Part {
  GemmOp gemm;
  WeightSlot slot;
  int64_t rows;    // of its result, where known when compiling
  int64_t columns; // of its result

  Type getElement() const { return getElementTypeOrSelf(GemmOp(gemm).getC()); }
};

/// The weights of a module, and which of them lie side by side.
class WeightList {
public:
  explicit WeightList(ModuleOp module)
      : module(module), weights(getWeights(module)),
        followed(weights.size(), false) {
    int64_t slot = 0;
    for (auto [i, weight] : llvm::enumerate(weights)) {
      numbers[weight.getName()] = i;
      firstSlots.push_back(slot);
      slot += weight.getNumSlots();
    }
    for (WeightAttr weight : weights)
      if (!weight.getFollows().empty())
        followed[numbers.lookup(weight.getFollows())] = true;
  }

  WeightAttr operator[](int64_t weight) const { return weights[weight]; }
  int64_t getFirstSlot(int64_t weight) const { return firstSlots[weight]; }

  /// The weight in slot `slot` (index), as diffattn-bind-weights writes it.
  std::optional<WeightSlot> find(Value slot) const {
    if (std::optional<int64_t> number = getConstantIntValue(slot)) {
      std::optional<int64_t> weight = findSlot(*number);
      if (!weight)
        return std::nullopt;
      return WeightSlot{*weight, Value(), *number - firstSlots[*weight]};
    }
    auto sum = slot.getDefiningOp<arith::AddIOp>();
    std::optional<int64_t> first =
        sum ? getConstantIntValue(sum.getRhs()) : std::nullopt;
    std::optional<int64_t> weight = first ? findSlot(*first) : std::nullopt;
    if (!weight || firstSlots[*weight] != *first)
      return std::nullopt;
    if (std::optional<int64_t> layer = getConstantIntValue(sum.getLhs()))
      return WeightSlot{*weight, Value(), *layer};
    return WeightSlot{*weight, sum.getLhs()};
  }

  /// Lets `weight` follow `first`. False if one of them lies beside another.
  bool follow(int64_t weight, int64_t first) {
    if (weights[weight].getFollows() == weights[first].getName())
      return true;
    if (followed[first] || !weights[weight].getFollows().empty())
      return false;
    weights[weight] = weights[weight].withFollows(weights[first].getName());
    followed[first] = true;
    return true;
  }

  void write() {
    module->setAttr(
        kWeightsName,
        ArrayAttr::get(module.getContext(),
                       SmallVector<Attribute>(weights.begin(), weights.end())));
  }

private:
  std::optional<int64_t> findSlot(int64_t slot) const {
    auto *above = llvm::upper_bound(firstSlots, slot);
    if (above == firstSlots.begin())
      return std::nullopt;
    const int64_t weight = above - firstSlots.begin() - 1;
    if (slot - firstSlots[weight] >= weights[weight].getNumSlots())
      return std::nullopt;
    return weight;
  }

  ModuleOp module;
  SmallVector<WeightAttr> weights;
  SmallVector<int64_t> firstSlots;
  SmallVector<bool> followed;
  llvm::StringMap<int64_t> numbers;
};
} // namespace

static int64_t getBytes(Type element) {
  return element.getIntOrFloatBitWidth() / 8;
}

/// `gemm` as a part of a larger product, if it can be one.
static std::optional<Part> matchPart(GemmOp gemm, const WeightList &weights) {
  auto type = dyn_cast<RankedTensorType>(gemm.getC().getType());
  if (!type || type.getRank() != 2 || gemm.getAccumulate() ||
      !gemm.getTransposeB() || !gemm.getC().getDefiningOp<tensor::EmptyOp>() ||
      getElementTypeOrSelf(gemm.getA()) != getElementTypeOrSelf(gemm.getB()) ||
      (type.getElementType() != getElementTypeOrSelf(gemm.getA()) &&
       !type.getElementType().isF32()))
    return std::nullopt;
  auto tensor = gemm.getB().getDefiningOp<bufferization::ToTensorOp>();
  auto weight = tensor ? tensor.getBuffer().getDefiningOp<WeightOp>() : nullptr;
  std::optional<WeightSlot> slot =
      weight ? weights.find(weight.getSlot()) : std::nullopt;
  // Nothing but the whole weight of that slot.
  if (!slot ||
      weight.getType().getShape() != weights[slot->weight].getType().getShape())
    return std::nullopt;
  const int64_t columns = weight.getType().getDimSize(0);
  if (!canMergeGemm(columns, weight.getType().getDimSize(1),
                    getBytes(weight.getType().getElementType()),
                    getBytes(type.getElementType())))
    return std::nullopt;
  return Part{gemm, *slot, type.getDimSize(0), columns};
}

/// Whether one product can have the weights of both, where the table allows it.
static bool isSibling(const Part &a, const Part &b, const WeightList &weights) {
  WeightAttr first = weights[a.slot.weight], second = weights[b.slot.weight];
  // Results of f16 and bf16 are rounded from f32 then.
  return a.slot.weight != b.slot.weight && a.slot.layer == b.slot.layer &&
         a.slot.constantLayer == b.slot.constantLayer &&
         first.getLayers() == second.getLayers() && a.rows == b.rows &&
         first.getType().getElementType() == second.getType().getElementType();
}

/// `sums`, columns of a product in f32, in the narrower type of `like`.
static Value roundTo(ImplicitLocOpBuilder &b, Value sums, Value like) {
  auto map = b.getMultiDimIdentityMap(2);
  return linalg::GenericOp::create(
             b, TypeRange(like.getType()), ValueRange(sums), ValueRange(like),
             ArrayRef<AffineMap>{map, map},
             SmallVector<utils::IteratorType>(2, utils::IteratorType::parallel),
             [&](OpBuilder &nested, Location loc, ValueRange args) {
               Value rounded = arith::TruncFOp::create(
                   nested, loc, args[1].getType(), args[0]);
               linalg::YieldOp::create(nested, loc, rounded);
             })
      .getResult(0);
}

/// Replaces products, which are in the order of their weights, by one, where
/// the first of them stands: all read what it reads.
static void merge(ArrayRef<Part> parts, const WeightList &weights) {
  GemmOp at = parts.front().gemm;
  int64_t columns = 0;
  Type element = parts.front().getElement();
  for (const Part &part : parts) {
    columns += part.columns;
    if (part.gemm->isBeforeInBlock(at))
      at = part.gemm;
    if (getBytes(part.getElement()) > getBytes(element))
      element = part.getElement();
  }
  ImplicitLocOpBuilder b(at.getLoc(), at);
  const WeightSlot &first = parts.front().slot;
  Value slot = arith::ConstantIndexOp::create(
      b, weights.getFirstSlot(first.weight) + first.constantLayer);
  if (first.layer)
    slot = arith::AddIOp::create(b, first.layer, slot);
  RankedTensorType weight = weights[first.weight].getType();
  auto shape = {columns, weight.getDimSize(1)};
  Value buffer = WeightOp::create(
      b, MemRefType::get(shape, weight.getElementType()), slot);
  Value all = bufferization::ToTensorOp::create(
      b, RankedTensorType::get(shape, weight.getElementType()), buffer,
      /*restrict=*/true);
  OpFoldResult rows = tensor::getMixedSize(b, at.getLoc(), at.getC(), 0);
  OpFoldResult zero = b.getIndexAttr(0), one = b.getIndexAttr(1);
  Value init =
      tensor::EmptyOp::create(b, {rows, b.getIndexAttr(columns)}, element);
  Value product = GemmOp::create(b, init.getType(), at.getA(), all, init,
                                 b.getUnitAttr(), /*accumulate=*/nullptr)
                      .getResult();
  int64_t begin = 0;
  for (const Part &part : parts) {
    GemmOp gemm = part.gemm;
    auto type = cast<RankedTensorType>(gemm.getC().getType());
    // The destination of `gemm` is defined before it, and perhaps not before
    // `at`.
    b.setInsertionPoint(gemm);
    b.setLoc(gemm.getLoc());
    Value result = tensor::ExtractSliceOp::create(
        b, type.clone(element), product, {zero, b.getIndexAttr(begin)},
        {rows, b.getIndexAttr(part.columns)}, {one, one});
    if (type.getElementType() != element)
      result = roundTo(b, result, gemm.getC());
    begin += part.columns;
    gemm.getResult().replaceAllUsesWith(result);
    gemm.erase();
  }
}

/// Merges what can be of products with one left side, in one block.
static void mergeGroup(SmallVector<Part> parts, WeightList &weights) {
  // The order of declaration is the same in every function.
  llvm::sort(parts, [](const Part &a, const Part &b) {
    if (a.slot.weight != b.slot.weight)
      return a.slot.weight < b.slot.weight;
    return GemmOp(a.gemm)->isBeforeInBlock(b.gemm);
  });
  while (parts.size() > 1) {
    SmallVector<Part> chosen = {parts.front()}, rest;
    for (const Part &part : llvm::drop_begin(parts)) {
      const Part &last = chosen.back();
      const bool joins = isSibling(last, part, weights) &&
                         weights.follow(part.slot.weight, last.slot.weight);
      (joins ? chosen : rest).push_back(part);
    }
    if (chosen.size() > 1)
      merge(chosen, weights);
    parts = std::move(rest);
  }
}

namespace {
struct MergeGemmsPass final
    : diffattn::impl::MergeGemmsPassBase<MergeGemmsPass> {
  void runOnOperation() override {
    WeightList weights(getOperation());
    using Key = std::pair<Value, Block *>;
    llvm::MapVector<Key, SmallVector<Part>> groups;
    walkOwnOps(getOperation(), [&](Operation *op) {
      if (auto gemm = dyn_cast<GemmOp>(op))
        if (std::optional<Part> part = matchPart(gemm, weights))
          groups[{gemm.getA(), gemm->getBlock()}].push_back(*part);
      return WalkResult::advance();
    });
    if (groups.empty())
      return;
    for (auto &group : groups)
      mergeGroup(std::move(group.second), weights);
    weights.write();
  }
};
} // namespace
