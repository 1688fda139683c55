//===- PrefillItem.h - a block of queries of one head -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PREFILLITEM_H
#define DIFFATTN_LIB_CODEGEN_CPU_PREFILLITEM_H

#include "KernelValues.h"

namespace mlir::diffattn {

/// The sizes of a call that scores depend on.
struct ScoringSizes {
  Value headDim, keys;
};

/// A work item: `rows` queries from `firstRow` on of one batch and signal head,
/// which are the lanes of `vectors` vectors. Complete when returned.
struct PrefillItem {
  ScoringSizes sizes;
  Value batch;
  HeadIndices heads;
  Value firstRow, rows, vectors;
};

PrefillItem locateItem(KernelValues &v, const ScoringSizes &sizes, Value index);

/// Keys [first, first + n) of a batch.
struct KvBlock {
  Value first, n;
  /// Whether masks hide some of its scores, i1; null where they hide none of
  /// any block.
  Value partial;
};

/// The address of row 0 of a head of `operand`, or of page 0 of the head where
/// keys are in pages.
Value findHead(KernelValues &v, const PrefillItem &item,
               const SpecOperand &operand, const SpecOperand &pages,
               Value head);

/// The address of row 0 of the item's head of k1 and of k2, as `findHead` has
/// it; null where there is no k2.
struct KeyHeads {
  Value base[2];
};

KeyHeads findKeyHeads(KernelValues &v, const PrefillItem &item);

/// Copies the rows of `kvBlock` out of the pages of the head at `head` to dense
/// rows of `columns` at `to`. Returns the address that row 0 of the head would
/// have before them.
Value copyPages(KernelValues &v, const PrefillItem &item,
                const SpecOperand &pages, Value head, const KvBlock &kvBlock,
                Value columns, Value to);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PREFILLITEM_H
