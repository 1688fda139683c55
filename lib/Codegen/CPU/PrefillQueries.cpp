//===- PrefillQueries.cpp - a block of queries before the keys ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillScoring.h"
#include "Transpose.h"

using namespace mlir;
using namespace mlir::diffattn;

//===----------------------------------------------------------------------===//
// Lanes
//===----------------------------------------------------------------------===//

void PrefillScoring::forVectors(const PrefillItem &item,
                                function_ref<void(Value, int64_t)> body) {
  int64_t widest = schedule.getQk().vectors;
  Value whole = b.mul(b.div(item.vectors, widest), widest);
  b.loop(b.index(0), whole, widest,
         [&](Value vector) { body(b.mul(vector, b.lanes), widest); });
  // The vectors left over go by powers of two, which takes fewer kernels than
  // one for each number. With a static number of queries only some occur.
  Value rest = b.sub(item.vectors, whole);
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

void PrefillScoring::forEachVector(const PrefillItem &item,
                                   function_ref<void(Value)> body) {
  b.loop(item.vectors, [&](Value vector) { body(b.mul(vector, b.lanes)); });
}

void PrefillScoring::forEachLane(const PrefillItem &item,
                                 function_ref<void(Value, Value)> body) {
  Value last = getLastLane(item);
  b.loop(b.mul(item.vectors, b.lanes), [&](Value lane) {
    body(lane, b.add(item.firstRow, b.min(lane, last)));
  });
}

//===----------------------------------------------------------------------===//
// Numbers of each query
//===----------------------------------------------------------------------===//

void PrefillScoring::packQueries(const PrefillItem &item,
                                 const ScoringLayout &s) {
  Value last = getLastLane(item);
  for (int map : spec.maps())
    packQueries(item, s, map, last);
}

/// Packs queries as [column][lane]. Lanes past the last query repeat it; they
/// are never stored.
void PrefillScoring::packQueries(const PrefillItem &item,
                                 const ScoringLayout &s, int map, Value last) {
  const int64_t stride = schedule.getQBlockSize();
  const float scale =
      spec.foldsLog2E() ? spec.scores.scale * kLog2E : spec.scores.scale;
  const SpecOperand &operand = spec.queriesOf(map);
  Value base =
      v.head(operand, item.batch, map ? item.heads.noise : item.heads.signal);
  Value rowStride = v.stride(operand, 2), columnStride = v.stride(operand, 3);
  // Whole vectors of columns are transposed in registers.
  Value done = b.index(0);
  if (operand.hasUnitColumns()) {
    const int64_t width = b.lanes * atom.pack;
    done = b.mul(b.div(item.sizes.headDim, width), width);
    auto kernel =
        getPackQueriesKernel(b, module, operand.element, stride, atom);
    forEachVector(item, [&](Value lane) {
      Value row = b.add(item.firstRow, lane);
      LLVM::CallOp::create(
          b, kernel,
          ValueRange{b.at(base, operand.element, b.mul(row, rowStride)),
                     rowStride, b.sub(last, lane), done,
                     emitConstant(b, b.f32, scale),
                     b.at(s.queries[map], atom.getPacked(b), lane)});
    });
  }
  Value rest = b.sub(item.sizes.headDim, done);
  if (KernelBuilder::known(rest) == 0)
    return;
  Value donePacks = b.mul(b.div(done, atom.pack), stride);
  forEachLane(item, [&](Value lane, Value row) {
    Value from = b.at(base, operand.element,
                      b.add(b.mul(row, rowStride), b.mul(done, columnStride)));
    Value to = b.at(s.queries[map], atom.getPacked(b), b.add(donePacks, lane));
    atom.packQuery(
        b, {from, operand.element, columnStride, rest, to, stride, scale});
  });
}

void PrefillScoring::packLambda(const PrefillItem &item,
                                const ScoringLayout &s) {
  if (!spec.hasSecondMap())
    return;
  forEachLane(item, [&](Value lane, Value row) {
    b.store(emitLambdaScalar(v, item.batch, item.heads, row), s.lambda, lane);
  });
  if (spec.epilogue.lambdaSigmoid)
    forEachVector(item, [&](Value lane) {
      b.store(emitSigmoid(b, b.load(b.vector, s.lambda, lane)), s.lambda, lane);
    });
}

void PrefillScoring::clear(const PrefillItem &item, const ScoringLayout &s) {
  Value lowest = b.splat(-std::numeric_limits<float>::max());
  for (int map : spec.maps())
    forEachVector(item, [&](Value lane) {
      b.store(lowest, s.maxima[map], lane);
      b.store(b.zero(), s.sums[map], lane);
    });
}
