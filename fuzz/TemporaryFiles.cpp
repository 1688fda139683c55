//===- TemporaryFiles.cpp - bytes that have a path ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TemporaryFiles.h"
#include "Targets.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace mlir::diffattn::fuzz;
using llvm::StringRef;

static void writeAll(int descriptor, StringRef bytes) {
  require(::pwrite(descriptor, bytes.data(), bytes.size(), 0) ==
              static_cast<ssize_t>(bytes.size()),
          "expected to write a temporary file");
}

MemoryFile::MemoryFile() : descriptor(::memfd_create("input", MFD_CLOEXEC)) {
  require(descriptor >= 0, "expected memfd_create to give a file");
  path = "/proc/self/fd/" + std::to_string(descriptor);
}

void MemoryFile::write(StringRef bytes) {
  require(!::ftruncate(descriptor, 0), "expected to empty a file");
  writeAll(descriptor, bytes);
}

TemporaryFolder::TemporaryFolder() {
  require(!llvm::sys::fs::createUniqueDirectory("diffattn-fuzz", path),
          "expected to make a temporary folder");
}

TemporaryFolder::~TemporaryFolder() { llvm::sys::fs::remove_directories(path); }

std::string TemporaryFolder::write(StringRef name, StringRef bytes) {
  llvm::SmallString<128> file = path;
  llvm::sys::path::append(file, name);
  int descriptor =
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(descriptor >= 0, "expected to make " + file);
  writeAll(descriptor, bytes);
  ::close(descriptor);
  return file.str().str();
}
