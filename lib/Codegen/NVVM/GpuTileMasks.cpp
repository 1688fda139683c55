//===- GpuTileMasks.cpp - masks that tell of whole tiles of keys ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block begins and ends with the keys that its queries may see, asks of each
// tile between them whether it is seen, and of a tile that is seen in part,
// score by score. Numbers of keys lie spread over the lanes of a warp: loads of
// them for each score were seen to spill.
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMasks.h"

#include "llvm/Support/ErrorHandling.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

GpuMasks::TileElements &GpuMasks::getTileElements(MaskOperand operand) {
  for (TileElements &known : tileElements)
    if (known.operand == operand)
      return known;
  llvm_unreachable("the operand of no mask that tells of tiles");
}

MaskValue GpuMasks::lowest(MaskOperand operand, const MaskTile &tile) {
  return add({Term::Sum, getTileElements(operand).lowest});
}
MaskValue GpuMasks::highest(MaskOperand operand, const MaskTile &tile) {
  return add({Term::Sum, getTileElements(operand).highest});
}

/// Loads each 32nd number from `first` + lane on, and number `last` in place of
/// those beyond it.
SmallVector<Value> GpuMasks::loadLanes(const TileElements &from, Value first,
                                       int64_t count, Value last,
                                       std::optional<GpuParam> stride) {
  Value base = advance(from, kernel.param(from.pointer), batch, from.batch);
  Value start = b.add(first, kernel.lane);
  SmallVector<Value> numbers;
  for (int64_t i = 0; i < count; i += 32)
    numbers.push_back(loadNumber(
        from, advance(from, base, b.minS(b.add(start, i), last), stride)));
  return numbers;
}

void GpuMasks::scan(bool ofKeys, Value first, int64_t count, Value last) {
  for (TileElements &of : tileElements) {
    std::optional<GpuParam> stride = ofKeys ? of.key : of.query;
    if (!stride)
      continue;
    if (!count) {
      Value base = advance(of, kernel.param(of.pointer), batch, of.batch);
      of.lowest = of.highest = loadNumber(of, advance(of, base, first, stride));
      continue;
    }
    SmallVector<Value> numbers = loadLanes(of, first, count, last, stride);
    of.lowest = of.highest = numbers.front();
    for (Value number : ArrayRef(numbers).drop_front()) {
      of.lowest = b.minS(of.lowest, number);
      of.highest = b.maxS(of.highest, number);
    }
    of.lowest = b.warpMinS(of.lowest);
    of.highest = b.warpMaxS(of.highest);
  }
}

void GpuMasks::beginBlock(Value first, int64_t count) {
  scan(/*ofKeys=*/false, first, count,
       b.add(kernel.param(GpuParam::Queries), -1));
}

TileRelation GpuMasks::getRelation() {
  terms.clear();
  return diffattn::getTileRelation(*this, tileMasks, MaskTile(), MaskTile());
}

Value GpuMasks::findSeen(Value tile, Value end, int64_t keys) {
  auto isBeforeEnd = [&](Value number) {
    return b.compare(LLVM::ICmpPredicate::slt, number, end);
  };
  // Nothing may be loaded for a tile that does not exist.
  return b.branch(
      isBeforeEnd(tile),
      [&]() -> GpuBuilder::Values {
        Value isHidden, all, next;
        Value last =
            b.loopUntil(tile, [&](ValueRange now) -> GpuBuilder::Values {
              Value first = b.mul(now[0], keys), last = b.add(keyLimit, -1);
              // Lanes may go beyond a tile that is narrower than a warp.
              if (keys % 32)
                last = b.minS(last, b.add(first, keys - 1));
              scan(/*ofKeys=*/true, first, keys, last);
              TileRelation relation = getRelation();
              isHidden = holds(relation.none);
              all = holds(relation.all);
              next = b.add(now[0], 1);
              Value goesOn = b.andI(isHidden, isBeforeEnd(next));
              return {b.xorI(goesOn, b.i1(true)), next};
            })[0];
        Value number = b.select(isHidden, next, last);
        return {b.add(b.mul(number, 2), b.select(all, b.i32(0), b.i32(1)))};
      },
      b.mul(tile, 2))[0];
}

Value GpuMasks::isPartial(Value tile) {
  return b.compare(LLVM::ICmpPredicate::ne, b.andI(tile, 1), b.i32(0));
}
Value GpuMasks::isBefore(Value tile, Value end) {
  return b.compare(LLVM::ICmpPredicate::slt, tile, b.mul(end, 2));
}

void GpuMasks::beginPartialTile(std::array<Value, 2> queries, Value first,
                                int64_t count) {
  for (TileElements &of : tileElements) {
    of.numbers.clear();
    of.numberColumn = -1;
    if (of.key) {
      of.numbers = loadLanes(of, first, count, b.add(keyLimit, -1), of.key);
      continue;
    }
    Value last = b.add(kernel.param(GpuParam::Queries), -1);
    Value base = advance(of, kernel.param(of.pointer), batch, of.batch);
    for (Value query : queries)
      of.numbers.push_back(
          loadNumber(of, advance(of, base, b.minS(query, last), of.query)));
  }
}

Value GpuMasks::maskInTile(Value score, unsigned query, int64_t column) {
  tileQuery = query;
  terms.clear();
  MaskPoint point;
  point.key = add({Term::Sum, Value(), column});
  for (MaskAttrInterface mask : tileMasks)
    score = hide(mask.isVisible(*this, point), score);
  tileQuery.reset();
  return score;
}

std::pair<Value, Value> GpuMasks::narrow(Value begin, Value end,
                                         int64_t threads) {
  // Enough loads at a time to hide the latency of one.
  constexpr int64_t unroll = 8;
  const bool isBlock = threads != 32;
  Value last = b.add(end, -1);
  Value index = isBlock ? kernel.thread : kernel.lane;
  GpuBuilder::Values extrema =
      b.loop(b.add(begin, index), end, threads * unroll, {end, b.i32(-1)},
             [&](Value first, ValueRange carried) -> GpuBuilder::Values {
               GpuBuilder::Values next(carried.begin(), carried.end());
               for (int64_t i = 0; i < unroll; ++i) {
                 Value key = b.minS(b.add(first, i * threads), last);
                 scan(/*ofKeys=*/true, key, /*count=*/0, last);
                 Value none = holds(getRelation().none);
                 next[0] = b.select(none, next[0], b.minS(next[0], key));
                 next[1] = b.select(none, next[1], b.maxS(next[1], key));
               }
               return next;
             });
  Value lowest = b.warpMinS(extrema[0]), highest = b.warpMaxS(extrema[1]);
  if (isBlock) {
    // Each warp stores its extrema.
    b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)), [&] {
      b.store(b.pack({lowest, highest}),
              b.bytes(kernel.shared, b.mul(kernel.warp, 8)), 8);
    });
    b.barrier();
    auto pair = VectorType::get(2, b.i32Type());
    for (int64_t warp = 0; warp < threads / 32; ++warp) {
      SmallVector<Value> theirs =
          b.unpack(b.load(pair, b.bytes(kernel.shared, 8 * warp), 8));
      lowest = b.minS(lowest, theirs[0]);
      highest = b.maxS(highest, theirs[1]);
    }
    b.barrier();
  }
  return {lowest, b.add(highest, 1)};
}
