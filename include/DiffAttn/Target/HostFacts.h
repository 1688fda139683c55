//===- HostFacts.h - measured facts of a CPU --------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Facts of this machine's CPU that `native` rests on and that neither CPUID nor
// the CPU's name tells: a virtual machine may call itself anything. They are
// measured in a tenth of a second. Code for an instruction set that is named
// depends on none of them.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_HOSTFACTS_H
#define DIFFATTN_TARGET_HOSTFACTS_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mlir::diffattn {

struct HostFacts {
  /// Whether a dot product of bf16 pairs takes less than two fused
  /// multiply-adds of f32, of which it does the work. It decides what code
  /// computes, and so the bits of results.
  bool hasFastBf16Dot = false;
  /// Distance in bytes at which code that reads weights or keys once prefetches
  /// lines; 0: not at all, because the CPU does so as well.
  int64_t prefetchBytes = 0;

  bool operator==(const HostFacts &other) const {
    return hasFastBf16Dot == other.hasFastBf16Dot &&
           prefetchBytes == other.prefetchBytes;
  }
};

/// The largest `prefetchBytes` that there may be.
constexpr int64_t kMaxPrefetchBytes = 1 << 16;

/// Times in seconds, the shortest of some turns, of reads of `bytes` with
/// prefetch at each of the distances.
using TimeReads = llvm::function_ref<SmallVector<double>(
    int64_t bytes, int turns, ArrayRef<int64_t> distances)>;

/// Chooses `prefetchBytes` by the time of reads. Some cores do not prefetch
/// past a page by themselves, which costs one that reads bf16 up to two fifths
/// of the bandwidth of memory; where they do, code that prefetches as well
/// takes up to a third longer. So it must gain more than noise would show.
int64_t choosePrefetch(TimeReads timeReads);

/// The facts, measured at the first call unless they were recalled.
HostFacts getHostFacts();

/// Whether the facts have been measured or recalled.
bool knowsHostFacts();

/// Sets facts that were measured on a CPU of this signature before, unless they
/// are known already.
void recallHostFacts(const HostFacts &facts);

/// The CPU as CPUID describes it, and the version of the measurement. Facts
/// hold for every CPU of equal text.
std::string getHostSignature();

/// Converts facts to text, and back; nothing if the text is not valid.
std::string writeHostFacts(const HostFacts &facts);
std::optional<HostFacts> parseHostFacts(StringRef text);

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_HOSTFACTS_H
