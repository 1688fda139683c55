//===- StrictJson.h - JSON that is read without leniency --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_SUPPORT_STRICTJSON_H
#define DIFFATTN_RUNTIME_SUPPORT_STRICTJSON_H

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace diffattn_rt {

/// Reads JSON from front to back, and refuses duplicate keys, numbers that are
/// no plain non-negative integers where one is wanted, and nesting that would
/// exhaust the stack. Every function returns false on an error and keeps the
/// first one.
class StrictJson {
public:
  explicit StrictJson(std::string_view text) : rest(text), size(text.size()) {}

  /// `{"key": value, ...}`: calls `member(key)`, which must read the value.
  bool object(const std::function<bool(std::string_view key)> &member);
  bool array(const std::function<bool()> &element);
  bool string(std::string &value);
  bool integer(uint64_t &value);
  /// Reads an integer that may be negative.
  bool signedInteger(int64_t &value);
  bool boolean(bool &value);
  /// Reads `null` if it is the next value. Returns whether it was.
  bool eatNull();
  /// Skips a value of any kind.
  bool skip();
  /// Reads the end: nothing but white space is left.
  bool end();

  /// Whether the next value starts with `c`.
  bool isNext(char c);
  bool fail(const std::string &message);
  const std::string &getError() const { return error; }

private:
  bool eat(char c);
  bool eatText(std::string_view text);
  bool hexQuad(unsigned &value);
  std::string_view word();
  void skipSpace();

  std::string_view rest;
  size_t size;
  int depth = 0;
  std::string error;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_SUPPORT_STRICTJSON_H
