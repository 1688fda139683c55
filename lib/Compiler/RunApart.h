//===- RunApart.h - work in a process of its own ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_RUNAPART_H
#define DIFFATTN_LIB_COMPILER_RUNAPART_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/Error.h"

#include <cstdint>
#include <shared_mutex>
#include <string>

namespace mlir::diffattn {

/// A fork copies the locks that other threads hold, and not the threads that
/// would release them. So every caller of MLIR or LLVM holds one of these, and
/// `runApart` forks while there is none.
class NoForks {
public:
  NoForks();
  void pause() { lock.unlock(); }
  void resume() { lock.lock(); }

private:
  std::shared_lock<std::shared_mutex> lock;
};

/// Limits of a process: seconds of a CPU, bytes beyond those of the process
/// that started it, and seconds of the clock.
struct ApartLimits {
  int64_t seconds = 0, bytes = 0, elapsed = 0;
};

/// Runs `action` in a copy of this process that ends with it, and returns its
/// result. Damage that it does to memory stays there; a crash, or more time or
/// memory than `limits` allow, is an error. The caller holds no `NoForks`.
llvm::Expected<std::string> runApart(const ApartLimits &limits,
                                     llvm::function_ref<std::string()> action);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_RUNAPART_H
