//===- CacheFolder.cpp - the files of a cache -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CacheFolder.h"

#include "DiffAttn/Compiler/WriteFile.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
namespace fs = llvm::sys::fs;

static constexpr StringRef kSuffix = ".diffattn";
static constexpr size_t kKeyDigits = 64;
/// No writer takes so long.
static constexpr int64_t kStaleSeconds = 3600;
/// The file with the bytes of all records, and the number of records written
/// since they were counted.
static constexpr StringRef kTotalName = "total";
/// Records that are written at most before all are counted again.
static constexpr int64_t kWritesBetweenCounts = 1024;

static std::error_code lastError() {
  return std::error_code(errno, std::generic_category());
}

/// Whether only this user can have written what `status` is of.
static bool isPrivate(const struct stat &status) {
  return status.st_uid == ::geteuid() && !(status.st_mode & 022);
}

std::error_code mlir::diffattn::makePrivateFolder(StringRef directory) {
  if (std::error_code ec = fs::create_directories(
          directory, /*IgnoreExisting=*/true, fs::owner_all))
    return ec;
  struct stat status;
  if (::stat(directory.str().c_str(), &status))
    return lastError();
  if (!S_ISDIR(status.st_mode))
    return std::make_error_code(std::errc::not_a_directory);
  if (!isPrivate(status))
    return std::make_error_code(std::errc::permission_denied);
  return {};
}

std::string mlir::diffattn::getCacheFilePath(StringRef directory,
                                             StringRef key) {
  llvm::SmallString<128> path(directory);
  llvm::sys::path::append(path, key + kSuffix);
  return path.str().str();
}

std::unique_ptr<llvm::MemoryBuffer>
mlir::diffattn::readCacheFile(StringRef path) {
  // A pipe would wait for a writer, and a link may lead out of the folder.
  const int file = ::open(path.str().c_str(),
                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0)
    return nullptr;
  llvm::scope_exit close([&] { ::close(file); });
  struct stat status;
  if (::fstat(file, &status) || !S_ISREG(status.st_mode) || !isPrivate(status))
    return nullptr;
  // Read, not mapped: a mapping ends the process if the file is cut.
  auto buffer = llvm::MemoryBuffer::getOpenFile(
      file, path, static_cast<uint64_t>(status.st_size),
      /*RequiresNullTerminator=*/false, /*IsVolatile=*/true);
  if (!buffer)
    return nullptr;
  (void)::futimens(file, nullptr); // only a matter of which goes first
  return std::move(*buffer);
}

llvm::Error mlir::diffattn::writeCacheFile(StringRef path, StringRef contents) {
  struct stat status;
  if (!::lstat(path.str().c_str(), &status) && !S_ISREG(status.st_mode))
    return makeError(ErrorClass::Output,
                     path + ": expected a regular file or none, but got "
                            "something else under its name");
  return replaceFile(path, {contents}, /*mode=*/0600);
}

/// Calls `visit` for each regular file in the folder that is this user's.
static llvm::Error
forEachFile(StringRef directory,
            llvm::function_ref<void(const std::string &path, StringRef name,
                                    const struct stat &status)>
                visit) {
  std::error_code ec;
  struct stat status;
  for (fs::directory_iterator it(directory, ec, /*follow_symlinks=*/false), end;
       it != end && !ec; it.increment(ec))
    // Files may go meanwhile.
    if (!::lstat(it->path().c_str(), &status) && S_ISREG(status.st_mode) &&
        isPrivate(status))
      visit(it->path(), llvm::sys::path::filename(it->path()), status);
  if (ec && ec != std::errc::no_such_file_or_directory)
    return makeError(
        ErrorClass::Output,
        directory + ": expected a readable folder, but got: " + ec.message());
  return llvm::Error::success();
}

static bool isRecordName(StringRef name) {
  return name.consume_back(kSuffix) && name.size() == kKeyDigits &&
         llvm::all_of(name, llvm::isHexDigit);
}

llvm::Expected<std::vector<CacheFile>>
mlir::diffattn::listCacheFiles(StringRef directory) {
  struct Use {
    CacheFile file;
    timespec used;
  };
  std::vector<Use> uses;
  const int64_t now = ::time(nullptr);
  auto visit = [&](const std::string &path, StringRef name,
                   const struct stat &status) {
    if (!isRecordName(name))
      return;
    CacheFile file{path, name.drop_back(kSuffix.size()).str(), status.st_size,
                   std::max<int64_t>(now - status.st_mtim.tv_sec, 0)};
    uses.push_back({std::move(file), status.st_mtim});
  };
  if (llvm::Error error = forEachFile(directory, visit))
    return error;
  llvm::sort(uses, [](const Use &a, const Use &b) {
    return std::tie(b.used.tv_sec, b.used.tv_nsec, a.file.key) <
           std::tie(a.used.tv_sec, a.used.tv_nsec, b.file.key);
  });
  std::vector<CacheFile> files;
  for (Use &one : uses)
    files.push_back(std::move(one.file));
  return files;
}

static std::string getTotalPath(StringRef directory) {
  llvm::SmallString<128> path(directory);
  llvm::sys::path::append(path, kTotalName);
  return path.str().str();
}

/// Where it cannot be written the next process counts.
static void writeTotal(StringRef directory, int64_t bytes, int64_t writes) {
  llvm::consumeError(
      writeCacheFile(getTotalPath(directory),
                     llvm::Twine(bytes).str() + " " + std::to_string(writes)));
}

llvm::Error mlir::diffattn::trimCacheFolder(StringRef directory,
                                            int64_t maxBytes) {
  const int64_t now = ::time(nullptr);
  auto removeStale = [&](const std::string &path, StringRef name,
                         const struct stat &status) {
    if (isPartOfFile(name) && now - status.st_mtim.tv_sec > kStaleSeconds)
      ::unlink(path.c_str());
  };
  if (llvm::Error error = forEachFile(directory, removeStale))
    return error;
  auto files = listCacheFiles(directory);
  if (!files)
    return files.takeError();
  int64_t all = 0, kept = 0;
  for (const CacheFile &file : *files)
    all += file.bytes;
  const int64_t most = all > maxBytes ? maxBytes - maxBytes / 8 : maxBytes;
  bool isFull = false;
  for (const CacheFile &file : *files) {
    // The last one may be larger than what is left of the others.
    isFull |= kept + file.bytes > (kept ? most : maxBytes);
    if (!isFull)
      kept += file.bytes;
    else if (::unlink(file.path.c_str()) && errno != ENOENT)
      return makeError(ErrorClass::Output,
                       file.path + ": expected to remove the file, but got: " +
                           lastError().message());
  }
  writeTotal(directory, kept, /*writes=*/0);
  return llvm::Error::success();
}

llvm::Error mlir::diffattn::makeRoomAfter(StringRef directory, int64_t bytes,
                                          int64_t maxBytes) {
  int64_t all = 0, writes = 0;
  auto total = readCacheFile(getTotalPath(directory));
  StringRef text = total ? total->getBuffer() : "";
  const bool isKnown = !text.consumeInteger(10, all) &&
                       text.consume_front(" ") &&
                       !text.consumeInteger(10, writes) && text.empty() &&
                       all >= 0 && writes >= 0;
  if (!isKnown || all > maxBytes - bytes || writes >= kWritesBetweenCounts)
    return trimCacheFolder(directory, maxBytes);
  writeTotal(directory, all + bytes, writes + 1);
  return llvm::Error::success();
}
