//===- Plain.h - tensor programs run in plain C++ ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the tests hold the analysis to: every op is computed here once more,
// from the words of the dialects, with 128-bit integers, long double and
// nothing of what is tested.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_ANALYSIS_PLAIN_H
#define DIFFATTN_UNITTESTS_ANALYSIS_PLAIN_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"

namespace plain {

/// A scalar. Integers are extended by their sign, a truth value is 0 or 1;
/// floats of up to 64 bits are numbers of f64.
struct Number {
  enum Kind {
    Undefined, ///< poison, or the result of what has no behaviour
    Integer,
    Real
  } kind = Undefined;
  int64_t integer = 0;
  double real = 0;

  static Number of(int64_t integer) { return {Integer, integer, 0}; }
  static Number ofReal(double real) { return {Real, 0, real}; }
  bool isDefined() const { return kind != Undefined; }
};

/// Whether the numbers are equal; so are zeros of either sign and any two NaN.
bool same(Number a, Number b);
std::string text(Number number);

/// 64 for an index.
unsigned widthOf(mlir::Type type);
/// `bits` cut off to an integer of `type`.
int64_t wrap(__int128 bits, mlir::Type type);
/// The number of `type` nearest to `number`, ties to even.
double nearest(long double number, mlir::Type type);

/// The one result of a scalar op. Fails the test on an op that is not known.
Number compute(mlir::Operation *op, llvm::ArrayRef<Number> operands);

/// Element-wise arithmetic by name, as in `addi`, for integers of `type`.
Number computeInteger(llvm::StringRef name, mlir::Type type, int64_t a,
                      int64_t b);

struct Array {
  llvm::SmallVector<int64_t> shape;
  std::vector<Number> elements;

  static Array filled(llvm::ArrayRef<int64_t> shape, Number number);
  int64_t place(llvm::ArrayRef<int64_t> at) const;
  /// Undefined outside.
  Number at(llvm::ArrayRef<int64_t> at) const;
};

/// Calls `fn` for every position in `shape`, in row-major order.
void forEach(llvm::ArrayRef<int64_t> shape,
             llvm::function_ref<void(llvm::ArrayRef<int64_t>)> fn);

/// One run of a function of one block.
class Execution {
public:
  void set(mlir::Value argument, Number number) { numbers[argument] = number; }
  void set(mlir::Value argument, Array array) {
    arrays[argument] = std::move(array);
  }
  void run(mlir::func::FuncOp function);

  Number number(mlir::Value value) const;
  const Array &array(mlir::Value value) const;
  bool has(mlir::Value value) const {
    return numbers.count(value) || arrays.count(value);
  }

private:
  void run(mlir::Operation *op);
  llvm::SmallVector<Number> run(mlir::Block &block);
  void runLinalg(mlir::linalg::LinalgOp op);
  void runTensor(mlir::Operation *op);
  int64_t integer(mlir::OpFoldResult value) const;

  llvm::DenseMap<mlir::Value, Number> numbers;
  llvm::DenseMap<mlir::Value, Array> arrays;
  llvm::SmallVector<int64_t> position; ///< of the turn that runs
};

} // namespace plain

#endif // DIFFATTN_UNITTESTS_ANALYSIS_PLAIN_H
