//===- BuiltinCall.cpp - the call of an opaque op -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"

#include "Contract.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn::import;

BuiltinCall::BuiltinCall(func::CallOp call, func::FuncOp callee)
    : call(call), callee(callee),
      options(callee->getAttrOfType<DictionaryAttr>(kOptions)) {
  if (!options)
    options = DictionaryAttr::get(callee.getContext());
}

StringRef BuiltinCall::getName() const {
  return callee->getAttrOfType<StringAttr>(kBuiltin).getValue();
}

RankedTensorType BuiltinCall::getResultType() const {
  return cast<RankedTensorType>(call.getResult(0).getType());
}

Attribute BuiltinCall::getOption(StringRef name) const {
  return options.get(name);
}

InFlightDiagnostic BuiltinCall::emitFault() const {
  return callee.emitError("builtin '") << getName() << "': ";
}

LogicalResult BuiltinCall::verify(ArrayRef<int64_t> ranks, int64_t resultRank,
                                  ArrayRef<StringRef> known) const {
  for (NamedAttribute option : options)
    if (!llvm::is_contained(known, option.getName()))
      return emitFault() << "expected options of " << llvm::join(known, ", ")
                         << ", but got '" << option.getName().getValue() << "'";
  if (call.getNumOperands() != ranks.size() || call.getNumResults() != 1)
    return emitFault() << "expected " << ranks.size()
                       << " operands and one result, but got "
                       << call.getNumOperands() << " and "
                       << call.getNumResults();
  // import_c8
  for (auto [number, operand, rank] :
       llvm::enumerate(call.getOperandTypes(), ranks))
    if (!hasRank(operand, rank))
      return emitFault() << "expected a tensor of rank " << rank
                         << " as operand " << number << ", but got " << operand;
  if (!hasRank(call.getResult(0).getType(), resultRank))
    return emitFault() << "expected a tensor of rank " << resultRank
                       << " as the result, but got "
                       << call.getResult(0).getType();
  return success();
}

LogicalResult BuiltinCall::verifyEqual(
    ArrayRef<std::pair<TensorAxis, TensorAxis>> axes) const {
  auto sizeOf = [](const TensorAxis &at) {
    return cast<RankedTensorType>(at.tensor.getType()).getDimSize(at.axis);
  };
  for (const auto &[one, other] : axes)
    if (failed(verifyCompatibleShape({sizeOf(one)}, {sizeOf(other)})))
      return emitFault() << "expected one size on axis " << one.axis << " of "
                         << one.tensor.getType() << " and axis " << other.axis
                         << " of " << other.tensor.getType();
  return success();
}

FailureOr<int64_t> BuiltinCall::getInteger(StringRef name, int64_t least,
                                           int64_t otherwise) const {
  Attribute option = getOption(name);
  if (!option)
    return otherwise;
  auto number = dyn_cast<IntegerAttr>(option);
  // import_c10
  if (!number || !number.getType().isInteger(64) ||
      number.getValue().getSExtValue() < least)
    return emitFault() << "expected " << name << " to be an i64 from " << least
                       << ", but got " << option;
  return number.getValue().getSExtValue();
}

FailureOr<bool> BuiltinCall::getFlag(StringRef name) const {
  Attribute option = getOption(name);
  if (isa_and_present<UnitAttr>(option))
    return true;
  if (auto flag = dyn_cast_if_present<BoolAttr>(option))
    return flag.getValue();
  FailureOr<int64_t> number = getInteger(name, /*least=*/0, /*otherwise=*/0);
  if (failed(number))
    return failure();
  if (*number > 1)
    return emitFault() << "expected " << name << " to be 0 or 1, but got "
                       << *number;
  return *number == 1;
}

Value TensorLoopBuilder::emptyLike(Value source, RankedTensorType type) {
  SmallVector<Value> sizes;
  for (int64_t axis = 0; axis < type.getRank(); ++axis)
    if (type.isDynamicDim(axis))
      sizes.push_back(size(source, axis));
  return tensor::EmptyOp::create(*this, type, sizes);
}

SmallVector<Value> TensorLoopBuilder::loop(Value begin, Value end, Value step,
                                           ValueRange init, Body body) {
  auto loop = scf::ForOp::create(*this, begin, end, step, init);
  InsertionGuard guard(*this);
  setInsertionPointToStart(loop.getBody());
  scf::YieldOp::create(*this,
                       body(loop.getInductionVar(), loop.getRegionIterArgs()));
  return SmallVector<Value>(loop.getResults());
}

SmallVector<Value>
TensorLoopBuilder::ifElse(Value condition, ValueRange otherwise,
                          function_ref<SmallVector<Value>()> then) {
  auto branch = scf::IfOp::create(*this, otherwise.getTypes(), condition,
                                  /*addThenBlock=*/true, /*addElseBlock=*/true);
  InsertionGuard guard(*this);
  setInsertionPointToStart(branch.thenBlock());
  scf::YieldOp::create(*this, then());
  setInsertionPointToStart(branch.elseBlock());
  scf::YieldOp::create(*this, otherwise);
  return SmallVector<Value>(branch.getResults());
}
