//===- DynamicLibrary.h - Libraries opened at run time ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_SUPPORT_DYNAMICLIBRARY_H
#define DIFFATTN_LIB_RUNTIME_SUPPORT_DYNAMICLIBRARY_H

#include <string>
#include <vector>

namespace diffattn_rt {

/// A library that stays open: threads and state that it has would not survive
/// its end.
class DynamicLibrary {
public:
  /// Opens the first of `paths` that can be opened. `onlyLoaded`: takes those
  /// alone that the process has already. Appends each path that failed, with
  /// the reason, to `tried`.
  bool open(const std::vector<std::string> &paths, bool onlyLoaded,
            std::string &tried);

  /// The function called `name`, or null.
  void *find(const char *name) const;
  /// The file that was opened.
  const std::string &getPath() const { return path; }

private:
  void *handle = nullptr;
  std::string path;
};

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_SUPPORT_DYNAMICLIBRARY_H
