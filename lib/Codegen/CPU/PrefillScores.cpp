//===- PrefillScores.cpp - scores and exponentials of a block -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillScoring.h"
#include "TileKernels.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mlir::diffattn;

//===----------------------------------------------------------------------===//
// A KV block
//===----------------------------------------------------------------------===//

/// The block's place in the planes of scores: its own with two passes, the
/// first one when online.
Value PrefillScoring::getPosition(const PrefillItem &item,
                                  const KeyPartition &keys,
                                  const KvBlock &kvBlock) {
  KeyPaths paths = getKeyPaths(spec);
  Value position = b.sub(kvBlock.first, keys.visible.low);
  if (!paths.shared)
    return b.index(0);
  if (!paths.online)
    return position;
  return b.select(b.less(b.index(schedule.getTwoPassKeys()), item.sizes.keys),
                  b.index(0), position);
}

MapScores PrefillScoring::getMapScores(const ScoringLayout &s, int map,
                                       Value position) {
  // A KV block begins with a pair: with a multiple of a tile's keys.
  const bool inPairs = spec.pairsExponentials();
  if (inPairs)
    position = b.div(position, 2);
  Value offset = b.mul(position, schedule.getQBlockSize());
  Value weights = b.at(s.scores[map], b.f32, offset);
  Value slopes = s.slopes[map] ? b.at(s.slopes[map], b.f32, offset) : Value();
  return {map, inPairs ? s.rawScores : weights, weights, slopes};
}

Value PrefillScoring::makeScores(const PrefillItem &item,
                                 const ScoringLayout &s, const KeyHeads &heads,
                                 const KvBlock &kvBlock,
                                 const MapScores &place) {
  Value edited = kvBlock.partial ? kvBlock.partial : b.boolean(false);
  if (spec.editsEveryScore())
    edited = b.boolean(true);
  forEachVector(item, [&](Value lane) {
    b.store(b.load(b.vector, s.maxima[place.map], lane), s.newMaxima, lane);
  });
  Value base = getKeyBase(item, s, place.map, heads.base[place.map], kvBlock);
  scoreKeys(item, s, kvBlock, base, place);
  if (spec.editsEveryScore())
    editScores(item, s, kvBlock, place);
  else if (spec.hasPartialTiles())
    b.ifThen(edited, [&] { editScores(item, s, kvBlock, place); });
  return edited;
}

void PrefillScoring::makeMaps(
    const PrefillItem &item, const ScoringLayout &s, const KeyHeads &heads,
    const KeyPartition &keys, Value number,
    function_ref<void(const KvBlock &, const MapScores &, Value)> finish) {
  KvBlock kvBlock = getKvBlock(s, keys, number);
  Value position = getPosition(item, keys, kvBlock);
  for (int map : spec.maps()) {
    MapScores place = getMapScores(s, map, position);
    finish(kvBlock, place, makeScores(item, s, heads, kvBlock, place));
  }
}

void PrefillScoring::scoreKvBlock(const PrefillItem &item,
                                  const ScoringLayout &s, const KeyHeads &heads,
                                  const KeyPartition &keys, Value number) {
  makeMaps(
      item, s, heads, keys, number,
      [&](const KvBlock &kvBlock, const MapScores &place, Value edited) {
        exponentiate(item, s, kvBlock.n, place, edited);
        Value history = s.history[place.map];
        if (!history)
          return;
        forEachVector(item, [&](Value lane) {
          b.store(b.load(b.vector, s.maxima[place.map], lane),
                  b.at(history, b.f32, b.mul(number, schedule.getQBlockSize())),
                  lane);
        });
      });
}

void PrefillScoring::rescoreKvBlock(const PrefillItem &item,
                                    const ScoringLayout &s,
                                    const KeyHeads &heads,
                                    const KeyPartition &keys, Value number) {
  makeMaps(item, s, heads, keys, number,
           [&](const KvBlock &kvBlock, const MapScores &place, Value edited) {
             takePowers(item, s, kvBlock.n, place, edited);
           });
}

//===----------------------------------------------------------------------===//
// Raw scores
//===----------------------------------------------------------------------===//

Value PrefillScoring::getKeyBase(const PrefillItem &item,
                                 const ScoringLayout &s, int map, Value head,
                                 const KvBlock &kvBlock) {
  if (!spec.isPaged())
    return head;
  return copyPages(v, item, spec.pages[map], head, kvBlock, item.sizes.headDim,
                   s.pagedKeys);
}

std::pair<Value, Value> PrefillScoring::getKeyRows(const PrefillItem &item,
                                                   const ScoringLayout &s,
                                                   int map, Value base,
                                                   const KvBlock &kvBlock) {
  const SpecOperand &operand = spec.keysOf(map);
  Value stride = v.stride(operand, 2), columns = item.sizes.headDim;
  if (atom.readsRows(b, operand))
    return {b.at(base, atom.getNumber(b), b.mul(kvBlock.first, stride)),
            stride};
  packRows(v, operand, base, kvBlock.first, kvBlock.n, columns, columns,
           s.keyPanel);
  return {s.keyPanel, columns};
}

void PrefillScoring::scoreKeys(const PrefillItem &item, const ScoringLayout &s,
                               const KvBlock &kvBlock, Value base,
                               const MapScores &place) {
  if (atom.usesTiles)
    return multiplyTileRows(item,
                            {spec.keysOf(place.map), base, item.sizes.headDim,
                             spec.headDim, s.keyPanel},
                            kvBlock, s.queries[place.map], place.scores,
                            s.newMaxima);
  auto [rows, stride] = getKeyRows(item, s, place.map, base, kvBlock);
  forVectors(
      item, [&, rows = rows, stride = stride](Value lane, int64_t width) {
        auto kernel = getScoresKernel(b, module, schedule, width, atom);
        LLVM::CallOp::create(b, kernel,
                             ValueRange{rows, stride,
                                        b.at(s.queries[place.map], b.f32, lane),
                                        item.sizes.headDim, kvBlock.n,
                                        b.at(place.scores, b.f32, lane),
                                        b.at(s.newMaxima, b.f32, lane)});
      });
}

//===----------------------------------------------------------------------===//
// Softcap, bias and masks
//===----------------------------------------------------------------------===//

Value PrefillScoring::loadMaskLanes(const PrefillItem &item,
                                    const ScoringLayout &s, MaskOperand operand,
                                    Value key, Value lane, Value position) {
  if (Value packed = s.integers[static_cast<size_t>(operand)])
    return b.load(VectorType::get({b.lanes}, b.i64), packed, b.i64, lane);
  if (spec.hasIntegers(operand, AxisRole::Key))
    return b.splat(v.integer(spec.mask(operand), item.batch, key));
  Value bias = b.load(b.vector, s.bias, position);
  if (!spec.bias().element.isInteger(1))
    return bias;
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, bias, lowest);
}

/// The score of a key in lanes whose queries see the keys of `visible`, i32,
/// and `lowest` in the others.
static Value hideOutside(KernelBuilder &b, const KeyRange &visible, Value key,
                         Value score, Value lowest) {
  Value number = b.splat(b.narrow(key));
  auto compare = [&](arith::CmpIPredicate predicate, Value limit) {
    return arith::CmpIOp::create(b, predicate, number, limit);
  };
  Value isFrom = compare(arith::CmpIPredicate::sge, visible.low);
  Value isBelow = compare(arith::CmpIPredicate::slt, visible.high);
  Value isInRange = arith::AndIOp::create(b, isFrom, isBelow);
  return arith::SelectOp::create(b, isInRange, score, lowest);
}

/// Scale, where the product has left it out, and softcap.
Value PrefillScoring::transformScore(Value score) {
  if (!atom.scalesQueries && spec.editsEveryScore())
    score = b.mulf(score, b.splat(spec.scores.scale));
  if (spec.scores.softcap)
    score = emitSoftcap(b, score, *spec.scores.softcap);
  return score;
}

/// The derivative of the softcap at a score that leaves the product.
Value PrefillScoring::getSoftcapSlope(Value score) {
  PolynomialMath math(b, b.vector);
  if (!atom.scalesQueries)
    score = b.mulf(score, b.splat(spec.scores.scale));
  Value argument =
      math.multiply(score, math.constant(invertSoftcap(*spec.scores.softcap)));
  Value magnitude = math::AbsFOp::create(b, argument);
  // Powers end before 0.
  Value isFlat = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, magnitude,
                                       b.splat(43.0f));
  return b.select(isFlat, b.zero(), emitTanhSlope(math, magnitude));
}

void PrefillScoring::editScores(const PrefillItem &item, const ScoringLayout &s,
                                const KvBlock &kvBlock,
                                const MapScores &place) {
  if (spec.bias().present() && place.map == 0)
    packBias(item, s, kvBlock);
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  forEachVector(item, [&](Value lane) {
    KeyRange visible;
    if (spec.hasPositionMask())
      visible = {b.load(b.integers, s.lows, b.i32, lane),
                 b.load(b.integers, s.highs, b.i32, lane)};
    auto edit = [&](Value key, ValueRange maximum) {
      Value position = b.add(b.mul(key, schedule.getQBlockSize()), lane);
      Value score = b.load(b.vector, place.scores, position);
      if (place.slopes)
        b.store(getSoftcapSlope(score), place.slopes, position);
      score = transformScore(score);
      masks.loadLanes = [&](MaskOperand operand) {
        return loadMaskLanes(item, s, operand, b.add(kvBlock.first, key), lane,
                             position);
      };
      score = masks.maskElements(score, /*inPartialTile=*/true);
      if (spec.hasPositionMask())
        score =
            hideOutside(b, visible, b.add(kvBlock.first, key), score, lowest);
      b.store(score, place.scores, position);
      return SmallVector<Value>{emitMaximum(b, maximum[0], score)};
    };
    Value maximum = b.load(b.vector, s.maxima[place.map], lane);
    maximum = b.loop(b.index(0), kvBlock.n, 1, maximum, edit)[0];
    b.store(maximum, s.newMaxima, lane);
  });
}

//===----------------------------------------------------------------------===//
// Exponentials
//===----------------------------------------------------------------------===//

PolynomialMath PrefillScoring::lanes() {
  std::optional<float> factor = spec.exponentFactor();
  return PolynomialMath(b, b.vector, /*degree=*/5,
                        factor ? b.splat(*factor) : Value());
}

/// The polynomial of 0 need not be 1: a KV block that a row does not see leaves
/// its sums as they are.
Value PrefillScoring::emitDecay(Value before, Value after) {
  Value same =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, before, after);
  Value decay = lanes().exponential(b.subf(before, after));
  return arith::SelectOp::create(b, same, b.splat(1.0f), decay);
}

void PrefillScoring::updateFactors(const PrefillItem &item,
                                   const ScoringLayout &s, Value number,
                                   ArrayRef<Value> weights) {
  for (int map : spec.maps())
    forEachVector(item, [&](Value lane) {
      Value then = b.load(
          b.vector,
          b.at(s.history[map], b.f32, b.mul(number, schedule.getQBlockSize())),
          lane);
      Value decay = emitDecay(then, b.load(b.vector, s.maxima[map], lane));
      Value weight = b.load(b.vector, weights[map], lane);
      b.store(b.mulf(decay, weight), s.factors[map], lane);
    });
}

/// Moves the sums so far to the new maxima.
void PrefillScoring::moveSums(const PrefillItem &item, const ScoringLayout &s,
                              int map) {
  forEachVector(item, [&](Value lane) {
    Value before = b.load(b.vector, s.maxima[map], lane);
    Value after = b.load(b.vector, s.newMaxima, lane);
    Value decay = emitDecay(before, after);
    b.store(b.mulf(b.load(b.vector, s.sums[map], lane), decay), s.sums[map],
            lane);
    b.store(after, s.maxima[map], lane);
    b.store(decay, s.factors[map], lane);
  });
}

/// Calls the kernels of exponentials; `masked`: for scores of -inf.
void PrefillScoring::callExponentials(const PrefillItem &item,
                                      const ScoringLayout &s, Value n,
                                      const MapScores &place, bool masked) {
  std::optional<float> factor = spec.exponentFactor();
  forVectors(item, [&](Value lane, int64_t width) {
    SmallVector<Value> arguments{b.at(place.scores, b.f32, lane), n,
                                 b.at(s.maxima[place.map], b.f32, lane),
                                 b.at(s.sums[place.map], b.f32, lane),
                                 emitConstant(b, b.f32, factor.value_or(1.0f))};
    LLVM::LLVMFuncOp kernel;
    if (spec.pairsExponentials()) {
      kernel = getTileExponentialKernel(b, module, schedule, width, masked,
                                        factor.has_value(), atom);
      arguments.push_back(b.at(place.weights, b.i32, lane));
    } else {
      kernel = getExponentialKernel(b, module, schedule, width, masked,
                                    factor.has_value(), atom.exponentDegree);
    }
    LLVM::CallOp::create(b, kernel, arguments);
  });
}

void PrefillScoring::exponentiate(const PrefillItem &item,
                                  const ScoringLayout &s, Value n,
                                  const MapScores &place, Value edited) {
  moveSums(item, s, place.map);
  takePowers(item, s, n, place, edited);
}

void PrefillScoring::takePowers(const PrefillItem &item, const ScoringLayout &s,
                                Value n, const MapScores &place, Value edited) {
  auto run = [&](bool masked) { callExponentials(item, s, n, place, masked); };
  if (spec.editsEveryScore())
    run(/*masked=*/true);
  else if (spec.hasPartialTiles())
    b.ifElse(
        edited, [&] { run(/*masked=*/true); }, [&] { run(/*masked=*/false); });
  else
    run(/*masked=*/false);
}
