//===- PrefillKernel.h - attention of a block of queries --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One work item is one block of queries of one signal head. Queries are lanes
// of vectors, so softmax needs no horizontal step. Scores of both maps stay in
// scratch, in KV blocks, each relative to the maximum known when it was
// made; when the maxima are final, a factor for each KV block and lane corrects
// that, and P = A1 - lambda * A2 is multiplied with V once.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PREFILLKERNEL_H
#define DIFFATTN_LIB_CODEGEN_CPU_PREFILLKERNEL_H

#include "BiasScan.h"
#include "KernelValues.h"
#include "MicroKernels.h"

#include "DiffAttn/Semantics/Activations.h"

namespace mlir::diffattn {

/// Where the parts of a thread's scratch lie, in f32.
struct PrefillScratch {
  Value queries[2], maxima[2], sums[2], history[2], scores[2], output[2];
  Value newMaxima, lambda, factors[2], lows, highs, probabilities, bias,
      keyPanel, valuePanel;
  /// By tiles: f32 scores of one KV block and map. `scores` then holds nothing
  /// but exponentials, in pairs.
  Value rawScores;
  /// Of a KV block: rows of keys of one map, and of values, out of their pages.
  Value pagedKeys, pagedValues;
  /// [lane] of masks' operands with an integer for each query, i64.
  Value integers[std::size(kMaskOperands)];
  /// [KV block] how it stands to the block of queries (BlockRelation), i32.
  Value relations;
  Value total, valuePanelStride;
};

/// Which of the two ways through the keys are emitted: fixed where the number
/// of keys is known.
struct KeyPaths {
  bool shared = true, online = true;
};

KeyPaths getKeyPaths(const AttentionSpec &spec);

class PrefillKernel {
public:
  PrefillKernel(KernelBuilder &b, ModuleOp module, const AttentionSpec &spec,
                Value context, Value index, Value scratch)
      : b(b), module(module), spec(spec), schedule(spec.prefill),
        atom(spec.getAtom()), v(b, spec, context), context(context),
        index(index), scratchBase(scratch) {}

  void emit();

  static PrefillScratch layOut(KernelBuilder &b, const AttentionSpec &spec,
                               Value base, Value keys, Value headDim,
                               Value valueDim);

private:
  // Phases, in the order of their use.
  void locate();
  void packQueries();
  void packLambda();
  void packKeyRanges();
  void clear();
  void cutKeys();
  void packIntegers();
  void relateKvBlocks();
  /// Runs `body` over the KV blocks of which a query may see a key.
  void forKvBlocks(function_ref<void(Value kvBlock)> body);
  void scoreKvBlock(Value kvBlock);
  void packBias(Value n, Value first);
  void editScores(int map, Value n, Value first, Value scores);
  /// `weights`: where exponentials go; `scores` but by tiles.
  void exponentiate(int map, Value n, Value scores, Value weights,
                    Value edited);
  /// Exponentials of a map, of the KV block that begins with key `position` of
  /// those in scratch.
  Value weightsAt(int map, Value position);
  void finishMaxima();
  void combineKvBlock(Value kvBlock);
  void mergeKvBlock(Value kvBlock);
  void multiply(Value p, Value n, Value first, Value partial, Value out,
                ArrayRef<Value> evidence);
  void multiplyTiles(Value p, Value n, Value first, Value out);
  void combine(Value e1, Value e2, Value factor1, Value factor2, Value n);
  void multiplyCarefully(Value p, Value n, Value first, Value out,
                         ArrayRef<Value> evidence);
  Value hasNonFinite(Value n, Value first);
  /// Whether a row sees a key: of the maps whose exponentials are the
  /// `evidence`, one gives it weight.
  Value isVisible(ArrayRef<Value> evidence, Value row, Value key);
  Value loadValues(Value row, Value c, Value mask, Value count);
  PolynomialMath lanes();
  Value emitDecay(Value before, Value after);
  void finishOnline();
  void finishRows();

  struct KvBlock {
    Value first, n, partial;
  };
  /// `partial`, where masks leave some blocks whole: whether they do not leave
  /// this one.
  KvBlock getKvBlock(Value kvBlock);
  /// What a bias hides of a KV block from the block of queries.
  BiasScan scanBias(const KvBlock &kvBlock);
  KvBlock cutKvBlock(Value kvBlock);
  /// Row r of the block takes keys from low + r * lowSlope up to high + r *
  /// highSlope, of those from `first` on.
  struct RowRange {
    Value low, lowSlope, high, highSlope;
  };
  RowRange getRowRange(Value n, Value first);
  /// Sets where the rows of a KV block lie, if its keys or values are in pages.
  void copyPagedKeys(int map, const KvBlock &kvBlock);
  void copyPagedValues(Value first, Value n);
  Value loadMaskLanes(MaskOperand operand, Value key, Value lane,
                      Value position);
  void scoreRows(int map, const KvBlock &kvBlock, Value scores);
  // The same phases by matrix tiles (PrefillTiles.cpp).
  /// Whether keys are multiplied where they lie, but for the last ones.
  static bool readsKeyTiles(const AttentionSpec &spec);
  void packKeyTiles(int map, Value first, Value count);
  void scoreTiles(int map, const KvBlock &kvBlock, Value scores);
  void combineTiles(Value e1, Value e2, Value factor1, Value factor2, Value n);
  void multiplyByTiles(Value p, Value n, Value first, Value out, bool finite);
  void multiplyTilesCarefully(Value p, Value n, Value first, Value out,
                              ArrayRef<Value> evidence);

  /// The keys' row `first`, as f32 rows, and their stride.
  std::pair<Value, Value> getKeyRows(int map, Value first, Value n);
  std::pair<Value, Value> getValueRows(Value first, Value n);
  /// Runs `body` over the block's vectors of queries, as many at once as a
  /// score tile takes.
  void forVectors(function_ref<void(Value firstLane, int64_t vectors)> body);
  void forEachVector(function_ref<void(Value firstLane)> body);

  KernelBuilder &b;
  ModuleOp module;
  const AttentionSpec &spec;
  CpuPrefillAttr schedule;
  const ProductAtom &atom;
  KernelValues v;
  Value context, index, scratchBase;
  PrefillScratch s;

  Value batch, firstRow, rows, vectors, headDim, valueDim, keys;
  HeadIndices heads;
  std::optional<KernelMasks> masks;
  KeyRange seen;
  Value wholeBegin, wholeEnd, blocksBefore, blocksWhole, kvBlocks;
  /// Row 0 of the head's keys and values.
  Value keyBase[2], valueBase;
  /// The same of page 0, in the order of `spec.pages`.
  Value pageBase[3];
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PREFILLKERNEL_H
