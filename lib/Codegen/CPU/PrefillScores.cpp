//===- PrefillScores.cpp - scores and exponentials of a block -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PackedValues.h"
#include "PrefillKernel.h"
#include "TileKernels.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

std::pair<Value, Value> PrefillKernel::getKeyRows(int map, Value first,
                                                  Value n) {
  const SpecOperand &operand = map ? spec.k2 : spec.k1;
  Value stride = v.stride(operand, 2);
  if (atom.readsRows(b, operand))
    return {b.at(keyBase[map], atom.getNumber(b), b.mul(first, stride)),
            stride};
  packRows(v, operand, keyBase[map], first, n, headDim, headDim, s.keyPanel);
  return {s.keyPanel, headDim};
}

std::pair<Value, Value> PrefillKernel::getValueRows(Value first, Value n) {
  Value stride = v.stride(spec.v, 2);
  if (atom.readsValues(b, spec.v))
    return {b.at(valueBase, atom.getNumber(b), b.mul(first, stride)), stride};
  auto pack = [&] {
    atom.packValues(v, valueBase, first, n, valueDim, s.valuePanel,
                    s.valuePanelStride);
    return s.valuePanel;
  };
  Value packed =
      mayPackValues(spec)
          ? findPackedValues(v, context, batch, heads.value, first, n, pack)
          : pack();
  return {packed, s.valuePanelStride};
}

void PrefillKernel::scoreRows(int map, const KvBlock &kvBlock, Value scores) {
  std::pair<Value, Value> keyRows = getKeyRows(map, kvBlock.first, kvBlock.n);
  forVectors([&](Value lane, int64_t width) {
    auto kernel = getScoresKernel(b, module, schedule, width, atom);
    LLVM::CallOp::create(b, kernel,
                         ValueRange{keyRows.first, keyRows.second,
                                    b.at(s.queries[map], b.f32, lane), headDim,
                                    kvBlock.n, b.at(scores, b.f32, lane),
                                    b.at(s.newMaxima, b.f32, lane)});
  });
}

Value PrefillKernel::weightsAt(int map, Value position) {
  // A KV block begins with a pair: with a multiple of a tile's keys.
  if (atom.usesTiles)
    position = b.div(position, 2);
  return b.at(s.scores[map], b.f32, b.mul(position, schedule.getQBlockSize()));
}

void PrefillKernel::scoreKvBlock(Value number) {
  KvBlock kvBlock = getKvBlock(number);
  KeyPaths paths = getKeyPaths(spec);
  Value never = b.boolean(false);
  Value edited = kvBlock.partial ? kvBlock.partial : never;
  if (spec.editsEveryScore())
    edited = b.boolean(true);
  // In the shared way every KV block has its place; in the online way all use
  // the first.
  Value position = b.sub(kvBlock.first, seen.low);
  if (!paths.shared)
    position = b.index(0);
  else if (paths.online)
    position = b.select(b.less(b.index(schedule.getTwoPassKeys()), keys),
                        b.index(0), position);
  for (int map : {0, 1}) {
    Value weights = weightsAt(map, position);
    Value scores = atom.usesTiles ? s.rawScores : weights;
    forEachVector([&](Value lane) {
      b.store(b.load(b.vector, s.maxima[map], lane), s.newMaxima, lane);
    });
    copyPagedKeys(map, kvBlock);
    if (atom.usesTiles)
      scoreTiles(map, kvBlock, scores);
    else
      scoreRows(map, kvBlock, scores);
    if (spec.editsEveryScore())
      editScores(map, kvBlock.n, kvBlock.first, scores);
    else if (spec.hasPartialTiles())
      b.ifThen(edited,
               [&] { editScores(map, kvBlock.n, kvBlock.first, scores); });
    exponentiate(map, kvBlock.n, scores, weights, edited);
    if (s.history[map])
      forEachVector([&](Value lane) {
        b.store(b.load(b.vector, s.maxima[map], lane),
                b.at(s.history[map], b.f32,
                     b.mul(number, schedule.getQBlockSize())),
                lane);
      });
  }
}

/// What a mask reads of `key` and the queries from `lane` on, whose scores
/// begin at `position`.
Value PrefillKernel::loadMaskLanes(MaskOperand operand, Value key, Value lane,
                                   Value position) {
  if (Value packed = s.integers[static_cast<size_t>(operand)])
    return b.load(VectorType::get({b.lanes}, b.i64), packed, b.i64, lane);
  if (spec.hasIntegers(operand, AxisRole::Key))
    return b.splat(v.integer(spec.mask(operand), batch, key));
  Value bias = b.load(b.vector, s.bias, position);
  if (!spec.bias().element.isInteger(1))
    return bias;
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, bias, lowest);
}

/// Softcap, bias and mask over raw scores, and the maximum of what is left.
void PrefillKernel::editScores(int map, Value n, Value first, Value scores) {
  if (spec.bias().present() && map == 0)
    packBias(n, first);
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
          Value position = b.add(b.mul(key, schedule.getQBlockSize()), lane);
          Value score = b.load(b.vector, scores, position);
          if (!atom.scalesQueries && spec.editsEveryScore())
            score = b.mulf(score, b.splat(spec.scores.scale));
          if (spec.scores.softcap)
            score = emitSoftcap(b, score, *spec.scores.softcap);
          masks->loadLanes = [&](MaskOperand operand) {
            return loadMaskLanes(operand, b.add(first, key), lane, position);
          };
          score = masks->maskElements(score, /*inPartialTile=*/true);
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

PolynomialMath PrefillKernel::lanes() {
  std::optional<float> factor = spec.exponentFactor();
  return PolynomialMath(b, b.vector, /*degree=*/5,
                        factor ? b.splat(*factor) : Value());
}

/// exp(before - after), and 1 where they are equal, which the polynomial of 0
/// need not be: a KV block that a row does not see leaves its sums as they are.
Value PrefillKernel::emitDecay(Value before, Value after) {
  Value same =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, before, after);
  Value decay = lanes().exponential(b.subf(before, after));
  return arith::SelectOp::create(b, same, b.splat(1.0f), decay);
}

void PrefillKernel::exponentiate(int map, Value n, Value scores, Value weights,
                                 Value edited) {
  std::optional<float> factor = spec.exponentFactor();
  // Sums so far move to the new maximum.
  forEachVector([&](Value lane) {
    Value before = b.load(b.vector, s.maxima[map], lane);
    Value after = b.load(b.vector, s.newMaxima, lane);
    Value decay = emitDecay(before, after);
    b.store(b.mulf(b.load(b.vector, s.sums[map], lane), decay), s.sums[map],
            lane);
    b.store(after, s.maxima[map], lane);
    b.store(decay, s.factors[map], lane);
  });
  auto run = [&](bool masked) {
    forVectors([&](Value lane, int64_t width) {
      SmallVector<Value> arguments{
          b.at(scores, b.f32, lane), n, b.at(s.maxima[map], b.f32, lane),
          b.at(s.sums[map], b.f32, lane),
          emitConstant(b, b.f32, factor.value_or(1.0f))};
      LLVM::LLVMFuncOp kernel;
      if (atom.usesTiles) {
        kernel = getTileExponentialKernel(b, module, schedule, width, masked,
                                          factor.has_value(), atom);
        arguments.push_back(b.at(weights, b.i32, lane));
      } else {
        kernel = getExponentialKernel(b, module, schedule, width, masked,
                                      factor.has_value(), atom.exponentDegree);
      }
      LLVM::CallOp::create(b, kernel, arguments);
    });
  };
  if (spec.editsEveryScore())
    run(/*masked=*/true);
  else if (spec.hasPartialTiles())
    b.ifElse(
        edited, [&] { run(/*masked=*/true); }, [&] { run(/*masked=*/false); });
  else
    run(/*masked=*/false);
}
