//===- Views.cpp - operands as views of what they read --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Raising/Materialize.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <algorithm>

namespace mlir::diffattn::raise {

/// Writes the position in one axis as positions in the axes that it splits
/// into, outermost first, each with one loop at most.
bool Materializer::decompose(const IndexPoly &poly, const IndexPoly &size,
                             SmallVectorImpl<Piece> &pieces) {
  SmallVector<AtomId> loops;
  for (auto &[monomial, coefficient] : poly.terms)
    for (AtomId id : monomial) {
      if (graph.space[id].kind == IndexSpace::Atom::FloorDiv ||
          graph.space[id].kind == IndexSpace::Atom::Broadcast ||
          graph.space[id].kind == IndexSpace::Atom::Within ||
          graph.space[id].kind == IndexSpace::Atom::Opaque)
        return false;
      if (graph.space[id].kind == IndexSpace::Atom::Loop &&
          !llvm::is_contained(loops, id))
        loops.push_back(id);
    }
  auto coefficientOf = [&](AtomId loop) {
    IndexPoly result;
    for (auto &[monomial, coefficient] : poly.terms)
      if (llvm::is_contained(monomial, loop)) {
        Monomial rest = monomial;
        rest.erase(llvm::find(rest, loop));
        result.addTerm(rest, coefficient);
      }
    return result;
  };
  if (loops.size() <= 1) {
    Piece piece;
    piece.size = size;
    piece.offset = poly;
    if (loops.size() == 1) {
      std::optional<int64_t> stride = coefficientOf(loops[0]).constant();
      if (!stride || *stride <= 0)
        return false;
      piece.stride = *stride;
      piece.loop = loops[0];
      piece.offset = poly - IndexPoly(*stride) * IndexPoly::atom(loops[0]);
    }
    // A contiguous stride whose steps are whole groups is a group of its own:
    // (2 n + 1) of 6 is axis 0 and number 1 of [3, 2], but a slice is as good.
    pieces.push_back(piece);
    return true;
  }
  // The innermost loop is the one whose rest divides by a stride.
  for (AtomId inner : loops)
    for (AtomId outer : loops) {
      if (inner == outer)
        continue;
      IndexPoly stride = coefficientOf(outer);
      if (stride.terms.size() != 1 || stride.terms.begin()->second <= 0)
        continue;
      IndexPoly quotient = graph.space.floorDiv(poly, stride);
      IndexPoly rest = poly - stride * quotient;
      IndexPoly outerSize = graph.space.floorDiv(size, stride);
      bool clean =
          outerSize * stride == size && !graph.space.mentions(quotient, inner);
      for (AtomId other : loops)
        clean &= other == inner || !graph.space.mentions(rest, other);
      SmallVector<Piece> tail;
      if (!clean || !decompose(quotient, outerSize, pieces)) {
        pieces.clear();
        continue;
      }
      if (!decompose(rest, stride, tail))
        return false;
      pieces.append(tail);
      return true;
    }
  return false;
}

static int64_t staticSize(OpFoldResult size) {
  std::optional<int64_t> number = getConstantIntValue(size);
  return number && isa<Attribute>(size) ? *number : ShapedType::kDynamic;
}

Value Materializer::expanded(Value source,
                             ArrayRef<ReassociationIndices> groups,
                             ArrayRef<OpFoldResult> sizes) {
  auto type = cast<RankedTensorType>(source.getType());
  SmallVector<int64_t> shape = llvm::map_to_vector(sizes, staticSize);
  SmallVector<int64_t> before;
  for (const ReassociationIndices &group : groups) {
    int64_t product = 1;
    for (int64_t axis : group)
      product =
          ShapedType::isDynamic(product) || ShapedType::isDynamic(shape[axis])
              ? ShapedType::kDynamic
              : product * shape[axis];
    before.push_back(product);
  }
  auto collapsedType = RankedTensorType::get(before, type.getElementType());
  if (collapsedType != type)
    source = tensor::CastOp::create(builder, loc, collapsedType, source);
  return tensor::ExpandShapeOp::create(
      builder, loc, RankedTensorType::get(shape, type.getElementType()), source,
      groups, sizes);
}

Value Materializer::view(Expr element, ArrayRef<SmallVector<AtomId>> orders,
                         unsigned &chosen) {
  if (element->kind != Kind::Load)
    return Value();
  // Split the axes of the base.
  Value base = baseOf(builder, element->value);
  SmallVector<Piece> pieces;
  SmallVector<ReassociationIndices> groups;
  for (auto [axis, poly] : llvm::enumerate(element->indices)) {
    SmallVector<Piece> split;
    if (!decompose(poly, graph.sizeOf(base, axis), split))
      return Value();
    ReassociationIndices group;
    for (const Piece &piece : split) {
      group.push_back(pieces.size());
      pieces.push_back(piece);
    }
    groups.push_back(group);
  }
  SmallVector<AtomId> axes;
  for (const Piece &piece : pieces)
    if (piece.loop) {
      if (llvm::is_contained(axes, *piece.loop))
        return Value(); // a diagonal
      axes.push_back(*piece.loop);
    }
  // Sizes that contradict one another are those of a program that fails when
  // it runs; a view of them would not be valid.
  for (const Piece &piece : pieces) {
    IndexPoly extent =
        piece.loop ? graph.space.extent(*piece.loop) : IndexPoly(1);
    IndexPoly last = piece.offset + IndexPoly(piece.stride) * (extent - 1);
    for (const IndexPoly &room : {piece.offset, piece.size - 1 - last})
      if (std::optional<int64_t> number = room.constant();
          number && *number < 0)
        return Value();
  }
  // A loop that the base does not have must be of extent 1; it is inserted.
  bool fits = false;
  for (auto [number, order] : llvm::enumerate(orders)) {
    SmallVector<AtomId> present;
    bool unit = true;
    for (AtomId loop : order)
      if (llvm::is_contained(axes, loop))
        present.push_back(loop);
      else
        unit &= graph.space.extent(loop) == IndexPoly(1);
    if (!unit || present.size() != axes.size())
      continue;
    if (present == axes) {
      chosen = number;
      fits = true;
      break;
    }
  }
  if (!fits)
    return Value();

  auto staticOf = [&](const IndexPoly &poly) {
    std::optional<int64_t> number = poly.constant();
    return number ? *number : ShapedType::kDynamic;
  };
  Type scalarType = elementType(base);
  if (pieces.size() > groups.size()) {
    SmallVector<OpFoldResult> sizes;
    for (const Piece &piece : pieces)
      sizes.push_back(size(piece.size));
    base = expanded(base, groups, sizes);
  }
  // Take the part of each axis that the loops run over, and drop fixed axes.
  SmallVector<OpFoldResult> offsets, sizes, strides;
  SmallVector<int64_t> shape;
  bool whole = true;
  for (const Piece &piece : pieces) {
    IndexPoly extent =
        piece.loop ? graph.space.extent(*piece.loop) : IndexPoly(1);
    whole &= piece.loop && piece.offset == IndexPoly(0) && piece.stride == 1 &&
             extent == piece.size;
    offsets.push_back(size(piece.offset));
    sizes.push_back(size(extent));
    strides.push_back(builder.getIndexAttr(piece.stride));
    if (piece.loop)
      shape.push_back(staticOf(extent));
  }
  if (!whole)
    base = tensor::ExtractSliceOp::create(
        builder, loc, RankedTensorType::get(shape, scalarType), base, offsets,
        sizes, strides);
  // Insert the axes of extent 1.
  const SmallVector<AtomId> &order = orders[chosen];
  if (order.size() != axes.size()) {
    SmallVector<ReassociationIndices> insert(axes.size());
    SmallVector<OpFoldResult> fullSizes;
    unsigned at = 0;
    for (auto [k, loop] : llvm::enumerate(order)) {
      bool present = llvm::is_contained(axes, loop);
      if (!axes.empty()) {
        if (present && k > 0 && !insert[at].empty() &&
            llvm::any_of(insert[at], [&](int64_t i) {
              return llvm::is_contained(axes, order[i]);
            }))
          ++at;
        insert[at].push_back(k);
      }
      fullSizes.push_back(size(graph.space.extent(loop)));
    }
    base = expanded(base, insert, fullSizes);
  }
  return base;
}

} // namespace mlir::diffattn::raise
