//===- Mutation.h - sound inputs made unsound -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_COMPILER_MUTATION_H
#define DIFFATTN_UNITTESTS_COMPILER_MUTATION_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>

namespace mlir::diffattn {

/// Changes inputs as accidents and attackers do. The same seed gives the same
/// changes everywhere.
class Mutator {
public:
  explicit Mutator(uint64_t seed) : state(seed) {}

  /// A number below `bound`, which is at least 1.
  uint64_t below(uint64_t bound);
  bool oneIn(uint64_t n) { return below(n) == 0; }

  /// One to four changes of bytes, words, numbers and brackets.
  std::string mutate(llvm::StringRef input);

  /// A length that is near `length`, near a power of two, or anything.
  uint64_t lieAboutLength(uint64_t length);

private:
  struct Span {
    size_t begin, end;
    size_t size() const { return end - begin; }
  };
  Span anySpan(llvm::StringRef text, size_t most);
  /// A run of digits, or an empty span.
  Span anyNumber(llvm::StringRef text);
  /// From a quote, bracket or space to the next one, or an empty span.
  Span anyWord(llvm::StringRef text);
  void change(std::string &text);

  uint64_t state;
};

/// `quick`, or the environment variable DIFFATTN_FUZZ_CASES, divided by
/// `share`.
unsigned getNumCases(unsigned quick, unsigned share = 1);

/// Calls `run` with each case's number and its own mutator. A case that takes
/// more than half a minute fails; one that ends the process is named by the
/// stack trace.
void forEachCase(unsigned cases,
                 llvm::function_ref<void(unsigned i, Mutator &mutator)> run);

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_COMPILER_MUTATION_H
