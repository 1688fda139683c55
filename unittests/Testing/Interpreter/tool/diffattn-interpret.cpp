//===- diffattn-interpret.cpp - the interpreter for tests -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// diffattn-interpret module.mlir < calls
//
// A line of `calls` has words: the function, `exact`, `as-written` or
// `random:SEED`, the most steps (0: the default), a prefix of the files of
// results, and a .npy file for each argument. Answers with one line each, "ok
// STEPS MILLISECONDS UNDEFINED" or "KIND: MESSAGE". Results are f64 for floats
// of an exact call.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Testing/Interpreter/Interpreter.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/InitAllDialects.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>
#include <iostream>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using interpreter::Array;

static Type toType(DType dtype, MLIRContext *context) {
  const std::string name = stringifyDType(dtype);
  return parseType(name == "bool" ? "i1" : name, context);
}

/// The element type of `type`, if it has as many bits; of a file otherwise.
static Type getElementType(Type type, Type stored) {
  Type element = getElementTypeOrSelf(type);
  return element.isIndex() && stored.isInteger(64) ? element : stored;
}

static llvm::Expected<std::string> callOnce(ModuleOp module,
                                            ArrayRef<StringRef> words) {
  interpreter::Options options;
  const bool isExact = words[1] == "exact";
  options.precision = isExact ? interpreter::Precision::Exact
                              : interpreter::Precision::AsWritten;
  StringRef seed = words[1];
  if (seed.consume_front("random:")) {
    options.precision = interpreter::Precision::RandomlyRounded;
    if (seed.getAsInteger(10, options.seed))
      return llvm::createStringError("expected random:SEED");
  }
  int64_t steps;
  if (!words[2].getAsInteger(10, steps) && steps)
    options.maxSteps = steps;
  auto function = module.lookupSymbol<func::FuncOp>(words[0]);
  std::vector<Array> arguments;
  for (auto [i, path] : llvm::enumerate(words.drop_front(4))) {
    auto file = readNpy(path);
    if (!file)
      return file.takeError();
    Type type = toType(file->dtype, module.getContext());
    if (function && i < function.getNumArguments())
      type = getElementType(function.getArgumentTypes()[i], type);
    auto array = Array::read(type, file->shape, file->data.get());
    if (!array)
      return array.takeError();
    arguments.push_back(std::move(*array));
  }
  auto start = std::chrono::steady_clock::now();
  auto outcome = interpreter::interpret(module, words[0], arguments, options);
  std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - start;
  if (!outcome)
    return outcome.takeError();
  for (auto [i, result] : llvm::enumerate(outcome->results)) {
    Type type = result.getElementType();
    if (isExact && result.isFloat())
      type = Float64Type::get(module.getContext());
    std::string name;
    llvm::raw_string_ostream(name) << type;
    auto dtype = parseDType(type.isIndex() ? "i64" : name);
    if (!dtype)
      return llvm::createStringError("expected a result that .npy holds, but "
                                     "got " +
                                     name);
    auto array = createArray(
        *dtype, SizeList(result.getShape().data(), result.getShape().size()));
    if (!array)
      return array.takeError();
    result.retyped(type).write(array->data.get());
    if (llvm::Error error =
            writeNpy((words[3] + Twine(i) + ".npy").str(), array->data.get(),
                     array->dtype, array->shape))
      return error;
  }
  return ("ok " + Twine(outcome->steps) + " " + std::to_string(took.count()) +
          " " + outcome->undefined)
      .str();
}

static StringRef describeKind(interpreter::InterpreterError::Kind kind) {
  using Kind = interpreter::InterpreterError::Kind;
  switch (kind) {
  case Kind::Input:
    return "input";
  case Kind::Unsupported:
    return "unsupported";
  case Kind::Limit:
    return "limit";
  case Kind::Fault:
    return "fault";
  }
  return "";
}

int main(int argc, char **argv) {
  DialectRegistry registry;
  mlir::registerAllDialects(registry);
  registry.insert<DiffAttnDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  if (argc != 2)
    return 2;
  auto module = parseSourceFile<ModuleOp>(argv[1], &context);
  if (!module)
    return 3;
  std::string line;
  while (std::getline(std::cin, line)) {
    SmallVector<StringRef> words;
    StringRef(line).split(words, ' ', -1, /*KeepEmpty=*/false);
    if (words.size() < 4)
      return 2;
    auto answer = callOnce(*module, words);
    if (answer) {
      llvm::outs() << *answer << "\n";
      continue;
    }
    llvm::handleAllErrors(
        answer.takeError(),
        [](const interpreter::InterpreterError &error) {
          llvm::outs() << describeKind(error.getKind()) << ": "
                       << error.getMessage() << "\n";
        },
        [](const llvm::ErrorInfoBase &error) {
          llvm::outs() << "other: " << error.message() << "\n";
        });
  }
  return 0;
}
