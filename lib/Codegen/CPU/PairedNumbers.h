//===- PairedNumbers.h - layouts of pairs of 16 bits ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PAIREDNUMBERS_H
#define DIFFATTN_LIB_CODEGEN_CPU_PAIREDNUMBERS_H

#include "ProductAtom.h"

namespace mlir::diffattn {

/// Base of products of pairs of 16-bit floats: operands are multiplied as they
/// lie in memory, or in pairs of neighbours along the contracted axis. Scores
/// are scaled after the product, so the scale must keep their order.
class PairedNumbers : public ProductAtom {
public:
  bool takes(const AttentionSpec &spec) const override;
  /// Whether types and scale suit it, wherever columns lie.
  bool takesTypes(const AttentionSpec &spec) const;
  Type getPacked(KernelBuilder &b) const override { return b.i32; }
  Type getNumber(KernelBuilder &b) const override {
    return numberType(b.getContext());
  }
  int64_t getPanelKeys() const override { return 2 * multiple; }
  /// Packs one query's columns in pairs, the last of an odd number with 0, then
  /// pairs of zeros up to a multiple of `multiple`.
  void packQuery(KernelBuilder &b, const PackedQuery &query) const override;
  /// Packs pairs of keys as i32: panel[ceil(n / 2)][stride]. An odd last key is
  /// paired with zeros; rows of zeros follow up to a multiple of `multiple`.
  void packValues(KernelValues &v, const SpecOperand &operand, Value base,
                  Value first, Value n, Value columns, Value panel,
                  Value stride) const override {
    packValues(v, operand, base, first, n, columns, panel, stride,
               /*finite=*/false);
  }
  /// As above; `finite` replaces Inf and NaN by 0.
  void packValues(KernelValues &v, const SpecOperand &operand, Value base,
                  Value first, Value n, Value columns, Value panel,
                  Value stride, bool finite) const;
  Value loadVector(KernelBuilder &b, Value base, Value index) const override {
    return b.load(b.integers, base, b.i32, index);
  }
  Value loadFirst(KernelBuilder &b, Value base, Value index) const override;
  Value loadRow(KernelBuilder &b, Value row, Type element, Value index,
                Value mask) const override;
  SmallVector<Value> loadColumns(KernelBuilder &b, Value row, Type element,
                                 Value stride, Value column, int64_t vectors,
                                 Value mask) const override;
  Value makePack(KernelBuilder &b, ArrayRef<Value> parts) const override {
    Value first = roundNumbers(b, parts[0]), second = roundNumbers(b, parts[1]);
    return interleave(b, first, second);
  }
  Value multiplyAddCarefully(KernelBuilder &b, Value x, Value y,
                             Value sum) const override;

protected:
  using NumberType = Type (*)(MLIRContext *);

  template <typename T>
  static Type getType(MLIRContext *context) {
    return T::get(context);
  }

  /// Interleaves two vectors of numbers into one of pairs.
  static Value interleave(KernelBuilder &b, Value first, Value second);

  /// `numberType` makes the type of a number, of 16 bits.
  PairedNumbers(StringRef suffix, NumberType numberType, bool usesTiles,
                int64_t multiple)
      : ProductAtom(suffix, /*pack=*/2, /*scalesQueries=*/false,
                    /*exponentDegree=*/3, usesTiles),
        numberType(numberType), multiple(multiple) {}

private:
  const NumberType numberType;
  const int64_t multiple;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PAIREDNUMBERS_H
