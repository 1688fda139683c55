//===- PrefillItem.cpp - a block of queries of one head -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillItem.h"

using namespace mlir;
using namespace mlir::diffattn;

PrefillItem mlir::diffattn::locateItem(KernelValues &v,
                                       const ScoringSizes &sizes, Value index) {
  KernelBuilder &b = v.b;
  const int64_t rows = v.spec.prefill.getQBlockSize();
  PrefillItem item;
  item.sizes = sizes;
  Value queries = v.size(v.spec.queries);
  Value signalHeads = v.size(v.spec.signalHeads);
  Value blocks = b.ceilDiv(queries, rows);
  // The last blocks of a causal head are the longest, so they begin.
  Value block = b.sub(b.add(blocks, -1), b.rem(index, blocks));
  Value head = b.div(index, blocks);
  item.batch = b.div(head, signalHeads);
  item.heads = getHeadIndices(v, b.rem(head, signalHeads));
  item.firstRow = b.mul(block, rows);
  item.rows = b.min(b.sub(queries, item.firstRow), b.index(rows));
  item.vectors = b.ceilDiv(item.rows, b.lanes);
  return item;
}

Value mlir::diffattn::findHead(KernelValues &v, const PrefillItem &item,
                               const SpecOperand &operand,
                               const SpecOperand &pages, Value head) {
  if (v.spec.isPaged())
    return v.head(pages, /*batch=*/v.b.index(0), head);
  return v.head(operand, item.batch, head);
}

KeyHeads mlir::diffattn::findKeyHeads(KernelValues &v,
                                      const PrefillItem &item) {
  const AttentionSpec &spec = v.spec;
  KeyHeads heads;
  for (int map : spec.maps())
    heads.base[map] = findHead(v, item, spec.keysOf(map), spec.pages[map],
                               map ? item.heads.key2 : item.heads.key1);
  return heads;
}

Value mlir::diffattn::copyPages(KernelValues &v, const PrefillItem &item,
                                const SpecOperand &pages, Value head,
                                const KvBlock &kvBlock, Value columns,
                                Value to) {
  KernelBuilder &b = v.b;
  v.copyPagedRows(pages, head, item.batch, kvBlock.first, kvBlock.n, columns,
                  to);
  return b.at(to, pages.element,
              b.mul(b.sub(b.index(0), kvBlock.first), columns));
}
