//===- RowColumns.cpp - the columns of a row, by vectors ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RowColumns.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

Columns mlir::diffattn::cutColumns(KernelBuilder &b, const SpecSize &known,
                                   Value columns) {
  Value whole = b.mul(b.div(columns, b.lanes), b.lanes);
  Value rest = b.sub(columns, whole);
  return {whole, rest, b.firstLanes(rest),
          !known.isStatic() || known.value % b.lanes != 0};
}

void mlir::diffattn::forColumns(KernelBuilder &b, const Columns &columns,
                                function_ref<void(const ColumnVector &)> body) {
  b.loop(b.index(0), columns.whole, b.lanes,
         [&](Value c) { body({c, Value(), b.index(b.lanes)}); });
  if (columns.mayHaveRest)
    b.ifThen(b.less(b.index(0), columns.rest),
             [&] { body({columns.whole, columns.mask, columns.rest}); });
}

Value mlir::diffattn::loadColumns(KernelValues &v, const SpecOperand &operand,
                                  Value row, const ColumnVector &columns) {
  KernelBuilder &b = v.b;
  if (operand.hasUnitColumns())
    return b.loadWide(row, operand.element, columns.first, columns.mask);
  Value stride = v.stride(operand, 3);
  return b.loadStrided(row, operand.element, b.mul(columns.first, stride),
                       stride, columns.count);
}

void mlir::diffattn::storeColumns(
    KernelValues &v, const SpecOperand &operand, Value row,
    const Columns &columns, Value buffer,
    function_ref<Value(const ColumnVector &)> make) {
  KernelBuilder &b = v.b;
  forColumns(b, columns, [&](const ColumnVector &c) {
    if (operand.hasUnitColumns())
      b.storeNarrow(make(c), row, operand.element, c.first, c.mask);
    else
      b.store(make(c), buffer, c.first);
  });
  if (operand.hasUnitColumns())
    return;
  Value stride = v.stride(operand, 3);
  b.loop(b.add(columns.whole, columns.rest), [&](Value c) {
    b.storeNarrow(b.load(b.f32, buffer, c), row, operand.element,
                  b.mul(c, stride));
  });
}

Value mlir::diffattn::emitHasNonFinite(KernelValues &v, const OperandRows &rows,
                                       const Columns &columns) {
  KernelBuilder &b = v.b;
  Value stride = v.stride(rows.operand, 2);
  auto add = [&](Value row, const ColumnVector &c, Value sum) {
    Value at = b.at(rows.base, rows.operand.element,
                    b.mul(b.add(rows.first, row), stride));
    return b.fma(loadColumns(v, rows.operand, at, c), b.zero(), sum);
  };
  Value sums = b.loop(
      b.index(0), rows.n, 1, b.zero(), [&](Value row, ValueRange carried) {
        return b.loop(b.index(0), columns.whole, b.lanes, carried,
                      [&](Value c, ValueRange carried) {
                        return SmallVector<Value>{add(
                            row, {c, Value(), b.index(b.lanes)}, carried[0])};
                      });
      })[0];
  if (columns.mayHaveRest) {
    Value rowsWithRest =
        b.select(b.less(b.index(0), columns.rest), rows.n, b.index(0));
    sums = b.loop(
        b.index(0), rowsWithRest, 1, sums, [&](Value row, ValueRange carried) {
          return SmallVector<Value>{add(
              row, {columns.whole, columns.mask, columns.rest}, carried[0])};
        })[0];
  }
  Value sum = b.sum(sums);
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, sum, sum);
}

Value mlir::diffattn::emitIsFinite(KernelBuilder &b, Value x) {
  Value nothing = b.mulf(x, b.zero());
  return arith::CmpFOp::create(b, arith::CmpFPredicate::ORD, nothing, nothing);
}

void mlir::diffattn::addNonFinite(
    KernelBuilder &b, const Columns &columns, Value weight, Value to,
    function_ref<Value(const ColumnVector &)> load) {
  forColumns(b, columns, [&](const ColumnVector &c) {
    Value x = load(c), before = b.load(b.vector, to, c.first);
    b.store(b.select(emitIsFinite(b, x), before, b.fma(weight, x, before)), to,
            c.first);
  });
}
