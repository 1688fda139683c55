//===- SplitKVCall.h - sizes and memory of few queries ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_SPLITKVCALL_H
#define DIFFATTN_LIB_CODEGEN_CPU_SPLITKVCALL_H

#include "KernelValues.h"
#include "ProductAtom.h"

namespace mlir::diffattn {

/// The number of groups of heads, and the heads of each operand in a group.
/// Where there is one map, heads of map 2 are those of map 1.
struct HeadGroups {
  Value groups, signal, noise, key1, key2, value;
};

/// Offsets of the parts of a call's memory, in f32. A row is a query of a head
/// (signal heads for map 1, noise heads for map 2). Parts of map 2 are null
/// where there is one map.
struct SplitKVMemory {
  /// [row][block], blocks padded to whole vectors.
  Value maxima[2], sums[2];
  /// [row][map][block]
  Value factors;
  /// [item][map][vector of keys][row][lane]: scores, which become exponentials.
  Value scores;
  /// [item][row][column], columns padded to whole vectors.
  Value outputs;
  Value total;
};

/// A thread's scratch, in f32. That for scores and that for values use the same
/// memory.
struct SplitKVScratch {
  Value queries, keyPanel, tileSums, scores;
  Value weights, outputs, valuePanel, values;
};

/// A call of attention with few queries: its sizes, its groups of heads and
/// where the parts of its memory lie. None of it depends on the work item, and
/// all of it is set by the constructor.
class SplitKVCall {
public:
  /// In a loop's function, with its context; in the calling function, where
  /// only sizes count, without.
  SplitKVCall(KernelBuilder &b, const AttentionSpec &spec,
              const CallSizes &sizes, Value context = {});

  SplitKVSizes getSizes();
  /// Blocks of keys, of all groups of heads and batches.
  Value getItems() { return b.mul(b.mul(sizes.batch, groups.groups), blocks); }

protected:
  /// An operand, and what its address and strides are read from.
  struct Operand {
    const SpecOperand *spec;
    KernelValues values;

    const SpecOperand *operator->() const { return spec; }
    Value stride(int axis) { return values.stride(*spec, axis); }
    Value head(Value batch, Value head) {
      return values.head(*spec, batch, head);
    }
  };

  /// One of the two maps: its queries and keys, how many heads it has in all
  /// and in a group, how many heads of keys and rows in a group, how many rows
  /// of an item's scores lie before its own, and where its maxima and sums are.
  struct Map {
    Operand q, k;
    Value allHeads, heads, keyHeads, rows, rowsBefore;
    Value maxima, sums;
  };
  Map getMap(int number);

  SplitKVScratch layOutScratch(Value base);
  /// A row's maxima or sums (`part` of the memory) by block.
  Value getHeader(Value part, const Map &map, Value batch, Value head,
                  Value query);
  /// A row's factors of one map by block.
  Value getFactors(int map, Value batch, Value head, Value query);
  Value getOutput(Value item, Value row);
  /// The number of a row, among the rows of so many heads.
  Value row(Value head, Value query) {
    return b.add(b.mul(head, sizes.queries), query);
  }
  PolynomialMath lanes(int degree = 5);
  /// The highest lane, in all lanes.
  Value highest(Value vector);

  KernelBuilder &b;
  const AttentionSpec &spec;
  CpuSplitKVAttr schedule;
  /// The atom of products of scores.
  const ProductAtom &atom;
  KernelValues v;
  CallSizes sizes;
  HeadGroups groups;
  SplitKVMemory m;
  /// Without addresses: how much scratch the loops need.
  SplitKVScratch scratchSizes;
  Value groupRows[2], queryStride, paddedValueDim, blocks, paddedBlocks;

private:
  HeadGroups getGroups();
  SplitKVMemory layOutMemory(Value base);
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_SPLITKVCALL_H
