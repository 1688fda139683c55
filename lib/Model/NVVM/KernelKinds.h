//===- KernelKinds.h - the forms of generated kernels ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_KERNELKINDS_H
#define DIFFATTN_LIB_MODEL_NVVM_KERNELKINDS_H

#include "KernelWriter.h"
#include "VectorAccess.h"

#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn::linalggpu {

/// Threads of a warp.
constexpr int64_t kWarp = 32;

/// State that the emitters of all kinds of kernels share.
struct Emission {
  KernelModule &kernels;
  ImplicitLocOpBuilder &host;
  /// The status word of the present function, a memref<i32>, or null if no
  /// assertion sets one.
  Value status;
};

/// Phases that compute rows: of each row every phase in order.
struct RowGroup {
  SmallVector<Phase> phases;
  /// Loops over rows and, inside, over the elements of one.
  unsigned rowLoops = 0, columnLoops = 0;

  enum class Place { Row, Element, Reduction };
  static std::optional<Place> getPlace(const Phase &phase, unsigned rowLoops,
                                       unsigned columnLoops);
  Place getPlace(const Phase &phase) const {
    return *getPlace(phase, rowLoops, columnLoops);
  }
};

/// Whether what `phase` does after a failed assertion could harm: it writes
/// what is not the call's own, or addresses memory by data.
bool needsStatus(const Phase &phase);

/// Emits `phase` with a thread to each output, or to 16 bytes of them, before
/// the host's op. Reductions are loops of the thread.
void emitElementwise(Emission &emission, const Phase &phase);

/// Emits `group` as one kernel with a warp or a block to each row. Values in
/// `kept`, memrefs with one element a row, need not be written.
void emitRowReduction(Emission &emission, const RowGroup &group,
                      const llvm::SmallPtrSetImpl<Operation *> &kept);

/// Emits, for calls with few rows whose operands can be read 16 bytes at a
/// time, a kernel of `op`, on memrefs, if there can be one; other calls keep
/// `op`, which is gone if there are none.
void emitSmallGemm(Emission &emission, GemmOp op);

/// Sizes of the loops of `phase` as values or constants of the host.
SmallVector<OpFoldResult> getLoopSizes(ImplicitLocOpBuilder &host,
                                       const Phase &phase);

/// Launches `vector` if `condition` holds or is null, else what `elements`
/// makes.
void emitChoice(ImplicitLocOpBuilder &host, Value condition,
                const Launch &vector, function_ref<Launch()> elements);

/// Blocks for `items` at `perBlock` each, and no more than `most`.
Value countBlocks(ImplicitLocOpBuilder &host, OpFoldResult items,
                  int64_t perBlock, int64_t most);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_KERNELKINDS_H
