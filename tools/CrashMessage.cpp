//===- CrashMessage.cpp - crashes of tools as errors ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CrashMessage.h"

#include "llvm/Support/Path.h"
#include "llvm/Support/PrettyStackTrace.h"
#include "llvm/Support/Signals.h"
#include "llvm/Support/raw_ostream.h"

#include <unistd.h>

/// Runs in the handler of the signal, on the thread that crashed, as LLVM's own
/// stack trace does. Nothing of the process is used after it.
static void printCrash(void *tool) {
  llvm::raw_ostream &os = llvm::errs();
  os << llvm::sys::path::filename(static_cast<const char *>(tool))
     << ": error: expected MLIR to report what it cannot take, but it "
        "crashed\n";
  for (auto *entry = static_cast<const llvm::PrettyStackTraceEntry *>(
           llvm::SavePrettyStackState());
       entry; entry = entry->getNextEntry()) {
    os << "  in ";
    entry->print(os);
  }
  os.flush();
  ::_exit(1);
}

void mlir::diffattn::reportCrashes(const char *tool) {
  // They are called in this order; what MLIR adds later is not reached.
  llvm::sys::PrintStackTraceOnErrorSignal(tool);
  llvm::sys::AddSignalHandler(printCrash, const_cast<char *>(tool));
}
