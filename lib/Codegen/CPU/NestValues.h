//===- NestValues.h - sizes and addresses inside a work item ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_NESTVALUES_H
#define DIFFATTN_LIB_CODEGEN_CPU_NESTVALUES_H

#include "KernelBuilder.h"
#include "NestSpec.h"

#include "DiffAttn/Codegen/Attention/EmittedMasks.h"

#include "llvm/ADT/DenseMap.h"

#include <functional>

namespace mlir::diffattn {

/// Reads a work item's context: sizes that are numbers stay numbers.
class NestValues {
public:
  NestValues(KernelBuilder &b, const NestSpec &spec, Value context)
      : b(b), spec(spec), context(context) {}

  KernelBuilder &b;
  const NestSpec &spec;

  Value size(const NestSize &size) {
    if (size.isStatic())
      return b.index(size.value);
    return b.load(b.i64, context, b.i64, b.index(size.slot));
  }
  Value address(const NestOperand &operand) {
    return b.load(b.pointer, context, b.i64, b.index(operand.slot));
  }
  Value stride(const NestOperand &operand, int axis) {
    return size(operand.strides[axis]);
  }
  /// The address of row 0 of one head.
  Value head(const NestOperand &operand, Value batch, Value head) {
    Value offset = b.add(b.mul(batch, stride(operand, 0)),
                         b.mul(head, stride(operand, 1)));
    return b.at(address(operand), operand.element, offset);
  }

private:
  Value context;
};

/// Which head of each operand signal head `signal` uses.
struct NestHeads {
  Value signal, noise, key1, key2, value;
};
NestHeads getNestHeads(NestValues &values, Value signal);

/// Keys [low, high) that queries see, i64. Masks that look at elements are left
/// out.
struct KeyRange {
  Value low, high;
};

/// Of rows that follow each other: the keys that one of them sees or that lie
/// between such keys, and those that all of them see.
struct TileKeys {
  KeyRange some, all;
};

/// The masks of one batch: ranges of keys as scalars, elements as lanes.
class NestMasks final : public EmittedMasks {
public:
  /// Emits what depends on the batch alone.
  NestMasks(NestValues &values, Value batch);

  /// The keys that the rows from `first` to `last` see, and that one row sees.
  TileKeys getTileKeys(Value first, Value last);
  KeyRange getRowKeys(Value row) { return getTileKeys(row, row).some; }

  /// Keys from `keyCount` on are seen by no query. Query i sees keys from
  /// `low + i` on and below `high + i`; null where the op sets no such limit.
  /// Both are clamped to a range in which sums with rows and keys do not
  /// overflow.
  Value keyCount, low, high;
  /// Loads lanes of an operand; f32, or i1 of a boolean operand.
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
  MaskValue both(MaskValue x, MaskValue y) override {
    return wrap(b.both(unwrap(x), unwrap(y)));
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

  /// The score of a pair by the masks that look at elements.
  Value maskElements(Value score);

protected:
  Value addToScore(Value score, Value term) override {
    return b.addf(score, term);
  }
  Value hideScore(Value visible, Value score) override;

private:
  KernelBuilder &b;
  const ScoreRules &rules;
};

/// Copies `n` rows of `operand`, from row `first` after `base` on, to `panel`
/// as f32 rows of `paddedColumns`, of which those from `columns` on become 0.
void packRows(NestValues &values, const NestOperand &operand, Value base,
              Value first, Value n, Value columns, Value paddedColumns,
              Value panel);
/// Copies `n` rows of V (bf16) in pairs of keys, as i32:
/// panel[ceil(n / 2)][panelStride], padded with zeros to whole vectors of
/// columns and to an even number of keys.
void packValuePairs(NestValues &values, Value base, Value first, Value n,
                    Value panel, Value panelStride);

/// Writes one finished row: norm, weight, out_scale and gate over the f32 row
/// at `x` (whose columns are padded with zeros to whole vectors and which may
/// be overwritten), one rounding, store.
void emitFinishRow(NestValues &values, Value x, Value batch, Value signalHead,
                   Value row);

/// lambda of one row, activated, as a vector with all lanes equal or, with
/// `rows` lanes valid, of consecutive rows.
Value emitLambdaScalar(NestValues &values, Value batch, const NestHeads &heads,
                       Value row);

/// The functions that a signature's caller hands to the runtime's parallel_for.
/// body: (context: ptr, index: i64, scratch: ptr)
LLVM::LLVMFuncOp emitBlockNest(KernelBuilder &b, ModuleOp module,
                               StringRef name, const NestSpec &spec);
/// Scratch of one thread for `emitBlockNest`, in bytes, from the caller's
/// sizes.
Value emitBlockNestScratch(KernelBuilder &b, const NestSpec &spec, Value keys,
                           Value headDim, Value valueDim);

/// The sizes of one call, as values in the caller.
struct NestCallSizes {
  Value batch, signalHeads, noiseHeads, key1Heads, key2Heads, valueHeads,
      queries, keys, headDim, valueDim;
};

/// The four loops for few queries, in the order in which they run: over blocks
/// of keys, rows, blocks, rows (SplitNest.h). The context has one slot more
/// than the spec counts: the address of the memory that they share.
struct SplitNestFunctions {
  LLVM::LLVMFuncOp scores, factors, values, merge;
};
SplitNestFunctions emitSplitNest(KernelBuilder &b, ModuleOp module,
                                 StringRef name, const NestSpec &spec);

/// How often they are called and the memory that they need, in bytes.
struct SplitNestSizes {
  Value items, rows, stateBytes, scoresScratch, valuesScratch, rowScratch;
};
SplitNestSizes emitSplitNestSizes(KernelBuilder &b, const NestSpec &spec,
                                  const NestCallSizes &sizes);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_NESTVALUES_H
