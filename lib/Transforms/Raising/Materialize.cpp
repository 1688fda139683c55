//===- Materialize.cpp - tensors out of expressions -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Raising/Materialize.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <algorithm>

namespace mlir::diffattn::raise {

/// True if results of `op` can be read where the tensors are written, and so in
/// the bodies there.
bool Materializer::isBefore(Operation *op) {
  if (op->getBlock() == block)
    return at == block->end() || op->isBeforeInBlock(&*at);
  Operation *parent = block->getParentOp();
  Operation *here =
      parent ? op->getBlock()->findAncestorOpInBlock(*parent) : nullptr;
  return here && op->isBeforeInBlock(here);
}

bool Materializer::isReadable(Value value) {
  Operation *op = value.getDefiningOp();
  return !op || (!dying.contains(op) && isBefore(op));
}

bool Materializer::canCompute(const IndexPoly &poly) {
  bool all = true;
  graph.space.visit(poly, [&](AtomId id) {
    const IndexSpace::Atom &atom = graph.space[id];
    if (atom.kind == IndexSpace::Atom::Size)
      all &= isReadable(
          graph.space.sizeSource(id, [&](Value v) { return isReadable(v); })
              .first);
    else if (atom.kind == IndexSpace::Atom::Opaque)
      all &= isReadable(atom.value);
  });
  return all;
}

Value Materializer::baseOf(OpBuilder &body, Value tensor) {
  Operation *op = tensor.getDefiningOp();
  if (op && op->hasTrait<OpTrait::ConstantLike>() && !isBefore(op))
    return body.clone(*op)->getResult(0);
  return tensor;
}

Value Materializer::asIndex(OpBuilder &body, const IndexPoly &poly,
                            const llvm::DenseMap<AtomId, Value> &loops) {
  Value sum;
  for (auto &[monomial, coefficient] : poly.terms) {
    Value product;
    auto multiply = [&](Value factor) {
      product =
          product
              ? arith::MulIOp::create(body, loc, product, factor).getResult()
              : factor;
    };
    for (AtomId id : monomial) {
      const IndexSpace::Atom atom = graph.space[id];
      switch (atom.kind) {
      case IndexSpace::Atom::Loop:
        multiply(loops.lookup(id));
        break;
      case IndexSpace::Atom::Size: {
        auto [tensor, axis] = graph.space.sizeSource(
            id, [&](Value value) { return isReadable(value); });
        if (axis == IndexSpace::kNoAxis)
          multiply(getValueOrCreateCastToIndexLike(
              body, loc, body.getIndexType(), tensor));
        else if (isa<MemRefType>(tensor.getType()))
          multiply(memref::DimOp::create(body, loc, tensor, axis));
        else
          multiply(tensor::DimOp::create(body, loc, tensor, axis));
        break;
      }
      case IndexSpace::Atom::Opaque:
        multiply(getValueOrCreateCastToIndexLike(body, loc, body.getIndexType(),
                                                 atom.value));
        break;
      case IndexSpace::Atom::Broadcast: {
        Value at = asIndex(body, atom.first, loops),
              size = asIndex(body, atom.second, loops),
              zero = arith::ConstantIndexOp::create(body, loc, 0),
              one = arith::ConstantIndexOp::create(body, loc, 1);
        Value single = arith::CmpIOp::create(
            body, loc, arith::CmpIPredicate::eq, size, one);
        multiply(arith::SelectOp::create(body, loc, single, zero, at));
        break;
      }
      case IndexSpace::Atom::Within: {
        // Both sides of a choice are read, so both inside.
        Value at = asIndex(body, atom.first, loops),
              last = asIndex(body, atom.second - 1, loops),
              zero = arith::ConstantIndexOp::create(body, loc, 0);
        at = arith::MaxSIOp::create(body, loc, at, zero);
        multiply(arith::MinSIOp::create(body, loc, at, last));
        break;
      }
      case IndexSpace::Atom::FloorDiv: {
        Value a = asIndex(body, atom.first, loops),
              b = asIndex(body, atom.second, loops);
        // Rounding is the same where nothing is negative.
        if (atom.nonNegative)
          multiply(arith::DivUIOp::create(body, loc, a, b));
        else
          multiply(arith::FloorDivSIOp::create(body, loc, a, b));
        break;
      }
      }
    }
    if (coefficient != 1 || !product)
      multiply(arith::ConstantIndexOp::create(body, loc, coefficient));
    sum = sum ? arith::AddIOp::create(body, loc, sum, product).getResult()
              : product;
  }
  return sum ? sum : arith::ConstantIndexOp::create(body, loc, 0).getResult();
}

Value Materializer::index(const IndexPoly &poly) {
  return asIndex(builder, poly, llvm::DenseMap<AtomId, Value>());
}

OpFoldResult Materializer::size(const IndexPoly &poly) {
  if (std::optional<int64_t> number = poly.constant())
    return builder.getIndexAttr(*number);
  return index(poly);
}

Value Materializer::scalar(OpBuilder &body, Expr expr,
                           const llvm::DenseMap<AtomId, Value> &loops,
                           llvm::DenseMap<Expr, Value> &known) {
  if (Value value = known.lookup(expr))
    return value;
  SmallVector<Value> o;
  for (Expr operand : expr->operands)
    o.push_back(scalar(body, operand, loops, known));
  Type type = expr->type;
  // Integers that are positions are of index type until an op needs another.
  auto asType = [&](Type target, Value &integer) {
    if (integer.getType() == target)
      return;
    if (target.isIndex() || integer.getType().isIndex())
      integer = arith::IndexCastOp::create(body, loc, target, integer);
    else
      integer = arith::ExtSIOp::create(body, loc, target, integer);
  };
  auto make = [&]() -> Value {
    switch (expr->kind) {
    case Kind::Const:
      if (type.isInteger(1))
        return arith::ConstantIntOp::create(body, loc, expr->number != 0, 1);
      return arith::ConstantOp::create(body, loc,
                                       body.getFloatAttr(type, expr->number));
    case Kind::Index:
      return asIndex(body, expr->index, loops);
    case Kind::Scalar:
      return expr->value;
    case Kind::Load: {
      SmallVector<Value> indices;
      for (const IndexPoly &poly : expr->indices)
        indices.push_back(asIndex(body, poly, loops));
      return tensor::ExtractOp::create(body, loc, baseOf(body, expr->value),
                                       indices);
    }
    case Kind::Add:
    case Kind::Sub:
    case Kind::Mul:
      if (!isa<FloatType>(type)) {
        for (Value &operand : o)
          asType(type, operand);
        if (expr->kind == Kind::Add)
          return arith::AddIOp::create(body, loc, o[0], o[1]);
        if (expr->kind == Kind::Sub)
          return arith::SubIOp::create(body, loc, o[0], o[1]);
        return arith::MulIOp::create(body, loc, o[0], o[1]);
      }
      if (expr->kind == Kind::Add)
        return arith::AddFOp::create(body, loc, o[0], o[1]);
      if (expr->kind == Kind::Sub)
        return arith::SubFOp::create(body, loc, o[0], o[1]);
      return arith::MulFOp::create(body, loc, o[0], o[1]);
    case Kind::Div:
      return arith::DivFOp::create(body, loc, o[0], o[1]);
    case Kind::Neg:
      return arith::NegFOp::create(body, loc, o[0]);
    case Kind::Max:
      return arith::MaximumFOp::create(body, loc, o[0], o[1]);
    case Kind::Min:
      return arith::MinimumFOp::create(body, loc, o[0], o[1]);
    case Kind::Exp:
      return math::ExpOp::create(body, loc, o[0]);
    case Kind::Exp2:
      return math::Exp2Op::create(body, loc, o[0]);
    case Kind::Log:
      return math::LogOp::create(body, loc, o[0]);
    case Kind::Sqrt:
      return math::SqrtOp::create(body, loc, o[0]);
    case Kind::Rsqrt:
      return math::RsqrtOp::create(body, loc, o[0]);
    case Kind::Tanh:
      return math::TanhOp::create(body, loc, o[0]);
    case Kind::Cast:
      if (o[0].getType().getIntOrFloatBitWidth() < type.getIntOrFloatBitWidth())
        return arith::ExtFOp::create(body, loc, type, o[0]);
      if (o[0].getType().getIntOrFloatBitWidth() ==
          type.getIntOrFloatBitWidth()) { // f16 and bf16
        Value wide = arith::ExtFOp::create(body, loc, body.getF32Type(), o[0]);
        return arith::TruncFOp::create(body, loc, type, wide);
      }
      return arith::TruncFOp::create(body, loc, type, o[0]);
    case Kind::FromInt: {
      Value integer = o[0];
      if (integer.getType().isIndex())
        integer =
            arith::IndexCastOp::create(body, loc, body.getI64Type(), integer);
      return arith::SIToFPOp::create(body, loc, type, integer);
    }
    case Kind::CmpF:
      return arith::CmpFOp::create(
          body, loc, static_cast<arith::CmpFPredicate>(expr->predicate), o[0],
          o[1]);
    case Kind::CmpI:
      // Widened by sign, which keeps the order with and without a sign.
      if (o[0].getType() != o[1].getType())
        for (Value &operand : o)
          asType(body.getIndexType(), operand);
      return arith::CmpIOp::create(
          body, loc, static_cast<arith::CmpIPredicate>(expr->predicate), o[0],
          o[1]);
    case Kind::Select:
      asType(type, o[1]);
      asType(type, o[2]);
      return arith::SelectOp::create(body, loc, o[0], o[1], o[2]);
    case Kind::And:
    case Kind::Or:
    case Kind::Xor:
      for (Value &operand : o)
        asType(type, operand);
      if (expr->kind == Kind::And)
        return arith::AndIOp::create(body, loc, o[0], o[1]);
      if (expr->kind == Kind::Or)
        return arith::OrIOp::create(body, loc, o[0], o[1]);
      return arith::XOrIOp::create(body, loc, o[0], o[1]);
    case Kind::Opaque: {
      IRMapping mapping;
      for (auto [from, to] : llvm::zip(expr->proto->getOperands(), o)) {
        asType(getElementTypeOrSelf(from.getType()), to);
        mapping.map(from, to);
      }
      Operation *copy = body.clone(*expr->proto, mapping);
      copy->getResult(0).setType(type);
      return copy->getResult(0);
    }
    case Kind::Reduce:
    case Kind::Softmax:
      break;
    }
    llvm_unreachable("only scalar expressions are written as bodies");
  };
  return known[expr] = make();
}

/// The loads of `expr`, each once.
static void collectLoads(Expr expr, SmallVectorImpl<Expr> &loads) {
  if (expr->kind == Kind::Load && !llvm::is_contained(loads, expr))
    loads.push_back(expr);
  for (Expr operand : expr->operands)
    collectLoads(operand, loads);
}

Value Materializer::viewInAnyOrder(Expr load, ArrayRef<AtomId> loops,
                                   SmallVectorImpl<AffineExpr> &axes) {
  SmallVector<unsigned> read;
  for (auto [k, loop] : llvm::enumerate(loops))
    if (graph.mentions(load, loop))
      read.push_back(k);
  constexpr size_t kMaxAxes = 4; // 24 orders
  if (read.size() > kMaxAxes)
    return Value();
  SmallVector<SmallVector<AtomId>> orders;
  SmallVector<SmallVector<unsigned>> dims;
  do {
    dims.push_back(read);
    orders.push_back(
        llvm::map_to_vector(read, [&](unsigned k) { return loops[k]; }));
  } while (std::next_permutation(read.begin(), read.end()));
  unsigned chosen = 0;
  Value value = view(load, orders, chosen);
  axes.clear();
  for (unsigned k : dims[chosen])
    axes.push_back(getAffineDimExpr(k, builder.getContext()));
  return value;
}

Value Materializer::generic(Expr element, ArrayRef<AtomId> loops, Type type) {
  MLIRContext *context = builder.getContext();
  if (loops.empty()) {
    llvm::DenseMap<Expr, Value> known;
    Expr converted = graph.make(Kind::Cast, type, {element});
    Value number =
        scalar(builder, converted, llvm::DenseMap<AtomId, Value>(), known);
    return tensor::FromElementsOp::create(
        builder, loc, RankedTensorType::get({}, type), number);
  }
  SmallVector<OpFoldResult> sizes;
  for (AtomId loop : loops)
    sizes.push_back(size(graph.space.extent(loop)));
  Value init = tensor::EmptyOp::create(builder, loc, sizes, type);
  // Loads at plain positions and of views are operands; others are read in the
  // body, also those outside of their tensor, which no map may name.
  SmallVector<Expr> all, operands;
  collectLoads(element, all);
  SmallVector<Value> inputs;
  SmallVector<AffineMap> maps;
  for (Expr load : all) {
    SmallVector<AffineExpr> results;
    for (auto [axis, poly] : llvm::enumerate(load->indices)) {
      std::optional<AtomId> atom = poly.asAtom();
      auto *at = atom ? llvm::find(loops, *atom) : loops.end();
      std::optional<int64_t> number = poly.constant(),
                             room = (graph.sizeOf(load->value, axis) - 1 - poly)
                                        .constant();
      if (at != loops.end() &&
          graph.space.extent(*atom) == graph.sizeOf(load->value, axis))
        results.push_back(getAffineDimExpr(at - loops.begin(), context));
      else if (number && *number >= 0 && (!room || *room >= 0))
        results.push_back(getAffineConstantExpr(*number, context));
    }
    Value input;
    if (results.size() == load->indices.size())
      input = baseOf(builder, load->value);
    else
      input = viewInAnyOrder(load, loops, results);
    if (!input)
      continue;
    operands.push_back(load);
    inputs.push_back(input);
    maps.push_back(AffineMap::get(loops.size(), 0, results, context));
  }
  maps.push_back(builder.getMultiDimIdentityMap(loops.size()));
  SmallVector<utils::IteratorType> iterators(loops.size(),
                                             utils::IteratorType::parallel);
  auto op = linalg::GenericOp::create(
      builder, loc, init.getType(), inputs, init, maps, iterators,
      [&](OpBuilder &body, Location, ValueRange arguments) {
        llvm::DenseMap<Expr, Value> known;
        for (auto [load, argument] : llvm::zip(operands, arguments))
          known[load] = argument;
        llvm::DenseMap<AtomId, Value> positions;
        for (auto [k, loop] : llvm::enumerate(loops))
          positions[loop] = linalg::IndexOp::create(body, loc, k);
        Expr converted = isa<FloatType>(type)
                             ? graph.make(Kind::Cast, type, {element})
                             : element;
        Value result = scalar(body, converted, positions, known);
        if (result.getType().isIndex())
          result = arith::IndexCastOp::create(body, loc, type, result);
        else if (result.getType() != type)
          result = arith::ExtSIOp::create(body, loc, type, result);
        linalg::YieldOp::create(body, loc, result);
      });
  // Positions that nothing reads.
  for (Operation &inner :
       llvm::make_early_inc_range(llvm::reverse(*op.getBody())))
    if (isOpTriviallyDead(&inner))
      inner.erase();
  return op.getResult(0);
}

Value Materializer::tensor(Expr element, ArrayRef<AtomId> loops, Type type) {
  unsigned chosen = 0;
  SmallVector<AtomId> order(loops);
  if (element->type == type)
    if (Value value = view(element, {order}, chosen))
      return value;
  return generic(element, loops, type);
}

/// The loop and the position in it where the result of the comparison
/// `condition` changes.
static std::optional<std::pair<AtomId, int64_t>> getBoundary(Expr condition) {
  if (condition->kind != Kind::CmpI ||
      !llvm::all_of(condition->operands,
                    [](Expr side) { return side->kind == Kind::Index; }))
    return std::nullopt;
  const IndexPoly &left = condition->operands[0]->index,
                  &right = condition->operands[1]->index;
  std::optional<AtomId> atom = left.asAtom();
  std::optional<int64_t> number = right.constant();
  if (!atom || !number)
    return std::nullopt;
  switch (static_cast<arith::CmpIPredicate>(condition->predicate)) {
  case arith::CmpIPredicate::slt:
  case arith::CmpIPredicate::sge:
    return std::make_pair(*atom, *number);
  case arith::CmpIPredicate::sle:
  case arith::CmpIPredicate::sgt:
    return std::make_pair(*atom, *number + 1);
  default:
    return std::nullopt;
  }
}

Value Materializer::concatenated(Expr element,
                                 ArrayRef<SmallVector<AtomId>> orders,
                                 Type type, unsigned &chosen) {
  if (element->kind != Kind::Select || element->type != type)
    return Value();
  auto boundary = getBoundary(element->operands[0]);
  if (!boundary)
    return Value();
  auto [loop, middle] = *boundary;
  std::optional<int64_t> end = graph.space.extent(loop).constant();
  if (!end || middle <= 0 || middle >= *end)
    return Value();
  const int64_t starts[] = {0, middle}, counts[] = {middle, *end - middle};
  Value parts[2];
  for (int side : {0, 1}) {
    IndexPoly at = graph.space.loop(counts[side]);
    Expr part =
        graph.substitute(element, {{loop, at + IndexPoly(starts[side])}});
    SmallVector<SmallVector<AtomId>> partOrders(side ? orders.slice(chosen, 1)
                                                     : orders);
    for (SmallVector<AtomId> &order : partOrders)
      llvm::replace(order, loop, *at.asAtom());
    unsigned choice = 0;
    if (part->kind != Kind::Load)
      return Value();
    parts[side] = view(part, partOrders, choice);
    if (!parts[side])
      parts[side] = generic(part, partOrders[choice], type);
    if (side == 0)
      chosen = choice;
  }
  SmallVector<OpFoldResult> offsets, sizes, strides;
  size_t axis = 0;
  for (auto [k, each] : llvm::enumerate(orders[chosen])) {
    sizes.push_back(size(graph.space.extent(each)));
    axis = each == loop ? k : axis;
  }
  offsets.assign(sizes.size(), builder.getIndexAttr(0));
  strides.assign(sizes.size(), builder.getIndexAttr(1));
  Value whole = tensor::EmptyOp::create(builder, loc, sizes, type);
  for (int side : {0, 1}) {
    offsets[axis] = builder.getIndexAttr(starts[side]);
    sizes[axis] = builder.getIndexAttr(counts[side]);
    whole = tensor::InsertSliceOp::create(builder, loc, parts[side], whole,
                                          offsets, sizes, strides);
  }
  return whole;
}

} // namespace mlir::diffattn::raise
