//===- Mutation.cpp - sound inputs made unsound ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Mutation.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/PrettyStackTrace.h"
#include "llvm/Support/Signals.h"
#include "gtest/gtest.h"

#include <chrono>
#include <cstdlib>

using namespace mlir::diffattn;
using llvm::StringRef;

uint64_t Mutator::below(uint64_t bound) {
  // splitmix64; the remainder's bias does not matter here.
  state += 0x9e3779b97f4a7c15;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) % bound;
}

Mutator::Span Mutator::anySpan(StringRef text, size_t most) {
  size_t begin = below(text.size() + 1);
  return {begin, begin + below(std::min(most, text.size() - begin) + 1)};
}

Mutator::Span Mutator::anyNumber(StringRef text) {
  size_t begin = text.find_if(llvm::isDigit, below(text.size() + 1));
  if (begin == StringRef::npos)
    return {0, 0};
  while (begin > 0 && llvm::isDigit(text[begin - 1]))
    --begin;
  size_t end = text.find_if_not(llvm::isDigit, begin);
  return {begin, std::min(end, text.size())};
}

Mutator::Span Mutator::anyWord(StringRef text) {
  constexpr StringRef ends = " \"'()[]{}<>,:=\n";
  size_t begin = text.find_first_of(ends, below(text.size() + 1));
  if (begin == StringRef::npos)
    return {0, 0};
  return {begin, std::min(text.find_first_of(ends, begin + 1), text.size())};
}

uint64_t Mutator::lieAboutLength(uint64_t length) {
  switch (below(4)) {
  case 0:
    return length + below(17) - 8; // may wrap below 0
  case 1:
    return (uint64_t(1) << below(64)) + below(3) - 1;
  case 2:
    return ~below(32);
  default:
    return below(UINT64_MAX);
  }
}

void Mutator::change(std::string &text) {
  static constexpr StringRef numbers[] = {
      "0",
      "1",
      "-1",
      "00",
      "3.0",
      "1e9",
      "255",
      "65536",
      "2147483648",
      "4294967296",
      "9007199254740993",
      "4611686018427387904",
      "9223372036854775807",
      "9223372036854775808",
      "18446744073709551615",
      "18446744073709551616",
      "340282366920938463463374607431768211456",
      "?",
      "nan",
      "0x10"};
  static constexpr StringRef bytes[] = {StringRef("\0", 1),
                                        "\xff",
                                        "\xc0\xaf",
                                        "\"",
                                        "'",
                                        "\\",
                                        "\\u0000",
                                        "\\ud800",
                                        "\n",
                                        ",",
                                        ":",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "(",
                                        ")",
                                        "<",
                                        ">",
                                        "-",
                                        "null"};
  static constexpr StringRef opening[] = {"[", "{", "(", "<", "{\"a\":", "- "};
  auto put = [&](Span span, const llvm::Twine &by) {
    text.replace(span.begin, span.size(), by.str());
  };
  switch (below(10)) {
  case 0: { // a bit
    if (!text.empty())
      text[below(text.size())] ^= static_cast<char>(1 << below(8));
    break;
  }
  case 1: // an end
    text.resize(below(text.size() + 1));
    break;
  case 2: // less
    put(anySpan(text, 32), "");
    break;
  case 3: { // twice, here or elsewhere
    Span span = anySpan(text, 64);
    std::string copy = text.substr(span.begin, span.size());
    text.insert(oneIn(2) ? span.begin : below(text.size() + 1), copy);
    break;
  }
  case 4:
  case 5: // another number
    put(anyNumber(text), numbers[below(std::size(numbers))]);
    break;
  case 6: // a word in another's place
    if (Span from = anyWord(text), to = anyWord(text); true)
      put(to, StringRef(text).slice(from.begin, from.end));
    break;
  case 7: // no word
    put(anyWord(text), "");
    break;
  case 8:
    put(anySpan(text, 1), bytes[below(std::size(bytes))]);
    break;
  default: { // depth
    StringRef one = opening[below(std::size(opening))];
    std::string many;
    for (uint64_t n = uint64_t(1) << below(oneIn(20) ? 18 : 10); n > 0; --n)
      many += one;
    text.insert(below(text.size() + 1), many);
    break;
  }
  }
}

std::string Mutator::mutate(StringRef input) {
  std::string text = input.str();
  for (uint64_t n = 1 + below(4); n > 0; --n)
    change(text);
  return text;
}

unsigned mlir::diffattn::getNumCases(unsigned quick, unsigned share) {
  const char *given = std::getenv("DIFFATTN_FUZZ_CASES");
  unsigned cases;
  if (!given)
    return quick;
  if (StringRef(given).getAsInteger(10, cases)) {
    ADD_FAILURE() << "DIFFATTN_FUZZ_CASES: expected a number, but got '"
                  << given << "'";
    return 0;
  }
  return std::max(1u, cases / share);
}

void mlir::diffattn::forEachCase(
    unsigned cases,
    llvm::function_ref<void(unsigned i, Mutator &mutator)> run) {
  llvm::sys::PrintStackTraceOnErrorSignal("");
  llvm::EnablePrettyStackTrace();
  for (unsigned i = 0; i < cases && !testing::Test::HasFatalFailure(); ++i) {
    llvm::PrettyStackTraceFormat trace("case %u", i);
    SCOPED_TRACE(testing::Message() << "case " << i);
    auto start = std::chrono::steady_clock::now();
    Mutator mutator(i);
    run(i, mutator);
    auto taken = std::chrono::steady_clock::now() - start;
    EXPECT_LT(std::chrono::duration<double>(taken).count(), 30);
  }
}
