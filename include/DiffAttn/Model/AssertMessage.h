//===- AssertMessage.h - messages of assertions -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_ASSERTMESSAGE_H
#define DIFFATTN_MODEL_ASSERTMESSAGE_H

#include "llvm/ADT/StringRef.h"

#include <string>

namespace mlir::diffattn {

/// The message of an assertion without the values of the sides of its
/// comparison, `{0}` and `{1}`.
inline std::string withoutSides(llvm::StringRef message) {
  for (llvm::StringRef side : {", but got {0}", ", but got {1}"})
    message.consume_back(side);
  std::string text = message.str();
  for (llvm::StringRef side : {"{0}", "{1}"})
    for (size_t at; (at = text.find(side.str())) != std::string::npos;)
      text.replace(at, side.size(), "the limit");
  return text;
}

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_ASSERTMESSAGE_H
