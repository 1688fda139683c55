//===- HostLaunch.cpp - launches for attention ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostLaunch.h"
#include "LaunchBuilder.h"

#include "mlir/Dialect/Utils/StaticValueUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

GpuKernelSpec mlir::diffattn::getMapsSpec(DifferentialMapsOpInterface op,
                                          ScheduleAttrInterface schedule,
                                          bool elementwise) {
  auto elementType = [&](Value value) {
    return cast<ShapedType>(value.getType()).getElementType();
  };
  GpuKernelSpec spec;
  spec.elementType = elementType(op.getQ1());
  spec.headDim = op.getHeadDim();
  spec.valueDim = op.getValueDim();
  spec.schedule = schedule;
  spec.elementwise = elementwise;
  spec.maps = op.hasSecondMap() ? 2 : 1;
  spec.sharedKeys = op.getK1() == op.getK2();
  auto tableType = [&](Value table) {
    return table ? elementType(table) : Type();
  };
  spec.queryBoundType = tableType(op.getCuSeqlensQ());
  spec.keyBoundType = tableType(op.getCuSeqlensK());
  spec.pageType = tableType(op.getBlockTable());
  ScoreRules scores = getScoreRules(op);
  spec.masks = getGpuKernelMasks(op.getContext(), scores.masks);
  for (MaskAttrInterface mask : spec.masks)
    for (MaskOperand operand : mask.getMaskOperands())
      if (getGpuMaskParams(operand))
        spec.maskTypes[static_cast<size_t>(operand)] =
            elementType(op.findMaskOperand(operand)->get());
  spec.softcap = scores.softcap.has_value();
  // A maximum of products is a maximum of scores only if the scale is positive.
  // A large scale is multiplied after the maximum is subtracted: products with
  // it are rounded to numbers whose difference is no longer near 0.
  spec.scaleFirst = scores.scale <= 0.0f || scores.scale > 16.0f;
  return spec;
}

/// Sets the types of the result and of the epilogue's operands.
static void setEpilogue(HeadEpilogueOpInterface op, GpuKernelSpec &spec) {
  auto elementType = [&](Value value) {
    return value ? cast<ShapedType>(value.getType()).getElementType() : Type();
  };
  spec.resultType = elementType(op.getInit());
  spec.normWeightType = elementType(op.getNormWeight());
  spec.gateType = elementType(op.getGate());
  const AttentionOperands operands = getAttentionOperands(op);
  spec.savedType = elementType(operands.x.value);
  spec.secondType = elementType(operands.o2.value);
  for (unsigned map = 0; map < 2; ++map) {
    spec.sinkTypes[map] = elementType(operands.sinks[map].value);
    spec.storesLogSums[map] = bool(operands.lses[map]);
  }
}

GpuKernelSpec mlir::diffattn::getGpuKernelSpec(AttentionOp op,
                                               ScheduleAttrInterface schedule,
                                               bool elementwise) {
  GpuKernelSpec spec = getMapsSpec(op, schedule, elementwise);
  setEpilogue(op, spec);
  return spec;
}

GpuKernelSpec mlir::diffattn::getGpuKernelSpec(OnlineAttentionOp op,
                                               bool elementwise) {
  GpuKernelSpec spec = getMapsSpec(op, op.getScheduleAttr(), elementwise);
  spec.kind = GpuKernelKind::Decode;
  return spec;
}

GpuKernelSpec mlir::diffattn::getGpuKernelSpec(FinalizeOp op) {
  GpuKernelSpec spec;
  spec.kind = GpuKernelKind::Merge;
  spec.maps = op.hasSecondMap() ? 2 : 1;
  spec.valueDim = op.getValueDim();
  setEpilogue(op, spec);
  return spec;
}

bool mlir::diffattn::mayCopyChunks(const GpuKernelSpec &spec) {
  return !spec.isPlain() && !spec.isPlainGradients() && spec.headDim % 8 == 0 &&
         spec.valueDim % 8 == 0;
}

namespace {
class AttentionLaunch {
public:
  AttentionLaunch(RewriterBase &rewriter, AttentionOp op,
                  gpu::GPUModuleOp module)
      : op(op), host(rewriter, op.getLoc(), getAttentionOperands(op), module) {}
  void emit(ArrayRef<ScheduleCase> cases);

private:
  void launch(const GpuKernelSpec &spec);
  /// Launches blocks that take tiles of queries, `tiles` of each head.
  void launchPersistent(const GpuKernelSpec &spec, Value tiles);
  /// How operands are copied, as far as enclosing branches have checked.
  enum class Copies { Unchecked, Chunks, Elements };
  /// Launches the kernel of the first of `cases` that holds.
  void launchCases(ArrayRef<ScheduleCase> cases, Copies copies);
  /// The kernel of `schedule`, or one of two by whether 16 bytes can be copied.
  void launchSchedule(ScheduleAttrInterface schedule, Copies copies);

  AttentionOp op;
  LaunchBuilder host;
  Value batches, signalHeads, queries, keys, chunksAllowed;
};
} // namespace

void AttentionLaunch::launch(const GpuKernelSpec &spec) {
  const int64_t rows = spec.getClusterRows();
  Value clusters = spec.isPacked() ? host.countParts(queries, host.index(rows))
                                   : host.ceilDiv(queries, rows);
  if (spec.isPersistent())
    return launchPersistent(spec, clusters);
  host.launch(spec, {host.compute<arith::MulIOp>(
                         clusters, host.index(spec.getClusterBlocks())),
                     signalHeads, spec.isPacked() ? host.index(1) : batches});
}

void AttentionLaunch::launchPersistent(const GpuKernelSpec &spec, Value tiles) {
  using P = GpuParam;
  Value one = host.index(1);
  Value heads = signalHeads;
  if (!spec.isPacked())
    heads = host.compute<arith::MulIOp>(heads, batches);
  host.argument(P::QueryTiles) = host.i32(tiles);
  host.argument(P::Heads) = host.i32(signalHeads);
  host.argument(P::AllHeads) = host.i32(heads);
  host.argument(P::SectionHeads) =
      host.i32(host.countSectionHeads(spec, heads));
  Value all = host.compute<arith::MulIOp>(tiles, heads);
  const int64_t blocks = spec.getPersistentBlocks();
  // A counter must be set first, which takes about as long as a launch does.
  host.choose(
      host.compare(arith::CmpIPredicate::ule, all, blocks),
      [&] {
        host.argument(P::Counter) = LLVM::ZeroOp::create(
            host.b, LLVM::LLVMPointerType::get(host.b.getContext(), 1));
        host.launch(spec, {all, one, one});
      },
      [&] {
        Value counter = host.allocateCounter();
        host.setPointer(P::Counter, counter);
        host.launch(spec, {host.index(blocks), one, one});
        gpu::DeallocOp::create(host.b, TypeRange(), ValueRange(), counter);
      });
}

void AttentionLaunch::launchSchedule(ScheduleAttrInterface schedule,
                                     Copies copies) {
  auto launchCopying = [&](bool elementwise) {
    launch(getGpuKernelSpec(op, schedule, elementwise));
  };
  if (isa<GpuWgmmaAttr>(schedule)) {
    GpuKernelSpec spec = getGpuKernelSpec(op, schedule, /*elementwise=*/false);
    host.fillMaps(spec);
    return launch(spec);
  }
  if (!chunksAllowed || copies == Copies::Elements)
    return launchCopying(/*elementwise=*/true);
  if (copies == Copies::Chunks)
    return launchCopying(/*elementwise=*/false);
  host.choose(
      chunksAllowed, [&] { launchCopying(/*elementwise=*/false); },
      [&] { launchCopying(/*elementwise=*/true); });
}

void AttentionLaunch::launchCases(ArrayRef<ScheduleCase> cases, Copies copies) {
  const ScheduleCase &first = cases.front();
  ArrayRef<ScheduleCase> others = cases.drop_front();
  if (first.unaligned && copies == Copies::Unchecked)
    return host.choose(
        chunksAllowed, [&] { launchCases(cases, Copies::Chunks); },
        [&] { launchCases(cases, Copies::Elements); });
  if (first.unaligned && copies == Copies::Chunks)
    return launchCases(others, copies);
  Value holds;
  if (first.maxQueries)
    holds = host.hasAtMost(queries, *first.maxQueries);
  if (first.minKeys) {
    Value enough =
        host.compare(arith::CmpIPredicate::uge, keys, *first.minKeys);
    holds = holds ? host.compute<arith::AndIOp>(holds, enough) : enough;
  }
  if (first.tensorMaps) {
    Value describable = host.canUseMaps(
        getGpuKernelSpec(op, first.schedule, /*elementwise=*/false)
            .storesByMap());
    holds =
        holds ? host.compute<arith::AndIOp>(holds, describable) : describable;
  }
  if (!holds)
    return launchSchedule(first.schedule, copies);
  host.choose(
      holds, [&] { launchSchedule(first.schedule, copies); },
      [&] { launchCases(others, copies); });
}

void AttentionLaunch::emit(ArrayRef<ScheduleCase> cases) {
  batches = host.size(host.operands.output, OperandView::Batch);
  queries = host.size(host.operands.output, OperandView::Row);
  keys = host.keyCount();
  signalHeads = host.size(host.operands.q1, OperandView::Head);
  host.choose(host.hasRows(batches, queries), [&] {
    const GpuKernelSpec spec =
        getGpuKernelSpec(op, cases.front().schedule, /*elementwise=*/false);
    EpilogueRules epilogue = getEpilogueRules(op);
    host.fillScores(getScoreRules(op), spec.scaledScores());
    Value signalPerNoise;
    if (op.hasSecondMap())
      signalPerNoise = host.sharing(host.operands.q1, host.operands.q2);
    host.fillEpilogue(epilogue, signalHeads, signalPerNoise);
    host.fillFlags(epilogue);
    if (mayCopyChunks(spec))
      chunksAllowed = host.canCopyChunks();
    launchCases(cases, Copies::Unchecked);
  });
}

void mlir::diffattn::replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                                     gpu::GPUModuleOp module,
                                     ArrayRef<ScheduleCase> cases) {
  OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  AttentionLaunch(rewriter, op, module).emit(cases);
  rewriter.eraseOp(op);
}
