//===- GradientLaunch.cpp - launches of kernels for gradients -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GradientLaunch.h"
#include "HostLaunch.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

using View = OperandView;

static Type elementOf(const View &view) {
  return view ? view.getType().getElementType() : Type();
}

GpuKernelSpec mlir::diffattn::getGradientRowsSpec(AttentionBackwardOp op,
                                                  bool elementwise) {
  const BackwardOperands operands = getBackwardOperands(op);
  GpuKernelSpec spec;
  spec.kind = GpuKernelKind::GradientRows;
  spec.elementType = elementOf(operands.q1);
  spec.gradientType = elementOf(operands.dOut);
  spec.savedType = elementOf(operands.x);
  spec.valueDim =
      cast<DifferentialMapsOpInterface>(op.getOperation()).getValueDim();
  spec.maps = operands.q2 ? 2 : 1;
  spec.elementwise = elementwise;
  for (int64_t map = 0; map < spec.maps; ++map)
    spec.storesLogSums[map] = true;
  if (spec.maps == 2) {
    spec.secondType = elementOf(operands.o2);
    spec.sumsLambda = operands.dLambda && operands.dLambda.axes[View::Row] < 0;
  }
  spec.gateType = elementOf(operands.gate);
  spec.gateGradientType = elementOf(operands.dGate);
  spec.normWeightType = elementOf(operands.normWeight);
  spec.weightGradientType = elementOf(operands.dNormWeight);
  return spec;
}

namespace {
class RowsLaunch {
public:
  RowsLaunch(LaunchBuilder &host, AttentionBackwardOp op)
      : host(host), b(host.b), op(op), operands(getBackwardOperands(op)),
        batches(host.size(operands.dOut, View::Batch)),
        heads(host.size(operands.dOut, View::Head)),
        queries(host.size(operands.dOut, View::Row)),
        width(host.size(operands.dOut, View::Column)) {}
  GradientRows emit();

private:
  using P = GpuParam;
  /// A contiguous buffer of the device, which `param` points to.
  Value allocate(P param, Type type, ArrayRef<Value> sizes);
  void release(Value buffer) {
    gpu::DeallocOp::create(b, TypeRange(), ValueRange(), buffer);
  }
  void launchRows();
  void sumWeights(Value parts);
  void sumLambdas(Value parts);

  LaunchBuilder &host;
  ImplicitLocOpBuilder &b;
  AttentionBackwardOp op;
  const BackwardOperands operands;
  Value batches, heads, queries, width;
};
} // namespace

Value RowsLaunch::allocate(P param, Type type, ArrayRef<Value> sizes) {
  SmallVector<int64_t> shape;
  SmallVector<Value> dynamic;
  for (Value size : sizes) {
    std::optional<int64_t> known = getConstantIntValue(size);
    shape.push_back(known.value_or(ShapedType::kDynamic));
    if (!known)
      dynamic.push_back(size);
  }
  Value buffer = gpu::AllocOp::create(b, MemRefType::get(shape, type), Type(),
                                      ValueRange(), dynamic, ValueRange())
                     .getMemref();
  host.setPointer(param, buffer);
  return buffer;
}

void RowsLaunch::launchRows() {
  auto launch = [&](bool elementwise) {
    const GpuKernelSpec spec = getGradientRowsSpec(op, elementwise);
    const int64_t rows = spec.getThreads() / 32 * kGpuRowsOfPart;
    host.launch(spec, {host.ceilDiv(queries, rows), heads, batches});
  };
  Value chunks;
  if (getGradientRowsSpec(op, /*elementwise=*/true).valueDim % 8 == 0)
    chunks = host.canCopyChunks({&operands.dOut, &operands.x, &operands.o2,
                                 &operands.gate, &operands.dGate});
  host.choose(host.hasRows(batches, queries), [&] {
    if (!chunks)
      return launch(/*elementwise=*/true);
    host.choose(
        chunks, [&] { launch(/*elementwise=*/false); },
        [&] { launch(/*elementwise=*/true); });
  });
}

void RowsLaunch::sumWeights(Value parts) {
  GpuKernelSpec spec;
  spec.kind = GpuKernelKind::WeightSums;
  spec.valueDim = getGradientRowsSpec(op, /*elementwise=*/true).valueDim;
  spec.resultType = elementOf(operands.dNormWeight);
  host.setOperand(P::DNormWeight, operands.dNormWeight, {View::Column});
  Value one = host.index(1);
  host.launch(spec, {host.ceilDiv(width, 32), one, one});
  release(parts);
}

void RowsLaunch::sumLambdas(Value parts) {
  const View &lambda = operands.dLambda;
  GpuKernelSpec spec;
  spec.kind = GpuKernelKind::LambdaSums;
  spec.sumsLambdaOfQueries = lambda.axes[View::Row] >= 0;
  host.setOperand(P::DLambda, lambda, {View::Batch, View::Row, View::Head});
  Value one = host.index(1);
  Value count =
      lambda.axes[View::Head] < 0 ? one : host.size(lambda, View::Head);
  // One lambda of all heads is shared by as many, and not, as rows read it, by
  // none.
  Value ofRows = host.argument(P::SignalPerLambda);
  host.argument(P::SignalPerLambda) =
      host.i32(host.compute<arith::DivUIOp>(heads, count));
  if (spec.sumsLambdaOfQueries)
    host.choose(host.hasRows(batches, queries), [&] {
      host.launch(spec,
                  {host.ceilDiv(queries, spec.getThreads()), count, batches});
    });
  else
    host.launch(spec, {count, one, one});
  host.argument(P::SignalPerLambda) = ofRows;
  if (parts)
    release(parts);
}

GradientRows RowsLaunch::emit() {
  const GpuKernelSpec spec = getGradientRowsSpec(op, /*elementwise=*/true);
  EpilogueRules epilogue = getEpilogueRules(op);
  Value perNoise;
  if (operands.q2)
    perNoise = host.sharing(operands.q1, operands.q2);
  host.fillEpilogue(epilogue, heads, perNoise);
  host.fillFlags(epilogue);
  host.setTensor(P::DOut, operands.dOut);
  host.setTensor(P::DGate, operands.dGate);
  Value parts = host.ceilDiv(queries, kGpuRowsOfPart);
  host.argument(P::Queries) = host.i32(queries);
  host.argument(P::Parts) = host.i32(parts);
  host.argument(P::AllHeads) =
      host.i32(host.compute<arith::MulIOp>(batches, heads));

  GradientRows rows;
  Type f32 = b.getF32Type();
  rows.dX = allocate(P::DX, spec.elementType, {batches, heads, queries, width});
  rows.d1 = allocate(P::D1, f32, {batches, heads, queries});
  if (spec.maps == 2)
    rows.d2 = allocate(P::D2, f32, {batches, heads, queries});
  Value ofWeights, ofLambdas;
  if (spec.weightGradientType)
    ofWeights = allocate(P::WeightParts, f32, {batches, heads, parts, width});
  if (spec.sumsLambda)
    ofLambdas = allocate(P::LambdaParts, f32, {batches, heads, parts});
  launchRows();
  if (ofWeights)
    sumWeights(ofWeights);
  if (operands.dLambda)
    sumLambdas(ofLambdas);
  return rows;
}

GradientRows mlir::diffattn::launchGradientRows(LaunchBuilder &host,
                                                AttentionBackwardOp op) {
  return RowsLaunch(host, op).emit();
}

std::optional<GpuKernelSpec>
mlir::diffattn::getGradientSpec(AttentionBackwardOp op, GpuKernelKind kind,
                                GradientCopies copies) {
  auto maps = cast<DifferentialMapsOpInterface>(op.getOperation());
  const BackwardOperands operands = getBackwardOperands(op);
  GpuKernelSpec spec = getMapsSpec(maps, findSchedule(op, ScheduleTarget::GPU),
                                   copies == GradientCopies::Elements);
  spec.kind = kind;
  spec.byWarpgroups = copies == GradientCopies::Maps;
  const bool ofKeys = kind == GpuKernelKind::GradientKeys;
  if (spec.byWarpgroups &&
      !cast<GpuBackwardAttr>(spec.schedule).getWgmmaBlockSize(ofKeys))
    return std::nullopt;
  std::pair<GpuGradient, const View *> ofQueries[] = {
      {GpuGradient::Q1, &operands.dQ1}, {GpuGradient::Q2, &operands.dQ2}};
  std::pair<GpuGradient, const View *> ofOthers[] = {
      {GpuGradient::K1, &operands.dK1},
      {GpuGradient::K2, &operands.dK2},
      {GpuGradient::V, &operands.dV}};
  bool isWanted = false;
  for (auto [gradient, view] :
       ofKeys ? ArrayRef(ofOthers) : ArrayRef(ofQueries)) {
    spec.gradientTypes[static_cast<size_t>(gradient)] = elementOf(*view);
    isWanted |= bool(*view);
  }
  return isWanted ? std::optional(spec) : std::nullopt;
}

/// The kernels that store what `spec`, of `op`, does: one, or one for each
/// gradient.
static std::vector<GpuKernelSpec> getKernels(AttentionBackwardOp op,
                                             const GpuKernelSpec &spec) {
  if (!areGradientsApart(op, spec.kind == GpuKernelKind::GradientKeys,
                         spec.elementwise))
    return {spec};
  std::vector<GpuKernelSpec> kernels;
  for (auto [gradient, type] : llvm::enumerate(spec.gradientTypes)) {
    if (!type)
      continue;
    kernels.push_back(spec);
    kernels.back().gradientTypes = {};
    kernels.back().gradientTypes[gradient] = type;
  }
  return kernels;
}

namespace {
/// The kernels of keys and of queries, behind that of rows, whose arguments
/// `host` has.
class ProductsLaunch {
public:
  ProductsLaunch(LaunchBuilder &host, AttentionBackwardOp op,
                 const GradientRows &rows)
      : host(host), op(op), operands(getBackwardOperands(op)) {
    dX.value = rows.dX;
    dX.axes = {0, 1, 2, 3};
  }
  void emit();

private:
  using P = GpuParam;
  void fill(const GpuKernelSpec &spec);
  void launch(GpuKernelKind kind, GradientCopies copies);
  /// The kernel whose copies the operands allow.
  void choose(GpuKernelKind kind);

  LaunchBuilder &host;
  AttentionBackwardOp op;
  const BackwardOperands operands;
  View dX;
  /// Whether 16 bytes can be copied, and whether tensor maps can be made; null
  /// where no kernel asks.
  Value chunks, mapped;
};
} // namespace

void ProductsLaunch::fill(const GpuKernelSpec &spec) {
  const ScoreRules scores =
      getScoreRules(cast<DifferentialMapsOpInterface>(op.getOperation()));
  host.fillScores(scores, spec.scaledScores());
  host.argument(P::GradientScale) = host.f32(scores.scale);
  host.setTensor(P::DQ1, operands.dQ1);
  host.setTensor(P::DK1, operands.dK1);
  host.setTensor(P::DQ2, operands.dQ2);
  host.setTensor(P::DK2, operands.dK2);
  host.setTensor(P::DV, operands.dV);
  if (!mayCopyChunks(spec))
    return;
  chunks = host.canCopyChunks({&operands.q1, &operands.k1, &operands.q2,
                               &operands.k2, &operands.v, &operands.dQ1,
                               &operands.dK1, &operands.dQ2, &operands.dK2,
                               &operands.dV});
  auto schedule = cast<GpuBackwardAttr>(spec.schedule);
  if (schedule.getWgmmaQBlockSize() || schedule.getWgmmaKvBlockSize())
    mapped = host.canUseMaps(chunks, {&operands.q1, &operands.k1, &operands.q2,
                                      &operands.k2, &operands.v, &dX});
}

void ProductsLaunch::launch(GpuKernelKind kind, GradientCopies copies) {
  const GpuKernelSpec spec = *getGradientSpec(op, kind, copies);
  if (copies == GradientCopies::Maps)
    host.fillMaps(spec, dX);
  // A block has rows of a head of keys, or of noise, of which one map has as
  // many as of signals.
  const View &rowsOf = kind == GpuKernelKind::GradientKeys ? operands.v
                       : operands.q2                       ? operands.q2
                                                           : operands.q1;
  Value rows = host.size(rowsOf, View::Row),
        heads = host.size(rowsOf, View::Head),
        batches = host.size(rowsOf, View::Batch);
  for (const GpuKernelSpec &kernel : getKernels(op, spec)) {
    const int64_t each = kernel.getRows();
    host.launch(kernel,
                {kernel.isPacked() ? host.countParts(rows, host.index(each))
                                   : host.ceilDiv(rows, each),
                 heads, batches});
  }
}

void ProductsLaunch::choose(GpuKernelKind kind) {
  auto copyOrNot = [&] {
    if (!chunks)
      return launch(kind, GradientCopies::Elements);
    host.choose(
        chunks, [&] { launch(kind, GradientCopies::Chunks); },
        [&] { launch(kind, GradientCopies::Elements); });
  };
  if (mapped && getGradientSpec(op, kind, GradientCopies::Maps))
    return host.choose(
        mapped, [&] { launch(kind, GradientCopies::Maps); }, copyOrNot);
  copyOrNot();
}

void ProductsLaunch::emit() {
  bool isFilled = false;
  for (GpuKernelKind kind :
       {GpuKernelKind::GradientKeys, GpuKernelKind::GradientQueries}) {
    std::optional<GpuKernelSpec> spec =
        getGradientSpec(op, kind, GradientCopies::Elements);
    if (!spec)
      continue;
    if (!std::exchange(isFilled, true))
      fill(*spec);
    const View &rowsOf =
        kind == GpuKernelKind::GradientKeys ? operands.v : operands.q1;
    host.choose(host.hasRows(host.size(rowsOf, View::Batch),
                             host.size(rowsOf, View::Row)),
                [&] { choose(kind); });
  }
}

void mlir::diffattn::replaceByLaunch(RewriterBase &rewriter,
                                     AttentionBackwardOp op,
                                     gpu::GPUModuleOp module) {
  OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  LaunchBuilder host(rewriter, op.getLoc(), getBackwardOperands(op), module);
  const GradientRows rows = launchGradientRows(host, op);
  ProductsLaunch(host, op, rows).emit();
  for (Value buffer : {rows.dX, rows.d1, rows.d2})
    if (buffer)
      gpu::DeallocOp::create(host.b, TypeRange(), ValueRange(), buffer);
  rewriter.eraseOp(op);
}
