//===- GradientTiles.cpp - common parts of gradient kernels ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GradientTiles.h"
#include "GpuMath.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

GpuBuilder::Values
mlir::diffattn::gpucode::toValues(ArrayRef<Fragment> fragments) {
  GpuBuilder::Values values;
  for (const Fragment &fragment : fragments)
    llvm::append_range(values, fragment);
  return values;
}

RowFragments mlir::diffattn::gpucode::toFragments(ValueRange values) {
  RowFragments fragments(values.size() / 4);
  for (auto [i, value] : llvm::enumerate(values))
    fragments[i / 4][i % 4] = value;
  return fragments;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

RowProducts::RowProducts(AttentionKernel &kernel, int64_t pitch,
                         int64_t paddedWidth)
    : kernel(kernel), b(kernel.b), steps(paddedWidth / 16),
      rowReader(kernel, pitch, MatrixReader::RowsFirst),
      columnReader(kernel, pitch, MatrixReader::ColumnsFirst),
      valueReader(kernel, pitch, MatrixReader::RowsFirst) {}

RowFragments RowProducts::getZeros() const {
  Value zero = b.f32(0.0);
  return RowFragments(2 * steps, Fragment{zero, zero, zero, zero});
}

void RowProducts::multiplyPair(const Fragment &a, const Fragment &other,
                               Fragment *sums) {
  for (int64_t n = 0; n < 2; ++n)
    sums[n] = multiplyFragments(b, kernel.element, a, other[2 * n],
                                other[2 * n + 1], sums[n]);
}

RowFragments RowProducts::multiply(Value rows, Value others, int64_t count) {
  Value zero = b.f32(0.0);
  RowFragments result(count / 8, Fragment{zero, zero, zero, zero});
  for (int64_t step = 0; step < steps; ++step) {
    Fragment a = rowReader.read(rows, 0, 2 * step, /*transpose=*/false);
    for (int64_t block = 0; block < count / 16; ++block) {
      Fragment other =
          columnReader.read(others, block, 2 * step, /*transpose=*/false);
      multiplyPair(a, other, &result[2 * block]);
    }
  }
  return result;
}

void RowProducts::accumulate(ArrayRef<Fragment> a, Value others,
                             MutableArrayRef<Fragment> sums) {
  for (auto [block, ofBlock] : llvm::enumerate(a))
    for (int64_t step = 0; step < steps; ++step) {
      Fragment other =
          valueReader.read(others, block, 2 * step, /*transpose=*/true);
      multiplyPair(ofBlock, other, &sums[2 * step]);
    }
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

GradientTiles::GradientTiles(AttentionKernel &kernel, bool columnsAreQueries)
    : kernel(kernel), b(kernel.b), spec(kernel.spec),
      columnsAreQueries(columnsAreQueries), softmax(kernel) {}

Value GradientTiles::locate(Value from, bool isColumn, int64_t n, int64_t i) {
  if (isColumn)
    return b.add(b.add(from, b.mul(kernel.laneColumn, 2)), 8 * n + i % 2);
  return b.add(b.add(from, kernel.laneRow), i / 2 * 8);
}

Value GradientTiles::queryOf(const Place &place, int64_t n, int64_t i) {
  return locate(columnsAreQueries ? place.column : place.row, columnsAreQueries,
                n, i);
}

Value GradientTiles::keyOf(const Place &place, int64_t n, int64_t i) {
  return locate(columnsAreQueries ? place.row : place.column,
                !columnsAreQueries, n, i);
}

Value GradientTiles::getShift(Value logarithm) {
  GpuMath math(b);
  Value shift = emitSubtrahend(math, logarithm);
  return spec.scaledScores() ? shift : b.mulF(shift, b.f32(-kLog2E));
}

/// Adds elements of masks one by one. Places beyond the last query or key read
/// that one again, and are hidden, or a row of zeros.
void GradientTiles::addElements(MutableArrayRef<Fragment> scores,
                                const Place &place) {
  GpuMasks &masks = *kernel.masks;
  masks.beginHead(place.noiseHead, ScoreLanes::Single);
  Value lastQuery = b.add(kernel.queries(), -1),
        lastKey = b.add(kernel.keys(), -1);
  for (auto [n, fragment] : llvm::enumerate(scores))
    for (int64_t i = 0; i < 4; ++i) {
      masks.beginQuery(b.minS(queryOf(place, n, i), lastQuery));
      fragment[i] = masks.maskElements(
          fragment[i], b.minS(keyOf(place, n, i), lastKey), /*column=*/0);
    }
}

void GradientTiles::hide(MutableArrayRef<Fragment> scores, const Place &place) {
  const int64_t columns = 8 * scores.size();
  Value partial =
      columnsAreQueries
          ? kernel.isSeenInPart(place.column, columns, place.row, 16)
          : kernel.isSeenInPart(place.row, 16, place.column, columns);
  softmax.replaceIf(partial, scores, [&] {
    if (!columnsAreQueries)
      return softmax.mask(scores, {queryOf(place, 0, 0), queryOf(place, 0, 2)},
                          place.column);
    SmallVector<Fragment> masked(scores);
    Value firstQuery = queryOf(place, 0, 0);
    for (int64_t h = 0; h < 2; ++h) {
      auto [begin, end] = kernel.masks->getQueries(keyOf(place, 0, 2 * h), 1);
      // Relative to the lane's first query, so that each comparison has a
      // constant.
      Value first = b.sub(begin, firstQuery), last = b.sub(end, firstQuery);
      for (auto [n, fragment] : llvm::enumerate(masked))
        for (int64_t i = 2 * h; i < 2 * h + 2; ++i) {
          Value column = b.i32(8 * n + i % 2);
          Value seen =
              b.andI(b.compare(LLVM::ICmpPredicate::sge, column, first),
                     b.compare(LLVM::ICmpPredicate::slt, column, last));
          fragment[i] = b.select(seen, fragment[i], b.minusInfinity());
        }
    }
    return masked;
  });
}

void GradientTiles::weigh(MutableArrayRef<Fragment> scores, const Place &place,
                          ElementOf sums, RowFragments &slopes) {
  const bool scaled = spec.scaledScores();
  GpuMath math(b, b.f32(kLog2E));
  if (spec.softcap)
    slopes.assign(scores.begin(), scores.end());
  for (auto [n, fragment] : llvm::enumerate(scores))
    for (auto [i, score] : llvm::enumerate(fragment)) {
      if (!scaled)
        continue;
      score = b.mulF(score, kernel.param(GpuParam::ScoreScale));
      if (!spec.softcap)
        continue;
      Value part = math.tanh(score);
      slopes[n][i] = b.fma(part, b.mulF(part, b.f32(-1.0)), b.f32(1.0));
      score = b.mulF(part, kernel.param(GpuParam::Softcap));
    }
  if (kernel.masks->hasElements())
    addElements(scores, place);
  hide(scores, place);
  for (auto [n, fragment] : llvm::enumerate(scores))
    for (auto [i, score] : llvm::enumerate(fragment)) {
      Value sum = sums(n, i);
      score =
          scaled
              ? math.exponential(b.subF(score, sum))
              : b.exp2(b.fma(score, kernel.param(GpuParam::ScoreScale), sum));
    }
}

RowFragments GradientTiles::differentiate(ArrayRef<Fragment> weights,
                                          ArrayRef<Fragment> dP,
                                          ElementOf rowSums,
                                          ArrayRef<Fragment> slopes) {
  RowFragments result(weights.begin(), weights.end());
  for (auto [n, fragment] : llvm::enumerate(result))
    for (auto [i, number] : llvm::enumerate(fragment)) {
      number = b.mulF(number, b.subF(dP[n][i], rowSums(n, i)));
      if (!slopes.empty())
        number = b.mulF(number, slopes[n][i]);
    }
  return result;
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

static Value getHeadOf(GpuBuilder &b, Value batch, Value head, Value heads) {
  return b.toI64(b.add(b.mul(batch, heads), head));
}

Value GradientTiles::getRowGradients(Value batch, Value head, Value heads) {
  Value rows = b.mul(getHeadOf(b, batch, head, heads),
                     b.toI64(kernel.param(GpuParam::Queries)));
  return kernel.stridePointer(spec.elementType, kernel.param(GpuParam::DX),
                              rows, b.i64(spec.valueDim));
}

Value GradientTiles::getRowSums(GpuParam param, Value batch, Value head,
                                Value heads) {
  return kernel.stridePointer(b.f32(), kernel.param(param),
                              getHeadOf(b, batch, head, heads),
                              b.toI64(kernel.param(GpuParam::Queries)));
}

Value GradientTiles::getLogSums(int64_t map, Value batch, Value head) {
  using P = GpuParam;
  Value pointer = kernel.stridePointer(
      b.f32(), kernel.param(map ? P::Lse2 : P::Lse1), b.toI64(batch),
      kernel.param(map ? P::Lse2B : P::Lse1B));
  return kernel.stridePointer(b.f32(), pointer, b.toI64(head),
                              kernel.param(map ? P::Lse2H : P::Lse1H));
}

void GradientTiles::store(ArrayRef<Fragment> sums, Value factor,
                          GpuGradient gradient, Value base, Value row,
                          Value limit) {
  const Type type = spec.getGradientType(gradient);
  if (!type)
    return;
  const GpuParam tensor = getGpuParam(gradient);
  const int64_t width =
      gradient == GpuGradient::V ? spec.valueDim : spec.headDim;
  const int64_t bytes = type.getIntOrFloatBitWidth() / 8;
  for (int64_t h = 0; h < 2; ++h) {
    Value of = b.add(b.add(row, kernel.laneRow), 8 * h);
    b.branch(b.compare(LLVM::ICmpPredicate::slt, of, limit), [&] {
      Value start = kernel.stridePointer(type, base, b.toI64(of),
                                         kernel.rowStride(tensor));
      Value first = b.mul(kernel.laneColumn, 2);
      for (auto [n, fragment] : llvm::enumerate(sums)) {
        const int64_t left = width - 8 * static_cast<int64_t>(n);
        if (left <= 0)
          break;
        std::array<Value, 2> pair{fragment[2 * h], fragment[2 * h + 1]};
        if (factor)
          for (Value &number : pair)
            number = b.mulF(number, factor);
        if (!spec.elementwise) {
          // Widths and strides of pairs that lie side by side are even.
          Value both =
              type.isF32() ? b.pack(pair) : b.packPair(type, pair[0], pair[1]);
          b.store(
              both,
              b.bytes(b.element(type, start, b.toI64(first)), 8 * n * bytes),
              2 * bytes);
          continue;
        }
        for (int64_t i = 0; i < 2; ++i) {
          Value column = b.add(first, 8 * n + i);
          auto storeOne = [&] {
            b.store(
                b.round(type, pair[i]),
                kernel.stridePointer(type, start, b.toI64(column),
                                     kernel.param(getGpuStride(tensor, 3))));
          };
          if (left >= 8)
            storeOne();
          else
            b.branch(b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width)),
                     storeOne);
        }
      }
    });
  }
}
