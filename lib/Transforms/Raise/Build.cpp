//===- Build.cpp - writing the op -----------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Raise/Build.h"

#include "DiffAttn/Transforms/Raise/Materialize.h"
#include "DiffAttn/Transforms/Raise/Precision.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <algorithm>
#include <cmath>

namespace mlir::diffattn::raise {

namespace {
struct Builder {
  ExprGraph &graph;
  const Differential &found;
  const Epilogue &epilogue;
  OpBuilder &builder;
  Location loc;
  Materializer tensors;
  Type type; ///< of the elements of queries, keys and values

  IndexPoly extent(AtomId loop) { return graph.space.extent(loop); }
  Type f32() { return builder.getF32Type(); }

  /// The largest number of neighbouring heads that share all of `exprs`, in
  /// multiples of `multiple`.
  int64_t sharedHeads(ArrayRef<Expr> exprs, int64_t multiple);
  /// `expr` by a loop over groups of `shared` heads.
  Expr perGroup(Expr expr, int64_t shared, AtomId group);
  AtomId groupLoop(int64_t shared);

  Value headTensor(Expr expr, ArrayRef<SmallVector<AtomId>> orders,
                   unsigned &chosen);
  /// Two operands in one layout.
  void headTensors(Expr a, SmallVector<AtomId> loopsA, Expr b,
                   SmallVector<AtomId> loopsB, Value &first, Value &second,
                   Layout &layout);
  Value lambda(int64_t noiseShared, AtomId noise, Activation &activation);
  Value bias(int64_t noiseShared, AtomId noise, Mask mask);
  Value product(ArrayRef<Expr> factors, ArrayRef<AtomId> loops);
  bool placeBand(Mask &mask, bool &causal, SmallVectorImpl<int64_t> &window,
                 Value &offset);
  Value scaled(Value attention, ArrayRef<AtomId> order);
  Value shaped(Value attention, ArrayRef<AtomId> order);
  std::optional<SmallVector<AtomId>> resultOrder();
  bool sameRowMajor(ArrayRef<AtomId> order);
  Value regrouped(Value value);
  bool groupsOf(ArrayRef<AtomId> order,
                SmallVectorImpl<ReassociationIndices> &groups);
  SmallVector<IndexPoly> plainPosition();
};
} // namespace

/// [batch, head, length, width] with the second and third in either order.
static SmallVector<AtomId> inLayout(Layout layout, AtomId batch, AtomId head,
                                    AtomId length, AtomId width) {
  if (layout == Layout::BHTD)
    return {batch, head, length, width};
  return {batch, length, head, width};
}

static SmallVector<SmallVector<AtomId>> bothLayouts(ArrayRef<AtomId> loops) {
  return {inLayout(Layout::BHTD, loops[0], loops[1], loops[2], loops[3]),
          inLayout(Layout::BTHD, loops[0], loops[1], loops[2], loops[3])};
}

AtomId Builder::groupLoop(int64_t shared) {
  if (shared == 1)
    return found.roles.head;
  return *graph.space.loop(*extent(found.roles.head).constant() / shared)
              .asAtom();
}

Expr Builder::perGroup(Expr expr, int64_t shared, AtomId group) {
  if (shared == 1)
    return expr;
  return graph.substitute(
      expr, {{found.roles.head, IndexPoly(shared) * IndexPoly::atom(group)}});
}

int64_t Builder::sharedHeads(ArrayRef<Expr> exprs, int64_t multiple) {
  int64_t heads = *extent(found.roles.head).constant();
  for (int64_t shared = heads; shared > multiple; --shared) {
    if (heads % shared != 0 || shared % multiple != 0)
      continue;
    IndexPoly group = graph.space.loop(heads / shared),
              member = graph.space.loop(shared);
    bool all = llvm::all_of(exprs, [&](Expr expr) {
      Expr split = graph.substitute(
          expr, {{found.roles.head, group * IndexPoly(shared) + member}});
      return !graph.mentions(split, *member.asAtom());
    });
    if (all)
      return shared;
  }
  return multiple;
}

Value Builder::headTensor(Expr expr, ArrayRef<SmallVector<AtomId>> orders,
                          unsigned &chosen) {
  if (expr->type == type)
    if (Value value = tensors.view(expr, orders, chosen))
      return value;
  return Value();
}

void Builder::headTensors(Expr a, SmallVector<AtomId> loopsA, Expr b,
                          SmallVector<AtomId> loopsB, Value &first,
                          Value &second, Layout &layout) {
  auto ordersA = bothLayouts(loopsA), ordersB = bothLayouts(loopsB);
  unsigned chosen = 0, chosenB = 0;
  first = headTensor(a, ordersA, chosen);
  if (!first) {
    second = headTensor(b, ordersB, chosen);
    first = tensors.generic(a, ordersA[chosen], type);
  }
  layout = chosen == 0 ? Layout::BHTD : Layout::BTHD;
  if (second)
    return;
  // One key for both maps is one operand.
  if (loopsA.size() == loopsB.size() &&
      extent(loopsA[1]) == extent(loopsB[1])) {
    Expr renamed =
        graph.substitute(b, {{loopsB[1], IndexPoly::atom(loopsA[1])}});
    if (graph.equal(a, renamed)) {
      second = first;
      return;
    }
  }
  second = headTensor(b, {ordersB[chosen]}, chosenB);
  if (!second)
    second = tensors.generic(b, ordersB[chosen], type);
}

Value Builder::product(ArrayRef<Expr> factors, ArrayRef<AtomId> loops) {
  Expr all = nullptr;
  for (Expr factor : factors) {
    Expr wide = graph.make(Kind::Cast, f32(), {factor});
    all = all ? graph.make(Kind::Mul, f32(), {all, wide}) : wide;
  }
  return tensors.tensor(all, loops, f32());
}

Value Builder::lambda(int64_t noiseShared, AtomId noise,
                      Activation &activation) {
  SmallVector<Expr> factors(found.lambdaFactors);
  activation = Activation::Identity;
  if (factors.size() == 1 && found.lambda == 1)
    if (Expr logits = logitsOf(graph, factors[0])) {
      activation = Activation::Sigmoid;
      factors[0] = logits;
    }
  if (factors.empty()) {
    auto scalar = RankedTensorType::get({}, f32());
    return arith::ConstantOp::create(
        builder, loc,
        DenseElementsAttr::get(scalar, static_cast<float>(found.lambda)));
  }
  if (found.lambda != 1)
    factors.push_back(graph.constant(found.lambda, f32()));
  const Roles &r = found.roles;
  auto depends = [&](AtomId loop) {
    return llvm::any_of(factors,
                        [&](Expr e) { return graph.mentions(e, loop); });
  };
  if (!depends(r.batch) && !depends(r.query)) {
    if (!depends(r.head))
      return product(factors, {});
    return product(factors, {r.head});
  }
  int64_t shared = sharedHeads(factors, 1);
  if (noiseShared > 1 && shared % noiseShared == 0) {
    for (Expr &factor : factors)
      factor = perGroup(factor, noiseShared, noise);
    return product(factors, {r.batch, r.query, noise});
  }
  return product(factors, {r.batch, r.query, r.head});
}

Value Builder::bias(int64_t noiseShared, AtomId noise, Mask mask) {
  if (mask.visible.empty() && mask.bias.empty())
    return Value();
  Type boolean = builder.getI1Type();
  Expr seen = nullptr, sum = nullptr;
  for (Expr visible : mask.visible)
    seen = seen ? graph.make(Kind::And, boolean, {seen, visible}) : visible;
  Type wanted = f32();
  if (mask.bias.size() == 1 && !seen)
    if (Expr half = fromHalf(graph, mask.bias[0])) {
      mask.bias[0] = half;
      wanted = half->type;
    }
  for (Expr part : mask.bias) {
    Expr wide = graph.make(Kind::Cast, wanted, {part});
    sum = sum ? graph.make(Kind::Add, wanted, {sum, wide}) : wide;
  }
  if (seen && sum)
    sum = graph.make(Kind::Select, wanted,
                     {seen, sum, graph.constant(-INFINITY, wanted)});
  Expr element = perGroup(sum ? sum : seen, noiseShared, noise);
  const Roles &r = found.roles;
  SmallVector<AtomId> loops;
  for (AtomId loop : {r.batch, noiseShared > 1 ? noise : r.head, r.query})
    loops.push_back(
        graph.mentions(element, loop) ? loop : *graph.space.loop(1).asAtom());
  loops.push_back(r.key);
  return tensors.tensor(element, loops, sum ? wanted : boolean);
}

/// A band of visible keys as `is_causal`, `window` and `q_offset`.
bool Builder::placeBand(Mask &mask, bool &causal,
                        SmallVectorImpl<int64_t> &window, Value &offset) {
  const Band &band = mask.band;
  causal = false;
  if (!band.low && !band.high)
    return true;
  const Roles &r = found.roles;
  // With a number of valid keys the op's queries would end at the last of
  // these, unless it is told otherwise.
  bool ends = !mask.validKeys;
  auto sides = [&](const IndexPoly &at) {
    // low <= j - i <= high, with p = i + at: -(high - at) <= p - j <= at - low
    std::optional<int64_t> left = -1, right = -1;
    if (band.low)
      left = (at - *band.low).constant();
    if (band.high)
      right = (*band.high - at).constant();
    if (!left || !right || (band.low && *left < 0) || (band.high && *right < 0))
      return false;
    causal = band.high && *right == 0;
    if (causal)
      right = -1;
    window.clear();
    if (*left >= 0 || *right >= 0)
      window.assign({*left, *right});
    return true;
  };
  IndexPoly at = extent(r.key) - extent(r.query);
  if (sides(at)) {
    if (ends)
      return true;
  } else {
    at = band.high ? *band.high : *band.low;
    if (!sides(at))
      return false;
  }
  // Positions that do not end with the keys.
  std::optional<int64_t> number = at.constant(),
                         batches = extent(r.batch).constant();
  auto shape = RankedTensorType::get(
      {batches ? *batches : ShapedType::kDynamic}, builder.getI64Type());
  if (number && batches) {
    offset = arith::ConstantOp::create(builder, loc,
                                       DenseElementsAttr::get(shape, *number));
    return true;
  }
  Value start = arith::IndexCastOp::create(builder, loc, builder.getI64Type(),
                                           tensors.index(at));
  SmallVector<Value> sizes;
  if (!batches)
    sizes.push_back(tensors.index(extent(r.batch)));
  offset = tensor::SplatOp::create(builder, loc, shape, start, sizes);
  return true;
}

/// The position in the result with loops of extent 1 left out.
SmallVector<IndexPoly> Builder::plainPosition() {
  const Roles &r = found.roles;
  IndexSpace::Substitution none;
  for (AtomId loop : {r.batch, r.head, r.query, r.valueWidth})
    if (extent(loop) == IndexPoly(1))
      none[loop] = 0;
  SmallVector<IndexPoly> position;
  for (const IndexPoly &poly : epilogue.position)
    position.push_back(graph.space.substitute(poly, none));
  return position;
}

/// Groups of neighbouring axes of `order` that make the axes of the result,
/// other than its axes of one element.
bool Builder::groupsOf(ArrayRef<AtomId> order,
                       SmallVectorImpl<ReassociationIndices> &groups) {
  unsigned at = 0;
  ReassociationIndices group;
  auto isUnit = [&](unsigned k) { return extent(order[k]) == IndexPoly(1); };
  for (const IndexPoly &poly : plainPosition()) {
    if (poly == IndexPoly(0))
      continue;
    IndexPoly flat;
    do {
      if (at == order.size())
        return false;
      if (!isUnit(at))
        flat = flat * extent(order[at]) + IndexPoly::atom(order[at]);
      group.push_back(at++);
    } while (flat != poly);
    groups.push_back(group);
    group.clear();
  }
  for (; at < order.size(); ++at) {
    if (!isUnit(at) || groups.empty())
      return false;
    groups.back().push_back(at);
  }
  return true;
}

std::optional<SmallVector<AtomId>> Builder::resultOrder() {
  const Roles &r = found.roles;
  SmallVector<unsigned> permutation{0, 1, 2, 3};
  SmallVector<AtomId> axes{r.batch, r.head, r.query, r.valueWidth};
  SmallVector<SmallVector<AtomId>> orders = bothLayouts(axes);
  do {
    SmallVector<AtomId> order;
    for (unsigned k : permutation)
      order.push_back(axes[k]);
    orders.push_back(order);
  } while (std::next_permutation(permutation.begin(), permutation.end()));
  for (const auto &order : orders) {
    SmallVector<ReassociationIndices> groups;
    if (groupsOf(order, groups))
      return order;
  }
  for (const auto &order : orders)
    if (sameRowMajor(order))
      return order;
  return std::nullopt;
}

/// True if both run through their elements in one order: the result's axes cut
/// through the heads, as those of a product of grouped heads do.
bool Builder::sameRowMajor(ArrayRef<AtomId> order) {
  IndexPoly ours, theirs;
  for (AtomId loop : order)
    ours =
        ours * extent(loop) +
        (extent(loop) == IndexPoly(1) ? IndexPoly(0) : IndexPoly::atom(loop));
  for (auto [axis, poly] : llvm::enumerate(plainPosition()))
    theirs = theirs * graph.sizeOf(epilogue.result, axis) + poly;
  return ours == theirs;
}

static ReassociationIndices allAxes(int64_t rank) {
  return llvm::to_vector<2>(llvm::seq<int64_t>(0, rank));
}

/// The elements of `value` in row-major order as a tensor of the result's
/// shape.
Value Builder::regrouped(Value value) {
  auto target = cast<RankedTensorType>(epilogue.result.getType());
  auto now = cast<RankedTensorType>(value.getType());
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0; axis < target.getRank(); ++axis)
    sizes.push_back(tensors.size(graph.sizeOf(epilogue.result, axis)));
  value = tensor::CollapseShapeOp::create(
      builder, loc, value,
      SmallVector<ReassociationIndices>{allAxes(now.getRank())});
  return tensor::ExpandShapeOp::create(
      builder, loc,
      RankedTensorType::get(target.getShape(), now.getElementType()), value,
      SmallVector<ReassociationIndices>{allAxes(target.getRank())}, sizes);
}

/// The result times what both maps are multiplied by.
Value Builder::scaled(Value value, ArrayRef<AtomId> order) {
  SmallVector<IndexPoly> position;
  for (AtomId loop : order)
    position.push_back(IndexPoly::atom(loop));
  Expr all = graph.make(Kind::Cast, f32(), {graph.load(value, position)});
  for (Expr factor : found.commonFactors)
    all = graph.make(Kind::Mul, f32(),
                     {all, graph.make(Kind::Cast, f32(), {factor})});
  Type target = elementType(epilogue.result);
  return tensors.generic(
      all, order,
      isa<Float32Type>(target) || isHalfFloat(target) ? target : f32());
}

/// The result with its own axes and element type.
Value Builder::shaped(Value value, ArrayRef<AtomId> order) {
  SmallVector<ReassociationIndices> groups;
  bool grouped = groupsOf(order, groups);
  auto target = cast<RankedTensorType>(epilogue.result.getType());
  Type scalar = elementType(value);
  if (!grouped)
    value = regrouped(value);
  else if (groups.size() != order.size())
    value = tensor::CollapseShapeOp::create(builder, loc, value, groups);
  auto now = cast<RankedTensorType>(value.getType());
  if (grouped && now.getRank() != target.getRank()) {
    SmallVector<ReassociationIndices> insert(now.getRank());
    SmallVector<OpFoldResult> sizes;
    unsigned at = 0;
    bool filled = false;
    for (auto [axis, poly] : llvm::enumerate(plainPosition())) {
      bool unit = poly == IndexPoly(0);
      if (!unit && filled) {
        ++at;
        filled = false;
      }
      insert[at].push_back(axis);
      filled |= !unit;
      sizes.push_back(tensors.size(
          graph.sizeOf(epilogue.result, static_cast<int64_t>(axis))));
    }
    value = tensor::ExpandShapeOp::create(
        builder, loc, RankedTensorType::get(target.getShape(), scalar), value,
        insert, sizes);
  }
  if (scalar != target.getElementType()) {
    SmallVector<IndexPoly> loops = graph.freshLoops(epilogue.result);
    SmallVector<AtomId> ids;
    for (const IndexPoly &loop : loops)
      ids.push_back(*loop.asAtom());
    value =
        tensors.generic(graph.load(value, loops), ids, target.getElementType());
  }
  if (value.getType() != target)
    value = tensor::CastOp::create(builder, loc, target, value);
  return value;
}

/// The gate's logits in the type that holds them as they are.
static Value gateTensor(Builder &b, ArrayRef<AtomId> order) {
  Expr half = fromHalf(b.graph, b.epilogue.gate);
  return half ? b.tensors.tensor(half, order, half->type)
              : b.tensors.tensor(b.epilogue.gate, order, b.f32());
}

Value build(ExprGraph &graph, const Differential &found,
            const Epilogue &epilogue, Type elements,
            const llvm::SetVector<Operation *> &dying, AttentionOp &attention) {
  Operation *anchor = epilogue.result.getDefiningOp();
  OpBuilder builder(anchor);
  Location loc = anchor->getLoc();
  Builder b{graph,   found, epilogue,
            builder, loc,   Materializer(graph, builder, loc),
            elements};
  b.tensors.dying.insert(dying.begin(), dying.end());
  const Roles &r = found.roles;
  std::optional<SmallVector<AtomId>> order = b.resultOrder();
  if (!order)
    return Value();

  // Heads that share a query, a key or a value.
  SmallVector<Expr> noiseExprs{found.second.query, found.second.key};
  noiseExprs.append(found.mask.visible);
  noiseExprs.append(found.mask.bias);
  int64_t noiseShared = b.sharedHeads(noiseExprs, 1);
  int64_t key1Shared = b.sharedHeads({found.first.key}, 1);
  int64_t key2Shared = b.sharedHeads({found.second.key}, noiseShared);
  int64_t valueShared = b.sharedHeads({found.value}, 1);
  AtomId noise = b.groupLoop(noiseShared), key1 = b.groupLoop(key1Shared),
         key2 = b.groupLoop(key2Shared), valueHead = b.groupLoop(valueShared);

  Value q1, q2, k1, k2;
  Layout qLayout, kLayout, vLayout, oLayout;
  b.headTensors(found.first.query, {r.batch, r.head, r.query, r.width},
                b.perGroup(found.second.query, noiseShared, noise),
                {r.batch, noise, r.query, r.width}, q1, q2, qLayout);
  b.headTensors(b.perGroup(found.first.key, key1Shared, key1),
                {r.batch, key1, r.key, r.width},
                b.perGroup(found.second.key, key2Shared, key2),
                {r.batch, key2, r.key, r.width}, k1, k2, kLayout);
  Expr valueExpr = b.perGroup(found.value, valueShared, valueHead);
  auto valueOrders = bothLayouts({r.batch, valueHead, r.key, r.valueWidth});
  unsigned chosen = 0;
  Value v = b.headTensor(valueExpr, valueOrders, chosen);
  if (!v)
    v = b.tensors.generic(valueExpr, valueOrders[chosen], b.type);
  vLayout = chosen == 0 ? Layout::BHTD : Layout::BTHD;

  Activation activation;
  Value lambda = b.lambda(noiseShared, noise, activation);
  Mask mask = found.mask;
  bool causal = false;
  SmallVector<int64_t> window;
  Value offset;
  if (!b.placeBand(mask, causal, window, offset)) {
    // No attribute says this band: a truth value for each pair does.
    Type boolean = builder.getI1Type();
    Expr distance =
        graph.index(IndexPoly::atom(r.key) - IndexPoly::atom(r.query));
    auto require = [&](Expr low, Expr high) {
      mask.visible.push_back(
          graph.make(Kind::CmpI, boolean, {low, high},
                     static_cast<int64_t>(arith::CmpIPredicate::sle)));
    };
    if (mask.band.low)
      require(graph.index(*mask.band.low), distance);
    if (mask.band.high)
      require(distance, graph.index(*mask.band.high));
    causal = false;
    window.clear();
  }
  Value bias = b.bias(noiseShared, noise, mask);
  Value validKeys;
  if (mask.validKeys)
    validKeys =
        b.tensors.tensor(mask.validKeys, {r.batch}, builder.getI64Type());

  bool bthd = (*order)[1] == r.query && (*order)[2] == r.head;
  oLayout = bthd ? Layout::BTHD : Layout::BHTD;
  SmallVector<AtomId> layoutOrder =
      inLayout(oLayout, r.batch, r.head, r.query, r.valueWidth);
  Value weight, gate;
  if (!epilogue.weights.empty())
    weight = b.product(epilogue.weights, {r.valueWidth});
  if (epilogue.gate)
    gate = gateTensor(b, layoutOrder);

  SmallVector<OpFoldResult> sizes;
  for (AtomId loop : layoutOrder)
    sizes.push_back(b.tensors.size(b.extent(loop)));
  // Rounded once: what is not the last of it stays f32.
  bool isLast =
      found.commonFactors.empty() && elementType(epilogue.result) == b.type;
  Type resultType = isLast ? b.type : b.f32();
  Value init = tensor::EmptyOp::create(builder, loc, sizes, resultType);

  // A factor before a norm only moves its eps.
  double outScale = epilogue.outScale, eps = epilogue.eps;
  if (!epilogue.norm) {
    outScale *= found.outScale;
  } else if (found.outScale != 1) {
    double size = std::fabs(found.outScale);
    eps /= epilogue.epsOutside ? size : size * size;
    outScale = found.outScale < 0 ? -outScale : outScale;
  }

  MLIRContext *context = builder.getContext();
  OperationState state(loc, AttentionOp::getOperationName());
  attention = AttentionOp::create(
      builder, loc, init.getType(), q1, k1, q2, k2, v, lambda, bias, weight,
      gate, validKeys, offset, init, builder.getF32FloatAttr(found.first.scale),
      causal ? builder.getUnitAttr() : UnitAttr(),
      window.empty() ? DenseI64ArrayAttr()
                     : builder.getDenseI64ArrayAttr(window),
      found.first.softcap ? builder.getF32FloatAttr(*found.first.softcap)
                          : FloatAttr(),
      ActivationAttr::get(context, activation),
      NormAttr::get(context, epilogue.norm ? Norm::RMS : Norm::None),
      builder.getF32FloatAttr(epilogue.norm ? eps : 1e-5f),
      EpsModeAttr::get(context, epilogue.epsOutside ? EpsMode::Outside
                                                    : EpsMode::Inside),
      builder.getF32FloatAttr(outScale), LayoutAttr::get(context, qLayout),
      LayoutAttr::get(context, kLayout), LayoutAttr::get(context, vLayout),
      LayoutAttr::get(context, oLayout), /*schedule=*/nullptr);
  Value result = attention.getResult();
  if (!found.commonFactors.empty())
    result = b.scaled(result, layoutOrder);
  if (layoutOrder != *order) {
    SmallVector<int64_t> permutation;
    SmallVector<OpFoldResult> permuted;
    for (AtomId loop : *order) {
      permutation.push_back(llvm::find(layoutOrder, loop) -
                            layoutOrder.begin());
      permuted.push_back(sizes[permutation.back()]);
    }
    Value empty =
        tensor::EmptyOp::create(builder, loc, permuted, elementType(result));
    result =
        linalg::TransposeOp::create(builder, loc, result, empty, permutation)
            ->getResult(0);
  }
  return b.shaped(result, *order);
}

} // namespace mlir::diffattn::raise
