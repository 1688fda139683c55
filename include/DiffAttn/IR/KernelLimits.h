//===- KernelLimits.h - limits of attention kernels -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_KERNELLIMITS_H
#define DIFFATTN_IR_KERNELLIMITS_H

#include <cstdint>

namespace mlir::diffattn {

/// The widest head, in elements, that a kernel of a CPU takes. Models have
/// heads of 32 to 512. A kernel for 4096 takes 10 s to compile, one for 16384
/// minutes.
constexpr int64_t kMaxHeadDim = 1024;

} // namespace mlir::diffattn

#endif // DIFFATTN_IR_KERNELLIMITS_H
