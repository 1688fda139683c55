//===- StrictJson.h - JSON as weight files may use it -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_EXECUTION_STRICTJSON_H
#define DIFFATTN_LIB_EXECUTION_STRICTJSON_H

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>

namespace mlir::diffattn {

/// Reads JSON from front to back and refuses what a lenient parser lets pass:
/// keys given twice, numbers that are no plain non-negative integers where one
/// is wanted, and nesting that would exhaust the stack. Every function returns
/// false on an error and keeps the first one.
class StrictJson {
public:
  explicit StrictJson(llvm::StringRef text) : rest(text), size(text.size()) {}

  /// `{"key": value, ...}`: calls `member(key)`, which must read the value.
  bool object(llvm::function_ref<bool(llvm::StringRef key)> member);
  bool array(llvm::function_ref<bool()> element);
  bool string(std::string &value);
  bool integer(uint64_t &value);
  /// Any value.
  bool skip();
  /// Nothing but white space is left.
  bool end();

  /// Whether the next value starts with `c`.
  bool isNext(char c);
  bool fail(const llvm::Twine &message);
  const std::string &getError() const { return error; }

private:
  bool eat(char c);
  bool hexQuad(unsigned &value);
  void skipSpace() { rest = rest.ltrim(" \t\r\n"); }

  llvm::StringRef rest;
  size_t size;
  int depth = 0;
  std::string error;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_EXECUTION_STRICTJSON_H
