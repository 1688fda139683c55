//===- PrefillScoring.h - scores of a block of queries ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The softmax of each map for a block of queries: everything up to the weights
// of keys, and nothing of what they are weights for. Queries are lanes of
// vectors, so softmax needs no horizontal step.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PREFILLSCORING_H
#define DIFFATTN_LIB_CODEGEN_CPU_PREFILLSCORING_H

#include "BiasScan.h"
#include "PrefillLayout.h"
#include "RegisterProducts.h"

#include "DiffAttn/Semantics/Activations.h"

namespace mlir::diffattn {

/// The keys that a block of queries sees, in three ranges: `whole`, which every
/// query sees, and those of `visible` before and after it. Each range is cut
/// into KV blocks, `blocks` in all.
struct KeyPartition {
  KeyRange visible, whole;
  Value blocksBefore, blocksWhole, blocks;
};

/// Scores of one map and KV block, [key][lane], and where their exponentials
/// go: to the same place but in pairs. `slopes`: those of the softcap, where
/// they are kept.
struct MapScores {
  int map;
  Value scores, weights, slopes;
};

/// Rows of keys or values that matrix tiles multiply with columns of queries:
/// the operand and row 0 of its head, how many columns there are, `known` where
/// that is static, and a panel of `getTilePanelSize`.
struct TileRows {
  const SpecOperand &operand;
  Value base, columns;
  SpecSize known;
  Value panel;
};

/// Emits phases of scoring. Each reads the item and its scratch, which stay as
/// they are, and returns its results for later phases.
class PrefillScoring {
public:
  /// `masks`: those of the item's batch.
  PrefillScoring(KernelValues &v, ModuleOp module, KernelMasks &masks)
      : b(v.b), spec(v.spec), schedule(spec.prefill), atom(spec.getAtom()),
        v(v), module(module), masks(masks) {}

  // Before the keys: PrefillQueries.cpp.
  void packQueries(const PrefillItem &item, const ScoringLayout &s);
  /// Stores lambda of each query; nothing where there is one map.
  void packLambda(const PrefillItem &item, const ScoringLayout &s);
  /// Sets maxima and sums to those of no key.
  void clear(const PrefillItem &item, const ScoringLayout &s);

  // Ranges and blocks of keys: PrefillMasks.cpp.
  KeyPartition cutKeys(const PrefillItem &item, const ScoringLayout &s);
  /// Stores the relation of each KV block to the block of queries.
  void relateKvBlocks(const PrefillItem &item, const ScoringLayout &s,
                      const KeyPartition &keys);
  /// Runs `body` over the KV blocks of which a query may see a key.
  void forKvBlocks(const ScoringLayout &s, const KeyPartition &keys,
                   function_ref<void(Value number)> body);
  KvBlock getKvBlock(const ScoringLayout &s, const KeyPartition &keys,
                     Value number);
  RowRange getRowRange(const PrefillItem &item, const KvBlock &kvBlock);

  // One KV block: PrefillScores.cpp.
  /// Stores exponentials of each map, with maxima, sums and history.
  void scoreKvBlock(const PrefillItem &item, const ScoringLayout &s,
                    const KeyHeads &heads, const KeyPartition &keys,
                    Value number);
  /// Stores exponentials of both maps relative to final maxima, and adds them
  /// to the sums.
  void rescoreKvBlock(const PrefillItem &item, const ScoringLayout &s,
                      const KeyHeads &heads, const KeyPartition &keys,
                      Value number);
  /// The place of a KV block in the planes of scores, counted in keys.
  Value getPosition(const PrefillItem &item, const KeyPartition &keys,
                    const KvBlock &kvBlock);
  /// Row `kvBlock.first` of the keys, as the product reads it, and the stride
  /// of rows.
  std::pair<Value, Value> getKeyRows(const PrefillItem &item,
                                     const ScoringLayout &s, int map,
                                     Value base, const KvBlock &kvBlock);
  /// The place of map `map` for the KV block that begins with key `position` of
  /// those in scratch.
  MapScores getMapScores(const ScoringLayout &s, int map, Value position);
  /// Stores raw scores, and their maximum with `newMaxima`. `base`: row 0 of
  /// the head of keys.
  void scoreKeys(const PrefillItem &item, const ScoringLayout &s,
                 const KvBlock &kvBlock, Value base, const MapScores &place);
  /// Multiplies by matrix tiles (PrefillTileScores.cpp): out[key][lane] is the
  /// product of `rows` of a KV block and `queries`, pairs [column / 2][lane].
  /// `maxima`, unless they are null, become those with it.
  void multiplyTileRows(const PrefillItem &item, const TileRows &rows,
                        const KvBlock &kvBlock, Value queries, Value out,
                        Value maxima);
  /// Applies softcap, bias and masks to raw scores, and takes their maximum.
  void editScores(const PrefillItem &item, const ScoringLayout &s,
                  const KvBlock &kvBlock, const MapScores &place);
  /// Turns scores into exponentials relative to the new maxima, and adds them
  /// to the sums. `edited`, i1: whether some scores are hidden.
  void exponentiate(const PrefillItem &item, const ScoringLayout &s, Value n,
                    const MapScores &place, Value edited);
  /// `exponentiate` where the maxima have not changed.
  void takePowers(const PrefillItem &item, const ScoringLayout &s, Value n,
                  const MapScores &place, Value edited);

  /// Stores the factors that turn the exponentials of a KV block into those of
  /// the final maxima, each times the `weights`, [lane], of its map.
  void updateFactors(const PrefillItem &item, const ScoringLayout &s,
                     Value number, ArrayRef<Value> weights);
  /// exp(before - after), and 1 where they are equal.
  Value emitDecay(Value before, Value after);
  PolynomialMath lanes();

  /// Runs `body` over the block's vectors of queries, as many at once as a
  /// score tile takes.
  void forVectors(const PrefillItem &item,
                  function_ref<void(Value firstLane, int64_t vectors)> body);
  void forEachVector(const PrefillItem &item,
                     function_ref<void(Value firstLane)> body);
  /// Runs `body` over the lanes of all vectors, with the row of the query that
  /// each holds: lanes past the last query repeat it.
  void forEachLane(const PrefillItem &item,
                   function_ref<void(Value lane, Value row)> body);

  KernelBuilder &b;
  const AttentionSpec &spec;
  const CpuPrefillAttr schedule;
  const ProductAtom &atom;
  KernelValues &v;
  const ModuleOp module;

private:
  /// The number of the last query in the block.
  Value getLastLane(const PrefillItem &item) {
    return b.sub(item.rows, b.index(1));
  }
  void packQueries(const PrefillItem &item, const ScoringLayout &s, int map,
                   Value last);

  TileKeys packKeyRanges(const PrefillItem &item, const ScoringLayout &s);
  void packIntegers(const PrefillItem &item, const ScoringLayout &s);
  KvBlock cutKvBlock(const KeyPartition &keys, Value number);
  /// Whether the bias hides all of a KV block, or nothing of it, from the block
  /// of queries.
  BiasScan scanBias(const PrefillItem &item, const KvBlock &kvBlock);
  void packBias(const PrefillItem &item, const ScoringLayout &s,
                const KvBlock &kvBlock);

  /// Stores the scores of a map, with softcap, bias and masks; returns i1,
  /// whether some may be hidden.
  Value makeScores(const PrefillItem &item, const ScoringLayout &s,
                   const KeyHeads &heads, const KvBlock &kvBlock,
                   const MapScores &place);
  /// Runs `finish` for the scores of each map of a KV block, and whether some
  /// may be hidden.
  void makeMaps(const PrefillItem &item, const ScoringLayout &s,
                const KeyHeads &heads, const KeyPartition &keys, Value number,
                function_ref<void(const KvBlock &kvBlock,
                                  const MapScores &place, Value edited)>
                    finish);
  /// Row 0 of the head of keys at `head`, whose rows of the KV block are copied
  /// if they are in pages.
  Value getKeyBase(const PrefillItem &item, const ScoringLayout &s, int map,
                   Value head, const KvBlock &kvBlock);
  /// The operand of a mask at `key` and the queries from `lane` on, whose
  /// scores begin at `position`.
  Value loadMaskLanes(const PrefillItem &item, const ScoringLayout &s,
                      MaskOperand operand, Value key, Value lane,
                      Value position);
  Value transformScore(Value score);
  Value getSoftcapSlope(Value score);
  void moveSums(const PrefillItem &item, const ScoringLayout &s, int map);
  void callExponentials(const PrefillItem &item, const ScoringLayout &s,
                        Value n, const MapScores &place, bool masked);

  void packTiles(const TileRows &rows, Value first, Value count);

  KernelMasks &masks;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PREFILLSCORING_H
