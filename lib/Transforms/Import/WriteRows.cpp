//===- WriteRows.cpp - rows at places that are data -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"

using namespace mlir;
using namespace mlir::diffattn::import;

/// A loop that inserts row by row. Where the tensor is an argument that may be
/// written to, bufferization puts the rows into its own memory, and the others
/// are not touched.
FailureOr<Value> mlir::diffattn::import::emitWriteRows(TensorLoopBuilder &b,
                                                       BuiltinCall call) {
  if (call.getOperands().size() != 3)
    return call.emitFault() << "expected x, index and source, but got "
                            << call.getOperands().size() << " operands";
  Value x = call.getOperands()[0], index = call.getOperands()[1],
        source = call.getOperands()[2];
  auto type = dyn_cast<RankedTensorType>(x.getType());
  const int64_t rank = type ? type.getRank() : 1;
  FailureOr<int64_t> axis = call.getInteger("axis", 0, 0);
  FailureOr<bool> adds = call.getFlag("adds");
  if (failed(call.verify({rank, 1, rank}, rank, {"axis", "adds"})) ||
      failed(axis) || failed(adds))
    return failure();
  if (*axis >= rank)
    return call.emitFault()
           << "expected an axis below " << rank << ", but got " << *axis;
  if (!getElementTypeOrSelf(index).isInteger() ||
      getElementTypeOrSelf(source) != type.getElementType() ||
      getElementTypeOrSelf(call.getResult()) != type.getElementType())
    return call.emitFault()
           << "expected integers as index, and a source and result of x's "
           << "elements, but "
           << "got " << index.getType() << ", " << source.getType() << " and "
           << call.getResult().getType();

  for (int64_t other = 0; other < rank; ++other) {
    if (failed(call.verifyEqual({{{x, other}, {call.getResult(), other}}})))
      return failure();
    const TensorAxis along =
        other == *axis ? TensorAxis{index, 0} : TensorAxis{x, other};
    if (failed(call.verifyEqual({{{source, other}, along}})))
      return failure();
  }

  SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(b, b.getLoc(), x);
  sizes[*axis] = b.getIndexAttr(1);
  const SmallVector<OpFoldResult> ones(rank, b.getIndexAttr(1));
  auto at = [&](Value place) {
    SmallVector<OpFoldResult> offsets(rank, b.getIndexAttr(0));
    offsets[*axis] = place;
    return offsets;
  };
  Value written = b.loop(b.size(index, 0), x, [&](Value i, ValueRange carried) {
    Value place = b.asIndex(b.extract(index, i));
    Value row = tensor::ExtractSliceOp::create(b, source, at(i), sizes, ones);
    if (*adds) {
      Value old =
          tensor::ExtractSliceOp::create(b, carried[0], at(place), sizes, ones);
      row = linalg::AddOp::create(b, old.getType(), ValueRange{old, row},
                                  ValueRange{old})
                .getResult(0);
    }
    return SmallVector<Value>{tensor::InsertSliceOp::create(
        b, row, carried[0], at(place), sizes, ones)};
  })[0];
  return b.createOrFold<tensor::CastOp>(call.getResultType(), written);
}
