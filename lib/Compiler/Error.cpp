//===- Error.cpp - classes of failures ------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Error.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

char ExecutionError::ID = 0;

llvm::Error mlir::diffattn::makeError(ErrorClass errorClass,
                                      const llvm::Twine &message) {
  return llvm::make_error<ExecutionError>(
      errorClass, printableMessage(errorClass, message.str()));
}

llvm::Error mlir::diffattn::toError(const Failure &failure) {
  if (!failure)
    return llvm::Error::success();
  return makeError(failure.getClass(), failure.getMessage());
}

std::pair<ErrorClass, std::string>
mlir::diffattn::describeError(llvm::Error error, ErrorClass otherwise) {
  std::pair<ErrorClass, std::string> result{otherwise, ""};
  llvm::handleAllErrors(
      std::move(error),
      [&](const ExecutionError &e) { result = {e.getClass(), e.getMessage()}; },
      [&](const llvm::ErrorInfoBase &e) {
        result.second = printableMessage(otherwise, e.message());
      });
  return result;
}
