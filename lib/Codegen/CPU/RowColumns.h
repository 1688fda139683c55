//===- RowColumns.h - the columns of a row, by vectors ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_ROWCOLUMNS_H
#define DIFFATTN_LIB_CODEGEN_CPU_ROWCOLUMNS_H

#include "KernelValues.h"

namespace mlir::diffattn {

/// Whole vectors of a row's columns, and the rest, which `mask` has.
struct Columns {
  Value whole, rest, mask;
  bool mayHaveRest;
};

/// A vector of columns from `first` on: of the rest, `count` are there.
struct ColumnVector {
  Value first, mask, count;
};

/// `columns`, whose number `known` is where it is static.
Columns cutColumns(KernelBuilder &b, const SpecSize &known, Value columns);
void forColumns(KernelBuilder &b, const Columns &columns,
                function_ref<void(const ColumnVector &)> body);

/// A vector of columns of the row of `operand` at `row`, as f32.
Value loadColumns(KernelValues &v, const SpecOperand &operand, Value row,
                  const ColumnVector &columns);

/// Stores the results of `make` for each vector of columns in the row of
/// `operand` at `row`, rounded once. Columns that do not lie side by side go
/// through `buffer`, f32 padded to whole vectors, first.
void storeColumns(KernelValues &v, const SpecOperand &operand, Value row,
                  const Columns &columns, Value buffer,
                  function_ref<Value(const ColumnVector &)> make);

/// Rows [first, first + n) of the head of `operand` whose row 0 is at `base`.
struct OperandRows {
  const SpecOperand &operand;
  Value base, first, n;
};

/// Whether one of the numbers of `rows` is Inf or NaN.
Value emitHasNonFinite(KernelValues &v, const OperandRows &rows,
                       const Columns &columns);

/// Whether each number of a vector is neither Inf nor NaN.
Value emitIsFinite(KernelBuilder &b, Value x);
/// Adds `weight` times the numbers of a row that are not finite, which `load`
/// gives by vectors of columns, to the row of f32 at `to`.
void addNonFinite(KernelBuilder &b, const Columns &columns, Value weight,
                  Value to, function_ref<Value(const ColumnVector &)> load);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_ROWCOLUMNS_H
