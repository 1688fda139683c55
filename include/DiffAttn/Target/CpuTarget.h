//===- CpuTarget.h - facts of CPUs ------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_CPUTARGET_H
#define DIFFATTN_TARGET_CPUTARGET_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mlir::diffattn {

/// Instruction sets that kernels are made for; each includes those after it.
enum class CpuIsa { AVX512BF16, AVX512, AVX2, Generic };

struct CpuTarget {
  CpuIsa isa = CpuIsa::Generic;
  /// Width of a vector register, and how many there are.
  int64_t vectorBytes = 16;
  int64_t vectorRegisters = 16;
  /// Whether a vector of bf16 pairs is multiplied faster than the same numbers
  /// as f32.
  bool fastBf16Dot = false;
  /// Whether the ISA converts f16 to f32 in one instruction.
  bool hasHalfConversion = false;
  /// Data caches of one core; the last level as one core's fair share of it.
  int64_t l1Bytes = 32 << 10;
  int64_t l2Bytes = 1 << 20;
  int64_t l3Bytes = 4 << 20;

  /// Features that functions made for this target carry, for example "+avx2".
  ArrayRef<StringRef> getFeatures() const;
};

/// The names that `isa=` takes, best first.
ArrayRef<StringRef> getCpuIsaNames();
StringRef stringifyCpuIsa(CpuIsa isa);

/// The target called `name`: native, avx512bf16, avx512, avx2 or generic.
/// Nothing if there is no such name. `native` asks the CPU, and takes
/// avx512bf16 only where its dot product is fast.
std::optional<CpuTarget> getCpuTarget(StringRef name);

/// Whether the machine that this runs on can execute code made for `isa`.
bool hostSupports(CpuIsa isa);

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_CPUTARGET_H
