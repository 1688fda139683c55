//===- GradientRows.cpp - gradients from the output back to X -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The part of the gradients that needs a row of the output and no key: dX,
// behind gate and norm, the gate's own gradient, and the products of dX with X
// and O2, which D1 and D2 are made of. A warp takes kGpuRowsOfPart rows, one
// after the other, whose columns its lanes share out. What many rows have in
// common, a weight of the norm or a lambda, it adds up in their order and
// leaves as a part, and a second launch adds the parts in theirs: nothing is
// added where two threads may come in either order.
//
// D1 and D2 are made of dX as it is rounded, since that is what the products
// with values and maps read: so the rows of A * (dP - D) sum to 0 as they
// should.
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

#include "llvm/Support/MathExtras.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

/// The sum over the warp, in every lane, in an order that is always the same.
static Value sumOfWarp(GpuBuilder &b, Value x) {
  for (int64_t lanes = 16; lanes; lanes /= 2)
    x = b.addF(x, b.shuffleXor(x, lanes));
  return x;
}

static Value isFirst(GpuBuilder &b, Value number) {
  return b.compare(LLVM::ICmpPredicate::eq, number, b.i32(0));
}

namespace {
class GradientRowsKernel {
public:
  explicit GradientRowsKernel(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b), spec(kernel.spec), width(spec.valueDim),
        atOnce(spec.elementwise ? 1 : 2),
        steps(llvm::divideCeil(width, 32 * atOnce)) {}
  void emit();

private:
  using P = GpuParam;
  /// Numbers of a row that a lane has: `atOnce` neighbours of each step.
  int64_t numbers() const { return atOnce * steps; }
  /// The first column of a step, and whether it lies within the width, null if
  /// every lane's does.
  struct Column {
    Value number, inside;
  };
  Column column(int64_t step);
  /// This lane's numbers of a row that begins at `base`, whose neighbours lie
  /// side by side and are aligned in pairs without `columnStride`; 0 beyond the
  /// width.
  Values load(Type type, Value base, Value columnStride);
  void store(ArrayRef<Value> row, Type type, Value base, Value columnStride);
  /// The row `row` of (batch, head) of `tensor`, and its stride, null where
  /// neighbours lie side by side.
  Value rowOf(P tensor, Value row) {
    return kernel.stridePointer(typeOf(tensor),
                                kernel.headBase(tensor, batch, head),
                                b.toI64(row), kernel.rowStride(tensor));
  }
  Type typeOf(P tensor) const;
  Values loadRow(P tensor, Value row) {
    return load(typeOf(tensor), rowOf(tensor, row),
                kernel.columnStride(tensor));
  }
  /// The number of `row` in contiguous rows of all heads, i64.
  Value numberOf(Value row) {
    return b.add(b.mul(headNumber, b.toI64(kernel.param(P::Queries))),
                 b.toI64(row));
  }
  Value logSum(P lse, Value head, Value row);
  /// dX, the gate's gradient, D1 and D2 of a row that sees keys, then `sums`
  /// with its terms added.
  Values finish(Value row, ValueRange sums);
  /// Computes and stores a row; returns `sums` with its terms added.
  Values takeRow(Value row, ValueRange sums);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const int64_t width, atOnce, steps;
  Value batch, head;
  /// The head's number among those of all batches, i64.
  Value headNumber;
};

/// Sums of parts, and of rows.
class SumsKernel {
public:
  explicit SumsKernel(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b), spec(kernel.spec) {}
  /// A block takes 32 columns, of which each warp adds every 32nd part.
  void emitWeights();
  /// A block takes a lambda, and adds the parts of the heads that have it.
  void emitLambdas();
  /// A thread takes the lambda of a query and head.
  void emitLambdasOfQueries();

private:
  using P = GpuParam;
  static constexpr int64_t kWarps = GpuSharedLayout::kSumWarps,
                           kThreads = 32 * kWarps;
  /// The gradient of the lambda at address `lambda`: -sum, times the slope of
  /// the activation if there is one.
  Value gradientOf(Value sum, Value lambda);
  Value at(Value base, Value index) { return b.element(b.f32(), base, index); }

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
};
} // namespace

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

Type GradientRowsKernel::typeOf(P tensor) const {
  switch (tensor) {
  case P::X:
    return spec.savedType;
  case P::O2:
    return spec.secondType;
  case P::DOut:
    return spec.gradientType;
  case P::Gate:
    return spec.gateType;
  default:
    return spec.gateGradientType;
  }
}

GradientRowsKernel::Column GradientRowsKernel::column(int64_t step) {
  Column column;
  column.number = b.add(b.mul(kernel.lane, atOnce), 32 * atOnce * step);
  if (32 * atOnce * (step + 1) > width)
    column.inside =
        b.compare(LLVM::ICmpPredicate::slt, column.number, b.i32(width));
  return column;
}

Values GradientRowsKernel::load(Type type, Value base, Value columnStride) {
  Values row;
  for (int64_t step = 0; step < steps; ++step) {
    const Column at = column(step);
    Value number = at.number;
    if (at.inside)
      number = b.minS(number, b.i32(width - atOnce));
    number = b.toI64(number);
    Values loaded;
    if (!columnStride)
      llvm::append_range(loaded,
                         b.loadPairAsF32(type, b.element(type, base, number)));
    else
      for (int64_t i = 0; i < atOnce; ++i)
        loaded.push_back(b.loadAsF32(
            type, kernel.stridePointer(type, base, b.add(number, b.i64(i)),
                                       columnStride)));
    for (Value x : loaded)
      row.push_back(at.inside ? b.select(at.inside, x, b.f32(0.0)) : x);
  }
  return row;
}

void GradientRowsKernel::store(ArrayRef<Value> row, Type type, Value base,
                               Value columnStride) {
  for (int64_t step = 0; step < steps; ++step) {
    const Column at = column(step);
    Values rounded;
    for (Value x : row.slice(atOnce * step, atOnce))
      rounded.push_back(b.round(type, x));
    auto write = [&] {
      Value number = b.toI64(at.number);
      if (columnStride)
        b.store(rounded.front(),
                kernel.stridePointer(type, base, number, columnStride));
      else if (atOnce == 1)
        b.store(rounded.front(), b.element(type, base, number));
      else
        b.store(b.pack(rounded), b.element(type, base, number),
                atOnce * type.getIntOrFloatBitWidth() / 8);
    };
    if (at.inside)
      b.branch(at.inside, write);
    else
      write();
  }
}

Value GradientRowsKernel::logSum(P lse, Value head, Value row) {
  Value pointer = kernel.param(lse);
  const Value places[] = {batch, head, row};
  for (auto [axis, place] : llvm::enumerate(places))
    pointer = kernel.stridePointer(b.f32(), pointer, b.toI64(place),
                                   kernel.param(getGpuStride(lse, axis)));
  return b.loadConstant(b.f32(), pointer);
}

Values GradientRowsKernel::finish(Value row, ValueRange sums) {
  const int64_t count = numbers();
  GpuMath math(b);
  Value zero = b.f32(0.0);
  Values x = loadRow(P::X, row), ofOut = loadRow(P::DOut, row), gates, weights;
  if (spec.gateType)
    gates = loadRow(P::Gate, row);
  if (spec.normWeightType)
    weights = load(spec.normWeightType, kernel.param(P::NormWeight),
                   kernel.param(P::NormWeightW));

  Value squares = zero;
  for (Value number : x)
    squares = b.fma(number, number, squares);
  squares = sumOfWarp(b, squares);
  // 1/0 is 0. A row of zeros has a gradient wherever there is an epsilon.
  auto invertUnlessZero = [&](Value inverse) {
    Value isInfinite =
        math.isEqual(inverse, b.f32(std::numeric_limits<double>::infinity()));
    return b.select(isInfinite, zero, inverse);
  };
  Value hasNorm = kernel.isSet(GpuFlagNorm);
  Value factor = b.select(
      hasNorm, invertUnlessZero(kernel.getInverseRms(squares)), b.f32(1.0));
  Value outScale = kernel.param(P::OutScale);
  Values next(sums.begin(), sums.end()), normed(count), ofNormed(count), ofGate;
  Value along = zero;
  for (int64_t i = 0; i < count; ++i) {
    normed[i] = b.mulF(x[i], factor);
    Value scaled = b.mulF(ofOut[i], outScale), whole = scaled;
    if (spec.gateType)
      scaled = b.mulF(scaled, emitSigmoid(math, gates[i]));
    if (spec.weightGradientType)
      next[i] = b.fma(scaled, normed[i], next[i]);
    ofNormed[i] = scaled;
    if (spec.normWeightType) {
      ofNormed[i] = b.mulF(scaled, weights[i]);
      whole = b.mulF(whole, weights[i]);
    }
    if (spec.gateGradientType)
      ofGate.push_back(
          b.mulF(b.mulF(whole, normed[i]), emitSigmoidSlope(math, gates[i])));
    along = b.fma(ofNormed[i], normed[i], along);
  }
  // The part of the gradient that lies along the row itself, which the norm
  // takes away.
  Value part =
      b.mulF(sumOfWarp(b, along), b.f32(1.0 / static_cast<double>(width)));
  part = b.select(hasNorm, part, zero);
  Value root = invertUnlessZero(b.reciprocalSqrt(
      b.mulF(squares, b.f32(1.0 / static_cast<double>(width)))));
  part = b.mulF(part, b.select(kernel.isSet(GpuFlagEpsOutside), root, factor));

  Values o2;
  if (spec.maps == 2)
    o2 = loadRow(P::O2, row);
  Value first = zero, second = zero;
  Values results;
  for (int64_t i = 0; i < count; ++i) {
    Value exact = b.subF(b.mulF(ofNormed[i], factor), b.mulF(normed[i], part));
    Value rounded = b.widen(b.round(spec.elementType, exact));
    results.push_back(rounded);
    first = b.fma(rounded, x[i], first);
    if (spec.maps == 2)
      second = b.fma(rounded, o2[i], second);
  }
  first = sumOfWarp(b, first);
  llvm::append_range(results, ofGate);
  if (spec.maps == 2) {
    second = sumOfWarp(b, second);
    first = b.fma(kernel.loadLambda(batch, row, head), second, first);
    if (spec.sumsLambda)
      next.back() = b.addF(next.back(), second);
    results.push_back(second);
  }
  results.push_back(first);
  llvm::append_range(results, next);
  return results;
}

Values GradientRowsKernel::takeRow(Value row, ValueRange sums) {
  // A row without keys has no gradient, whatever is in it; one that sees none
  // in one of its maps alone has those of the other.
  auto isSeen = [&](P lse, Value head) {
    return b.compareF(LLVM::FCmpPredicate::une, logSum(lse, head, row),
                      b.minusInfinity());
  };
  Value seen = isSeen(P::Lse1, head);
  if (spec.maps == 2)
    seen = b.orI(seen, isSeen(P::Lse2, kernel.noiseHeadOf(head)));
  const int64_t count = numbers(), ofGate = spec.gateGradientType ? count : 0;
  Values none(count + ofGate + spec.maps, b.f32(0.0));
  llvm::append_range(none, sums);
  Values results = b.branch(seen, [&] { return finish(row, sums); }, none);

  ArrayRef<Value> rest = results;
  Value number = numberOf(row);
  store(rest.take_front(count), spec.elementType,
        b.element(spec.elementType, kernel.param(P::DX),
                  b.mul(number, b.i64(width))),
        /*columnStride=*/{});
  rest = rest.drop_front(count);
  if (ofGate)
    store(rest.take_front(count), spec.gateGradientType, rowOf(P::DGate, row),
          kernel.columnStride(P::DGate));
  rest = rest.drop_front(ofGate);
  b.branch(isFirst(b, kernel.lane), [&] {
    if (spec.maps == 2)
      b.store(rest.front(), b.element(b.f32(), kernel.param(P::D2), number), 4);
    b.store(rest[spec.maps - 1],
            b.element(b.f32(), kernel.param(P::D1), number), 4);
  });
  rest = rest.drop_front(spec.maps);
  return Values(rest);
}

void GradientRowsKernel::emit() {
  head = b.blockId(1);
  batch = b.blockId(2);
  headNumber =
      b.add(b.mul(b.toI64(batch), b.toI64(b.gridSize(1))), b.toI64(head));
  Value part = b.add(b.mul(b.blockId(0), spec.getThreads() / 32), kernel.warp);
  Value begin = b.mul(part, kGpuRowsOfPart);
  Value end = b.minS(b.add(begin, kGpuRowsOfPart), kernel.param(P::Queries));
  const int64_t ofWeights = spec.weightGradientType ? numbers() : 0;
  Values sums(ofWeights + (spec.sumsLambda ? 1 : 0), b.f32(0.0));
  sums = b.loop(
      begin, end, 1, sums,
      [&](Value row, ValueRange carried) { return takeRow(row, carried); },
      /*mayUnroll=*/false);
  if (sums.empty())
    return;
  // Warps behind the last row have no part.
  b.branch(b.compare(LLVM::ICmpPredicate::slt, begin, end), [&] {
    Value number = b.add(b.mul(headNumber, b.toI64(kernel.param(P::Parts))),
                         b.toI64(part));
    if (ofWeights)
      store(ArrayRef<Value>(sums).take_front(ofWeights), b.f32(),
            b.element(b.f32(), kernel.param(P::WeightParts),
                      b.mul(number, b.i64(width))),
            /*columnStride=*/{});
    if (spec.sumsLambda)
      b.branch(isFirst(b, kernel.lane), [&] {
        b.store(sums.back(),
                b.element(b.f32(), kernel.param(P::LambdaParts), number), 4);
      });
  });
}

//===----------------------------------------------------------------------===//
// Sums
//===----------------------------------------------------------------------===//

void SumsKernel::emitWeights() {
  const int64_t width = spec.valueDim;
  Value column = b.add(b.mul(b.blockId(0), 32), kernel.lane);
  Value inside = b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width));
  Value ofLane = at(kernel.param(P::WeightParts),
                    b.toI64(b.minS(column, b.i32(width - 1))));
  Value parts = b.mul(kernel.param(P::AllHeads), kernel.param(P::Parts));
  Value sum = b.loop(
      kernel.warp, parts, kWarps, b.f32(0.0),
      [&](Value part, ValueRange carried) -> Values {
        Value place = b.mul(b.toI64(part), b.i64(width));
        return {b.addF(carried[0], b.loadConstant(b.f32(), at(ofLane, place)))};
      })[0];
  b.store(sum, at(kernel.shared, kernel.thread), 4);
  b.barrier();
  b.branch(b.andI(isFirst(b, kernel.warp), inside), [&] {
    Value all = sum;
    for (int64_t warp = 1; warp < kWarps; ++warp)
      all = b.addF(
          all,
          b.load(b.f32(), at(kernel.shared, b.add(kernel.lane, 32 * warp)), 4));
    b.store(b.round(spec.resultType, all),
            kernel.stridePointer(spec.resultType, kernel.param(P::DNormWeight),
                                 b.toI64(column),
                                 kernel.param(P::DNormWeightW)));
  });
}

Value SumsKernel::gradientOf(Value sum, Value lambda) {
  GpuMath math(b);
  Value minus = b.mulF(sum, b.f32(-1.0));
  Value slope = emitSigmoidSlope(math, b.loadConstant(b.f32(), lambda));
  return b.select(kernel.isSet(GpuFlagLambdaSigmoid), b.mulF(minus, slope),
                  minus);
}

void SumsKernel::emitLambdas() {
  Value lambda = b.blockId(0), sharing = kernel.param(P::SignalPerLambda);
  Value parts = b.mul(sharing, kernel.param(P::Parts));
  // Heads that have a lambda follow one another; so do those of a batch.
  Value groups = b.divU(kernel.param(P::AllHeads), sharing);
  Value sum = b.loopWhile(
      {lambda, b.f32(0.0)},
      [&](ValueRange now) {
        return b.compare(LLVM::ICmpPredicate::slt, now[0], groups);
      },
      [&](ValueRange now) -> Values {
        Value ofGroup = at(kernel.param(P::LambdaParts),
                           b.mul(b.toI64(now[0]), b.toI64(parts)));
        Value added = b.loop(kernel.thread, parts, kThreads, now[1],
                             [&](Value part, ValueRange carried) -> Values {
                               Value x = b.loadConstant(
                                   b.f32(), at(ofGroup, b.toI64(part)));
                               return {b.addF(carried[0], x)};
                             })[0];
        return {b.add(now[0], b.gridSize(0)), added};
      })[1];
  sum = sumOfWarp(b, sum);
  b.branch(isFirst(b, kernel.lane),
           [&] { b.store(sum, at(kernel.shared, kernel.warp), 4); });
  b.barrier();
  b.branch(isFirst(b, kernel.warp), [&] {
    Value all =
        sumOfWarp(b, b.load(b.f32(), at(kernel.shared, kernel.lane), 4));
    b.branch(isFirst(b, kernel.lane), [&] {
      Value wide = b.toI64(lambda);
      Value given = kernel.stridePointer(b.f32(), kernel.param(P::Lambda), wide,
                                         kernel.param(P::LambdaH));
      b.store(gradientOf(all, given),
              kernel.stridePointer(b.f32(), kernel.param(P::DLambda), wide,
                                   kernel.param(P::DLambdaH)),
              4);
    });
  });
}

void SumsKernel::emitLambdasOfQueries() {
  Value queries = kernel.param(P::Queries), lambda = b.blockId(1),
        batch = b.blockId(2), sharing = kernel.param(P::SignalPerLambda);
  Value query = b.add(b.mul(b.blockId(0), spec.getThreads()), kernel.thread);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, query, queries), [&] {
    Value firstHead =
        b.mul(b.add(b.mul(batch, b.gridSize(1)), lambda), sharing);
    Value first =
        at(kernel.param(P::D2),
           b.add(b.mul(b.toI64(firstHead), b.toI64(queries)), b.toI64(query)));
    Value sum =
        b.loop(b.i32(0), sharing, 1, b.f32(0.0),
               [&](Value head, ValueRange carried) -> Values {
                 Value place = b.mul(b.toI64(head), b.toI64(queries));
                 return {b.addF(carried[0],
                                b.loadConstant(b.f32(), at(first, place)))};
               })[0];
    auto pointerOf = [&](P tensor) {
      Value pointer = kernel.param(tensor);
      const Value places[] = {batch, query, lambda};
      for (auto [axis, place] : llvm::enumerate(places))
        pointer =
            kernel.stridePointer(b.f32(), pointer, b.toI64(place),
                                 kernel.param(getGpuStride(tensor, axis)));
      return pointer;
    };
    b.store(gradientOf(sum, pointerOf(P::Lambda)), pointerOf(P::DLambda), 4);
  });
}

void mlir::diffattn::gpucode::emitGradientRowsKernel(AttentionKernel &kernel) {
  switch (kernel.spec.kind) {
  case GpuKernelKind::WeightSums:
    return SumsKernel(kernel).emitWeights();
  case GpuKernelKind::LambdaSums:
    if (kernel.spec.sumsLambdaOfQueries)
      return SumsKernel(kernel).emitLambdasOfQueries();
    return SumsKernel(kernel).emitLambdas();
  default:
    return GradientRowsKernel(kernel).emit();
  }
}
