//===- CodeBuilder.h - from functions to register programs ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_CODEBUILDER_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_CODEBUILDER_H

#include "ElementTypes.h"
#include "Machine.h"
#include "Rounding.h"

#include "mlir/IR/Block.h"
#include "mlir/IR/OpDefinition.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringMap.h"

namespace mlir::diffattn::interpreter {

/// A number that is known, or lies in a register.
struct Operand {
  int64_t value = 0;
  int32_t number = -1;

  int64_t get(const Machine &machine) const {
    return number < 0 ? value : machine.scalars[number].i;
  }
};

/// Builds the code of one function. Every method that may fail returns false
/// after it gave the machine the error.
class CodeBuilder {
public:
  CodeBuilder(FunctionCode &function, Machine &machine)
      : function(function), machine(machine) {}

  bool buildFunction(Operation *op);
  /// Appends the ops of `block` to `into`; its terminator by `terminate`.
  bool buildBlock(Block &block, Code &into,
                  llvm::function_ref<bool(Operation *)> terminate);

  // --- registers

  Register get(Value value) const { return registers.lookup(value); }
  int32_t scalar(Value value) const { return get(value).number; }
  /// A register for a value that an op or block defines; fails for types that
  /// the interpreter does not support.
  bool define(Value value, Register &result);
  bool define(ValueRange values, SmallVectorImpl<Register> *results = nullptr);
  /// Makes `value` another name for what `result` holds.
  void alias(Value value, Register result) { registers[value] = result; }
  int32_t newScalar(Slot value = {});
  int32_t newTensor(Array value = {});
  Operand operand(OpFoldResult value) const;
  SmallVector<Operand> operands(ArrayRef<OpFoldResult> values) const;
  SmallVector<Register> get(ValueRange values) const;

  // --- instructions

  Inst &emit(Handler run, Operation *op);
  /// An instruction on up to three operands that gives one result.
  bool emitOp(Handler run, Operation *op, int64_t imm = 0);
  /// Copies the registers of `from` to those of `to`, all at once; tensors that
  /// `op` alone reads, and not in its regions, are moved.
  void emitMoves(ValueRange from, ArrayRef<Register> to, Operation *op);
  template <typename T>
  T &addDetails(Inst &inst) {
    auto details = std::make_unique<T>();
    T &result = *details;
    keepDetails(inst, std::move(details));
    return result;
  }
  void keepDetails(Inst &inst, std::unique_ptr<Details> details) {
    inst.details = details.get();
    function.details.push_back(std::move(details));
  }
  /// Tensors of `values` keep their registers for as long as the code runs.
  void keepAlive(ValueRange values) { kept.insert_range(values); }

  /// How results of floats of this type are rounded.
  FloatKind kindOf(Type type) const;
  bool isExact() const { return machine.options.precision == Precision::Exact; }
  bool unsupported(Operation *op, const Twine &message) {
    return machine.fail(InterpreterError::Kind::Unsupported, op, message);
  }

  FunctionCode &function;
  Machine &machine;
  Code *code = nullptr;

private:
  bool buildOp(Operation &op);
  bool buildOnTensors(Operation &op);
  void listLastReads(Block &block);
  ArrayRef<int32_t> keepList(SmallVector<int32_t> numbers);

  llvm::DenseMap<Value, Register> registers;
  /// Tensors that an op of their own block is the last to read.
  llvm::DenseMap<Operation *, SmallVector<Value>> lastReads;
  /// Members of `lastReads` of the op that is being built that none of its
  /// instructions lists as dying yet.
  SmallVector<Value> pending;
  llvm::DenseSet<Value> kept;
  /// Whether values of tensor types are single elements.
  bool onElements = false;
};

/// The code of `function`; null after a failure.
std::unique_ptr<FunctionCode> buildFunction(Operation *function,
                                            Machine &machine);

using BuildOp = bool (*)(CodeBuilder &, Operation *);
using OpTable = llvm::StringMap<BuildOp>;

void addIntegerOps(OpTable &table);
void addFloatOps(OpTable &table);
void addCastOps(OpTable &table);
void addAffineOps(OpTable &table);
void addMathOps(OpTable &table);
void addControlFlowOps(OpTable &table);
void addTensorOps(OpTable &table);
void addTensorSliceOps(OpTable &table);
void addWeightOps(OpTable &table);
void addLinalgOps(OpTable &table);
void addDiffAttnOps(OpTable &table);
/// All structured ops of linalg, by their maps and regions.
bool buildStructuredOp(CodeBuilder &builder, Operation *op);

/// `Fn<kind>::run` for the kind that is chosen when building.
template <template <FloatKind> class Fn>
Handler pickFloat(FloatKind kind) {
  return withKind(kind, [](auto constant) -> Handler {
    return Fn<decltype(constant)::value>::run;
  });
}

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_CODEBUILDER_H
