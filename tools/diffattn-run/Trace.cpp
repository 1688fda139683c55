//===- Trace.cpp - a trace of a run ---------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Trace.h"

#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Compiler/WriteFile.h"
#include "DiffAttn/Runtime/ABI/Trace.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;

/// Fails if the file cannot be written, as far as its permissions and those of
/// its folder say.
static llvm::Error checkWritable(llvm::StringRef path) {
  if (path == "-")
    return llvm::Error::success();
  llvm::StringRef place = path;
  if (!llvm::sys::fs::exists(path)) {
    place = llvm::sys::path::parent_path(path);
    if (place.empty())
      place = ".";
  }
  std::error_code problem =
      llvm::sys::fs::access(place, llvm::sys::fs::AccessMode::Write);
  if (!problem && llvm::sys::fs::is_directory(path))
    problem = std::make_error_code(std::errc::is_a_directory);
  if (!problem)
    return llvm::Error::success();
  return makeError(
      ErrorClass::Output,
      "--trace: " + path +
          ": expected to write the file, but got: " + problem.message());
}

llvm::Error mlir::diffattn::recordTrace(llvm::function_ref<llvm::Error()> run,
                                        std::string &text) {
  diffattn_rt_trace_start();
  llvm::Error error = run();
  diffattn_rt_trace_stop();
  diffattn_rt_trace_write(
      [](void *to, const char *part, int64_t bytes) {
        static_cast<std::string *>(to)->append(part, bytes);
      },
      &text);
  return error;
}

llvm::Expected<bool>
mlir::diffattn::runTraced(llvm::StringRef path,
                          llvm::function_ref<llvm::Expected<bool>()> run) {
  if (path.empty())
    return run();
  if (llvm::Error error = checkWritable(path))
    return error;
  bool matches = false;
  std::string text;
  llvm::Error failure = recordTrace(
      [&]() -> llvm::Error {
        auto result = run();
        if (!result)
          return result.takeError();
        matches = *result;
        return llvm::Error::success();
      },
      text);
  llvm::Error error = writeFile(path, {text});
  // The first of two errors is the one to report.
  if (failure) {
    llvm::consumeError(std::move(error));
    return failure;
  }
  if (error)
    return error;
  return matches;
}
