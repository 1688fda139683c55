//===- Machine.cpp - runs register programs -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Machine.h"
#include "CodeBuilder.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

/// The first place in a file within `loc`.
static FileLineColLoc findFile(Location loc) {
  FileLineColLoc file;
  loc->walk([&](Location inner) {
    file = dyn_cast<FileLineColLoc>(inner);
    return file ? WalkResult::interrupt() : WalkResult::advance();
  });
  return file;
}

std::string mlir::diffattn::interpreter::describeAt(Operation *op,
                                                    const Twine &message) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (op) {
    if (FileLineColLoc loc = findFile(op->getLoc()))
      os << loc.getFilename().getValue() << ":" << loc.getLine() << ":"
         << loc.getColumn() << ": ";
    os << "'" << op->getName() << "': ";
  }
  os << message;
  return text;
}

Machine::Machine(const Options &options)
    : options(options), budget(std::make_shared<MemoryBudget>()),
      random(options.seed) {
  budget->limit = options.maxBytes;
}

Machine::~Machine() = default;

bool Machine::fail(InterpreterError::Kind kind, Operation *op,
                   const Twine &message) {
  errorKind = kind;
  errorText = describeAt(op, message);
  return false;
}

bool Machine::fail(Operation *op, llvm::Error error) {
  llvm::handleAllErrors(
      std::move(error),
      [&](const InterpreterError &known) {
        fail(known.getKind(), op, known.getMessage());
      },
      [&](const llvm::ErrorInfoBase &other) {
        fail(InterpreterError::Kind::Input, op, other.message());
      });
  return false;
}

bool Machine::failSteps(Operation *op) {
  return fail(InterpreterError::Kind::Limit, op,
              "expected at most " + Twine(options.maxSteps) +
                  " steps, but the program takes more");
}

void Machine::setUndefined(const Inst &inst, const char *reason) {
  undefined = describeAt(inst.op, reason);
}

Array Machine::take(const Inst &inst, int32_t number) {
  return llvm::is_contained(inst.dying, number) ? std::move(tensors[number])
                                                : tensors[number];
}

Array Machine::create(const Inst &inst, Type elementType,
                      ArrayRef<int64_t> shape) {
  auto array = Array::create(elementType, shape, budget);
  if (array)
    return std::move(*array);
  fail(inst.op, array.takeError());
  return Array();
}

Array Machine::makeWritable(const Inst &inst, Array array) {
  if (array.isUnshared())
    return array;
  Array copy = create(inst, array.getElementType(), array.getShape());
  if (copy)
    std::copy_n(array.begin(), array.getNumElements(), copy.begin());
  return copy;
}

FunctionCode *Machine::getCode(Operation *function) {
  std::unique_ptr<FunctionCode> &code = functions[function];
  if (code)
    return code.get();
  auto built = buildFunction(cast<func::FuncOp>(function), *this);
  if (!built)
    return nullptr;
  // Building does not call this, so the reference is still good.
  code = std::move(built);
  return code.get();
}

bool Machine::call(const Inst &inst, FunctionCode &code,
                   ArrayRef<Register> arguments, ArrayRef<Register> results) {
  if (depth >= options.maxCallDepth)
    return fail(InterpreterError::Kind::Limit, inst.op,
                "expected at most " + Twine(options.maxCallDepth) +
                    " calls inside of one another, but got more");
  std::vector<Slot> ownScalars = code.scalars;
  std::vector<Array> ownTensors = code.tensors;
  for (auto [from, to] : llvm::zip_equal(arguments, code.arguments)) {
    if (from.isTensor)
      ownTensors[to.number] = tensors[from.number];
    else
      ownScalars[to.number] = scalars[from.number];
  }
  for (int32_t number : inst.dying)
    tensors[number] = Array();
  Slot *callerScalars = scalars;
  Array *callerTensors = tensors;
  scalars = ownScalars.data();
  tensors = ownTensors.data();
  ++depth;
  const bool done = run(code.body);
  --depth;
  scalars = callerScalars;
  tensors = callerTensors;
  if (!done)
    return false;
  for (auto [from, to] : llvm::zip_equal(code.results, results)) {
    if (from.isTensor)
      tensors[to.number] = std::move(ownTensors[from.number]);
    else
      scalars[to.number] = ownScalars[from.number];
  }
  return true;
}

/// An error if `array` is no argument of type `type`; empty if it is one.
static std::string checkArgument(const Array &array, Type type) {
  std::string expected;
  llvm::raw_string_ostream(expected) << type;
  const std::string text =
      "expected " + expected + ", but got " + describe(array);
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!array ||
      array.getElementType() != (tensor ? tensor.getElementType() : type))
    return text;
  ArrayRef<int64_t> shape = tensor ? tensor.getShape() : ArrayRef<int64_t>();
  if (array.getRank() != static_cast<int64_t>(shape.size()))
    return text;
  for (auto [got, size] : llvm::zip_equal(array.getShape(), shape))
    if (!ShapedType::isDynamic(size) && got != size)
      return text;
  return "";
}

llvm::Expected<Outcome> Machine::run(Operation *operation,
                                     ArrayRef<Array> arguments) {
  auto error = [&] {
    return llvm::make_error<InterpreterError>(errorKind, errorText);
  };
  auto function = cast<func::FuncOp>(operation);
  ArrayRef<Type> types = function.getArgumentTypes();
  if (arguments.size() != types.size()) {
    fail(InterpreterError::Kind::Input, function,
         "expected " + Twine(types.size()) + " arguments of '" +
             function.getName() + "', but got " + Twine(arguments.size()));
    return error();
  }
  FunctionCode *code = getCode(function);
  if (!code)
    return error();
  std::vector<Slot> scalarValues(types.size() + function.getNumResults());
  std::vector<Array> tensorValues(scalarValues.size());
  SmallVector<Register> from, to;
  for (auto [i, type] : llvm::enumerate(types)) {
    if (std::string wrong = checkArgument(arguments[i], type); !wrong.empty()) {
      fail(InterpreterError::Kind::Input, function,
           "argument " + Twine(i) + " of '" + function.getName() +
               "': " + wrong);
      return error();
    }
    const bool isTensor = isa<RankedTensorType>(type);
    from.push_back({static_cast<int32_t>(i), isTensor});
    if (isTensor)
      tensorValues[i] = arguments[i];
    else
      scalarValues[i] = arguments[i].begin()[0];
  }
  for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
    to.push_back(
        {static_cast<int32_t>(types.size() + i), isa<RankedTensorType>(type)});
  scalars = scalarValues.data();
  tensors = tensorValues.data();
  Inst inst;
  inst.op = function;
  if (!call(inst, *code, from, to))
    return error();
  Outcome outcome;
  for (auto [result, type] : llvm::zip_equal(to, function.getResultTypes())) {
    if (result.isTensor) {
      outcome.results.push_back(std::move(tensorValues[result.number]));
      continue;
    }
    auto scalar = Array::create(type, {}, budget);
    if (!scalar)
      return scalar.takeError();
    scalar->begin()[0] = scalarValues[result.number];
    outcome.results.push_back(std::move(*scalar));
  }
  outcome.steps = steps;
  outcome.undefined = std::move(undefined);
  return outcome;
}

llvm::Expected<Outcome> mlir::diffattn::interpreter::interpret(
    func::FuncOp function, ArrayRef<Array> arguments, const Options &options) {
  return Machine(options).run(function, arguments);
}

llvm::Expected<Outcome>
mlir::diffattn::interpreter::interpret(ModuleOp module, StringRef name,
                                       ArrayRef<Array> arguments,
                                       const Options &options) {
  if (auto function = module.lookupSymbol<func::FuncOp>(name))
    return interpret(function, arguments, options);
  return llvm::make_error<InterpreterError>(
      InterpreterError::Kind::Input,
      ("expected a function '" + name + "', but the module has none").str());
}
