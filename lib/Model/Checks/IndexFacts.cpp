//===- IndexFacts.cpp - static facts about indices ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "IndexFacts.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::tensorexpr;

/// Beyond these an integer stands for itself.
static constexpr unsigned kMaxDepth = 32, kMaxSteps = 2000;
static constexpr size_t kMaxTerms = 32, kMaxDegree = 8;

IndexPoly IndexFacts::polyOf(OpFoldResult integer) {
  if (auto number = getConstantIntValue(integer))
    return *number;
  return polyOf(cast<Value>(integer));
}

IndexPoly IndexFacts::polyOf(Value integer) {
  if (depth == 0)
    steps = 0;
  if (depth == kMaxDepth || ++steps > kMaxSteps)
    return space.opaque(integer);
  ++depth;
  IndexPoly poly = readPoly(integer);
  --depth;
  return poly.isWithin(kMaxTerms, kMaxDegree) ? poly : space.opaque(integer);
}

/// Whether arithmetic in `type` wraps around where addresses do.
static bool isWide(Type type) {
  return type.isIndex() || type.isSignlessInteger(64);
}

IndexPoly IndexFacts::readPoly(Value integer) {
  if (std::optional<int64_t> number = constantInteger(integer))
    return *number;
  if (!isWide(integer.getType()))
    return space.opaque(integer);
  auto range = [&](OpFoldResult from, OpFoldResult to) {
    auto [at, isNew] = counters.try_emplace(integer);
    if (isNew) {
      IndexPoly low = polyOf(from), loop = space.loop(polyOf(to) - low);
      // The step is left out: the counter is one of these numbers.
      counters[integer] = low + loop;
    }
    return counters[integer];
  };
  if (auto argument = dyn_cast<BlockArgument>(integer)) {
    auto loop =
        dyn_cast<LoopLikeOpInterface>(argument.getOwner()->getParentOp());
    auto counted = dyn_cast_or_null<scf::ForOp>(loop.getOperation());
    if (!loop || (counted && counted.getUnsignedCmp()))
      return space.opaque(integer);
    auto variables = loop.getLoopInductionVars();
    auto lower = loop.getLoopLowerBounds(), upper = loop.getLoopUpperBounds();
    if (variables && lower && upper)
      for (auto [variable, from, to] : llvm::zip(*variables, *lower, *upper))
        if (variable == integer)
          return range(from, to);
    return space.opaque(integer);
  }
  return TypeSwitch<Operation *, IndexPoly>(integer.getDefiningOp())
      .Case([&](memref::DimOp dim) {
        std::optional<int64_t> axis = knownAxis(dim);
        return axis ? sizeOf(dim.getSource(), *axis) : space.opaque(integer);
      })
      .Case([&](linalg::IndexOp index) {
        // An op in a region of a body is still one of the body's turns.
        auto op = index->getParentOfType<linalg::LinalgOp>();
        return extentOf(op, index.getDim()) ? loopOf(op, index.getDim())
                                            : space.opaque(integer);
      })
      .Case([&](arith::IndexCastOp cast) {
        return isWide(cast.getIn().getType()) ? polyOf(cast.getIn())
                                              : space.opaque(integer);
      })
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
        IndexPoly a = polyOf(div.getLhs()), b = polyOf(div.getRhs());
        // Quotients of negative numbers round in other directions.
        return isNotNegative(a, div) && isNotNegative(b - 1, div)
                   ? space.floorDiv(a, b)
                   : space.opaque(integer);
      })
      .Case([&](affine::AffineApplyOp apply) {
        bool divides = false;
        apply.getAffineMap().getResult(0).walk([&](AffineExpr expr) {
          divides |= expr.getKind() == AffineExprKind::FloorDiv ||
                     expr.getKind() == AffineExprKind::CeilDiv ||
                     expr.getKind() == AffineExprKind::Mod;
        });
        SmallVector<IndexPoly> operands;
        for (Value operand : apply.getMapOperands())
          operands.push_back(polyOf(operand));
        return divides && !llvm::all_of(operands,
                                        [&](const IndexPoly &operand) {
                                          return isNotNegative(operand, apply);
                                        })
                   ? space.opaque(integer)
                   : space.apply(apply.getAffineMap().getResult(0), operands,
                                 apply.getAffineMap().getNumDims());
      })
      .Default([&](Operation *) { return space.opaque(integer); });
}

IndexPoly IndexFacts::sizeOf(Value memref, int64_t axis) {
  auto type = cast<MemRefType>(memref.getType());
  if (!type.isDynamicDim(axis))
    return type.getDimSize(axis);
  Operation *op = memref.getDefiningOp();
  IndexPoly unknown = space.size(memref, axis);
  if (!op)
    return unknown;
  return TypeSwitch<Operation *, IndexPoly>(op)
      .Case<memref::AllocOp, memref::AllocaOp>(
          [&](auto alloc) { return polyOf(alloc.getMixedSizes()[axis]); })
      .Case([&](memref::CastOp cast) {
        return isa<MemRefType>(cast.getSource().getType())
                   ? sizeOf(cast.getSource(), axis)
                   : unknown;
      })
      .Case([&](memref::ExpandShapeOp expand) {
        return polyOf(expand.getMixedOutputShape()[axis]);
      })
      .Case([&](memref::CollapseShapeOp collapse) {
        IndexPoly product = 1;
        // A copy: what the loop runs over must outlive the call.
        const ReassociationIndices group =
            collapse.getReassociationIndices()[axis];
        for (int64_t k : group)
          product = product * sizeOf(collapse.getSrc(), k);
        return product;
      })
      .Case([&](memref::SubViewOp view) {
        llvm::SmallBitVector dropped = view.getDroppedDims();
        int64_t kept = 0;
        for (auto [k, size] : llvm::enumerate(view.getMixedSizes()))
          if (!dropped.test(k) && kept++ == axis)
            return polyOf(size);
        return unknown;
      })
      .Default([&](Operation *) { return unknown; });
}

IndexPoly IndexFacts::loopOf(linalg::LinalgOp op, unsigned number) {
  auto [at, isNew] = indices.try_emplace({op.getOperation(), number});
  if (isNew) {
    std::optional<IndexPoly> extent = extentOf(op, number);
    IndexPoly loop = extent ? space.loop(*extent) : IndexPoly();
    indices[{op.getOperation(), number}] = loop;
    return loop;
  }
  return at->second;
}

std::optional<std::pair<Value, int64_t>>
IndexFacts::findExtent(linalg::LinalgOp op, unsigned number) {
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isa<MemRefType>(operand.get().getType()))
      continue;
    AffineMap map = op.getMatchingIndexingMap(&operand);
    for (auto [axis, expr] : llvm::enumerate(map.getResults()))
      if (auto dim = dyn_cast<AffineDimExpr>(expr);
          dim && dim.getPosition() == number)
        return std::pair(operand.get(), static_cast<int64_t>(axis));
  }
  return std::nullopt;
}

std::optional<IndexPoly> IndexFacts::extentOf(linalg::LinalgOp op,
                                              unsigned number) {
  auto extent = findExtent(op, number);
  if (!extent)
    return std::nullopt;
  return sizeOf(extent->first, extent->second);
}

bool IndexFacts::isNotNegative(const IndexPoly &poly, Operation *user) {
  // Where an op runs the loops around it do: their extents are positive.
  SmallVector<AtomId> positive;
  auto learnExtent = [&](const IndexPoly &extent) {
    if (std::optional<AtomId> atom = extent.asAtom())
      positive.push_back(*atom);
  };
  for (Operation *op = user->getParentOp(); op; op = op->getParentOp()) {
    if (auto generic = dyn_cast<linalg::LinalgOp>(op)) {
      for (unsigned i = 0; i < generic.getNumLoops(); ++i)
        if (std::optional<IndexPoly> extent = extentOf(generic, i))
          learnExtent(*extent);
    } else if (auto loop = dyn_cast<scf::ForOp>(op);
               loop && depth < kMaxDepth) {
      if (getConstantIntValue(loop.getLowerBound()) == 0)
        learnExtent(polyOf(loop.getUpperBound()));
    }
  }
  auto isProvable = [&](const IndexPoly &number) {
    return space.provablyNonNegative(
        number, [&](AtomId id) { return llvm::is_contained(positive, id); });
  };
  return isProvable(poly) ||
         llvm::any_of(branches, [&](const BranchFact &fact) {
           return fact.region->isAncestor(user->getParentRegion()) &&
                  isProvable(poly - fact.number);
         });
}

/// The operand of a cast between integers that keeps the number.
static Value peelCast(Value integer) {
  Operation *op = integer.getDefiningOp();
  if (!op)
    return Value();
  if (isa<arith::ExtSIOp>(op))
    return op->getOperand(0);
  if (isa<arith::IndexCastOp>(op)) {
    Type from = op->getOperand(0).getType();
    if (isWide(integer.getType()) &&
        (isWide(from) || from.getIntOrFloatBitWidth() < 64))
      return op->getOperand(0);
  }
  return Value();
}

/// The bits of an unsigned integer that a cast has made wider.
static std::optional<unsigned> peelUnsigned(Value integer) {
  Operation *op = integer.getDefiningOp();
  if (!op || !isa<arith::ExtUIOp, arith::IndexCastUIOp>(op))
    return std::nullopt;
  Type from = op->getOperand(0).getType();
  if (!isa<IntegerType>(from) || from.getIntOrFloatBitWidth() >= 63)
    return std::nullopt;
  return from.getIntOrFloatBitWidth();
}

/// Whether `user` is only reached after `assertion`.
static bool isAfter(Operation *assertion, Operation *user) {
  Operation *at = assertion->getBlock()->findAncestorOpInBlock(*user);
  return at && assertion->isBeforeInBlock(at);
}

bool IndexFacts::isNotNegative(Value index, Operation *user) {
  if (depth == 0)
    steps = 0;
  if (depth == kMaxDepth || ++steps > kMaxSteps)
    return false;
  for (const Fact &fact : asserted.lookup(index))
    if (fact.isNotNegative && isAfter(fact.assertion, user))
      return true;
  if (isNotNegative(polyOf(index), user) || peelUnsigned(index))
    return true;
  Operation *op = index.getDefiningOp();
  if (!op)
    return false;
  ++depth;
  auto holds = [&](Value value) { return isNotNegative(value, user); };
  bool result =
      TypeSwitch<Operation *, bool>(op)
          .Case([&](arith::MaxSIOp max) {
            return holds(max.getLhs()) || holds(max.getRhs());
          })
          .Case<arith::MinSIOp, arith::DivSIOp, arith::FloorDivSIOp>(
              [&](auto both) {
                return holds(both.getLhs()) && holds(both.getRhs());
              })
          .Case([&](arith::AndIOp both) {
            return holds(both.getLhs()) || holds(both.getRhs());
          })
          .Case<arith::RemSIOp>(
              [&](arith::RemSIOp rest) { return holds(rest.getLhs()); })
          .Case([&](arith::RemUIOp rest) { return holds(rest.getRhs()); })
          .Case([&](arith::SelectOp select) {
            return holds(select.getTrueValue()) &&
                   holds(select.getFalseValue());
          })
          .Default([&](Operation *) {
            Value inner = peelCast(index);
            return inner && holds(inner);
          });
  --depth;
  return result;
}

bool IndexFacts::isBelow(Value index, const IndexPoly &size, Operation *user) {
  if (depth == 0)
    steps = 0;
  if (depth == kMaxDepth || ++steps > kMaxSteps)
    return false;
  for (const Fact &fact : asserted.lookup(index))
    if (fact.limit && isAfter(fact.assertion, user) &&
        isNotNegative(size - *fact.limit, user))
      return true;
  if (isNotNegative(size - polyOf(index) - 1, user))
    return true;
  if (std::optional<unsigned> bits = peelUnsigned(index))
    return isNotNegative(size - IndexPoly(int64_t(1) << *bits), user);
  Operation *op = index.getDefiningOp();
  if (!op)
    return false;
  ++depth;
  auto holds = [&](Value value) { return isBelow(value, size, user); };
  bool result =
      TypeSwitch<Operation *, bool>(op)
          .Case([&](arith::MinSIOp min) {
            return holds(min.getLhs()) || holds(min.getRhs());
          })
          .Case([&](arith::MaxSIOp max) {
            return holds(max.getLhs()) && holds(max.getRhs());
          })
          .Case([&](arith::SelectOp select) {
            return holds(select.getTrueValue()) &&
                   holds(select.getFalseValue());
          })
          .Case([&](arith::AndIOp both) {
            return (holds(both.getLhs()) &&
                    isNotNegative(both.getLhs(), user)) ||
                   (holds(both.getRhs()) && isNotNegative(both.getRhs(), user));
          })
          .Case<arith::RemSIOp, arith::RemUIOp>([&](auto rest) {
            IndexPoly by = polyOf(rest.getRhs());
            return isNotNegative(by, user) && isNotNegative(size - by, user);
          })
          .Default([&](Operation *) {
            Value inner = peelCast(index);
            return inner && holds(inner);
          });
  --depth;
  return result;
}

void IndexFacts::learnComparison(arith::CmpIPredicate predicate, Value a,
                                 Value b, Operation *assertion) {
  using Predicate = arith::CmpIPredicate;
  APInt number;
  auto isAtLeast = [&](Value value, int64_t least) {
    return matchPattern(value, m_ConstantInt(&number)) &&
           number.getBitWidth() <= 64 && number.getSExtValue() >= least;
  };
  switch (predicate) {
  case Predicate::sgt:
    return learnComparison(Predicate::slt, b, a, assertion);
  case Predicate::sge:
    return learnComparison(Predicate::sle, b, a, assertion);
  case Predicate::ugt:
    return learnComparison(Predicate::ult, b, a, assertion);
  case Predicate::ult:
    if (isNotNegative(b, assertion))
      asserted[a].push_back({assertion, true, polyOf(b)});
    return;
  case Predicate::slt:
    asserted[a].push_back({assertion, false, polyOf(b)});
    if (isAtLeast(a, -1))
      asserted[b].push_back({assertion, true, std::nullopt});
    return;
  case Predicate::sle:
    if (isAtLeast(a, 0))
      asserted[b].push_back({assertion, true, std::nullopt});
    return;
  default:
    return;
  }
}

void IndexFacts::learn(cf::AssertOp assertion, bool isUnconditional) {
  SmallVector<Value> open = {assertion.getArg()};
  while (!open.empty()) {
    Value condition = open.pop_back_val();
    if (auto both = condition.getDefiningOp<arith::AndIOp>()) {
      open.append({both.getLhs(), both.getRhs()});
      continue;
    }
    auto compare = condition.getDefiningOp<arith::CmpIOp>();
    if (!compare || !compare.getLhs().getType().isIntOrIndex())
      continue;
    Value a = compare.getLhs(), b = compare.getRhs();
    if (compare.getPredicate() != arith::CmpIPredicate::eq)
      learnComparison(compare.getPredicate(), a, b, assertion);
    else if (isUnconditional && isWide(a.getType()))
      space.join(polyOf(a), polyOf(b));
  }
}

/// Whether `number` is a sum of sizes, counters up to sizes and a constant:
/// code that computes it does not wrap around, so it has the polynomial's
/// value.
bool IndexFacts::isFarFromOverflow(const IndexPoly &number) {
  constexpr int64_t kFar = int64_t(1) << 48;
  for (const auto &[monomial, coefficient] : number.terms) {
    if (coefficient < -kFar || coefficient > kFar)
      return false;
    if (monomial.empty())
      continue;
    if (monomial.size() > 1 || coefficient < -1 || coefficient > 1)
      return false;
    const IndexSpace::Atom &atom = space[monomial.front()];
    if (atom.kind == IndexSpace::Atom::Loop
            ? !isFarFromOverflow(IndexPoly(atom.first))
            : atom.kind != IndexSpace::Atom::Size)
      return false;
  }
  return true;
}

void IndexFacts::learn(scf::IfOp branch) {
  using Predicate = arith::CmpIPredicate;
  auto compare = branch.getCondition().getDefiningOp<arith::CmpIOp>();
  if (!compare || !isWide(compare.getLhs().getType()))
    return;
  IndexPoly left = polyOf(compare.getLhs()), right = polyOf(compare.getRhs());
  if (!isFarFromOverflow(left) || !isFarFromOverflow(right))
    return;
  auto learnIn = [&](Region &region, Predicate predicate) {
    IndexPoly a = left, b = right;
    if (predicate == Predicate::ugt || predicate == Predicate::uge ||
        predicate == Predicate::sgt || predicate == Predicate::sge) {
      std::swap(a, b);
      predicate = predicate == Predicate::ugt   ? Predicate::ult
                  : predicate == Predicate::uge ? Predicate::ule
                  : predicate == Predicate::sgt ? Predicate::slt
                                                : Predicate::sle;
    }
    // Numbers that are not negative are in one order, signed or unsigned.
    const bool isUnsigned =
        predicate == Predicate::ult || predicate == Predicate::ule;
    if (isUnsigned && !isNotNegative(b, branch))
      return;
    if (isUnsigned)
      branches.push_back({&region, a});
    if (predicate == Predicate::ult || predicate == Predicate::slt)
      branches.push_back({&region, b - a - 1});
    else if (predicate == Predicate::ule || predicate == Predicate::sle)
      branches.push_back({&region, b - a});
  };
  learnIn(branch.getThenRegion(), compare.getPredicate());
  learnIn(branch.getElseRegion(),
          arith::invertPredicate(compare.getPredicate()));
}
