//===- BuildId.cpp - which build this is ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuildId.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

#include <cstring>
#include <link.h>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::StringRef;

std::string mlir::diffattn::getBuildId() {
  struct Search {
    uintptr_t address;
    std::string id;
  } search{reinterpret_cast<uintptr_t>(&getBuildId), ""};
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *data) {
        auto &search = *static_cast<Search *>(data);
        bool holds = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) &header = info->dlpi_phdr[i];
          uintptr_t start = info->dlpi_addr + header.p_vaddr;
          holds |= header.p_type == PT_LOAD && search.address >= start &&
                   search.address < start + header.p_memsz;
        }
        if (!holds)
          return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) &header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE)
            continue;
          auto *at =
              reinterpret_cast<const char *>(info->dlpi_addr + header.p_vaddr);
          const char *end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof note);
            const char *name = at + sizeof note;
            const char *id = name + llvm::alignTo(note.n_namesz, 4);
            if (note.n_type == 3 /*NT_GNU_BUILD_ID*/ && note.n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0)
              search.id = llvm::toHex(StringRef(id, note.n_descsz), true);
            at = id + llvm::alignTo(note.n_descsz, 4);
          }
        }
        return 1;
      },
      &search);
  return search.id;
}
