//===- WriteFile.h - files that are written whole ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_WRITEFILE_H
#define DIFFATTN_COMPILER_WRITEFILE_H

#include "DiffAttn/Compiler/Error.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

#include <signal.h>
#include <string>

namespace mlir::diffattn {

/// A file is a pipe whose reader is gone: an error of class output. A program
/// ends for it without a message.
class ReaderHasGoneError
    : public llvm::ErrorInfo<ReaderHasGoneError, ExecutionError> {
public:
  static char ID;
  explicit ReaderHasGoneError(std::string message)
      : ErrorInfo(diffattn_rt::ErrorClass::Output, std::move(message)) {}
};

/// While one lives, a write on this thread into a pipe without a reader or
/// beyond a limit of file sizes fails with an error. Otherwise SIGPIPE or
/// SIGXFSZ would end the process, unless it ignores them.
class WriteErrorsScope {
public:
  WriteErrorsScope();
  ~WriteErrorsScope();
  WriteErrorsScope(const WriteErrorsScope &) = delete;
  WriteErrorsScope &operator=(const WriteErrorsScope &) = delete;

private:
  sigset_t before, pending;
};

/// Writes `contents` to `path`; "-" is standard output. A regular file, or the
/// one that a link leads to, is replaced in one step: it is whole or as it was
/// before, and keeps its permissions. Pipes and devices are written to.
llvm::Error writeFile(llvm::StringRef path,
                      llvm::ArrayRef<llvm::StringRef> contents);

/// Writes a file under another name in the folder of `path` and moves it there.
/// What `path` was before, also a link or a pipe, is gone then.
llvm::Error replaceFile(llvm::StringRef path,
                        llvm::ArrayRef<llvm::StringRef> contents,
                        unsigned mode);

/// `prefix`, eight random digits and `suffix`: the name of a file or folder
/// that is not there yet. The folder that it is for is none of its parts,
/// because llvm::sys::fs::createUniquePath takes every '%' of a path for a
/// digit.
std::string makeUniqueName(const llvm::Twine &prefix,
                           const llvm::Twine &suffix);

/// True for the names that `replaceFile` writes under. A killed process leaves
/// them.
bool isPartOfFile(llvm::StringRef name);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_WRITEFILE_H
