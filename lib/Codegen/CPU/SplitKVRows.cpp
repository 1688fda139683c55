//===- SplitKVRows.cpp - blocks of keys of one row come together ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVRows.h"

#include "RowSums.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

SplitKVRows::Row SplitKVRows::locateRow(Value index) {
  Row result;
  result.query = b.rem(index, sizes.queries);
  Value head = b.div(index, sizes.queries);
  result.batch = b.div(head, sizes.signalHeads);
  result.heads = getHeadIndices(v, b.rem(head, sizes.signalHeads));
  return result;
}

void SplitKVRows::emitFactors(Value index) {
  const auto [batch, heads, query] = locateRow(index);
  Value lambdas;
  if (spec.hasSecondMap())
    lambdas = b.splat(emitLambdaScalar(v, batch, heads, query));
  if (spec.epilogue.lambdaSigmoid)
    lambdas = emitSigmoid(b, lambdas);
  for (int map : spec.maps()) {
    Value head = map ? heads.noise : heads.signal;
    Value maxima = getHeader(m.maxima[map], getMap(map), batch, head, query);
    Value sums = getHeader(m.sums[map], getMap(map), batch, head, query);
    auto overBlocks =
        [&](Value init, function_ref<Value(Value first, Value carried)> next) {
          return b.loop(b.index(0), blocks, b.lanes, init,
                        [&](Value first, ValueRange carried) {
                          Value valid = b.firstLanes(b.sub(blocks, first));
                          return SmallVector<Value>{b.select(
                              valid, next(first, carried[0]), carried[0])};
                        })[0];
        };
    Value maximum = highest(overBlocks(
        b.splat(-std::numeric_limits<float>::max()),
        [&](Value first, Value carried) {
          return emitMaximum(b, carried, b.load(b.vector, maxima, first));
        }));
    auto factor = [&](Value first) {
      Value difference = b.subf(b.load(b.vector, maxima, first), maximum);
      return lanes().exponential(difference);
    };
    Value sum =
        b.splat(b.sum(overBlocks(b.zero(), [&](Value first, Value carried) {
          return b.fma(b.load(b.vector, sums, first), factor(first), carried);
        })));
    const FinishedSums finished =
        finishRowSums(v, map, heads, {sum, [&] { return maximum; }});
    Value numerator = map ? b.subf(b.zero(), lambdas) : b.splat(1.0f);
    if (finished.factor)
      numerator = b.mulf(numerator, finished.factor);
    PolynomialMath math = lanes();
    Value weight = emitPerSum(math, numerator, finished.sum);
    ifStoresLogarithms(v, map, heads,
                       [&, batch = batch, heads = heads, query = query] {
                         storeLogarithm(v, map, batch, heads, query,
                                        b.lane(finished.logarithm, 0));
                       });
    Value factors = getFactors(map, batch, heads.signal, query);
    b.loop(b.index(0), blocks, b.lanes, [&](Value first) {
      b.store(b.mulf(factor(first), weight), factors, first);
    });
  }
}

void SplitKVRows::emitMerge(Value index, Value scratch) {
  const auto [batch, heads, query] = locateRow(index);
  Value head = heads.signal;
  b.loop(b.index(0), paddedValueDim, b.lanes,
         [&](Value c) { b.store(b.zero(), scratch, c); });
  Value group = b.div(head, groups.signal);
  Value first = b.mul(b.add(b.mul(batch, groups.groups), group), blocks);
  Value inGroup = row(b.rem(head, groups.signal), query);
  SmallVector<Value> sums;
  for (int map : spec.maps())
    sums.push_back(getHeader(m.sums[map], getMap(map), batch,
                             map ? heads.noise : head, query));
  b.loop(blocks, [&](Value block) {
    // A block whose keys no query sees has no output.
    Value used;
    for (Value sum : sums) {
      Value some = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                         b.load(b.f32, sum, block),
                                         emitConstant(b, b.f32, 0.0f));
      used = used ? arith::OrIOp::create(b, used, some) : some;
    }
    b.ifThen(used, [&] {
      Value output = getOutput(b.add(first, block), inGroup);
      b.loop(b.index(0), paddedValueDim, b.lanes, [&](Value c) {
        b.store(
            b.addf(b.load(b.vector, scratch, c), b.load(b.vector, output, c)),
            scratch, c);
      });
    });
  });
  emitFinishRow(v, scratch, batch, head, query);
}
