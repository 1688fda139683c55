//===- GpuMasks.cpp - masks in the registers of a GPU thread --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuMasks.h"
#include "AttentionKernel.h"

#include "llvm/Support/ErrorHandling.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

GpuMasks::GpuMasks(AttentionKernel &kernel, Value batch)
    : kernel(kernel), b(kernel.b), batch(batch) {
  auto addTo = [&](auto &elements, MaskAttrInterface mask) {
    for (MaskOperand operand : mask.getMaskOperands())
      if (llvm::none_of(elements, [&](const Elements &known) {
            return known.operand == operand;
          }))
        elements.emplace_back().Elements::operator=(
            {*getGpuMaskParams(operand), operand,
             kernel.spec.getMaskType(operand)});
  };
  // Masks that add numbers to scores come first: keys that another mask hides
  // must stay hidden, whatever those numbers are.
  for (bool hasTerm : {true, false})
    for (MaskAttrInterface mask : kernel.spec.masks) {
      if (mask.isInterval() || mask.hasScoreTerm() != hasTerm)
        continue;
      if (mask.hasTileRelation() && !kernel.spec.isOfGradients()) {
        tileMasks.push_back(mask);
        addTo(tileElements, mask);
      }
      if (!mask.hasTileRelation() || kernel.spec.isPlain() ||
          kernel.spec.isOfGradients()) {
        elementMasks.push_back(mask);
        addTo(elements, mask);
      }
    }
  readPositions();
}

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

Value GpuMasks::readPerBatch(GpuParam pointer, GpuParam stride,
                             Value otherwise) {
  Value null =
      LLVM::ZeroOp::create(b, LLVM::LLVMPointerType::get(b.getContext(), 1));
  Value given = b.compare(LLVM::ICmpPredicate::ne, kernel.param(pointer), null);
  return b.branch(
      given,
      [&]() -> GpuBuilder::Values {
        Type i64 = b.getI64Type();
        return {b.loadConstant(
            i64, kernel.stridePointer(i64, kernel.param(pointer),
                                      b.toI64(batch), kernel.param(stride)))};
      },
      otherwise)[0];
}

void GpuMasks::readPositions() {
  // By default all keys exist, and the last query is at the last one. Given
  // numbers are i64: they become i32 within the branch, so that no wide number
  // takes registers afterwards.
  Value keys = kernel.keys(), queries = kernel.queries();
  Value null =
      LLVM::ZeroOp::create(b, LLVM::LLVMPointerType::get(b.getContext(), 1));
  auto isGiven = [&](GpuParam pointer) {
    return b.compare(LLVM::ICmpPredicate::ne, kernel.param(pointer), null);
  };
  GpuBuilder::Values numbers = b.branch(
      b.orI(isGiven(GpuParam::KvLen), isGiven(GpuParam::QOffset)),
      [&]() -> GpuBuilder::Values {
        Value all = b.toI64(keys);
        Value length = readPerBatch(GpuParam::KvLen, GpuParam::KvLenB, all);
        // The default position is that of the last valid key also where kv_len
        // is beyond the keys in memory. A negative length hides every key.
        Value last =
            b.sub(b.maxS(length, b.i64(-kGpuMaxLength)), b.toI64(queries));
        Value offset =
            readPerBatch(GpuParam::QOffset, GpuParam::QOffsetB, last);
        return {b.toI32(b.minS(b.maxS(length, b.i64(0)), all)),
                nearPosition(offset)};
      },
      {keys, b.sub(keys, queries)});
  keyLimit = numbers[0];
  position0 = numbers[1];
}

/// With M = kGpuMaxLength, rows and keys are below M, and a window of 2 M hides
/// nothing from a position between -M and M. From a position beyond M, no key
/// is too far right: only the first key that is near enough on the left counts,
/// which may be taken between -M and M; the position that sees it through
/// WindowLeft is at least M again. The same holds on the other side.
Value GpuMasks::nearPosition(Value offset) {
  constexpr int64_t m = kGpuMaxLength;
  Value low = b.i64(-m), high = b.i64(m);
  auto limit = [&](GpuParam window, Value given, Value otherwise) {
    Value isLimited =
        b.compare(LLVM::ICmpPredicate::sge, kernel.param(window), b.i64(0));
    Value clamped = b.minS(b.maxS(given, low), high);
    return b.select(isLimited, clamped, otherwise);
  };
  // Used where the offset is positive or negative: the sums do not wrap then.
  Value first = limit(GpuParam::LeftLimit,
                      b.sub(offset, kernel.param(GpuParam::LeftLimit)), low);
  Value last = limit(GpuParam::RightLimit,
                     b.add(offset, kernel.param(GpuParam::RightLimit)), high);
  first = b.add(first, b.toI64(kernel.param(GpuParam::WindowLeft)));
  last = b.sub(last, b.toI64(kernel.param(GpuParam::WindowRight)));
  Value isBelow = b.compare(LLVM::ICmpPredicate::slt, offset, low);
  Value isAbove = b.compare(LLVM::ICmpPredicate::sgt, offset, high);
  return b.toI32(b.select(isBelow, last, b.select(isAbove, first, offset)));
}

Value GpuMasks::position(Value query) {
  if (!query)
    return position0;
  Value &known = positions[query];
  if (!known)
    known = b.add(query, position0);
  return known;
}

//===----------------------------------------------------------------------===//
// Ranges of keys
//===----------------------------------------------------------------------===//

MaskValue GpuMasks::add(const Term &term) {
  terms.push_back(term);
  return MaskValue(terms.size() - 1);
}

VisibleRange GpuMasks::getRange(Query first, Query last) {
  terms.clear();
  positions.clear();
  MaskTile tile;
  tile.first = add({Term::Sum, first.value, first.offset});
  tile.last =
      first == last ? tile.first : add({Term::Sum, last.value, last.offset});
  VisibleRange range;
  for (MaskAttrInterface mask : kernel.spec.masks)
    if (mask.isInterval())
      range = intersect(*this, range, mask.getVisibleRange(*this, tile));
  return range;
}

Value GpuMasks::emit(MaskValue bound, int64_t plus) {
  const Term term = get(bound);
  switch (term.kind) {
  case Term::Sum:
    return term.value ? b.add(term.value, term.constant + plus)
                      : b.i32(term.constant + plus);
  case Term::KeyBefore:
    return b.add(b.sub(b.add(position(term.value), term.constant),
                       kernel.param(GpuParam::WindowLeft)),
                 plus);
  case Term::EndAfter:
    return b.add(
        b.add(position(term.value), kernel.param(GpuParam::WindowRight)),
        term.constant + 1 + plus);
  case Term::Min:
  case Term::Max: {
    Value x = emit(MaskValue(term.x), plus), y = emit(MaskValue(term.y), plus);
    return term.kind == Term::Min ? b.minS(x, y) : b.maxS(x, y);
  }
  case Term::Hidden:
    break;
  }
  llvm_unreachable("a condition is no bound");
}

std::pair<Value, Value> GpuMasks::getQueries(Value first, int64_t count) {
  Value place = b.sub(first, position0);
  Value begin = b.sub(place, kernel.param(GpuParam::WindowRight));
  Value end = b.add(b.add(place, kernel.param(GpuParam::WindowLeft)), count);
  Value exists = b.compare(LLVM::ICmpPredicate::slt, first, keyLimit);
  return {b.maxS(begin, b.i32(0)),
          b.select(exists, b.maxS(b.minS(end, kernel.queries()), b.i32(0)),
                   b.i32(0))};
}

MaskValue GpuMasks::min(MaskValue x, MaskValue y) {
  Term term{Term::Min, Value()};
  term.x = x.getBits();
  term.y = y.getBits();
  return x == y ? x : add(term);
}

MaskValue GpuMasks::max(MaskValue x, MaskValue y) {
  Term term{Term::Max, Value()};
  term.x = x.getBits();
  term.y = y.getBits();
  return x == y ? x : add(term);
}

MaskValue GpuMasks::length() { return add({Term::Sum, keyLimit}); }

// The nearest limits of all masks are the ones that count, and arguments.
MaskValue GpuMasks::keyBefore(MaskValue query, int64_t left) {
  const Term term = get(query);
  return add({Term::KeyBefore, term.value, term.constant});
}
MaskValue GpuMasks::endAfter(MaskValue query, int64_t right) {
  const Term term = get(query);
  return add({Term::EndAfter, term.value, term.constant});
}

// Kernels keep to the ranges of keys.
MaskValue GpuMasks::isWithinLeft(const MaskPoint &point, int64_t left) {
  llvm_unreachable("a mask of positions is an interval");
}
MaskValue GpuMasks::isWithinRight(const MaskPoint &point, int64_t right) {
  llvm_unreachable("a mask of positions is an interval");
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

Value GpuMasks::advance(const Elements &of, Value pointer, Value index,
                        std::optional<GpuParam> stride) {
  return stride ? kernel.stridePointer(GpuBuilder::inMemory(of.type), pointer,
                                       b.toI64(index), kernel.param(*stride))
                : pointer;
}

/// A float as f32, an i1, or a wider integer as it is.
Value GpuMasks::loadNumber(const Elements &of, Value pointer) {
  return of.type.isInteger() && !of.type.isInteger(1)
             ? b.loadConstant(of.type, pointer)
             : b.loadAsF32(of.type, pointer);
}

bool GpuMasks::mayLoadPairs() const {
  return hasElements() && !kernel.spec.elementwise && !kernel.spec.isPlain();
}

void GpuMasks::beginHead(Value noiseHead, ScoreLanes lanes) {
  this->lanes = lanes;
  for (ScoreElements &from : elements) {
    Value base = advance(from, kernel.param(from.pointer), batch, from.batch);
    from.ofHead = advance(from, base, noiseHead, from.head);
  }
  if (lanes == ScoreLanes::Single)
    return;
  lastQuery = b.add(kernel.param(GpuParam::Queries), -1);
  lastKey = b.add(kernel.param(GpuParam::Keys),
                  lanes == ScoreLanes::AlignedPairs ? -2 : -1);
}

void GpuMasks::beginQuery(Value query) {
  for (ScoreElements &from : elements) {
    Value row = lanes == ScoreLanes::Single ? query : b.minS(query, lastQuery);
    from.ofQuery = advance(from, from.ofHead, row, from.query);
    from.neighbourColumn = -1;
  }
}

Value GpuMasks::loadElement(ScoreElements &from, const Term &key) {
  auto loadOne = [&](Value place) {
    return loadNumber(from, advance(from, from.ofQuery, place, from.key));
  };
  if (lanes == ScoreLanes::Single)
    return loadOne(key.value);
  auto at = [&](int64_t column) {
    return b.minS(b.add(key.value, column), lastKey);
  };
  if (key.constant == from.neighbourColumn)
    return from.neighbour;
  // Both of a pair, before anything is computed with the first.
  std::array<Value, 2> pair;
  if (lanes == ScoreLanes::AlignedPairs)
    pair = b.loadPairAsF32(from.type,
                           b.element(GpuBuilder::inMemory(from.type),
                                     from.ofQuery, b.toI64(at(key.constant))));
  else
    for (int64_t i = 0; i < 2; ++i)
      pair[i] = loadOne(at(key.constant + i));
  from.neighbour = pair[1];
  from.neighbourColumn = key.constant + 1;
  return pair[0];
}

MaskValue GpuMasks::load(MaskOperand operand, const MaskPoint &point) {
  if (tileQuery) {
    TileElements &from = getTileElements(operand);
    if (from.query)
      return add({Term::Sum, from.numbers[*tileQuery]});
    // Another lane has it: lanes come to pairs in turn.
    int64_t column = get(point.key).constant;
    if (column != from.numberColumn) {
      Value lane = b.add(b.mul(kernel.laneColumn, 2), column % 32);
      from.number = b.shuffle(from.numbers[column / 32], lane);
      from.numberColumn = column;
    }
    return add({Term::Sum, from.number});
  }
  for (ScoreElements &from : elements)
    if (from.operand == operand) {
      Value &known = loaded[operand];
      if (!known)
        known = loadElement(from, get(point.key));
      return add({Term::Sum, known});
    }
  llvm_unreachable("the operand of no mask that looks at elements");
}

Value GpuMasks::maskElements(Value score, Value firstKey, int64_t column) {
  terms.clear();
  loaded.clear();
  MaskPoint point;
  point.key = add({Term::Sum, firstKey, column});
  for (MaskAttrInterface mask : elementMasks) {
    if (MaskValue visible = mask.isVisible(*this, point))
      score = hide(visible, score);
    if (MaskValue term = mask.getScoreTerm(*this, point))
      score = b.addF(score, emit(term));
  }
  return score;
}

//===----------------------------------------------------------------------===//
// Conditions
//===----------------------------------------------------------------------===//

MaskValue GpuMasks::isNotMinusInfinity(MaskValue element) {
  Value value = emit(element);
  Term hidden{Term::Hidden,
              b.compareF(LLVM::FCmpPredicate::oeq, value, b.minusInfinity())};
  hidden.x = element.getBits();
  return add(hidden);
}

/// A score that is hidden is selected, so that a NaN does not come back, and
/// before the term is added: the other order costs ptxas registers.
Value GpuMasks::hide(MaskValue visible, Value score) {
  const Term term = get(visible);
  if (term.kind == Term::Hidden)
    return b.select(term.value, emit(MaskValue(term.x)), score);
  return b.select(term.value, score, b.minusInfinity());
}

MaskValue GpuMasks::less(MaskValue x, MaskValue y) {
  Value left = emit(x), right = emit(y);
  return add({Term::Sum, b.compare(LLVM::ICmpPredicate::slt, left, right)});
}

MaskValue GpuMasks::equal(MaskValue x, MaskValue y) {
  Value left = emit(x), right = emit(y);
  return add({Term::Sum, b.compare(LLVM::ICmpPredicate::eq, left, right)});
}

Value GpuMasks::isTrue(MaskValue condition) {
  const Term term = get(condition);
  return term.kind == Term::Hidden ? b.xorI(term.value, b.i1(true))
                                   : term.value;
}

MaskValue GpuMasks::both(MaskValue x, MaskValue y) {
  Value left = isTrue(x), right = isTrue(y);
  return add({Term::Sum, b.andI(left, right)});
}

MaskValue GpuMasks::either(MaskValue x, MaskValue y) {
  Value left = isTrue(x), right = isTrue(y);
  return add({Term::Sum, b.orI(left, right)});
}
