//===- StateLaunch.cpp - launches for ops on states ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostLaunch.h"
#include "LaunchBuilder.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Signal heads that a block of `op` takes.
static Value blockHeads(LaunchBuilder &host, OnlineAttentionOp op,
                        Value queries) {
  GpuAttentionShape shape = getGpuAttentionShape(op);
  if (!ShapedType::isDynamic(shape.queries))
    return host.index(shape.group);
  // The largest part of the group whose rows fit.
  Value group = host.index(1);
  for (int64_t part = 2; part <= kGpuDecodeRows; ++part)
    if (shape.group % part == 0)
      group = arith::SelectOp::create(
          host.b, host.hasAtMost(queries, kGpuDecodeRows / part),
          host.index(part), group);
  return group;
}

/// Arguments for `states` of ranges: (max, sum, acc) of each map.
static void setStates(LaunchBuilder &host, ValueRange states) {
  using P = GpuParam;
  const P params[] = {P::Max1, P::Sum1, P::Acc1, P::Max2, P::Sum2, P::Acc2};
  for (auto [number, state] : llvm::enumerate(states))
    host.setPointer(params[number], state);
  if (states.size() < std::size(params))
    return;
  auto heads = [](Value state) {
    return cast<MemRefType>(state.getType()).getDimSize(2);
  };
  host.argument(P::SignalPerAcc2) =
      host.i32(heads(states[1]) / heads(states[5]));
}

void mlir::diffattn::replaceByLaunch(RewriterBase &rewriter,
                                     OnlineAttentionOp op,
                                     gpu::GPUModuleOp module) {
  using P = GpuParam;
  OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  LaunchBuilder host(rewriter, op.getLoc(), getAttentionOperands(op), module);
  const GpuKernelSpec spec = getGpuKernelSpec(op, /*elementwise=*/false);
  host.fillScores(getScoreRules(op), spec.scaledScores());
  host.fillFlags(std::nullopt);
  setStates(host, op.getStates());

  Value queries = host.size(host.operands.q1, OperandView::Row);
  Value heads = host.size(host.operands.q1, OperandView::Head);
  Value group = blockHeads(host, op, queries);
  host.argument(P::Group) = host.i32(group);
  host.argument(P::SplitKeys) = host.i32(op.getScheduleAttr().getKvSplitSize());
  if (op.hasSecondMap())
    host.argument(P::NoiseHeads) =
        host.i32(host.size(host.operands.q2, OperandView::Head));
  std::array<Value, 3> blocks = {
      host.size(op.getMax1(), 0), host.compute<arith::DivUIOp>(heads, group),
      host.size(host.operands.q1, OperandView::Batch)};
  if (spec.isPacked()) {
    Value most =
        host.compute<arith::DivUIOp>(host.index(kGpuDecodeRows), group);
    blocks = {host.countParts(queries, most), blocks[1], blocks[0]};
  }
  auto launch = [&](bool elementwise) {
    host.launch(getGpuKernelSpec(op, elementwise), blocks);
  };
  if (spec.isBulk()) {
    host.fillMaps(spec);
    launch(/*elementwise=*/false);
  } else if (mayCopyChunks(spec))
    host.choose(
        host.canCopyChunks(), [&] { launch(/*elementwise=*/false); },
        [&] { launch(/*elementwise=*/true); });
  else
    launch(/*elementwise=*/true);
  rewriter.eraseOp(op);
}

/// The op of the block of `op` that merges ranges into `sum`, `acc` and, unless
/// it is null, `max`, if these have no uses but by it, `op` and their
/// deallocation.
static MergeOp findMerge(FinalizeOp op, Value max, Value sum, Value acc) {
  MergeOp merge;
  for (Operation *user : acc.getUsers())
    if (auto writer = dyn_cast<MergeOp>(user))
      if (writer.getInitAcc() == acc && writer.getInitSum() == sum &&
          (!max || writer.getInitMax() == max) && writer.joinsRanges() &&
          writer->getBlock() == op->getBlock() && writer->isBeforeInBlock(op))
        merge = writer;
  if (!merge)
    return {};
  for (Value buffer : merge.getDpsInits())
    if (!buffer.getDefiningOp<memref::AllocOp>() ||
        llvm::any_of(buffer.getUsers(), [&](Operation *user) {
          return user != merge && user != op && !isa<memref::DeallocOp>(user);
        }))
      return {};
  return merge;
}

FailureOr<MergedEnd> mlir::diffattn::findMerges(FinalizeOp op) {
  MergedEnd ops{
      findMerge(op, op.getMax1(), op.getSum1(), op.getAcc1()), {}, op};
  if (op.hasSecondMap())
    ops.merge2 = findMerge(op, op.getMax2(), op.getSum2(), op.getAcc2());
  if (!ops.merge1 || (op.hasSecondMap() && !ops.merge2))
    return op.emitOpError()
           << "expected states of "
           << (op.hasSecondMap() ? "two merges" : "a merge")
           << " over ranges of keys, in buffers that nothing else uses, but "
              "got others";
  return ops;
}

void mlir::diffattn::replaceByLaunch(RewriterBase &rewriter,
                                     const MergedEnd &ops,
                                     gpu::GPUModuleOp module) {
  using P = GpuParam;
  FinalizeOp op = ops.finalize;
  OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  LaunchBuilder host(rewriter, op.getLoc(), getAttentionOperands(op), module);
  const int64_t signal = op.getSignalHeads();
  EpilogueRules epilogue = getEpilogueRules(op);
  host.fillEpilogue(epilogue, host.index(signal),
                    op.hasSecondMap() ? host.index(signal / op.getNoiseHeads())
                                      : Value());
  host.fillFlags(epilogue);
  SmallVector<MergeOp> merges{ops.merge1};
  if (ops.merge2)
    merges.push_back(ops.merge2);
  SmallVector<Value> states;
  for (MergeOp merge : merges)
    states.append({merge.getMax(), merge.getSum(), merge.getAcc()});
  setStates(host, states);
  host.argument(P::Splits) = host.i32(host.size(states.front(), 0));
  host.launch(getGpuKernelSpec(op),
              {host.size(host.operands.output, OperandView::Row),
               host.index(signal),
               host.size(host.operands.output, OperandView::Batch)});

  SmallVector<Value> between;
  for (MergeOp merge : merges)
    llvm::append_range(between, merge.getDpsInits());
  rewriter.eraseOp(op);
  for (MergeOp merge : merges)
    rewriter.eraseOp(merge);
  for (Value buffer : between) {
    for (Operation *end : llvm::make_early_inc_range(buffer.getUsers()))
      rewriter.eraseOp(end);
    rewriter.eraseOp(buffer.getDefiningOp());
  }
}
