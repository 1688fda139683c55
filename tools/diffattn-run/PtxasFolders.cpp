//===- PtxasFolders.cpp - where an assembler may lie ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PtxasFolders.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cstdlib>

using namespace mlir::diffattn;
namespace path = llvm::sys::path;

static std::string getEnvironment() {
  if (const char *own = std::getenv("DIFFATTN_VENV"); own && *own)
    return own;
  std::string tool = llvm::sys::fs::getMainExecutable(
      nullptr, reinterpret_cast<void *>(&getEnvironment));
  // <root>/build/bin/diffattn-run
  llvm::StringRef root =
      path::parent_path(path::parent_path(path::parent_path(tool)));
  return (root + "/.venv").str();
}

std::vector<std::string> mlir::diffattn::getPackageFolders() {
  std::vector<std::string> folders;
  const std::string lib = getEnvironment() + "/lib";
  std::error_code error;
  for (llvm::sys::fs::directory_iterator it(lib, error), end;
       it != end && !error; it.increment(error))
    if (path::filename(it->path()).starts_with("python3"))
      folders.push_back(it->path() + "/site-packages");
  if (folders.empty())
    folders.push_back(lib + "/python3*/site-packages");
  return folders;
}

std::vector<std::string> mlir::diffattn::getPtxasFolders() {
  std::vector<std::string> folders;
  if (const char *toolkit = std::getenv("CUDA_HOME"); toolkit && *toolkit)
    folders.push_back(std::string(toolkit) + "/bin");
  folders.push_back("/usr/local/cuda/bin");
  for (const std::string &packages : getPackageFolders())
    folders.push_back(packages + "/nvidia/cu13/bin");
  return folders;
}
