//===- Interpreter.h - runs tensor programs op by op ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs functions of func, linalg, tensor, arith, math, scf, cf.assert, affine,
// ml_program and diffattn on tensors, one op after another, without a pass and
// without compiled code: what compiled code and rewritten modules are compared
// with. docs/interpreter.md says which ops it knows.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_INTERPRETER_INTERPRETER_H
#define DIFFATTN_TESTING_INTERPRETER_INTERPRETER_H

#include "DiffAttn/Testing/Interpreter/Array.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringRef.h"

#include <functional>
#include <string>
#include <vector>

namespace mlir {
class RankedTensorType;
namespace func {
class FuncOp;
} // namespace func
} // namespace mlir

namespace mlir::diffattn {
class AttentionOp;
namespace reference {
struct AttentionResult;
} // namespace reference
} // namespace mlir::diffattn

namespace mlir::diffattn::interpreter {

enum class Precision {
  /// Every float op rounds its result to the type written: to nearest, ties to
  /// even.
  AsWritten,
  /// Every float is an f64, whatever type is written; nothing is rounded to it.
  Exact,
  /// Every float op rounds up or down by chance (the nearer the likelier), so
  /// that runs with several seeds show how far roundings move each result.
  /// Numbers of the type itself stay. Attention, which is computed in f64, is
  /// moved by a part of what docs/numerics.md allows: 1 /
  /// kRandomRoundingsToBound.
  RandomlyRounded,
};

/// How many times the error of a few randomly rounded runs other code for the
/// same program may be off.
constexpr double kRandomRoundingsToBound = 16.0;

struct Options {
  Precision precision = Precision::AsWritten;
  /// Seed of the random numbers of `RandomlyRounded`.
  uint64_t seed = 0;
  /// Ops on elements, counted before each loop nest is begun, and at most this
  /// many.
  int64_t maxSteps = int64_t(10) * 1000 * 1000 * 1000;
  /// Bytes of all tensors that are alive at once; an element takes 8.
  int64_t maxBytes = int64_t(8) << 30;
  /// Calls inside of one another.
  int64_t maxCallDepth = 64;
  /// The weight of an extern `ml_program.global` called `name`; `layer` is -1
  /// where the name does not hold `{}`. Without it such globals are errors.
  std::function<llvm::Expected<Array>(llvm::StringRef name, int64_t layer,
                                      RankedTensorType type)>
      weight;
  /// Sees what each attention op computes, its magnitude M too, before it is
  /// rounded to the op's type, and may change it.
  std::function<void(AttentionOp, reference::AttentionResult &)> onAttention;
};

struct Outcome {
  std::vector<Array> results;
  int64_t steps = 0;
  /// The first op whose result MLIR does not define (a shift by the width or
  /// more, a float beyond the integer type, overflow under nsw or nuw): where
  /// and why; empty if there was none. Its result is some value of the type.
  std::string undefined;
};

/// Why a program was not run to its end. The message names the op and where it
/// is written.
class InterpreterError : public llvm::ErrorInfo<InterpreterError> {
public:
  enum class Kind {
    Input,       ///< arguments that do not fit the function
    Unsupported, ///< an op, type or attribute that the interpreter does not
                 ///< know
    Limit,       ///< too many steps, bytes or nested calls
    Fault, ///< the program is wrong: division by 0, an index out of range,
           ///< sizes that do not fit, a failed assertion
  };
  static char ID;
  InterpreterError(Kind kind, std::string message)
      : kind(kind), message(std::move(message)) {}

  Kind getKind() const { return kind; }
  const std::string &getMessage() const { return message; }
  void log(llvm::raw_ostream &os) const override { os << message; }
  std::error_code convertToErrorCode() const override {
    return llvm::inconvertibleErrorCode();
  }

private:
  Kind kind;
  std::string message;
};

/// Runs `function` on `arguments`, of its argument types. The module must have
/// passed the verifier; it is not changed.
llvm::Expected<Outcome> interpret(func::FuncOp function,
                                  llvm::ArrayRef<Array> arguments,
                                  const Options &options = {});

/// Runs the function of `module` that is called `name`.
llvm::Expected<Outcome> interpret(ModuleOp module, llvm::StringRef name,
                                  llvm::ArrayRef<Array> arguments,
                                  const Options &options = {});

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_TESTING_INTERPRETER_INTERPRETER_H
