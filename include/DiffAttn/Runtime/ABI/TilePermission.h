//===- TilePermission.h - the system's leave to use tiles -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_ABI_TILEPERMISSION_H
#define DIFFATTN_RUNTIME_ABI_TILEPERMISSION_H

#include <cerrno>
#include <sys/syscall.h>
#include <unistd.h>

namespace diffattn_rt {

/// Requests from Linux, once, that this process may use the registers of AMX's
/// tiles, which are large: 0, or the number of the error. ENOTSUP and EINVAL:
/// the kernel or the CPU has none; ENOSPC: an alternate signal stack is too
/// small for them; EPERM: a filter of system calls forbids it. (Linux,
/// Documentation/arch/x86/xstate.rst)
inline int requestTiles() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  static const int result = [] {
    constexpr int requestPermission = 0x1023, tileData = 18;
    return syscall(SYS_arch_prctl, requestPermission, tileData) ? errno : 0;
  }();
  return result;
#else
  return ENOTSUP;
#endif
}

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_ABI_TILEPERMISSION_H
