//===- Report.h - results of a simulated launch -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_SIMULATOR_REPORT_H
#define DIFFATTN_TESTING_SIMULATOR_REPORT_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mlir::diffattn::sim {

/// Where an instruction of a kernel came from.
struct SourcePoint {
  /// Name of the instruction, for example "load 16 bytes" or
  /// "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3".
  std::string op;
  std::string function;
  /// Empty, and 0, where the module has no debug locations.
  std::string file;
  unsigned line = 0;
  unsigned column = 0;
};

llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const SourcePoint &point);

enum class FaultKind : uint8_t {
  /// No thread can go on.
  Deadlock,
  /// Threads of a warp disagree about a collective: another op, another mask, a
  /// thread that has ended.
  Divergence,
  /// Barriers of one id that expect different numbers of threads, or more
  /// arrivals than expected; a phase that nobody waited for before the next.
  BarrierMismatch,
  OutOfBounds,
  Misaligned,
  /// A read of memory that nothing wrote.
  Uninitialized,
  /// A read of shared memory into which an asynchronous copy is still under
  /// way.
  NotArrived,
  /// Two accesses of which one writes, by threads that nothing orders.
  Race,
  /// Two atomic additions in floating point to one number, by threads that
  /// nothing orders: the sum is another one in the other order.
  Order,
  /// Shared memory or registers of an asynchronous instruction, without the
  /// fence that it needs.
  MissingFence,
  /// Registers of a wgmma that are touched before a wait ended it, or a thread
  /// that ends while something of it runs.
  InFlight,
  /// A matrix descriptor or a tensor map that does not match the memory that it
  /// describes.
  Descriptor,
  /// setmaxnreg that cannot be.
  Registers,
  /// An entry of a table that names nothing: a page that is none, a sequence
  /// that begins or ends outside of the tokens.
  Index,
  /// An access to global memory by a kernel that may start early, before it has
  /// waited for the kernels ahead of it.
  Early,
  Trap,
  /// A division of integers by 0 or with a quotient that does not fit, or code
  /// that is declared unreachable: LLVM IR says nothing of what comes then.
  Undefined,
  /// The limit of steps was reached.
  NoProgress,
};

llvm::StringRef stringifyFaultKind(FaultKind kind);

struct Fault {
  FaultKind kind;
  /// One sentence, without the place.
  std::string message;
  SourcePoint where = {};
  /// The other side of a race or a divergence; its op is empty where there is
  /// none.
  SourcePoint other = {};
  std::array<uint32_t, 3> block = {0, 0, 0};
  /// The linear number of the first thread that showed it.
  uint32_t thread = 0;
  /// How often the same kind was seen at the same places.
  uint64_t count = 1;
};

llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const Fault &fault);

/// Accesses of one instruction to memory, over the whole launch.
struct SiteStats {
  SourcePoint where = {};
  /// How often a warp executed it.
  uint64_t warpAccesses = 0;
  /// Passes through the banks of shared memory, and how many of them a layout
  /// without conflicts would not need.
  uint64_t wavefronts = 0;
  uint64_t bankConflicts = 0;
  /// 32-byte sectors of global memory.
  uint64_t sectors = 0;
};

struct BufferStats {
  std::string name;
  /// Bytes of accesses by threads, for loads, for stores and atomics, and for
  /// asynchronous copies.
  uint64_t loadedBytes = 0;
  uint64_t storedBytes = 0;
  uint64_t copiedBytes = 0;
  /// 32-byte sectors that warps touched with them.
  uint64_t sectors = 0;
};

struct LaunchStats {
  uint64_t blocks = 0;
  /// Floating-point operations of mma, 2·m·n·k each.
  uint64_t mmaFlops = 0;
  uint64_t mmas = 0;
  uint64_t ldmatrices = 0;
  /// wgmmas of warpgroups, whose operations mmaFlops has too, and copies of the
  /// copy engine.
  uint64_t wgmmas = 0;
  uint64_t bulkCopies = 0;
  uint64_t approximations = 0;
  uint64_t barriers = 0;
  /// Instructions of single lanes that touch memory.
  uint64_t laneAccesses = 0;
  uint64_t sharedWavefronts = 0;
  uint64_t bankConflicts = 0;
  uint64_t ldmatrixConflicts = 0;
  uint64_t copyConflicts = 0;
  uint64_t globalSectors = 0;
  std::vector<BufferStats> buffers;
  /// Only instructions that touch memory, in the order of the module.
  std::vector<SiteStats> sites;

  const BufferStats *findBuffer(llvm::StringRef name) const;
};

struct LaunchReport {
  /// Sorted by how early they were seen; at most SimOptions::maxFaults.
  std::vector<Fault> faults;
  LaunchStats stats;

  bool clean() const { return faults.empty(); }
  /// Whether a fault is of one of `kinds`.
  bool has(llvm::ArrayRef<FaultKind> kinds) const;
  /// Each fault on a line of its own.
  std::string str() const;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_TESTING_SIMULATOR_REPORT_H
