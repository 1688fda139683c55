//===- SolveTriangular.cpp - triangular systems of equations --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"

using namespace mlir;
using namespace mlir::diffattn::import;

/// Loops that solve each system row by row, with those that are known.
FailureOr<Value>
mlir::diffattn::import::emitSolveTriangular(TensorLoopBuilder &b,
                                            BuiltinCall call) {
  FailureOr<bool> upper = call.getFlag("upper"), unit = call.getFlag("unit");
  if (failed(call.verify({3, 3}, 3, {"upper", "unit"})) || failed(upper) ||
      failed(unit))
    return failure();
  Value a = call.getOperands()[0], right = call.getOperands()[1];
  const Type element = getElementTypeOrSelf(right);
  if (!isa<FloatType>(element) || getElementTypeOrSelf(a) != element)
    return call.emitFault() << "expected one type of floats, but got "
                            << a.getType() << " and " << right.getType();

  constexpr int64_t kAny = ShapedType::kDynamic;
  const OpFoldResult zero = b.getIndexAttr(0), one = b.getIndexAttr(1);
  const SmallVector<OpFoldResult> ones(3, one);
  const auto made = RankedTensorType::get({kAny, kAny, kAny}, element),
             row = RankedTensorType::get({1, kAny}, element),
             rows = RankedTensorType::get({kAny, kAny}, element);
  Value size = b.size(right, 1), columns = b.size(right, 2);
  Value last = b.sub(size, b.index(1));
  Value nothing = arith::ConstantOp::create(b, b.getZeroAttr(element));
  Value emptyRow = tensor::EmptyOp::create(b, row, columns);
  Value zeros = linalg::FillOp::create(b, nothing, emptyRow).getResult(0);
  Value empty = b.emptyLike(right, made);

  auto slice = [&](RankedTensorType type, Value of, Value system, Value first,
                   OpFoldResult second, OpFoldResult count,
                   OpFoldResult width) -> Value {
    return tensor::ExtractSliceOp::create(
        b, type, of, ArrayRef<OpFoldResult>{system, first, second},
        ArrayRef<OpFoldResult>{one, count, width}, ones);
  };
  auto solveRow = [&](Value system, Value i, Value x) {
    // Of an upper matrix the last row is known first.
    Value r = *upper ? b.sub(last, i) : i;
    Value first = *upper ? b.add(r, b.index(1)) : b.index(0);
    Value factors = slice(row, a, system, r, first, one, i);
    Value known = slice(rows, x, system, first, zero, i, columns);
    Value sum =
        linalg::MatmulOp::create(b, row, ValueRange{factors, known}, zeros)
            .getResult(0);
    Value wanted = slice(row, right, system, r, zero, one, columns);
    Value solved = linalg::SubOp::create(b, row, ValueRange{wanted, sum},
                                         ValueRange{emptyRow})
                       .getResult(0);
    if (!*unit) {
      Value pivot = b.extract(a, {system, r, r});
      Value pivots = linalg::FillOp::create(b, pivot, emptyRow).getResult(0);
      solved = linalg::DivOp::create(b, row, ValueRange{solved, pivots},
                                     ValueRange{emptyRow})
                   .getResult(0);
    }
    Value next = tensor::InsertSliceOp::create(
        b, solved, x, ArrayRef<OpFoldResult>{system, r, zero},
        ArrayRef<OpFoldResult>{one, one, columns}, ones);
    return SmallVector<Value>{next};
  };
  Value all =
      b.loop(b.size(right, 0), empty, [&](Value system, ValueRange systems) {
        return b.loop(size, systems, [&](Value i, ValueRange x) {
          return solveRow(system, i, x[0]);
        });
      })[0];
  return b.createOrFold<tensor::CastOp>(call.getResultType(), all);
}
