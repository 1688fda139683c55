//===- HopperInjection.h - breaks Hopper's kernels --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HOPPERINJECTION_H
#define DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HOPPERINJECTION_H

#include "FaultInjection.h"

namespace mlir::diffattn::sim {

/// A way to break one instruction of a kernel with TMA and wgmma.
enum class HopperInjection : uint8_t {
  /// An mbarrier expects 16 bytes more, or less.
  ExpectMore,
  ExpectLess,
  /// An mbarrier is made for one arrival more; where it has more than one, for
  /// one less, or for half of them: those of one warpgroup of two.
  CountMore,
  CountOneLess,
  CountLess,
  /// A wait for a phase is for the other parity, or is gone.
  FlipParity,
  DropPhaseWait,
  DropArrive,
  /// A box is not loaded, or one row further on, or half a unit of the swizzle
  /// beside its place, or into the other half of the blocks of a cluster.
  DropLoad,
  ShiftLoad,
  MisalignLoad,
  WrongMask,
  /// A wait for matrices is gone, or lets one group more run.
  DropMatrixWait,
  WeakenMatrixWait,
  DropMatrixFence,
  DropMatrixCommit,
  /// Powers are rounded to P before the wait for the product that reads the P
  /// before it.
  PackEarly,
  /// The descriptor of B has eight rows 1024 bytes further apart.
  WrongStride,
  DropProxyFence,
  DropInitFence,
  /// A box is not stored, or one row further on, or from half a unit of the
  /// swizzle beside its place; a store by the copy engine is not waited for.
  DropStore,
  ShiftStore,
  MisalignStore,
  DropStoreWait,
  DropClusterWait,
  /// A turn is not passed on, or is passed on at the wrong named barrier.
  DropTurn,
  WrongTurn,
  /// The kernels ahead are waited for when all is done.
  LateWait,
  /// A vote for all lanes in the place of one for any.
  VoteAll,
};

llvm::StringRef stringifyInjection(HopperInjection injection);
llvm::ArrayRef<HopperInjection> getHopperInjections();

/// How many instructions of function `kernel` the injection applies to.
unsigned countInjections(llvm::Module &module, llvm::StringRef kernel,
                         HopperInjection injection);

/// Breaks the `index`-th of them.
void inject(llvm::Module &module, llvm::StringRef kernel,
            HopperInjection injection, unsigned index);

/// A copy of `module`, valid too, with the `index`-th of them broken.
std::unique_ptr<llvm::Module> getBroken(const llvm::Module &module,
                                        llvm::StringRef kernel,
                                        HopperInjection injection,
                                        unsigned index);

/// The outcome in every kernel that needs the instruction, in some order of
/// threads and copies.
ExpectedOutcome getExpectedOutcome(HopperInjection injection);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HOPPERINJECTION_H
