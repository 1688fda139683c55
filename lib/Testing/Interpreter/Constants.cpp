//===- Constants.cpp - arrays from attributes -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Constants.h"
#include "DiffAttn/Testing/Interpreter/Interpreter.h"

#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

static double toDouble(APFloat value) {
  bool losesInfo;
  value.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven,
                &losesInfo);
  return value.convertToDouble();
}

Slot mlir::diffattn::interpreter::readScalar(Attribute value) {
  Slot slot;
  if (auto number = dyn_cast<FloatAttr>(value))
    slot.f = toDouble(number.getValue());
  else
    slot.i = cast<IntegerAttr>(value).getValue().getSExtValue();
  return slot;
}

static llvm::Error unsupported(Attribute value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto typed = dyn_cast<TypedAttr>(value))
    os << typed.getType();
  return llvm::make_error<InterpreterError>(
      InterpreterError::Kind::Unsupported,
      "expected a dense constant of floats or integers, but got another of "
      "type " +
          text);
}

static llvm::Expected<Array>
readResource(DenseResourceElementsAttr resource,
             const std::shared_ptr<MemoryBudget> &budget) {
  auto type = cast<ShapedType>(resource.getType());
  AsmResourceBlob *blob = resource.getRawHandle().getBlob();
  if (!blob)
    return llvm::make_error<InterpreterError>(
        InterpreterError::Kind::Unsupported,
        "expected a constant whose resource is in the module, but '" +
            resource.getRawHandle().getKey().str() + "' is not");
  Type element = type.getElementType();
  const int64_t bytes =
      element.isIndex() ? 8 : (element.getIntOrFloatBitWidth() + 7) / 8;
  if (static_cast<int64_t>(blob->getData().size()) !=
      type.getNumElements() * bytes)
    return llvm::make_error<InterpreterError>(
        InterpreterError::Kind::Unsupported,
        "expected a resource of " +
            std::to_string(type.getNumElements() * bytes) + " bytes, but got " +
            std::to_string(blob->getData().size()));
  return Array::read(element, type.getShape(), blob->getData().data(), budget);
}

llvm::Expected<Array> mlir::diffattn::interpreter::readConstant(
    Attribute value, const std::shared_ptr<MemoryBudget> &budget) {
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(value))
    return readResource(resource, budget);
  auto dense = dyn_cast<DenseElementsAttr>(value);
  if (!dense)
    return unsupported(value);
  Type element = dense.getElementType();
  auto array = Array::create(element, dense.getType().getShape(), budget);
  if (!array)
    return array;
  Slot *slots = array->begin();
  const int64_t count = array->getNumElements();
  if (dense.isSplat()) {
    Slot slot;
    if (isa<FloatType>(element))
      slot.f = toDouble(dense.getSplatValue<APFloat>());
    else
      slot.i = dense.getSplatValue<APInt>().getSExtValue();
    std::fill_n(slots, count, slot);
  } else if (element.isF32()) {
    for (auto [i, number] : llvm::enumerate(dense.getValues<float>()))
      slots[i].f = number;
  } else if (isa<FloatType>(element)) {
    for (auto [i, number] : llvm::enumerate(dense.getValues<APFloat>()))
      slots[i].f = toDouble(number);
  } else {
    for (auto [i, number] : llvm::enumerate(dense.getValues<APInt>()))
      slots[i].i = number.getSExtValue();
  }
  return array;
}
