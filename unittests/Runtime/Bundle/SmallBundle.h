//===- SmallBundle.h - a bundle that tests open and call --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_RUNTIME_BUNDLE_SMALLBUNDLE_H
#define DIFFATTN_UNITTESTS_RUNTIME_BUNDLE_SMALLBUNDLE_H

#include "diffattn-c/Bundle.h"

#include <filesystem>
#include <string>
#include <vector>

namespace diffattn_test {

/// A bundle for AVX2 in a temporary folder, with attention (`attend`), and with
/// a product by a weight and a converted weight (`project`).
class SmallBundle {
public:
  SmallBundle();
  ~SmallBundle();
  const std::string &getPath() const { return path; }

private:
  std::filesystem::path folder;
  std::string path;
};

/// The outcome of calls: the status of the first that failed, and the numbers
/// of those before.
struct Outcome {
  int32_t status = 0;
  std::vector<float> numbers;
};

/// Opens a bundle; null if the outcome is an error.
diffattn_bundle *openBundle(const std::string &path, Outcome &outcome);

/// Attention over `tokens` tokens, from 1 to 16, then a product of as many
/// rows, whose array is strided; from nine on it is the runtime's. `threads` 0:
/// the runtime's default.
void compute(diffattn_bundle *bundle, int64_t tokens, int32_t threads,
             Outcome &outcome);

} // namespace diffattn_test

#endif // DIFFATTN_UNITTESTS_RUNTIME_BUNDLE_SMALLBUNDLE_H
