//===- Error.h - classes of failures ----------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_EXECUTION_ERROR_H
#define DIFFATTN_EXECUTION_ERROR_H

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <string>
#include <system_error>

namespace mlir::diffattn {

/// What went wrong, by whose hands it can be put right. The numbers are exit
/// codes of the tools and codes of the C API.
enum class ErrorClass {
  Mismatch = 1, // results are not what was expected of them
  Usage = 2,    // options, names of entries, numbers of arguments
  IR = 3,       // the module does not parse or verify
  Compile = 4,  // a sound module that our passes could not lower
  Weights = 5,  // weight files: form, names, types, shapes
  Input = 6,    // arrays given to a call: form, types, shapes
  Run = 7,      // a check of the compiled code failed, or memory ran out
  Output = 8,   // results could not be written
};

/// The lower-case name of a class, for messages.
llvm::StringRef stringifyErrorClass(ErrorClass errorClass);

class ExecutionError : public llvm::ErrorInfo<ExecutionError> {
public:
  static char ID;
  ExecutionError(ErrorClass errorClass, std::string message)
      : errorClass(errorClass), message(std::move(message)) {}

  ErrorClass getClass() const { return errorClass; }
  const std::string &getMessage() const { return message; }

  void log(llvm::raw_ostream &os) const override { os << message; }
  std::error_code convertToErrorCode() const override {
    return llvm::inconvertibleErrorCode();
  }

private:
  ErrorClass errorClass;
  std::string message;
};

llvm::Error makeError(ErrorClass errorClass, const llvm::Twine &message);

/// The class and text of an error; any foreign error is of `otherwise`.
std::pair<ErrorClass, std::string>
describeError(llvm::Error error, ErrorClass otherwise = ErrorClass::Run);

} // namespace mlir::diffattn

#endif // DIFFATTN_EXECUTION_ERROR_H
