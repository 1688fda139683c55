//===- AttentionBackwardToLinalg.cpp - gradients as linalg ops ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The formulas of docs/spec.md, one step after another. On memrefs a step
// overwrites its buffer, and later steps need what earlier ones made, so each
// has new storage. lse1, lse2, x and o2 are not read: they stand for what is
// computed here anyway, in f32, and would only save time.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/DiffAttnToLinalg.h"

#include "BodyMath.h"
#include "Epilogue.h"
#include "SoftmaxSteps.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace mlir::diffattn;
using utils::IteratorType;

// Loops of the generics over pairs of queries and keys: batch, head, query,
// key, and width or column. Those over rows alone have the column at `rowC`.
static constexpr int64_t b = 0, h = 1, i = 2, j = 3, c = 4, rowC = 3;
static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

namespace {
/// One map with what its gradient needs. Values are f32; heads are those of the
/// map's queries.
struct GradientMap {
  MapOperands operands;
  /// A head's noise head is that divided by this.
  OpFoldResult headsPerNoise;
  /// The softmax [B,heads,Tq,Tk], and the sums of exponentials [B,heads,Tq].
  Value weights, sum;
  /// The gradients of the scores after the bias, and of the products of queries
  /// and keys, [B,heads,Tq,Tk].
  Value dZ, dProduct;
};

/// The parts of a gradient whose sum is rounded, in f32, and where the loops
/// over their axes find the destination's places.
struct Unrounded {
  SmallVector<Value> parts;
  SmallVector<Axis> axes;
};

class Backward {
public:
  using Body = StructuredBuilder::Body;

  Backward(OpBuilder &builder, AttentionBackwardOp op)
      : op(op), sb(builder, op.getLoc(),
                   /*onTensors=*/!op.getResults().empty()),
        inputs(getScoreInputs(op)), epilogue(getEpilogueRules(op)) {}

  /// Writes the gradients to their destinations; returns what holds them.
  SmallVector<Value> build();

private:
  bool hasSharedKeys() { return op.getK1() == op.getK2(); }
  /// Map 1, and map 2 where there is one.
  SmallVector<GradientMap *, 2> getMaps() {
    if (op.hasSecondMap())
      return {&map1, &map2};
    return {&map1};
  }
  bool needsDZ1() { return op.getDQ1() || op.getDK1() || op.getDBias(); }
  bool needsDZ2() {
    if (!op.hasSecondMap())
      return false;
    return op.getDQ2() || op.getDK2() || op.getDBias() ||
           (op.getDK1() && hasSharedKeys());
  }
  bool needsDP() { return needsDZ1() || needsDZ2() || op.getDLambda(); }
  bool needsDX() { return needsDP() || op.getDV(); }
  bool needsX() {
    return (epilogue.rmsNorm && needsDX()) || op.getDNormWeight() ||
           op.getDGate();
  }

  OpFoldResult countHeads(Value value, Layout layout) {
    return sb.size(value, AttentionOp::headAxis(layout));
  }
  OpFoldResult getOne() { return sb.builder.getIndexAttr(1); }
  /// Sizes of the axes batch, head, row and width.
  SmallVector<OpFoldResult> sizesOf(OpFoldResult heads, Value rowsOf,
                                    int64_t rowAxis, Value widthOf) {
    return {sb.size(op.getQ1(), 0), heads, sb.size(rowsOf, rowAxis),
            sb.size(widthOf, 3)};
  }

  void buildMaps();
  /// f32 [B,Hs,Tq,Tk] or [B,Hn,Tq,Tk] of what `body` gives for the elements of
  /// `read`; 0 where the query does not see the key, whatever that is.
  Value buildOverPairs(const GradientMap &map, ArrayRef<StructuredInput> read,
                       Body body);
  /// Sums of products of the elements of `left` and `right` over all loops but
  /// `axes`, f32, without pairs of a key and a query that does not see it. The
  /// loops go over the heads of `map`.
  Value buildProducts(const GradientMap &map, const StructuredInput &left,
                      const StructuredInput &right,
                      ArrayRef<OpFoldResult> sizes, ArrayRef<int64_t> axes);
  /// f32 [B,Hs,Tq,dv], or [B,Hs,Tq] without `columns`, of what `body` gives for
  /// the elements of `read`; 0 in rows without keys, whatever that is.
  Value buildOverRows(ArrayRef<StructuredInput> read, bool columns, Body body);
  /// Sums of `left * right` over the last loop.
  Value buildDots(const StructuredInput &left, Value right);
  /// Sums over the heads of `value`, [B,Hs,rows,width], that share one of
  /// `heads`.
  Value sumHeads(Value value, OpFoldResult heads, OpFoldResult group);

  void buildDifference();
  void buildX();
  void buildHeadEnd();
  void buildValues();
  void buildDP();
  void buildLambda();
  void buildDZ1();
  void buildDZ2();
  void buildBias();
  void buildDProduct(GradientMap &map);
  Value buildQueries(const GradientMap &map);
  Value buildKeys(const GradientMap &map);
  SmallVector<Value> round();

  AttentionBackwardOp op;
  StructuredBuilder sb;
  ScoreInputs inputs;
  EpilogueRules epilogue;
  OpFoldResult signal, noise, perNoise, perValue;
  GradientMap map1, map2;
  /// [B,Hn,Tq,Tk], -inf where the query does not see the key; null where every
  /// query sees every key.
  Value visibility;
  /// A1 - L * A2, A1 of one map, and its gradient, [B,Hs,Tq,Tk].
  Value difference, dP;
  /// [B,Hs,Tq,dv]
  Value x, dX;
  /// rowsum(A2 * dP), [B,Hs,Tq]
  Value dots2;
  llvm::StringMap<Unrounded> gradients;
};
} // namespace

// --- steps over pairs and over rows

Value Backward::buildOverPairs(const GradientMap &map,
                               ArrayRef<StructuredInput> read, Body body) {
  SmallVector<StructuredInput> all(read);
  if (visibility)
    all.push_back({visibility, {b, Axis(h, map.headsPerNoise), i, j}});
  return sb.generic(
      all, sb.empty(sb.sizes(map.weights)), {b, h, i, j}, {par, par, par, par},
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value value = body(ib, args);
        if (!visibility)
          return value;
        return arith::SelectOp::create(ib, isHidden(ib, args[read.size()]),
                                       f32(ib, 0.0f), value);
      });
}

Value Backward::buildProducts(const GradientMap &map,
                              const StructuredInput &left,
                              const StructuredInput &right,
                              ArrayRef<OpFoldResult> sizes,
                              ArrayRef<int64_t> axes) {
  SmallVector<StructuredInput> read = {left, right};
  if (visibility)
    read.push_back({visibility, {b, Axis(h, map.headsPerNoise), i, j}});
  SmallVector<IteratorType> loops(5, red);
  SmallVector<Axis> outAxes;
  for (int64_t axis : axes) {
    loops[axis] = par;
    outAxes.push_back(axis);
  }
  // A hidden number may be NaN, and 0 * NaN is NaN.
  return sb.generic(read, sb.filled(sizes, 0.0f), outAxes, loops,
                    [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      Value product = arith::MulFOp::create(
                          ib, widen(ib, args[0]), widen(ib, args[1]));
                      Value sum =
                          arith::AddFOp::create(ib, args.back(), product);
                      if (!visibility)
                        return sum;
                      return arith::SelectOp::create(ib, isHidden(ib, args[2]),
                                                     args.back(), sum);
                    });
}

Value Backward::buildOverRows(ArrayRef<StructuredInput> read, bool columns,
                              Body body) {
  SmallVector<StructuredInput> all(read);
  all.push_back({map1.sum, {b, h, i}});
  if (op.hasSecondMap())
    all.push_back({map2.sum, {b, Axis(h, perNoise), i}});
  SmallVector<OpFoldResult> sizes = sb.sizes(map1.sum);
  SmallVector<Axis> axes = {b, h, i};
  if (columns) {
    sizes.push_back(sb.size(op.getV(), 3));
    axes.push_back(rowC);
  }
  return sb.generic(
      all, sb.empty(sizes), axes, SmallVector<IteratorType>(axes.size(), par),
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        const Value sum1 = args[read.size()],
                    sum2 = op.hasSecondMap() ? args[read.size() + 1] : sum1;
        return zeroWithoutKeys(ib, sum1, sum2, body(ib, args));
      });
}

Value Backward::buildDots(const StructuredInput &left, Value right) {
  SmallVector<OpFoldResult> sizes = sb.sizes(map1.sum);
  return sb.generic({left, {right, {b, h, i, 3}}}, sb.filled(sizes, 0.0f),
                    {b, h, i}, {par, par, par, red},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      Value product =
                          arith::MulFOp::create(ib, args[0], args[1]);
                      return arith::AddFOp::create(ib, args[2], product);
                    });
}

Value Backward::sumHeads(Value value, OpFoldResult heads, OpFoldResult group) {
  SmallVector<OpFoldResult> sizes = sb.sizes(value);
  sizes[h] = heads;
  return sb.sumGroups(value, sizes, {getOne(), group, getOne(), getOne()});
}

// --- the maps, and the rows of their difference

void Backward::buildMaps() {
  signal = countHeads(op.getQ1(), op.getQLayout());
  noise = op.hasSecondMap() ? countHeads(op.getQ2(), op.getQLayout()) : signal;
  perNoise = sb.ratio(signal, noise);
  perValue = sb.ratio(signal, countHeads(op.getV(), op.getVLayout()));
  map1.operands = {op.getQ1(), op.getK1(), signal,
                   sb.ratio(signal, countHeads(op.getK1(), op.getKLayout())),
                   perNoise};
  map1.headsPerNoise = perNoise;
  map2.headsPerNoise = getOne();
  if (op.hasSecondMap())
    map2.operands = {op.getQ2(), op.getK2(), noise,
                     sb.ratio(noise, countHeads(op.getK2(), op.getKLayout())),
                     getOne()};
  const SmallVector<GradientMap *, 2> maps = getMaps();
  for (GradientMap *map : maps) {
    SoftmaxMap softmax = buildSoftmax(sb, map->operands, inputs);
    map->sum = softmax.sum;
    map->weights =
        sb.generic({{softmax.sum, {b, h, i}}}, softmax.weights, {b, h, i, j},
                   {par, par, par, par},
                   [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                     return normalized(ib, args[1], args[0]);
                   });
    // Both maps have the masks of the noise heads.
    if (map == maps.back() && !inputs.rules.masks.empty())
      visibility = buildVisibility(sb, map->operands, inputs, softmax.scores);
  }
}

void Backward::buildDifference() {
  if (!op.hasSecondMap()) {
    difference = map1.weights;
    return;
  }
  difference = buildOverPairs(
      map1,
      {{map1.weights, {b, h, i, j}},
       {map2.weights, {b, Axis(h, perNoise), i, j}},
       lambdaInput(sb, op.getLambda(), signal)},
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value lambda = activated(ib, args[2], epilogue.lambdaSigmoid);
        return arith::SubFOp::create(
            ib, args[0], arith::MulFOp::create(ib, lambda, args[1]));
      });
}

void Backward::buildX() {
  x = buildProducts(
      map1, {difference, {b, h, i, j}},
      {op.getV(), layoutAxes(op.getVLayout(), b, Axis(h, perValue), j, c)},
      sizesOf(signal, map1.sum, 2, op.getV()), {b, h, i, c});
}

void Backward::buildHeadEnd() {
  const SmallVector<Axis> all = {b, h, i, rowC}, row = {b, h, i};
  const SmallVector<Axis> stored = layoutAxes(op.getOLayout(), b, h, i, rowC);
  Value width, squares, n = x;
  // rho and, with eps outside of it, rho - eps.
  auto getRoots = [&](ImplicitLocOpBuilder &ib, Value sum) {
    BodyMath math(ib);
    Value mean = math.divide(sum, width), eps = f32(ib, epilogue.eps);
    if (!epilogue.epsOutside) {
      Value rho = math.squareRoot(math.add(mean, eps));
      return std::pair(rho, rho);
    }
    Value root = math.squareRoot(mean);
    return std::pair(math.add(root, eps), root);
  };
  if (epilogue.rmsNorm && x) {
    width = sb.sizeAsF32(x, 3);
    squares = buildSquares(sb, x);
    n = buildOverRows({{x, all}, {squares, row}}, /*columns=*/true,
                      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                        return normalized(ib, args[0],
                                          getRoots(ib, args[1]).first);
                      });
  }

  SmallVector<StructuredInput> read = {{op.getDOut(), stored}};
  if (op.getGate())
    read.push_back({op.getGate(), stored});
  if (op.getNormWeight())
    read.push_back({op.getNormWeight(), {rowC}});
  auto getGate = [&](ImplicitLocOpBuilder &ib, ValueRange args) {
    return widen(ib, args[1]);
  };
  // out_scale * d_out, and its products with the weight and the gate.
  auto getScaled = [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
    return arith::MulFOp::create(ib, widen(ib, args[0]),
                                 f32(ib, epilogue.outScale));
  };
  auto byGate = [&](ImplicitLocOpBuilder &ib, ValueRange args,
                    Value value) -> Value {
    if (!op.getGate())
      return value;
    return arith::MulFOp::create(ib, value,
                                 activated(ib, getGate(ib, args), true));
  };
  auto byWeight = [&](ImplicitLocOpBuilder &ib, ValueRange args,
                      Value value) -> Value {
    if (!op.getNormWeight())
      return value;
    return arith::MulFOp::create(ib, value,
                                 widen(ib, args[op.getGate() ? 2 : 1]));
  };
  SmallVector<StructuredInput> readWithN = read;
  readWithN.push_back({n, all});
  const size_t atN = read.size();

  if (op.getDGate()) {
    // 1 - sigmoid(gate) is sigmoid(-gate), also where the difference rounds
    // to 0.
    Value dGate = buildOverRows(
        readWithN, /*columns=*/true,
        [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
          Value value = byWeight(ib, args, getScaled(ib, args));
          value = arith::MulFOp::create(ib, value, args[atN]);
          value = byGate(ib, args, value);
          Value minus = arith::NegFOp::create(ib, getGate(ib, args));
          return arith::MulFOp::create(ib, value, activated(ib, minus, true));
        });
    gradients["d_gate"] = {{dGate}, stored};
  }
  if (op.getDNormWeight()) {
    Value terms = buildOverRows(
        readWithN, /*columns=*/true,
        [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
          return arith::MulFOp::create(
              ib, byGate(ib, args, getScaled(ib, args)), args[atN]);
        });
    Value sum =
        sb.generic({{terms, all}}, sb.filled({sb.size(terms, rowC)}, 0.0f),
                   {rowC}, {red, red, red, par},
                   [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                     return arith::AddFOp::create(ib, args[1], args[0]);
                   });
    gradients["d_norm_weight"] = {{sum}, {Axis(0)}};
  }
  if (!needsDX())
    return;
  dX = buildOverRows(read, /*columns=*/true,
                     [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                       return byWeight(ib, args,
                                       byGate(ib, args, getScaled(ib, args)));
                     });
  if (!epilogue.rmsNorm)
    return;
  Value dots = buildDots({dX, all}, n);
  dX = buildOverRows(
      {{dX, all}, {n, all}, {squares, row}, {dots, row}}, /*columns=*/true,
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        BodyMath math(ib);
        auto [rho, root] = getRoots(ib, args[2]);
        Value along = math.multiply(args[1], math.divide(args[3], width));
        return math.subtract(normalized(ib, args[0], rho),
                             normalized(ib, along, root));
      });
}

// --- gradients of the maps

void Backward::buildValues() {
  Value ofSignal =
      buildProducts(map1, {difference, {b, h, i, j}}, {dX, {b, h, i, c}},
                    sizesOf(signal, map1.weights, 3, op.getV()), {b, h, j, c});
  gradients["d_v"] = {
      {sumHeads(ofSignal, countHeads(op.getV(), op.getVLayout()), perValue)},
      layoutAxes(op.getVLayout(), b, h, i, rowC)};
}

void Backward::buildDP() {
  dP = buildProducts(
      map1, {dX, {b, h, i, c}},
      {op.getV(), layoutAxes(op.getVLayout(), b, Axis(h, perValue), j, c)},
      sb.sizes(map1.weights), {b, h, i, j});
}

void Backward::buildLambda() {
  Value terms = buildOverRows(
      {{dots2, {b, h, i}}, lambdaInput(sb, op.getLambda(), signal)},
      /*columns=*/false,
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value value = arith::NegFOp::create(ib, args[0]);
        if (!epilogue.lambdaSigmoid)
          return value;
        BodyMath math(ib);
        return math.multiply(value, emitSigmoidSlope(math, args[1]));
      });
  const int64_t rank = cast<ShapedType>(op.getLambda().getType()).getRank();
  auto add = [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
    return arith::AddFOp::create(ib, args[1], args[0]);
  };
  if (rank == 0) {
    Value sum = sb.generic({{terms, {b, h, i}}}, sb.filled({}, 0.0f), {},
                           {red, red, red}, add);
    gradients["d_lambda"] = {{sum}, {}};
  } else if (rank == 1) {
    Value sum = sb.generic({{terms, {b, h, i}}}, sb.filled({signal}, 0.0f), {h},
                           {red, par, red}, add);
    gradients["d_lambda"] = {{sum}, {Axis(0)}};
  } else {
    SmallVector<OpFoldResult> sizes = sb.sizes(terms);
    sizes[h] = sb.size(op.getLambda(), 2);
    Value sum = sb.sumGroups(terms, sizes,
                             {getOne(), sb.ratio(signal, sizes[h]), getOne()});
    gradients["d_lambda"] = {{sum}, {b, i, h}};
  }
}

void Backward::buildDZ1() {
  Value dots1 = buildDots({map1.weights, {b, h, i, j}}, dP);
  map1.dZ = buildOverPairs(
      map1,
      {{map1.weights, {b, h, i, j}}, {dP, {b, h, i, j}}, {dots1, {b, h, i}}},
      [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        return arith::MulFOp::create(
            ib, args[0], arith::SubFOp::create(ib, args[1], args[2]));
      });
}

void Backward::buildDZ2() {
  Value ofSignal = buildOverPairs(
      map1,
      {{dP, {b, h, i, j}},
       {dots2, {b, h, i}},
       lambdaInput(sb, op.getLambda(), signal)},
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value lambda = activated(ib, args[2], epilogue.lambdaSigmoid);
        return arith::MulFOp::create(
            ib, lambda, arith::SubFOp::create(ib, args[0], args[1]));
      });
  map2.dZ =
      buildOverPairs(map2,
                     {{map2.weights, {b, h, i, j}},
                      {sumHeads(ofSignal, noise, perNoise), {b, h, i, j}}},
                     [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                       return arith::NegFOp::create(
                           ib, arith::MulFOp::create(ib, args[0], args[1]));
                     });
}

void Backward::buildBias() {
  const SmallVector<Axis> all = {b, h, i, j};
  Value ofNoise = map1.dZ;
  if (op.hasSecondMap())
    ofNoise = buildOverPairs(
        map2, {{sumHeads(map1.dZ, noise, perNoise), all}, {map2.dZ, all}},
        [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
          return arith::AddFOp::create(ib, args[0], args[1]);
        });
  // All places of an axis are one group where the bias has size 1, which it may
  // turn out to have.
  SmallVector<OpFoldResult> sizes = sb.sizes(op.getBias()), groups;
  for (int64_t axis = 0; axis < 4; ++axis)
    groups.push_back(axis == 3
                         ? getOne()
                         : sb.wholeIfOne(sizes[axis], sb.size(ofNoise, axis)));
  gradients["d_bias"] = {{sb.sumGroups(ofNoise, sizes, groups)}, all};
}

void Backward::buildDProduct(GradientMap &map) {
  const ScoreRules &rules = inputs.rules;
  const SmallVector<Axis> all = {b, h, i, j};
  SmallVector<StructuredInput> read = {{map.dZ, all}};
  if (rules.softcap)
    read.push_back({buildProduct(sb, map.operands, inputs), all});
  map.dProduct = buildOverPairs(
      map, read, [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        BodyMath math(ib);
        Value scale = f32(ib, rules.scale);
        Value value = math.multiply(scale, args[0]);
        if (!rules.softcap)
          return value;
        Value u =
            math.divide(math.multiply(scale, args[1]), f32(ib, *rules.softcap));
        return math.multiply(value,
                             emitTanhSlope(math, math::AbsFOp::create(ib, u)));
      });
}

Value Backward::buildQueries(const GradientMap &map) {
  const MapOperands &operands = map.operands;
  return buildProducts(
      map, {map.dProduct, {b, h, i, j}},
      {operands.k,
       layoutAxes(op.getKLayout(), b, Axis(h, operands.keyGroup), j, c)},
      sizesOf(operands.heads, map1.sum, 2, operands.k), {b, h, i, c});
}

Value Backward::buildKeys(const GradientMap &map) {
  const MapOperands &operands = map.operands;
  Value ofQueries = buildProducts(
      map, {map.dProduct, {b, h, i, j}},
      {operands.q, layoutAxes(op.getQLayout(), b, h, i, c)},
      sizesOf(operands.heads, map1.weights, 3, operands.q), {b, h, j, c});
  return sumHeads(ofQueries, countHeads(operands.k, op.getKLayout()),
                  operands.keyGroup);
}

SmallVector<Value> Backward::round() {
  SmallVector<Value> results;
  for (const AttentionBackwardOp::Gradient &gradient : op.getGradients()) {
    const Unrounded &unrounded = gradients[gradient.name];
    const unsigned rank = unrounded.axes.size();
    SmallVector<StructuredInput> read;
    for (Value part : unrounded.parts) {
      read.push_back({part, {}});
      for (unsigned axis = 0; axis < rank; ++axis)
        read.back().axes.push_back(axis);
    }
    results.push_back(
        sb.generic(read, gradient.destination->get(), unrounded.axes,
                   SmallVector<IteratorType>(rank, par),
                   [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                     Value sum = args.front();
                     for (Value part : args.drop_front().drop_back())
                       sum = arith::AddFOp::create(ib, sum, part);
                     return narrow(ib, sum, args.back().getType());
                   }));
  }
  return results;
}

SmallVector<Value> Backward::build() {
  buildMaps();
  if (needsX() || op.getDV())
    buildDifference();
  if (needsX())
    buildX();
  buildHeadEnd();
  if (op.getDV())
    buildValues();
  if (needsDP())
    buildDP();
  if (needsDZ2() || op.getDLambda())
    dots2 = buildDots({map2.weights, {b, Axis(h, perNoise), i, j}}, dP);
  if (op.getDLambda())
    buildLambda();
  if (needsDZ1())
    buildDZ1();
  if (needsDZ2())
    buildDZ2();
  if (op.getDBias())
    buildBias();

  const SmallVector<Axis> queries = layoutAxes(op.getQLayout(), b, h, i, rowC),
                          keys = layoutAxes(op.getKLayout(), b, h, i, rowC);
  const bool ofKeys2 = op.getDK2() || (op.getDK1() && hasSharedKeys());
  if (op.getDQ1() || op.getDK1())
    buildDProduct(map1);
  if (op.getDQ2() || ofKeys2)
    buildDProduct(map2);
  if (op.getDQ1())
    gradients["d_q1"] = {{buildQueries(map1)}, queries};
  if (op.getDQ2())
    gradients["d_q2"] = {{buildQueries(map2)}, queries};
  if (op.getDK1())
    gradients["d_k1"] = {{buildKeys(map1)}, keys};
  if (ofKeys2) {
    Value ofMap2 = buildKeys(map2);
    if (hasSharedKeys())
      gradients["d_k1"].parts.push_back(ofMap2);
    else
      gradients["d_k2"] = {{ofMap2}, keys};
  }
  SmallVector<Value> results = round();
  sb.freeTemporaries();
  return results;
}

SmallVector<Value>
diffattn::decomposeAttentionBackward(OpBuilder &builder,
                                     AttentionBackwardOp op) {
  return Backward(builder, op).build();
}
