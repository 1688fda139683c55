//===- Oracle.h - results judged by the interpreter -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_ORACLE_H
#define DIFFATTN_COMPILER_ORACLE_H

#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Compiler/ReadSignature.h"
#include "DiffAttn/Compiler/WeightFiles.h"
#include "DiffAttn/Runtime/Program/Call.h"

#include <memory>

namespace mlir::diffattn {

struct OracleOptions {
  /// Name of the module in messages.
  std::string inputName = "module";
  /// Limits of each run of the interpreter: steps of some nanoseconds, and
  /// bytes, 8 for an element.
  int64_t maxSteps = int64_t(4) * 1000 * 1000 * 1000;
  int64_t maxBytes = int64_t(8) << 30;
  /// Runs with random roundings.
  int64_t randomRuns = 3;
};

struct Judgement {
  bool matches = true;
  std::string text; // one line
};

/// Expected results of one call, and how far others may be off: the module as
/// given, before any pass, is interpreted in f64 and, to learn how far
/// roundings may move each result, as written with random roundings
/// (docs/numerics.md).
class Oracle {
public:
  /// Interprets `entry` on copies of `arguments`. Fails for a program that is
  /// too large, or has an op that the interpreter does not support.
  static llvm::Expected<Oracle>
  create(llvm::StringRef ir, llvm::StringRef entry,
         llvm::ArrayRef<diffattn_rt::HostArray> arguments,
         const WeightFiles &files, const OracleOptions &options = {});
  Oracle(Oracle &&) noexcept;
  ~Oracle();

  size_t getNumResults() const;
  /// Judges result number `i`, a dense array in row-major order. Fails if it
  /// has another type or shape.
  llvm::Expected<Judgement> judge(size_t i, llvm::StringRef name,
                                  const void *data, diffattn_rt::DType dtype,
                                  llvm::ArrayRef<int64_t> shape) const;

private:
  struct Impl;
  explicit Oracle(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl;
};

/// Judges all `results` of a call, dense arrays, in the order of the
/// function's; the text has a line for each.
llvm::Expected<Judgement>
judgeCall(llvm::StringRef ir, llvm::StringRef entry,
          llvm::ArrayRef<diffattn_rt::HostArray> arguments,
          llvm::ArrayRef<diffattn_rt::ArrayView> results,
          const WeightFiles &files, const OracleOptions &options);

/// The place of element `i`, counted in row-major order, of a tensor of
/// `shape`: "[1, 0, 3]".
std::string formatIndex(int64_t i, llvm::ArrayRef<int64_t> shape);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_ORACLE_H
