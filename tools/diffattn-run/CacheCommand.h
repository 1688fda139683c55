//===- CacheCommand.h - diffattn-run cache ls|clear -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_TOOLS_DIFFATTN_RUN_CACHECOMMAND_H
#define DIFFATTN_TOOLS_DIFFATTN_RUN_CACHECOMMAND_H

#include "Options.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

namespace mlir::diffattn {

/// Where compiled code is kept: --cache-dir, else $DIFFATTN_CACHE_DIR, else
/// `diffattn` in $XDG_CACHE_HOME or in ~/.cache. A relative one of these two is
/// none: it would be another folder in each place that the tool is started in,
/// and hold code of whoever filled that place. Empty if there is no folder.
std::string getCacheFolder(const Options &options);

/// The error message for an empty folder.
inline constexpr llvm::StringLiteral kNoCacheFolder =
    "expected --cache-dir, DIFFATTN_CACHE_DIR, or an absolute XDG_CACHE_HOME "
    "or home directory";

/// How many bytes of it: --cache-limit, else $DIFFATTN_CACHE_LIMIT, both in
/// MiB, else the cache's default.
llvm::Expected<int64_t> getCacheLimit(const Options &options);

/// Lists what is kept on standard output, or removes it, as the words after
/// `cache` say.
llvm::Error runCacheCommand(const Options &options);

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_DIFFATTN_RUN_CACHECOMMAND_H
