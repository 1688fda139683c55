//===- Array.h - values of tensor programs ----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_INTERPRETER_ARRAY_H
#define DIFFATTN_TESTING_INTERPRETER_ARRAY_H

#include "mlir/IR/Types.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Error.h"

#include <cstdint>
#include <memory>

namespace mlir::diffattn::interpreter {

/// One element: a float of any type as f64; an integer of any width below 64
/// sign-extended, so that a true i1 is -1.
union Slot {
  double f;
  int64_t i;
};

/// Counts the bytes of all arrays that are made with it.
struct MemoryBudget {
  int64_t used = 0, limit = INT64_MAX;
};

/// A tensor in row-major order, or a scalar, which has rank 0. Copies share the
/// elements.
class Array {
public:
  Array() = default;

  /// An array of zeros. Fails for element types that the interpreter does not
  /// support, sizes below 0, and where memory or `budget` does not hold it.
  static llvm::Expected<Array>
  create(Type elementType, llvm::ArrayRef<int64_t> shape,
         const std::shared_ptr<MemoryBudget> &budget = nullptr);

  /// Reads elements as they lie in memory: f64, f32, f16 and bf16, integers of
  /// 8 to 64 bits, index as 64 bits, i1 as a byte.
  static llvm::Expected<Array>
  read(Type elementType, llvm::ArrayRef<int64_t> shape, const void *bytes,
       const std::shared_ptr<MemoryBudget> &budget = nullptr);
  /// Writes them in the same form; floats are rounded to the element type.
  void write(void *bytes) const;

  explicit operator bool() const { return elementType != nullptr; }
  Type getElementType() const { return elementType; }
  llvm::ArrayRef<int64_t> getShape() const { return shape; }
  int64_t getRank() const { return static_cast<int64_t>(shape.size()); }
  int64_t getNumElements() const { return count; }
  bool isFloat() const;

  /// Element `i` in row-major order.
  double getFloat(int64_t i) const { return data.get()[i].f; }
  /// Unsigned types and i1 as numbers of at least 0 (ui64 excepted).
  int64_t getInteger(int64_t i) const;
  /// The element whatever its type, as f64.
  double getNumber(int64_t i) const;

  const Slot *begin() const { return data.get(); }
  /// The elements, to be written only by the maker of the array before it is
  /// copied.
  Slot *begin() { return data.get(); }
  /// Whether no other array shares the elements.
  bool isUnshared() const { return data.use_count() == 1; }

  /// These elements under another shape of as many elements; under another
  /// element type of the same form.
  Array reshaped(llvm::ArrayRef<int64_t> newShape) const;
  Array retyped(Type newElementType) const;

private:
  Type elementType;
  llvm::SmallVector<int64_t, 4> shape;
  int64_t count = 0;
  std::shared_ptr<Slot> data;
};

/// The sizes as MLIR writes them: "2x3xf32".
std::string describe(const Array &array);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_TESTING_INTERPRETER_ARRAY_H
