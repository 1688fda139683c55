//===- Build.cpp - writing the op -----------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Build.h"

#include "AttentionBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>

namespace mlir::diffattn::raise {

/// A band of visible keys as `is_causal`, `window` and `q_offset`.
bool AttentionBuilder::placeBand(Mask &mask, bool &causal,
                                 SmallVectorImpl<int64_t> &window,
                                 Value &offset) {
  const Band &band = mask.band;
  causal = false;
  if (!band.low && !band.high)
    return true;
  const Roles &r = match.roles;
  // With a number of valid keys the op's queries would end at the last of
  // these, unless it has a q_offset.
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

Value build(ExprGraph &graph, const Differential &match,
            const Epilogue &epilogue, Type elements,
            const llvm::SetVector<Operation *> &dying, AttentionOp &attention,
            std::string &reason) {
  std::optional<OutputNumbers> numbers = outputNumbers(match, epilogue, reason);
  if (!numbers)
    return Value();
  Operation *anchor = epilogue.result.getDefiningOp();
  OpBuilder builder(anchor);
  Location loc = anchor->getLoc();
  AttentionBuilder b{graph,   match, epilogue,
                     builder, loc,   Materializer(graph, builder, loc),
                     elements};
  b.tensors.dying.insert(dying.begin(), dying.end());
  const Roles &r = match.roles;
  std::optional<SmallVector<AtomId>> order = b.resultOrder();
  if (!order) {
    reason = "the axes of the result are no order of batch, head, query and "
             "width";
    return Value();
  }

  if (b.extent(r.width).constant() == 0 ||
      b.extent(r.valueWidth).constant() == 0) {
    reason = "its queries or values have a width of 0";
    return Value();
  }

  SmallVector<IndexPoly> needed;
  for (AtomId loop : {r.batch, r.head, r.query, r.key, r.width, r.valueWidth})
    needed.push_back(b.extent(loop));
  for (int64_t axis = 0; axis < static_cast<int64_t>(epilogue.position.size());
       ++axis)
    needed.push_back(graph.sizeOf(epilogue.result, axis));
  if (!llvm::all_of(needed, [&](const IndexPoly &size) {
        return b.tensors.canCompute(size);
      })) {
    reason = "a size of the result is not known before it";
    return Value();
  }

  // Heads that share a query, a key or a value.
  int64_t noiseShared = 1;
  if (match.second) {
    SmallVector<Expr> noiseExprs{match.second->query, match.second->key};
    noiseExprs.append(match.mask.visible);
    noiseExprs.append(match.mask.bias);
    noiseShared = b.sharedHeads(noiseExprs, 1);
  }
  int64_t key1Shared = b.sharedHeads({match.first.key}, 1);
  int64_t valueShared = b.sharedHeads({match.value}, 1);
  AtomId noise = b.groupLoop(noiseShared), key1 = b.groupLoop(key1Shared),
         valueHead = b.groupLoop(valueShared);

  Value q1, q2, k1, k2;
  Layout qLayout, kLayout, vLayout, oLayout;
  Expr key1Expr = b.perGroup(match.first.key, key1Shared, key1);
  if (match.second) {
    int64_t key2Shared = b.sharedHeads({match.second->key}, noiseShared);
    AtomId key2 = b.groupLoop(key2Shared);
    b.headTensors(match.first.query, {r.batch, r.head, r.query, r.width},
                  b.perGroup(match.second->query, noiseShared, noise),
                  {r.batch, noise, r.query, r.width}, q1, q2, qLayout);
    b.headTensors(key1Expr, {r.batch, key1, r.key, r.width},
                  b.perGroup(match.second->key, key2Shared, key2),
                  {r.batch, key2, r.key, r.width}, k1, k2, kLayout);
  } else {
    q1 = b.headTensor(match.first.query, {r.batch, r.head, r.query, r.width},
                      qLayout);
    k1 = b.headTensor(key1Expr, {r.batch, key1, r.key, r.width}, kLayout);
  }
  Value v = b.headTensor(b.perGroup(match.value, valueShared, valueHead),
                         {r.batch, valueHead, r.key, r.valueWidth}, vLayout);

  Value lambda;
  Activation activation = Activation::Identity;
  if (match.second)
    lambda = b.lambda(noiseShared, noise, activation);
  Mask mask = match.mask;
  bool causal = false;
  SmallVector<int64_t> window;
  Value offset;
  if (!b.placeBand(mask, causal, window, offset)) {
    // No attribute expresses this band: a truth value for each pair does.
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

  Value sink;
  if (match.sink) {
    Type type = match.sink->type == b.type ? b.type : b.f32();
    sink = b.tensors.tensor(graph.make(Kind::Cast, type, {match.sink}),
                            {r.head}, type);
  }

  Value querySegments, keySegments;
  if (mask.segments) {
    Type ids = mask.segments->query->type;
    querySegments =
        b.tensors.tensor(mask.segments->query, {r.batch, r.query}, ids);
    keySegments = b.tensors.tensor(mask.segments->key, {r.batch, r.key}, ids);
  }

  bool bthd = (*order)[1] == r.query && (*order)[2] == r.head;
  oLayout = bthd ? Layout::BTHD : Layout::BHTD;
  SmallVector<AtomId> layoutOrder =
      inLayout(oLayout, r.batch, r.head, r.query, r.valueWidth);
  Value weight, gate;
  if (!epilogue.weights.empty())
    weight = b.product(epilogue.weights, {r.valueWidth});
  if (epilogue.gate)
    gate = b.gate(layoutOrder);

  SmallVector<OpFoldResult> sizes;
  for (AtomId loop : layoutOrder)
    sizes.push_back(b.tensors.size(b.extent(loop)));
  // Rounded once: what is not the last of it stays f32.
  bool isLast =
      match.commonFactors.empty() && elementType(epilogue.result) == b.type;
  Type resultType = isLast ? b.type : b.f32();
  Value init = tensor::EmptyOp::create(builder, loc, sizes, resultType);

  attention = AttentionOp::create(builder, loc, q1, k1, q2, k2, v, lambda, init,
                                  match.first.scale, causal);
  if (bias)
    attention.getBiasMutable().assign(bias);
  if (sink)
    attention.getSinkMutable().assign(sink);
  if (weight)
    attention.getNormWeightMutable().assign(weight);
  if (gate)
    attention.getGateMutable().assign(gate);
  if (validKeys)
    attention.getKvLenMutable().assign(validKeys);
  if (offset)
    attention.getQOffsetMutable().assign(offset);
  if (mask.segments) {
    attention.getQSegmentsMutable().assign(querySegments);
    attention.getKvSegmentsMutable().assign(keySegments);
  }
  if (!window.empty())
    attention.setWindow(window);
  if (match.first.softcap)
    attention.setSoftcapAttr(builder.getF32FloatAttr(*match.first.softcap));
  attention.setLambdaAct(activation);
  attention.setNorm(epilogue.norm ? Norm::RMS : Norm::None);
  attention.setNormEpsAttr(
      builder.getF32FloatAttr(static_cast<float>(numbers->eps)));
  attention.setNormEpsMode(epilogue.epsOutside ? EpsMode::Outside
                                               : EpsMode::Inside);
  attention.setOutScaleAttr(
      builder.getF32FloatAttr(static_cast<float>(numbers->outScale)));
  attention.setQLayout(qLayout);
  attention.setKLayout(kLayout);
  attention.setVLayout(vLayout);
  attention.setOLayout(oLayout);
  Value result = attention.getResult();
  if (!match.commonFactors.empty())
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
