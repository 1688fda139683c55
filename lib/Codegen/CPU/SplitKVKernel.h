//===- SplitKVKernel.h - attention of few queries ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With few queries the time is that of reading K and V. One work item takes a
// block of keys of fixed size and a group of heads: the fewest that share no
// head of K or V with others. Four loops of items:
//   scores   exponentials of each map against the block's maximum, its sum;
//            a key is read once for several queries, and scores of map 2 are
//            made once for all signal heads of a noise head
//   factors  per row, what turns a block's exponentials into weights
//   values   P = A1 - lambda * A2 of the block, multiplied with V once; of one
//            map P = A1
//   merge    sums a row's blocks in the order of the keys and ends the row
// Memory is to be kept busy: weights are made in small portions, just before
// the few values that they meet, and exponentials lie so that those of all rows
// are one stream beside the values. Sums of outputs change where they are in
// cache, and go to the call's memory once.
// With tiles a matrix unit makes the scores; values are multiplied in f32.
// Blocks lie at fixed positions, so neither threads nor batch have an influence
// on the result.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_SPLITKVKERNEL_H
#define DIFFATTN_LIB_CODEGEN_CPU_SPLITKVKERNEL_H

#include "BiasScan.h"
#include "MicroKernels.h"
#include "SplitKVCall.h"

namespace mlir::diffattn {

/// Emits scores and values: the loops over blocks of keys.
class SplitKVKernel : SplitKVCall {
public:
  SplitKVKernel(KernelBuilder &b, ModuleOp module, const AttentionSpec &spec,
                const CallSizes &sizes, Value context);

  /// Whether the operands of both maps are read alike, so that one function can
  /// make the scores of either.
  static bool readsMapsAlike(const AttentionSpec &spec);
  /// `map`: the only map of this function, or none.
  void emitScores(std::optional<int> map, Value index, Value scratch);
  void emitValues(Value index, Value scratch);

private:
  /// Whether rows of K or V are of bf16, widened as they are read, so that it
  /// pays to read their columns by pairs (`KernelBuilder::loadWidePairs`).
  bool readsPairs(const SpecOperand &operand, const ProductAtom &of) const;
  /// The columns of a row of which whole pairs of vectors are made.
  Value getPairedColumns(Value columns) {
    return b.mul(b.div(columns, 2 * b.lanes), 2 * b.lanes);
  }
  /// The second map where `isSecond`, an i1, else the first one.
  Map getEitherMap(Value isSecond);

  /// Rows of K or V as a step of the arithmetic reads them. Those of a panel
  /// are padded with zeros to whole vectors of columns.
  struct Rows {
    Value base;
    Type element;
    Value stride, columns;
    bool padded;
    /// Bytes from a row that is read to the one that is prefetched meanwhile;
    /// null where rows are in caches.
    Value ahead = Value();
    /// Address and element type of the contiguous rows of a later tile, which
    /// are prefetched in the order of their addresses while this one is read in
    /// parts. Null: none are.
    Value next = Value();
    Type nextElement = Type();
  };

  /// Rows of queries in the panel, and their vectors where those fit in
  /// registers; a vector holds `width` columns. With `paired`, whole pairs of
  /// vectors hold the even columns, then the odd ones.
  struct Queries {
    SmallVector<Value> rows;
    SmallVector<SmallVector<Value>> loaded;
    int64_t width;
    bool paired;
  };

  /// Rows of one query that take the same values: where their weights and their
  /// outputs lie, and the exponentials of each map of the first row.
  struct Outputs {
    SmallVector<Value, 2> exponentials;
    SmallVector<Value> weights, outputs;
  };

  /// A row whose scores become exponentials: its head in the group, where its
  /// scores lie and its bias of the item's first key, if there is one, and the
  /// keys that it sees.
  struct ScoreRow {
    Value head, query, scores, bias;
    KeyRange seen;
  };

  /// Sets what is of an item; of the item's scores or of its values.
  void beginItem(Value index, bool isOfValues);
  /// Whether the bias hides all or none of the item's keys from all rows of its
  /// group.
  BiasScan scanBias(bool wantsNone);
  /// The bias of a query of a noise head of the group for the item's keys.
  Value getBias(Value noiseHead, Value query);

  // Scores: SplitKVScores.cpp.
  void scoreMap(Map &map);
  Queries packQueries(Map &map, Value row, int64_t count);
  Value getQuery(Map &map, Value row);
  void packQuery(Map &map, Value row, Value to, bool paired);
  void scoreRows(Map &map, Value base, Value row, int64_t count);
  Rows getKeyTile(Map &map, Value base, Value key, Value count);
  /// Whether a row of `operand` ends before the next one begins: an i1, or null
  /// where rows are known to follow each other or are read otherwise.
  Value findGaps(Operand operand, Value columns);
  /// Prefetches `count` rows, `prefetch_rows` of the schedule ahead of row
  /// `first` behind `base`, if there are gaps between rows.
  void prefetchApart(Operand operand, Value base, Value columns, Value first,
                     Value count);
  /// The distance at which rows of `columns` are prefetched, in bytes.
  Value getBytesAhead(Operand operand, Value columns);
  /// Prefetches `count` columns from `column` on of the row that lies
  /// `rows.ahead` bytes behind `row`.
  void prefetchAhead(const Rows &rows, Value row, Value column, int64_t count);
  /// Prefetches a piece of `rows.next`, of `count` columns: each pair of a
  /// `key` of this tile and a first `column` has its own, so that all pieces
  /// are prefetched when this tile has been read.
  void prefetchNext(const Rows &rows, Value column, Value key, int64_t count);
  /// `count` rows of `columns` from key `first` of the item on, in the pages of
  /// one head, which begin at `base`: where they lie if tiles of `tile` keys do
  /// not cross pages, else copied to `panel`.
  Rows getPagedTile(const SpecOperand &pages, Value base, Value first,
                    Value count, Value columns, int64_t tile, Value panel);
  /// The largest tile of keys, a multiple of `least`, that lies in one page
  /// wherever a multiple of it begins; 0 if there is none or sizes are dynamic.
  int64_t getPageTile(int64_t least) const;
  Value loadQuery(const Queries &queries, size_t i, Value c);
  Value emitDots(const Rows &rows, Value last, const Queries &queries);
  SmallVector<Value> emitDot(const Rows &rows, Value row,
                             const Queries &queries);
  Value fold(Value x, Value y, int64_t count);
  void emitSoftmax(Map &map, Value first, int64_t count);
  SmallVector<Value> editScores(Map &map, ArrayRef<ScoreRow> rows);

  // Scores by tiles: SplitKVTiles.cpp.
  void forTileRows(Value heads, function_ref<void(Value, int64_t)> body);
  void packTileQueries(Map &map, Value row, int64_t count);
  int64_t getKeysInPlace(const SpecOperand &keys) const;
  void scoreRowsByTiles(Map &map, Value base, Value row, int64_t count);

  // Outputs: SplitKVValues.cpp.
  void multiplyValues();
  /// Stores weights of the keys [first, end), at most `span`; rows of weights
  /// are `span` long.
  void emitWeights(Value head, Value query, Value first, Value end,
                   int64_t span);
  /// A row's weights, of which that of key `first` is the first.
  Value getWeights(Value row, Value first, int64_t span);
  Rows getValueTile(const Rows &inPlace, Value first, Value end);
  void multiplyTile(const Rows &values, Value first, Value end, Value head,
                    int64_t count, Value query,
                    function_ref<Value(Value row)> weightsOf);
  /// Vectors of sums of each of `rows` rows that stay in registers.
  int64_t getOutputVectors(int64_t rows) const {
    return std::min(schedule.getOVectors() / rows, schedule.getORowVectors());
  }
  void emitOutputs(const Rows &rows, const ProductAtom &of, Value first,
                   Value end, const Outputs &outputs);
  Value isSeen(const Outputs &outputs, Value key);
  void emitColumns(const Rows &rows, const ProductAtom &of, Value first,
                   Value end, const Outputs &outputs, Value column,
                   int64_t vectors, bool masked);

  /// `body` for [0, total) in blocks of `largest`, a power of two, and smaller
  /// ones.
  void forBlocks(Value total, int64_t largest,
                 function_ref<void(Value first, int64_t count)> body);
  Value getScores(const Map &map, Value row);
  /// Addresses of the exponentials of each map, for a signal head of the group.
  SmallVector<Value, 2> getExponentials(Value head, Value query);
  /// The index of a key's score behind `getScores`, for a key that is a
  /// multiple of `step`, a power of two.
  Value getPosition(const Map &map, Value key, int64_t step);
  /// A row's output in the thread's scratch, while the item is being
  /// multiplied.
  Value getSums(Value row);
  /// The keys that a query sees, counted from the item's first.
  KeyRange getSeenKeys(Value query);

  ModuleOp module;
  Value context;
  /// The atom of products of values.
  const ProductAtom &valueAtom;
  /// Whether values are read by pairs of columns, and sums of outputs of an
  /// item lie so, even ones before odd ones.
  bool pairsValues;
  SplitKVScratch s;
  // The item: its batch, group and block of `n` keys from `begin` on, of which
  // some query sees `seenFromBegin`.
  Value item, batch, group, block, begin, n, seenFromBegin;
  /// i1: whether each query sees each key of the item, by masks of tiles and by
  /// the bias; null without such masks. For scores, an additive bias does not
  /// count.
  Value seesAll;
  /// Whether values are multiplied as if some of the item's keys were hidden,
  /// apart from ranges of keys.
  bool isCareful = false;
  std::optional<KernelMasks> masks;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_SPLITKVKERNEL_H
