//===- Roof.h - what this machine reaches -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_ROOF_H
#define DIFFATTN_COMPILER_ROOF_H

#include "llvm/Support/Error.h"

#include <cstdint>
#include <optional>

namespace mlir::diffattn {

/// Rates that `threads` threads of this machine reach together.
struct Roof {
  int64_t threads = 1;
  /// 10^9 operations a second of fused multiply-adds of f32, an FMA being two.
  double gflops = 0;
  /// 10^9 operations a second of products of bf16: `gflops` twice where the CPU
  /// has instructions for their sums; none if those are tiles of AMX, which no
  /// probe measures.
  std::optional<double> bf16Gflops;
  /// 10^9 bytes a second that are read from memory.
  double gbs = 0;
};

/// How it is measured: bytes that are read, more than caches hold, and seconds
/// for each of the two.
struct RoofProbes {
  int64_t bytes = int64_t(1) << 28;
  double seconds = 0.15;
};

/// Measures multiply-adds and reading of memory on so many threads at a time:
/// the best of what they reach.
llvm::Expected<Roof> measureRoof(int64_t threads,
                                 const RoofProbes &probes = {});

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_ROOF_H
