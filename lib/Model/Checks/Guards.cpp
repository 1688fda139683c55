//===- Guards.cpp - where assertions about accesses stand -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Guards.h"

#include "Assertion.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::tensorexpr;

ImplicitLocOpBuilder Guards::before(Operation *op) {
  Operation *parent = op->getParentOp();
  return ImplicitLocOpBuilder(op->getLoc(),
                              isa<scf::InParallelOp>(parent) ? parent : op);
}

static Value constant(ImplicitLocOpBuilder &b, int64_t number) {
  return arith::ConstantIndexOp::create(b, number);
}

static Value sizeOf(ImplicitLocOpBuilder &b, Value memref, int64_t axis) {
  auto type = cast<MemRefType>(memref.getType());
  if (!type.isDynamicDim(axis))
    return constant(b, type.getDimSize(axis));
  return memref::DimOp::create(b, memref, axis);
}

void Guards::assertHere(Operation *op, arith::CmpIPredicate predicate, Value a,
                        Value b, const Twine &message) {
  ImplicitLocOpBuilder builder = before(op);
  assertThat(builder, builder.getLoc(), predicate, a, b, message);
}

//===----------------------------------------------------------------------===//
// Indices that run with counters
//===----------------------------------------------------------------------===//

static bool isOutside(Value value, Operation *anchor) {
  Region *region = value.getParentRegion();
  return !anchor->isAncestor(region->getParentOp());
}

bool Guards::isKnownOutside(const IndexPoly &poly, Operation *anchor) {
  for (const auto &[monomial, coefficient] : poly.terms)
    for (AtomId id : monomial) {
      const IndexSpace::Atom &atom = facts.space[id];
      if (atom.kind != IndexSpace::Atom::Size &&
          atom.kind != IndexSpace::Atom::Opaque)
        return false;
      if (!isOutside(atom.value, anchor))
        return false;
    }
  return true;
}

Value Guards::materialize(ImplicitLocOpBuilder &b, const IndexPoly &poly) {
  Value sum = constant(b, 0);
  for (const auto &[monomial, coefficient] : poly.terms) {
    Value product = constant(b, coefficient);
    for (AtomId id : monomial) {
      const IndexSpace::Atom &atom = facts.space[id];
      Value factor = atom.kind == IndexSpace::Atom::Size
                         ? sizeOf(b, atom.value, atom.axis)
                         : getValueOrCreateCastToIndexLike(
                               b, b.getLoc(), b.getIndexType(), atom.value);
      product = arith::MulIOp::create(b, product, factor);
    }
    sum = arith::AddIOp::create(b, sum, product);
  }
  return sum;
}

SmallVector<Guards::Level> Guards::levelsAround(Operation *op) {
  SmallVector<Level> levels;
  Operation *inner = op;
  if (auto generic = dyn_cast<linalg::LinalgOp>(op->getParentOp())) {
    Level level{generic, {}};
    for (unsigned i = 0; i < generic.getNumLoops(); ++i) {
      std::optional<AtomId> atom = facts.loopOf(generic, i).asAtom();
      auto extent = IndexFacts::findExtent(generic, i);
      if (!atom || !extent)
        return {};
      level.counters.push_back({*atom, {}, {}, extent->first, extent->second});
    }
    levels.push_back(std::move(level));
    inner = generic;
  }
  while (auto loop = dyn_cast<scf::ForOp>(inner->getParentOp())) {
    std::optional<AtomId> atom = (facts.polyOf(loop.getInductionVar()) -
                                  facts.polyOf(loop.getLowerBound()))
                                     .asAtom();
    if (!atom || facts.space[*atom].kind != IndexSpace::Atom::Loop)
      break;
    levels.push_back(
        {loop, {{*atom, loop.getLowerBound(), loop.getUpperBound(), {}, 0}}});
    inner = loop;
  }
  return levels;
}

bool Guards::hoistTo(const IndexUse &use, ArrayRef<Level> levels,
                     StringRef message) {
  Operation *anchor = levels.back().op;
  DenseMap<AtomId, const Counter *> counters;
  for (const Level &level : levels)
    for (const Counter &counter : level.counters) {
      counters[counter.atom] = &counter;
      if (counter.memref ? !isOutside(counter.memref, anchor)
                         : !isKnownOutside(facts.polyOf(counter.from) +
                                               facts.polyOf(counter.to),
                                           anchor))
        return false;
    }
  IndexPoly fixed;
  SmallVector<std::pair<const Counter *, int64_t>> moving;
  for (const auto &[monomial, coefficient] : facts.polyOf(use.index).terms) {
    bool counts = llvm::any_of(monomial, [&](AtomId id) {
      return facts.space[id].kind == IndexSpace::Atom::Loop;
    });
    const Counter *counter =
        monomial.size() == 1 ? counters.lookup(monomial[0]) : nullptr;
    if (counter)
      moving.push_back({counter, coefficient});
    else if (counts)
      return false;
    else
      fixed.addTerm(monomial, coefficient);
  }
  const bool sizeIsOutside = isOutside(use.memref, anchor);
  const IndexPoly size = facts.sizeOf(use.memref, use.axis);
  if (!isKnownOutside(fixed, anchor) ||
      (!sizeIsOutside && !isKnownOutside(size, anchor)))
    return false;

  ImplicitLocOpBuilder b = before(anchor);
  auto turnsOf = [&](const Counter &counter) -> Value {
    if (counter.memref)
      return sizeOf(b, counter.memref, counter.axis);
    IndexPoly turns = facts.polyOf(counter.to) - facts.polyOf(counter.from);
    return materialize(b, turns);
  };
  Value runs, one = constant(b, 1), zero = constant(b, 0);
  DenseMap<AtomId, Value> turns;
  for (const Level &level : levels)
    for (const Counter &counter : level.counters) {
      Value count = turns[counter.atom] = turnsOf(counter);
      if (std::optional<int64_t> number = getConstantIntValue(count);
          number && *number > 0)
        continue;
      Value more =
          arith::CmpIOp::create(b, arith::CmpIPredicate::sgt, count, zero);
      runs = runs ? arith::AndIOp::create(b, runs, more).getResult() : more;
    }
  Value low = materialize(b, fixed), high = low;
  for (auto [counter, coefficient] : moving) {
    Value last = arith::SubIOp::create(b, turns[counter->atom], one);
    Value part = arith::MulIOp::create(b, last, constant(b, coefficient));
    Value &end = coefficient > 0 ? high : low;
    end = arith::AddIOp::create(b, end, part);
  }
  Value limit =
      sizeIsOutside ? sizeOf(b, use.memref, use.axis) : materialize(b, size);
  if (runs)
    limit = arith::SelectOp::create(b, runs, limit, one);
  SmallVector<Value> ends = {low};
  if (high != low)
    ends.push_back(high);
  for (Value end : ends) {
    if (runs)
      end = arith::SelectOp::create(b, runs, end, zero);
    assertThat(b, b.getLoc(), arith::CmpIPredicate::ult, end, limit, message);
  }
  return true;
}

/// Before as many loops as possible.
bool Guards::hoist(const IndexUse &use, StringRef message) {
  SmallVector<Level> levels = levelsAround(use.user);
  for (size_t count = levels.size(); count > 0; --count)
    if (hoistTo(use, ArrayRef(levels).take_front(count), message))
      return true;
  return false;
}

//===----------------------------------------------------------------------===//
// Indices that are data
//===----------------------------------------------------------------------===//

bool Guards::readsWhatItWrites(linalg::LinalgOp op, ArrayRef<Value> read) {
  auto element = [](Value memref) {
    return cast<BaseMemRefType>(memref.getType()).getElementType();
  };
  for (Value init : op.getDpsInits())
    for (Value memref : read)
      if (element(init) == element(memref) &&
          !aliases.alias(init, memref).isNo())
        return true;
  return false;
}

/// The ops of `body` that `values` are computed by, in order, and the arguments
/// of `body` among what they use. False where an op may do more than compute.
static bool collectSlice(Block *body, ValueRange values,
                         llvm::SetVector<Operation *> &ops,
                         llvm::SetVector<BlockArgument> &arguments) {
  SmallVector<Value> open(values);
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!open.empty()) {
    Value value = open.pop_back_val();
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      if (argument.getOwner() == body)
        arguments.insert(argument);
      continue;
    }
    Operation *op = value.getDefiningOp();
    if (op->getBlock() != body || !seen.insert(op).second)
      continue;
    if (op->getNumRegions() ||
        !(isMemoryEffectFree(op) || isa<memref::LoadOp>(op)))
      return false;
    llvm::append_range(open, op->getOperands());
  }
  for (Operation &op : *body)
    if (seen.contains(&op))
      ops.insert(&op);
  return true;
}

Value Guards::foldTurns(linalg::LinalgOp op, ValueRange values,
                        const Fold &fold, Value &runs) {
  Block *body = op.getBlock();
  llvm::SetVector<Operation *> slice;
  llvm::SetVector<BlockArgument> arguments;
  if (!op.hasPureBufferSemantics() ||
      !collectSlice(body, values, slice, arguments))
    return Value();
  SmallVector<Value> read;
  llvm::SmallBitVector loops(op.getNumLoops());
  for (Operation *inner : slice) {
    if (guardedHere.contains(inner))
      return Value();
    if (auto load = dyn_cast<memref::LoadOp>(inner))
      read.push_back(load.getMemRef());
    if (auto index = dyn_cast<linalg::IndexOp>(inner))
      loops.set(index.getDim());
  }
  SmallVector<OpOperand *> operands;
  for (BlockArgument argument : arguments) {
    OpOperand *operand = op.getMatchingOpOperand(argument);
    if (op.isDpsInit(operand))
      return Value();
    operands.push_back(operand);
    if (isa<MemRefType>(operand->get().getType()))
      read.push_back(operand->get());
    AffineMap map = op.getMatchingIndexingMap(operand);
    for (unsigned i = 0; i < op.getNumLoops(); ++i)
      if (map.isFunctionOfDim(i))
        loops.set(i);
  }
  if (llvm::any_of(read,
                   [&](Value memref) { return !isOutside(memref, op); }) ||
      readsWhatItWrites(op, read))
    return Value();

  ImplicitLocOpBuilder b(op->getLoc(), op);
  MLIRContext *context = b.getContext();
  // Loops that matter, in their order.
  SmallVector<AffineExpr> renamed(op.getNumLoops(), b.getAffineConstantExpr(0));
  llvm::SmallBitVector named(op.getNumLoops());
  unsigned count = 0;
  for (unsigned i : loops.set_bits())
    renamed[i] = b.getAffineDimExpr(count++);
  SmallVector<Value> inputs;
  SmallVector<AffineMap> maps;
  for (OpOperand *operand : operands) {
    AffineMap map = op.getMatchingIndexingMap(operand);
    for (AffineExpr expr : map.getResults())
      if (auto dim = dyn_cast<AffineDimExpr>(expr))
        named.set(dim.getPosition());
    inputs.push_back(operand->get());
    maps.push_back(map.replaceDimsAndSymbols(renamed, {}, count, 0));
  }
  // Loops that only counters run in get their extents from a buffer that is
  // never touched.
  SmallVector<Value> extents;
  SmallVector<int64_t> shape;
  SmallVector<AffineExpr> axes;
  for (unsigned i = 0; i < op.getNumLoops(); ++i) {
    auto extent = IndexFacts::findExtent(op, i);
    if (!extent)
      return Value();
    if (loops.test(i) && named.test(i))
      continue;
    Value size = sizeOf(b, extent->first, extent->second);
    std::optional<int64_t> number = getConstantIntValue(size);
    if (loops.test(i)) {
      shape.push_back(number.value_or(ShapedType::kDynamic));
      if (!number)
        extents.push_back(size);
      axes.push_back(renamed[i]);
    } else if (!number || *number == 0) {
      Value more = arith::CmpIOp::create(b, arith::CmpIPredicate::sgt, size,
                                         constant(b, 0));
      runs = runs ? arith::AndIOp::create(b, runs, more).getResult() : more;
    }
  }
  if (!axes.empty()) {
    inputs.push_back(
        memref::AllocOp::create(b, MemRefType::get(shape, b.getI1Type()),
                                extents, b.getI64IntegerAttr(64)));
    maps.push_back(AffineMap::get(count, 0, axes, context));
  }
  Value result =
      memref::AllocOp::create(b, MemRefType::get({}, fold.start.getType()),
                              ValueRange(), b.getI64IntegerAttr(64));
  memref::StoreOp::create(b, arith::ConstantOp::create(b, fold.start), result);
  maps.push_back(AffineMap::get(count, 0, context));
  linalg::GenericOp::create(
      b, inputs, result, maps,
      SmallVector<utils::IteratorType>(count, utils::IteratorType::reduction),
      [&](OpBuilder &inner, Location loc, ValueRange given) {
        ImplicitLocOpBuilder body(loc, inner);
        IRMapping mapping;
        for (auto [argument, value] : llvm::zip(arguments, given))
          mapping.map(argument, value);
        for (Operation *from : slice) {
          if (auto index = dyn_cast<linalg::IndexOp>(from)) {
            auto dim = cast<AffineDimExpr>(renamed[index.getDim()]);
            mapping.map(
                index.getResult(),
                linalg::IndexOp::create(body, dim.getPosition()).getResult());
          } else {
            body.clone(*from, mapping);
          }
        }
        SmallVector<Value> here = llvm::map_to_vector(values, [&](Value value) {
          return mapping.lookupOrDefault(value);
        });
        linalg::YieldOp::create(body, fold.step(body, here, given.back()));
      });
  return memref::LoadOp::create(b, result);
}

void Guards::requireInside(const IndexUse &use, StringRef message) {
  if (hoist(use, message))
    return;
  auto generic = dyn_cast<linalg::LinalgOp>(use.user->getParentOp());
  const bool direct = generic && isOutside(use.memref, generic);
  if (direct) {
    // The worst index is the largest: as unsigned numbers, negative ones are
    // large too.
    ImplicitLocOpBuilder b(use.user->getLoc(), generic);
    Value runs;
    Value worst =
        foldTurns(generic, use.index,
                  {b.getI64IntegerAttr(0),
                   [&](ImplicitLocOpBuilder &body, ValueRange values,
                       Value sofar) -> Value {
                     Value index = arith::IndexCastOp::create(
                         body, body.getI64Type(), values[0]);
                     return arith::MaxUIOp::create(body, sofar, index);
                   }},
                  runs);
    if (worst) {
      b.setInsertionPoint(generic);
      // Without a turn there is nothing to find, and 0 stands for it.
      Value turns = runs;
      Value size = arith::IndexCastOp::create(b, b.getI64Type(),
                                              sizeOf(b, use.memref, use.axis));
      Value zero = arith::ConstantIntOp::create(b, 0, 64);
      if (isa<MemRefType>(use.memref.getType()) &&
          cast<MemRefType>(use.memref.getType()).isDynamicDim(use.axis)) {
        // An axis without elements holds no index; where no loop runs, the
        // largest index is 0, and the size is taken for 1.
        for (unsigned i = 0; i < generic.getNumLoops(); ++i) {
          auto extent = IndexFacts::findExtent(generic, i);
          Value count = sizeOf(b, extent->first, extent->second);
          if (getConstantIntValue(count).value_or(0) > 0)
            continue;
          Value more = arith::CmpIOp::create(b, arith::CmpIPredicate::sgt,
                                             count, constant(b, 0));
          turns =
              turns ? arith::AndIOp::create(b, turns, more).getResult() : more;
        }
      }
      if (turns) {
        Value one = arith::ConstantIntOp::create(b, 1, 64);
        worst = arith::SelectOp::create(b, turns, worst, zero);
        size = arith::SelectOp::create(b, turns, size, one);
      }
      assertThat(b, b.getLoc(), arith::CmpIPredicate::ult, worst, size,
                 message);
      return;
    }
    guardedHere.insert(use.user);
  }
  ImplicitLocOpBuilder b = before(use.user);
  assertHere(use.user, arith::CmpIPredicate::ult, use.index,
             sizeOf(b, use.memref, use.axis), message);
}

void Guards::require(Operation *op, ValueRange values, Condition condition,
                     StringRef message) {
  if (auto generic = dyn_cast<linalg::LinalgOp>(op->getParentOp())) {
    ImplicitLocOpBuilder b(op->getLoc(), generic);
    Value runs;
    Value all = foldTurns(generic, values,
                          {b.getBoolAttr(true),
                           [&](ImplicitLocOpBuilder &body, ValueRange here,
                               Value sofar) -> Value {
                             return arith::AndIOp::create(
                                 body, sofar, condition(body, here));
                           }},
                          runs);
    if (all) {
      b.setInsertionPoint(generic);
      if (runs)
        all = arith::SelectOp::create(b, runs, all,
                                      arith::ConstantIntOp::create(b, 1, 1));
      cf::AssertOp::create(b, all, message);
      return;
    }
    guardedHere.insert(op);
  }
  ImplicitLocOpBuilder b = before(op);
  cf::AssertOp::create(b, condition(b, values), message);
}
