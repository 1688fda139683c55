//===- SplitKVPass.cpp - split-KV decode as ops on states ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/Passes.h"
#include "HostLaunch.h"
#include "LaunchBuilder.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/Support/MathExtras.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SPLITKVPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// States (max, sum, acc) of each map, of ranges of keys or joined.
using States = SmallVector<Value>;

namespace {
class SplitKV {
public:
  SplitKV(RewriterBase &rewriter, AttentionOp op)
      : rewriter(rewriter), op(op),
        host(rewriter, op.getLoc(), getAttentionOperands(op)) {}
  /// Replaces the op, whose GPU schedules are `cases`.
  void emit(ArrayRef<ScheduleCase> cases);

private:
  void emitCases(ArrayRef<ScheduleCase> cases);
  Value conditionOf(const ScheduleCase &choice);
  void emitStates(GpuSplitKVAttr schedule);
  /// Sizes of a state, with an axis of ranges in front if `ranges`.
  SmallVector<Value> stateSizes(unsigned number, Value ranges);
  MemRefType stateType(ArrayRef<Value> sizes);
  SmallVector<Value> dynamicSizes(ArrayRef<Value> sizes);

  RewriterBase &rewriter;
  AttentionOp op;
  LaunchBuilder host;
  Value batches, queries;
};
} // namespace

/// Whether a call may take a schedule of the family.
static bool takesSplit(ArrayRef<ScheduleCase> cases) {
  return llvm::any_of(cases, [](const ScheduleCase &choice) {
    return isa<GpuSplitKVAttr>(choice.schedule);
  });
}

SmallVector<Value> SplitKV::stateSizes(unsigned number, Value ranges) {
  const int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  int64_t heads = number < 3 ? signal : noise;
  if (number == 5)
    heads =
        OnlineAttentionOp::accumulator2Heads(signal, noise, op.getValueHeads());
  SmallVector<Value> sizes;
  if (ranges)
    sizes.push_back(ranges);
  sizes.append({batches, host.index(heads), queries});
  if (number % 3 == 2)
    sizes.push_back(host.index(op.getValueDim()));
  return sizes;
}

MemRefType SplitKV::stateType(ArrayRef<Value> sizes) {
  SmallVector<int64_t> shape;
  for (Value size : sizes)
    shape.push_back(getConstantIntValue(size).value_or(ShapedType::kDynamic));
  return MemRefType::get(shape, host.b.getF32Type());
}

SmallVector<Value> SplitKV::dynamicSizes(ArrayRef<Value> sizes) {
  SmallVector<Value> dynamic;
  for (Value size : sizes)
    if (!getConstantIntValue(size))
      dynamic.push_back(size);
  return dynamic;
}

void SplitKV::emitStates(GpuSplitKVAttr schedule) {
  ImplicitLocOpBuilder &b = host.b;
  const int64_t splitSize = schedule.getKvSplitSize();
  Value keys = host.keyCount();
  // One range even without keys: merges always read the first.
  Value ranges = host.compute<arith::MaxUIOp>(host.ceilDiv(keys, splitSize),
                                              host.index(1));
  // All states of ranges lie in one allocation, one behind the other.
  Value bytes = host.index(0);
  SmallVector<SmallVector<Value>> sizes;
  SmallVector<Value> shifts;
  const unsigned states = op.hasSecondMap() ? 6 : 3;
  for (unsigned number = 0; number < states; ++number) {
    sizes.push_back(stateSizes(number, ranges));
    Value count = host.index(sizeof(float));
    for (Value size : sizes.back())
      count = host.compute<arith::MulIOp>(count, size);
    shifts.push_back(bytes);
    bytes = host.compute<arith::AddIOp>(bytes, count);
  }
  Value workspace =
      gpu::AllocOp::create(
          b, MemRefType::get({ShapedType::kDynamic}, b.getI8Type()), Type(),
          ValueRange(), ValueRange{bytes}, ValueRange())
          .getMemref();
  States split, joined;
  for (unsigned number = 0; number < states; ++number) {
    split.push_back(memref::ViewOp::create(b, stateType(sizes[number]),
                                           workspace, shifts[number],
                                           dynamicSizes(sizes[number])));
    SmallVector<Value> one = stateSizes(number, /*ranges=*/{});
    joined.push_back(
        memref::AllocOp::create(b, stateType(one), dynamicSizes(one)));
  }
  auto online =
      OnlineAttentionOp::create(b, op, op.getQOffset(), split, splitSize);
  online.setScheduleAttr(schedule);
  for (unsigned map = 0; map < states; map += 3)
    MergeOp::create(b, TypeRange(), split[map], split[map + 1], split[map + 2],
                    joined[map], joined[map + 1], joined[map + 2]);
  FinalizeOp::create(b, op, joined);
  for (Value buffer : joined)
    memref::DeallocOp::create(b, buffer);
  gpu::DeallocOp::create(b, TypeRange(), ValueRange(), workspace);
}

Value SplitKV::conditionOf(const ScheduleCase &choice) {
  Value holds = arith::ConstantIntOp::create(host.b, 1, 1);
  if (choice.maxQueries)
    holds = host.compute<arith::AndIOp>(
        holds, host.hasAtMost(queries, *choice.maxQueries));
  if (choice.minKeys)
    holds = host.compute<arith::AndIOp>(
        holds, host.compare(arith::CmpIPredicate::uge, host.keyCount(),
                            *choice.minKeys));
  if (choice.tensorMaps)
    holds = host.compute<arith::AndIOp>(
        holds, host.canUseMaps(/*storesResult=*/false));
  if (choice.unaligned)
    holds = host.compute<arith::AndIOp>(
        holds,
        host.compute<arith::XOrIOp>(
            host.canCopyChunks(), arith::ConstantIntOp::create(host.b, 1, 1)));
  return holds;
}

void SplitKV::emitCases(ArrayRef<ScheduleCase> cases) {
  auto emitAttention = [&](ArrayAttr schedules) {
    auto clone = cast<AttentionOp>(host.b.clone(*op));
    clone.setSchedulesAttr(schedules);
  };
  if (!takesSplit(cases)) {
    SmallVector<Attribute> rest;
    for (const ScheduleCase &choice : cases)
      rest.push_back(
          choice.isAlways()
              ? Attribute(choice.schedule)
              : WhenAttr::get(op.getContext(), choice.maxQueries.value_or(0),
                              choice.minKeys.value_or(0), choice.unaligned,
                              choice.tensorMaps, choice.schedule));
    return emitAttention(host.b.getArrayAttr(rest));
  }
  const ScheduleCase &first = cases.front();
  host.choose(
      conditionOf(first),
      [&] {
        if (auto schedule = dyn_cast<GpuSplitKVAttr>(first.schedule))
          emitStates(schedule);
        else
          emitAttention(host.b.getArrayAttr({first.schedule}));
      },
      [&] { emitCases(cases.drop_front()); });
}

void SplitKV::emit(ArrayRef<ScheduleCase> cases) {
  batches = host.size(host.operands.q1, OperandView::Batch);
  queries = host.size(host.operands.q1, OperandView::Row);
  host.choose(host.hasRows(batches, queries), [&] { emitCases(cases); });
  rewriter.eraseOp(op);
}

LogicalResult mlir::diffattn::splitKeys(RewriterBase &rewriter,
                                        Operation *root) {
  SmallVector<std::pair<AttentionOp, SmallVector<ScheduleCase>>> ops;
  WalkResult walk = root->walk([&](AttentionOp op) {
    SmallVector<ScheduleCase> cases = getScheduleCases(op, ScheduleTarget::GPU);
    if (!takesSplit(cases))
      return WalkResult::advance();
    if (!isa<MemRefType>(op.getInit().getType())) {
      op.emitOpError() << "expected memrefs, but got tensors: bufferize first";
      return WalkResult::interrupt();
    }
    if (failed(verifyScheduleCases(op, cases)))
      return WalkResult::interrupt();
    ops.push_back({op, cases});
    return WalkResult::advance();
  });
  if (walk.wasInterrupted())
    return failure();
  OpBuilder::InsertionGuard guard(rewriter);
  for (auto &[op, cases] : ops) {
    rewriter.setInsertionPoint(op);
    SplitKV(rewriter, op).emit(cases);
  }
  return success();
}

namespace {
struct SplitKVPass final : diffattn::impl::SplitKVPassBase<SplitKVPass> {
  void runOnOperation() override {
    IRRewriter rewriter(&getContext());
    if (failed(splitKeys(rewriter, getOperation())))
      signalPassFailure();
  }
};
} // namespace
