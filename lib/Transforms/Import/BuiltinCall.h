//===- BuiltinCall.h - calls of opaque ops of front doors -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_IMPORT_BUILTINCALL_H
#define DIFFATTN_LIB_TRANSFORMS_IMPORT_BUILTINCALL_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn::import {

/// An axis of an operand or a result.
struct TensorAxis {
  Value tensor;
  int64_t axis;
};

inline bool hasRank(Type type, int64_t rank) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.getRank() == rank;
}

/// A call of a function that stands for an op which importers lack, with the
/// facts of the function's declaration. Faults are reported at the declaration.
class BuiltinCall {
public:
  BuiltinCall(func::CallOp call, func::FuncOp callee);

  StringRef getName() const;
  ValueRange getOperands() const { return call->getOperands(); }
  TypeRange getResultTypes() const { return call->getResultTypes(); }
  Value getResult() const { return call->getResult(0); }
  /// The type of the one result.
  RankedTensorType getResultType() const;
  /// An option, or null.
  Attribute getOption(StringRef name) const;
  DictionaryAttr getOptions() const { return options; }

  /// Fails unless there is one result and as many operands as `ranks` has, all
  /// of them tensors of these ranks, and there are no options but `known`.
  LogicalResult verify(ArrayRef<int64_t> ranks, int64_t resultRank,
                       ArrayRef<StringRef> known) const;
  /// Fails unless sizes of axes that stand together are equal, as far as types
  /// have them.
  LogicalResult
  verifyEqual(ArrayRef<std::pair<TensorAxis, TensorAxis>> axes) const;
  /// An integer of at least `least`; absent: `otherwise`.
  FailureOr<int64_t> getInteger(StringRef name, int64_t least,
                                int64_t otherwise) const;
  /// A unit, a bool, or 0 or 1 as an i64; absent: false.
  FailureOr<bool> getFlag(StringRef name) const;
  InFlightDiagnostic emitFault() const;

private:
  mutable func::CallOp call;
  mutable func::FuncOp callee;
  DictionaryAttr options;
};

/// Writes loops that carry tensors.
struct TensorLoopBuilder : ImplicitLocOpBuilder {
  using ImplicitLocOpBuilder::ImplicitLocOpBuilder;
  using Body =
      function_ref<SmallVector<Value>(Value index, ValueRange carried)>;

  Value index(int64_t number) {
    return arith::ConstantIndexOp::create(*this, number);
  }
  Value add(Value a, Value b) { return arith::AddIOp::create(*this, a, b); }
  Value sub(Value a, Value b) { return arith::SubIOp::create(*this, a, b); }
  Value size(Value tensor, int64_t axis) {
    return tensor::DimOp::create(*this, tensor, axis);
  }
  Value asIndex(Value integer) {
    return arith::IndexCastOp::create(*this, getIndexType(), integer);
  }
  Value extract(Value tensor, ValueRange place) {
    return tensor::ExtractOp::create(*this, tensor, place);
  }
  Value insert(Value element, Value tensor, ValueRange place) {
    return tensor::InsertOp::create(*this, element, tensor, place);
  }
  /// An empty tensor whose dynamic sizes are those of `source`, axis by axis.
  Value emptyLike(Value source, RankedTensorType type);
  /// Loops from `begin` to `end` by `step`, carrying `init` through `body`;
  /// returns what is carried in the end.
  SmallVector<Value> loop(Value begin, Value end, Value step, ValueRange init,
                          Body body);
  SmallVector<Value> loop(Value end, ValueRange init, Body body) {
    Value begin = index(0), step = index(1);
    return loop(begin, end, step, init, body);
  }
  /// Chooses the values of `then` where `condition` holds, else `otherwise`.
  SmallVector<Value> ifElse(Value condition, ValueRange otherwise,
                            function_ref<SmallVector<Value>()> then);
};

/// Writes the ops that a call stands for; gives its result.
using EmitBuiltin = FailureOr<Value> (*)(TensorLoopBuilder &, BuiltinCall);

FailureOr<Value> emitArgsort(TensorLoopBuilder &b, BuiltinCall call);
FailureOr<Value> emitAttention(TensorLoopBuilder &b, BuiltinCall call);
FailureOr<Value> emitGroupedGemm(TensorLoopBuilder &b, BuiltinCall call);
FailureOr<Value> emitWriteRows(TensorLoopBuilder &b, BuiltinCall call);

} // namespace mlir::diffattn::import

#endif // DIFFATTN_LIB_TRANSFORMS_IMPORT_BUILTINCALL_H
