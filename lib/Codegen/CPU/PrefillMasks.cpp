//===- PrefillMasks.cpp - which blocks of keys a block of queries sees ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillScoring.h"
#include "Transpose.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The relation of a KV block to the block of queries, by masks of tiles.
enum BlockRelation : int64_t { kNone, kAll, kSome };

//===----------------------------------------------------------------------===//
// Ranges of keys
//===----------------------------------------------------------------------===//

/// Stores the range of each query. Returns the keys that some query sees, and
/// those that all see, in whole tiles from the first seen key. The latter are
/// those of a block with all its rows, so that where a row's sums are cut does
/// not depend on how many rows there are behind it.
TileKeys PrefillScoring::packKeyRanges(const PrefillItem &item,
                                       const ScoringLayout &s) {
  Value last = b.add(item.firstRow, getLastLane(item));
  TileKeys keys = masks.getTileKeys(item.firstRow, last);
  KeyRange visible = keys.some;
  if (!spec.hasPositionMask())
    return {visible, visible};
  int64_t tile = schedule.getQk().height;
  Value lastOfAll = b.add(item.firstRow, b.index(schedule.getQBlockSize() - 1));
  Value low = masks.getTileKeys(item.firstRow, lastOfAll).all.low;
  KeyRange whole;
  whole.low =
      b.min(b.add(visible.low, b.roundUp(b.sub(low, visible.low), tile)),
            visible.high);
  Value common = b.max(b.sub(keys.all.high, whole.low), b.index(0));
  whole.high = masks.high ? b.add(whole.low, b.mul(b.div(common, tile), tile))
                          : visible.high;
  b.loop(b.mul(item.vectors, b.lanes), [&](Value lane) {
    KeyRange range = masks.getRowKeys(b.min(b.add(item.firstRow, lane), last));
    b.store(b.narrow(range.low), s.lows, b.i32, lane);
    b.store(b.narrow(range.high), s.highs, b.i32, lane);
  });
  return {visible, whole};
}

KeyPartition PrefillScoring::cutKeys(const PrefillItem &item,
                                     const ScoringLayout &s) {
  TileKeys keys = packKeyRanges(item, s);
  KeyPartition result{keys.some, keys.all, {}, {}, {}};
  auto countBlocks = [&](Value low, Value high) {
    return b.ceilDiv(b.sub(high, low), schedule.getKvBlockSize());
  };
  result.blocksBefore = countBlocks(result.visible.low, result.whole.low);
  result.blocksWhole = countBlocks(result.whole.low, result.whole.high);
  Value blocksAfter = countBlocks(result.whole.high, result.visible.high);
  result.blocks =
      b.add(result.blocksBefore, b.add(result.blocksWhole, blocksAfter));
  return result;
}

KvBlock PrefillScoring::cutKvBlock(const KeyPartition &keys, Value number) {
  Value inBefore = b.less(number, keys.blocksBefore);
  Value upToWhole = b.add(keys.blocksBefore, keys.blocksWhole);
  Value inWhole = b.less(number, upToWhole);
  auto pick = [&](Value before, Value whole, Value after) {
    return b.select(inBefore, before, b.select(inWhole, whole, after));
  };
  Value inRange =
      pick(number, b.sub(number, keys.blocksBefore), b.sub(number, upToWhole));
  Value begin = pick(keys.visible.low, keys.whole.low, keys.whole.high);
  Value end = pick(keys.whole.low, keys.whole.high, keys.visible.high);
  KvBlock result;
  result.first = b.add(begin, b.mul(inRange, schedule.getKvBlockSize()));
  result.n =
      b.min(b.sub(end, result.first), b.index(schedule.getKvBlockSize()));
  if (spec.hasPositionMask())
    result.partial = pick(b.boolean(true), b.boolean(false), b.boolean(true));
  return result;
}

RowRange PrefillScoring::getRowRange(const PrefillItem &item,
                                     const KvBlock &kvBlock) {
  Value zero = b.index(0), one = b.index(1);
  Value start = b.sub(item.firstRow, kvBlock.first);
  RowRange range{zero, zero, kvBlock.n, zero};
  if (masks.low) {
    range.low = b.add(masks.low, start);
    range.lowSlope = one;
  }
  if (masks.high) {
    range.high = b.add(masks.high, start);
    range.highSlope = one;
  }
  return range;
}

//===----------------------------------------------------------------------===//
// Relations of KV blocks
//===----------------------------------------------------------------------===//

void PrefillScoring::packIntegers(const PrefillItem &item,
                                  const ScoringLayout &s) {
  for (MaskOperand which : kMaskOperands)
    if (Value part = s.integers[static_cast<size_t>(which)])
      forEachLane(item, [&](Value lane, Value row) {
        b.store(v.integer(spec.mask(which), item.batch, row), part, b.i64,
                lane);
      });
}

BiasScan PrefillScoring::scanBias(const PrefillItem &item,
                                  const KvBlock &kvBlock) {
  Value base =
      v.bias(item.batch, item.heads.noise, item.firstRow, kvBlock.first);
  // An additive bias is added even where it hides nothing, so only a boolean
  // one needs that.
  return emitBiasScan(b, spec.bias(),
                      {base, v.stride(spec.bias(), 2), item.rows, kvBlock.n},
                      /*wantsNone=*/!spec.addsBias());
}

void PrefillScoring::relateKvBlocks(const PrefillItem &item,
                                    const ScoringLayout &s,
                                    const KeyPartition &keys) {
  if (!s.relations)
    return;
  const bool hasTileMasks = spec.scores.hasTileMasks();
  if (hasTileMasks) {
    packIntegers(item, s);
    masks.beginRows(item.firstRow, b.add(item.firstRow, getLastLane(item)));
  }
  b.loop(keys.blocks, [&](Value number) {
    KvBlock kvBlock = cutKvBlock(keys, number);
    Value none = b.boolean(false), all = b.boolean(true);
    auto restrict = [&](Value byNone, Value byAll) {
      none = arith::OrIOp::create(b, none, byNone);
      all = arith::AndIOp::create(b, all, byAll);
    };
    if (spec.bias().present()) {
      BiasScan scan = scanBias(item, kvBlock);
      restrict(scan.hidesAll, scan.hidesNone);
    }
    if (hasTileMasks) {
      TileRelation relation = masks.getTileRelation(
          kvBlock.first, b.add(kvBlock.first, b.add(kvBlock.n, -1)));
      restrict(KernelMasks::unwrap(relation.none),
               KernelMasks::unwrap(relation.all));
    }
    Value code = b.select(none, b.index(kNone),
                          b.select(all, b.index(kAll), b.index(kSome)));
    b.store(b.narrow(code), s.relations, b.i32, number);
  });
}

void PrefillScoring::forKvBlocks(const ScoringLayout &s,
                                 const KeyPartition &keys,
                                 function_ref<void(Value)> body) {
  b.loop(keys.blocks, [&](Value number) {
    if (!s.relations)
      return body(number);
    Value relation = b.load(b.i32, s.relations, b.i32, number);
    b.ifElse(
        b.equal(relation, b.narrow(b.index(kNone))), [] {},
        [&] { body(number); });
  });
}

KvBlock PrefillScoring::getKvBlock(const ScoringLayout &s,
                                   const KeyPartition &keys, Value number) {
  KvBlock result = cutKvBlock(keys, number);
  if (!s.relations)
    return result;
  Value relation = b.load(b.i32, s.relations, b.i32, number);
  Value some = b.equal(relation, b.narrow(b.index(kSome)));
  result.partial =
      result.partial ? arith::OrIOp::create(b, result.partial, some).getResult()
                     : some;
  return result;
}

//===----------------------------------------------------------------------===//
// The bias of a KV block
//===----------------------------------------------------------------------===//

/// The bias is transposed once for both maps; a boolean mask becomes 0 and
/// -inf.
void PrefillScoring::packBias(const PrefillItem &item, const ScoringLayout &s,
                              const KvBlock &kvBlock) {
  const SpecOperand &operand = spec.bias();
  const int64_t stride = schedule.getQBlockSize();
  const bool isFlag = operand.element.isInteger(1);
  Type element = isFlag ? b.i8 : operand.element;
  Value last = getLastLane(item);
  Value rowStride = v.stride(operand, 2), keyStride = v.stride(operand, 3);
  Value base = v.bias(item.batch, item.heads.noise, b.index(0), kvBlock.first);
  Value done = b.index(0);
  if (operand.hasUnitColumns()) {
    done = b.mul(b.div(kvBlock.n, b.lanes), b.lanes);
    auto kernel = getPackBiasKernel(b, module, operand.element, stride);
    forEachVector(item, [&](Value lane) {
      Value row = b.add(item.firstRow, lane);
      LLVM::CallOp::create(
          b, kernel,
          ValueRange{b.at(base, element, b.mul(row, rowStride)), rowStride,
                     b.sub(last, lane), done, b.at(s.bias, b.f32, lane)});
    });
  }
  Value visible = emitConstant(b, b.f32, 0.0f);
  Value hidden =
      emitConstant(b, b.f32, -std::numeric_limits<float>::infinity());
  auto load = [&](Value from, Value position) {
    if (!isFlag)
      return b.loadWideScalar(from, element, position);
    Value flag = b.load(b.i8, from, b.i8, position);
    Value zero = arith::ConstantOp::create(b, b.getI8IntegerAttr(0));
    return b.select(b.equal(flag, zero), hidden, visible);
  };
  forEachLane(item, [&](Value lane, Value row) {
    Value from = b.at(base, element, b.mul(row, rowStride));
    Value to = b.at(s.bias, b.f32, lane);
    b.loop(done, kvBlock.n, 1, [&](Value key) {
      Value value = load(from, b.mul(key, keyStride));
      b.store(value, to, b.mul(key, stride));
    });
  });
}
