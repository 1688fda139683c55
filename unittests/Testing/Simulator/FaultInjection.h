//===- FaultInjection.h - breaks kernels in known ways ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_SIMULATOR_FAULTINJECTION_H
#define DIFFATTN_UNITTESTS_TESTING_SIMULATOR_FAULTINJECTION_H

#include "DiffAttn/Testing/Simulator/Report.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <memory>
#include <vector>

namespace llvm {
class Module;
} // namespace llvm

namespace mlir::diffattn::sim {

/// The outcome that a change of an instruction must have: one of the faults or,
/// with `wrong`, results that are off.
struct ExpectedOutcome {
  std::vector<FaultKind> kinds = {};
  bool wrong = false;
};

/// Ends the program if `module`, of which an instruction was changed, does not
/// verify: simulated, it would show nothing.
void requireValid(const llvm::Module &module);

/// A way to break one instruction of a kernel, given as LLVM IR.
enum class Injection : uint8_t {
  /// A wait for copies is gone, or lets one group more be under way.
  DropWait,
  WeakenWait,
  /// A barrier is gone.
  DropBarrier,
  /// A barrier comes after the copies that follow it, before the next ldmatrix:
  /// a stage is filled while it is still read.
  RefillEarly,
  /// All lanes of an ldmatrix read the neighbouring 16 bytes.
  WrongSwizzle,
  /// One thread copies from a row far beyond the others', or into one.
  RowOutOfBounds,
  SharedOutOfBounds,
  /// One lane of an ldmatrix gives an address that is 2 bytes off, one thread
  /// copies into such an address.
  MisalignedRow,
  MisalignedCopy,
  /// A shuffle reads another lane.
  WrongLane,
  /// Only the lower half of each warp takes part in a collective.
  HalfWarp,
  /// A copy is not made.
  DropCopy,
  /// A vote for all lanes in the place of one for any.
  VoteAll,
};

llvm::StringRef stringifyInjection(Injection injection);
/// All that apply to a product of matrices: all but VoteAll.
llvm::ArrayRef<Injection> getAllInjections();

/// How many instructions of function `kernel` the injection applies to.
unsigned countInjections(llvm::Module &module, llvm::StringRef kernel,
                         Injection injection);

/// Breaks the `index`-th of them.
void inject(llvm::Module &module, llvm::StringRef kernel, Injection injection,
            unsigned index);

/// A copy of `module`, valid too, with the `index`-th of them broken.
std::unique_ptr<llvm::Module> getBroken(const llvm::Module &module,
                                        llvm::StringRef kernel,
                                        Injection injection, unsigned index);

/// The outcome in every kernel that needs the instruction.
ExpectedOutcome getExpectedOutcome(Injection injection);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_UNITTESTS_TESTING_SIMULATOR_FAULTINJECTION_H
