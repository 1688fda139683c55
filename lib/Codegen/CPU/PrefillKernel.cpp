//===- PrefillKernel.cpp - attention of a block of queries ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillKernel.h"

#include "TileBuilder.h"
#include "Transpose.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

KeyPaths mlir::diffattn::getKeyPaths(const AttentionSpec &spec) {
  if (!spec.keys.isStatic())
    return {};
  bool shared = spec.keys.value <= spec.prefill.getTwoPassKeys();
  return {shared, !shared};
}

PrefillScratch PrefillKernel::layOut(KernelBuilder &b,
                                     const AttentionSpec &spec, Value base,
                                     Value keys, Value headDim,
                                     Value valueDim) {
  CpuPrefillAttr schedule = spec.prefill;
  int64_t rows = schedule.getQBlockSize();
  KeyPaths paths = getKeyPaths(spec);
  PrefillScratch s;
  Value at = b.index(0);
  // Every part begins on a cache line.
  auto take = [&](Value count) {
    Value part = base ? b.at(base, b.f32, at) : Value();
    at = b.add(at, b.roundUp(count, 16));
    return part;
  };
  const ProductAtom &atom = spec.getAtom();
  Value packs = b.ceilDiv(headDim, atom.pack);
  Value depth = b.roundUp(headDim, kTileDepth);
  if (atom.usesTiles)
    packs = b.div(depth, atom.pack);
  for (int map : {0, 1})
    s.queries[map] = take(b.mul(packs, rows));
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
  int64_t overrun = 2 * schedule.getPv().height;
  s.probabilities = take(b.index(schedule.getKvBlockSize() * rows + overrun));
  if (spec.bias().present())
    s.bias = take(b.index(schedule.getKvBlockSize() * rows));
  if (atom.usesTiles) {
    // Numbers of 16 bits: two in the place of one f32.
    int64_t keyRows =
        readsKeyTiles(spec) ? kTileRows : schedule.getKvBlockSize();
    s.keyPanel = take(b.mul(depth, keyRows / 2));
  } else if (!atom.readsRows(b, spec.k1) || !atom.readsRows(b, spec.k2))
    s.keyPanel = take(b.mul(headDim, schedule.getKvBlockSize()));
  if (spec.isPaged()) {
    // Of the operands' type, which may take less than f32 does.
    s.pagedKeys = take(b.mul(headDim, schedule.getKvBlockSize()));
    s.pagedValues = take(b.mul(valueDim, schedule.getKvBlockSize()));
  }
  if (!atom.readsValues(b, spec.v))
    s.valuePanel = take(b.mul(s.valuePanelStride, schedule.getKvBlockSize()));
  // KV blocks: those of three ranges of keys, each of which may end with a
  // short one.
  Value kvBlocks = b.add(b.ceilDiv(keys, schedule.getKvBlockSize()), 3);
  for (auto [which, part] : llvm::zip_equal(kMaskOperands, s.integers))
    if (spec.hasIntegers(which, AxisRole::Query))
      part = take(b.index(2 * rows));
  if (spec.scores.hasTileMasks() || spec.bias().present())
    s.relations = take(kvBlocks);
  Value planeKeys = keys;
  if (!paths.shared)
    planeKeys = b.index(schedule.getKvBlockSize());
  else if (paths.online)
    planeKeys = b.select(b.less(b.index(schedule.getTwoPassKeys()), keys),
                         b.index(schedule.getKvBlockSize()), keys);
  planeKeys = b.add(planeKeys, scorePlanePadding(schedule));
  // Scores come in whole tiles, and exponentials two in the place of an f32.
  if (atom.usesTiles) {
    s.rawScores = take(b.index(schedule.getKvBlockSize() * rows));
    planeKeys = b.ceilDiv(planeKeys, 2);
  }
  for (int map : {0, 1}) {
    if (paths.shared)
      s.history[map] = take(b.mul(kvBlocks, rows));
    s.scores[map] = take(b.add(b.mul(planeKeys, rows), overrun));
  }
  s.total = at;
  return s;
}

Value mlir::diffattn::emitPrefillScratch(KernelBuilder &b,
                                         const AttentionSpec &spec, Value keys,
                                         Value headDim, Value valueDim) {
  return b.mul(
      PrefillKernel::layOut(b, spec, Value(), keys, headDim, valueDim).total,
      4);
}

void PrefillKernel::forVectors(function_ref<void(Value, int64_t)> body) {
  int64_t widest = schedule.getQk().vectors;
  Value whole = b.mul(b.div(vectors, widest), widest);
  b.loop(b.index(0), whole, widest,
         [&](Value vector) { body(b.mul(vector, b.lanes), widest); });
  // What is left over, by powers of two, which takes fewer kernels than one for
  // each number. With a static number of queries only some occur.
  Value rest = b.sub(vectors, whole);
  for (int64_t width = llvm::PowerOf2Ceil(widest) / 2; width; width /= 2) {
    if (spec.queries.isStatic()) {
      int64_t lastRows = spec.queries.value % schedule.getQBlockSize();
      if ((lastRows + b.lanes - 1) / b.lanes % widest / width % 2 == 0)
        continue;
    }
    Value occurs = b.equal(b.rem(b.div(rest, width), b.index(2)), b.index(1));
    Value before = b.mul(b.div(rest, 2 * width), 2 * width);
    b.ifThen(occurs,
             [&] { body(b.mul(b.add(whole, before), b.lanes), width); });
  }
}

void PrefillKernel::forEachVector(function_ref<void(Value)> body) {
  b.loop(vectors, [&](Value vector) { body(b.mul(vector, b.lanes)); });
}

//===----------------------------------------------------------------------===//
// Before the keys
//===----------------------------------------------------------------------===//

void PrefillKernel::locate() {
  headDim = v.size(spec.headDim);
  valueDim = v.size(spec.valueDim);
  keys = v.size(spec.keys);
  Value queries = v.size(spec.queries), signalHeads = v.size(spec.signalHeads);
  Value blocks = b.ceilDiv(queries, schedule.getQBlockSize());
  // The last blocks of a causal head are the longest, so they begin.
  Value block = b.sub(b.add(blocks, -1), b.rem(index, blocks));
  Value head = b.div(index, blocks);
  batch = b.div(head, signalHeads);
  heads = getHeadIndices(v, b.rem(head, signalHeads));
  firstRow = b.mul(block, schedule.getQBlockSize());
  rows = b.min(b.sub(queries, firstRow), b.index(schedule.getQBlockSize()));
  vectors = b.ceilDiv(rows, b.lanes);
  masks.emplace(v, batch);
  s = layOut(b, spec, scratchBase, keys, headDim, valueDim);
  if (spec.isPaged()) {
    Value numbers[] = {heads.key1, heads.key2, heads.value};
    for (auto [base, pages, number] :
         llvm::zip_equal(pageBase, spec.pages, numbers))
      base = v.head(pages, /*batch=*/b.index(0), number);
    return;
  }
  keyBase[0] = v.head(spec.k1, batch, heads.key1);
  keyBase[1] = v.head(spec.k2, batch, heads.key2);
  valueBase = v.head(spec.v, batch, heads.value);
}

/// Rows are counted from the first key of all, wherever the copy begins.
static Value countedFromZero(KernelBuilder &b, Value copy, Type element,
                             Value first, Value columns) {
  return b.at(copy, element, b.mul(b.sub(b.index(0), first), columns));
}

void PrefillKernel::copyPagedKeys(int map, const KvBlock &kvBlock) {
  if (!spec.isPaged())
    return;
  const SpecOperand &pages = spec.pages[map];
  v.copyPagedRows(pages, pageBase[map], batch, kvBlock.first, kvBlock.n,
                  headDim, s.pagedKeys);
  keyBase[map] =
      countedFromZero(b, s.pagedKeys, pages.element, kvBlock.first, headDim);
}

void PrefillKernel::copyPagedValues(Value first, Value n) {
  if (!spec.isPaged())
    return;
  const SpecOperand &pages = spec.pages[2];
  v.copyPagedRows(pages, pageBase[2], batch, first, n, valueDim, s.pagedValues);
  valueBase = countedFromZero(b, s.pagedValues, pages.element, first, valueDim);
}

/// In the order [column][lane]. Lanes past the last query repeat it; they are
/// never stored.
void PrefillKernel::packQueries() {
  Value last = b.sub(rows, b.index(1));
  const int64_t stride = schedule.getQBlockSize();
  const float scale =
      spec.foldsLog2E() ? spec.scores.scale * kLog2E : spec.scores.scale;
  for (int map : {0, 1}) {
    const SpecOperand &operand = map ? spec.q2 : spec.q1;
    Value base = v.head(operand, batch, map ? heads.noise : heads.signal);
    Value rowStride = v.stride(operand, 2), columnStride = v.stride(operand, 3);
    // Whole vectors of columns are transposed in registers.
    Value done = b.index(0);
    if (operand.hasUnitColumns()) {
      const int64_t width = b.lanes * atom.pack;
      done = b.mul(b.div(headDim, width), width);
      auto kernel =
          getPackQueriesKernel(b, module, operand.element, stride, atom);
      forEachVector([&](Value lane) {
        Value row = b.add(firstRow, lane);
        LLVM::CallOp::create(
            b, kernel,
            ValueRange{b.at(base, operand.element, b.mul(row, rowStride)),
                       rowStride, b.sub(last, lane), done,
                       emitConstant(b, b.f32, scale),
                       b.at(s.queries[map], atom.getPacked(b), lane)});
      });
    }
    Value rest = b.sub(headDim, done);
    if (KernelBuilder::known(rest) == 0)
      continue;
    Value donePacks = b.mul(b.div(done, atom.pack), stride);
    b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
      Value row = b.add(firstRow, b.min(lane, last));
      Value from =
          b.at(base, operand.element,
               b.add(b.mul(row, rowStride), b.mul(done, columnStride)));
      Value to =
          b.at(s.queries[map], atom.getPacked(b), b.add(donePacks, lane));
      atom.packQuery(
          b, {from, operand.element, columnStride, rest, to, stride, scale});
    });
  }
}

void PrefillKernel::packLambda() {
  Value last = b.sub(rows, b.index(1));
  b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
    Value row = b.add(firstRow, b.min(lane, last));
    b.store(emitLambdaScalar(v, batch, heads, row), s.lambda, lane);
  });
  if (spec.epilogue.lambdaSigmoid)
    forEachVector([&](Value lane) {
      b.store(emitSigmoid(b, b.load(b.vector, s.lambda, lane)), s.lambda, lane);
    });
}

void PrefillKernel::packKeyRanges() {
  Value last = b.add(firstRow, b.sub(rows, b.index(1)));
  TileKeys keys = masks->getTileKeys(firstRow, last);
  seen = keys.some;
  // Keys that every row sees, in whole tiles from the first seen key. They are
  // those of a block with all its rows, so that where a row's sums are cut does
  // not depend on how many rows there are behind it.
  int64_t tile = schedule.getQk().height;
  if (spec.hasPositionMask()) {
    Value lastOfAll = b.add(firstRow, b.index(schedule.getQBlockSize() - 1));
    Value low = masks->getTileKeys(firstRow, lastOfAll).all.low;
    wholeBegin = b.min(b.add(seen.low, b.roundUp(b.sub(low, seen.low), tile)),
                       seen.high);
    Value common = b.max(b.sub(keys.all.high, wholeBegin), b.index(0));
    wholeEnd = masks->high ? b.add(wholeBegin, b.mul(b.div(common, tile), tile))
                           : seen.high;
    b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
      KeyRange range = masks->getRowKeys(b.min(b.add(firstRow, lane), last));
      b.store(b.narrow(range.low), s.lows, b.i32, lane);
      b.store(b.narrow(range.high), s.highs, b.i32, lane);
    });
  } else {
    wholeBegin = seen.low;
    wholeEnd = seen.high;
  }
}

void PrefillKernel::cutKeys() {
  packKeyRanges();
  blocksBefore =
      b.ceilDiv(b.sub(wholeBegin, seen.low), schedule.getKvBlockSize());
  blocksWhole =
      b.ceilDiv(b.sub(wholeEnd, wholeBegin), schedule.getKvBlockSize());
  Value blocksAfter =
      b.ceilDiv(b.sub(seen.high, wholeEnd), schedule.getKvBlockSize());
  kvBlocks = b.add(blocksBefore, b.add(blocksWhole, blocksAfter));
}

void PrefillKernel::clear() {
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

void PrefillKernel::emit() {
  locate();
  packQueries();
  packLambda();
  clear();
  cutKeys();
  relateKvBlocks();
  KeyPaths paths = getKeyPaths(spec);
  Value isOnline = b.less(b.index(schedule.getTwoPassKeys()), keys);
  forKvBlocks([&](Value kvBlock) {
    scoreKvBlock(kvBlock);
    if (paths.online && paths.shared)
      b.ifThen(isOnline, [&] { mergeKvBlock(kvBlock); });
    else if (paths.online)
      mergeKvBlock(kvBlock);
  });
  finishMaxima();
  auto combine = [&] {
    forKvBlocks([&](Value kvBlock) { combineKvBlock(kvBlock); });
  };
  if (paths.online && paths.shared)
    b.ifElse(isOnline, [&] { finishOnline(); }, combine);
  else if (paths.online)
    finishOnline();
  else
    combine();
  finishRows();
}

LLVM::LLVMFuncOp mlir::diffattn::emitPrefillKernel(KernelBuilder &b,
                                                   ModuleOp module,
                                                   StringRef name,
                                                   const AttentionSpec &spec) {
  return b.getOrEmitFunction(
      module, name, {b.pointer, b.i64, b.pointer}, [&](ValueRange args) {
        PrefillKernel(b, module, spec, args[0], args[1], args[2]).emit();
      });
}
