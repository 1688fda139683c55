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
  // What has a number for each score comes first: what another mask hides must
  // stay hidden, whatever that number is.
  for (bool hasTerm : {true, false})
    for (MaskAttrInterface mask : kernel.spec.masks)
      if (!mask.isInterval() && mask.hasScoreTerm() == hasTerm)
        elementMasks.push_back(mask);
  for (MaskAttrInterface mask : elementMasks)
    for (MaskOperand operand : mask.getMaskOperands())
      if (llvm::none_of(elements, [&](const Elements &known) {
            return known.operand == operand;
          }))
        elements.push_back(getElements(operand));
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
  // By default all keys exist, and the last query stands at the last one. What
  // is given is i64: it is made i32 within the branch, so that no wide number
  // takes registers afterwards.
  Value keys = kernel.param(GpuParam::Keys),
        queries = kernel.param(GpuParam::Queries);
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

MaskValue GpuMasks::min(MaskValue x, MaskValue y) {
  Term term{Term::Min};
  term.x = x.getBits();
  term.y = y.getBits();
  return x == y ? x : add(term);
}

MaskValue GpuMasks::max(MaskValue x, MaskValue y) {
  Term term{Term::Max};
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

GpuMasks::Elements GpuMasks::getElements(MaskOperand operand) const {
  switch (operand) {
  case MaskOperand::Bias:
    return {operand, GpuParam::Bias, kernel.spec.biasType};
  case MaskOperand::KvLen:
  case MaskOperand::QOffset:
  case MaskOperand::QSegments:
  case MaskOperand::KvSegments:
    break;
  }
  llvm::report_fatal_error("no kernel reads this operand by elements");
}

/// The type of `type` in memory: an i1 takes a byte.
static Type inMemory(Type type) {
  return type.isInteger(1) ? IntegerType::get(type.getContext(), 8) : type;
}

bool GpuMasks::mayLoadPairs() const {
  return hasElements() && !kernel.spec.elementwise && !kernel.spec.isPlain();
}

void GpuMasks::beginHead(Value noiseHead, ScoreLanes lanes) {
  this->lanes = lanes;
  for (Elements &from : elements) {
    Type memory = inMemory(from.type);
    Value base =
        kernel.stridePointer(memory, kernel.param(from.tensor), b.toI64(batch),
                             kernel.param(getGpuStride(from.tensor, 0)));
    from.head =
        kernel.stridePointer(memory, base, b.toI64(noiseHead),
                             kernel.param(getGpuStride(from.tensor, 1)));
  }
  if (lanes == ScoreLanes::Single)
    return;
  lastQuery = b.add(kernel.param(GpuParam::Queries), -1);
  lastKey = b.add(kernel.param(GpuParam::Keys),
                  lanes == ScoreLanes::AlignedPairs ? -2 : -1);
}

void GpuMasks::beginQuery(Value query) {
  for (Elements &from : elements) {
    Value row = lanes == ScoreLanes::Single ? query : b.minS(query, lastQuery);
    from.query =
        kernel.stridePointer(inMemory(from.type), from.head, b.toI64(row),
                             kernel.param(getGpuStride(from.tensor, 2)));
    from.neighbourColumn = -1;
  }
}

Value GpuMasks::loadElement(Elements &from, const Term &key) {
  Type memory = inMemory(from.type);
  GpuParam stride = getGpuStride(from.tensor, 3);
  auto at = [&](int64_t column) {
    return b.toI64(b.minS(b.add(key.value, column), lastKey));
  };
  auto loadOne = [&](Value place) {
    return b.loadAsF32(
        from.type,
        kernel.stridePointer(memory, from.query, place, kernel.param(stride)));
  };
  if (lanes == ScoreLanes::Single)
    return loadOne(b.toI64(key.value));
  if (key.constant == from.neighbourColumn)
    return from.neighbour;
  // Both of a pair, before anything is computed with the first.
  std::array<Value, 2> pair;
  if (lanes == ScoreLanes::AlignedPairs)
    pair = b.loadPairAsF32(from.type,
                           b.element(memory, from.query, at(key.constant)));
  else
    for (int64_t i = 0; i < 2; ++i)
      pair[i] = loadOne(at(key.constant + i));
  from.neighbour = pair[1];
  from.neighbourColumn = key.constant + 1;
  return pair[0];
}

MaskValue GpuMasks::load(MaskOperand operand, const MaskPoint &point) {
  for (Elements &from : elements)
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
