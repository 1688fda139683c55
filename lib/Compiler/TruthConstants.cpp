//===- TruthConstants.cpp - truth values as newer MLIR writes them --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TruthConstants.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

#include <optional>

using llvm::StringRef;

/// How many elements a type has that `text` begins with, `2x3xi1>`; none: it is
/// another type, or has no axes.
static std::optional<int64_t> countTruths(StringRef text) {
  int64_t count = 1;
  bool hasAxes = false;
  while (!text.consume_front("i1>")) {
    int64_t size;
    if (text.consumeInteger(10, size) || !text.consume_front("x") ||
        llvm::MulOverflow(count, size, count))
      return std::nullopt;
    hasAxes = true;
  }
  return hasAxes ? std::optional(count) : std::nullopt;
}

/// Bytes of truth values, two digits each, packed into bits; empty: one of them
/// is no truth value.
static std::string packDigits(StringRef digits) {
  std::string bits((digits.size() / 2 + 7) / 8, '\0');
  for (size_t i = 0; i < digits.size() / 2; ++i) {
    const StringRef byte = digits.substr(2 * i, 2);
    if (byte != "00" && byte != "01")
      return {};
    if (byte == "01")
      bits[i / 8] |= 1 << i % 8;
  }
  return llvm::toHex(bits);
}

std::string mlir::diffattn::packTruthConstants(StringRef text) {
  static constexpr StringRef kBegin = "dense<\"0x", kType = "\"> : tensor<";
  std::string packed;
  while (true) {
    const auto [before, after] = text.split(kBegin);
    packed += before;
    if (before.size() == text.size())
      return packed;
    packed += kBegin;
    const size_t end = after.find('"');
    StringRef digits = after.substr(0, end), rest = after.substr(digits.size());
    std::optional<int64_t> count;
    if (StringRef type = rest; type.consume_front(kType))
      count = countTruths(type);
    // One truth value is as long either way, and is never written so.
    std::string bits;
    if (count && *count > 1 &&
        static_cast<int64_t>(digits.size()) == 2 * *count)
      bits = packDigits(digits);
    packed += bits.empty() ? digits : StringRef(bits);
    text = rest;
  }
}
