//===- Error.h - classes of failures ----------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_ERROR_H
#define DIFFATTN_COMPILER_ERROR_H

#include "DiffAttn/Runtime/Support/Failure.h"

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#include <string>
#include <system_error>

namespace mlir::diffattn {

class ExecutionError : public llvm::ErrorInfo<ExecutionError> {
public:
  static char ID;
  ExecutionError(diffattn_rt::ErrorClass errorClass, std::string message)
      : errorClass(errorClass), message(std::move(message)) {}

  diffattn_rt::ErrorClass getClass() const { return errorClass; }
  const std::string &getMessage() const { return message; }

  void log(llvm::raw_ostream &os) const override { os << message; }
  std::error_code convertToErrorCode() const override {
    return llvm::inconvertibleErrorCode();
  }

private:
  diffattn_rt::ErrorClass errorClass;
  std::string message;
};

llvm::Error makeError(diffattn_rt::ErrorClass errorClass,
                      const llvm::Twine &message);
llvm::Error toError(const diffattn_rt::Failure &failure);

/// The class and text of an error; any foreign error is of `otherwise`.
std::pair<diffattn_rt::ErrorClass, std::string>
describeError(llvm::Error error,
              diffattn_rt::ErrorClass otherwise = diffattn_rt::ErrorClass::Run);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_ERROR_H
