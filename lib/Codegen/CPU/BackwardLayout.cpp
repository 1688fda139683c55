//===- BackwardLayout.cpp - memory of gradients ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardLayout.h"

#include "MicroKernels.h"

using namespace mlir;
using namespace mlir::diffattn;

BackwardSizes
mlir::diffattn::getBackwardSizes(KernelBuilder &b, const BackwardSpec &spec,
                                 function_ref<Value(const SpecSize &)> read) {
  BackwardSizes sizes;
  static_cast<CallSizes &>(sizes) = getCallSizes(spec.attention, read);
  sizes.groups = read(spec.groups);
  sizes.slices = read(spec.slices);
  sizes.sliceQueries = read(spec.sliceQueries);
  sizes.groupSignal = b.div(sizes.signalHeads, sizes.groups);
  sizes.groupNoise = b.div(sizes.noiseHeads, sizes.groups);
  sizes.groupKeys[0] = b.div(sizes.key1Heads, sizes.groups);
  sizes.groupKeys[1] = b.div(sizes.key2Heads, sizes.groups);
  sizes.groupValues = b.div(sizes.valueHeads, sizes.groups);
  sizes.perNoise = b.div(sizes.signalHeads, sizes.noiseHeads);
  sizes.paddedHeadDim = b.roundUp(sizes.headDim, b.lanes);
  sizes.paddedValueDim = b.roundUp(sizes.valueDim, b.lanes);
  sizes.roundedValueDim =
      b.roundUp(sizes.valueDim, b.lanes * spec.attention.getAtom().pack);
  return sizes;
}

BackwardLayout mlir::diffattn::layOutBackward(ScratchParts &parts,
                                              const BackwardSpec &spec,
                                              const BackwardSizes &sizes) {
  KernelBuilder &b = parts.b;
  const CpuPrefillAttr schedule = spec.attention.prefill;
  const int64_t rows = schedule.getQBlockSize();
  const int64_t pack = spec.attention.getAtom().pack;
  BackwardLayout s{layOutPrefill(parts, spec.attention,
                                 {sizes.headDim, sizes.keys}, sizes.valueDim),
                   {}};
  auto takeRow = [&] { return parts.take(b.index(rows)); };
  for (int map : spec.attention.maps()) {
    s.inverses[map] = takeRow();
    s.rowSums[map] = takeRow();
    s.queryRows[map] =
        parts.take(b.mul(sizes.paddedHeadDim, llvm::divideCeil(rows, pack)));
    s.queryGradients[map] =
        parts.take(b.mul(sizes.paddedHeadDim, productPanelRows(schedule)));
  }
  s.lambdaGradients = takeRow();
  s.logits = takeRow();
  s.rowGradients = parts.take(b.mul(sizes.paddedValueDim, rows));
  s.laneGradients = parts.take(b.mul(sizes.paddedValueDim, rows));
  s.packedGradients = s.rowGradients;
  s.products = parts.take(getPlaneSize(b, spec.attention, sizes.keys));
  if (pack > 1) {
    // Numbers of 16 bits: two in the place of one f32. Tiles may read beyond
    // the last lane.
    const int64_t pairs = llvm::divideCeil(rows, 2),
                  kvPairs = llvm::divideCeil(schedule.getKvBlockSize(), 2);
    s.packedGradients = parts.take(b.mul(sizes.paddedValueDim, pairs));
    s.roundedGradients = parts.take(b.mul(sizes.roundedValueDim, pairs));
    for (Value &part : s.roundedRows)
      part = parts.take(b.index(kvPairs * rows));
    for (Value &part : s.roundedPairs)
      part = parts.take(b.index(kvPairs * rows + 2 * schedule.getPv().height));
    s.packedKeys = parts.take(b.mul(sizes.paddedHeadDim, kvPairs));
  }
  if (spec.attention.getAtom().usesTiles)
    s.tiledValues = parts.take(getTilePanelSize(
        b, spec.attention, spec.attention.valueDim, sizes.valueDim));
  s.row = parts.take(b.max(sizes.paddedHeadDim, sizes.paddedValueDim));
  return s;
}

GradientSums mlir::diffattn::takeGradientSums(ScratchParts &parts,
                                              const BackwardSpec &spec,
                                              const BackwardSizes &sizes) {
  KernelBuilder &b = parts.b;
  auto take = [&](Value heads, Value columns) {
    return parts.take(b.mul(b.mul(heads, sizes.keys), columns));
  };
  GradientSums sums;
  for (int map : {0, 1})
    if (spec.dK[map].present())
      sums.keys[map] = take(sizes.groupKeys[map], sizes.paddedHeadDim);
  if (spec.sharesKeys)
    sums.keys[1] = sums.keys[0];
  if (spec.dV.present())
    sums.values = take(sizes.groupValues, sizes.paddedValueDim);
  return sums;
}

Value mlir::diffattn::getGradientSumsSize(KernelBuilder &b,
                                          const BackwardSpec &spec,
                                          const BackwardSizes &sizes) {
  ScratchParts parts(b, /*base=*/Value());
  takeGradientSums(parts, spec, sizes);
  return parts.getTotal();
}

SharedParts mlir::diffattn::takeSharedParts(ScratchParts &parts,
                                            const BackwardSpec &spec,
                                            const BackwardSizes &sizes) {
  KernelBuilder &b = parts.b;
  Value perBatch = b.mul(sizes.batch, sizes.slices);
  SharedParts s;
  if (spec.dNormWeight.present())
    s.normWeights =
        parts.take(b.mul(b.mul(perBatch, sizes.groups), sizes.paddedValueDim));
  if (spec.sumsLambda())
    s.lambdas = parts.take(b.mul(perBatch, sizes.signalHeads));
  s.sums = parts.take(b.index(0));
  return s;
}
