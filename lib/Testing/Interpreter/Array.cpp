//===- Array.cpp - values of tensor programs ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Interpreter/Array.h"
#include "DiffAttn/Testing/Interpreter/Interpreter.h"
#include "ElementTypes.h"
#include "Machine.h"

#include "DiffAttn/Testing/Reference/Attention.h"

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>

using namespace mlir;
using namespace mlir::diffattn::interpreter;

char InterpreterError::ID;

static std::string describe(Type elementType, ArrayRef<int64_t> shape) {
  std::string text = describeShape(shape);
  llvm::raw_string_ostream(text) << (shape.empty() ? "" : "x") << elementType;
  return text;
}

std::string mlir::diffattn::interpreter::describe(const Array &array) {
  return array ? ::describe(array.getElementType(), array.getShape())
               : "nothing";
}

std::string
mlir::diffattn::interpreter::describeShape(ArrayRef<int64_t> shape) {
  std::string text;
  for (int64_t size : shape)
    text += (text.empty() ? "" : "x") +
            (ShapedType::isDynamic(size) ? "?" : std::to_string(size));
  return text;
}

static llvm::Error makeError(InterpreterError::Kind kind,
                             const Twine &message) {
  return llvm::make_error<InterpreterError>(kind, message.str());
}

llvm::Expected<Array>
Array::create(Type elementType, ArrayRef<int64_t> shape,
              const std::shared_ptr<MemoryBudget> &budget) {
  if (!isKnownElementType(elementType)) {
    std::string text;
    llvm::raw_string_ostream(text) << elementType;
    return makeError(InterpreterError::Kind::Unsupported,
                     "expected elements of f64, f32, f16, bf16, index or "
                     "integers of at most 64 bits, but got " +
                         text);
  }
  Array array;
  array.elementType = elementType;
  array.shape.assign(shape.begin(), shape.end());
  array.count = 1;
  bool overflows = false;
  for (int64_t size : shape) {
    if (size < 0)
      return makeError(InterpreterError::Kind::Fault,
                       "expected sizes of at least 0, but got " +
                           std::to_string(size));
    // Sizes beside one of 0 may be anything.
    overflows |= __builtin_mul_overflow(array.count, size, &array.count);
  }
  if (llvm::is_contained(shape, 0)) {
    array.count = 0;
    overflows = false;
  }
  int64_t bytes;
  overflows |= __builtin_mul_overflow(
      array.count, static_cast<int64_t>(sizeof(Slot)), &bytes);
  const int64_t used = budget ? budget->used : 0;
  const int64_t limit = budget ? budget->limit : INT64_MAX;
  if (overflows || bytes > limit - used)
    return makeError(InterpreterError::Kind::Limit,
                     "expected tensors of at most " + std::to_string(limit) +
                         " bytes at once, but " +
                         ::describe(elementType, shape) + " exceeds them");
  // At least one element is allocated, so that a null pointer is an error.
  void *memory = std::calloc(std::max<int64_t>(array.count, 1), sizeof(Slot));
  if (!memory)
    return makeError(InterpreterError::Kind::Limit,
                     "expected memory for " + ::describe(elementType, shape) +
                         ", but there is none");
  if (budget)
    budget->used += bytes;
  array.data = std::shared_ptr<Slot>(static_cast<Slot *>(memory),
                                     [budget, bytes](Slot *slots) {
                                       std::free(slots);
                                       if (budget)
                                         budget->used -= bytes;
                                     });
  return array;
}

static std::optional<diffattn::reference::Element> toReference(Type type) {
  using diffattn::reference::Element;
  if (type.isF64())
    return Element::F64;
  if (type.isF32())
    return Element::F32;
  if (type.isF16())
    return Element::F16;
  if (type.isBF16())
    return Element::BF16;
  return std::nullopt;
}

/// Bytes of an integer in memory.
static int64_t getStoredBytes(int64_t width) {
  return width <= 8 ? 1 : width <= 16 ? 2 : width <= 32 ? 4 : 8;
}

llvm::Expected<Array> Array::read(Type elementType, ArrayRef<int64_t> shape,
                                  const void *bytes,
                                  const std::shared_ptr<MemoryBudget> &budget) {
  auto made = create(elementType, shape, budget);
  if (!made)
    return made;
  Slot *slots = made->begin();
  const char *from = static_cast<const char *>(bytes);
  if (auto element = toReference(elementType)) {
    const int64_t size = diffattn::reference::byteSize(*element);
    for (int64_t i = 0; i < made->count; ++i)
      slots[i].f = diffattn::reference::load(*element, from + i * size);
    return made;
  }
  const int width = getWidth(elementType);
  const int64_t size = getStoredBytes(width);
  for (int64_t i = 0; i < made->count; ++i) {
    uint64_t value = 0;
    std::memcpy(&value, from + i * size, size);
    slots[i].i = width == 1 ? -int64_t(value != 0)
                            : signExtend(static_cast<int64_t>(value), width);
  }
  return made;
}

void Array::write(void *bytes) const {
  char *to = static_cast<char *>(bytes);
  if (auto element = toReference(elementType)) {
    const int64_t size = diffattn::reference::byteSize(*element);
    for (int64_t i = 0; i < count; ++i)
      diffattn::reference::store(*element, to + i * size, getFloat(i));
    return;
  }
  const int width = getWidth(elementType);
  const int64_t size = getStoredBytes(width);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = width == 1 ? -data.get()[i].i : data.get()[i].i;
    std::memcpy(to + i * size, &value, size);
  }
}

bool Array::isFloat() const { return isa<FloatType>(elementType); }

int64_t Array::getInteger(int64_t i) const {
  const int64_t value = data.get()[i].i;
  const int width = getWidth(elementType);
  return width == 1 || elementType.isUnsignedInteger()
             ? zeroExtend(value, width)
             : value;
}

double Array::getNumber(int64_t i) const {
  if (isFloat())
    return getFloat(i);
  if (elementType.isUnsignedInteger())
    return static_cast<double>(static_cast<uint64_t>(getInteger(i)));
  return static_cast<double>(getInteger(i));
}

Array Array::reshaped(ArrayRef<int64_t> newShape) const {
  Array array = *this;
  array.shape.assign(newShape.begin(), newShape.end());
  return array;
}

Array Array::retyped(Type newElementType) const {
  Array array = *this;
  array.elementType = newElementType;
  return array;
}
