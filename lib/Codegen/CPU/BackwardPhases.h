//===- BackwardPhases.h - gradients of a block of queries -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_BACKWARDPHASES_H
#define DIFFATTN_LIB_CODEGEN_CPU_BACKWARDPHASES_H

#include "BackwardLayout.h"
#include "PrefillValues.h"

namespace mlir::diffattn {

/// Sums that a block of queries of one head adds to: rows of its heads of keys
/// and values, the row of d_norm_weight, and the number of d_lambda. Null where
/// they are not wanted.
struct BlockSums {
  Value keys[2], values, normWeights, lambda;
};

/// Emits phases of gradients, from the exponentials, maxima and sums that
/// scoring leaves. docs/spec.md has the formulas and the names dX, D1 and D2.
class BackwardPhases {
public:
  BackwardPhases(KernelValues &v, const BackwardSpec &spec, ModuleOp module,
                 const BackwardSizes &sizes, PrefillScoring &scoring,
                 PrefillValues &values)
      : b(v.b), spec(spec), attention(spec.attention),
        schedule(spec.attention.prefill), v(v), module(module), sizes(sizes),
        scoring(scoring), values(values) {}

  // Before the products: BackwardRows.cpp.
  /// Takes inverses of sums, and makes weights of sums for the product with V.
  void finishSums(const PrefillItem &item, const BackwardLayout &s);
  /// Turns outputs of both maps into their products with V, and makes X of them
  /// where lanes of gradients will lie. Returns X.
  Value finishOutputs(const PrefillItem &item, const BackwardLayout &s);
  /// Copies rows of X that were saved to where lanes of gradients will lie.
  /// Returns them.
  Value loadOutputs(const PrefillItem &item, const BackwardLayout &s);
  /// Makes dX and the gradients of the end of rows from `x`, rows of X, which
  /// is null if not needed.
  void finishRows(const PrefillItem &item, const BackwardLayout &s, Value x,
                  const BlockSums &sums);
  /// Makes D1 and D2 from dX and the products of both maps with V.
  void sumOutputs(const PrefillItem &item, const BackwardLayout &s);
  /// Packs queries, as the product that contracts rows reads them. By matrix
  /// tiles, also clears the lanes that it reads behind the last vector.
  void packQueryRows(const PrefillItem &item, const BackwardLayout &s);
  void addLambda(const PrefillItem &item, const BackwardLayout &s,
                 const BlockSums &sums);
  void storeQueries(const PrefillItem &item, const BackwardLayout &s, int map);

  // One KV block: BackwardPhases.cpp.
  /// Stores dX times its values where its scores begin, at key `position`.
  void multiplyValues(const PrefillItem &item, const BackwardLayout &s,
                      const ValueHead &head, const KvBlock &kvBlock,
                      Value position);
  /// Adds to D1 and D2.
  void addRowSums(const PrefillItem &item, const BackwardLayout &s,
                  const KvBlock &kvBlock, Value position,
                  ArrayRef<Value> factors);
  /// Makes gradients of scores, and adds their products. `suspect`, i1: whether
  /// queries or dX are not finite somewhere.
  void addGradients(const PrefillItem &item, const BackwardLayout &s,
                    const KeyHeads &heads, const KvBlock &kvBlock,
                    Value position, ArrayRef<Value> factors,
                    const BlockSums &sums, Value suspect);
  /// The factors that turn the exponentials of a KV block into weights.
  SmallVector<Value> updateFactors(const PrefillItem &item,
                                   const BackwardLayout &s, Value number);
  /// Whether queries or dX are not finite somewhere; null where all keys are
  /// seen.
  Value findSuspects(const PrefillItem &item, const BackwardLayout &s);
  /// Sets `rows` rows of `stride` to 0.
  void clear(Value panel, Value rows, Value stride);
  /// The values of the maps that there are.
  SmallVector<Value> getMapValues(ArrayRef<Value> ofMaps) {
    return SmallVector<Value>(ofMaps.take_front(attention.maps().size()));
  }

  KernelBuilder &b;
  const BackwardSpec &spec;
  const AttentionSpec &attention;
  const CpuPrefillAttr schedule;

private:
  bool mayHide() const {
    return attention.hasPartialTiles() || attention.addsBias();
  }
  Columns cutHead() { return cutColumns(b, attention.headDim, sizes.headDim); }
  Columns cutValues() {
    return cutColumns(b, attention.valueDim, sizes.valueDim);
  }
  Value getProducts(const BackwardLayout &s, Value position) {
    return b.at(s.products, b.f32, b.mul(position, schedule.getQBlockSize()));
  }
  /// Calls `emit` for scores of which some may be hidden, or none.
  void byHidden(const KvBlock &kvBlock, function_ref<void(bool hidden)> emit);
  void addProducts(const PrefillItem &item, const BackwardLayout &s,
                   const KeyHeads &heads, const KvBlock &kvBlock,
                   Value position, const BlockSums &sums, bool careful);
  /// Rows that products by matrix tiles contracted without the numbers that are
  /// not finite.
  struct LeftOut {
    Value count;
    function_ref<Value(Value row)> hasNonFinite;
    function_ref<Value(Value row, const ColumnVector &)> load;
  };
  /// Adds these numbers times `coefficients`, [key][lane], to the rows of
  /// `out`: one for each of `others`, which are queries where the rows
  /// `areKeys`, and else keys.
  void addLeftOut(const LeftOut &rows, bool areKeys, const Columns &columns,
                  Value coefficients, Value others, Value out, Value stride);
  void addLeftOut(const OperandRows &rows, bool areKeys, Value coefficients,
                  Value others, Value out);
  /// Stores `load` of rows and columns in packs of rows, [row / pack][column],
  /// a last row without a partner paired with 0. For matrix tiles, zeros follow
  /// up to whole tiles, and, where keys may be hidden, replace numbers that are
  /// not finite.
  void packRows(const PrefillItem &item, const Columns &columns, Value to,
                Value stride,
                function_ref<Value(Value row, const ColumnVector &)> load);
  /// Rounds dX for products of pairs, in the layout that they read.
  void roundGradients(const PrefillItem &item, const BackwardLayout &s);
  /// Rows of keys as the product that contracts keys reads them, and the
  /// stride of rows.
  std::pair<Value, Value> getContractedKeys(const PrefillItem &item,
                                            const BackwardLayout &s, int map,
                                            Value base, const KvBlock &kvBlock,
                                            bool finite);
  void finishRow(const PrefillItem &item, const BackwardLayout &s, Value row,
                 Value x, const BlockSums &sums);
  /// Whether a number of the first `rows` rows of a panel is Inf or NaN.
  Value hasNonFinite(Value panel, Value rows, Value stride);

  KernelValues &v;
  const ModuleOp module;
  const BackwardSizes &sizes;
  PrefillScoring &scoring;
  PrefillValues &values;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_BACKWARDPHASES_H
