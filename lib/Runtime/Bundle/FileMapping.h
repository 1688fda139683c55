//===- FileMapping.h - files as memory --------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_FILEMAPPING_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_FILEMAPPING_H

#include "DiffAttn/Runtime/Support/Failure.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace diffattn_rt {

/// A file, mapped and never changed.
class FileMapping {
public:
  FileMapping() = default;
  FileMapping(FileMapping &&other) noexcept
      : data(std::exchange(other.data, nullptr)),
        count(std::exchange(other.count, 0)) {}
  FileMapping(const FileMapping &) = delete;
  FileMapping &operator=(const FileMapping &) = delete;
  FileMapping &operator=(FileMapping &&) = delete;
  ~FileMapping();

  /// Maps a regular file. A failure is of class `errorClass` and names the
  /// file.
  Failure map(const std::string &path, ErrorClass errorClass);
  std::string_view bytes() const { return {data, count}; }

private:
  const char *data = nullptr; // null: an empty file
  size_t count = 0;
};

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_FILEMAPPING_H
