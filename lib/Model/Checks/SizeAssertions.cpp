//===- SizeAssertions.cpp - assertions about dynamic sizes ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SizeAssertions.h"

#include "Assertion.h"

#include "DiffAttn/Transforms/Raising/Materialize.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::tensorexpr;

static Value constant(OpBuilder &builder, Location loc, int64_t number) {
  return arith::ConstantIndexOp::create(builder, loc, number);
}

/// The end of a parallel loop holds nothing but what it inserts.
static void setBefore(OpBuilder &builder, Operation *op) {
  Operation *parent = op->getParentOp();
  builder.setInsertionPoint(isa<scf::InParallelOp>(parent) ? parent : op);
}

static Value asIndex(OpBuilder &builder, Location loc, OpFoldResult number) {
  return getValueOrCreateCastToIndexLike(
      builder, loc, builder.getIndexType(),
      getValueOrCreateConstantIndexOp(builder, loc, number));
}

static OpFoldResult sizeOf(OpBuilder &builder, Location loc, Value operand,
                           int64_t axis) {
  if (isa<MemRefType>(operand.getType()))
    return memref::getMixedSize(builder, loc, operand, axis);
  return tensor::getMixedSize(builder, loc, operand, axis);
}

IndexPoly SizeAssertions::polyOf(const Size &size) {
  IndexPoly product = 1;
  for (OperandAxis axis : size.axes)
    product = product * polyOf(axis);
  for (OpFoldResult number : size.numbers)
    product = product * graph.polyOf(number);
  return product;
}

/// A product that no number of elements is equal to if it does not fit into 64
/// bits.
static Value multiply(OpBuilder &builder, Location loc, Value a, Value b) {
  auto product = arith::MulUIExtendedOp::create(builder, loc, a, b);
  Value fits =
      arith::CmpIOp::create(builder, loc, arith::CmpIPredicate::eq,
                            product.getHigh(), constant(builder, loc, 0));
  return arith::SelectOp::create(builder, loc, fits, product.getLow(),
                                 constant(builder, loc, -1));
}

Value SizeAssertions::valueOf(OpBuilder &builder, Location loc,
                              const Size &size) {
  SmallVector<OpFoldResult> factors(size.numbers);
  for (OperandAxis axis : size.axes)
    factors.push_back(sizeOf(builder, loc, axis.operand, axis.axis));
  Value product;
  for (OpFoldResult factor : factors) {
    Value number = asIndex(builder, loc, factor);
    product = product ? multiply(builder, loc, product, number) : number;
  }
  return product ? product : constant(builder, loc, 1);
}

Value SizeAssertions::valueOf(OpBuilder &builder, Location loc,
                              const IndexPoly &poly) {
  return raise::Materializer(graph, builder, loc).index(poly);
}

bool SizeAssertions::isOfArguments(const IndexPoly &poly) {
  bool all = true;
  graph.space.visit(poly, [&](AtomId id) {
    const IndexSpace::Atom &atom = graph.space[id];
    all &= atom.kind == IndexSpace::Atom::FloorDiv ||
           (atom.kind == IndexSpace::Atom::Size &&
            llvm::is_contained(function.getArguments(), atom.value));
  });
  return all;
}

bool SizeAssertions::isUnconditional(Operation *op) const {
  while ((op = op->getParentOp()) != function)
    if (!isa<scf::ForOp>(op))
      return false;
  return true;
}

SizeAssertions::Place SizeAssertions::placeOf(Operation *op,
                                              const IndexPoly &poly,
                                              const Size &size) {
  Place place;
  const bool isAxis = size.axes.size() == 1 && size.numbers.empty();
  std::optional<AtomId> atom = poly.asAtom();
  if (isAxis && atom && graph.space[*atom].kind == IndexSpace::Atom::Size) {
    auto argument = dyn_cast<BlockArgument>(graph.space[*atom].value);
    if (argument && argument.getOwner()->getParentOp() == function) {
      place.argument = argument.getArgNumber();
      place.axis = graph.space[*atom].axis;
      return place;
    }
  }
  if (!isAxis)
    return place;
  place.axis = size.axes[0].axis;
  auto argument = dyn_cast<BlockArgument>(size.axes[0].operand);
  if (argument && argument.getOwner()->getParentOp() == function) {
    place.argument = argument.getArgNumber();
    return place;
  }
  for (OpOperand &operand : op->getOpOperands())
    if (operand.get() == size.axes[0].operand) {
      place.operand = operand.getOperandNumber();
      break;
    }
  return place;
}

std::string SizeAssertions::Place::onAxis() const {
  if (argument)
    return ("axis " + Twine(axis) + " of argument " + Twine(*argument)).str();
  if (operand)
    return ("axis " + Twine(axis) + " of operand " + Twine(*operand)).str();
  return "";
}

/// An argument stands for itself, another place for the op. Without the op's
/// dialect: who looks for an op's full name finds ops only.
std::string SizeAssertions::begin(Operation *op, const Place &place) const {
  if (place.argument)
    return ("argument " + Twine(*place.argument) + " of '" +
            SymbolTable::getSymbolName(function).getValue() + "': expected ")
        .str();
  return (op->getName().stripDialect() + ": expected ").str();
}

static std::string onAxis(const std::string &name, bool isSubject) {
  if (name.empty())
    return "";
  return isSubject ? " on " + name : ", as on " + name;
}

bool SizeAssertions::setInsertionPoint(OpBuilder &builder, Operation *op,
                                       ArrayRef<IndexPoly> polys) {
  bool early =
      isUnconditional(op) && llvm::all_of(polys, [&](const IndexPoly &poly) {
        return isOfArguments(poly);
      });
  if (!early)
    setBefore(builder, op);
  else if (lastEarly)
    builder.setInsertionPointAfter(lastEarly);
  else
    builder.setInsertionPointToStart(&function.getFunctionBody().front());
  return early;
}

void SizeAssertions::check(OpBuilder &builder, Location loc,
                           arith::CmpIPredicate predicate, Value a, Value b,
                           const Twine &message, bool early) {
  auto made = assertThat(builder, loc, predicate, a, b, message);
  if (early)
    lastEarly = made;
}

void SizeAssertions::requireEqual(Operation *op, const Size &a, const Size &b,
                                  StringRef what) {
  IndexPoly x = polyOf(a), y = polyOf(b);
  if (x == y)
    return;
  Place at = placeOf(op, x, a), other = placeOf(op, y, b);
  const Size *got = &a, *expected = &b;
  // A number is what is expected; of two arguments the first one is.
  if (x.constant() || (!y.constant() && other.argument &&
                       (!at.argument || *at.argument < *other.argument))) {
    std::swap(x, y);
    std::swap(at, other);
    std::swap(got, expected);
  }
  OpBuilder builder(op);
  Location loc = op->getLoc();
  const bool early = setInsertionPoint(builder, op, {x, y});
  Value left = early ? valueOf(builder, loc, x) : valueOf(builder, loc, *got);
  Value right =
      early ? valueOf(builder, loc, y) : valueOf(builder, loc, *expected);
  std::string axis =
      at.argument ? "axis " + std::to_string(at.axis) : at.onAxis();
  std::string message =
      begin(op, at) + what.str() + " {1}" + onAxis(axis, true);
  if (!y.constant())
    message += onAxis(other.onAxis(), false);
  check(builder, loc, arith::CmpIPredicate::eq, left, right,
        message + ", but got {0}", early);
  // Elsewhere it may not have been asserted.
  if (early || op->getParentOp() == function)
    graph.space.join(x, y);
}

void SizeAssertions::require(Operation *op, const SizeRelation &relation) {
  using Kind = SizeRelation::Kind;
  const OperandAxis subject = relation.subject;
  const IndexPoly got = polyOf(subject);
  SmallVector<IndexPoly> polys = {got};
  // Sizes that are one, once.
  SmallVector<OperandAxis> distinct;
  for (OperandAxis other : relation.others) {
    IndexPoly poly = polyOf(other);
    if (llvm::is_contained(ArrayRef(polys).drop_front(), poly))
      continue;
    polys.push_back(std::move(poly));
    distinct.push_back(other);
  }
  const bool orOne =
      relation.orOne &&
      !llvm::is_contained(ArrayRef(polys).drop_front(), IndexPoly(1));
  if (relation.kind == Kind::Equal && distinct.size() == 1 && !orOne)
    return requireEqual(op, {{subject}, {}}, {{distinct[0]}, {}});
  if (relation.kind == Kind::Equal &&
      llvm::is_contained(ArrayRef(polys).drop_front(), got))
    return;
  OpBuilder builder(op);
  Location loc = op->getLoc();
  const bool early = setInsertionPoint(builder, op, polys);
  auto valueHere = [&](const IndexPoly &poly, OperandAxis axis) {
    return early ? valueOf(builder, loc, poly)
                 : asIndex(builder, loc,
                           sizeOf(builder, loc, axis.operand, axis.axis));
  };
  Value size = valueHere(got, subject);
  SmallVector<Value> others;
  SmallVector<std::string> names;
  for (auto [poly, axis] : llvm::zip(ArrayRef(polys).drop_front(), distinct)) {
    others.push_back(valueHere(poly, axis));
    names.push_back(poly.constant() ? ""
                                    : placeOf(op, poly, {{axis}, {}}).onAxis());
  }
  auto equal = [&](Value a, Value b) -> Value {
    return arith::CmpIOp::create(builder, loc, arith::CmpIPredicate::eq, a, b);
  };
  auto select = [&](Value condition, Value a, Value b) -> Value {
    return arith::SelectOp::create(builder, loc, condition, a, b);
  };
  Place at = placeOf(op, got, {{subject}, {}});
  const std::string where = onAxis(
      at.argument ? "axis " + std::to_string(at.axis) : at.onAxis(), true);
  std::string message = begin(op, at);
  // The expected side is the size itself where it fits; elsewhere it is the
  // number that the message shows.
  switch (relation.kind) {
  case Kind::AtLeast:
    return check(builder, loc, arith::CmpIPredicate::sge, size,
                 constant(builder, loc, relation.number),
                 message + "size " + Twine(relation.number).str() + " or more" +
                     where + ", but got {0}",
                 early);
  case Kind::AtMost:
    return check(builder, loc, arith::CmpIPredicate::sge,
                 constant(builder, loc, relation.number), size,
                 message + "size " + Twine(relation.number).str() + " or less" +
                     where + ", but got {1}",
                 early);
  case Kind::Divides: {
    Value rest = arith::RemUIOp::create(builder, loc, others[0], size);
    Value fits = equal(rest, constant(builder, loc, 0));
    return check(builder, loc, arith::CmpIPredicate::eq, size,
                 select(fits, size, others[0]),
                 message + "a size that divides {1}" + where +
                     (names[0].empty() ? "" : ", the size of " + names[0]) +
                     ", but got {0}",
                 early);
  }
  case Kind::Covers: {
    Value ranges = arith::CeilDivUIOp::create(
        builder, loc, others[0], constant(builder, loc, relation.number));
    return check(builder, loc, arith::CmpIPredicate::sge, size, ranges,
                 message + "size {1} or more" + where + ", as many ranges of " +
                     Twine(relation.number).str() +
                     " as there are keys for, but got {0}",
                 early);
  }
  case Kind::Equal: {
    Value expected = others.back();
    message += "size ";
    for (size_t i = 0; i + 1 < others.size(); ++i) {
      expected = select(equal(size, others[i]), size, expected);
      message +=
          (polys[i + 1].constant() ? std::to_string(*polys[i + 1].constant())
                                   : "of " + names[i]) +
          " or ";
    }
    if (orOne) {
      expected = select(equal(size, constant(builder, loc, 1)), size, expected);
      message += "1 or ";
    }
    return check(builder, loc, arith::CmpIPredicate::eq, size, expected,
                 message + "{1}" + where + onAxis(names.back(), false) +
                     ", but got {0}",
                 early);
  }
  }
}

void SizeAssertions::requireNotNegative(Operation *op, OpFoldResult number,
                                        const Twine &what) {
  IndexPoly poly = graph.polyOf(number);
  // Sizes of results may be this very number.
  auto value = dyn_cast<Value>(number);
  if (value &&
      isa_and_nonnull<tensor::DimOp, memref::DimOp>(value.getDefiningOp()))
    return;
  if (isOfArguments(poly) &&
      graph.space.provablyNonNegative(poly, [](AtomId) { return false; }))
    return;
  OpBuilder builder(op->getContext());
  setBefore(builder, op);
  Value got = asIndex(builder, op->getLoc(), number);
  check(builder, op->getLoc(), arith::CmpIPredicate::sge, got,
        constant(builder, op->getLoc(), 0),
        op->getName().stripDialect() + ": expected " + what +
            " of 0 or more, but got {0}");
}

void SizeAssertions::requireAxis(Operation *op, Value axis, int64_t rank) {
  std::optional<int64_t> known = getConstantIntValue(axis);
  if (known && *known >= 0 && *known < rank)
    return;
  OpBuilder builder(op);
  Location loc = op->getLoc();
  // A constant is not there any more when the assertion is lowered.
  std::string got = known ? std::to_string(*known) : "{0}";
  check(builder, loc, arith::CmpIPredicate::ult, axis,
        constant(builder, loc, rank),
        op->getName().stripDialect() + ": expected an axis from 0 and " +
            "below " + Twine(rank) + ", but got " + got);
}

namespace {
/// Smallest and largest value of an affine expression.
struct Interval {
  Value low, high;
};

class IntervalBuilder {
public:
  IntervalBuilder(OpBuilder &builder, Location loc, ArrayRef<Value> last)
      : builder(builder), loc(loc), last(last) {}

  /// None for what is not monotonic in its parts.
  std::optional<Interval> visit(AffineExpr expr) {
    if (auto number = dyn_cast<AffineConstantExpr>(expr)) {
      Value value = constant(builder, loc, number.getValue());
      return Interval{value, value};
    }
    if (auto dim = dyn_cast<AffineDimExpr>(expr))
      return Interval{constant(builder, loc, 0), last[dim.getPosition()]};
    auto binary = dyn_cast<AffineBinaryOpExpr>(expr);
    if (!binary)
      return std::nullopt;
    std::optional<Interval> a = visit(binary.getLHS());
    if (!a)
      return std::nullopt;
    if (binary.getKind() == AffineExprKind::Add) {
      std::optional<Interval> b = visit(binary.getRHS());
      if (!b)
        return std::nullopt;
      return Interval{make<arith::AddIOp>(a->low, b->low),
                      make<arith::AddIOp>(a->high, b->high)};
    }
    auto by = dyn_cast<AffineConstantExpr>(binary.getRHS());
    if (!by)
      return std::nullopt;
    Value number = constant(builder, loc, by.getValue());
    switch (binary.getKind()) {
    case AffineExprKind::Mul: {
      Interval product{make<arith::MulIOp>(a->low, number),
                       make<arith::MulIOp>(a->high, number)};
      if (by.getValue() < 0)
        std::swap(product.low, product.high);
      return product;
    }
    case AffineExprKind::Mod:
      return Interval{constant(builder, loc, 0),
                      constant(builder, loc, by.getValue() - 1)};
    case AffineExprKind::FloorDiv:
      return Interval{make<arith::FloorDivSIOp>(a->low, number),
                      make<arith::FloorDivSIOp>(a->high, number)};
    case AffineExprKind::CeilDiv:
      return Interval{make<arith::CeilDivSIOp>(a->low, number),
                      make<arith::CeilDivSIOp>(a->high, number)};
    default:
      return std::nullopt;
    }
  }

private:
  template <typename Op>
  Value make(Value a, Value b) {
    return Op::create(builder, loc, a, b);
  }

  OpBuilder &builder;
  Location loc;
  ArrayRef<Value> last;
};
} // namespace

void SizeAssertions::requireInside(Operation *op, AffineExpr expr,
                                   ArrayRef<Size> extents, OperandAxis axis) {
  // First without code: loops of the op run at least once where it reads.
  SmallVector<IndexPoly> loops;
  llvm::DenseSet<AtomId> positive;
  for (const Size &extent : extents) {
    IndexPoly poly = polyOf(extent);
    if (std::optional<AtomId> atom = poly.asAtom())
      positive.insert(*atom);
    loops.push_back(graph.space.loop(poly));
  }
  auto isPositive = [&](AtomId id) { return positive.contains(id); };
  IndexPoly at = graph.space.apply(expr, loops), size = polyOf(axis);
  if (graph.space.provablyNonNegative(at, isPositive) &&
      graph.space.provablyNonNegative(size - at - 1, isPositive))
    return;
  OpBuilder builder(op);
  Location loc = op->getLoc();
  Value zero = constant(builder, loc, 0), one = constant(builder, loc, 1);
  Value runs;
  SmallVector<Value> last;
  for (const Size &extent : extents) {
    Value count = valueOf(builder, loc, extent);
    Value more = arith::CmpIOp::create(builder, loc, arith::CmpIPredicate::sgt,
                                       count, zero);
    runs = runs ? arith::AndIOp::create(builder, loc, runs, more).getResult()
                : more;
    last.push_back(arith::SubIOp::create(builder, loc, count, one));
  }
  std::optional<Interval> reach =
      IntervalBuilder(builder, loc, last).visit(expr);
  if (!reach || !runs)
    return;
  Value low = arith::SelectOp::create(builder, loc, runs, reach->low, zero);
  Value high = arith::SelectOp::create(builder, loc, runs, reach->high,
                                       constant(builder, loc, -1));
  Place place = placeOf(op, size, {{axis}, {}});
  std::string where =
      place.argument ? "axis " + std::to_string(axis.axis) : place.onAxis();
  check(builder, loc, arith::CmpIPredicate::sge, low, zero,
        begin(op, place) + "positions from 0" + onAxis(where, true) +
            ", but got {0}");
  Value needed = arith::AddIOp::create(builder, loc, high, one);
  Value length =
      asIndex(builder, loc, sizeOf(builder, loc, axis.operand, axis.axis));
  check(builder, loc, arith::CmpIPredicate::sge, length, needed,
        begin(op, place) + "size {1} or more" + onAxis(where, true) +
            ", but got {0}");
}

void SizeAssertions::learn(Value condition) {
  auto equal = condition.getDefiningOp<arith::CmpIOp>();
  if (equal && equal.getPredicate() == arith::CmpIPredicate::eq)
    graph.space.join(graph.polyOf(equal.getLhs()),
                     graph.polyOf(equal.getRhs()));
}
