//===- ProductAtom.h - products of two operands -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PRODUCTATOM_H
#define DIFFATTN_LIB_CODEGEN_CPU_PRODUCTATOM_H

#include "KernelValues.h"

namespace mlir::diffattn {

/// A query that is packed: its columns in memory, and where its packs go, each
/// `stride` after the one before it.
struct PackedQuery {
  Value from;
  Type element;
  Value columnStride, columns;
  Value to;
  int64_t stride;
  /// The factor of the packed query, if the atom scales queries.
  float scale;
};

/// The instruction at the heart of a register tile, and the layouts that it
/// reads: sums in f32 of lanes of 32 bits, each of which packs `pack` numbers
/// that are neighbours along the contracted axis. A new instruction is a class
/// in a file of its own (of another type of numbers in tiles: a function of
/// TileProducts.cpp), a value of CpuProduct, a row of getProductAtom, and a row
/// of getCpuMicroKernels (lib/Schedule) with its tiles.
class ProductAtom {
public:
  /// Part of the names of kernels: "" or, for example, "_bf16".
  const StringRef suffix;
  const int64_t pack;
  /// Whether queries are widened and scaled as they are packed. Else they keep
  /// their values, and the scale waits until after the product.
  const bool scalesQueries;
  /// Degree of the polynomial of exponentials: the rounding of the next product
  /// hides the error of a shorter one.
  const int exponentDegree;
  /// Whether products are made by a matrix unit, from tiles of rows in memory:
  /// `multiplyAdd` is then not used (TileKernels.h).
  const bool usesTiles;

  virtual ~ProductAtom() = default;
  /// Whether it multiplies the operands of `spec`.
  virtual bool takes(const AttentionSpec &spec) const = 0;
  /// The type that a packed row holds, and that one number in it has.
  virtual Type getPacked(KernelBuilder &b) const = 0;
  virtual Type getNumber(KernelBuilder &b) const = 0;
  /// Whether rows of `operand` are multiplied where they lie.
  bool readsRows(KernelBuilder &b, const SpecOperand &operand) const {
    return operand.element == getNumber(b) && operand.hasUnitColumns();
  }
  /// Whether rows of values, whose keys are contracted, are multiplied where
  /// they lie: packs of several keys are not neighbours in memory.
  bool readsValues(KernelBuilder &b, const SpecOperand &values) const {
    return pack == 1 && readsRows(b, values);
  }

  // Panels of the prefill kernel.
  /// Keys of which the rows of a panel of values are a multiple.
  virtual int64_t getPanelKeys() const { return pack; }
  virtual void packQuery(KernelBuilder &b, const PackedQuery &query) const = 0;
  /// Packs `n` rows of `operand` from `first` on behind row 0 of a head at
  /// `base`, those of as many keys, in rows of `stride` packs, padded with
  /// zeros to whole vectors.
  virtual void packValues(KernelValues &v, const SpecOperand &operand,
                          Value base, Value first, Value n, Value columns,
                          Value panel, Value stride) const = 0;

  /// Loads one pack, or a vector of them.
  Value loadScalar(KernelBuilder &b, Value base, Value index) const;
  virtual Value loadVector(KernelBuilder &b, Value base, Value index) const = 0;
  /// Loads the first number of pack `index`, with zeros for the others, which
  /// are not read.
  virtual Value loadFirst(KernelBuilder &b, Value base, Value index) const = 0;

  // Rows of the split-KV kernel, of any type where packs hold one number.
  /// A vector of packs that begins with number `index` of a row; with `mask`,
  /// which has a bit for each number, 0 elsewhere.
  virtual Value loadRow(KernelBuilder &b, Value row, Type element, Value index,
                        Value mask) const = 0;
  /// `vectors` vectors of columns from `column` on, each lane a pack of as many
  /// keys, whose rows are `stride` apart.
  virtual SmallVector<Value> loadColumns(KernelBuilder &b, Value row,
                                         Type element, Value stride,
                                         Value column, int64_t vectors,
                                         Value mask) const = 0;

  /// A vector of f32 rounded to numbers that are multiplied, as `makePack`
  /// rounds.
  virtual Value roundNumbers(KernelBuilder &b, Value part) const = 0;
  /// Vectors of f32, `pack` of them, as one vector.
  virtual Value makePack(KernelBuilder &b, ArrayRef<Value> parts) const = 0;
  /// sum + x * y.
  virtual Value multiplyAdd(KernelBuilder &b, Value x, Value y,
                            Value sum) const = 0;
  /// sum + x * y, where a 0 in x adds nothing, even times infinity or NaN.
  /// Finite numbers give the same bits as `multiplyAdd`.
  virtual Value multiplyAddCarefully(KernelBuilder &b, Value x, Value y,
                                     Value sum) const = 0;

protected:
  ProductAtom(StringRef suffix, int64_t pack, bool scalesQueries,
              int exponentDegree, bool usesTiles = false)
      : suffix(suffix), pack(pack), scalesQueries(scalesQueries),
        exponentDegree(exponentDegree), usesTiles(usesTiles) {}
};

const ProductAtom &getProductAtom(CpuProduct product);
/// Multiply-adds of f32, to which every type is widened: FmaF32.cpp.
const ProductAtom &getFmaF32();
/// VDPBF16PS: DotBf16.cpp.
const ProductAtom &getDotBf16();
/// AMX's TDPBF16PS: TileProducts.cpp.
const ProductAtom &getTileBf16();

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PRODUCTATOM_H
