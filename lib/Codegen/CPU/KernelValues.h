//===- KernelValues.h - sizes and addresses inside a work item --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_KERNELVALUES_H
#define DIFFATTN_LIB_CODEGEN_CPU_KERNELVALUES_H

#include "AttentionSpec.h"
#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

#include "DiffAttn/Semantics/EmittedMasks.h"

#include "llvm/ADT/DenseMap.h"

#include <functional>

namespace mlir::diffattn {

/// Reads a work item's context: sizes that are numbers stay numbers.
class KernelValues {
public:
  KernelValues(KernelBuilder &b, const AttentionSpec &spec, Value context)
      : b(b), spec(spec), context(context) {}

  KernelBuilder &b;
  const AttentionSpec &spec;

  Value size(const SpecSize &size) {
    if (size.isStatic())
      return b.index(size.value);
    return b.load(b.i64, context, b.i64, b.index(size.slot));
  }
  Value address(const SpecOperand &operand) {
    return b.load(b.pointer, context, b.i64, b.index(operand.slot));
  }
  Value stride(const SpecOperand &operand, int axis) {
    return size(operand.strides[axis]);
  }
  /// The address of row 0 of one head.
  Value head(const SpecOperand &operand, Value batch, Value head) {
    Value offset = b.add(b.mul(batch, stride(operand, 0)),
                         b.mul(head, stride(operand, 1)));
    return b.at(address(operand), operand.element, offset);
  }
  /// The address of the bias of a row of a noise head for a key; one of truth
  /// values has a byte for each.
  Value bias(Value batch, Value noiseHead, Value row, Value key) {
    const SpecOperand &operand = spec.bias();
    Type element = operand.element.isInteger(1) ? b.i8 : operand.element;
    Value offset =
        b.add(b.mul(row, stride(operand, 2)), b.mul(key, stride(operand, 3)));
    return b.at(head(operand, batch, noiseHead), element, offset);
  }
  /// The integer of a mask's operand at one row, or those at `count` rows from
  /// there on as lanes (0 in the others); i64.
  Value integer(const SpecOperand &operand, Value batch, Value row);
  Value integers(const SpecOperand &operand, Value batch, Value row,
                 Value count);

  /// The address of row `key` of a batch, in the pages of one head, which
  /// begin at `base`.
  Value pagedRow(const SpecOperand &pages, Value base, Value batch, Value key);
  /// Copies `n` such rows from `first` on to dense ones of `columns` at `to`.
  void copyPagedRows(const SpecOperand &pages, Value base, Value batch,
                     Value first, Value n, Value columns, Value to);

private:
  Value context;
};

/// The heads of all operands that signal head `signal` uses.
struct HeadIndices {
  Value signal, noise, key1, key2, value;
};
HeadIndices getHeadIndices(KernelValues &values, Value signal);

/// Keys [low, high) that queries see, i64. Masks that look at elements are left
/// out.
struct KeyRange {
  Value low, high;
};

/// Ranges of keys for consecutive rows: the smallest one with all keys that any
/// of the rows sees, and the keys that all of them see.
struct TileKeys {
  KeyRange some, all;
};

/// The masks of one batch: ranges of keys as scalars, elements as lanes.
class KernelMasks final : public EmittedMasks {
public:
  /// Emits the parts of masks that depend on the batch alone.
  KernelMasks(KernelValues &values, Value batch);

  /// The relation of a tile of keys to the rows of `beginRows`.
  TileRelation getTileRelation(Value firstKey, Value lastKey);
  /// Emits the part of relations that depends on rows alone, once for many
  /// tiles of keys.
  void beginRows(Value first, Value last);

  /// The keys that the rows from `first` to `last` see, and that one row sees.
  TileKeys getTileKeys(Value first, Value last);
  KeyRange getRowKeys(Value row) { return getTileKeys(row, row).some; }

  /// Keys from `keyCount` on are seen by no query. Query i sees keys from
  /// `low + i` on and below `high + i`; null where the op sets no such limit.
  /// Both are clamped to a range in which sums with rows and keys do not
  /// overflow.
  Value keyCount, low, high;
  /// Loads lanes of an operand: f32, i1 of a boolean operand, i64 of integers.
  std::function<Value(MaskOperand)> loadLanes;

  MaskValue min(MaskValue x, MaskValue y) override {
    return wrap(b.min(unwrap(x), unwrap(y)));
  }
  MaskValue max(MaskValue x, MaskValue y) override {
    return wrap(b.max(unwrap(x), unwrap(y)));
  }
  MaskValue less(MaskValue x, MaskValue y) override {
    return wrap(b.less(unwrap(x), unwrap(y)));
  }
  MaskValue equal(MaskValue x, MaskValue y) override {
    return wrap(b.equal(unwrap(x), unwrap(y)));
  }
  MaskValue both(MaskValue x, MaskValue y) override {
    return wrap(b.both(unwrap(x), unwrap(y)));
  }
  MaskValue either(MaskValue x, MaskValue y) override;
  MaskValue lowest(MaskOperand operand, const MaskTile &tile) override {
    return wrap(scan(operand, tile).first);
  }
  MaskValue highest(MaskOperand operand, const MaskTile &tile) override {
    return wrap(scan(operand, tile).second);
  }
  MaskValue load(MaskOperand operand, const MaskPoint &point) override {
    return wrap(loadLanes(operand));
  }
  MaskValue isNotMinusInfinity(MaskValue element) override;
  MaskValue length() override { return wrap(keyCount); }
  MaskValue keyBefore(MaskValue query, int64_t left) override;
  MaskValue endAfter(MaskValue query, int64_t right) override;
  MaskValue isWithinLeft(const MaskPoint &point, int64_t left) override;
  MaskValue isWithinRight(const MaskPoint &point, int64_t right) override;

  /// The score of a pair by the masks of elements; those with a relation of
  /// tiles are applied only if `inPartialTile`.
  Value maskElements(Value score, bool inPartialTile);

protected:
  Value addToScore(Value score, Value term) override {
    return b.addf(score, term);
  }
  Value hideScore(Value visible, Value score) override;

private:
  /// The lowest and the highest integer of an operand over a tile.
  std::pair<Value, Value> scan(MaskOperand operand, const MaskTile &tile);

  KernelBuilder &b;
  KernelValues &values;
  const ScoreRules &rules;
  Value batch;
  MaskTile rows;
  /// The last scan of each operand: its lowest and highest are used one after
  /// the other.
  struct Scanned {
    MaskTile tile;
    Value lowest, highest;
  };
  Scanned scanned[std::size(kMaskOperands)];
};

/// Copies `n` rows of `operand`, from row `first` after `base` on, to `panel`
/// as f32 rows of `paddedColumns`, of which those from `columns` on become 0.
void packRows(KernelValues &values, const SpecOperand &operand, Value base,
              Value first, Value n, Value columns, Value paddedColumns,
              Value panel);
/// Writes one finished row: norm, weight, out_scale and gate over the f32 row
/// at `x` (whose columns are padded with zeros to whole vectors and which may
/// be overwritten), one rounding, store.
void emitFinishRow(KernelValues &values, Value x, Value batch, Value signalHead,
                   Value row);

/// lambda of one row, activated, as a vector with all lanes equal or, with
/// `rows` lanes valid, of consecutive rows.
Value emitLambdaScalar(KernelValues &values, Value batch,
                       const HeadIndices &heads, Value row);

/// The functions that the caller of a signature passes to parallel_for.
/// body: (context: ptr, index: i64, scratch: ptr)
LLVM::LLVMFuncOp emitPrefillKernel(KernelBuilder &b, ModuleOp module,
                                   StringRef name, const AttentionSpec &spec);
/// Scratch of one thread for `emitPrefillKernel`, in bytes, from the caller's
/// sizes.
Value emitPrefillScratch(KernelBuilder &b, const AttentionSpec &spec,
                         Value keys, Value headDim, Value valueDim);

/// The sizes of one call, as values in the caller or in a loop's function.
struct CallSizes {
  Value batch, signalHeads, noiseHeads, key1Heads, key2Heads, valueHeads,
      queries, keys, headDim, valueDim;
};
/// The sizes of `spec`, each as the value that `read` gives for it.
CallSizes getCallSizes(const AttentionSpec &spec,
                       function_ref<Value(const SpecSize &)> read);

/// The four loops for few queries, in the order in which they run: over blocks
/// of keys, rows, blocks, rows (SplitKVKernel.h). The context has one slot more
/// than the spec counts: the address of the memory that they share.
struct SplitKVFunctions {
  LLVM::LLVMFuncOp scores, factors, values, merge;
};
SplitKVFunctions emitSplitKVKernel(KernelBuilder &b, ModuleOp module,
                                   StringRef name, const AttentionSpec &spec);

/// Numbers of calls of these functions, and their memory in bytes.
struct SplitKVSizes {
  Value items, rows, stateBytes, scoresScratch, valuesScratch, rowScratch;
};
SplitKVSizes emitSplitKVSizes(KernelBuilder &b, const AttentionSpec &spec,
                              const CallSizes &sizes);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_KERNELVALUES_H
