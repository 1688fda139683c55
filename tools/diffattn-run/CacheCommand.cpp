//===- CacheCommand.cpp - diffattn-run cache ls|clear ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CacheCommand.h"

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Runtime/Support/Printable.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>
#include <pwd.h>
#include <unistd.h>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

static std::string getAbsolute(const char *path) {
  return path && *path == '/' ? path : "";
}

/// $HOME, else that of the list of users; empty if neither is absolute.
static std::string getHome() {
  std::string home = getAbsolute(std::getenv("HOME"));
  if (!home.empty())
    return home;
  const passwd *user = ::getpwuid(::getuid());
  return user ? getAbsolute(user->pw_dir) : "";
}

std::string diffattn::getCacheFolder(const Options &options) {
  if (!options.cacheDir.empty())
    return options.cacheDir;
  if (const char *own = std::getenv("DIFFATTN_CACHE_DIR"); own && *own)
    return own;
  const std::string base = getAbsolute(std::getenv("XDG_CACHE_HOME"));
  llvm::SmallString<128> path(base);
  if (base.empty()) {
    path = getHome();
    if (path.empty())
      return "";
    llvm::sys::path::append(path, ".cache");
  }
  llvm::sys::path::append(path, "diffattn");
  return path.str().str();
}

llvm::Expected<int64_t> diffattn::getCacheLimit(const Options &options) {
  const char *own = std::getenv("DIFFATTN_CACHE_LIMIT");
  if (wasGiven(options, "cache_limit") || !own || !*own)
    return options.caller.cacheMiB << 20;
  CallerOptions chosen;
  if (llvm::Error error =
          setOption(chosen, "cache_limit", own, "DIFFATTN_CACHE_LIMIT"))
    return error;
  return chosen.cacheMiB << 20;
}

llvm::Error diffattn::runCacheCommand(const Options &options) {
  const std::string folder = getCacheFolder(options);
  if (folder.empty())
    return makeError(ErrorClass::Usage, kNoCacheFolder);
  ObjectCache cache(folder);
  if (options.positional.size() != 2 ||
      (options.positional[1] != "ls" && options.positional[1] != "clear"))
    return makeError(ErrorClass::Usage, "expected cache ls or cache clear");
  if (options.positional[1] == "clear") {
    auto count = cache.clear();
    if (!count)
      return count.takeError();
    llvm::outs() << "removed " << *count << " from " << printable(folder)
                 << "\n";
    return llvm::Error::success();
  }
  auto entries = cache.list();
  if (!entries)
    return entries.takeError();
  int64_t total = 0;
  for (const ObjectCache::Entry &entry : *entries) {
    llvm::outs() << llvm::StringRef(entry.key).take_front(12) << "  "
                 << llvm::format("%8.1f KiB  %6ld min  ",
                                 static_cast<double>(entry.bytes) / 1024,
                                 static_cast<long>(entry.secondsOld / 60))
                 << printable(entry.description) << "\n";
    total += entry.bytes;
  }
  llvm::outs() << entries->size() << " in " << printable(folder) << ", "
               << llvm::format("%.1f MiB",
                               static_cast<double>(total) / (1 << 20))
               << "\n";
  return llvm::Error::success();
}
