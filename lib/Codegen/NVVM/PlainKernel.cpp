//===- PlainKernel.cpp - f32 attention by ordinary instructions -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A warp takes one query. For 32 keys at a time each lane computes the scores
// of one key, a map each, then the lanes share out the columns of V and take
// each key's probabilities by shuffle. Operands are read where they lie, with
// any strides. Without a goal for speed; right for any width up to 256.
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

namespace {
class PlainKernel {
public:
  PlainKernel(AttentionKernel &kernel, const QueryBlock &place)
      : kernel(kernel), b(kernel.b), spec(kernel.spec),
        columns(llvm::divideCeil(spec.valueDim, 32)), maps(spec.maps),
        place(place) {}
  void emit();

private:
  static constexpr int64_t kKeys = 32;
  Value product(Value query, GpuParam queryStride, Value key,
                GpuParam keyStride);
  Value score(Value product, Value key);
  Value reduce(Value x, bool max);
  Values forEachBlock(Value lower, Value upper, ValueRange initial);
  Values keyBlock(Value block, ValueRange carried);
  /// The row `row`, which lies below the limit, of K or V.
  Value keyRow(GpuParam tensor, Value head, const PageTable::Place &place);
  Value column(int64_t i) { return b.add(kernel.lane, 32 * i); }
  void finish(ValueRange values);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  int64_t columns, maps;
  const QueryBlock &place;
  Value batch, head, noiseHead, row;
  std::array<Value, 2> query, key;
  Value value, firstVisible, endVisible;
};
} // namespace

Value PlainKernel::product(Value query, GpuParam queryStride, Value key,
                           GpuParam keyStride) {
  Type f32 = b.f32();
  auto multiply = [&](Value i, Value sum) {
    Value wide = b.toI64(i);
    Value x = b.loadConstant(
        f32, kernel.stridePointer(f32, query, wide, kernel.param(queryStride)));
    Value y = b.loadConstant(
        f32, kernel.stridePointer(f32, key, wide, kernel.param(keyStride)));
    return b.fma(x, y, sum);
  };
  // Unrolled here, and no more: ptxas was seen to unroll until it spilled.
  auto sumOf = [&](int64_t begin, int64_t end, int64_t unroll, Value sum) {
    return b.loop(
        b.i32(begin), b.i32(end), unroll, sum,
        [&](Value i, ValueRange carried) -> Values {
          Value next = carried[0];
          for (int64_t u = 0; u < unroll; ++u)
            next = multiply(b.add(i, u), next);
          return {next};
        },
        /*mayUnroll=*/false)[0];
  };
  constexpr int64_t unroll = 4;
  int64_t whole = spec.headDim / unroll * unroll;
  Value sum = sumOf(0, whole, unroll, b.f32(0.0));
  return whole < spec.headDim ? sumOf(whole, spec.headDim, 1, sum) : sum;
}

Value PlainKernel::reduce(Value x, bool max) {
  for (int64_t lanes = 16; lanes; lanes /= 2) {
    Value other = b.shuffleXor(x, lanes);
    x = max ? b.maxF(x, other) : b.addF(x, other);
  }
  return x;
}

Value PlainKernel::score(Value product, Value at) {
  // The masks and the softcap of the tiled kernels, for one score in each lane.
  Value scaled = b.mulF(product, kernel.param(GpuParam::ScoreScale));
  if (spec.softcap) {
    GpuMath math(b);
    scaled = emitCapped(math, scaled, kernel.param(GpuParam::Softcap));
  }
  scaled = kernel.masks->maskElements(scaled, at, /*column=*/0);
  Value isVisible =
      b.andI(b.compare(LLVM::ICmpPredicate::sge, at, firstVisible),
             b.compare(LLVM::ICmpPredicate::slt, at, endVisible));
  return b.select(isVisible, scaled, b.minusInfinity());
}

Value PlainKernel::keyRow(GpuParam tensor, Value head,
                          const PageTable::Place &place) {
  if (place.page)
    head = kernel.stridePointer(b.f32(), head, b.toI64(place.page),
                                kernel.param(getGpuStride(tensor, 0)));
  return kernel.stridePointer(b.f32(), head, b.toI64(place.row),
                              kernel.rowStride(tensor));
}

Values PlainKernel::keyBlock(Value block, ValueRange carried) {
  using P = GpuParam;
  Type f32 = b.f32();
  Value first = b.mul(block, kKeys);
  // A lane beyond the last key reads the last key and is masked.
  Value at = b.minS(b.maxS(b.add(first, kernel.lane), b.i32(0)),
                    b.add(kernel.masks->keyLimit, -1));
  Value inBlock = b.compare(LLVM::ICmpPredicate::slt, b.add(first, kernel.lane),
                            kernel.masks->keyLimit);
  // Scores in the unit of exp2 unless a bias or a cap wants them plain.
  GpuMath math(b, spec.scaledScores() ? b.f32(kLog2E) : b.f32(1.0));
  Values next(carried.begin(), carried.end());
  std::array<Value, 2> probability, decay;
  const P queryStrides[] = {P::Q1W, P::Q2W}, keys[] = {P::K1, P::K2};
  PageTable::Place place{{}, at, {}};
  if (kernel.pages)
    place = kernel.pages->find(at);
  for (int64_t map = 0; map < maps; ++map) {
    Value dot =
        product(query[map], queryStrides[map],
                keyRow(keys[map], key[map], place), getGpuStride(keys[map], 3));
    if (place.exists)
      dot = b.select(place.exists, dot, b.f32(0.0));
    Value s = score(dot, at);
    s = b.select(inBlock, s, b.minusInfinity());
    Value oldMax = carried[2 * map], oldSum = carried[2 * map + 1];
    Value max = b.maxF(oldMax, reduce(s, /*max=*/true));
    Value none = b.compareF(LLVM::FCmpPredicate::oeq, max, b.minusInfinity());
    Value subtract = b.select(none, b.f32(0.0), max);
    Value alpha = math.exponential(b.subF(oldMax, subtract));
    alpha = b.select(none, b.f32(1.0), alpha);
    probability[map] = math.exponential(b.subF(s, subtract));
    next[2 * map] = max;
    next[2 * map + 1] = b.fma(oldSum, alpha, probability[map]);
    decay[map] = alpha;
  }
  // Every key of the block in turn, by all lanes. The block has sums of its
  // own: in one chain over all keys equal terms would be rounded alike.
  Value count = b.minS(b.sub(kernel.masks->keyLimit, first), b.i32(kKeys));
  Values sums(maps * columns, b.f32(0.0));
  sums = b.loop(
      b.i32(0), count, 1, sums, [&](Value j, ValueRange state) -> Values {
        std::array<Value, 2> p;
        for (int64_t map = 0; map < maps; ++map)
          p[map] = b.shuffle(probability[map], j);
        PageTable::Place ofKey{{}, b.add(first, j), {}};
        if (place.page) {
          ofKey.page = b.shuffle(place.page, j);
          ofKey.row = b.shuffle(place.row, j);
          ofKey.exists = b.compare(
              LLVM::ICmpPredicate::ne,
              b.shuffle(b.select(place.exists, b.i32(1), b.i32(0)), j),
              b.i32(0));
        }
        Value row = keyRow(P::V, value, ofKey);
        Values result(state.begin(), state.end());
        for (int64_t i = 0; i < columns; ++i) {
          Value at = b.minS(column(i), b.i32(spec.valueDim - 1));
          Value v =
              b.loadConstant(f32, kernel.stridePointer(f32, row, b.toI64(at),
                                                       kernel.param(P::VW)));
          if (ofKey.exists)
            v = b.select(ofKey.exists, v, b.f32(0.0));
          for (int64_t map = 0; map < maps; ++map)
            result[map * columns + i] =
                b.fma(p[map], v, state[map * columns + i]);
        }
        return result;
      });
  for (int64_t map = 0; map < maps; ++map)
    for (int64_t i = map * columns; i < (map + 1) * columns; ++i)
      next[2 * maps + i] = b.fma(carried[2 * maps + i], decay[map], sums[i]);
  return next;
}

Values PlainKernel::forEachBlock(Value lower, Value upper, ValueRange initial) {
  GpuMasks &masks = *kernel.masks;
  if (!masks.hasTiles())
    return b.loop(lower, upper, 1, initial,
                  [&](Value block, ValueRange carried) {
                    return keyBlock(block, carried);
                  });
  Values carried{masks.findSeen(lower, upper, kKeys)};
  llvm::append_range(carried, initial);
  Values final = b.loopWhile(
      carried, [&](ValueRange now) { return masks.isBefore(now[0], upper); },
      [&](ValueRange now) -> Values {
        Value block = masks.getNumber(now[0]);
        Values after = keyBlock(block, now.drop_front());
        Values next{masks.findSeen(b.add(block, 1), upper, kKeys)};
        llvm::append_range(next, after);
        return next;
      });
  return Values(ValueRange(final).drop_front());
}

void PlainKernel::finish(ValueRange values) {
  Epilogue epilogue(kernel, batch, head);
  const bool isOne = maps == 1;
  Value lambda;
  if (!isOne)
    lambda = kernel.loadLambda(batch, row, head);
  auto divide = [&](Value weight, int64_t map, Value *inverseSum = nullptr) {
    Epilogue::RowSum end;
    end.map = map;
    end.max = values[2 * map];
    end.sum = reduce(values[2 * map + 1], /*max=*/false);
    if (spec.endsSums()) {
      end.query = row;
      end.isStored = b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0));
    }
    return epilogue.divideBySum(weight, end, inverseSum);
  };
  Value one = divide(b.f32(1.0), 0);
  Value two, ofSecond;
  if (!isOne)
    two = divide(b.mulF(lambda, b.f32(-1.0)), 1,
                 spec.secondType ? &ofSecond : nullptr);
  SmallVector<Value> x;
  Value squares = b.f32(0.0);
  for (int64_t i = 0; i < columns; ++i) {
    Value sum = b.mulF(values[2 * maps + i], one);
    if (!isOne)
      sum = b.fma(values[2 * maps + columns + i], two, sum);
    x.push_back(sum);
    Value inside =
        b.compare(LLVM::ICmpPredicate::slt, column(i), b.i32(spec.valueDim));
    Value counted = b.select(inside, sum, b.f32(0.0));
    squares = b.fma(counted, counted, squares);
  }
  if (spec.savedType)
    Epilogue(kernel, batch, head, GpuParam::X)
        .storeColumns(x, /*factor=*/{}, row);
  if (spec.secondType) {
    SmallVector<Value> o2;
    for (int64_t i = 0; i < columns; ++i)
      o2.push_back(b.mulF(values[2 * maps + columns + i], ofSecond));
    Epilogue(kernel, batch, head, GpuParam::O2)
        .storeColumns(o2, /*factor=*/{}, row);
  }
  epilogue.storeColumns(x, epilogue.rowFactor(reduce(squares, /*max=*/false)),
                        row);
}

void PlainKernel::emit() {
  using P = GpuParam;
  Type f32 = b.f32();
  batch = place.batch;
  head = place.head;
  noiseHead = place.noiseHead;
  row = b.add(place.firstRow, kernel.warp);
  kernel.enterSequence(place.sequence);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, row, kernel.queries()), [&] {
    Value wide = b.toI64(row);
    query[0] = kernel.stridePointer(f32, kernel.headBase(P::Q1, batch, head),
                                    wide, kernel.param(P::Q1T));
    if (maps == 2)
      query[1] =
          kernel.stridePointer(f32, kernel.headBase(P::Q2, batch, noiseHead),
                               wide, kernel.param(P::Q2T));
    key[0] = kernel.headBase(P::K1, batch,
                             b.divU(head, kernel.param(P::SignalPerKey1)));
    if (maps == 2)
      key[1] = kernel.headBase(
          P::K2, batch, b.divU(noiseHead, kernel.param(P::NoisePerKey2)));
    value = kernel.headBase(P::V, batch,
                            b.divU(head, kernel.param(P::SignalPerValue)));
    kernel.masks->beginHead(noiseHead, ScoreLanes::Single);
    kernel.masks->beginQuery(row);
    VisibleRange visible = kernel.masks->getRange(row);
    firstVisible = b.maxS(kernel.masks->emit(visible.begin), b.i32(0));
    endVisible = b.maxS(kernel.masks->emit(visible.end), b.i32(0));
    if (kernel.masks->hasTiles()) {
      kernel.masks->beginBlock(row, /*count=*/1);
      std::tie(firstVisible, endVisible) =
          kernel.masks->narrow(firstVisible, endVisible, /*threads=*/32);
    }
    Values initial;
    for (int64_t map = 0; map < maps; ++map)
      initial.append({b.minusInfinity(), b.f32(0.0)});
    initial.append(maps * columns, b.f32(0.0));
    Value lower = b.divU(firstVisible, kKeys);
    Value upper = b.divU(b.add(endVisible, kKeys - 1), kKeys);
    finish(forEachBlock(lower, upper, initial));
  });
}

void mlir::diffattn::gpucode::emitPlainKernel(AttentionKernel &kernel) {
  kernel.forQueries(
      [&](const QueryBlock &place) { PlainKernel(kernel, place).emit(); });
}
