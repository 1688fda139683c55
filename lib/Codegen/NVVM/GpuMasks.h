//===- GpuMasks.h - masks in the registers of a GPU thread ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a kernel needs to know of masks: the tiles of keys that some query of a
// block sees, whether a tile is seen as a whole, the keys of one query, and the
// elements that masks load. A new kind of mask that reads an operand of its own
// is a case of `load`; another limit on positions needs nothing.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GPUMASKS_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GPUMASKS_H

#include "DiffAttn/Codegen/NVVM/KernelParams.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "GpuBuilder.h"

namespace mlir::diffattn::gpucode {
struct AttentionKernel;

/// How the scores of a lane lie, and so how it loads the elements of masks.
enum class ScoreLanes {
  /// One key a lane. Queries and keys are those of operands.
  Single,
  /// Two neighbouring keys, from an even one on; what lies beyond the last
  /// query or key reads the last one again, and is masked as one that no query
  /// sees. The elements of both are loaded one by one, or at once.
  Pairs,
  AlignedPairs
};

/// The masks of one batch. All numbers are i32.
class GpuMasks final : public MaskBuilder {
public:
  /// Emits what depends on the batch alone: the number of keys that exist, and
  /// a position of query 0 that sees the same keys through WindowLeft and
  /// WindowRight as the given one does through the limits, and whose sums with
  /// rows and windows fit in i32.
  GpuMasks(AttentionKernel &kernel, Value batch);

  /// Keys from this one on are seen by no query.
  Value keyLimit;

  /// A query, `offset` after `value`; null: after query 0.
  struct Query {
    Value value;
    int64_t offset = 0;
    bool operator==(const Query &other) const {
      return value == other.value && offset == other.offset;
    }
  };
  /// The keys that queries see by the masks that are intervals. Bounds hold
  /// until the next call, and are emitted by `emit`, which a caller asks for
  /// the form that it compares: the end of a range, or with `plus` = -1 its
  /// last key, takes one instruction less at one place or the other.
  VisibleRange getRange(Query first, Query last);
  VisibleRange getRange(Value query) { return getRange({query}, {query}); }
  Value emit(MaskValue bound, int64_t plus = 0);

  /// Whether a mask looks at elements, and whether `AlignedPairs` may be asked
  /// for.
  bool hasElements() const { return !elementMasks.empty(); }
  bool mayLoadPairs() const;
  /// From here on, elements are those of `noiseHead`, and then of `query`.
  void beginHead(Value noiseHead, ScoreLanes lanes);
  void beginQuery(Value query);
  /// The score of that query and key `firstKey + column` by the masks that
  /// look at elements; both keys of a pair are asked for in turn.
  Value maskElements(Value score, Value firstKey, int64_t column);

  MaskValue min(MaskValue x, MaskValue y) override;
  MaskValue max(MaskValue x, MaskValue y) override;
  MaskValue less(MaskValue x, MaskValue y) override;
  MaskValue equal(MaskValue x, MaskValue y) override;
  MaskValue both(MaskValue x, MaskValue y) override;
  MaskValue either(MaskValue x, MaskValue y) override;
  MaskValue load(MaskOperand operand, const MaskPoint &point) override;
  MaskValue isNotMinusInfinity(MaskValue element) override;
  MaskValue length() override;
  MaskValue keyBefore(MaskValue query, int64_t left) override;
  MaskValue endAfter(MaskValue query, int64_t right) override;
  MaskValue isWithinLeft(const MaskPoint &point, int64_t left) override;
  MaskValue isWithinRight(const MaskPoint &point, int64_t right) override;

private:
  /// What a MaskValue stands for. Bounds are terms, not instructions, until
  /// `emit`: kernels were seen to lose occupancy to comparisons of another
  /// form.
  struct Term {
    enum Kind { Sum, KeyBefore, EndAfter, Min, Max, Hidden } kind;
    /// Sum: `value` + `constant`, with null for 0, or an element or a condition
    /// as it is. KeyBefore, EndAfter: of that query. Hidden: true where the key
    /// is not visible.
    Value value;
    int64_t constant = 0;
    /// Operands of Min and Max; of Hidden, what is -inf there.
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

  /// An operand of the masks that look at elements, at one head and query.
  struct Elements {
    MaskOperand operand;
    /// The row of the pointer, before those of its strides along batch, head,
    /// query and key.
    GpuParam tensor;
    Type type;
    Value head, query;
    /// The second one of a pair, and its column.
    Value neighbour;
    int64_t neighbourColumn = -1;
  };
  Elements getElements(MaskOperand operand) const;
  Value loadElement(Elements &from, const Term &key);

  AttentionKernel &kernel;
  GpuBuilder &b;
  Value batch, position0;
  SmallVector<MaskAttrInterface> elementMasks;
  SmallVector<Elements> elements;
  SmallVector<Term> terms;
  llvm::SmallDenseMap<Value, Value> positions;
  llvm::SmallDenseMap<MaskOperand, Value> loaded;
  ScoreLanes lanes = ScoreLanes::Single;
  Value lastQuery, lastKey;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GPUMASKS_H
