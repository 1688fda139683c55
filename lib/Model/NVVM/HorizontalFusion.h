//===- HorizontalFusion.h - several kernels in one launch -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_HORIZONTALFUSION_H
#define DIFFATTN_LIB_MODEL_NVVM_HORIZONTALFUSION_H

#include "KernelWriter.h"

namespace mlir::diffattn::linalggpu {

/// The launches of a function that follow one another. Launches that touch no
/// memory which another of them writes become one, whose blocks are those of
/// all: each launch of a decoder's step takes longer to begin than to run.
class LaunchSequence {
public:
  explicit LaunchSequence(KernelModule &kernels) : kernels(kernels) {}

  /// Notes `launched`, a launch or a choice between two, that computes
  /// `phases`, before their ops go. `status` as in `Emission`.
  void note(Operation *launched, ArrayRef<Phase> phases, Value status);
  /// Joins what was noted. Ops that the launches need are still there.
  void fuse();

private:
  struct Step {
    Operation *op;
    SmallVector<Value> reads, writes;
    gpu::LaunchFuncOp getLaunch() const;
    /// When `getLaunch` is what runs; null for always.
    Value getCondition() const;
    LLVM::LLVMFuncOp getKernel() const;
    bool conflictsWith(const Step &other) const;
  };

  bool canJoin(ArrayRef<Step *> group, const Step &step) const;
  void fuse(ArrayRef<Step *> group);
  LLVM::LLVMFuncOp writeKernel(ArrayRef<Step *> group);

  KernelModule &kernels;
  SmallVector<Step> steps;
};

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_HORIZONTALFUSION_H
