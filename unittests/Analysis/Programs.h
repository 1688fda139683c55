//===- Programs.h - programs drawn from a seed ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_ANALYSIS_PROGRAMS_H
#define DIFFATTN_UNITTESTS_ANALYSIS_PROGRAMS_H

#include "Plain.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"

#include <random>

namespace plain {

/// Random choices, equal on every machine for a seed.
class Draw {
public:
  explicit Draw(uint64_t seed) : engine(seed) {}
  /// One of 0 to `count` - 1.
  int64_t below(int64_t count) {
    return static_cast<int64_t>(engine() % static_cast<uint64_t>(count));
  }
  int64_t from(int64_t low, int64_t high) {
    return low + below(high - low + 1);
  }
  bool chance(int64_t oneIn) { return below(oneIn) == 0; }
  uint64_t bits() { return engine(); }
  template <typename List>
  auto one(const List &list) {
    return *(std::begin(list) + below(std::size(list)));
  }

private:
  std::mt19937_64 engine;
};

/// A function to write ops into.
class Program {
public:
  explicit Program(mlir::ArrayRef<mlir::Type> arguments = {});
  Program(const Program &) = delete;

  mlir::Value argument(unsigned k) { return function.getArgument(k); }
  mlir::Value add(llvm::StringRef name, mlir::ValueRange operands,
                  mlir::Type result,
                  llvm::ArrayRef<mlir::NamedAttribute> attributes = {});
  mlir::Value integer(int64_t number, mlir::Type type);
  mlir::Value real(double number, mlir::Type type);
  mlir::Value compare(mlir::arith::CmpIPredicate predicate, mlir::Value a,
                      mlir::Value b);
  mlir::Type type(unsigned width) { return builder.getIntegerType(width); }
  mlir::Type index() { return builder.getIndexType(); }
  /// Ends the function; fails the test if it is not valid.
  void finish();
  std::string text();

  static mlir::MLIRContext &context();
  mlir::Location loc;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::OpBuilder builder;
  mlir::func::FuncOp function;
};

/// A program from its text.
mlir::OwningOpRef<mlir::ModuleOp> parseProgram(llvm::StringRef text);

/// Integers at the edges of `type`: its least and greatest, -1, 0, 1, powers of
/// two and their neighbours, and a few others.
std::vector<int64_t> edgesOf(mlir::Type type, Draw &draw);
/// Floats at the edges of `type`, with zeros, infinities, NaN, numbers near the
/// ends of the range, and ones that end in a half.
std::vector<double> realEdgesOf(mlir::Type type, Draw &draw);

/// Integer arithmetic on `pool`: appends up to `count` results of ops on its
/// members, of the types in it, of truth values, and of `types`.
void growIntegers(Program &program, Draw &draw, std::vector<mlir::Value> &pool,
                  unsigned count, llvm::ArrayRef<mlir::Type> types);

/// The names of binary ops of arith on integers.
llvm::ArrayRef<llvm::StringRef> binaryIntegerOps();

} // namespace plain

#endif // DIFFATTN_UNITTESTS_ANALYSIS_PROGRAMS_H
