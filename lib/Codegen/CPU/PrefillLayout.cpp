//===- PrefillLayout.cpp - scratch of a block of queries ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillLayout.h"

#include "MicroKernels.h"
#include "TileBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;

Value ScratchParts::take(Value count) {
  Value part = base ? b.at(base, b.f32, end) : Value();
  end = b.add(end, b.roundUp(count, 16));
  return part;
}

KeyPaths mlir::diffattn::getKeyPaths(const AttentionSpec &spec) {
  // Scores are kept to multiply the difference of two maps with V once.
  if (!spec.hasSecondMap() && !spec.keepsOneMap)
    return {/*shared=*/false, /*online=*/true};
  if (!spec.keys.isStatic())
    return {};
  bool shared = spec.keys.value <= spec.prefill.getTwoPassKeys();
  return {shared, !shared};
}

bool mlir::diffattn::readsTiles(const SpecSize &columns) {
  return columns.isStatic() && columns.value % kTileDepth == 0;
}

Value mlir::diffattn::getTilePanelSize(KernelBuilder &b,
                                       const AttentionSpec &spec,
                                       const SpecSize &known, Value columns) {
  // Numbers of 16 bits: two in the place of one f32.
  int64_t rows = readsTiles(known) ? kTileRows : spec.prefill.getKvBlockSize();
  return b.mul(b.roundUp(columns, kTileDepth), rows / 2);
}

/// Scores beyond the last one that a product tile may read.
static int64_t getOverrun(const AttentionSpec &spec) {
  return 2 * spec.prefill.getPv().height;
}

LaneParts mlir::diffattn::takeLaneParts(ScratchParts &parts,
                                        const AttentionSpec &spec,
                                        Value headDim) {
  KernelBuilder &b = parts.b;
  const int64_t rows = spec.prefill.getQBlockSize();
  const ProductAtom &atom = spec.getAtom();
  auto takeRow = [&] { return parts.take(b.index(rows)); };
  LaneParts s;
  Value packs = b.ceilDiv(headDim, atom.pack);
  if (atom.usesTiles)
    packs = b.div(b.roundUp(headDim, kTileDepth), atom.pack);
  for (int map : spec.maps())
    s.queries[map] = parts.take(b.mul(packs, rows));
  for (int map : spec.maps()) {
    s.maxima[map] = takeRow();
    s.sums[map] = takeRow();
    s.factors[map] = takeRow();
  }
  s.newMaxima = takeRow();
  if (spec.hasSecondMap())
    s.lambda = takeRow();
  for (Value *part : {&s.lows, &s.highs})
    *part = takeRow();
  return s;
}

KeyParts mlir::diffattn::takeKeyParts(ScratchParts &parts,
                                      const AttentionSpec &spec,
                                      Value headDim) {
  KernelBuilder &b = parts.b;
  const int64_t rows = spec.prefill.getQBlockSize(),
                kvBlockSize = spec.prefill.getKvBlockSize();
  const ProductAtom &atom = spec.getAtom();
  KeyParts s;
  if (spec.bias().present())
    s.bias = parts.take(b.index(kvBlockSize * rows));
  if (atom.usesTiles)
    s.keyPanel = parts.take(getTilePanelSize(b, spec, spec.headDim, headDim));
  else if (!llvm::all_of(spec.maps(), [&](int map) {
             return atom.readsRows(b, spec.keysOf(map));
           }))
    s.keyPanel = parts.take(b.mul(headDim, kvBlockSize));
  // Rows in pages keep the operands' type, which may take less than f32 does.
  if (spec.isPaged())
    s.pagedKeys = parts.take(b.mul(headDim, kvBlockSize));
  return s;
}

/// The capacity of a plane of scores, in keys.
static Value getPlaneKeys(KernelBuilder &b, const AttentionSpec &spec,
                          Value keys) {
  KeyPaths paths = getKeyPaths(spec);
  CpuPrefillAttr schedule = spec.prefill;
  if (!paths.shared)
    keys = b.index(schedule.getKvBlockSize());
  else if (paths.online)
    keys = b.select(b.less(b.index(schedule.getTwoPassKeys()), keys),
                    b.index(schedule.getKvBlockSize()), keys);
  return b.add(keys, scorePlanePadding(schedule));
}

Value mlir::diffattn::getPlaneSize(KernelBuilder &b, const AttentionSpec &spec,
                                   Value keys) {
  Value planeKeys = getPlaneKeys(b, spec, keys);
  // Exponentials in pairs are two in the place of an f32.
  if (spec.pairsExponentials())
    planeKeys = b.ceilDiv(planeKeys, 2);
  return b.add(b.mul(planeKeys, spec.prefill.getQBlockSize()),
               getOverrun(spec));
}

ScoreParts mlir::diffattn::takeScoreParts(ScratchParts &parts,
                                          const AttentionSpec &spec,
                                          Value keys) {
  KernelBuilder &b = parts.b;
  const int64_t rows = spec.prefill.getQBlockSize(),
                kvBlockSize = spec.prefill.getKvBlockSize();
  // KV blocks: those of three ranges of keys, each of which may end with a
  // short one.
  Value kvBlocks = b.add(b.ceilDiv(keys, kvBlockSize), 3);
  ScoreParts s;
  for (auto [which, part] : llvm::zip_equal(kMaskOperands, s.integers))
    if (spec.hasIntegers(which, AxisRole::Query))
      part = parts.take(b.index(2 * rows));
  if (spec.scores.hasTileMasks() || spec.bias().present())
    s.relations = parts.take(kvBlocks);
  // Scores come in whole tiles.
  if (spec.pairsExponentials())
    s.rawScores = parts.take(b.index(kvBlockSize * rows));
  Value plane = getPlaneSize(b, spec, keys);
  for (int map : spec.maps()) {
    if (getKeyPaths(spec).shared)
      s.history[map] = parts.take(b.mul(kvBlocks, rows));
    s.scores[map] = parts.take(plane);
    if (spec.keepsSoftcapSlopes && spec.scores.softcap)
      s.slopes[map] = parts.take(plane);
  }
  return s;
}

OutputParts mlir::diffattn::takeOutputParts(ScratchParts &parts,
                                            const AttentionSpec &spec,
                                            Value valueDim) {
  KernelBuilder &b = parts.b;
  CpuPrefillAttr schedule = spec.prefill;
  OutputParts s;
  s.valuePanelStride = b.roundUp(valueDim, b.lanes);
  Value panel = b.mul(s.valuePanelStride, productPanelRows(schedule));
  s.output[0] = parts.take(panel);
  if (getKeyPaths(spec).online && spec.hasSecondMap())
    s.output[1] = parts.take(panel);
  // Weights of one map that are not packed are multiplied where scores lie.
  if (spec.hasSecondMap() || spec.keepsOneMap || spec.getAtom().pack > 1)
    s.probabilities = parts.take(
        b.index(schedule.getKvBlockSize() * schedule.getQBlockSize() +
                getOverrun(spec)));
  return s;
}

ValueParts mlir::diffattn::takeValueParts(ScratchParts &parts,
                                          const AttentionSpec &spec,
                                          const OutputParts &output,
                                          Value valueDim) {
  KernelBuilder &b = parts.b;
  const int64_t kvBlockSize = spec.prefill.getKvBlockSize();
  ValueParts s;
  if (spec.isPaged())
    s.pagedValues = parts.take(b.mul(valueDim, kvBlockSize));
  if (!spec.getAtom().readsValues(b, spec.v))
    s.valuePanel = parts.take(b.mul(output.valuePanelStride, kvBlockSize));
  return s;
}

PrefillLayout mlir::diffattn::layOutPrefill(ScratchParts &parts,
                                            const AttentionSpec &spec,
                                            const ScoringSizes &sizes,
                                            Value valueDim) {
  LaneParts lanes = takeLaneParts(parts, spec, sizes.headDim);
  OutputParts output = takeOutputParts(parts, spec, valueDim);
  KeyParts keys = takeKeyParts(parts, spec, sizes.headDim);
  ValueParts values = takeValueParts(parts, spec, output, valueDim);
  ScoreParts scores = takeScoreParts(parts, spec, sizes.keys);
  return {{lanes, keys, scores}, {output, values}};
}

Value mlir::diffattn::emitPrefillScratch(KernelBuilder &b,
                                         const AttentionSpec &spec, Value keys,
                                         Value headDim, Value valueDim) {
  ScratchParts parts(b, /*base=*/Value());
  layOutPrefill(parts, spec, {headDim, keys}, valueDim);
  return b.mul(parts.getTotal(), 4);
}
