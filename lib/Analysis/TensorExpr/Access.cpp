//===- Access.cpp - seeing through what only moves elements ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn::tensorexpr {

//===----------------------------------------------------------------------===//
// Constants
//===----------------------------------------------------------------------===//

std::optional<double> constantAt(Attribute elements, int64_t position) {
  if (auto dense = dyn_cast<DenseElementsAttr>(elements)) {
    if (position >= dense.getNumElements())
      return std::nullopt;
    if (isNumberOfF64(dense.getElementType()))
      return dense.getValues<APFloat>()[position].convertToDouble();
    if (dense.getElementType().isInteger(1))
      return dense.getValues<bool>()[position];
    if (dense.getElementType().isIntOrIndex())
      return dense.getValues<APInt>()[position].signedRoundToDouble();
  }
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(elements)) {
    AsmResourceBlob *blob = resource.getRawHandle().getBlob();
    if (!blob)
      return std::nullopt;
    ArrayRef<char> data = blob->getData();
    Type type = resource.getElementType();
    auto read = [&](auto sample) -> std::optional<double> {
      if ((position + 1) * sizeof(sample) > data.size())
        return std::nullopt;
      memcpy(&sample, data.data() + position * sizeof(sample), sizeof(sample));
      return static_cast<double>(sample);
    };
    if (type.isF32())
      return read(float());
    if (type.isF64())
      return read(double());
    if (type.isInteger(64) || type.isIndex())
      return read(int64_t());
    if (type.isInteger(32))
      return read(int32_t());
    if (type.isInteger(16))
      return read(int16_t());
    if (type.isInteger(8))
      return read(int8_t());
    if (type.isInteger(1)) {
      std::optional<double> byte = read(uint8_t());
      return byte ? std::optional<double>(*byte != 0) : byte;
    }
    if (auto half = dyn_cast<FloatType>(type); half && half.getWidth() == 16)
      if (std::optional<double> bits = read(uint16_t()))
        return APFloat(half.getFloatSemantics(),
                       APInt(16, static_cast<uint64_t>(*bits)))
            .convertToDouble();
  }
  return std::nullopt;
}

std::optional<int64_t> integerAt(Attribute elements, int64_t position) {
  Type type = cast<ElementsAttr>(elements).getElementType();
  if (!type.isIntOrIndex())
    return std::nullopt;
  if (auto dense = dyn_cast<DenseElementsAttr>(elements);
      dense && !type.isInteger(1)) {
    if (position >= dense.getNumElements())
      return std::nullopt;
    APInt number = dense.getValues<APInt>()[position];
    return number.isSignedIntN(64) ? std::optional(number.getSExtValue())
                                   : std::nullopt;
  }
  auto resource = dyn_cast<DenseResourceElementsAttr>(elements);
  if (AsmResourceBlob *blob =
          resource ? resource.getRawHandle().getBlob() : nullptr;
      blob && (type.isInteger(64) || type.isIndex())) {
    int64_t number;
    if ((position + 1) * sizeof(number) > blob->getData().size())
      return std::nullopt;
    memcpy(&number, blob->getData().data() + position * sizeof(number),
           sizeof(number));
    return number;
  }
  // Narrower ones are numbers of f64 too.
  std::optional<double> number = constantAt(elements, position);
  return number ? std::optional<int64_t>(static_cast<int64_t>(*number))
                : std::nullopt;
}

Expr ExprGraph::constantElement(Value tensor, ArrayRef<IndexPoly> indices) {
  Attribute elements;
  if (!matchPattern(tensor, m_Constant(&elements)))
    return nullptr;
  auto type = cast<ShapedType>(tensor.getType());
  std::optional<int64_t> position;
  auto dense = dyn_cast<DenseElementsAttr>(elements);
  if ((dense && dense.isSplat()) ||
      (type.hasStaticShape() && type.getNumElements() == 1)) {
    position = 0;
  } else if (type.hasStaticShape()) {
    position = 0;
    for (auto [axis, poly] : llvm::enumerate(indices)) {
      std::optional<int64_t> at = poly.constant();
      if (!at || *at < 0 || *at >= type.getDimSize(axis))
        return nullptr;
      position = *position * type.getDimSize(axis) + *at;
    }
  }
  if (!position)
    return nullptr;
  Type scalar = type.getElementType();
  if (isInteger(scalar)) {
    std::optional<int64_t> integer = integerAt(elements, *position);
    return integer ? index(*integer) : nullptr;
  }
  std::optional<double> number = constantAt(elements, *position);
  return number ? constant(*number, scalar) : nullptr;
}

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

/// Splits the flat position in axis `k` of the source over the axes of one
/// group, or joins them, both row-major.
static IndexPoly joinAxes(ExprGraph &graph, Value tensor,
                          ArrayRef<int64_t> group,
                          ArrayRef<IndexPoly> indices) {
  IndexPoly flat;
  for (int64_t k : group)
    flat = flat * graph.sizeOf(tensor, k) + indices[k];
  return flat;
}

static void splitAxes(ExprGraph &graph, Value tensor, ArrayRef<int64_t> group,
                      IndexPoly flat, SmallVectorImpl<IndexPoly> &indices) {
  SmallVector<IndexPoly> split;
  for (auto [n, k] : llvm::enumerate(llvm::reverse(group))) {
    IndexPoly size = graph.sizeOf(tensor, k);
    if (n + 1 == group.size()) {
      split.push_back(flat);
    } else {
      split.push_back(graph.space.mod(flat, size));
      flat = graph.space.floorDiv(flat, size);
    }
  }
  indices.append(split.rbegin(), split.rend());
}

static Expr loadConcat(ExprGraph &graph, tensor::ConcatOp concat,
                       ArrayRef<IndexPoly> indices) {
  IndexPoly offset;
  int64_t along = concat.getDim();
  for (Value input : concat.getInputs()) {
    IndexPoly end = offset + graph.sizeOf(input, along);
    if (graph.space.provablyNonNegative(indices[along] - offset) &&
        graph.space.provablyLess(indices[along], end)) {
      SmallVector<IndexPoly> inner(indices);
      inner[along] = indices[along] - offset;
      return graph.load(input, inner);
    }
    offset = end;
  }
  return nullptr;
}

static Expr loadInsert(ExprGraph &graph, tensor::InsertSliceOp insert,
                       ArrayRef<IndexPoly> indices) {
  bool inside = true, outside = false;
  llvm::SmallBitVector dropped = insert.getDroppedDims();
  SmallVector<IndexPoly> inner;
  for (auto [axis, offset, size, stride] :
       llvm::enumerate(insert.getMixedOffsets(), insert.getMixedSizes(),
                       insert.getMixedStrides())) {
    if (graph.polyOf(stride) != IndexPoly(1))
      return nullptr;
    IndexPoly at = indices[axis] - graph.polyOf(offset);
    IndexPoly extent = graph.polyOf(size);
    inside &= graph.space.provablyNonNegative(at) &&
              graph.space.provablyLess(at, extent);
    outside |= graph.space.provablyNonNegative(at - extent) ||
               graph.space.provablyNonNegative(IndexPoly(-1) - at);
    if (!dropped.test(axis))
      inner.push_back(at);
  }
  if (inside)
    return graph.load(insert.getSource(), inner);
  return outside ? graph.load(insert.getDest(), indices) : nullptr;
}

/// True for what a body may hold that only gathers: arithmetic of integers.
static bool movesElements(Operation &op) {
  if (isa<linalg::IndexOp, tensor::ExtractOp, arith::ConstantOp,
          arith::SelectOp>(op))
    return true;
  auto isInt = [](Type type) { return type.isIntOrIndex(); };
  return isa<arith::ArithDialect>(op.getDialect()) && op.getNumRegions() == 0 &&
         llvm::all_of(op.getOperandTypes(), isInt) &&
         llvm::all_of(op.getResultTypes(), isInt);
}

/// The element that a body reads that only yields, or gathers at positions that
/// it computes.
Expr ExprGraph::seeThroughBody(Value tensor, ArrayRef<IndexPoly> indices) {
  auto op = cast<linalg::LinalgOp>(tensor.getDefiningOp());
  if (!isElementwise(op) || !op.hasPureTensorSemantics() ||
      !llvm::all_of(op.getBlock()->without_terminator(), movesElements))
    return nullptr;
  auto read = [&]() -> Expr {
    Expr element =
        expandLinalg(op, cast<OpResult>(tensor).getResultNumber(), indices);
    return element && (element->kind == Kind::Load ||
                       element->kind == Kind::Const ||
                       element->kind == Kind::Index ||
                       element->kind == Kind::Scalar)
               ? element
               : nullptr;
  };
  if (op.getBlock()->without_terminator().empty())
    return read();
  // It may read one tensor twice, and that another. What stops at the limits of
  // polyOf and scalar is not kept.
  Place place(conditional, {});
  for (const IndexPoly &at : indices)
    place.second.push_back(at.terms);
  if (auto it = gathered.find(tensor); it != gathered.end())
    if (auto element = it->second.find(place); element != it->second.end())
      return element->second ? add(*element->second) : nullptr;
  Expr element = read();
  if (polyDepth == 0 && scalarDepth == 0)
    gathered[tensor][place] = element;
  return element;
}

Expr ExprGraph::seeThrough(Value tensor, ArrayRef<IndexPoly> indices) {
  Operation *op = tensor.getDefiningOp();
  if (!op)
    return nullptr;
  return TypeSwitch<Operation *, Expr>(op)
      .Case([&](tensor::CastOp cast) {
        return isa<RankedTensorType>(cast.getSource().getType())
                   ? load(cast.getSource(), indices)
                   : nullptr;
      })
      .Case([&](tensor::CollapseShapeOp collapse) {
        SmallVector<IndexPoly> inner;
        for (auto [axis, group] :
             llvm::enumerate(collapse.getReassociationIndices()))
          splitAxes(*this, collapse.getSrc(), group, indices[axis], inner);
        // The one element of a source that loses all its axes has no group.
        inner.resize(collapse.getSrcType().getRank());
        return load(collapse.getSrc(), inner);
      })
      .Case([&](tensor::ExpandShapeOp expand) {
        SmallVector<IndexPoly> inner;
        for (auto &group : expand.getReassociationIndices())
          inner.push_back(joinAxes(*this, expand.getResult(), group, indices));
        return load(expand.getSrc(), inner);
      })
      .Case([&](tensor::ReshapeOp reshape) -> Expr {
        if (!isa<RankedTensorType>(reshape.getSource().getType()) ||
            !isa<RankedTensorType>(reshape.getResult().getType()))
          return nullptr;
        int64_t from = reshape.getResult().getType().getRank();
        int64_t to =
            cast<RankedTensorType>(reshape.getSource().getType()).getRank();
        IndexPoly flat =
            joinAxes(*this, reshape.getResult(),
                     llvm::to_vector(llvm::seq<int64_t>(0, from)), indices);
        SmallVector<IndexPoly> inner;
        splitAxes(*this, reshape.getSource(),
                  llvm::to_vector(llvm::seq<int64_t>(0, to)), flat, inner);
        return load(reshape.getSource(), inner);
      })
      .Case([&](tensor::ExtractSliceOp slice) {
        llvm::SmallBitVector dropped = slice.getDroppedDims();
        SmallVector<IndexPoly> inner;
        unsigned axis = 0;
        for (auto [k, offset, stride] : llvm::enumerate(
                 slice.getMixedOffsets(), slice.getMixedStrides())) {
          IndexPoly at = polyOf(offset);
          if (!dropped.test(k))
            at = at + indices[axis++] * polyOf(stride);
          inner.push_back(at);
        }
        return load(slice.getSource(), inner);
      })
      .Case([&](tensor::InsertSliceOp insert) {
        return loadInsert(*this, insert, indices);
      })
      .Case([&](tensor::ConcatOp concat) {
        return loadConcat(*this, concat, indices);
      })
      .Case([&](tensor::SplatOp splat) { return scalar(splat.getInput()); })
      .Case([&](tensor::FromElementsOp from) -> Expr {
        int64_t position = 0;
        for (auto [axis, poly] : llvm::enumerate(indices)) {
          int64_t size = from.getType().getDimSize(axis);
          // In an axis of one element there is one position.
          std::optional<int64_t> at =
              size == 1 ? std::optional<int64_t>(0) : poly.constant();
          if (!at || *at < 0 || *at >= size)
            return nullptr;
          position = position * size + *at;
        }
        return scalar(from.getElements()[position]);
      })
      .Case([&](linalg::FillOp fill) { return scalar(fill.getInputs()[0]); })
      .Case([&](linalg::LinalgOp) { return seeThroughBody(tensor, indices); })
      .Default([](Operation *) { return nullptr; });
}

Expr ExprGraph::load(Value tensor, ArrayRef<IndexPoly> indices) {
  if (Expr number = constantElement(tensor, indices))
    return number;
  if (llvm::all_of(indices, [&](const IndexPoly &at) { return isSmall(at); }))
    if (Expr further = seeThrough(tensor, indices))
      return further;
  Node node(Kind::Load, elementType(tensor));
  node.value = tensor;
  node.indices.assign(indices.begin(), indices.end());
  return add(std::move(node));
}

} // namespace mlir::diffattn::tensorexpr
