//===- SplitNest.h - attention of few queries -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With few queries the time is that of reading K and V. One work item takes a
// block of keys of fixed size and a group of heads: the fewest that share no
// head of K or V with others. In it, a tile of rows of K or V that has come
// from memory is used by every query that reads it, while it is in the first
// cache; scores of map 2 are made once for all signal heads of a noise head.
// What an item finds out (maximum, sum and output of each map) is a partial
// state. A second loop merges the states of a row in the order of the keys and
// ends the row. Blocks lie at fixed positions, so neither threads nor batch
// have an influence on the result.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CONVERSION_DIFFATTNTOVECTOR_SPLITNEST_H
#define DIFFATTN_CONVERSION_DIFFATTNTOVECTOR_SPLITNEST_H

#include "MicroKernels.h"
#include "NestValues.h"

namespace mlir::diffattn {

/// How many groups of heads there are, and the heads of each operand in one.
struct HeadGroups {
  Value groups, signal, noise, key1, key2, value;
};

/// Where the parts of an item's scratch lie, in f32. Rows are queries of heads
/// of the group, in the order head, query.
struct SplitScratch {
  Value queries[2], scores[2], keyPanel, valuePanel;
  Value queryStride, scoreStride, total;
};

class SplitNest {
public:
  SplitNest(KernelBuilder &b, const NestSpec &spec, Value context);

  void emitItem(Value index, Value scratch);
  void emitMerge(Value index, Value scratch);

  static HeadGroups getGroups(KernelBuilder &b, const NestCallSizes &sizes);
  static SplitScratch layOut(KernelBuilder &b, const NestSpec &spec, Value base,
                             const NestCallSizes &sizes);
  /// Queries whose products with a key are made as it is read.
  static int64_t rowBlock(KernelBuilder &b) {
    return b.target.vectorRegisters >= 32 ? 4 : 2;
  }
  /// Keys whose values are used by all rows before the next are read: 4 KiB of
  /// values of width 128, so that memory is not left waiting for arithmetic.
  static int64_t valueTile(const NestSpec &spec) {
    return 256 / spec.v.element.getIntOrFloatBitWidth();
  }
  /// f32 elements of one partial state.
  static Value stateSize(KernelBuilder &b, Value valueDim);

private:
  /// Rows of K or V as a step of the arithmetic reads them. Those of a panel
  /// are padded with zeros to whole vectors of columns.
  struct Rows {
    Value base;
    Type element;
    Value stride, columns;
    bool padded;
  };

  /// Rows of queries, and their vectors where those fit in registers.
  struct Queries {
    SmallVector<Value> rows;
    SmallVector<SmallVector<Value>> loaded;
    int64_t width;
  };

  // Scores: SplitScores.cpp.
  void scoreMap(int map);
  void packQuery(int map, Value head, Value query, Value to);
  void scoreRows(int map, Value base, Value row, int64_t count);
  Rows getKeyTile(int map, Value base, Value key, Value count);
  Value loadQuery(const Queries &queries, size_t i, Value c);
  void loadQueries(Queries &queries);
  Value emitDots(const Rows &rows, Value last, const Queries &queries);
  SmallVector<Value> emitDot(const Rows &rows, Value row,
                             const Queries &queries);
  Value fold(Value x, Value y, int64_t count);
  void emitSoftmax(int map, Value head, Value query);
  Value editScores(int map, Value scores, Value bias, const KeyRange &seen);

  // Outputs: SplitValues.cpp.
  void multiplyValues();
  void clearOutputs();
  Rows getValueTile(const Rows &inPlace, Value first, Value end);
  void multiplyTile(const Rows &inPlace, const Rows &panel, Value first,
                    Value end, Value head, Value query);
  void emitOutputs(const Rows &rows, ProductInput input, Value first, Value end,
                   Value weights1, Value weights2, Value state);
  void emitColumns(const Rows &rows, ProductInput input, Value first, Value end,
                   Value weights1, Value weights2, Value state, Value column,
                   int64_t vectors, bool masked);

  /// Of signal head `head`, of all.
  Value getState(Value head, Value query, Value block);
  Value getOutput(Value state, int map);
  /// Of signal head `head` of the item's group.
  Value getGroupState(Value head, Value query) {
    return getState(b.add(b.mul(group, groups.signal), head), query, block);
  }
  /// Of signal head `head` of the group: maximum and sum of a map.
  void writeHeader(int map, Value head, Value query, Value maximum, Value sum);
  /// The keys that a query sees, counted from the item's first.
  KeyRange getSeenKeys(Value query);
  /// A row's place in `scores` or `queries`.
  Value row(Value head, Value query) {
    return b.add(b.mul(head, sizes.queries), query);
  }
  Value scaleExponent(Value difference);
  Value highest(Value vector);

  KernelBuilder &b;
  const NestSpec &spec;
  NestValues v;
  NestCallSizes sizes;
  HeadGroups groups;
  SplitScratch s;
  Value partials, paddedValueDim, blocks;
  // Of the item: `n` keys from `begin` on.
  Value batch, group, block, begin, n;
  NestPositions positions;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_CONVERSION_DIFFATTNTOVECTOR_SPLITNEST_H
