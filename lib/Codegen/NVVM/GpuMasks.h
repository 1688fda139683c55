//===- GpuMasks.h - masks in the registers of a GPU thread ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a kernel needs to know of masks: the tiles of keys that some query of a
// block sees, whether a tile is seen as a whole, the keys of one query, and the
// elements that masks load. A new kind of mask needs nothing here: the
// parameters of what it reads follow from MaskOperands.def.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GPUMASKS_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GPUMASKS_H

#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"
#include "DiffAttn/Codegen/NVVM/KernelParams.h"
#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn::gpucode {
struct AttentionKernel;

/// The layout of a lane's scores, which decides how it loads the elements of
/// masks.
enum class ScoreLanes {
  /// One key a lane. Queries and keys are those of operands.
  Single,
  /// Two neighbouring keys, from an even one on. Places beyond the last query
  /// or key read the last one again, and are masked as keys that no query sees.
  /// The elements of both are loaded one by one, or at once.
  Pairs,
  AlignedPairs
};

/// The masks of one batch. All numbers are i32.
class GpuMasks final : public MaskBuilder {
public:
  /// Emits values that depend on the batch alone: the number of keys that
  /// exist, and a position of query 0 that sees the same keys through
  /// WindowLeft and WindowRight as the given one does through the limits, and
  /// whose sums with rows and windows fit in i32.
  GpuMasks(AttentionKernel &kernel, Value batch);

  /// The first key that no query sees, nor any after it.
  Value keyLimit;

  /// A query, `offset` after `value`; null: after query 0.
  struct Query {
    Value value;
    int64_t offset = 0;
    bool operator==(const Query &other) const {
      return value == other.value && offset == other.offset;
    }
  };
  /// The keys that queries see by the masks that are intervals. Bounds are
  /// valid until the next call, and are emitted by `emit` in the form that the
  /// caller compares: the end of a range, or with `plus` = -1 its last key.
  /// Either takes one instruction less in some comparisons.
  VisibleRange getRange(Query first, Query last);
  VisibleRange getRange(Value query) { return getRange({query}, {query}); }
  Value emit(MaskValue bound, int64_t plus = 0);
  /// Begin and end of the queries that see some of `count` keys from `first` on
  /// by those masks. There are none where the end is not behind the begin.
  std::pair<Value, Value> getQueries(Value first, int64_t count);

  // Masks that are evaluated for each score. Kernels that take keys one by one,
  // and those of gradients, evaluate masks of tiles in this way too.
  bool hasElements() const { return !elementMasks.empty(); }
  /// Whether `AlignedPairs` may be used.
  bool mayLoadPairs() const;
  /// Sets the noise head, and then the query, whose elements are read from here
  /// on.
  void beginHead(Value noiseHead, ScoreLanes lanes);
  void beginQuery(Value query);
  /// The masked score of that query and key `firstKey + column`. The keys of a
  /// pair follow each other.
  Value maskElements(Value score, Value firstKey, int64_t column);

  // Masks that are decided for whole tiles of keys. All lanes of a warp call
  // these functions together; the results are uniform but for `maskInTile`.
  bool hasTiles() const { return !tileMasks.empty(); }
  /// Sets the queries to which tiles are related from here on: `count` from
  /// `first` on, as far as they exist.
  void beginBlock(Value first, int64_t count);
  /// The first tile of `keys` keys, from `tile` on, that one of these queries
  /// sees, as an i32: twice its number, plus 1 if it is seen in part. If there
  /// is none, a tile that is not before `end`.
  Value findSeen(Value tile, Value end, int64_t keys);
  Value getNumber(Value tile) { return b.shiftRightU(tile, 1); }
  Value isPartial(Value tile);
  Value isBefore(Value tile, Value end);
  /// The range of the keys in [begin, end) from the first one that these
  /// queries may see to the last one. With `threads` of 32, a warp's own; else
  /// all threads of the block call it together, and use its shared memory.
  std::pair<Value, Value> narrow(Value begin, Value end, int64_t threads);
  /// Enters a tile that is seen in part: from here on, a lane has scores of two
  /// `queries` and of pairs of the `count` keys from `first` on.
  void beginPartialTile(std::array<Value, 2> queries, Value first,
                        int64_t count);
  /// The score of one of these queries and the key that lies `column` after the
  /// first one of the lane's first pair.
  Value maskInTile(Value score, unsigned query, int64_t column);

  MaskValue min(MaskValue x, MaskValue y) override;
  MaskValue max(MaskValue x, MaskValue y) override;
  MaskValue less(MaskValue x, MaskValue y) override;
  MaskValue equal(MaskValue x, MaskValue y) override;
  MaskValue both(MaskValue x, MaskValue y) override;
  MaskValue either(MaskValue x, MaskValue y) override;
  MaskValue load(MaskOperand operand, const MaskPoint &point) override;
  MaskValue lowest(MaskOperand operand, const MaskTile &tile) override;
  MaskValue highest(MaskOperand operand, const MaskTile &tile) override;
  MaskValue isNotMinusInfinity(MaskValue element) override;
  MaskValue length() override;
  MaskValue keyBefore(MaskValue query, int64_t left) override;
  MaskValue endAfter(MaskValue query, int64_t right) override;
  MaskValue isWithinLeft(const MaskPoint &point, int64_t left) override;
  MaskValue isWithinRight(const MaskPoint &point, int64_t right) override;

private:
  /// The expression behind a MaskValue. Bounds stay terms, not instructions,
  /// until `emit`: kernels were seen to lose occupancy to comparisons of
  /// another form.
  struct Term {
    enum Kind { Sum, KeyBefore, EndAfter, Min, Max, Hidden } kind;
    /// Sum: `value` + `constant`, with null for 0, or an element or a condition
    /// as it is. KeyBefore, EndAfter: the query. Hidden: a condition, true
    /// where the key is not visible.
    Value value;
    int64_t constant = 0;
    /// Operands of Min and Max; for Hidden, the score that becomes -inf.
    unsigned x = 0, y = 0;
  };
  MaskValue add(const Term &term);
  const Term &get(MaskValue value) const { return terms[value.getBits()]; }
  Value hide(MaskValue visible, Value score);
  Value isTrue(MaskValue condition);
  Value position(Value query);
  void readPositions();
  Value readPerBatch(GpuParam pointer, GpuParam stride, Value otherwise);
  Value nearPosition(Value offset);

  /// An operand of masks.
  struct Elements : GpuMaskParams {
    MaskOperand operand;
    Type type;
  };
  /// `pointer` moved by `index` steps of `stride`, if there is such an axis.
  Value advance(const Elements &of, Value pointer, Value index,
                std::optional<GpuParam> stride);
  Value loadNumber(const Elements &of, Value pointer);

  /// Elements of a mask that is applied to each score, at one head and query.
  struct ScoreElements : Elements {
    Value ofHead, ofQuery;
    /// The second element of a pair, and its column.
    Value neighbour;
    int64_t neighbourColumn = -1;
  };
  Value loadElement(ScoreElements &from, const Term &key);

  /// Elements of a mask that is decided for whole tiles.
  struct TileElements : Elements {
    /// Extrema over the queries of the block, or over a tile of keys.
    Value lowest, highest;
    /// Numbers in a tile that is seen in part: of the two queries, or of each
    /// 32nd key from that of the lane on; and the one that was read last, with
    /// its column.
    SmallVector<Value> numbers;
    Value number;
    int64_t numberColumn = -1;
  };
  TileElements &getTileElements(MaskOperand operand);
  /// Sets the extrema of the operands over keys, or over queries: `count` from
  /// `first` on, up to `last`; with `count` 0, over the one at the lane's
  /// `first`.
  void scan(bool ofKeys, Value first, int64_t count, Value last);
  SmallVector<Value> loadLanes(const TileElements &from, Value first,
                               int64_t count, Value last,
                               std::optional<GpuParam> stride);
  TileRelation getRelation();
  Value holds(MaskValue condition) {
    return condition ? isTrue(condition) : b.i1(false);
  }

  AttentionKernel &kernel;
  GpuBuilder &b;
  Value batch, position0;
  SmallVector<MaskAttrInterface> elementMasks, tileMasks;
  SmallVector<ScoreElements> elements;
  SmallVector<TileElements> tileElements;
  /// The query of `maskInTile` while it runs, else none.
  std::optional<unsigned> tileQuery;
  SmallVector<Term> terms;
  llvm::SmallDenseMap<Value, Value> positions;
  llvm::SmallDenseMap<MaskOperand, Value> loaded;
  ScoreLanes lanes = ScoreLanes::Single;
  Value lastQuery, lastKey;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GPUMASKS_H
