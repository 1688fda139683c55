//===- SplitNest.cpp - attention of few queries, keys split over threads --===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With few queries the time is that of reading K and V. One work item takes a
// block of keys of fixed size, and all signal heads that share its rows of K or
// V, so that memory is read once; what it finds out (maximum, sum and output of
// each map) is a partial state. A second loop merges the states of a row in the
// order of the keys and ends the row. Blocks lie at fixed positions, so neither
// threads nor batch have an influence on the result.
//
//===----------------------------------------------------------------------===//
#include "NestValues.h"

#include "DiffAttn/Kernel/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// A partial state: maximum and sum of map 1, of map 2, then both outputs from
/// `kStateHeader` on.
constexpr int64_t kStateHeader = 16;

class SplitNest {
public:
  SplitNest(KernelBuilder &b, const NestSpec &spec, Value context)
      : b(b), spec(spec), v(b, spec, context) {
    partials = b.load(b.pointer, context, b.i64, b.index(spec.slots));
    signalHeads = v.size(spec.signalHeads);
    queries = v.size(spec.queries);
    headDim = v.size(spec.headDim);
    valueDim = v.size(spec.valueDim);
    paddedHeadDim = b.roundUp(headDim, b.lanes);
    paddedValueDim = b.roundUp(valueDim, b.lanes);
    blocks = b.ceilDiv(v.size(spec.keys), spec.schedule.splitKeys);
  }

  void emitItem(Value index, Value scratch);
  void emitMerge(Value index, Value scratch);

private:
  void emitRow(Value batch, const NestHeads &heads, Value row, Value block);
  void packQuery(int map, Value batch, Value head, Value row);
  void emitScores(int map, Value keys, Value n);
  Value emitDots(const NestOperand &operand, Value keys, int64_t first,
                 int64_t count, Value key, Value last, int map);
  Value editScores(int map, Value bias, Value n);
  void emitOutputs(Value values, Value n, Value state);
  void emitColumns(Value values, Value n, Value state, Value column,
                   int64_t vectors, bool masked);
  Value getState(Value batch, Value head, Value row, Value block);
  bool hasHeadDimTail() const {
    return !spec.headDim.isStatic() || spec.headDim.value % b.lanes;
  }
  bool hasValueDimTail() const {
    return !spec.valueDim.isStatic() || spec.valueDim.value % b.lanes;
  }
  Value load(const NestOperand &operand, Value base, Value column, Value mask,
             Value count);
  Value highest(Value vector);

  KernelBuilder &b;
  const NestSpec &spec;
  NestValues v;
  Value partials, signalHeads, queries, headDim, valueDim, paddedHeadDim,
      paddedValueDim, blocks;
  Value query[2], scores[2];
};

} // namespace

/// The signal heads of one work item: as many as share a head of K or V.
static Value getGroupSize(NestValues &v) {
  KernelBuilder &b = v.b;
  Value heads = v.size(v.spec.signalHeads);
  Value size = b.div(heads, v.size(v.spec.key1Heads));
  size = b.max(size, b.div(heads, v.size(v.spec.key2Heads)));
  return b.max(size, b.div(heads, v.size(v.spec.valueHeads)));
}

Value SplitNest::load(const NestOperand &operand, Value base, Value column,
                      Value mask, Value count) {
  if (operand.hasUnitColumns())
    return b.loadWide(base, operand.element, column, mask);
  Value stride = v.stride(operand, 3);
  return b.loadStrided(base, operand.element, b.mul(column, stride), stride,
                       count);
}

Value SplitNest::highest(Value vector) {
  SmallVector<int64_t> order(b.lanes);
  for (int64_t half = b.lanes / 2; half; half /= 2) {
    for (int64_t i = 0; i < b.lanes; ++i)
      order[i] = (i + half) % b.lanes;
    vector = emitMaximum(b, vector,
                         vector::ShuffleOp::create(b, vector, vector, order));
  }
  return vector;
}

Value SplitNest::getState(Value batch, Value head, Value row, Value block) {
  Value number = b.add(b.mul(batch, signalHeads), head);
  number = b.add(b.mul(number, queries), row);
  number = b.add(b.mul(number, blocks), block);
  Value size = b.add(b.mul(paddedValueDim, 2), kStateHeader);
  return b.at(partials, b.f32, b.mul(number, size));
}

void SplitNest::packQuery(int map, Value batch, Value head, Value row) {
  const NestOperand &operand = map ? spec.q2 : spec.q1;
  float scale = spec.foldsLog2E() ? spec.scale * kLog2E : spec.scale;
  Value factor = emitConstant(b, b.f32, scale);
  Value from = b.at(v.head(operand, batch, head), operand.element,
                    b.mul(row, v.stride(operand, 2)));
  Value columnStride = v.stride(operand, 3);
  b.loop(headDim, [&](Value c) {
    Value q = b.loadWideScalar(from, operand.element, b.mul(c, columnStride));
    b.store(b.mulf(q, factor), query[map], c);
  });
  b.loop(headDim, paddedHeadDim, 1, [&](Value c) {
    b.store(emitConstant(b, b.f32, 0.0f), query[map], c);
  });
}

/// Lane i is the product of the query with key `key + first + i`, for `count`
/// keys: each is a sum over lanes, and sums of neighbours are folded into one
/// vector, so that rows are read in the order of their addresses.
Value SplitNest::emitDots(const NestOperand &operand, Value keys, int64_t first,
                          int64_t count, Value key, Value last, int map) {
  if (count == 1) {
    Value position = b.min(b.add(key, first), last);
    Value row =
        b.at(keys, operand.element, b.mul(position, v.stride(operand, 2)));
    if (!operand.hasUnitColumns()) {
      // One element at a time: rare, and small in code.
      Value stride = v.stride(operand, 3), zero = emitConstant(b, b.f32, 0.0f);
      Value sum = b.loop(
          b.index(0), headDim, 1, zero, [&](Value c, ValueRange carried) {
            Value k = b.loadWideScalar(row, operand.element, b.mul(c, stride));
            Value product = b.mulf(k, b.load(b.f32, query[map], c));
            return SmallVector<Value>{b.addf(carried[0], product)};
          })[0];
      return vector::InsertOp::create(b, sum, b.zero(), 0);
    }
    Value whole = b.mul(b.div(headDim, b.lanes), b.lanes);
    Value sum = b.zero();
    auto step = [&](Value c, Value mask, Value sum) {
      return b.fma(b.loadWide(row, operand.element, c, mask),
                   b.load(b.vector, query[map], c), sum);
    };
    if (spec.headDim.isStatic()) {
      for (int64_t c = 0; c + b.lanes <= spec.headDim.value; c += b.lanes)
        sum = step(b.index(c), Value(), sum);
    } else {
      sum = b.loop(b.index(0), whole, b.lanes, sum,
                   [&](Value c, ValueRange carried) {
                     return SmallVector<Value>{step(c, Value(), carried[0])};
                   })[0];
    }
    if (hasHeadDimTail())
      sum = step(whole, b.firstLanes(b.sub(headDim, whole)), sum);
    return sum;
  }
  int64_t half = count / 2, part = b.lanes / count;
  Value x = emitDots(operand, keys, first, half, key, last, map);
  Value y = emitDots(operand, keys, first + half, half, key, last, map);
  // Each key has 2 * part lanes in x or y; it keeps part.
  SmallVector<int64_t> low, high;
  for (int64_t k = 0; k < count; ++k)
    for (int64_t i = 0; i < part; ++i) {
      low.push_back(k * 2 * part + i);
      high.push_back(k * 2 * part + part + i);
    }
  return b.addf(vector::ShuffleOp::create(b, x, y, low),
                vector::ShuffleOp::create(b, x, y, high));
}

void SplitNest::emitScores(int map, Value keys, Value n) {
  const NestOperand &operand = map ? spec.k2 : spec.k1;
  Value last = b.sub(n, b.index(1));
  b.loop(b.index(0), n, b.lanes, [&](Value key) {
    b.store(emitDots(operand, keys, 0, b.lanes, key, last, map), scores[map],
            key);
  });
}

/// Softcap, bias, and -inf past the last key; gives the maximum in all lanes.
Value SplitNest::editScores(int map, Value bias, Value n) {
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  Value floor = b.splat(-std::numeric_limits<float>::max());
  Value maximum =
      b.loop(b.index(0), n, b.lanes, floor, [&](Value key, ValueRange carried) {
        Value score = b.load(b.vector, scores[map], key);
        Value rest = b.sub(n, key);
        if (spec.softcap)
          score = emitSoftcap(b, score, *spec.softcap);
        if (bias) {
          Value stride = v.stride(spec.bias, 3), add;
          Value count = b.min(rest, b.index(b.lanes));
          if (spec.bias.element.isInteger(1)) {
            Value flags = b.loadFlags(bias, b.mul(key, stride), stride, count);
            add = b.select(flags, b.zero(), lowest);
          } else {
            add = b.loadStrided(bias, spec.bias.element, b.mul(key, stride),
                                stride, count);
          }
          Value hidden =
              arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, add, lowest);
          score = b.select(hidden, lowest, b.addf(score, add));
        }
        score = b.select(b.firstLanes(rest), score, lowest);
        b.store(score, scores[map], key);
        return SmallVector<Value>{emitMaximum(b, carried[0], score)};
      })[0];
  return highest(maximum);
}

void SplitNest::emitColumns(Value values, Value n, Value state, Value column,
                            int64_t vectors, bool masked) {
  Value stride = v.stride(spec.v, 2);
  Value rest = b.sub(valueDim, column);
  Value mask = masked ? b.firstLanes(rest) : Value();
  Value count = masked ? rest : b.index(b.lanes);
  SmallVector<Value> sums(2 * vectors, b.zero());
  sums = b.loop(b.index(0), n, 1, sums, [&](Value key, ValueRange carried) {
    Value e1 = b.load(b.f32, scores[0], key);
    Value e2 = b.load(b.f32, scores[1], key);
    auto add = [&](ValueRange sums) {
      SmallVector<Value> next(2 * vectors);
      Value row = b.at(values, spec.v.element, b.mul(key, stride));
      Value weight1 = b.splat(e1), weight2 = b.splat(e2);
      for (int64_t i = 0; i < vectors; ++i) {
        Value value =
            load(spec.v, row, b.add(column, i * b.lanes), mask, count);
        next[i] = b.fma(weight1, value, sums[i]);
        next[vectors + i] = b.fma(weight2, value, sums[vectors + i]);
      }
      return next;
    };
    if (!spec.bias.present())
      return add(carried);
    // A hidden key's value may be Inf or NaN, which 0 does not silence.
    Value visible = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, e1,
                                          emitConstant(b, b.f32, 0.0f));
    return b.choose(
        visible, carried.getTypes(), [&] { return add(carried); },
        [&] { return SmallVector<Value>(carried); });
  });
  for (int map : {0, 1})
    for (int64_t i = 0; i < vectors; ++i) {
      Value at = b.add(b.add(b.mul(paddedValueDim, map), column),
                       kStateHeader + i * b.lanes);
      b.store(sums[map * vectors + i], state, at);
    }
}

void SplitNest::emitOutputs(Value values, Value n, Value state) {
  // Two maps, the loaded vectors and two weights fill the registers.
  int64_t widest = b.target.vectorRegisters >= 32 ? 8 : 4;
  if (!spec.v.hasUnitColumns())
    widest = 1;
  Value done = b.index(0), whole = b.div(valueDim, b.lanes);
  for (int64_t width = widest; width; width /= 2) {
    if (spec.valueDim.isStatic()) {
      int64_t left = spec.valueDim.value / b.lanes;
      if (width < widest)
        left %= 2 * width;
      if (left < width)
        continue;
    }
    Value end = b.mul(b.div(whole, width), width * b.lanes);
    b.loop(done, end, width * b.lanes, [&](Value column) {
      emitColumns(values, n, state, column, width, /*masked=*/false);
    });
    done = end;
  }
  if (hasValueDimTail())
    b.ifThen(b.less(done, valueDim),
             [&] { emitColumns(values, n, state, done, 1, /*masked=*/true); });
}

void SplitNest::emitRow(Value batch, const NestHeads &heads, Value row,
                        Value block) {
  bool natural = !spec.foldsLog2E();
  int64_t size = spec.schedule.splitKeys;
  NestPositions positions = getNestPositions(v, batch);
  KeyRange range = getKeyRange(v, positions, row);
  Value begin = b.max(range.low, b.mul(block, size));
  Value end = b.min(range.high, b.mul(b.add(block, 1), size));
  Value n = b.sub(end, begin);
  Value state = getState(batch, heads.signal, row, block);
  auto writeHeader = [&](int map, Value maximum, Value sum) {
    b.store(maximum, state, b.index(2 * map));
    b.store(sum, state, b.index(2 * map + 1));
  };
  b.ifElse(
      b.less(b.index(0), n),
      [&] {
        Value bias;
        if (spec.bias.present()) {
          Type element =
              spec.bias.element.isInteger(1) ? b.i8 : spec.bias.element;
          bias = b.at(v.head(spec.bias, batch, heads.noise), element,
                      b.add(b.mul(row, v.stride(spec.bias, 2)),
                            b.mul(begin, v.stride(spec.bias, 3))));
        }
        for (int map : {0, 1}) {
          const NestOperand &operand = map ? spec.k2 : spec.k1;
          packQuery(map, batch, map ? heads.noise : heads.signal, row);
          Value keys =
              b.at(v.head(operand, batch, map ? heads.key2 : heads.key1),
                   operand.element, b.mul(begin, v.stride(operand, 2)));
          emitScores(map, keys, n);
          Value maximum = editScores(map, bias, n);
          Value lowest = b.splat(-std::numeric_limits<float>::infinity());
          Value sums =
              b.loop(b.index(0), n, b.lanes, b.zero(),
                     [&](Value key, ValueRange carried) {
                       Value score = b.load(b.vector, scores[map], key);
                       Value x = b.subf(score, maximum);
                       if (natural)
                         x = b.mulf(x, b.splat(kLog2E));
                       Value hidden = arith::CmpFOp::create(
                           b, arith::CmpFPredicate::OEQ, score, lowest);
                       Value e = b.select(hidden, b.zero(), emitExp2(b, x));
                       b.store(e, scores[map], key);
                       return SmallVector<Value>{b.addf(carried[0], e)};
                     })[0];
          writeHeader(map, b.lane(maximum, 0), b.sum(sums));
        }
        Value values = b.at(v.head(spec.v, batch, heads.value), spec.v.element,
                            b.mul(begin, v.stride(spec.v, 2)));
        emitOutputs(values, n, state);
      },
      [&] {
        for (int map : {0, 1})
          writeHeader(
              map, emitConstant(b, b.f32, -std::numeric_limits<float>::max()),
              emitConstant(b, b.f32, 0.0f));
      });
}

void SplitNest::emitItem(Value index, Value scratch) {
  int64_t keys = spec.schedule.splitKeys + b.lanes;
  for (int map : {0, 1}) {
    scores[map] = b.at(scratch, b.f32, b.index(map * keys));
    query[map] = b.at(scratch, b.f32,
                      b.add(b.mul(paddedHeadDim, map), b.index(2 * keys)));
  }
  Value groupSize = getGroupSize(v);
  Value groups = b.div(signalHeads, groupSize);
  Value block = b.rem(index, blocks), rest = b.div(index, blocks);
  Value group = b.rem(rest, groups), batch = b.div(rest, groups);
  b.loop(groupSize, [&](Value member) {
    NestHeads heads = getNestHeads(v, b.add(b.mul(group, groupSize), member));
    b.loop(queries, [&](Value row) { emitRow(batch, heads, row, block); });
  });
}

void SplitNest::emitMerge(Value index, Value scratch) {
  bool natural = !spec.foldsLog2E();
  Value row = b.rem(index, queries), rest = b.div(index, queries);
  Value head = b.rem(rest, signalHeads), batch = b.div(rest, signalHeads);
  NestHeads heads = getNestHeads(v, head);
  Value lambda = emitLambdaScalar(v, batch, heads, row);
  Value lambdas = b.splat(lambda);
  if (spec.lambdaSigmoid)
    lambdas = emitSigmoid(b, lambdas);
  b.loop(b.index(0), paddedValueDim, b.lanes,
         [&](Value c) { b.store(b.zero(), scratch, c); });
  for (int map : {0, 1}) {
    auto header = [&](Value block, int64_t i) {
      Value state = getState(batch, head, row, block);
      return b.splat(b.load(b.f32, state, b.index(2 * map + i)));
    };
    Value floor = b.splat(-std::numeric_limits<float>::max());
    Value maximum = b.loop(b.index(0), blocks, 1, floor,
                           [&](Value block, ValueRange carried) {
                             return SmallVector<Value>{
                                 emitMaximum(b, carried[0], header(block, 0))};
                           })[0];
    auto factor = [&](Value block) {
      Value difference = b.subf(header(block, 0), maximum);
      if (natural)
        difference = b.mulf(difference, b.splat(kLog2E));
      return emitExp2(b, difference);
    };
    Value sum = b.loop(
        b.index(0), blocks, 1, b.zero(), [&](Value block, ValueRange carried) {
          return SmallVector<Value>{
              b.fma(header(block, 1), factor(block), carried[0])};
        })[0];
    Value empty =
        arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, b.zero());
    Value numerator = map ? b.subf(b.zero(), lambdas) : b.splat(1.0f);
    Value weight = b.select(empty, b.zero(), b.divf(numerator, sum));
    b.loop(blocks, [&](Value block) {
      // A state that saw no key has no output.
      Value used = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                         b.lane(header(block, 1), 0),
                                         emitConstant(b, b.f32, 0.0f));
      b.ifThen(used, [&] {
        Value scale = b.mulf(factor(block), weight);
        Value output =
            b.at(getState(batch, head, row, block), b.f32,
                 b.add(b.mul(paddedValueDim, map), b.index(kStateHeader)));
        b.loop(b.index(0), paddedValueDim, b.lanes, [&](Value c) {
          b.store(b.fma(b.load(b.vector, output, c), scale,
                        b.load(b.vector, scratch, c)),
                  scratch, c);
        });
      });
    });
  }
  emitFinishRow(v, scratch, batch, head, row);
}

SplitNestFunctions mlir::diffattn::emitSplitNest(KernelBuilder &b,
                                                 ModuleOp module,
                                                 StringRef name,
                                                 const NestSpec &spec) {
  SmallVector<Type> arguments = {b.pointer, b.i64, b.pointer};
  SplitNestFunctions functions;
  functions.item = b.getOrEmitFunction(
      module, (name + "_split").str(), arguments, [&](ValueRange args) {
        SplitNest(b, spec, args[0]).emitItem(args[1], args[2]);
      });
  functions.merge = b.getOrEmitFunction(
      module, (name + "_merge").str(), arguments, [&](ValueRange args) {
        SplitNest(b, spec, args[0]).emitMerge(args[1], args[2]);
      });
  return functions;
}

SplitNestSizes mlir::diffattn::emitSplitNestSizes(KernelBuilder &b,
                                                  const NestSpec &spec,
                                                  const NestCallSizes &sizes) {
  SplitNestSizes result;
  Value blocks = b.ceilDiv(sizes.keys, spec.schedule.splitKeys);
  Value group = b.div(sizes.signalHeads, sizes.key1Heads);
  group = b.max(group, b.div(sizes.signalHeads, sizes.key2Heads));
  group = b.max(group, b.div(sizes.signalHeads, sizes.valueHeads));
  Value groups = b.div(sizes.signalHeads, group);
  result.items = b.mul(b.mul(sizes.batch, groups), blocks);
  result.rows = b.mul(b.mul(sizes.batch, sizes.signalHeads), sizes.queries);
  Value width = b.roundUp(sizes.valueDim, b.lanes);
  Value state = b.add(b.mul(width, 2), kStateHeader);
  result.stateBytes = b.mul(b.mul(b.mul(result.rows, blocks), state), 4);
  Value query = b.roundUp(sizes.headDim, b.lanes);
  result.itemScratch =
      b.mul(b.add(b.mul(query, 2), 2 * (spec.schedule.splitKeys + b.lanes)), 4);
  result.rowScratch = b.mul(width, 4);
  return result;
}
