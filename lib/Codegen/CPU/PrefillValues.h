//===- PrefillValues.h - a block of queries times the values ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PREFILLVALUES_H
#define DIFFATTN_LIB_CODEGEN_CPU_PREFILLVALUES_H

#include "PrefillScoring.h"
#include "RowColumns.h"

namespace mlir::diffattn {

/// The item's head of V: the address of row 0, as `findHead` has it, and how
/// many columns its rows have.
struct ValueHead {
  Value base, columns;
};

ValueHead findValueHead(KernelValues &v, const PrefillItem &item,
                        Value valueDim);

/// The values of a KV block: those of `keys` behind row 0 of a head at `base`.
struct ValueBlock {
  KvBlock keys;
  Value base, columns;
};

/// A product with values, `out` += `p` times them. A row sees a key if one of
/// the exponentials at `evidence` gives it weight.
struct ValueProduct {
  Value p, out;
  SmallVector<Value, 2> evidence;
};

/// Copies numbers of `n` keys of a block of queries, pairs [key / 2][lane], to
/// `tiles`, in the layout of `getTileProductKernel`.
void emitTileWeights(PrefillScoring &scoring, const PrefillItem &item,
                     Value pairs, Value n, Value tiles);

/// Emits phases of the product P * V and of the end of rows, from the maxima,
/// sums and exponentials of scoring.
class PrefillValues {
public:
  /// `context`: where the address of panels that all blocks share is; null
  /// where there are none.
  PrefillValues(PrefillScoring &scoring, Value context)
      : scoring(scoring), b(scoring.b), spec(scoring.spec),
        schedule(scoring.schedule), atom(scoring.atom), v(scoring.v),
        module(scoring.module), context(context) {}

  /// Sets outputs to 0.
  void clear(const PrefillLayout &s);
  /// Turns sums into weights: 1 / sum of map 1, lambda / sum of map 2; 0 for a
  /// row without keys. Adds sinks to the sums, and stores their logarithms if
  /// the op has destinations for them.
  void finishSums(const PrefillItem &item, const PrefillLayout &s);
  /// Adds a KV block of both maps to the output, in the second of two passes.
  void combineKvBlock(const PrefillItem &item, const PrefillLayout &s,
                      const ValueHead &head, const KeyPartition &keys,
                      Value number);
  /// Online: moves the outputs to the new maxima, then adds the KV block that
  /// was scored last.
  void mergeKvBlock(const PrefillItem &item, const PrefillLayout &s,
                    const ValueHead &head, const KeyPartition &keys,
                    Value number);
  /// Online: output 1 becomes the difference of both by their weights, or, of
  /// one map, is weighted.
  void finishOnline(const PrefillItem &item, const PrefillLayout &s);
  /// Ends rows and stores them.
  void finishRows(const PrefillItem &item, const PrefillLayout &s);

  /// The difference e1 * factor1 - e2 * factor2 of two maps, of exponentials
  /// and of factors of lanes; e1 alone, where there is one map.
  struct Combination {
    Value e1, e2, factor1, factor2;
  };
  /// Stores it for `n` keys as the product reads it.
  void combine(const PrefillItem &item, const PrefillLayout &s,
               const Combination &maps, Value n);
  /// Adds the product of a KV block, where values that are not finite reach
  /// only rows that see their key.
  void multiply(const PrefillItem &item, const PrefillLayout &s,
                const ValueBlock &block, const ValueProduct &product);
  /// Whether one of the values is Inf or NaN.
  Value hasNonFinite(const ValueBlock &block);
  /// The values of the block as the product reads them, and the stride of rows.
  std::pair<Value, Value> getValueRows(const PrefillItem &item,
                                       const PrefillLayout &s,
                                       const ValueBlock &block);

private:
  ValueBlock getValueBlock(const PrefillItem &item, const PrefillLayout &s,
                           const ValueHead &head, const KvBlock &keys);
  /// The address of the values of key `key` of the block.
  Value getRow(const ValueBlock &block, Value key);
  Value givesWeight(Value exponentials, Value row, Value key);
  Value isVisible(const ValueProduct &product, Value row, Value key);
  void rescaleOutput(const PrefillItem &item, const PrefillLayout &s, int map);
  Value packWeights(const PrefillItem &item, const PrefillLayout &s, int map,
                    Value n);

  /// Calls the kernels for values at `rows`, as the product reads them.
  void multiplyRows(const PrefillItem &item, const ValueBlock &block,
                    const ValueProduct &product, Value rows, Value stride);

  // Products by register tiles. Those that are careful add only keys that a row
  // sees.
  void combineRegisters(const PrefillItem &item, const Combination &maps,
                        Value n, Value out);
  void multiplyRegistersCarefully(const PrefillItem &item,
                                  const PrefillLayout &s,
                                  const ValueBlock &block,
                                  const ValueProduct &product);
  Value addVisiblePack(const ValueBlock &block, const ValueProduct &product,
                       Value row, Value key, const ColumnVector &columns,
                       Value sum);

  // Products by matrix tiles: PrefillTileValues.cpp.
  void combineTiles(const PrefillItem &item, const PrefillLayout &s,
                    const Combination &maps, Value n);
  void multiplyTilesCarefully(const PrefillItem &item, const PrefillLayout &s,
                              const ValueBlock &block,
                              const ValueProduct &product);

  PrefillScoring &scoring;
  KernelBuilder &b;
  const AttentionSpec &spec;
  const CpuPrefillAttr schedule;
  const ProductAtom &atom;
  KernelValues &v;
  const ModuleOp module;
  Value context;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PREFILLVALUES_H
