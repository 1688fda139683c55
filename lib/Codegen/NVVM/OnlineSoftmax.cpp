//===- OnlineSoftmax.cpp - from scores to probabilities -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

OnlineSoftmax::OnlineSoftmax(AttentionKernel &kernel)
    : kernel(kernel), b(kernel.b), laneRows(kernel.spec.getLaneRows()),
      numbers(2 * laneRows) {}

GpuBuilder::Values OnlineSoftmax::flatten(ArrayRef<Fragment> fragments) const {
  GpuBuilder::Values values;
  for (const Fragment &fragment : fragments)
    values.append(fragment.begin(), fragment.begin() + numbers);
  return values;
}

void OnlineSoftmax::unflatten(ValueRange values,
                              MutableArrayRef<Fragment> fragments) const {
  for (auto [i, value] : llvm::enumerate(values))
    fragments[i / numbers][i % numbers] = value;
}

/// Column within the tile of register `i` of the scores' `n`-th 8 keys, before
/// the lane's part.
static int64_t scoreColumn(int64_t n, int64_t i) { return 8 * n + (i & 1); }

void OnlineSoftmax::transform(MutableArrayRef<Fragment> scores, Value noiseHead,
                              std::array<Value, 2> rows, Value key) {
  const GpuKernelSpec &spec = kernel.spec;
  if (spec.scaledScores()) {
    GpuMath math(b);
    Value scale = kernel.param(GpuParam::ScoreScale);
    for (Fragment &fragment : scores)
      for (Value &score : MutableArrayRef(fragment).take_front(numbers)) {
        if (!spec.softcap) {
          score = b.mulF(score, scale);
          continue;
        }
        score = emitCapped(math, b.mulF(score, scale),
                           kernel.param(GpuParam::Softcap));
      }
  }
  if (!kernel.masks->hasElements())
    return;
  auto add = [&](ScoreLanes lanes) {
    return flatten(maskElements(scores, noiseHead, rows, key, lanes));
  };
  auto areAligned = [&] {
    Value flag = b.andI(kernel.param(GpuParam::Flags), GpuFlagBiasPairs);
    return b.compare(LLVM::ICmpPredicate::ne, flag, b.i32(0));
  };
  unflatten(kernel.masks->mayLoadPairs()
                ? b.choose(
                      areAligned(),
                      [&] { return add(ScoreLanes::AlignedPairs); },
                      [&] { return add(ScoreLanes::Pairs); })
                : add(ScoreLanes::Pairs),
            scores);
}

SmallVector<Fragment> OnlineSoftmax::maskElements(ArrayRef<Fragment> scores,
                                                  Value noiseHead,
                                                  std::array<Value, 2> rows,
                                                  Value key, ScoreLanes lanes) {
  GpuMasks &masks = *kernel.masks;
  masks.beginHead(noiseHead, lanes);
  Value firstKey = b.add(key, b.mul(kernel.laneColumn, 2));
  SmallVector<Fragment> masked(scores);
  for (int64_t h = 0; h < laneRows; ++h) {
    masks.beginQuery(rows[h]);
    for (auto [n, fragment] : llvm::enumerate(masked))
      for (int64_t i = 2 * h; i < 2 * h + 2; ++i)
        fragment[i] =
            masks.maskElements(fragment[i], firstKey, scoreColumn(n, i));
  }
  return masked;
}

SmallVector<Fragment> OnlineSoftmax::maskPartialTile(ArrayRef<Fragment> scores,
                                                     std::array<Value, 2> rows,
                                                     Value key) {
  GpuMasks &masks = *kernel.masks;
  masks.beginPartialTile(rows, key, 8 * scores.size());
  SmallVector<Fragment> masked(scores);
  // Both queries of a key in turn: its number is needed no longer then.
  for (auto [n, fragment] : llvm::enumerate(masked))
    for (int64_t column = 0; column < 2; ++column)
      for (int64_t h = 0; h < laneRows; ++h) {
        Value &score = fragment[2 * h + column];
        score = masks.maskInTile(score, h, 8 * n + column);
      }
  return masked;
}

void OnlineSoftmax::replaceIf(Value condition, MutableArrayRef<Fragment> scores,
                              function_ref<SmallVector<Fragment>()> masked) {
  unflatten(b.branch(
                condition, [&] { return flatten(masked()); }, flatten(scores)),
            scores);
}

SmallVector<Fragment> OnlineSoftmax::mask(ArrayRef<Fragment> scores,
                                          std::array<Value, 2> rows,
                                          Value key) {
  SmallVector<Fragment> masked(scores);
  Value firstKey = b.add(key, b.mul(kernel.laneColumn, 2));
  for (int64_t h = 0; h < laneRows; ++h) {
    VisibleRange visible = kernel.masks->getRange(rows[h]);
    // Relative to the lane's first key, so that each comparison has a constant.
    Value last = b.sub(kernel.masks->emit(visible.end, -1), firstKey);
    Value first = b.sub(kernel.masks->emit(visible.begin), firstKey);
    for (auto [n, fragment] : llvm::enumerate(masked))
      for (int64_t i = 2 * h; i < 2 * h + 2; ++i) {
        Value column = b.i32(scoreColumn(n, i));
        Value isVisible =
            b.andI(b.compare(LLVM::ICmpPredicate::sle, column, last),
                   b.compare(LLVM::ICmpPredicate::sge, column, first));
        fragment[i] = b.select(isVisible, fragment[i], b.minusInfinity());
      }
  }
  return masked;
}

GpuBuilder::Values OnlineSoftmax::rescale(ArrayRef<Value> sums,
                                          ArrayRef<Step> steps) {
  Value needed = steps.front().rescale;
  for (const Step &step : steps.drop_front())
    needed = b.orI(needed, step.rescale);
  // A branch that a warp takes as one; it also keeps loads of V behind the
  // softmax, which spares registers.
  return b.branch(
      b.voteAny(needed),
      [&] {
        GpuBuilder::Values products;
        size_t perTile = sums.size() / steps.size();
        for (auto [i, sum] : llvm::enumerate(sums))
          products.push_back(
              b.mulF(sum, steps[i / perTile].alpha[i % numbers / 2]));
        return products;
      },
      sums);
}

Value OnlineSoftmax::reduceQuad(Value x) {
  x = b.addF(x, b.shuffleXor(x, 1));
  return b.addF(x, b.shuffleXor(x, 2));
}

OnlineSoftmax::Step OnlineSoftmax::step(ArrayRef<Fragment> scores,
                                        const RowState &state) {
  Step result = exponentiate(scores, state);
  result.probabilities = pack(result.powers);
  return result;
}

OnlineSoftmax::Step OnlineSoftmax::exponentiate(ArrayRef<Fragment> scores,
                                                const RowState &state) {
  Step result;
  bool scaled = kernel.spec.scaledScores();
  Value factor = scaled ? b.f32(kLog2E) : kernel.param(GpuParam::ScoreScale);
  GpuMath math(b, factor);
  std::array<Value, 2> shift, grew;
  for (int64_t h = 0; h < laneRows; ++h) {
    Value max = scores[0][2 * h];
    for (auto [n, fragment] : llvm::enumerate(scores))
      for (int64_t i = 2 * h; i < 2 * h + 2; ++i)
        if (n != 0 || i != 2 * h)
          max = b.maxF(max, fragment[i]);
    max = b.maxF(max, b.shuffleXor(max, 1));
    max = b.maxF(max, b.shuffleXor(max, 2));
    // Powers of up to 2^8 lose nothing, and most tiles then need no rescale.
    // The first maximum replaces minus infinity, which no margin changes.
    Value bound = b.addF(state.max[h], kernel.param(GpuParam::RescaleMargin));
    grew[h] = b.compareF(LLVM::FCmpPredicate::ogt, max, bound);
    result.state.max[h] = b.select(grew[h], max, state.max[h]);
    // The difference first: a product and a sum would not give exactly 1 for
    // equal maxima.
    Value decay = math.exponential(b.subF(state.max[h], result.state.max[h]));
    result.alpha[h] = b.select(grew[h], decay, b.f32(1.0));
    Value subtract = emitSubtrahend(math, result.state.max[h]);
    // A bias may be the lowest number there is: subtract before the factor
    // makes it overflow.
    shift[h] =
        scaled ? subtract : b.mulF(subtract, b.mulF(factor, b.f32(-1.0)));
  }
  result.rescale = laneRows == 2 ? b.orI(grew[0], grew[1]) : grew[0];

  for (const Fragment &fragment : scores) {
    Fragment power;
    for (int64_t i = 0; i < numbers; ++i) {
      // One instruction less where the scale is part of the factor.
      power[i] = scaled ? math.exponential(b.subF(fragment[i], shift[i / 2]))
                        : b.exp2(b.fma(fragment[i], factor, shift[i / 2]));
    }
    result.powers.push_back(power);
  }
  for (int64_t h = 0; h < laneRows; ++h) {
    Value sum = b.mulF(state.sum[h], result.alpha[h]);
    for (const Fragment &power : result.powers)
      sum = b.addF(b.addF(sum, power[2 * h]), power[2 * h + 1]);
    result.state.sum[h] = sum;
  }
  return result;
}

SmallVector<Fragment> OnlineSoftmax::pack(ArrayRef<Fragment> powers) {
  SmallVector<Fragment> probabilities;
  // A result of the first product is, as it lies, an operand of the second.
  for (size_t n = 0; n < powers.size(); n += 2) {
    Fragment operand;
    for (int64_t i = 0; i < 4; ++i) {
      if (i % 2 >= laneRows) {
        operand[i] = b.i32(0);
        continue;
      }
      const Fragment &power = powers[n + i / 2];
      operand[i] = b.packPair(kernel.element, power[2 * (i % 2)],
                              power[2 * (i % 2) + 1]);
    }
    probabilities.push_back(operand);
  }
  return probabilities;
}
