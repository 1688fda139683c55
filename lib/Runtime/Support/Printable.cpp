//===- Printable.cpp - text from files, for terminals ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Support/Printable.h"

#include <cstdint>
#include <cstdio>

using namespace diffattn_rt;

namespace {
struct CodePoint {
  uint32_t value;
  size_t bytes; // 0: the text does not start with UTF-8
};
} // namespace

static CodePoint decode(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char first = byte(0);
  if (first < 0x80)
    return {first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes)
    return {0, 0};
  uint32_t value = first & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80)
      return {0, 0};
    value = (value << 6) | (byte(i) & 0x3f);
  }
  constexpr uint32_t kMinValue[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kMinValue[bytes] || value > 0x10ffff ||
      (value >= 0xd800 && value < 0xe000))
    return {0, 0};
  return {value, bytes};
}

/// Controls beyond ASCII, separators of lines, and marks that reorder or hide
/// the text after them.
static bool isInvisible(uint32_t value) {
  constexpr uint32_t kRanges[][2] = {
      {0x80, 0x9f},     {0x61c, 0x61c},   {0x200b, 0x200f}, {0x2028, 0x202e},
      {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f},
  };
  for (const auto &[low, high] : kRanges)
    if (value >= low && value <= high)
      return true;
  return false;
}

std::string diffattn_rt::printable(std::string_view text, Lines lines) {
  std::string result;
  result.reserve(text.size());
  char escape[16];
  while (!text.empty()) {
    const CodePoint point = decode(text);
    const size_t bytes = point.bytes ? point.bytes : 1;
    const bool isBreak = point.value == '\n' && point.bytes;
    const bool isControl =
        (point.value < 0x20 && point.value != '\t') || point.value == 0x7f;
    if (isBreak && lines == Lines::Keep) {
      result += '\n';
    } else if (!point.bytes || isControl) {
      snprintf(escape, sizeof escape, "\\x%02x",
               static_cast<unsigned char>(text[0]));
      result += escape;
    } else if (isInvisible(point.value)) {
      snprintf(escape, sizeof escape,
               point.value > 0xffff ? "\\U%08x" : "\\u%04x",
               static_cast<unsigned>(point.value));
      result += escape;
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return result;
}

std::string diffattn_rt::quoteForShell(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP"
      "QRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(word);
  std::string quoted = "'";
  for (char c : word)
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}
