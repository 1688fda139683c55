//===- Sizes.cpp - sizes and positions as polynomials --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn::tensorexpr {

IndexPoly ExprGraph::sizeOf(Value tensor, int64_t axis) {
  auto type = cast<ShapedType>(tensor.getType());
  return type.isDynamicDim(axis) ? space.size(tensor, axis)
                                 : IndexPoly(type.getDimSize(axis));
}

template <typename RankedType, typename DimOp>
static std::optional<int64_t> axisOf(DimOp dim) {
  auto type = dyn_cast<RankedType>(dim.getSource().getType());
  std::optional<int64_t> axis = dim.getConstantIndex();
  // The verifier lets an axis pass that the operand does not have.
  return type && axis && *axis >= 0 && *axis < type.getRank() ? axis
                                                              : std::nullopt;
}

std::optional<int64_t> knownAxis(tensor::DimOp dim) {
  return axisOf<RankedTensorType>(dim);
}

std::optional<int64_t> knownAxis(memref::DimOp dim) {
  return axisOf<MemRefType>(dim);
}

std::optional<int64_t> constantInteger(Value integer) {
  APInt number;
  return matchPattern(integer, m_ConstantInt(&number)) &&
                 number.isSignedIntN(64)
             ? std::optional(number.getSExtValue())
             : std::nullopt;
}

IndexPoly ExprGraph::polyOf(OpFoldResult size) {
  if (auto attribute = dyn_cast<Attribute>(size))
    return cast<IntegerAttr>(attribute).getInt();
  return polyOf(cast<Value>(size));
}

// The sizes of models stay far below.
static constexpr unsigned kMaxPolyDepth = 100, kMaxPolySteps = 500;
static constexpr size_t kMaxTerms = 64, kMaxDegree = 16;
static constexpr unsigned kMaxWeight = 4096;

bool ExprGraph::isSmall(const IndexPoly &poly) const {
  return poly.isWithin(kMaxTerms, kMaxDegree) &&
         space.weight(poly) <= kMaxWeight;
}

IndexPoly ExprGraph::polyOf(Value integer) {
  if (polyDepth == 0)
    polySteps = 0;
  if (polyDepth == kMaxPolyDepth || ++polySteps > kMaxPolySteps)
    return space.opaque(integer);
  ++polyDepth;
  IndexPoly poly = readPoly(integer);
  --polyDepth;
  return isSmall(poly) ? poly : space.opaque(integer);
}

IndexPoly ExprGraph::readPoly(Value integer) {
  if (std::optional<int64_t> number = constantInteger(integer))
    return *number;
  Operation *op = integer.getDefiningOp();
  if (!op)
    return space.opaque(integer);
  return TypeSwitch<Operation *, IndexPoly>(op)
      .Case([&](tensor::DimOp dim) {
        std::optional<int64_t> axis = knownAxis(dim);
        return axis ? sizeOf(dim.getSource(), *axis) : space.opaque(integer);
      })
      .Case([&](memref::DimOp dim) {
        std::optional<int64_t> axis = knownAxis(dim);
        return axis ? sizeOf(dim.getSource(), *axis) : space.opaque(integer);
      })
      .Case([&](tensor::ExtractOp extract) -> IndexPoly {
        // An element of a tensor of sizes.
        SmallVector<IndexPoly> indices;
        for (Value at : extract.getIndices())
          indices.push_back(polyOf(at));
        Expr element = load(extract.getTensor(), indices);
        return element->kind == Kind::Index ? element->index
                                            : space.opaque(integer);
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
      .Default([&](Operation *op) -> IndexPoly {
        if (!isa<arith::ArithDialect, math::MathDialect>(op->getDialect()) ||
            op->getNumRegions() != 0 || op->getNumResults() != 1 ||
            op->getNumOperands() == 0)
          return space.opaque(integer);
        if (op->getOperand(0).getType().isInteger(1)) {
          std::optional<bool> truth = truthOf(op->getOperand(0));
          Expr number =
              truth && op->getNumOperands() == 1
                  ? integerOp(op, constant(*truth, op->getOperand(0).getType()))
                  : nullptr;
          return number && number->kind == Kind::Index ? number->index
                                                       : space.opaque(integer);
        }
        SmallVector<IndexPoly, 2> operands;
        for (Value operand : op->getOperands()) {
          if (!isInteger(operand.getType()))
            return space.opaque(integer);
          operands.push_back(polyOf(operand));
        }
        std::optional<IndexPoly> poly = polyOf(op, operands);
        return poly ? *poly : space.opaque(integer);
      });
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
          space.join(sizeOf(empty, axis), polyOf(size));
      })
      .Case([&](tensor::ExpandShapeOp expand) {
        auto sizes = expand.getMixedOutputShape();
        for (auto [axis, group] :
             llvm::enumerate(expand.getReassociationIndices())) {
          IndexPoly product = 1;
          for (int64_t k : group) {
            space.join(sizeOf(expand.getResult(), k), polyOf(sizes[k]));
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
        auto type = dyn_cast<RankedTensorType>(reshape.getResult().getType());
        for (int64_t axis = 0; type && axis < type.getRank(); ++axis)
          if (Expr size = load(reshape.getShape(), IndexPoly(axis));
              type.isDynamicDim(axis) && size->kind == Kind::Index)
            space.join(sizeOf(reshape.getResult(), axis), size->index);
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
            space.join(sizeOf(slice.getResult(), axis++), polyOf(size));
      })
      .Case([&](memref::AllocOp alloc) {
        for (auto [axis, size] : llvm::enumerate(alloc.getMixedSizes()))
          space.join(sizeOf(alloc, axis), polyOf(size));
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
        if (softmax->getNumResults() != 1)
          return;
        joinShapes(softmax->getResult(0), softmax.getOutput());
        if (trusting)
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
      if (auto type = dyn_cast<ShapedType>(argument.getType());
          type && type.hasRank())
        for (int64_t axis = 0; axis < type.getRank(); ++axis)
          sizeOf(argument, axis);
  // Twice: what a later op states about an earlier one helps the first.
  for (int round = 0; round < 2; ++round)
    function->walk([&](Operation *op) {
      if (op->getNumRegions() == 0 || isa<linalg::LinalgOp>(op))
        joinSizesOf(op, trusting);
    });
  // Positions that were read before all was known.
  gathered.clear();
}

SmallVector<IndexPoly> ExprGraph::freshLoops(Value tensor) {
  SmallVector<IndexPoly> loops;
  for (int64_t k = 0; k < cast<ShapedType>(tensor.getType()).getRank(); ++k)
    loops.push_back(space.loop(sizeOf(tensor, k)));
  return loops;
}

} // namespace mlir::diffattn::tensorexpr
