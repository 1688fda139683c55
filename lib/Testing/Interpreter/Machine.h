//===- Machine.h - register programs and what runs them ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A function becomes a list of instructions once, with a register for each
// value; its regions become lists of their own over the same registers. So
// running a body for an element looks nothing up.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_MACHINE_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_MACHINE_H

#include "DiffAttn/Testing/Interpreter/Interpreter.h"
#include "Rounding.h"

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"

namespace mlir::diffattn::interpreter {

class Machine;
struct Inst;

/// Runs an instruction; false after `Machine::fail`.
using Handler = bool (*)(Machine &, const Inst &);

/// Operands of a kind of instruction beside four registers and a number.
struct Details {
  virtual ~Details() = default;
};

/// Where a value lies: scalars and tensors have registers of their own.
struct Register {
  int32_t number = -1;
  bool isTensor = false;
};

struct Inst {
  Handler run = nullptr;
  int32_t dst = -1, a = -1, b = -1, c = -1;
  int64_t imm = 0;
  const Details *details = nullptr;
  Operation *op = nullptr;
  /// Registers of tensors that nothing reads after this.
  ArrayRef<int32_t> dying;

  template <typename T>
  const T &as() const {
    return *static_cast<const T *>(details);
  }
};

struct Code {
  std::vector<Inst> insts;
  int64_t size() const { return static_cast<int64_t>(insts.size()); }
};

struct FunctionCode {
  Code body;
  /// Registers as a call finds them; constants are set.
  std::vector<Slot> scalars;
  std::vector<Array> tensors;
  std::vector<Register> arguments, results;
  std::vector<std::unique_ptr<Details>> details;
  std::vector<std::unique_ptr<SmallVector<int32_t>>> dyingLists;
};

class Machine {
public:
  explicit Machine(const Options &options);
  ~Machine();

  llvm::Expected<Outcome> run(Operation *function, ArrayRef<Array> arguments);

  // --- for handlers

  Slot *scalars = nullptr;
  Array *tensors = nullptr;

  bool run(const Code &code) {
    return count(code.size(), nullptr) && runCounted(code);
  }
  /// Runs `code`, whose steps were counted before.
  bool runCounted(const Code &code) {
    for (const Inst &inst : code.insts) {
      if (!inst.run(*this, inst))
        return false;
      for (int32_t dying : inst.dying)
        tensors[dying] = Array();
    }
    return true;
  }
  /// Calls the function with registers of its own; arguments and results are
  /// registers of the caller.
  bool call(const Inst &inst, FunctionCode &code, ArrayRef<Register> arguments,
            ArrayRef<Register> results);

  /// Adds to the steps; fails beyond the limit.
  bool count(int64_t more, Operation *op) {
    if (LLVM_LIKELY(!__builtin_add_overflow(steps, more, &steps) &&
                    steps <= options.maxSteps))
      return true;
    return failSteps(op);
  }
  bool fail(InterpreterError::Kind kind, Operation *op, const Twine &message);
  /// A fault of the program.
  bool fail(const Inst &inst, const Twine &message) {
    return fail(InterpreterError::Kind::Fault, inst.op, message);
  }
  bool fail(Operation *op, llvm::Error error);
  void markUndefined(const Inst &inst, const char *reason) {
    if (undefined.empty())
      setUndefined(inst, reason);
  }

  /// The tensor of a register, moved out of it if this is its last use.
  Array take(const Inst &inst, int32_t number);
  /// An array of zeros for a result; null after a failure.
  Array create(const Inst &inst, Type elementType, ArrayRef<int64_t> shape);
  /// An array of the same elements that may be written; null after a failure.
  Array makeWritable(const Inst &inst, Array array);

  /// The code of `function`, built at the first call; null after a failure.
  FunctionCode *getCode(Operation *function);

  const Options &options;
  std::shared_ptr<MemoryBudget> budget;
  Random random;

private:
  bool failSteps(Operation *op);
  void setUndefined(const Inst &inst, const char *reason);

  int64_t steps = 0, depth = 0;
  std::string undefined;
  InterpreterError::Kind errorKind = InterpreterError::Kind::Fault;
  std::string errorText;
  llvm::DenseMap<Operation *, std::unique_ptr<FunctionCode>> functions;
};

/// "model.mlir:3:5: 'arith.divsi': message", or without the place.
std::string describeAt(Operation *op, const Twine &message);

/// "2x3"
std::string describeShape(ArrayRef<int64_t> shape);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_MACHINE_H
