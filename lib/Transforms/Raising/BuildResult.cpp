//===- BuildResult.cpp - the op's result in the graph's shape -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionBuilder.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <algorithm>

namespace mlir::diffattn::raise {

/// The position in the result with loops of extent 1 left out.
SmallVector<IndexPoly> AttentionBuilder::plainPosition() {
  const Roles &r = match.roles;
  IndexSpace::Substitution none;
  for (AtomId loop : {r.batch, r.head, r.query, r.valueWidth})
    if (extent(loop) == IndexPoly(1))
      none[loop] = 0;
  SmallVector<IndexPoly> position;
  for (const IndexPoly &poly : epilogue.position)
    position.push_back(graph.space.substitute(poly, none));
  return position;
}

/// Groups of neighbouring axes of `order` that make the axes of the result,
/// other than its axes of one element.
bool AttentionBuilder::groupsOf(ArrayRef<AtomId> order,
                                SmallVectorImpl<ReassociationIndices> &groups) {
  unsigned at = 0;
  ReassociationIndices group;
  auto isUnit = [&](unsigned k) { return extent(order[k]) == IndexPoly(1); };
  for (auto [axis, poly] : llvm::enumerate(plainPosition())) {
    if (poly == IndexPoly(0))
      continue;
    IndexPoly flat, size = 1;
    do {
      if (at == order.size())
        return false;
      if (!isUnit(at))
        flat = flat * extent(order[at]) + IndexPoly::atom(order[at]);
      size = size * extent(order[at]);
      group.push_back(at++);
    } while (flat != poly);
    // Sizes that contradict one another are those of a program that fails when
    // it runs.
    if (std::optional<int64_t> more =
            (size - graph.sizeOf(epilogue.result, axis)).constant();
        more && *more != 0)
      return false;
    groups.push_back(group);
    group.clear();
  }
  for (; at < order.size(); ++at) {
    if (!isUnit(at) || groups.empty())
      return false;
    groups.back().push_back(at);
  }
  return true;
}

std::optional<SmallVector<AtomId>> AttentionBuilder::resultOrder() {
  const Roles &r = match.roles;
  SmallVector<unsigned> permutation{0, 1, 2, 3};
  SmallVector<AtomId> axes{r.batch, r.head, r.query, r.valueWidth};
  SmallVector<SmallVector<AtomId>> orders = bothLayouts(axes);
  do {
    SmallVector<AtomId> order;
    for (unsigned k : permutation)
      order.push_back(axes[k]);
    orders.push_back(order);
  } while (std::next_permutation(permutation.begin(), permutation.end()));
  for (const auto &order : orders) {
    SmallVector<ReassociationIndices> groups;
    if (groupsOf(order, groups))
      return order;
  }
  for (const auto &order : orders)
    if (sameRowMajor(order))
      return order;
  return std::nullopt;
}

/// True if both run through their elements in one order: the result's axes cut
/// through the heads, as those of a product of grouped heads do.
bool AttentionBuilder::sameRowMajor(ArrayRef<AtomId> order) {
  IndexPoly ours, theirs;
  for (AtomId loop : order)
    ours =
        ours * extent(loop) +
        (extent(loop) == IndexPoly(1) ? IndexPoly(0) : IndexPoly::atom(loop));
  IndexPoly count = 1, theirCount = 1;
  for (AtomId loop : order)
    count = count * extent(loop);
  for (auto [axis, poly] : llvm::enumerate(plainPosition())) {
    IndexPoly size = graph.sizeOf(epilogue.result, axis);
    theirs = theirs * size + poly;
    theirCount = theirCount * size;
  }
  return ours == theirs && count == theirCount;
}

static ReassociationIndices allAxes(int64_t rank) {
  return llvm::to_vector<2>(llvm::seq<int64_t>(0, rank));
}

/// The elements of `value` in row-major order as a tensor of the result's
/// shape.
Value AttentionBuilder::regrouped(Value value) {
  auto target = cast<RankedTensorType>(epilogue.result.getType());
  auto now = cast<RankedTensorType>(value.getType());
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0; axis < target.getRank(); ++axis)
    sizes.push_back(tensors.size(graph.sizeOf(epilogue.result, axis)));
  value = tensor::CollapseShapeOp::create(
      builder, loc, value,
      SmallVector<ReassociationIndices>{allAxes(now.getRank())});
  return tensors.expanded(value, {allAxes(target.getRank())}, sizes);
}

/// The result times what both maps are multiplied by.
Value AttentionBuilder::scaled(Value value, ArrayRef<AtomId> order) {
  SmallVector<IndexPoly> position;
  for (AtomId loop : order)
    position.push_back(IndexPoly::atom(loop));
  Expr all = graph.make(Kind::Cast, f32(), {graph.load(value, position)});
  for (Expr factor : match.commonFactors)
    all = graph.make(Kind::Mul, f32(),
                     {all, graph.make(Kind::Cast, f32(), {factor})});
  Type target = elementType(epilogue.result);
  return tensors.generic(
      all, order,
      isa<Float32Type>(target) || isHalfFloat(target) ? target : f32());
}

/// The result with its own axes and element type.
Value AttentionBuilder::shaped(Value value, ArrayRef<AtomId> order) {
  SmallVector<ReassociationIndices> groups;
  bool grouped = groupsOf(order, groups);
  auto target = cast<RankedTensorType>(epilogue.result.getType());
  Type scalar = elementType(value);
  if (!grouped)
    value = regrouped(value);
  else if (groups.size() != order.size())
    value = tensor::CollapseShapeOp::create(builder, loc, value, groups);
  auto now = cast<RankedTensorType>(value.getType());
  if (grouped && now.getRank() != target.getRank()) {
    SmallVector<ReassociationIndices> insert(now.getRank());
    SmallVector<OpFoldResult> sizes;
    unsigned at = 0;
    bool filled = false;
    for (auto [axis, poly] : llvm::enumerate(plainPosition())) {
      bool unit = poly == IndexPoly(0);
      if (!unit && filled) {
        ++at;
        filled = false;
      }
      insert[at].push_back(axis);
      filled |= !unit;
      sizes.push_back(tensors.size(
          graph.sizeOf(epilogue.result, static_cast<int64_t>(axis))));
    }
    value = tensors.expanded(value, insert, sizes);
  }
  if (scalar != target.getElementType()) {
    SmallVector<IndexPoly> loops = graph.freshLoops(epilogue.result);
    SmallVector<AtomId> ids;
    for (const IndexPoly &loop : loops)
      ids.push_back(*loop.asAtom());
    value =
        tensors.generic(graph.load(value, loops), ids, target.getElementType());
  }
  if (value.getType() != target)
    value = tensor::CastOp::create(builder, loc, target, value);
  return value;
}

} // namespace mlir::diffattn::raise
