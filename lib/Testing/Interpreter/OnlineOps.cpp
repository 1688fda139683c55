//===- OnlineOps.cpp - attention in steps over keys -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The formulas of the ops' descriptions in f64; each result is rounded once.
//
//===----------------------------------------------------------------------===//
#include "DiffAttnOps.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;
namespace diffattn = mlir::diffattn;
using diffattn::reference::View;

static constexpr double kInf = std::numeric_limits<double>::infinity();

namespace {
/// An op by its operands' registers; -1: absent.
struct States : Details {
  Operation *op = nullptr;
  SmallVector<int32_t> operands, inits, results;
  /// Rounding of each result.
  SmallVector<FloatKind> kinds;
};

/// Arrays of results with the elements of the inits.
struct Updated {
  SmallVector<Array> arrays;

  bool begin(Machine &m, const Inst &inst) {
    for (int32_t number : inst.as<States>().inits)
      arrays.push_back(m.makeWritable(inst, m.tensors[number]));
    return llvm::all_of(arrays, [](const Array &array) { return bool(array); });
  }
  void end(Machine &m, const Inst &inst) {
    const auto &details = inst.as<States>();
    for (auto [number, kind, array] :
         llvm::zip_equal(details.results, details.kinds, arrays)) {
      Slot *slots = array.begin();
      for (int64_t i = 0; i < array.getNumElements(); ++i)
        slots[i].f = roundTo(kind, slots[i].f, m.random);
      m.tensors[number] = std::move(array);
    }
  }
};

/// One step: scores of the visible keys of a range join the state of a row.
struct Step {
  diffattn::reference::AttentionArguments arguments = {};
  /// The keys of the step.
  int64_t firstKey = 0, endKey = 0;

  void run(int map, int64_t b, int64_t head, int64_t i, double &max,
           double &sum, Slot *acc, int64_t valueHead);
};
} // namespace

void Step::run(int map, int64_t b, int64_t head, int64_t i, double &max,
               double &sum, Slot *acc, int64_t valueHead) {
  const View &v = arguments.v;
  const std::vector<double> scores =
      mapRow(arguments, map, b, head, i, firstKey, endKey).logits;
  double newMax = max;
  // A NaN stays the maximum.
  for (double score : scores)
    if (!(score <= newMax) && !std::isnan(newMax))
      newMax = score;
  if (newMax == -kInf)
    return;
  const double before = max == -kInf ? 0.0 : std::exp(max - newMax);
  sum *= before;
  for (int64_t c = 0; c < v.sizes[3]; ++c)
    acc[c].f *= before;
  for (int64_t j = firstKey; j < endKey; ++j) {
    if (scores[j] == -kInf)
      continue;
    const double weight = std::exp(scores[j] - newMax);
    sum += weight;
    for (int64_t c = 0; c < v.sizes[3]; ++c)
      acc[c].f += weight * v.at({b, valueHead, j, c});
  }
  max = newMax;
}

/// Six states, or the three of one map, that have seen no key.
static void clearStates(MutableArrayRef<Array> arrays) {
  for (auto [i, array] : llvm::enumerate(arrays))
    std::fill_n(array.begin(), array.getNumElements(),
                Slot{.f = i % 3 == 0 ? -kInf : 0.0});
}

static bool runOnline(Machine &m, const Inst &inst) {
  const auto &details = inst.as<States>();
  auto op = cast<diffattn::OnlineAttentionOp>(details.op);
  // q1, k1, q2, k2, v and what masks read; k_offset is a scalar.
  SmallVector<Array> given;
  for (int32_t number : details.operands)
    given.push_back(arrayOf(m, number));
  Step step;
  auto &a = step.arguments;
  a.q1 = viewOf(given[0], op.getQLayout());
  a.k1 = viewOf(given[1], op.getKLayout());
  a.q2 = viewOf(given[2], op.getQLayout());
  a.k2 = viewOf(given[3], op.getKLayout());
  a.v = viewOf(given[4], op.getVLayout());
  a.scale = op.getScale().convertToFloat();
  if (auto softcap = op.getSoftcap())
    a.softcap = softcap->convertToFloat();
  MaskViews masks;
  masks.read(a, [&](diffattn::MaskOperand which) {
    return given[5 + static_cast<size_t>(which)];
  });
  readMaskAttributes(a, op);
  if (inst.a >= 0)
    a.keyOffset = m.scalars[inst.a].i;
  const int64_t batch = a.q1.sizes[0], hs = a.q1.sizes[1], tq = a.q1.sizes[2],
                hv = a.v.sizes[1], dv = a.v.sizes[3];
  const bool hasSecond = op.hasSecondMap();
  const int64_t hn = hasSecond ? a.q2.sizes[1] : hs;
  const __int128 steps =
      __int128(batch) * hs * tq * a.k1.sizes[2] * 2 * (a.q1.sizes[3] + dv);
  Updated to;
  if (!m.count(static_cast<int64_t>(std::min<__int128>(steps, INT64_MAX)),
               inst.op) ||
      !to.begin(m, inst))
    return false;
  const int64_t keys = a.k1.sizes[2];
  const std::optional<int64_t> splitSize = op.getKvSplitSize();
  const int64_t ranges = splitSize ? to.arrays[0].getShape()[0] : 1;
  const int64_t heads2 =
      hasSecond ? to.arrays[5].getShape()[splitSize ? 2 : 1] : 0;
  if (splitSize)
    clearStates(to.arrays);
  // A batch of each range in turn.
  for (int64_t place = 0; place < ranges * batch; ++place)
    for (int64_t i = 0; i < tq; ++i) {
      const int64_t range = place / batch, b = place % batch;
      step.firstKey = splitSize ? std::min(range * *splitSize, keys) : 0;
      step.endKey =
          splitSize ? std::min(step.firstKey + *splitSize, keys) : keys;
      auto row = [&](int64_t heads, int64_t head) {
        return (place * heads + head) * tq + i;
      };
      for (int64_t s = 0; s < hs; ++s)
        step.run(/*map=*/0, b, s, i, to.arrays[0].begin()[row(hs, s)].f,
                 to.arrays[1].begin()[row(hs, s)].f,
                 to.arrays[2].begin() + row(hs, s) * dv, s / (hs / hv));
      // A noise head has one state, and one accumulator or one for each of its
      // signal heads.
      for (int64_t g = 0; hasSecond && g < hn; ++g) {
        double &max = to.arrays[3].begin()[row(hn, g)].f;
        double &sum = to.arrays[4].begin()[row(hn, g)].f;
        const double maxBefore = max, sumBefore = sum;
        for (int64_t part = 0; part < heads2 / hn; ++part) {
          const int64_t head = g * (heads2 / hn) + part;
          max = maxBefore;
          sum = sumBefore;
          step.run(/*map=*/1, b, g, i, max, sum,
                   to.arrays[5].begin() + row(heads2, head) * dv,
                   head / (heads2 / hv));
        }
      }
    }
  to.end(m, inst);
  return true;
}

/// Operands max, sum, acc join the states of the inits.
static bool runMerge(Machine &m, const Inst &inst) {
  const auto &details = inst.as<States>();
  Array max = m.tensors[details.operands[0]],
        sum = m.tensors[details.operands[1]],
        acc = m.tensors[details.operands[2]];
  Updated to;
  if (!m.count(acc.getNumElements(), inst.op) || !to.begin(m, inst))
    return false;
  auto op = cast<diffattn::MergeOp>(details.op);
  if (op.joinsRanges())
    clearStates(to.arrays);
  ArrayRef<int64_t> shape = to.arrays[2].getShape();
  const int64_t batch = shape[0], heads = shape[1], rows = shape[2],
                width = shape[3];
  const int64_t stateHeads = to.arrays[0].getShape()[1];
  const int64_t states = batch * stateHeads * rows,
                accumulators = batch * heads * rows;
  const int64_t ranges = op.joinsRanges() ? max.getShape()[0] : 1;
  for (int64_t range = 0; range < ranges; ++range) {
    // Maxima before this range; accumulators that share a state are rescaled by
    // them.
    const std::vector<Slot> before(to.arrays[0].begin(),
                                   to.arrays[0].begin() + states);
    auto factors = [&](int64_t state) {
      const double a = max.getFloat(range * states + state),
                   c = before[state].f;
      const double top =
          std::isnan(a) || std::isnan(c) ? a + c : std::max(a, c);
      return std::tuple(top, a == -kInf ? 0 : std::exp(a - top),
                        c == -kInf ? 0 : std::exp(c - top));
    };
    for (int64_t state = 0; state < states; ++state) {
      auto [top, ofNew, ofOld] = factors(state);
      double &sumThere = to.arrays[1].begin()[state].f;
      to.arrays[0].begin()[state].f = top;
      sumThere =
          sum.getFloat(range * states + state) * ofNew + sumThere * ofOld;
    }
    for (int64_t row = 0; row < accumulators; ++row) {
      const int64_t head = row / rows % heads, b = row / rows / heads;
      auto [top, ofNew, ofOld] = factors(
          (b * stateHeads + head / (heads / stateHeads)) * rows + row % rows);
      for (int64_t x = row * width; x < (row + 1) * width; ++x) {
        double &there = to.arrays[2].begin()[x].f;
        there = acc.getFloat(range * accumulators * width + x) * ofNew +
                there * ofOld;
      }
    }
  }
  to.end(m, inst);
  return true;
}

/// The sum of a row with its sink, what sums without it are multiplied by, and
/// the logarithm; a row that has seen no key keeps its sum of 0.
struct RowSum {
  double sum, factor = 1, logarithm = -kInf;

  /// `max` and `sink` are absent for sums without them.
  RowSum(double total, std::optional<double> max, std::optional<double> sink)
      : sum(total) {
    if (total == 0 || !max)
      return;
    double top = *max;
    if (sink) {
      top = std::isnan(top) || std::isnan(*sink) ? top + *sink
                                                 : std::max(top, *sink);
      factor = std::exp(*max - top);
      sum = total * factor + (*sink == -kInf ? 0 : std::exp(*sink - top));
    }
    logarithm = top + std::log(sum);
  }
};

/// Operands: sum1, acc1, sum2, acc2, lambda, norm_weight, gate, max1, max2,
/// sink, sink2.
static bool runFinalize(Machine &m, const Inst &inst) {
  const auto &details = inst.as<States>();
  auto op = cast<diffattn::FinalizeOp>(details.op);
  SmallVector<Array> given;
  for (int32_t number : details.operands)
    given.push_back(arrayOf(m, number));
  const View sum1 = viewOf(given[0]), acc1 = viewOf(given[1]),
             sum2 = viewOf(given[2]), acc2 = viewOf(given[3]);
  diffattn::reference::AttentionArguments a;
  a.q1 = acc1; // has its heads
  a.lambda = viewOf(given[4]);
  a.lambdaSigmoid = op.getLambdaAct() == diffattn::Activation::Sigmoid;
  a.normWeight = viewOf(given[5]);
  a.gate = viewOf(given[6], op.getOLayout());
  a.rmsNorm = op.getNorm() == diffattn::Norm::RMS;
  a.normEps = op.getNormEps().convertToFloat();
  a.epsOutside = op.getNormEpsMode() == diffattn::EpsMode::Outside;
  a.outScale = op.getOutScale().convertToFloat();
  const bool hasSecond = op.hasSecondMap();
  const int64_t batch = acc1.sizes[0], hs = acc1.sizes[1], rows = acc1.sizes[2],
                width = acc1.sizes[3], hn = hasSecond ? sum2.sizes[1] : hs;
  Updated to;
  if (!m.count(given[1].getNumElements() * 8, inst.op) || !to.begin(m, inst))
    return false;
  const bool isTransposed = op.getOLayout() == diffattn::Layout::BTHD;
  // Indices of the destinations after the first.
  const int64_t lse1 = op.getLse1() ? 1 : 0, lse2 = op.getLse2() ? lse1 + 1 : 0;
  auto sumOf = [&](int64_t map, double total, int64_t head, int64_t heads,
                   int64_t b, int64_t i) {
    const Array &max = given[7 + map], &sink = given[9 + map];
    std::optional<double> maximum, term;
    if (max)
      maximum = max.getFloat((b * heads + head) * rows + i);
    if (sink)
      term = sink.getFloat(head);
    RowSum row(total, maximum, term);
    if (const int64_t number = map ? lse2 : lse1)
      to.arrays[number].begin()[(b * heads + head) * rows + i].f =
          row.logarithm;
    return row;
  };
  std::vector<double> x(width);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t s = 0; s < hs; ++s)
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t g = s / (hs / hn);
        const RowSum total1 = sumOf(0, sum1.at({b, s, i}), s, hs, b, i);
        for (int64_t c = 0; c < width; ++c)
          x[c] = total1.sum == 0
                     ? 0
                     : acc1.at({b, s, i, c}) * total1.factor / total1.sum;
        if (hasSecond) {
          const int64_t h2 = s / (hs / acc2.sizes[1]);
          const double factor = lambdaAt(a, b, s, g, i);
          const RowSum total2 = sumOf(1, sum2.at({b, g, i}), g, hn, b, i);
          for (int64_t c = 0; c < width; ++c)
            x[c] -= factor * (total2.sum == 0 ? 0
                                              : acc2.at({b, h2, i, c}) *
                                                    total2.factor / total2.sum);
        }
        x = finishRow(a, b, s, i, x);
        const int64_t row =
            isTransposed ? (b * rows + i) * hs + s : (b * hs + s) * rows + i;
        for (int64_t c = 0; c < width; ++c)
          to.arrays[0].begin()[row * width + c].f = x[c];
      }
  to.end(m, inst);
  return true;
}

/// An op on `operands`, whose results begin as `inits`.
static bool buildStates(CodeBuilder &b, Operation *op, Handler run,
                        ArrayRef<Value> operands, ValueRange inits,
                        Value scalar = nullptr) {
  if (op->getNumResults() == 0)
    return b.unsupported(op, "expected operands that are tensors");
  emitSizeRules(b, op);
  SmallVector<Register> results;
  if (!b.define(op->getResults(), &results))
    return false;
  Inst &inst = b.emit(run, op);
  if (scalar)
    inst.a = b.scalar(scalar);
  auto &details = b.addDetails<States>(inst);
  details.op = op;
  for (Type type : op->getResultTypes())
    details.kinds.push_back(b.kindOf(type));
  for (Value operand : operands)
    details.operands.push_back(operand ? b.scalar(operand) : -1);
  for (Value init : inits)
    details.inits.push_back(b.scalar(init));
  for (Register result : results)
    details.results.push_back(result.number);
  return true;
}

static bool buildOnline(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::OnlineAttentionOp>(operation);
  SmallVector<Value> operands = {op.getQ1(), op.getK1(), op.getQ2(), op.getK2(),
                                 op.getV()};
  for (diffattn::MaskOperand which : diffattn::kMaskOperands) {
    OpOperand *use = op.findMaskOperand(which);
    operands.push_back(use ? use->get() : Value());
  }
  return buildStates(b, op, runOnline, operands, op.getDpsInits(),
                     op.getKOffset());
}
static bool buildMerge(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::MergeOp>(operation);
  return buildStates(b, op, runMerge, {op.getMax(), op.getSum(), op.getAcc()},
                     op.getDpsInits());
}
static bool buildFinalize(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::FinalizeOp>(operation);
  return buildStates(b, op, runFinalize,
                     {op.getSum1(), op.getAcc1(), op.getSum2(), op.getAcc2(),
                      op.getLambda(), op.getNormWeight(), op.getGate(),
                      op.getMax1(), op.getMax2(), op.getSink(), op.getSink2()},
                     op.getDpsInits());
}

void mlir::diffattn::interpreter::addOnlineOps(OpTable &table) {
  table["diffattn.online_attention"] = buildOnline;
  table["diffattn.merge"] = buildMerge;
  table["diffattn.finalize"] = buildFinalize;
}
