//===- FileMapping.cpp - files as memory ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "FileMapping.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace diffattn_rt;

FileMapping::~FileMapping() {
  if (data)
    munmap(const_cast<char *>(data), count);
}

Failure FileMapping::map(const std::string &path, ErrorClass errorClass) {
  auto fail = [&](const std::string &message) {
    return Failure(errorClass, path + ": " + message);
  };
  // Without O_NONBLOCK a pipe under the file's name would be waited for.
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return fail(std::string("expected a readable file, but got: ") +
                strerror(errno));
  struct stat status;
  void *mapped = nullptr;
  Failure failure;
  if (fstat(file, &status)) {
    failure = fail(std::string("expected a readable file, but got: ") +
                   strerror(errno));
  } else if (!S_ISREG(status.st_mode)) {
    failure = fail("expected a regular file");
  } else if (status.st_size > 0) {
    mapped =
        mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, /*at=*/0);
    if (mapped == MAP_FAILED)
      failure = fail(std::string("expected to map the file, but got: ") +
                     strerror(errno));
  }
  close(file);
  if (failure)
    return failure;
  data = static_cast<const char *>(mapped);
  count = static_cast<size_t>(status.st_size);
  return {};
}
