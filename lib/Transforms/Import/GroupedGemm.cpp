//===- GroupedGemm.cpp - products of groups of rows -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"

using namespace mlir;
using namespace mlir::diffattn::import;

/// A loop over the groups, whose numbers of rows are data. Ends that fall, or
/// that lie beyond the rows, are taken as the nearest ones that do not.
FailureOr<Value> mlir::diffattn::import::emitGroupedGemm(TensorLoopBuilder &b,
                                                         BuiltinCall call) {
  FailureOr<bool> transposed = call.getFlag("transposed");
  if (failed(call.verify({2, 3, 1}, 2, {"transposed"})) || failed(transposed))
    return failure();
  Value x = call.getOperands()[0], matrices = call.getOperands()[1],
        ends = call.getOperands()[2];
  const Type element = getElementTypeOrSelf(x),
             sumType = call.getResultType().getElementType();
  if (!isa<FloatType>(element) || !isa<FloatType>(sumType) ||
      getElementTypeOrSelf(matrices) != element ||
      !getElementTypeOrSelf(ends).isInteger())
    return call.emitFault()
           << "expected rows and matrices of one type of floats, and integers "
           << "as ends, but got " << x.getType() << ", " << matrices.getType()
           << " and " << ends.getType();

  const int64_t depthAxis = *transposed ? 2 : 1, columnAxis = 3 - depthAxis;
  if (failed(
          call.verifyEqual({{{x, 1}, {matrices, depthAxis}},
                            {{matrices, 0}, {ends, 0}},
                            {{x, 0}, {call.getResult(), 0}},
                            {{matrices, columnAxis}, {call.getResult(), 1}}})))
    return failure();

  const OpFoldResult zero = b.getIndexAttr(0), one = b.getIndexAttr(1);
  const OpFoldResult depth = tensor::getMixedSize(b, b.getLoc(), x, 1),
                     columns = tensor::getMixedSize(b, b.getLoc(), matrices,
                                                    columnAxis);
  Value rows = b.size(x, 0);
  Value number = arith::ConstantOp::create(b, b.getZeroAttr(sumType));
  Value empty = tensor::EmptyOp::create(
      b, SmallVector<OpFoldResult>{rows, columns}, sumType);
  Value zeros = linalg::FillOp::create(b, number, empty).getResult(0);
  auto multiply = [&](Value i, ValueRange carried) {
    Value y = carried[0], begin = carried[1];
    Value end = arith::MinSIOp::create(b, b.asIndex(b.extract(ends, i)), rows);
    end = arith::MaxSIOp::create(b, end, begin);
    const OpFoldResult count = b.sub(end, begin);
    auto rowsOf = [&](Value of, OpFoldResult width) -> Value {
      return tensor::ExtractSliceOp::create(
          b, of, ArrayRef<OpFoldResult>{begin, zero},
          ArrayRef<OpFoldResult>{count, width},
          ArrayRef<OpFoldResult>{one, one});
    };
    auto matrixType = cast<RankedTensorType>(matrices.getType());
    Value matrix = tensor::ExtractSliceOp::create(
        b, RankedTensorType::get(matrixType.getShape().drop_front(), element),
        matrices, ArrayRef<OpFoldResult>{i, zero, zero},
        ArrayRef<OpFoldResult>{one, *transposed ? columns : depth,
                               *transposed ? depth : columns},
        ArrayRef<OpFoldResult>{one, one, one});
    Value part = rowsOf(x, depth), sums = rowsOf(y, columns);
    const SmallVector<Value> operands = {part, matrix};
    Value product =
        *transposed
            ? linalg::MatmulTransposeBOp::create(b, b.getLoc(), sums.getType(),
                                                 operands, sums)
                  .getResult(0)
            : linalg::MatmulOp::create(b, sums.getType(), operands, sums)
                  .getResult(0);
    Value next = tensor::InsertSliceOp::create(
        b, product, y, ArrayRef<OpFoldResult>{begin, zero},
        ArrayRef<OpFoldResult>{count, columns},
        ArrayRef<OpFoldResult>{one, one});
    return SmallVector<Value>{next, end};
  };
  Value groups = b.size(matrices, 0), begin = b.index(0);
  Value all = b.loop(groups, {zeros, begin}, multiply)[0];
  return b.createOrFold<tensor::CastOp>(call.getResultType(), all);
}
