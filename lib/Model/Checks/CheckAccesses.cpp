//===- CheckAccesses.cpp - assertions that accesses stay inside -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "Guards.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CHECKACCESSESPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::tensorexpr;

namespace {
class AccessChecker {
public:
  explicit AccessChecker(func::FuncOp function)
      : function(function), guards(function, facts) {}

  void check(Operation *op);

private:
  void checkIndices(Operation *op, MutableOperandRange indices, Value memref);
  void checkAffine(Operation *op, Value memref, AffineMap map,
                   ValueRange operands);
  void checkSlice(memref::SubViewOp op);
  void checkDivision(Operation *op, bool isSigned);
  void checkShift(Operation *op);
  void checkSteps(LoopLikeOpInterface loop);
  void dropIfTrue(cf::AssertOp op);

  /// Beginning of a message: names the argument that `memref` is, or else `op`.
  std::string begin(Operation *op, Value memref);
  bool isKnown(const IndexUse &use);

  func::FuncOp function;
  IndexFacts facts;
  Guards guards;
  /// Indices with the sizes that they were compared with.
  DenseMap<Value, SmallVector<std::pair<IndexPoly, Operation *>>> compared;
};
} // namespace

std::string AccessChecker::begin(Operation *op, Value memref) {
  while (auto cast = memref.getDefiningOp<memref::CastOp>())
    memref = cast.getSource();
  auto argument = dyn_cast<BlockArgument>(memref);
  if (argument && argument.getOwner()->getParentOp() == function)
    return ("argument " + Twine(argument.getArgNumber()) + " of '" +
            function.getSymName() + "': expected ")
        .str();
  return (op->getName().stripDialect() + ": expected ").str();
}

/// Whether an assertion in the same block, or in one around it, has compared
/// the index before.
bool AccessChecker::isKnown(const IndexUse &use) {
  IndexPoly size = facts.sizeOf(use.memref, use.axis);
  auto &before = compared[use.index];
  for (auto &[other, op] : before)
    if (other == size &&
        op->getParentRegion()->isAncestor(use.user->getParentRegion()) &&
        op->getBlock()->findAncestorOpInBlock(*use.user))
      return true;
  before.push_back({size, use.user});
  return false;
}

static Value makeIndex(ImplicitLocOpBuilder &b, int64_t number) {
  return arith::ConstantIndexOp::create(b, number);
}

static Value makeSize(ImplicitLocOpBuilder &b, Value memref, int64_t axis) {
  return getValueOrCreateConstantIndexOp(
      b, b.getLoc(), memref::getMixedSize(b, b.getLoc(), memref, axis));
}

void AccessChecker::checkIndices(Operation *op, MutableOperandRange indices,
                                 Value memref) {
  for (unsigned axis = 0; axis < indices.size(); ++axis) {
    IndexUse use{op, indices[axis].get(), memref, axis};
    IndexPoly size = facts.sizeOf(memref, axis);
    if (facts.isNotNegative(use.index, op) &&
        facts.isBelow(use.index, size, op))
      continue;
    if (!isKnown(use)) {
      std::string limit =
          size.constant() ? std::to_string(*size.constant()) : "{1}";
      guards.requireInside(
          use, begin(op, memref) + "an index from 0 and below " + limit +
                   " on axis " + std::to_string(axis) + ", but got {0}");
    }
  }
}

void AccessChecker::checkAffine(Operation *op, Value memref, AffineMap map,
                                ValueRange operands) {
  ImplicitLocOpBuilder b(op->getLoc(), op);
  for (auto [axis, expr] : llvm::enumerate(map.getResults())) {
    Value index = affine::AffineApplyOp::create(
        b, AffineMap::get(map.getNumDims(), map.getNumSymbols(), expr),
        operands);
    IndexUse use{op, index, memref, static_cast<int64_t>(axis)};
    if (facts.isNotNegative(index, op) &&
        facts.isBelow(index, facts.sizeOf(memref, axis), op))
      continue;
    guards.requireInside(use, begin(op, memref) +
                                  "an index from 0 and below {1} on axis " +
                                  std::to_string(axis) + ", but got {0}");
  }
}

/// Asserts with steps of one: 0 <= size <= length and 0 <= offset <= length -
/// size. Other steps stretch the slice; backwards it ends where it would begin.
void AccessChecker::checkSlice(memref::SubViewOp op) {
  Value source = op.getSource();
  for (unsigned axis = 0; axis < op.getMixedSizes().size(); ++axis) {
    OpFoldResult offset = op.getMixedOffsets()[axis],
                 size = op.getMixedSizes()[axis],
                 stride = op.getMixedStrides()[axis];
    std::optional<int64_t> step = getConstantIntValue(stride);
    IndexPoly length = facts.sizeOf(source, axis), count = facts.polyOf(size),
              start = facts.polyOf(offset);
    IndexPoly span = count;
    if (step && *step > 1)
      span = (count - 1) * IndexPoly(*step) + 1;
    const bool forward = step && *step >= 1;
    const bool isCount = facts.isNotNegative(count, op);
    const bool fits =
        isCount && forward && facts.isNotNegative(length - span, op);
    auto startsInside = [&] {
      if (auto value = dyn_cast<Value>(offset))
        return facts.isNotNegative(value, op) &&
               facts.isBelow(value, length - span + 1, op);
      return facts.isNotNegative(start, op) &&
             facts.isNotNegative(length - span - start, op);
    };
    if (isCount && forward && startsInside())
      continue;
    ImplicitLocOpBuilder b = Guards::before(op);
    const std::string from = begin(op, source),
                      onAxis =
                          " on axis " + std::to_string(axis) + ", but got {0}";
    Value zero = makeIndex(b, 0), one = makeIndex(b, 1);
    Value first = getValueOrCreateConstantIndexOp(b, b.getLoc(), offset),
          reach = getValueOrCreateConstantIndexOp(b, b.getLoc(), size),
          whole = makeSize(b, source, axis);
    if (step != 1) {
      Value by = getValueOrCreateConstantIndexOp(b, b.getLoc(), stride);
      if (!step)
        Guards::assertHere(op, arith::CmpIPredicate::sge, by, zero,
                           from + "a stride of 0 or more" + onAxis);
      if (!isCount)
        Guards::assertHere(op, arith::CmpIPredicate::ule, reach,
                           makeIndex(b, INT64_MAX),
                           from + "a number of elements of 0 or more" + onAxis);
      Value isEmpty =
          arith::CmpIOp::create(b, arith::CmpIPredicate::eq, reach, zero);
      Value distance = by;
      if (step && *step < 0)
        distance = makeIndex(b, *step == INT64_MIN ? INT64_MAX : -*step);
      auto product = arith::MulUIExtendedOp::create(
          b, arith::SubIOp::create(b, reach, one), distance);
      Value fitsIndex = arith::CmpIOp::create(b, arith::CmpIPredicate::eq,
                                              product.getHigh(), zero);
      Value last = arith::SelectOp::create(b, fitsIndex, product.getLow(),
                                           makeIndex(b, INT64_MAX - 1));
      last = arith::MinUIOp::create(b, last, makeIndex(b, INT64_MAX - 1));
      if (step && *step < 0)
        first = arith::SelectOp::create(b, isEmpty, first,
                                        arith::SubIOp::create(b, first, last));
      reach = arith::SelectOp::create(b, isEmpty, zero,
                                      arith::AddIOp::create(b, last, one));
    }
    if (!fits)
      Guards::assertHere(op, arith::CmpIPredicate::ule, reach, whole,
                         from + "a slice of 0 to {1} elements" + onAxis);
    // A slice that is not longer than the axis fits where it begins at 0.
    if (forward && start == IndexPoly(0))
      continue;
    Value room = arith::SubIOp::create(b, whole, reach);
    Guards::assertHere(op, arith::CmpIPredicate::ule, first, room,
                       from + "a slice that begins from 0 to {1}" + onAxis);
  }
}

/// A number of the type of an integer.
static Value makeLike(ImplicitLocOpBuilder &b, Value like,
                      const APInt &number) {
  return arith::ConstantOp::create(b, b.getIntegerAttr(like.getType(), number));
}

static unsigned widthOf(Value integer) {
  return integer.getType().isIndex()
             ? 64
             : integer.getType().getIntOrFloatBitWidth();
}

static Value compare(ImplicitLocOpBuilder &b, arith::CmpIPredicate predicate,
                     Value a, const APInt &number) {
  return arith::CmpIOp::create(b, predicate, a, makeLike(b, a, number));
}

void AccessChecker::checkDivision(Operation *op, bool isSigned) {
  Value by = op->getOperand(1);
  if (!by.getType().isIntOrIndex())
    return;
  const unsigned width = widthOf(by);
  const APInt zero = APInt::getZero(width), minusOne = APInt::getAllOnes(width);
  APInt known;
  if (matchPattern(by, m_ConstantInt(&known)) && !known.isZero() &&
      !(isSigned && known.isAllOnes()))
    return;
  if (width == 64 && facts.isNotNegative(facts.polyOf(by) - 1, op))
    return;
  using Predicate = arith::CmpIPredicate;
  auto isFine = [&](ImplicitLocOpBuilder &b, ValueRange values) -> Value {
    Value fine = compare(b, Predicate::ne, values[1], zero);
    if (!isSigned)
      return fine;
    Value fits = arith::OrIOp::create(
        b,
        compare(b, Predicate::ne, values[0], APInt::getSignedMinValue(width)),
        compare(b, Predicate::ne, values[1], minusOne));
    return arith::AndIOp::create(b, fine, fits);
  };
  SmallVector<Value> operands(op->getOperands());
  std::string message =
      op->getName().stripDialect().str() + ": expected a divisor other than 0";
  if (isSigned)
    message += " and a quotient that its type can hold";
  guards.require(op, operands, isFine, message);
}

void AccessChecker::checkShift(Operation *op) {
  Value by = op->getOperand(1);
  if (!by.getType().isIntOrIndex())
    return;
  const unsigned width = widthOf(by);
  APInt known;
  if (matchPattern(by, m_ConstantInt(&known)) && known.ult(width))
    return;
  if (facts.isNotNegative(by, op) && facts.isBelow(by, width, op))
    return;
  guards.require(
      op, by,
      [&](ImplicitLocOpBuilder &b, ValueRange values) {
        return compare(b, arith::CmpIPredicate::ult, values[0],
                       APInt(width, width));
      },
      op->getName().stripDialect().str() +
          ": expected a shift by less than the width of the type, " +
          std::to_string(width) + " bits");
}

/// A loop goes up, and its counter does not wrap around beyond its end.
void AccessChecker::checkSteps(LoopLikeOpInterface loop) {
  auto steps = loop.getLoopSteps(), ends = loop.getLoopUpperBounds();
  if (!steps || !ends)
    return;
  auto counted = dyn_cast<scf::ForOp>(loop.getOperation());
  const bool isUnsigned = counted && counted.getUnsignedCmp();
  for (auto [step, end] : llvm::zip(*steps, *ends)) {
    std::optional<int64_t> known = getConstantIntValue(step);
    if (known == 1)
      continue;
    ImplicitLocOpBuilder b = Guards::before(loop);
    auto asValue = [&](OpFoldResult number) {
      return getValueOrCreateConstantIndexOp(b, b.getLoc(), number);
    };
    std::string op = loop->getName().stripDialect().str() + ": expected ";
    Value by = asValue(step), to = asValue(end);
    const unsigned width = widthOf(by);
    if (!known || *known < 1)
      Guards::assertHere(loop,
                         isUnsigned ? arith::CmpIPredicate::ne
                                    : arith::CmpIPredicate::sge,
                         by, makeLike(b, by, APInt(width, isUnsigned ? 0 : 1)),
                         op + "a step of 1 or more, but got {0}");
    // Sizes of buffers are far from the end of the numbers.
    IndexPoly last = facts.polyOf(end);
    bool isSize = known && *known < (int64_t(1) << 32) && width == 64;
    for (const auto &[monomial, coefficient] : last.terms)
      for (AtomId id : monomial)
        isSize &= facts.space[id].kind == IndexSpace::Atom::Size &&
                  monomial.size() == 1;
    if (isSize && last.constantPart() < (int64_t(1) << 48))
      continue;
    APInt largest = isUnsigned ? APInt::getMaxValue(width)
                               : APInt::getSignedMaxValue(width);
    Value limit = arith::AddIOp::create(
        b, arith::SubIOp::create(b, makeLike(b, by, largest), by),
        makeLike(b, by, APInt(width, 1)));
    std::string most = op + "an end of at most {0}, so that the counter does "
                            "not overflow, but got {1}";
    if (isUnsigned)
      Guards::assertHere(loop, arith::CmpIPredicate::eq,
                         arith::MinUIOp::create(b, to, limit), to, most);
    else
      Guards::assertHere(loop, arith::CmpIPredicate::sge, limit, to, most);
  }
}

void AccessChecker::dropIfTrue(cf::AssertOp op) {
  auto below = op.getArg().getDefiningOp<arith::CmpIOp>();
  if (below && below.getPredicate() == arith::CmpIPredicate::ult &&
      widthOf(below.getLhs()) == 64 &&
      facts.isNotNegative(below.getLhs(), op) &&
      facts.isBelow(below.getLhs(), facts.polyOf(below.getRhs()), op))
    op.erase();
  else
    facts.learn(op, /*isUnconditional=*/op->getParentOp() == function);
}

void AccessChecker::check(Operation *op) {
  llvm::TypeSwitch<Operation *>(op)
      .Case<memref::LoadOp, memref::StoreOp, memref::AtomicRMWOp,
            memref::GenericAtomicRMWOp>([&](auto access) {
        checkIndices(access, access.getIndicesMutable(), access.getMemref());
      })
      .Case<affine::AffineLoadOp, affine::AffineStoreOp>([&](auto access) {
        checkAffine(access, access.getMemRef(), access.getAffineMap(),
                    access.getMapOperands());
      })
      .Case([&](memref::SubViewOp view) { checkSlice(view); })
      .Case<arith::DivSIOp, arith::RemSIOp, arith::CeilDivSIOp,
            arith::FloorDivSIOp>(
          [&](auto) { checkDivision(op, /*isSigned=*/true); })
      .Case<arith::DivUIOp, arith::RemUIOp, arith::CeilDivUIOp>(
          [&](auto) { checkDivision(op, /*isSigned=*/false); })
      .Case<arith::ShLIOp, arith::ShRSIOp, arith::ShRUIOp>(
          [&](auto) { checkShift(op); })
      .Case<scf::ForOp, scf::ParallelOp, scf::ForallOp>([&](auto loop) {
        checkSteps(cast<LoopLikeOpInterface>(loop.getOperation()));
      })
      .Case([&](scf::IfOp branch) { facts.learn(branch); })
      .Case([&](cf::AssertOp assertion) { dropIfTrue(assertion); });
}

/// Buffers on the stack that may be larger than it go where others are.
static void moveOffStack(memref::AllocaOp op) {
  constexpr int64_t kMaxStackBytes = 4096;
  MemRefType type = op.getType();
  Type element = type.getElementType();
  if (!type.getLayout().isIdentity() || !element.isIntOrIndexOrFloat())
    return;
  const int64_t bytes =
      element.isIndex() ? 8 : (element.getIntOrFloatBitWidth() + 7) / 8;
  if (type.hasStaticShape() && type.getNumElements() <= kMaxStackBytes / bytes)
    return;
  OpBuilder b(op);
  Value buffer = memref::AllocOp::create(
      b, op.getLoc(), type, op.getDynamicSizes(), b.getI64IntegerAttr(64));
  op.replaceAllUsesWith(buffer);
  op.erase();
}

namespace {
struct CheckAccessesPass final
    : diffattn::impl::CheckAccessesPassBase<CheckAccessesPass> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    if (function.isExternal())
      return;
    SmallVector<memref::AllocaOp> stack;
    function.walk([&](memref::AllocaOp op) { stack.push_back(op); });
    for (memref::AllocaOp op : stack)
      moveOffStack(op);
    SmallVector<Operation *> ops;
    function.walk<WalkOrder::PreOrder>(
        [&](Operation *op) { ops.push_back(op); });
    AccessChecker checker(function);
    for (Operation *op : ops)
      checker.check(op);
  }
};
} // namespace
