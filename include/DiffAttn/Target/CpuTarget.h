//===- CpuTarget.h - facts of CPUs ------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_CPUTARGET_H
#define DIFFATTN_TARGET_CPUTARGET_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mlir::diffattn {

/// A CPU that code is made for: a set of features, and properties that follow
/// from it. Instructions are chosen by the features, never by the name. A new
/// architecture is a row of the table in CpuTarget.cpp.
struct CpuTarget {
  /// The name of the target in `isa=` and in schedules.
  StringRef name = "generic";
  /// LLVM's name of a CPU with at least these features, and LLVM's tuning
  /// features for it.
  StringRef codegenCpu = "x86-64";
  ArrayRef<StringRef> tuning;
  /// Features that functions made for this target carry, for example "+avx2".
  ArrayRef<StringRef> features;
  /// Width of a vector register, and how many there are.
  int64_t vectorBytes = 16;
  int64_t vectorRegisters = 16;
  /// Whether products of tiles are computed by vectors, bit for bit as a matrix
  /// unit does: to test its code on machines without one.
  bool emulatesTiles = false;
  /// Distance in bytes at which code that reads weights or keys once prefetches
  /// lines; 0: not at all, because the CPU does so as well. `native` has the
  /// measured one.
  int64_t prefetchBytes = 0;
  /// Whether the user gave that distance, so that it is no fact of the CPU.
  bool isPrefetchGiven = false;
  /// Data caches of one core; the last level as one core's fair share of it.
  int64_t l1Bytes = 32 << 10;
  int64_t l2Bytes = 1 << 20;
  int64_t l3Bytes = 4 << 20;

  /// `prefetchBytes` of code that computes about as long as it reads, as that
  /// which widens numbers of 16 bits does with few registers: the core then
  /// prefetches too few lines by itself.
  int64_t getBusyPrefetchBytes() const;
  /// Whether it has `feature`, for example "avx2".
  bool has(StringRef feature) const;
  /// Whether vectors of bf16 pairs are multiplied as they are.
  bool hasBf16Dot() const { return has("avx512bf16"); }
  /// Whether tiles are multiplied by the instructions of `feature`, by a matrix
  /// unit or by an emulation of one.
  bool hasTiles(StringRef feature = "amx-bf16") const {
    return has(feature) || emulatesTiles;
  }
  /// Whether f16 becomes f32 in one instruction.
  bool hasHalfConversion() const { return has("f16c"); }
};

/// The targets that there are, best first: `native` takes the first that the
/// machine has and that pays there.
ArrayRef<CpuTarget> getCpuTargets();

/// The names that `isa=` takes: native, and those of the targets.
ArrayRef<StringRef> getCpuIsaNames();

/// The target called `name`, one of getCpuIsaNames(). Nothing if there is no
/// such name. `native` asks the CPU and the system, and takes bf16 dot products
/// only where they were measured to be fast.
std::optional<CpuTarget> getCpuTarget(StringRef name);

/// The target called `name` that prefetches `prefetchBytes` ahead; -1: as far
/// as the target does by itself. An error if either is not valid.
llvm::Expected<CpuTarget> getCpuTarget(StringRef name, int64_t prefetchBytes);

/// Whether the machine that this runs on can execute code made for `target`,
/// and the system lets it.
bool hostSupports(const CpuTarget &target);

/// Whether its CPU alone can.
bool hostHasFeatures(const CpuTarget &target);

/// Why the system does not let this process use the tiles of AMX; empty if it
/// does. The first call requests them.
std::string getTileRefusal();

/// Why `native` is not the first target whose features the CPU has; empty if
/// nothing but speed decided.
std::string getNativeRefusal();

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_CPUTARGET_H
