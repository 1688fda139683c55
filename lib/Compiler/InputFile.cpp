//===- InputFile.cpp - files that a user names ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/InputFile.h"
#include "ForeignInput.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;

RegularFile::~RegularFile() {
  if (descriptor >= 0)
    ::close(descriptor);
}

static llvm::Error unreadable(StringRef path, ErrorClass errorClass, int code) {
  return makeError(errorClass, path + ": expected a readable file, but got: " +
                                   std::generic_category().message(code));
}

static const char *describeKind(mode_t mode) {
  if (S_ISDIR(mode))
    return "a folder";
  if (S_ISFIFO(mode))
    return "a pipe";
  if (S_ISSOCK(mode))
    return "a socket";
  return "a device";
}

static llvm::Error checkLimit(StringRef path, int64_t bytes, int64_t limit,
                              ErrorClass errorClass) {
  if (bytes <= limit)
    return llvm::Error::success();
  return makeError(errorClass, path + ": expected at most " + Twine(limit) +
                                   " bytes, but got " + Twine(bytes));
}

/// The file that was opened as `descriptor`, or could not be, and what it is.
static llvm::Expected<RegularFile> holdOpenFile(StringRef path, int descriptor,
                                                struct stat &status,
                                                ErrorClass errorClass) {
  if (descriptor < 0)
    return unreadable(path, errorClass, errno);
  RegularFile file(descriptor, 0);
  if (::fstat(descriptor, &status))
    return unreadable(path, errorClass, errno);
  return file;
}

llvm::Expected<RegularFile>
mlir::diffattn::openRegularFile(StringRef path, int64_t limit,
                                ErrorClass errorClass) {
  // Without O_NONBLOCK the other end of a pipe would be waited for.
  int descriptor =
      ::open(path.str().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status;
  auto file = holdOpenFile(path, descriptor, status, errorClass);
  if (!file)
    return file.takeError();
  if (!S_ISREG(status.st_mode))
    return makeError(errorClass, path + ": expected a regular file, but got " +
                                     describeKind(status.st_mode));
  file->bytes = status.st_size;
  if (llvm::Error error = checkLimit(path, file->bytes, limit, errorClass))
    return error;
  return file;
}

static llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
readOpenFile(StringRef path, int descriptor, int64_t bytes,
             ErrorClass errorClass) {
  auto buffer = llvm::MemoryBuffer::getOpenFile(
      descriptor, path, bytes, /*RequiresNullTerminator=*/false);
  if (!buffer)
    return unreadable(path, errorClass, buffer.getError().value());
  return std::move(*buffer);
}

llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
mlir::diffattn::readRegularFile(StringRef path, int64_t limit,
                                ErrorClass errorClass) {
  llvm::Expected<RegularFile> file = openRegularFile(path, limit, errorClass);
  if (!file)
    return file.takeError();
  return readOpenFile(path, file->descriptor, file->bytes, errorClass);
}

/// All that comes out of a pipe.
static llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
readPipe(StringRef path, int descriptor, int64_t limit, ErrorClass errorClass) {
  constexpr size_t kStep = size_t(1) << 20;
  std::string text;
  size_t size = 0;
  while (true) {
    if (size == text.size())
      text.resize(size + std::max(kStep, size / 2));
    ssize_t got = ::read(descriptor, text.data() + size, text.size() - size);
    if (got < 0 && errno != EINTR)
      return unreadable(path, errorClass, errno);
    size += static_cast<size_t>(std::max<ssize_t>(got, 0));
    if (got == 0)
      return llvm::MemoryBuffer::getMemBufferCopy(
          StringRef(text).take_front(size), path);
    if (static_cast<int64_t>(size) > limit)
      return makeError(errorClass, path + ": expected at most " + Twine(limit) +
                                       " bytes, but more came");
  }
}

llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
mlir::diffattn::readFileOrPipe(StringRef path, int64_t limit,
                               ErrorClass errorClass) {
  const bool standardInput = path == "-";
  int descriptor = standardInput ? ::dup(STDIN_FILENO)
                                 : ::open(path.str().c_str(),
                                          O_RDONLY | O_CLOEXEC | O_NOCTTY);
  struct stat status;
  auto file = holdOpenFile(path, descriptor, status, errorClass);
  if (!file)
    return file.takeError();
  const bool isTerminal = S_ISCHR(status.st_mode) && ::isatty(descriptor);
  if (S_ISDIR(status.st_mode) || S_ISBLK(status.st_mode) ||
      (S_ISCHR(status.st_mode) && !isTerminal)) // /dev/zero never ends
    return makeError(errorClass, path +
                                     ": expected a file or a pipe, but got " +
                                     describeKind(status.st_mode));
  // Standard input may have been read in part; then the rest counts.
  if (!S_ISREG(status.st_mode) || standardInput)
    return readPipe(path, descriptor, limit, errorClass);
  if (llvm::Error error = checkLimit(path, status.st_size, limit, errorClass))
    return error;
  return readOpenFile(path, descriptor, status.st_size, errorClass);
}

llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
mlir::diffattn::readModuleFile(StringRef path) {
  if (std::string advice = adviseOnModuleFolder(path); !advice.empty())
    return makeError(ErrorClass::Usage,
                     path + ": expected a module of MLIR, but got " + advice);
  return readFileOrPipe(path, kMaxModuleBytes, ErrorClass::Usage);
}
