//===- Argsort.cpp - places of elements in their order --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mlir::diffattn::import;

namespace {
/// Sorts rows one by one: keys, which are the elements, and the places where
/// they stood, in tensors that the loops over the rows carry.
class Sorter {
public:
  Sorter(TensorLoopBuilder &b, Value x, RankedTensorType resultType,
         int64_t first, bool descending);

  /// The places of the `first` elements, or of all.
  Value emit();

private:
  /// Keys, and their places.
  using Pair = std::pair<Value, Value>;

  /// An element as it is compared: those of 16 bits in f32.
  Value loadKey(ValueRange place);
  /// Whether key `a` comes before key `b` and is not equal: NaN is greater than
  /// all others.
  Value precedes(Value a, Value b);
  /// Inserts each element of a row at its place among the first ones so far,
  /// and moves the later ones on. Returns keys and places.
  SmallVector<Value> insertElements(Value row, Value keys, Value places);
  SmallVector<Value> insertElement(Value row, Value i, ValueRange carried);
  /// The first `count` keys with a key put in, and the one that is moved out
  /// after them.
  SmallVector<Value> moveOn(Value count, Pair element, ValueRange carried);
  /// Merge sort of a row: each pass merges runs of one half of the keys and
  /// places to the other. Returns keys, places, and the half that they are in.
  SmallVector<Value> mergeRuns(Value row, Value keys, Value places);
  SmallVector<Value> mergePass(Value pass, ValueRange carried);
  SmallVector<Value> mergePair(Value low, Value width, Value source,
                               ValueRange carried);
  /// Writes `count` places as the result's row; `half`: the part of `places`
  /// that they are in.
  Value writeRow(Value result, Value row, Value places, Value count,
                 Value half = {});

  TensorLoopBuilder &b;
  Value x;
  RankedTensorType resultType;
  int64_t first;
  bool descending;
  Type key;
  Value rows, size;
  /// The last place of a row, or of the first elements.
  Value last;
};
} // namespace

Sorter::Sorter(TensorLoopBuilder &b, Value x, RankedTensorType resultType,
               int64_t first, bool descending)
    : b(b), x(x), resultType(resultType), first(first), descending(descending),
      key(getElementTypeOrSelf(x)), rows(b.size(x, 0)), size(b.size(x, 1)) {
  if (key.isF16() || key.isBF16())
    key = b.getF32Type();
  if (first) {
    last = b.index(first - 1);
    return;
  }
  Value one = b.index(1);
  last = b.sub(arith::MaxUIOp::create(b, size, one), one);
}

Value Sorter::loadKey(ValueRange place) {
  Value element = b.extract(x, place);
  if (element.getType() == key)
    return element;
  return arith::ExtFOp::create(b, key, element);
}

Value Sorter::precedes(Value a, Value b) {
  TensorLoopBuilder &builder = this->b;
  auto [less, more] = descending ? std::pair(b, a) : std::pair(a, b);
  if (!isa<FloatType>(key))
    return arith::CmpIOp::create(builder, arith::CmpIPredicate::slt, less,
                                 more);
  Value beyond =
      arith::CmpFOp::create(builder, arith::CmpFPredicate::ULT, less, more);
  Value isNumber =
      arith::CmpFOp::create(builder, arith::CmpFPredicate::OEQ, less, less);
  return arith::AndIOp::create(builder, beyond, isNumber);
}

Value Sorter::writeRow(Value result, Value row, Value places, Value count,
                       Value half) {
  return b.loop(count, result, [&](Value k, ValueRange carried) {
    Value place = half ? b.extract(places, {half, k}) : b.extract(places, k);
    return SmallVector<Value>{b.insert(place, carried[0], {row, k})};
  })[0];
}

//===----------------------------------------------------------------------===//
// Few elements
//===----------------------------------------------------------------------===//

SmallVector<Value> Sorter::moveOn(Value count, Pair element,
                                  ValueRange carried) {
  Value never = arith::ConstantOp::create(b, b.getBoolAttr(false));
  // Once the key has its place, each key changes places with the next one.
  return b.loop(
      count, {element.first, element.second, never, carried[0], carried[1]},
      [&](Value k, ValueRange state) {
        auto [held, heldPlace, moves] =
            std::tuple(state[0], state[1], state[2]);
        Value other = b.extract(state[3], k);
        Value otherPlace = b.extract(state[4], k);
        Value swaps = arith::OrIOp::create(b, moves, precedes(held, other));
        auto select = [&](Value yes, Value no) -> Value {
          return arith::SelectOp::create(b, swaps, yes, no);
        };
        Value here = select(held, other),
              herePlace = select(heldPlace, otherPlace);
        Value there = select(other, held),
              therePlace = select(otherPlace, heldPlace);
        return SmallVector<Value>{there, therePlace, swaps,
                                  b.insert(here, state[3], k),
                                  b.insert(herePlace, state[4], k)};
      });
}

SmallVector<Value> Sorter::insertElement(Value row, Value i,
                                         ValueRange carried) {
  Value element = loadKey({row, i});
  Value place = arith::IndexCastOp::create(b, b.getI64Type(), i);
  Value count = b.index(first);
  Value grows = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, i, count);
  Value beats = precedes(element, b.extract(carried[0], last));
  Value comes = arith::OrIOp::create(b, grows, beats);
  return b.ifElse(comes, carried, [&] {
    Value end = arith::MinUIOp::create(b, i, count);
    SmallVector<Value> moved = moveOn(end, {element, place}, carried);
    const SmallVector<Value> kept = {moved[3], moved[4]};
    return b.ifElse(grows, kept, [&] {
      return SmallVector<Value>{b.insert(moved[0], moved[3], i),
                                b.insert(moved[1], moved[4], i)};
    });
  });
}

SmallVector<Value> Sorter::insertElements(Value row, Value keys, Value places) {
  return b.loop(size, {keys, places}, [&](Value i, ValueRange carried) {
    return insertElement(row, i, carried);
  });
}

//===----------------------------------------------------------------------===//
// All elements
//===----------------------------------------------------------------------===//

SmallVector<Value> Sorter::mergePair(Value low, Value width, Value source,
                                     ValueRange carried) {
  Value target = b.sub(b.index(1), source);
  Value middle = arith::MinUIOp::create(b, b.add(low, width), size);
  Value high = arith::MinUIOp::create(b, b.add(middle, width), size);
  auto isBelow = [&](Value a, Value limit) -> Value {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, a, limit);
  };
  SmallVector<Value> taken = b.loop(
      low, high, b.index(1), {low, middle, carried[0], carried[1]},
      [&](Value k, ValueRange state) {
        auto [left, right, keys] = std::tuple(state[0], state[1], state[2]);
        Value places = state[3];
        // A run that is at its end is not read beyond it.
        Value leftAt = arith::MinUIOp::create(b, left, last);
        Value rightAt = arith::MinUIOp::create(b, right, last);
        Value leftKey = b.extract(keys, {source, leftAt});
        Value rightKey = b.extract(keys, {source, rightAt});
        Value hasLeft = isBelow(left, middle), hasRight = isBelow(right, high);
        Value wins =
            arith::AndIOp::create(b, hasRight, precedes(rightKey, leftKey));
        Value isRight = arith::SelectOp::create(b, hasLeft, wins, hasRight);
        Value taken = arith::SelectOp::create(b, isRight, rightKey, leftKey);
        Value at = arith::SelectOp::create(b, isRight, rightAt, leftAt);
        Value place = b.extract(places, {source, at});
        Value rightStep =
            arith::IndexCastUIOp::create(b, b.getIndexType(), isRight);
        Value leftStep = b.sub(b.index(1), rightStep);
        return SmallVector<Value>{b.add(left, leftStep),
                                  b.add(right, rightStep),
                                  b.insert(taken, keys, {target, k}),
                                  b.insert(place, places, {target, k})};
      });
  return {taken[2], taken[3]};
}

SmallVector<Value> Sorter::mergePass(Value pass, ValueRange carried) {
  Value width = arith::ShLIOp::create(b, b.index(1), pass);
  Value both = arith::ShLIOp::create(b, b.index(2), pass);
  Value source = arith::RemUIOp::create(b, pass, b.index(2));
  return b.loop(b.index(0), size, both, carried,
                [&](Value low, ValueRange state) {
                  return mergePair(low, width, source, state);
                });
}

SmallVector<Value> Sorter::mergeRuns(Value row, Value keys, Value places) {
  Value zero = b.index(0);
  SmallVector<Value> begun =
      b.loop(size, {keys, places}, [&](Value i, ValueRange carried) {
        Value place = arith::IndexCastOp::create(b, b.getI64Type(), i);
        Value element = loadKey({row, i});
        return SmallVector<Value>{b.insert(element, carried[0], {zero, i}),
                                  b.insert(place, carried[1], {zero, i})};
      });
  // As many passes as the last place has bits.
  Value bits = arith::IndexCastOp::create(b, b.getI64Type(), last);
  Value unused = b.asIndex(math::CountLeadingZerosOp::create(b, bits));
  Value passes = b.sub(b.index(64), unused);
  SmallVector<Value> sorted =
      b.loop(passes, begun, [&](Value pass, ValueRange carried) {
        return mergePass(pass, carried);
      });
  sorted.push_back(arith::RemUIOp::create(b, passes, b.index(2)));
  return sorted;
}

Value Sorter::emit() {
  const SmallVector<int64_t> held =
      first ? SmallVector<int64_t>{first}
            : SmallVector<int64_t>{2, ShapedType::kDynamic};
  SmallVector<Value> heldSizes;
  if (!first)
    heldSizes.push_back(size);
  Value result = b.emptyLike(x, resultType);
  Value keys =
      tensor::EmptyOp::create(b, RankedTensorType::get(held, key), heldSizes);
  Value places = tensor::EmptyOp::create(
      b, RankedTensorType::get(held, b.getI64Type()), heldSizes);
  return b.loop(
      rows, {result, keys, places}, [&](Value row, ValueRange carried) {
        SmallVector<Value> sorted =
            first ? insertElements(row, carried[1], carried[2])
                  : mergeRuns(row, carried[1], carried[2]);
        Value half = first ? Value() : sorted[2];
        Value count = first ? b.index(first) : size;
        Value written = writeRow(carried[0], row, sorted[1], count, half);
        return SmallVector<Value>{written, sorted[0], sorted[1]};
      })[0];
}

FailureOr<Value> mlir::diffattn::import::emitArgsort(TensorLoopBuilder &b,
                                                     BuiltinCall call) {
  FailureOr<int64_t> first = call.getInteger("first", 0, 0);
  FailureOr<bool> descending = call.getFlag("descending");
  if (failed(call.verify({2}, 2, {"first", "descending"})) || failed(first) ||
      failed(descending))
    return failure();
  Value x = call.getOperands()[0];
  const Type element = getElementTypeOrSelf(x);
  const RankedTensorType result = call.getResultType();
  if (!isa<FloatType, IntegerType>(element) || element.isInteger(1) ||
      !result.getElementType().isInteger(64))
    return call.emitFault()
           << "expected rows of floats or integers and places of i64, but got "
           << x.getType() << " and " << result;
  if (failed(call.verifyEqual({{{x, 0}, {call.getResult(), 0}}})))
    return failure();
  if (!*first && failed(call.verifyEqual({{{x, 1}, {call.getResult(), 1}}})))
    return failure();
  if (*first && result.getDimSize(1) != *first)
    return call.emitFault() << "expected " << *first
                            << " places in each row, but got " << result;
  return Sorter(b, x, result, *first, *descending).emit();
}
