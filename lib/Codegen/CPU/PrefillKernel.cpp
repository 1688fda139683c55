//===- PrefillKernel.cpp - attention of a block of queries ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One work item is one block of queries of one signal head. Scores of both maps
// stay in scratch, in KV blocks, each relative to the maximum known when it was
// made; when the maxima are final, a factor for each KV block and lane corrects
// that, and P = A1 - lambda * A2 is multiplied with V once. With more keys than
// scratch has room for, each map has an output, and KV blocks are merged as
// online states. So are those of a single map, whose exponentials are weights
// without a difference.
//
//===----------------------------------------------------------------------===//
#include "PrefillValues.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Scores the keys of an item and multiplies them with the values.
static void emitKvBlocks(PrefillScoring &scoring, PrefillValues &values,
                         const PrefillItem &item, const PrefillLayout &s,
                         const KeyHeads &keyHeads, const ValueHead &valueHead,
                         const KeyPartition &keys) {
  KernelBuilder &b = scoring.b;
  const KeyPaths paths = getKeyPaths(scoring.spec);
  Value isOnline =
      b.less(b.index(scoring.schedule.getTwoPassKeys()), item.sizes.keys);
  scoring.forKvBlocks(s, keys, [&](Value number) {
    scoring.scoreKvBlock(item, s, keyHeads, keys, number);
    auto merge = [&] { values.mergeKvBlock(item, s, valueHead, keys, number); };
    if (paths.online && paths.shared)
      b.ifThen(isOnline, merge);
    else if (paths.online)
      merge();
  });
  values.finishSums(item, s);
  auto combine = [&] {
    scoring.forKvBlocks(s, keys, [&](Value number) {
      values.combineKvBlock(item, s, valueHead, keys, number);
    });
  };
  auto finishOnline = [&] { values.finishOnline(item, s); };
  if (paths.online && paths.shared)
    b.ifElse(isOnline, finishOnline, combine);
  else if (paths.online)
    finishOnline();
  else
    combine();
}

static void emitItem(KernelValues &v, ModuleOp module, Value context,
                     Value index, Value scratch) {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  Value headDim = v.size(spec.headDim), valueDim = v.size(spec.valueDim);
  const ScoringSizes sizes{headDim, v.size(spec.keys)};
  const PrefillItem item = locateItem(v, sizes, index);
  KernelMasks masks(v, item.batch);
  ScratchParts parts(b, scratch);
  const PrefillLayout s = layOutPrefill(parts, spec, sizes, valueDim);
  const KeyHeads keyHeads = findKeyHeads(v, item);
  const ValueHead valueHead = findValueHead(v, item, valueDim);
  PrefillScoring scoring(v, module, masks);
  PrefillValues values(scoring, context);
  scoring.packQueries(item, s);
  scoring.packLambda(item, s);
  scoring.clear(item, s);
  values.clear(s);
  const KeyPartition keys = scoring.cutKeys(item, s);
  scoring.relateKvBlocks(item, s, keys);
  emitKvBlocks(scoring, values, item, s, keyHeads, valueHead, keys);
  values.finishRows(item, s);
}

LLVM::LLVMFuncOp mlir::diffattn::emitPrefillKernel(KernelBuilder &b,
                                                   ModuleOp module,
                                                   StringRef name,
                                                   const AttentionSpec &spec) {
  return b.getOrEmitFunction(module, name, {b.pointer, b.i64, b.pointer},
                             [&](ValueRange args) {
                               KernelValues v(b, spec, args[0]);
                               emitItem(v, module, args[0], args[1], args[2]);
                             });
}
