//===- InputFile.h - files that a user names --------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_INPUTFILE_H
#define DIFFATTN_COMPILER_INPUTFILE_H

#include "DiffAttn/Compiler/Error.h"

#include "llvm/Support/MemoryBuffer.h"

#include <memory>

namespace mlir::diffattn {

/// A module may hold gigabytes of constants; what is larger is a mistake, or a
/// pipe that never ends.
constexpr int64_t kMaxModuleBytes = int64_t(16) << 30;
/// config.json, generation_config.json or tokenizer.json; the largest known
/// have some tens of megabytes.
constexpr int64_t kMaxModelFileBytes = int64_t(1) << 30;

/// An open regular file.
struct RegularFile {
  RegularFile(int descriptor, int64_t bytes)
      : descriptor(descriptor), bytes(bytes) {}
  RegularFile(RegularFile &&other) noexcept
      : descriptor(std::exchange(other.descriptor, -1)), bytes(other.bytes) {}
  RegularFile &operator=(RegularFile &&) = delete;
  ~RegularFile();

  int descriptor;
  int64_t bytes;
};

/// Opens a regular file of at most `limit` bytes. A pipe or a device is an
/// error at once, and is never waited for.
llvm::Expected<RegularFile> openRegularFile(llvm::StringRef path, int64_t limit,
                                            diffattn_rt::ErrorClass errorClass);

/// The contents of such a file, mapped where that is cheaper.
llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
readRegularFile(llvm::StringRef path, int64_t limit,
                diffattn_rt::ErrorClass errorClass);

/// The contents of a file or pipe of at most `limit` bytes, of standard input
/// if `path` is "-". A device is an error, except a terminal.
llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
readFileOrPipe(llvm::StringRef path, int64_t limit,
               diffattn_rt::ErrorClass errorClass);

/// A module of MLIR as `readFileOrPipe` reads it; the error for a folder names
/// its contents and the command that takes them.
llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
readModuleFile(llvm::StringRef path);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_INPUTFILE_H
