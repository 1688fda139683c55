//===- CodeImage.cpp - compiled code in this process ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeImage.h"

#include "DiffAttn/Runtime/ABI/Table.h"
#include "DiffAttn/Runtime/Bundle/BundleFormat.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace diffattn_rt;

static Failure bundleFailure(const std::string &message) {
  return {ErrorClass::Bundle, message};
}

Failure diffattn_rt::checkElfHeader(std::string_view bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header ||
      memcmp(bytes.data(), ELFMAG, SELFMAG) != 0)
    return bundleFailure("expected a shared object (ELF), but got other bytes");
  memcpy(&header, bytes.data(), sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != EM_X86_64)
    return bundleFailure("expected code for x86_64, but got ELF machine " +
                         std::to_string(header.e_machine));
  if (header.e_type != ET_DYN)
    return bundleFailure("expected a shared object, but got ELF type " +
                         std::to_string(header.e_type));
  return {};
}

CodeImage::~CodeImage() {
  if (handle)
    dlclose(handle);
  if (memory >= 0)
    close(memory);
}

static bool writeAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

Failure CodeImage::load(std::string_view bytes) {
  if (Failure failure = checkElfHeader(bytes))
    return failure;
  memory = memfd_create(bundle::kLibrary, MFD_CLOEXEC);
  if (memory < 0 || !writeAll(memory, bytes))
    return bundleFailure(
        std::string("expected memory for the code, but got: ") +
        strerror(errno));
  // The file stays open as long as the image does: the linker identifies
  // objects by their paths, and a closed number would be used again.
  std::string path = "/proc/self/fd/" + std::to_string(memory);
  handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return bundleFailure(std::string("expected code that links, but got: ") +
                         dlerror());
  auto *needs =
      static_cast<const diffattn_rt_needs *>(find(bundle::kNeedsSymbol));
  auto init = reinterpret_cast<void (*)(const diffattn_rt_table *)>(
      find(bundle::kInitSymbol));
  if (!needs || !init)
    return bundleFailure(std::string("expected the symbol ") +
                         (needs ? bundle::kInitSymbol : bundle::kNeedsSymbol) +
                         ", but the code lacks it");
  const diffattn_rt_table *table = diffattn_rt_get_table();
  if (needs->version != table->version || needs->bytes > table->bytes)
    return bundleFailure(
        "expected code for version " + std::to_string(table->version) +
        " of the runtime, with a table of at most " +
        std::to_string(table->bytes) + " bytes, but got version " +
        std::to_string(needs->version) + " with " +
        std::to_string(needs->bytes) + " bytes");
  init(table);
  return {};
}

void *CodeImage::find(const char *symbol) const {
  return handle ? dlsym(handle, symbol) : nullptr;
}
