//===- PrefillLayout.h - scratch of a block of queries ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Addresses of the parts of a thread's scratch, each a number of f32 long. Each
// struct is complete when returned.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PREFILLLAYOUT_H
#define DIFFATTN_LIB_CODEGEN_CPU_PREFILLLAYOUT_H

#include "PrefillItem.h"

namespace mlir::diffattn {

/// Memory that is handed out in parts, each of which begins on a cache line.
class ScratchParts {
public:
  /// Hands out memory from `base` on. If that is null, parts are null, and only
  /// their total counts.
  ScratchParts(KernelBuilder &b, Value base)
      : b(b), base(base), end(b.index(0)) {}

  /// The address of the next `count` f32.
  Value take(Value count);
  /// The f32 that were handed out so far.
  Value getTotal() const { return end; }

  KernelBuilder &b;

private:
  Value base, end;
};

/// The loops over the keys that are emitted: one of the two where the number of
/// keys is known, else both.
struct KeyPaths {
  bool shared = true, online = true;
};

KeyPaths getKeyPaths(const AttentionSpec &spec);

/// Whether matrix tiles read rows of so many columns in place, but for the last
/// columns.
bool readsTiles(const SpecSize &columns);
/// The f32 of a panel for the columns of a KV block that tiles do not read in
/// place.
Value getTilePanelSize(KernelBuilder &b, const AttentionSpec &spec,
                       const SpecSize &known, Value columns);

/// Parts with a number or column for each lane of the block of queries. Those
/// of map 2 are null where there is one map, here and below.
struct LaneParts {
  /// Queries as the product reads them; for tiles, padded to whole tiles of
  /// columns.
  Value queries[2];
  /// Running maxima and sums; the last factors of the sums so far.
  Value maxima[2], sums[2], factors[2];
  /// The maxima with those of the KV block that is scored.
  Value newMaxima;
  Value lambda; ///< null where there is one map
  /// The range of keys that a query sees, i32.
  Value lows, highs;
};

LaneParts takeLaneParts(ScratchParts &parts, const AttentionSpec &spec,
                        Value headDim);

/// Parts for one KV block of keys.
struct KeyParts {
  /// [key][lane] of the bias; null without one.
  Value bias;
  /// Copies of rows of keys that the product does not read in place; null if it
  /// reads all in place.
  Value keyPanel;
  /// Rows of keys of one map, copied from their pages; null without pages.
  Value pagedKeys;
};

KeyParts takeKeyParts(ScratchParts &parts, const AttentionSpec &spec,
                      Value headDim);

/// Parts for the scores of all KV blocks.
struct ScoreParts {
  /// [lane] of masks' operands with an integer for each query, i64.
  Value integers[std::size(kMaskOperands)];
  /// [KV block] its relation to the block of queries (BlockRelation), i32; null
  /// without a bias and masks of tiles.
  Value relations;
  /// f32 scores of one KV block and map, for products by tiles; `scores` then
  /// holds exponentials alone, in pairs.
  Value rawScores;
  /// [KV block][lane] the maximum that its exponentials are relative to; null
  /// where all paths are online.
  Value history[2];
  /// [key][lane]
  Value scores[2];
  /// [key][lane] the derivative of the softcap; null where it is not kept.
  Value slopes[2];
};

ScoreParts takeScoreParts(ScratchParts &parts, const AttentionSpec &spec,
                          Value keys);

/// f32 of a plane of scores: [key][lane] of as many keys as stay in scratch.
Value getPlaneSize(KernelBuilder &b, const AttentionSpec &spec, Value keys);

/// The scratch of `PrefillScoring`.
struct ScoringLayout : LaneParts, KeyParts, ScoreParts {};

/// Parts for the output.
struct OutputParts {
  /// f32 between rows of `output` and of `valuePanel`.
  Value valuePanelStride;
  /// [row][column]; the second only for online paths of two maps.
  Value output[2];
  /// P = A1 - lambda * A2 of a KV block, as the product with V reads it; of one
  /// map its exponentials in packs, and null where packs are single numbers.
  Value probabilities;
};

OutputParts takeOutputParts(ScratchParts &parts, const AttentionSpec &spec,
                            Value valueDim);

/// Parts for one KV block of values.
struct ValueParts {
  /// Rows of values, copied from their pages; null without pages.
  Value pagedValues;
  /// Copies of rows of values that the product does not read in place; null if
  /// it reads all in place.
  Value valuePanel;
};

ValueParts takeValueParts(ScratchParts &parts, const AttentionSpec &spec,
                          const OutputParts &output, Value valueDim);

/// The scratch of `PrefillValues`, beside that of scoring.
struct ValuesLayout : OutputParts, ValueParts {};

/// The scratch of one work item of attention.
struct PrefillLayout : ScoringLayout, ValuesLayout {};

PrefillLayout layOutPrefill(ScratchParts &parts, const AttentionSpec &spec,
                            const ScoringSizes &sizes, Value valueDim);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PREFILLLAYOUT_H
