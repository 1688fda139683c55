//===- WriteFile.cpp - files that are written whole -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/WriteFile.h"
#include "DiffAttn/Compiler/UnfinishedFiles.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cerrno>
#include <climits>
#include <ctime>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::ArrayRef;
using llvm::StringRef;
namespace fs = llvm::sys::fs;
namespace path = llvm::sys::path;

static constexpr StringRef kPartPrefix = ".diffattn-", kPartSuffix = ".part";

static sigset_t writeSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  sigaddset(&set, SIGXFSZ);
  return set;
}

WriteErrorsScope::WriteErrorsScope() {
  const sigset_t set = writeSignals();
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &set, &before);
}

WriteErrorsScope::~WriteErrorsScope() {
  const int error = errno;
  // Both are sent to the thread that writes. Signals that were pending before
  // are left to the caller.
  sigset_t ours = writeSignals();
  for (int signal : {SIGPIPE, SIGXFSZ})
    if (sigismember(&pending, signal))
      sigdelset(&ours, signal);
  const timespec now = {};
  while (sigtimedwait(&ours, nullptr, &now) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
}

char ReaderHasGoneError::ID = 0;

static llvm::Error fail(StringRef file, int code) {
  std::string message =
      (file + ": expected to write the file, but got: " +
       std::error_code(code, std::generic_category()).message())
          .str();
  if (code == EPIPE)
    return llvm::make_error<ReaderHasGoneError>(
        printableMessage(ErrorClass::Output, message));
  return makeError(ErrorClass::Output, message);
}

/// Returns 0 or an error number.
static int writeAll(int file, ArrayRef<StringRef> contents) {
  for (StringRef part : contents)
    while (!part.empty()) {
      const ssize_t done =
          ::write(file, part.data(), std::min<size_t>(part.size(), 1 << 30));
      if (done < 0 && errno == EINTR)
        continue;
      if (done <= 0)
        return done ? errno : EIO;
      part = part.drop_front(done);
    }
  return 0;
}

/// Writes to what `file` is, as a shell's >> does.
static int writeThrough(StringRef file, ArrayRef<StringRef> contents) {
  const int out =
      ::open(file.str().c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
  if (out < 0)
    return errno;
  int code = writeAll(out, contents);
  if (::close(out) && !code)
    code = errno;
  return code;
}

std::string mlir::diffattn::makeUniqueName(const llvm::Twine &prefix,
                                           const llvm::Twine &suffix) {
  llvm::SmallString<8> digits;
  fs::createUniquePath("%%%%%%%%", digits, /*MakeAbsolute=*/false);
  return (prefix + digits + suffix).str();
}

static int replace(StringRef file, ArrayRef<StringRef> contents,
                   unsigned mode) {
  // A name of its own length, as `file` may have the longest that there is.
  llvm::SmallString<128> part;
  int out;
  std::optional<UnfinishedFile> unfinished;
  do { // named before it is there, so that no interrupt can miss it
    part = path::parent_path(file);
    path::append(part, makeUniqueName(kPartPrefix, kPartSuffix));
    unfinished.emplace(part);
    out = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (out < 0 && errno == EEXIST);
  if (out < 0)
    return errno;
  int code = writeAll(out, contents);
  // Some file systems say only now that there is no space.
  if (!code && ::fsync(out) && errno != EINVAL)
    code = errno;
  if (::close(out) && !code)
    code = errno;
  if (!code && ::rename(part.c_str(), file.str().c_str()))
    code = errno;
  if (code)
    ::unlink(part.c_str());
  return code;
}

/// Where a chain of links ends, and what is there. A link in /proc leads to an
/// open file of a process, which has no name to be replaced under.
static int followLinks(std::string &file, struct stat &status, bool &exists,
                       bool &isOpenFile) {
  constexpr int kMaxLinks = 40; // as Linux has it
  isOpenFile = false;
  for (int links = 0; links <= kMaxLinks; ++links) {
    exists = !::lstat(file.c_str(), &status);
    if (!exists)
      return errno == ENOENT ? 0 : errno;
    if (!S_ISLNK(status.st_mode))
      return 0;
    StringRef parent = path::parent_path(file);
    struct statfs system;
    if (::statfs(parent.empty() ? "." : parent.str().c_str(), &system))
      return errno;
    if (system.f_type == PROC_SUPER_MAGIC) {
      isOpenFile = true;
      return 0;
    }
    char target[PATH_MAX];
    const ssize_t bytes = ::readlink(file.c_str(), target, sizeof target);
    if (bytes < 0)
      return errno;
    llvm::SmallString<128> next;
    if (target[0] != '/')
      next = parent;
    path::append(next, StringRef(target, bytes));
    file = next.str().str();
  }
  return ELOOP;
}

llvm::Error mlir::diffattn::writeFile(StringRef file,
                                      ArrayRef<StringRef> contents) {
  WriteErrorsScope scope;
  int code = 0;
  if (file == "-") {
    code = writeAll(STDOUT_FILENO, contents);
    return code ? fail("standard output", code) : llvm::Error::success();
  }
  std::string place = file.str();
  struct stat status;
  bool exists, isOpenFile;
  code = followLinks(place, status, exists, isOpenFile);
  if (code)
    return fail(file, code);
  if (isOpenFile || (exists && !S_ISREG(status.st_mode)))
    code = writeThrough(file, contents);
  else
    code =
        replace(place, contents,
                exists ? status.st_mode & 0777 : fs::all_read | fs::all_write);
  return code ? fail(file, code) : llvm::Error::success();
}

llvm::Error mlir::diffattn::replaceFile(StringRef file,
                                        ArrayRef<StringRef> contents,
                                        unsigned mode) {
  WriteErrorsScope scope;
  const int code = replace(file, contents, mode);
  return code ? fail(file, code) : llvm::Error::success();
}

bool mlir::diffattn::isPartOfFile(StringRef name) {
  return name.starts_with(kPartPrefix) && name.ends_with(kPartSuffix);
}
