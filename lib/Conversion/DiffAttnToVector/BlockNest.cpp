//===- BlockNest.cpp - attention of a block of queries --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One work item is one block of queries of one signal head. Queries are lanes
// of vectors, so softmax needs no horizontal step. Scores of both maps stay in
// scratch, in chunks of keys, each relative to the maximum known when it was
// made; when the maxima are final, a factor for each chunk and lane corrects
// that, and P = A1 - lambda * A2 is multiplied with V once.
//
//===----------------------------------------------------------------------===//
#include "MicroKernels.h"
#include "NestValues.h"

#include "DiffAttn/Kernel/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// Where the parts of a thread's scratch lie, in f32.
struct BlockScratch {
  Value queries[2], maxima[2], sums[2], history[2], scores[2], output[2];
  Value newMaxima, lambda, factors[2], lows, highs, probabilities, bias,
      keyPanel, valuePanel;
  Value total, valuePanelStride;
};

/// Which of the two ways through the keys are emitted: fixed where the number
/// of keys is known.
struct KeyPaths {
  bool shared = true, online = true;
};

class BlockNest {
public:
  BlockNest(KernelBuilder &b, ModuleOp module, const NestSpec &spec,
            Value context, Value index, Value scratch)
      : b(b), module(module), spec(spec), schedule(spec.schedule),
        v(b, spec, context), index(index), scratchBase(scratch) {}

  void emit();

  static BlockScratch layOut(KernelBuilder &b, const NestSpec &spec, Value base,
                             Value keys, Value headDim, Value valueDim);

private:
  // Phases, in the order of their use.
  void locate();
  void packQueries();
  void packLambda();
  void packKeyRanges();
  void clear();
  void cutKeys();
  void scoreChunk(Value chunk);
  void editScores(int map, Value n, Value first, Value scores);
  void exponentiate(int map, Value n, Value scores, Value edited);
  void finishMaxima();
  void combineChunk(Value chunk);
  void mergeChunk(Value chunk);
  void multiply(Value p, Value n, Value first, Value partial, Value out,
                ArrayRef<Value> evidence);
  void multiplyCarefully(Value p, Value n, Value values, Value stride,
                         Value out, ArrayRef<Value> evidence);
  void finishOnline();
  void finishRows();

  struct Chunk {
    Value first, n, partial;
  };
  Chunk getChunk(Value chunk);
  /// The keys' row `first`, as f32 rows, and their stride.
  std::pair<Value, Value> getKeyRows(int map, Value first, Value n);
  std::pair<Value, Value> getValueRows(Value first, Value n);
  void packRows(const NestOperand &operand, Value base, Value first, Value n,
                Value columns, Value paddedColumns, Value panel);
  /// Runs `body` over the block's vectors of queries, as many at once as a
  /// score tile takes.
  void forVectors(function_ref<void(Value firstLane, int64_t vectors)> body);
  void forEachVector(function_ref<void(Value firstLane)> body);

  KernelBuilder &b;
  ModuleOp module;
  const NestSpec &spec;
  const NestSchedule &schedule;
  NestValues v;
  Value index, scratchBase;
  BlockScratch s;

  Value batch, firstRow, rows, vectors, headDim, valueDim, keys;
  NestHeads heads;
  NestPositions positions;
  KeyRange seen;
  Value wholeBegin, wholeEnd, chunksBefore, chunksWhole, chunks;
  Value keyBase[2], valueBase;
};

} // namespace

/// Operands whose rows the register tiles can read where they lie.
static bool readsInPlace(const NestOperand &operand) {
  return operand.element.isF32() && operand.hasUnitColumns();
}

static KeyPaths getKeyPaths(const NestSpec &spec) {
  if (!spec.keys.isStatic())
    return {};
  bool shared = spec.keys.value <= spec.schedule.sharedKeys;
  return {shared, !shared};
}

BlockScratch BlockNest::layOut(KernelBuilder &b, const NestSpec &spec,
                               Value base, Value keys, Value headDim,
                               Value valueDim) {
  const NestSchedule &schedule = spec.schedule;
  int64_t rows = schedule.rows;
  KeyPaths paths = getKeyPaths(spec);
  BlockScratch s;
  Value at = b.index(0);
  // Every part begins on a cache line.
  auto take = [&](Value count) {
    Value part = base ? b.at(base, b.f32, at) : Value();
    at = b.add(at, b.roundUp(count, 16));
    return part;
  };
  for (int map : {0, 1})
    s.queries[map] = take(b.mul(headDim, rows));
  for (int map : {0, 1}) {
    s.maxima[map] = take(b.index(rows));
    s.sums[map] = take(b.index(rows));
    s.factors[map] = take(b.index(rows));
  }
  s.newMaxima = take(b.index(rows));
  s.lambda = take(b.index(rows));
  s.lows = take(b.index(rows));
  s.highs = take(b.index(rows));
  s.valuePanelStride = b.roundUp(valueDim, b.lanes);
  Value panel = b.mul(s.valuePanelStride, productPanelRows(schedule));
  s.output[0] = take(panel);
  if (paths.online)
    s.output[1] = take(panel);
  // A product tile may read past the last key's lanes.
  s.probabilities = take(b.index(schedule.chunk * rows + 64));
  if (spec.bias.present())
    s.bias = take(b.index(schedule.chunk * rows));
  if (!readsInPlace(spec.k1) || !readsInPlace(spec.k2))
    s.keyPanel = take(b.mul(headDim, schedule.chunk));
  if (!readsInPlace(spec.v))
    s.valuePanel = take(b.mul(s.valuePanelStride, schedule.chunk));
  // Chunks: those of three ranges of keys, each of which may end with a short
  // one.
  Value chunks = b.add(b.ceilDiv(keys, schedule.chunk), 3);
  Value planeKeys = keys;
  if (!paths.shared)
    planeKeys = b.index(schedule.chunk);
  else if (paths.online)
    planeKeys = b.select(b.less(b.index(schedule.sharedKeys), keys),
                         b.index(schedule.chunk), keys);
  planeKeys = b.add(planeKeys, scorePlanePadding(schedule));
  for (int map : {0, 1}) {
    if (paths.shared)
      s.history[map] = take(b.mul(chunks, rows));
    s.scores[map] = take(b.add(b.mul(planeKeys, rows), 64));
  }
  s.total = at;
  return s;
}

Value mlir::diffattn::emitBlockNestScratch(KernelBuilder &b,
                                           const NestSpec &spec, Value keys,
                                           Value headDim, Value valueDim) {
  return b.mul(
      BlockNest::layOut(b, spec, Value(), keys, headDim, valueDim).total, 4);
}

void BlockNest::forVectors(function_ref<void(Value, int64_t)> body) {
  int64_t widest = schedule.scores.vectors;
  Value whole = b.mul(b.div(vectors, widest), widest);
  b.loop(b.index(0), whole, widest,
         [&](Value vector) { body(b.mul(vector, b.lanes), widest); });
  // What is left over; with a static number of queries only some widths occur.
  for (int64_t rest = 1; rest < widest; ++rest) {
    if (spec.queries.isStatic()) {
      int64_t lastRows = spec.queries.value % schedule.rows;
      if ((lastRows + b.lanes - 1) / b.lanes % widest != rest)
        continue;
    }
    b.ifThen(b.equal(b.sub(vectors, whole), b.index(rest)),
             [&] { body(b.mul(whole, b.lanes), rest); });
  }
}

void BlockNest::forEachVector(function_ref<void(Value)> body) {
  b.loop(vectors, [&](Value vector) { body(b.mul(vector, b.lanes)); });
}

//===----------------------------------------------------------------------===//
// Before the keys
//===----------------------------------------------------------------------===//

void BlockNest::locate() {
  headDim = v.size(spec.headDim);
  valueDim = v.size(spec.valueDim);
  keys = v.size(spec.keys);
  Value queries = v.size(spec.queries), signalHeads = v.size(spec.signalHeads);
  Value blocks = b.ceilDiv(queries, schedule.rows);
  // The last blocks of a causal head are the longest, so they begin.
  Value block = b.sub(b.add(blocks, -1), b.rem(index, blocks));
  Value head = b.div(index, blocks);
  batch = b.div(head, signalHeads);
  heads = getNestHeads(v, b.rem(head, signalHeads));
  firstRow = b.mul(block, schedule.rows);
  rows = b.min(b.sub(queries, firstRow), b.index(schedule.rows));
  vectors = b.ceilDiv(rows, b.lanes);
  positions = getNestPositions(v, batch);
  s = layOut(b, spec, scratchBase, keys, headDim, valueDim);
  keyBase[0] = v.head(spec.k1, batch, heads.key1);
  keyBase[1] = v.head(spec.k2, batch, heads.key2);
  valueBase = v.head(spec.v, batch, heads.value);
}

void BlockNest::packQueries() {
  // Lanes past the last query repeat it; they are never stored.
  Value last = b.sub(rows, b.index(1));
  float scale = spec.foldsLog2E() ? spec.scale * kLog2E : spec.scale;
  Value factor = emitConstant(b, b.f32, scale);
  for (int map : {0, 1}) {
    const NestOperand &operand = map ? spec.q2 : spec.q1;
    Value base = v.head(operand, batch, map ? heads.noise : heads.signal);
    Value rowStride = v.stride(operand, 2), columnStride = v.stride(operand, 3);
    b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
      Value row = b.add(firstRow, b.min(lane, last));
      Value from = b.at(base, operand.element, b.mul(row, rowStride));
      Value to = b.at(s.queries[map], b.f32, lane);
      b.loop(headDim, [&](Value c) {
        Value q =
            b.loadWideScalar(from, operand.element, b.mul(c, columnStride));
        b.store(b.mulf(q, factor), to, b.mul(c, schedule.rows));
      });
    });
  }
}

void BlockNest::packLambda() {
  Value last = b.sub(rows, b.index(1));
  b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
    Value row = b.add(firstRow, b.min(lane, last));
    b.store(emitLambdaScalar(v, batch, heads, row), s.lambda, lane);
  });
  if (spec.lambdaSigmoid)
    forEachVector([&](Value lane) {
      b.store(emitSigmoid(b, b.load(b.vector, s.lambda, lane)), s.lambda, lane);
    });
}

void BlockNest::packKeyRanges() {
  Value last = b.add(firstRow, b.sub(rows, b.index(1)));
  KeyRange atFirst = getKeyRange(v, positions, firstRow);
  KeyRange atLast = getKeyRange(v, positions, last);
  seen = {atFirst.low, atLast.high};
  // Keys that every row sees, in whole tiles from the first seen key.
  int64_t tile = schedule.scores.height;
  if (spec.hasPositionMask()) {
    wholeBegin =
        b.min(b.add(seen.low, b.roundUp(b.sub(atLast.low, seen.low), tile)),
              seen.high);
    Value common = b.max(b.sub(atFirst.high, wholeBegin), b.index(0));
    Value wholeTiles = b.add(wholeBegin, b.mul(b.div(common, tile), tile));
    wholeEnd = b.select(b.less(atFirst.high, seen.high), wholeTiles, seen.high);
    wholeEnd = b.max(wholeEnd, wholeBegin);
    b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
      KeyRange range =
          getKeyRange(v, positions, b.min(b.add(firstRow, lane), last));
      b.store(b.narrow(range.low), s.lows, b.i32, lane);
      b.store(b.narrow(range.high), s.highs, b.i32, lane);
    });
  } else {
    wholeBegin = seen.low;
    wholeEnd = seen.high;
  }
}

void BlockNest::cutKeys() {
  packKeyRanges();
  chunksBefore = b.ceilDiv(b.sub(wholeBegin, seen.low), schedule.chunk);
  chunksWhole = b.ceilDiv(b.sub(wholeEnd, wholeBegin), schedule.chunk);
  Value chunksAfter = b.ceilDiv(b.sub(seen.high, wholeEnd), schedule.chunk);
  chunks = b.add(chunksBefore, b.add(chunksWhole, chunksAfter));
}

BlockNest::Chunk BlockNest::getChunk(Value chunk) {
  Value inBefore = b.less(chunk, chunksBefore);
  Value upToWhole = b.add(chunksBefore, chunksWhole);
  Value inWhole = b.less(chunk, upToWhole);
  auto pick = [&](Value before, Value whole, Value after) {
    return b.select(inBefore, before, b.select(inWhole, whole, after));
  };
  Value number =
      pick(chunk, b.sub(chunk, chunksBefore), b.sub(chunk, upToWhole));
  Value begin = pick(seen.low, wholeBegin, wholeEnd);
  Value end = pick(wholeBegin, wholeEnd, seen.high);
  Chunk result;
  result.first = b.add(begin, b.mul(number, schedule.chunk));
  result.n = b.min(b.sub(end, result.first), b.index(schedule.chunk));
  if (spec.hasPositionMask()) {
    Value always = arith::ConstantOp::create(b, b.getBoolAttr(true));
    Value never = arith::ConstantOp::create(b, b.getBoolAttr(false));
    result.partial = pick(always, never, always);
  }
  return result;
}

void BlockNest::clear() {
  Value lowest = b.splat(-std::numeric_limits<float>::max());
  for (int map : {0, 1})
    forEachVector([&](Value lane) {
      b.store(lowest, s.maxima[map], lane);
      b.store(b.zero(), s.sums[map], lane);
    });
  Value count = b.mul(s.valuePanelStride, productPanelRows(schedule));
  for (Value panel : s.output)
    if (panel)
      b.loop(b.index(0), count, b.lanes,
             [&](Value i) { b.store(b.zero(), panel, i); });
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

void BlockNest::packRows(const NestOperand &operand, Value base, Value first,
                         Value n, Value columns, Value paddedColumns,
                         Value panel) {
  Value rowStride = v.stride(operand, 2), columnStride = v.stride(operand, 3);
  Value whole = b.mul(b.div(columns, b.lanes), b.lanes);
  b.loop(n, [&](Value key) {
    Value from =
        b.at(base, operand.element, b.mul(b.add(first, key), rowStride));
    Value to = b.at(panel, b.f32, b.mul(key, paddedColumns));
    if (!operand.hasUnitColumns()) {
      b.loop(columns, [&](Value c) {
        b.store(b.loadWideScalar(from, operand.element, b.mul(c, columnStride)),
                to, c);
      });
      b.loop(columns, paddedColumns, 1,
             [&](Value c) { b.store(emitConstant(b, b.f32, 0.0f), to, c); });
      return;
    }
    b.loop(b.index(0), whole, b.lanes, [&](Value c) {
      b.store(b.loadWide(from, operand.element, c), to, c);
    });
    b.loop(whole, columns, 1, [&](Value c) {
      b.store(b.loadWideScalar(from, operand.element, c), to, c);
    });
    b.loop(columns, paddedColumns, 1,
           [&](Value c) { b.store(emitConstant(b, b.f32, 0.0f), to, c); });
  });
}

std::pair<Value, Value> BlockNest::getKeyRows(int map, Value first, Value n) {
  const NestOperand &operand = map ? spec.k2 : spec.k1;
  Value stride = v.stride(operand, 2);
  if (readsInPlace(operand))
    return {b.at(keyBase[map], b.f32, b.mul(first, stride)), stride};
  packRows(operand, keyBase[map], first, n, headDim, headDim, s.keyPanel);
  return {s.keyPanel, headDim};
}

std::pair<Value, Value> BlockNest::getValueRows(Value first, Value n) {
  Value stride = v.stride(spec.v, 2);
  if (readsInPlace(spec.v))
    return {b.at(valueBase, b.f32, b.mul(first, stride)), stride};
  packRows(spec.v, valueBase, first, n, valueDim, s.valuePanelStride,
           s.valuePanel);
  return {s.valuePanel, s.valuePanelStride};
}

void BlockNest::scoreChunk(Value number) {
  Chunk chunk = getChunk(number);
  KeyPaths paths = getKeyPaths(spec);
  Value never = arith::ConstantOp::create(b, b.getBoolAttr(false));
  Value edited = chunk.partial ? chunk.partial : never;
  if (spec.editsEveryScore())
    edited = arith::ConstantOp::create(b, b.getBoolAttr(true));
  // In the shared way every chunk has its place; in the online way all use the
  // first.
  Value position = b.sub(chunk.first, seen.low);
  if (!paths.shared)
    position = b.index(0);
  else if (paths.online)
    position = b.select(b.less(b.index(schedule.sharedKeys), keys), b.index(0),
                        position);
  for (int map : {0, 1}) {
    std::pair<Value, Value> keyRows = getKeyRows(map, chunk.first, chunk.n);
    Value scores = b.at(s.scores[map], b.f32, b.mul(position, schedule.rows));
    forEachVector([&](Value lane) {
      b.store(b.load(b.vector, s.maxima[map], lane), s.newMaxima, lane);
    });
    forVectors([&](Value lane, int64_t width) {
      auto kernel = getScoresKernel(b, module, schedule, width);
      LLVM::CallOp::create(b, kernel,
                           ValueRange{keyRows.first, keyRows.second,
                                      b.at(s.queries[map], b.f32, lane),
                                      headDim, chunk.n,
                                      b.at(scores, b.f32, lane),
                                      b.at(s.newMaxima, b.f32, lane)});
    });
    if (spec.editsEveryScore())
      editScores(map, chunk.n, chunk.first, scores);
    else if (spec.hasPositionMask())
      b.ifThen(edited, [&] { editScores(map, chunk.n, chunk.first, scores); });
    exponentiate(map, chunk.n, scores, edited);
    if (s.history[map])
      forEachVector([&](Value lane) {
        b.store(b.load(b.vector, s.maxima[map], lane),
                b.at(s.history[map], b.f32, b.mul(number, schedule.rows)),
                lane);
      });
  }
}

/// Softcap, bias and mask over raw scores, and the maximum of what is left.
void BlockNest::editScores(int map, Value n, Value first, Value scores) {
  if (spec.bias.present() && map == 0) {
    // Transposed once for both maps; a boolean mask becomes 0 and -inf.
    Value base = v.head(spec.bias, batch, heads.noise);
    Type element = spec.bias.element.isInteger(1) ? b.i8 : spec.bias.element;
    Value last = b.sub(rows, b.index(1));
    Value visible = emitConstant(b, b.f32, 0.0f);
    Value hidden =
        emitConstant(b, b.f32, -std::numeric_limits<float>::infinity());
    b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
      Value row = b.add(firstRow, b.min(lane, last));
      Value from = b.at(base, element,
                        b.add(b.mul(row, v.stride(spec.bias, 2)),
                              b.mul(first, v.stride(spec.bias, 3))));
      Value to = b.at(s.bias, b.f32, lane);
      b.loop(n, [&](Value key) {
        Value position = b.mul(key, v.stride(spec.bias, 3)), value;
        if (element == b.i8) {
          Value flag = b.load(b.i8, from, b.i8, position);
          Value zero = arith::ConstantOp::create(b, b.getI8IntegerAttr(0));
          value = b.select(b.equal(flag, zero), hidden, visible);
        } else {
          value = b.loadWideScalar(from, element, position);
        }
        b.store(value, to, b.mul(key, schedule.rows));
      });
    });
  }
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  forEachVector([&](Value lane) {
    Value low, high;
    if (spec.hasPositionMask()) {
      low = b.load(b.integers, s.lows, b.i32, lane);
      high = b.load(b.integers, s.highs, b.i32, lane);
    }
    Value maximum = b.load(b.vector, s.maxima[map], lane);
    maximum =
        b.loop(b.index(0), n, 1, maximum, [&](Value key, ValueRange carried) {
          Value position = b.add(b.mul(key, schedule.rows), lane);
          Value score = b.load(b.vector, scores, position);
          if (spec.softcap)
            score = emitSoftcap(b, score, *spec.softcap);
          if (spec.bias.present()) {
            Value bias = b.load(b.vector, s.bias, position);
            // Selected, not added: a NaN score that is hidden must not come
            // back.
            Value hidden = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ,
                                                 bias, lowest);
            score =
                arith::SelectOp::create(b, hidden, lowest, b.addf(score, bias));
          }
          if (spec.hasPositionMask()) {
            Value number = b.splat(b.narrow(b.add(first, key)));
            auto compare = [&](arith::CmpIPredicate predicate, Value limit) {
              return arith::CmpIOp::create(b, predicate, number, limit);
            };
            Value visible = arith::AndIOp::create(
                b, compare(arith::CmpIPredicate::sge, low),
                compare(arith::CmpIPredicate::slt, high));
            score = arith::SelectOp::create(b, visible, score, lowest);
          }
          b.store(score, scores, position);
          return SmallVector<Value>{emitMaximum(b, carried[0], score)};
        })[0];
    b.store(maximum, s.newMaxima, lane);
  });
}

void BlockNest::exponentiate(int map, Value n, Value scores, Value edited) {
  bool natural = !spec.foldsLog2E();
  // Sums so far move to the new maximum.
  forEachVector([&](Value lane) {
    Value before = b.load(b.vector, s.maxima[map], lane);
    Value after = b.load(b.vector, s.newMaxima, lane);
    Value difference = b.subf(before, after);
    if (natural)
      difference = b.mulf(difference, b.splat(kLog2E));
    Value factor = emitExp2(b, difference);
    b.store(b.mulf(b.load(b.vector, s.sums[map], lane), factor), s.sums[map],
            lane);
    b.store(after, s.maxima[map], lane);
    b.store(factor, s.factors[map], lane);
  });
  auto run = [&](bool masked) {
    forVectors([&](Value lane, int64_t width) {
      auto kernel =
          getExponentialKernel(b, module, schedule, width, masked, natural);
      LLVM::CallOp::create(b, kernel,
                           ValueRange{b.at(scores, b.f32, lane), n,
                                      b.at(s.maxima[map], b.f32, lane),
                                      b.at(s.sums[map], b.f32, lane)});
    });
  };
  if (spec.editsEveryScore())
    run(/*masked=*/true);
  else if (spec.hasPositionMask())
    b.ifElse(
        edited, [&] { run(/*masked=*/true); }, [&] { run(/*masked=*/false); });
  else
    run(/*masked=*/false);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

/// Sums become weights: 1 / sum of map 1, lambda / sum of map 2; 0 for a row
/// that saw no key.
void BlockNest::finishMaxima() {
  for (int map : {0, 1})
    forEachVector([&](Value lane) {
      Value sum = b.load(b.vector, s.sums[map], lane);
      Value numerator = map ? b.load(b.vector, s.lambda, lane) : b.splat(1.0f);
      Value empty =
          arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, b.zero());
      Value weight =
          arith::SelectOp::create(b, empty, b.zero(), b.divf(numerator, sum));
      b.store(weight, s.sums[map], lane);
    });
}

void BlockNest::combineChunk(Value number) {
  Chunk chunk = getChunk(number);
  bool natural = !spec.foldsLog2E();
  for (int map : {0, 1})
    forEachVector([&](Value lane) {
      Value then = b.load(
          b.vector, b.at(s.history[map], b.f32, b.mul(number, schedule.rows)),
          lane);
      Value difference = b.subf(then, b.load(b.vector, s.maxima[map], lane));
      if (natural)
        difference = b.mulf(difference, b.splat(kLog2E));
      Value weight = b.load(b.vector, s.sums[map], lane);
      b.store(b.mulf(emitExp2(b, difference), weight), s.factors[map], lane);
    });
  Value position = b.mul(b.sub(chunk.first, seen.low), schedule.rows);
  Value e1 = b.at(s.scores[0], b.f32, position),
        e2 = b.at(s.scores[1], b.f32, position);
  forVectors([&](Value lane, int64_t width) {
    auto kernel = getCombineKernel(b, module, schedule, width);
    LLVM::CallOp::create(b, kernel,
                         ValueRange{b.at(e1, b.f32, lane),
                                    b.at(e2, b.f32, lane),
                                    b.at(s.factors[0], b.f32, lane),
                                    b.at(s.factors[1], b.f32, lane), chunk.n,
                                    b.at(s.probabilities, b.f32, lane)});
  });
  multiply(s.probabilities, chunk.n, chunk.first, chunk.partial, s.output[0],
           {e1});
}

/// Online: both outputs move to the new maxima, then take this chunk.
void BlockNest::mergeChunk(Value number) {
  Chunk chunk = getChunk(number);
  for (int map : {0, 1}) {
    b.loop(rows, [&](Value row) {
      Value factor = b.splat(b.load(b.f32, s.factors[map], row));
      Value out = b.at(s.output[map], b.f32, b.mul(row, s.valuePanelStride));
      b.loop(b.index(0), s.valuePanelStride, b.lanes, [&](Value c) {
        b.store(b.mulf(b.load(b.vector, out, c), factor), out, c);
      });
    });
    multiply(s.scores[map], chunk.n, chunk.first, chunk.partial, s.output[map],
             {s.scores[map]});
  }
}

void BlockNest::multiply(Value p, Value n, Value first, Value partial,
                         Value out, ArrayRef<Value> evidence) {
  auto [values, stride] = getValueRows(first, n);
  auto run = [&, values = values, stride = stride] {
    // Row r of the block sees keys from low + r * lowSlope up to high + r *
    // highSlope.
    Value zero = b.index(0), one = b.index(1);
    Value low = zero, lowSlope = zero, high = n, highSlope = zero;
    Value start = b.sub(b.add(firstRow, positions.offset), first);
    if (spec.windowLeft >= 0) {
      low = b.sub(start, b.index(spec.windowLeft));
      lowSlope = one;
    }
    if (spec.causal || spec.windowRight >= 0) {
      int64_t beyond = spec.causal ? 0 : spec.windowRight;
      high = b.add(start, beyond + 1);
      highSlope = one;
    }
    int64_t widest = schedule.product.vectors;
    auto call = [&](int64_t vectors, bool masked, Value column, Value columns) {
      auto kernel = getProductKernel(b, module, schedule, vectors, masked);
      LLVM::CallOp::create(b, kernel,
                           ValueRange{p, b.at(values, b.f32, column), stride,
                                      b.at(out, b.f32, column),
                                      s.valuePanelStride, rows, columns, n, low,
                                      lowSlope, high, highSlope});
    };
    // A packed panel is padded to whole vectors; V itself is not.
    bool inPlace = readsInPlace(spec.v);
    Value columns = inPlace ? valueDim : s.valuePanelStride;
    Value done = b.mul(b.div(columns, widest * b.lanes), widest * b.lanes);
    call(widest, /*masked=*/false, zero, done);
    for (int64_t width = widest / 2; width; width /= 2) {
      if (spec.valueDim.isStatic()) {
        int64_t whole = inPlace ? spec.valueDim.value / b.lanes
                                : (spec.valueDim.value + b.lanes - 1) / b.lanes;
        if (whole % widest % (2 * width) < width)
          continue;
      }
      Value rest = b.sub(columns, done);
      Value here = b.mul(b.div(rest, width * b.lanes), width * b.lanes);
      call(width, /*masked=*/false, done, here);
      done = b.add(done, here);
    }
    if (inPlace && (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes))
      call(/*vectors=*/1, /*masked=*/true, done, b.sub(columns, done));
  };
  if (!spec.hasPositionMask() && !spec.bias.present())
    return run();

  // A hidden key has probability 0, but 0 times Inf or NaN would reach rows
  // that do not see it.
  auto test = [&, values = values, stride = stride] {
    Value whole = b.mul(b.div(valueDim, b.lanes), b.lanes);
    auto over = [&](Value lower, Value upper, Value init) {
      return b.loop(b.index(0), n, 1, init, [&](Value key, ValueRange carried) {
        Value row = b.at(values, b.f32, b.mul(key, stride));
        return b.loop(
            lower, upper, b.lanes, carried, [&](Value c, ValueRange carried) {
              Value value = b.load(b.vector, row, c);
              return SmallVector<Value>{b.fma(value, b.zero(), carried[0])};
            });
      })[0];
    };
    Value found = b.sum(over(b.index(0), whole, b.zero()));
    if (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes) {
      Value mask = b.firstLanes(b.sub(valueDim, whole));
      Value rest = b.loop(
          b.index(0), n, 1, b.zero(), [&](Value key, ValueRange carried) {
            Value row = b.at(values, b.f32, b.mul(key, stride));
            Value value = b.loadWide(row, b.f32, whole, mask);
            return SmallVector<Value>{b.fma(value, b.zero(), carried[0])};
          })[0];
      found = b.addf(found, b.sum(rest));
    }
    return arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, found, found)
        .getResult();
  };
  auto careful = [&, values = values, stride = stride] {
    b.ifElse(
        test(), [&] { multiplyCarefully(p, n, values, stride, out, evidence); },
        run);
  };
  if (spec.bias.present())
    careful();
  else
    b.ifElse(partial, careful, run);
}

/// Adds only keys that a row sees: those whose exponential is not 0.
void BlockNest::multiplyCarefully(Value p, Value n, Value values, Value stride,
                                  Value out, ArrayRef<Value> evidence) {
  Value whole = b.mul(b.div(valueDim, b.lanes), b.lanes);
  Value rest = b.sub(valueDim, whole);
  Value mask = b.firstLanes(rest);
  b.loop(rows, [&](Value row) {
    Value to = b.at(out, b.f32, b.mul(row, s.valuePanelStride));
    b.loop(n, [&](Value key) {
      Value position = b.add(b.mul(key, schedule.rows), row);
      Value seenValue = b.load(b.f32, evidence[0], position);
      Value visible =
          arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, seenValue,
                                emitConstant(b, b.f32, 0.0f));
      b.ifThen(visible, [&] {
        Value weight = b.splat(b.load(b.f32, p, position));
        Value from = b.at(values, b.f32, b.mul(key, stride));
        auto add = [&](Value c, Value mask) {
          Value sum = b.fma(weight, b.loadWide(from, b.f32, c, mask),
                            b.load(b.vector, to, c));
          b.store(sum, to, c);
        };
        b.loop(b.index(0), whole, b.lanes, [&](Value c) { add(c, Value()); });
        if (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes)
          b.ifThen(b.less(b.index(0), rest), [&] { add(whole, mask); });
      });
    });
  });
}

void BlockNest::finishOnline() {
  b.loop(rows, [&](Value row) {
    Value weight1 = b.splat(b.load(b.f32, s.sums[0], row));
    Value weight2 = b.splat(b.load(b.f32, s.sums[1], row));
    Value offset = b.mul(row, s.valuePanelStride);
    Value o1 = b.at(s.output[0], b.f32, offset),
          o2 = b.at(s.output[1], b.f32, offset);
    b.loop(b.index(0), s.valuePanelStride, b.lanes, [&](Value c) {
      Value x1 = b.mulf(b.load(b.vector, o1, c), weight1);
      Value x2 = b.mulf(b.load(b.vector, o2, c), weight2);
      b.store(b.subf(x1, x2), o1, c);
    });
  });
}

void BlockNest::finishRows() {
  b.loop(rows, [&](Value row) {
    Value x = b.at(s.output[0], b.f32, b.mul(row, s.valuePanelStride));
    emitFinishRow(v, x, batch, heads.signal, b.add(firstRow, row));
  });
}

void BlockNest::emit() {
  locate();
  packQueries();
  packLambda();
  clear();
  cutKeys();
  KeyPaths paths = getKeyPaths(spec);
  Value isOnline = b.less(b.index(schedule.sharedKeys), keys);
  b.loop(chunks, [&](Value chunk) {
    scoreChunk(chunk);
    if (paths.online && paths.shared)
      b.ifThen(isOnline, [&] { mergeChunk(chunk); });
    else if (paths.online)
      mergeChunk(chunk);
  });
  finishMaxima();
  auto combine = [&] {
    b.loop(chunks, [&](Value chunk) { combineChunk(chunk); });
  };
  if (paths.online && paths.shared)
    b.ifElse(isOnline, [&] { finishOnline(); }, combine);
  else if (paths.online)
    finishOnline();
  else
    combine();
  finishRows();
}

LLVM::LLVMFuncOp mlir::diffattn::emitBlockNest(KernelBuilder &b,
                                               ModuleOp module, StringRef name,
                                               const NestSpec &spec) {
  return b.getOrEmitFunction(
      module, name, {b.pointer, b.i64, b.pointer}, [&](ValueRange args) {
        BlockNest(b, module, spec, args[0], args[1], args[2]).emit();
      });
}
