//===- CrashGuard.cpp - crashes of upstream as errors ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CrashGuard.h"

#include "llvm/Support/CrashRecoveryContext.h"

#include <mutex>

namespace {
/// The handlers belong to the process: the first one to need them installs
/// them, the last one takes them away.
class SharedHandlers {
public:
  SharedHandlers() {
    std::lock_guard<std::mutex> lock(mutex);
    if (users++ == 0)
      llvm::CrashRecoveryContext::Enable();
  }
  ~SharedHandlers() {
    std::lock_guard<std::mutex> lock(mutex);
    if (--users == 0)
      llvm::CrashRecoveryContext::Disable();
  }
  SharedHandlers(const SharedHandlers &) = delete;
  SharedHandlers &operator=(const SharedHandlers &) = delete;

private:
  static std::mutex mutex;
  static int users;
};

std::mutex SharedHandlers::mutex;
int SharedHandlers::users = 0;
} // namespace

bool mlir::diffattn::runGuarded(llvm::function_ref<void()> action) {
  SharedHandlers handlers;
  llvm::CrashRecoveryContext context;
  return context.RunSafely(action);
}
