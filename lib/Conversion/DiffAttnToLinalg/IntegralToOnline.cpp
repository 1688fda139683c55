//===- IntegralToOnline.cpp - integral attention as states ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// X = A1 V - lambda (A2 V - mean over queries of A1 V): the states of both maps
// over all keys, the mean of the first one's rows, and a finalize whose second
// map is what lambda is multiplied with.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/DiffAttnToLinalg.h"

#include "Epilogue.h"
#include "StructuredBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;
using utils::IteratorType;

// Loops of the generics below, in their order: batch, head, query, column.
static constexpr int64_t b = 0, h = 1, i = 2, c = 3;
static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

StateOps diffattn::rewriteIntegral(RewriterBase &rewriter, AttentionOp op) {
  const bool onTensors = static_cast<bool>(op.getResult());
  StructuredBuilder sb(rewriter, op.getLoc(), onTensors);
  const int64_t queryAxis = AttentionOp::lengthAxis(op.getQLayout());
  const int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  const int64_t heads2 =
      OnlineAttentionOp::accumulator2Heads(signal, noise, op.getValueHeads());
  const OpFoldResult batch = sb.size(op.getQ1(), 0),
                     queries = sb.size(op.getQ1(), queryAxis),
                     width = sb.size(op.getV(), 3);
  auto heads = [&](int64_t count) -> OpFoldResult {
    return rewriter.getIndexAttr(count);
  };
  auto rows = [&](int64_t count, float value) {
    return sb.filled({batch, heads(count), queries}, value);
  };
  auto sums = [&](int64_t count) {
    return sb.filled({batch, heads(count), queries, width}, 0.0f);
  };
  constexpr float inf = std::numeric_limits<float>::infinity();
  SmallVector<Value> states{rows(signal, -inf), rows(signal, 0.0f),
                            sums(signal),       rows(noise, -inf),
                            rows(noise, 0.0f),  sums(heads2)};
  auto online = OnlineAttentionOp::create(rewriter, op.getLoc(), op,
                                          op.getQOffset(), states);
  if (onTensors)
    states.assign(online.getResults().begin(), online.getResults().end());
  auto [max1, sum1, acc1, max2, sum2, acc2] = std::tie(
      states[0], states[1], states[2], states[3], states[4], states[5]);

  Value total = sb.generic(
      {{acc1, {b, h, i, c}}, {sum1, {b, h, i}}},
      sb.filled({batch, heads(signal), width}, 0.0f), {b, h, c},
      {par, par, red, par}, [](ImplicitLocOpBuilder &ib, ValueRange args) {
        Value row = normalized(ib, args[0], args[1]);
        return Value(arith::AddFOp::create(ib, args[2], row));
      });
  Value count = sb.sizeAsF32(op.getQ1(), queryAxis);
  Value second = sb.generic(
      {{acc2, {b, Axis(h, heads(signal / heads2)), i, c}},
       {sum2, {b, Axis(h, heads(signal / noise)), i}},
       {total, {b, h, c}}},
      sb.empty({batch, heads(signal), queries, width}), {b, h, i, c},
      {par, par, par, par}, [&](ImplicitLocOpBuilder &ib, ValueRange args) {
        Value row = normalized(ib, args[0], args[1]);
        Value mean = arith::DivFOp::create(ib, args[2], count);
        return Value(arith::SubFOp::create(ib, row, mean));
      });
  // Its rows are divided already.
  states = {max1, sum1, acc1, max2, rows(noise, 1.0f), second};
  auto finalize = FinalizeOp::create(rewriter, op.getLoc(), op, states);
  sb.freeTemporaries();
  return {online, finalize};
}
