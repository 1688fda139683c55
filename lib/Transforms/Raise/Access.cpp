//===- Access.cpp - seeing through what only moves elements ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Raise/Expr.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn::raise {

//===----------------------------------------------------------------------===//
// Sizes
//===----------------------------------------------------------------------===//

IndexPoly ExprGraph::sizeOf(Value tensor, int64_t axis) {
  auto type = cast<ShapedType>(tensor.getType());
  return type.isDynamicDim(axis) ? space.size(tensor, axis)
                                 : IndexPoly(type.getDimSize(axis));
}

std::optional<int64_t> knownAxis(tensor::DimOp dim) {
  auto type = dyn_cast<RankedTensorType>(dim.getSource().getType());
  std::optional<int64_t> axis = dim.getConstantIndex();
  // The verifier lets an axis pass that the tensor does not have.
  return type && axis && *axis >= 0 && *axis < type.getRank() ? axis
                                                              : std::nullopt;
}

static IndexPoly polyOfMixed(ExprGraph &graph, OpFoldResult size) {
  if (auto attribute = dyn_cast<Attribute>(size))
    return cast<IntegerAttr>(attribute).getInt();
  return graph.polyOf(cast<Value>(size));
}

// Integers may be computed by long chains that use each value twice: written
// out, these have more terms than memory. The sizes of models stay far below.
static constexpr unsigned kMostPolyDepth = 100, kMostPolySteps = 500;
static constexpr size_t kMostTerms = 64, kMostDegree = 16;

IndexPoly ExprGraph::polyOf(Value integer) {
  if (polyDepth == 0)
    polySteps = 0;
  if (polyDepth == kMostPolyDepth || ++polySteps > kMostPolySteps)
    return space.opaque(integer);
  ++polyDepth;
  IndexPoly poly = readPoly(integer);
  --polyDepth;
  bool small = poly.terms.size() <= kMostTerms &&
               llvm::all_of(poly.terms, [](const auto &term) {
                 return term.first.size() <= kMostDegree;
               });
  return small ? poly : space.opaque(integer);
}

IndexPoly ExprGraph::readPoly(Value integer) {
  APInt number;
  if (matchPattern(integer, m_ConstantInt(&number)))
    return number.isSignedIntN(64) ? IndexPoly(number.getSExtValue())
                                   : space.opaque(integer);
  Operation *op = integer.getDefiningOp();
  if (!op)
    return space.opaque(integer);
  return TypeSwitch<Operation *, IndexPoly>(op)
      .Case([&](tensor::DimOp dim) {
        std::optional<int64_t> axis = knownAxis(dim);
        return axis ? sizeOf(dim.getSource(), *axis) : space.opaque(integer);
      })
      .Case<arith::IndexCastOp, arith::IndexCastUIOp, arith::ExtSIOp>(
          [&](auto cast) { return polyOf(cast.getIn()); })
      .Case([&](arith::AddIOp add) {
        return polyOf(add.getLhs()) + polyOf(add.getRhs());
      })
      .Case([&](arith::SubIOp sub) {
        return polyOf(sub.getLhs()) - polyOf(sub.getRhs());
      })
      .Case([&](arith::MulIOp mul) {
        return polyOf(mul.getLhs()) * polyOf(mul.getRhs());
      })
      .Case<arith::DivSIOp, arith::DivUIOp, arith::FloorDivSIOp>([&](auto div) {
        return space.floorDiv(polyOf(div.getLhs()), polyOf(div.getRhs()));
      })
      .Case<arith::ExtUIOp, arith::TruncIOp>([&](auto cast) -> IndexPoly {
        if (cast.getIn().getType().isInteger(1))
          if (std::optional<bool> truth = truthOf(cast.getIn()))
            return *truth;
        if (isa<arith::TruncIOp>(op))
          return polyOf(cast.getIn());
        return space.opaque(integer);
      })
      .Case([&](arith::SelectOp select) -> IndexPoly {
        if (std::optional<bool> truth = truthOf(select.getCondition()))
          return polyOf(*truth ? select.getTrueValue()
                               : select.getFalseValue());
        IndexPoly a = polyOf(select.getTrueValue()),
                  b = polyOf(select.getFalseValue());
        return a == b ? a : space.opaque(integer);
      })
      .Case([&](affine::AffineApplyOp apply) {
        SmallVector<IndexPoly> operands;
        for (Value operand : apply.getMapOperands())
          operands.push_back(polyOf(operand));
        return space.apply(apply.getAffineMap().getResult(0), operands,
                           apply.getAffineMap().getNumDims());
      })
      .Default([&](Operation *) { return space.opaque(integer); });
}

std::optional<bool> ExprGraph::truthOf(Value condition) {
  APInt number;
  if (matchPattern(condition, m_ConstantInt(&number)))
    return !number.isZero();
  auto compare = condition.getDefiningOp<arith::CmpIOp>();
  if (!compare || !compare.getLhs().getType().isIntOrIndex() ||
      compare.getLhs().getType().isInteger(1))
    return std::nullopt;
  Expr truth =
      make(Kind::CmpI, condition.getType(),
           {index(polyOf(compare.getLhs())), index(polyOf(compare.getRhs()))},
           static_cast<int64_t>(compare.getPredicate()));
  return truth->kind == Kind::Const ? std::optional<bool>(truth->number != 0)
                                    : std::nullopt;
}

static IndexPoly elementsOf(ExprGraph &graph, Value tensor) {
  IndexPoly product = 1;
  for (int64_t axis = 0; axis < cast<ShapedType>(tensor.getType()).getRank();
       ++axis)
    product = product * graph.sizeOf(tensor, axis);
  return product;
}

void ExprGraph::joinSizesOf(Operation *op, bool trusting) {
  auto joinAxis = [&](Value a, int64_t i, Value b, int64_t k) {
    space.join(sizeOf(a, i), sizeOf(b, k));
  };
  auto joinShapes = [&](Value a, Value b) {
    auto lhs = dyn_cast<RankedTensorType>(a.getType());
    auto rhs = dyn_cast<RankedTensorType>(b.getType());
    if (lhs && rhs && lhs.getRank() == rhs.getRank())
      for (int64_t axis = 0; axis < lhs.getRank(); ++axis)
        joinAxis(a, axis, b, axis);
  };
  if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op)) {
    if (!linalgOp.hasPureTensorSemantics())
      return;
    SmallVector<std::optional<IndexPoly>> loops(linalgOp.getNumLoops());
    for (OpOperand &operand : op->getOpOperands()) {
      if (!trusting || !isa<RankedTensorType>(operand.get().getType()))
        continue;
      AffineMap map = linalgOp.getMatchingIndexingMap(&operand);
      for (auto [axis, expr] : llvm::enumerate(map.getResults()))
        if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
          std::optional<IndexPoly> &loop = loops[dim.getPosition()];
          if (loop)
            space.join(sizeOf(operand.get(), axis), *loop);
          else
            loop = sizeOf(operand.get(), axis);
        }
    }
    for (auto [init, result] :
         llvm::zip(linalgOp.getDpsInits(), op->getResults()))
      joinShapes(result, init);
    return;
  }
  if (op->hasTrait<OpTrait::Elementwise>() && op->getNumResults() == 1) {
    for (Value operand : op->getOperands().take_front(trusting ? ~0u : 1))
      joinShapes(op->getResult(0), operand);
    return;
  }
  TypeSwitch<Operation *>(op)
      .Case([&](tensor::EmptyOp empty) {
        for (auto [axis, size] : llvm::enumerate(empty.getMixedSizes()))
          space.join(sizeOf(empty, axis), polyOfMixed(*this, size));
      })
      .Case([&](tensor::ExpandShapeOp expand) {
        auto sizes = expand.getMixedOutputShape();
        for (auto [axis, group] :
             llvm::enumerate(expand.getReassociationIndices())) {
          IndexPoly product = 1;
          for (int64_t k : group) {
            space.join(sizeOf(expand.getResult(), k),
                       polyOfMixed(*this, sizes[k]));
            product = product * sizeOf(expand.getResult(), k);
          }
          if (trusting)
            space.join(sizeOf(expand.getSrc(), axis), product);
        }
      })
      .Case([&](tensor::CollapseShapeOp collapse) {
        for (auto [axis, group] :
             llvm::enumerate(collapse.getReassociationIndices())) {
          IndexPoly product = 1;
          for (int64_t k : group)
            product = product * sizeOf(collapse.getSrc(), k);
          space.join(sizeOf(collapse.getResult(), axis), product);
        }
      })
      .Case([&](tensor::CastOp cast) {
        auto to = dyn_cast<RankedTensorType>(cast.getType());
        if (to && isa<RankedTensorType>(cast.getSource().getType()))
          for (int64_t axis = 0; axis < to.getRank(); ++axis)
            if (trusting || to.isDynamicDim(axis))
              joinAxis(cast.getResult(), axis, cast.getSource(), axis);
      })
      .Case([&](tensor::ReshapeOp reshape) {
        auto shape = reshape.getShape().getDefiningOp<tensor::FromElementsOp>();
        if (shape && isa<RankedTensorType>(reshape.getResult().getType()))
          for (auto [axis, size] : llvm::enumerate(shape.getElements()))
            space.join(sizeOf(reshape.getResult(), axis), polyOf(size));
        // A reshape keeps the number of elements.
        if (trusting && isa<RankedTensorType>(reshape.getResult().getType()) &&
            isa<RankedTensorType>(reshape.getSource().getType()))
          space.joinProducts(elementsOf(*this, reshape.getSource()),
                             elementsOf(*this, reshape.getResult()));
      })
      .Case([&](tensor::ExtractSliceOp slice) {
        llvm::SmallBitVector dropped = slice.getDroppedDims();
        int64_t axis = 0;
        for (auto [k, size] : llvm::enumerate(slice.getMixedSizes()))
          if (!dropped.test(k))
            space.join(sizeOf(slice.getResult(), axis++),
                       polyOfMixed(*this, size));
      })
      .Case([&](tensor::InsertSliceOp insert) {
        joinShapes(insert.getResult(), insert.getDest());
      })
      .Case([&](tensor::ConcatOp concat) {
        IndexPoly sum;
        int64_t along = concat.getDim();
        for (Value input : concat.getInputs()) {
          for (int64_t axis = 0; axis < concat.getRank(); ++axis)
            if (axis != along && (trusting || input == concat.getInputs()[0]))
              joinAxis(concat.getResult(), axis, input, axis);
          sum = sum + sizeOf(input, along);
        }
        space.join(sizeOf(concat.getResult(), along), sum);
      })
      .Case([&](linalg::SoftmaxOp softmax) {
        if (softmax->getNumResults() == 1)
          joinShapes(softmax->getResult(0), softmax.getInput());
      })
      .Case([&](cf::AssertOp assertion) {
        auto compare = assertion.getArg().getDefiningOp<arith::CmpIOp>();
        if (trusting && compare &&
            compare.getPredicate() == arith::CmpIPredicate::eq)
          space.join(polyOf(compare.getLhs()), polyOf(compare.getRhs()));
      });
}

void ExprGraph::joinSizes(Operation *function, bool trusting) {
  // Arguments first: other sizes are named after these, which are known
  // everywhere.
  for (Region &region : function->getRegions())
    for (Value argument : region.getArguments())
      if (auto type = dyn_cast<RankedTensorType>(argument.getType()))
        for (int64_t axis = 0; axis < type.getRank(); ++axis)
          sizeOf(argument, axis);
  // Twice: what a later op states about an earlier one helps the first.
  for (int round = 0; round < 2; ++round)
    function->walk([&](Operation *op) {
      if (op->getNumRegions() == 0 || isa<linalg::LinalgOp>(op))
        joinSizesOf(op, trusting);
    });
}

SmallVector<IndexPoly> ExprGraph::freshLoops(Value tensor) {
  SmallVector<IndexPoly> loops;
  for (int64_t k = 0; k < cast<ShapedType>(tensor.getType()).getRank(); ++k)
    loops.push_back(space.loop(sizeOf(tensor, k)));
  return loops;
}

//===----------------------------------------------------------------------===//
// Constants
//===----------------------------------------------------------------------===//

std::optional<double> constantAt(Attribute elements, int64_t position) {
  if (auto dense = dyn_cast<DenseElementsAttr>(elements)) {
    if (position >= dense.getNumElements())
      return std::nullopt;
    if (isa<FloatType>(dense.getElementType()))
      return dense.getValues<APFloat>()[position].convertToDouble();
    if (dense.getElementType().isInteger(1))
      return dense.getValues<bool>()[position];
    if (dense.getElementType().isIntOrIndex())
      return dense.getValues<APInt>()[position].getSExtValue();
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
    if (type.isInteger(64))
      return read(int64_t());
    if (type.isInteger(32))
      return read(int32_t());
    if (type.isInteger(16))
      return read(int16_t());
    if (type.isInteger(8))
      return read(int8_t());
    if (type.isInteger(1))
      return read(uint8_t());
    if (auto half = dyn_cast<FloatType>(type); half && half.getWidth() == 16)
      if (std::optional<double> bits = read(uint16_t()))
        return APFloat(half.getFloatSemantics(),
                       APInt(16, static_cast<uint64_t>(*bits)))
            .convertToDouble();
  }
  return std::nullopt;
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
  std::optional<double> number = constantAt(elements, *position);
  if (!number)
    return nullptr;
  Type scalar = type.getElementType();
  if (scalar.isIntOrIndex() && !scalar.isInteger(1))
    return index(static_cast<int64_t>(*number));
  return constant(*number, scalar);
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
    if (polyOfMixed(graph, stride) != IndexPoly(1))
      return nullptr;
    IndexPoly at = indices[axis] - polyOfMixed(graph, offset);
    IndexPoly extent = polyOfMixed(graph, size);
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
          IndexPoly at = polyOfMixed(*this, offset);
          if (!dropped.test(k))
            at = at + indices[axis++] * polyOfMixed(*this, stride);
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
        auto elements = from.getElements();
        int64_t position = 0;
        for (auto [axis, poly] : llvm::enumerate(indices)) {
          std::optional<int64_t> at = poly.constant();
          if (!at && from.getType().getNumElements() != 1)
            return nullptr;
          position =
              position * from.getType().getDimSize(axis) + (at ? *at : 0);
        }
        return position < static_cast<int64_t>(elements.size())
                   ? scalar(elements[position])
                   : nullptr;
      })
      .Case([&](linalg::FillOp fill) { return scalar(fill.getInputs()[0]); })
      .Case([&](linalg::LinalgOp linalgOp) -> Expr {
        // A body that only yields, or gathers at positions that it computes.
        if (!isElementwise(linalgOp) || !linalgOp.hasPureTensorSemantics())
          return nullptr;
        Block &body = *linalgOp.getBlock();
        for (Operation &inner : body.without_terminator())
          if (!isa<linalg::IndexOp, arith::IndexCastOp, tensor::ExtractOp,
                   arith::ConstantOp, arith::AddIOp, arith::SubIOp,
                   arith::MulIOp, arith::CmpIOp, arith::SelectOp>(inner))
            return nullptr;
        Expr element = expandLinalg(
            linalgOp, cast<OpResult>(tensor).getResultNumber(), indices);
        if (element &&
            (element->kind == Kind::Load || element->kind == Kind::Const ||
             element->kind == Kind::Index || element->kind == Kind::Scalar))
          return element;
        return nullptr;
      })
      .Default([](Operation *) { return nullptr; });
}

Expr ExprGraph::load(Value tensor, ArrayRef<IndexPoly> indices) {
  if (Expr number = constantElement(tensor, indices))
    return number;
  if (Expr further = seeThrough(tensor, indices))
    return further;
  Node node(Kind::Load, elementType(tensor));
  node.value = tensor;
  node.indices.assign(indices.begin(), indices.end());
  return add(std::move(node));
}

} // namespace mlir::diffattn::raise
