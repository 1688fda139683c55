//===- PackedValues.cpp - values that all blocks of queries share ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PackedValues.h"

#include "ProductAtom.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Blocks of queries that read a head's values, from which on packing them
/// first takes less than each block's own packing.
static constexpr int64_t kMinReaders = 3;

/// The most memory that a call may take for packed values.
static constexpr int64_t kMaxPackedBytes = 256 << 20;

bool mlir::diffattn::mayPackValues(const AttentionSpec &spec) {
  return spec.getAtom().pack > 1 && !spec.isPaged();
}

static Value getStride(KernelBuilder &b, Value valueDim) {
  return b.roundUp(valueDim, b.lanes);
}

/// Packs of a head: rows of its panel.
static Value getRows(KernelBuilder &b, const ProductAtom &atom, Value keys) {
  return b.div(b.roundUp(keys, atom.getPanelKeys()), atom.pack);
}

/// Keys of one work item.
static int64_t getItemKeys(const AttentionSpec &spec) {
  return llvm::alignTo(spec.prefill.getKvBlockSize(),
                       spec.getAtom().getPanelKeys());
}

PackedValuesPlan mlir::diffattn::emitPackedValuesPlan(KernelBuilder &b,
                                                      const AttentionSpec &spec,
                                                      const CallSizes &sizes) {
  Value heads = b.mul(sizes.batch, sizes.valueHeads);
  Value blocks = b.ceilDiv(sizes.queries, spec.prefill.getQBlockSize());
  Value numbers = b.mul(getRows(b, spec.getAtom(), sizes.keys),
                        getStride(b, sizes.valueDim));
  Value bytes = b.mul(b.mul(heads, numbers), 4);
  // Multiplied, not divided: there may be no heads.
  Value hasReaders = b.less(b.mul(sizes.valueHeads, kMinReaders - 1),
                            b.mul(sizes.signalHeads, blocks));
  return {b.both(hasReaders, b.less(bytes, b.index(kMaxPackedBytes + 1))),
          b.mul(heads, b.ceilDiv(sizes.keys, getItemKeys(spec))), bytes};
}

LLVM::LLVMFuncOp mlir::diffattn::emitPackValues(KernelBuilder &b,
                                                ModuleOp module, StringRef name,
                                                const AttentionSpec &spec) {
  return b.getOrEmitFunction(
      module, name, {b.pointer, b.i64, b.pointer}, [&](ValueRange args) {
        KernelValues v(b, spec, args[0]);
        const ProductAtom &atom = spec.getAtom();
        Value keys = v.size(spec.keys), valueDim = v.size(spec.valueDim);
        Value items = b.ceilDiv(keys, getItemKeys(spec));
        Value head = b.div(args[1], items);
        Value first = b.mul(b.rem(args[1], items), getItemKeys(spec));
        Value n = b.min(b.sub(keys, first), b.index(getItemKeys(spec)));
        Value heads = v.size(spec.valueHeads);
        Value from = v.head(spec.v, b.div(head, heads), b.rem(head, heads));
        Value row =
            b.add(b.mul(head, getRows(b, atom, keys)), b.div(first, atom.pack));
        Value to = b.load(b.pointer, args[0], b.i64, b.index(spec.slots));
        Value stride = getStride(b, valueDim);
        atom.packValues(v, spec.v, from, first, n, valueDim,
                        b.at(to, b.i32, b.mul(row, stride)), stride);
      });
}

Value mlir::diffattn::findPackedValues(KernelValues &v, Value context,
                                       Value batch, Value head, Value first,
                                       Value n, function_ref<Value()> pack) {
  KernelBuilder &b = v.b;
  const ProductAtom &atom = v.spec.getAtom();
  Value keys = v.size(v.spec.keys);
  Value panelKeys = b.index(atom.getPanelKeys());
  auto isWhole = [&](Value count) {
    return b.equal(b.rem(count, panelKeys), b.index(0));
  };
  Value address = b.load(b.i64, context, b.i64, b.index(v.spec.slots));
  // Behind the last key are zeros, behind others a key outside of the range.
  Value ends =
      arith::OrIOp::create(b, isWhole(n), b.equal(b.add(first, n), keys));
  Value isPacked =
      b.both(b.less(b.index(0), address), b.both(isWhole(first), ends));
  return b.choose(
      isPacked, b.pointer,
      [&] {
        Value number = b.add(b.mul(batch, v.size(v.spec.valueHeads)), head);
        Value row = b.add(b.mul(number, getRows(b, atom, keys)),
                          b.div(first, atom.pack));
        Value base = LLVM::IntToPtrOp::create(b, b.pointer, address);
        Value stride = getStride(b, v.size(v.spec.valueDim));
        return SmallVector<Value>{b.at(base, b.i32, b.mul(row, stride))};
      },
      [&] { return SmallVector<Value>{pack()}; })[0];
}
