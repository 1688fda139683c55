//===- GradientPlain.cpp - f32 gradients by ordinary instructions ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A warp takes one row: a key, or a query of a noise head. For 32 rows of the
// other kind at a time each lane makes the weights and the gradients of scores
// of one of them, then the lanes share out the columns of the sums and take
// each row's numbers by shuffle. Operands are read where they lie, with any
// strides, in an order that is always the same. Without a goal for speed; right
// for any width up to 256.
//
//===----------------------------------------------------------------------===//
#include "GpuMath.h"
#include "GradientTiles.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

namespace {
class GradientPlain {
public:
  explicit GradientPlain(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b), spec(kernel.spec),
        ofKeys(spec.kind == GpuKernelKind::GradientKeys),
        headColumns(llvm::divideCeil(spec.headDim, kLanes)),
        valueColumns(llvm::divideCeil(spec.valueDim, kLanes)),
        tiles(kernel, ofKeys) {}
  void emitKeys();
  void emitQueries();

private:
  using P = GpuParam;
  static constexpr int64_t kLanes = 32;
  /// A row in memory, and the distance of its neighbours, i64.
  struct Row {
    Value base, step;
  };
  /// Row `row` of all sequences.
  Row rowOf(P tensor, Value head, Value row) {
    return {kernel.stridePointer(b.f32(), kernel.headBase(tensor, batch, head),
                                 b.toI64(row), kernel.rowStride(tensor)),
            kernel.columnStride(tensor)};
  }
  /// Row `query` of dX of signal head `head`.
  Row rowGradient(Value head, Value query) {
    return {kernel.stridePointer(
                b.f32(), tiles.getRowGradients(batch, head, signalHeads),
                b.toI64(kernel.queryAt(query)), b.i64(spec.valueDim)),
            b.i64(1)};
  }
  Row queryRow(int64_t map, Value head, Value query) {
    return rowOf(map ? P::Q2 : P::Q1, map ? noiseHead(head) : head,
                 kernel.queryAt(query));
  }
  Row keyRow(int64_t map, Value key) {
    return rowOf(map && spec.hasSecondKeys() ? P::K2 : P::K1, keyHead,
                 kernel.keyAt(key));
  }
  Value noiseHead(Value head) { return kernel.noiseHeadOf(head); }
  Value dot(const Row &x, const Row &y, int64_t width);
  /// Gradients of the scores of each map for a query and a key in each lane,
  /// then the weights of both together.
  Values differentiate(Value head, Value query, Value key);
  /// For all rows of the other kind in [begin, end) of signal head `head`:
  /// `addRow` returns what comes after `sums` with a row and its numbers of
  /// `differentiate`.
  Values forOthers(Value head, Value row, Value begin, Value end,
                   ValueRange sums,
                   function_ref<Values(Value other, ArrayRef<Value> numbers,
                                       ValueRange sums)>
                       addRow);
  /// sums + factor * row, of the columns of this lane.
  void add(MutableArrayRef<Value> sums, Value factor, const Row &row,
           int64_t width);
  void store(GpuGradient gradient, ArrayRef<Value> sums, Value head, Value row);
  Value column(int64_t i) { return b.add(kernel.lane, kLanes * i); }

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const bool ofKeys;
  const int64_t headColumns, valueColumns;
  GradientTiles tiles;
  Value batch, keyHead, signalHeads;
};
} // namespace

Value GradientPlain::dot(const Row &x, const Row &y, int64_t width) {
  auto at = [&](const Row &row, Value i) {
    return b.loadConstant(
        b.f32(), kernel.stridePointer(b.f32(), row.base, b.toI64(i), row.step));
  };
  return b.loop(
      b.i32(0), b.i32(width), 1, b.f32(0.0),
      [&](Value i, ValueRange sum) -> Values {
        return {b.fma(at(x, i), at(y, i), sum[0])};
      },
      /*mayUnroll=*/false)[0];
}

Values GradientPlain::differentiate(Value head, Value query, Value key) {
  GpuMasks &masks = *kernel.masks;
  GpuMath math(b, b.f32(kLog2E));
  const bool scaled = spec.scaledScores();
  Value dP = dot(rowGradient(head, query),
                 rowOf(P::V, keyHead, kernel.keyAt(key)), spec.valueDim);
  Value lambda, difference;
  if (spec.maps == 2)
    lambda = kernel.loadLambda(batch, query, head);
  Values numbers;
  for (int64_t map = 0; map < spec.maps; ++map) {
    Value score =
        dot(queryRow(map, head, query), keyRow(map, key), spec.headDim);
    Value slope;
    if (scaled)
      score = b.mulF(score, kernel.param(P::ScoreScale));
    if (spec.softcap) {
      Value part = math.tanh(score);
      slope = b.fma(part, b.mulF(part, b.f32(-1.0)), b.f32(1.0));
      score = b.mulF(part, kernel.param(P::Softcap));
    }
    if (masks.hasElements()) {
      masks.beginHead(noiseHead(head), ScoreLanes::Single);
      masks.beginQuery(query);
      score = masks.maskElements(score, key, /*column=*/0);
    }
    Value sums = tiles.getLogSums(map, batch, map ? noiseHead(head) : head);
    Value shift = tiles.getShift(b.loadConstant(
        b.f32(),
        kernel.stridePointer(b.f32(), sums, b.toI64(kernel.queryAt(query)),
                             tiles.getLogSumStride(map))));
    Value weight =
        scaled ? math.exponential(b.subF(score, shift))
               : b.exp2(b.fma(score, kernel.param(P::ScoreScale), shift));
    if (map)
      weight = b.mulF(b.mulF(weight, lambda), b.f32(-1.0));
    difference = map ? b.addF(difference, weight) : weight;
    Value rowSum = b.loadConstant(
        b.f32(), b.element(b.f32(),
                           tiles.getRowSums(map ? P::D2 : P::D1, batch, head,
                                            signalHeads),
                           b.toI64(kernel.queryAt(query))));
    Value gradient = b.mulF(weight, b.subF(dP, rowSum));
    numbers.push_back(slope ? b.mulF(gradient, slope) : gradient);
  }
  numbers.push_back(difference);
  return numbers;
}

Values GradientPlain::forOthers(
    Value head, Value row, Value begin, Value end, ValueRange sums,
    function_ref<Values(Value, ArrayRef<Value>, ValueRange)> addRow) {
  return b.loop(
      b.divU(begin, kLanes), b.divU(b.add(end, kLanes - 1), kLanes), 1, sums,
      [&](Value block, ValueRange carried) -> Values {
        Value first = b.mul(block, kLanes);
        // Numbers of rows that are not asked for are made of one that is, and
        // not used.
        Value other =
            b.minS(b.maxS(b.add(first, kernel.lane), begin), b.add(end, -1));
        Values numbers = ofKeys ? differentiate(head, other, row)
                                : differentiate(head, row, other);
        return b.loop(
            b.maxS(b.sub(begin, first), b.i32(0)),
            b.minS(b.sub(end, first), b.i32(kLanes)), 1, carried,
            [&](Value j, ValueRange state) {
              Values ofRow;
              for (Value number : numbers)
                ofRow.push_back(b.shuffle(number, j));
              return addRow(b.add(first, j), ofRow, state);
            },
            /*mayUnroll=*/false);
      },
      /*mayUnroll=*/false);
}

void GradientPlain::add(MutableArrayRef<Value> sums, Value factor,
                        const Row &row, int64_t width) {
  for (auto [i, sum] : llvm::enumerate(sums)) {
    Value at = b.minS(column(static_cast<int64_t>(i)), b.i32(width - 1));
    Value number =
        b.loadConstant(b.f32(), kernel.stridePointer(b.f32(), row.base,
                                                     b.toI64(at), row.step));
    sum = b.fma(factor, number, sum);
  }
}

void GradientPlain::store(GpuGradient gradient, ArrayRef<Value> sums,
                          Value head, Value row) {
  if (!spec.getGradientType(gradient))
    return;
  const bool ofValues = gradient == GpuGradient::V;
  const Row to = rowOf(getGpuParam(gradient), head,
                       ofKeys ? kernel.keyAt(row) : kernel.queryAt(row));
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
    Value at = column(i);
    Value inside = b.compare(LLVM::ICmpPredicate::slt, at,
                             b.i32(ofValues ? spec.valueDim : spec.headDim));
    b.branch(inside, [&] {
      Value number = sums[i];
      if (!ofValues)
        number = b.mulF(number, kernel.param(P::GradientScale));
      b.store(number,
              kernel.stridePointer(b.f32(), to.base, b.toI64(at), to.step), 4);
    });
  }
}

void GradientPlain::emitKeys() {
  keyHead = b.blockId(1);
  batch = kernel.batchOfBlock();
  const AttentionKernel::Part rows = kernel.locateRows(b.blockId(0));
  Value key = b.add(rows.firstRow, kernel.warp);
  Value perKey = kernel.param(P::SignalPerKey1);
  signalHeads = b.mul(b.gridSize(1), perKey);
  Value firstHead = b.mul(keyHead, perKey);
  kernel.enterSequence(rows.sequence ? rows.sequence : batch);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, key, kernel.keys()), [&] {
    auto [begin, end] = kernel.masks->getQueries(key, 1);
    const int64_t keyTensors = spec.hasSecondKeys() ? 2 : 1,
                  ofKeySums = keyTensors * headColumns;
    Values sums = b.loop(
        firstHead, b.add(firstHead, perKey), 1,
        Values(ofKeySums + valueColumns, b.f32(0.0)),
        [&, begin = begin, end = end](Value head, ValueRange carried) {
          return forOthers(
              head, key, begin, end, carried,
              [&](Value query, ArrayRef<Value> numbers, ValueRange state) {
                Values next(state.begin(), state.end());
                MutableArrayRef<Value> all(next);
                for (int64_t map = 0; map < spec.maps; ++map)
                  add(all.slice((map % keyTensors) * headColumns, headColumns),
                      numbers[map], queryRow(map, head, query), spec.headDim);
                add(all.drop_front(ofKeySums), numbers.back(),
                    rowGradient(head, query), spec.valueDim);
                return next;
              });
        },
        /*mayUnroll=*/false);
    ArrayRef<Value> all(sums);
    store(GpuGradient::K1, all.take_front(headColumns), keyHead, key);
    if (keyTensors == 2)
      store(GpuGradient::K2, all.slice(headColumns, headColumns), keyHead, key);
    store(GpuGradient::V, all.drop_front(ofKeySums), keyHead, key);
  });
}

void GradientPlain::emitQueries() {
  Value ofNoise = b.blockId(1);
  batch = kernel.batchOfBlock();
  const AttentionKernel::Part rows = kernel.locateRows(b.blockId(0));
  Value query = b.add(rows.firstRow, kernel.warp);
  Value perNoise = spec.maps == 2 ? kernel.param(P::SignalPerNoise) : b.i32(1);
  signalHeads = b.mul(b.gridSize(1), perNoise);
  Value firstHead = b.mul(ofNoise, perNoise);
  kernel.enterSequence(rows.sequence ? rows.sequence : batch);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, query, kernel.queries()), [&] {
    VisibleRange seen = kernel.masks->getRange(query);
    Value begin = b.maxS(kernel.masks->emit(seen.begin), b.i32(0)),
          end = b.maxS(kernel.masks->emit(seen.end), b.i32(0));
    Value zero = b.f32(0.0);
    Values ofSecond = b.loop(
        firstHead, b.add(firstHead, perNoise), 1,
        Values(spec.maps == 2 ? headColumns : 0, zero),
        [&](Value head, ValueRange carried) {
          keyHead = b.divU(head, kernel.param(P::SignalPerKey1));
          Values initial(headColumns, zero);
          llvm::append_range(initial, carried);
          Values sums = forOthers(
              head, query, begin, end, initial,
              [&](Value key, ArrayRef<Value> numbers, ValueRange state) {
                Values next(state.begin(), state.end());
                MutableArrayRef<Value> all(next);
                for (int64_t map = 0; map < spec.maps; ++map)
                  add(all.slice(map * headColumns, headColumns), numbers[map],
                      keyRow(map, key), spec.headDim);
                return next;
              });
          ArrayRef<Value> all(sums);
          store(GpuGradient::Q1, all.take_front(headColumns), head, query);
          return Values(all.drop_front(headColumns));
        },
        /*mayUnroll=*/false);
    if (spec.maps == 2)
      store(GpuGradient::Q2, ofSecond, ofNoise, query);
  });
}

void mlir::diffattn::gpucode::emitPlainGradientsKernel(
    AttentionKernel &kernel) {
  GradientPlain gradients(kernel);
  if (kernel.spec.kind == GpuKernelKind::GradientKeys)
    gradients.emitKeys();
  else
    gradients.emitQueries();
}
