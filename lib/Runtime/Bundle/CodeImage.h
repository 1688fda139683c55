//===- CodeImage.h - compiled code in this process --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_CODEIMAGE_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_CODEIMAGE_H

#include "DiffAttn/Runtime/Support/Failure.h"

#include <string_view>

namespace diffattn_rt {

/// A shared object of compiled code, linked into this process. It is loaded
/// from a copy in memory: the checked bytes run, whatever happens to the file,
/// and each image has a table of weights of its own, where the system would
/// give one object for one file.
class CodeImage {
public:
  CodeImage() = default;
  CodeImage(const CodeImage &) = delete;
  CodeImage &operator=(const CodeImage &) = delete;
  ~CodeImage();

  /// Links `bytes`, and passes it the runtime's table. Failures are of class
  /// Bundle.
  Failure load(std::string_view bytes);
  /// The address of a symbol, or null.
  void *find(const char *symbol) const;

private:
  void *handle = nullptr;
  int memory = -1;
};

/// Checks that `bytes` begin as a shared object for this machine does.
Failure checkElfHeader(std::string_view bytes);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_CODEIMAGE_H
