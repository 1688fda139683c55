//===- HopperBuilder.h - instructions of sm_90a -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_HOPPERBUILDER_H
#define DIFFATTN_CODEGEN_NVVM_HOPPERBUILDER_H

#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"
#include "DiffAttn/Target/PtxAsm.h"

namespace mlir::diffattn::gpucode {

/// Short names for instructions that only sm_90a has, as PtxAsm.h spells them.
/// Pointers are to shared memory. PTX ISA, "Asynchronous Warpgroup Level Matrix
/// Multiply-Accumulate Operation" and "mbarrier", has their meaning.
class HopperBuilder {
public:
  explicit HopperBuilder(GpuBuilder &b) : b(b) {}

  // Barriers in memory. One thread calls each of these but `wait`.
  void initBarrier(Value barrier, int64_t arrivals);
  /// Makes initialized barriers visible to copies; follows the last
  /// `initBarrier`.
  void publishBarriers();
  void arrive(Value barrier);
  /// Arrives at the barrier of the same place in block `rank` of the cluster.
  void arriveAtBlock(Value barrier, Value rank);
  /// Arrives, and lets the phase end only after so many bytes of copies.
  void arriveExpecting(Value barrier, int64_t bytes);
  /// Waits until the phase of `parity`, an i32, has ended. `clusterwide`: other
  /// blocks of the cluster arrive at it too.
  void wait(Value barrier, Value parity, bool clusterwide = false);
  /// A barrier of all threads of a cluster, each of which does both in turn.
  void arriveAtCluster();
  void waitForCluster();
  /// Arrives at a named barrier of `threads`, and does not wait for the others.
  void arriveAtBarrier(Value id, int64_t threads);

  /// Starts the copy of the box at `at` = (column, row, head, batch) of `map`
  /// to `target`; its bytes arrive at `barrier`. With `blocks` > 1 the copy
  /// goes to the same places in the first `blocks` blocks of the cluster.
  void copyBox(Value target, Value map, std::array<Value, 4> at, Value barrier,
               int64_t blocks = 1);
  /// Prefetches a box into the L2.
  void prefetchBox(Value map, std::array<Value, 4> at);
  /// Stores a fragment of 16 rows x 16 columns of 16 bits (stmatrix). `row` is
  /// the lane's address of 8 columns of a row: lanes 0 to 15 have the first 8
  /// columns of each row, the others the last 8.
  void storeMatrices(Value row, const Fragment &words);
  // A store by the copy engine: boxes, `commit`, and a wait of the same thread.
  /// Starts the copy of `source` to the box at `at` of `map`.
  void storeBox(Value map, std::array<Value, 4> at, Value source);
  void commitStores();
  void waitForStoresToRead();
  /// Makes this thread's writes to shared memory visible to `wgmma` and to the
  /// copy engine, for threads that it synchronizes with afterwards.
  void publishToCopies();

  /// Sets the registers of each thread of this warpgroup, a multiple of 8, from
  /// here on; `more`: up to `count`, else down to it.
  void setRegisters(int64_t count, bool more);

  /// Lets the launch of the kernel begin while the kernels ahead still run, and
  /// the next launch while this one does. Each block then waits until those
  /// ahead have ended, before it uses any parameter that points to global
  /// memory. To be called when all of the kernel but its return is emitted.
  void startEarly();

  // Products by a warpgroup, in this order: `fence` after the last write to
  // registers that they take, products, `commit`, `wait` with all registers of
  // theirs. Nothing else may touch these in between.
  void fence();
  void commit();
  /// Sums of a tile of 64 rows: the product is added to them, or replaces them.
  using Sums = SmallVector<Fragment>;
  /// A product of two operands in shared memory, given by `describe`.
  void multiply(Sums &sums, Value a, Value by, Type type, bool add);
  /// Adds a product with A in registers, 64 rows x 16, and B in shared memory,
  /// whose columns are contiguous.
  void multiply(Sums &sums, const Fragment &a, Value by, Type type);
  /// Waits until all products but those of the last `pending` commits are done.
  void wait(ArrayRef<Sums *> sums, MutableArrayRef<Fragment> operands = {},
            int64_t pending = 0);
  /// Keeps uses of these registers on their side of this place: no later use
  /// moves before it, no earlier one behind it.
  void tie(ArrayRef<Sums *> sums, MutableArrayRef<Fragment> operands);

  /// `number`, an i32, as a new value that the optimizer cannot relate to the
  /// old one: values computed from it take no register before this place.
  Value renew(Value number);

  /// The matrix descriptor (i64) of a panel of swizzled rows of 128 bytes at
  /// `pointer`: units of 8 rows lie 1024 bytes apart; `panelBytes` is the
  /// distance to the next 64 columns where these are not contracted.
  Value describe(Value pointer, int64_t panelBytes);
  /// `description` moved by `bytes`, a multiple of 16.
  Value advance(Value description, int64_t bytes);
  /// `description` as a new value, as `renew` does: LLVM would move the
  /// arithmetic on it out of a loop, into registers that the sums need.
  Value renewDescription(Value description);
  /// Undefined sums, for a product that replaces them.
  Sums undefined(int64_t fragments);

private:
  void call(StringRef name, ValueRange arguments);
  /// The assembly, with the results of the same types as `tied`.
  SmallVector<Value> assemble(const AsmText &text, ValueRange tied,
                              ValueRange others);
  template <typename Through>
  void passThrough(Through through, ArrayRef<Sums *> sums,
                   MutableArrayRef<Fragment> operands);
  void multiplyBy(Sums &sums, Wgmma wgmma, ValueRange a, Value by, Type type,
                  bool add);

  GpuBuilder &b;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_CODEGEN_NVVM_HOPPERBUILDER_H
