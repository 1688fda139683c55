//===- PipelinedMatmul.h - a kernel to run and to break ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernel has what attention kernels have: a ring of two stages filled by
// cp.async, swizzled shared memory, ldmatrix, mma, a reduction by shuffles.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_SIMULATOR_PIPELINEDMATMUL_H
#define DIFFATTN_UNITTESTS_TESTING_SIMULATOR_PIPELINEDMATMUL_H

#include "Harness.h"

namespace mlir::diffattn::sim {

constexpr int kRows = 32, kColumns = 16, kTileDepth = 64, kTiles = 4,
              kDepth = kTileDepth * kTiles;
constexpr int kStageBytes = (kRows + kColumns) * kTileDepth * 2;

/// Kernel @k as LLVM IR: C[32, 16] = A[32, 256]·B[16, 256]ᵀ in bf16, and the
/// sum of each row of C. Its function @issue makes the copies.
std::string matmul();

class MatmulTest : public SimulatorTest {
protected:
  void SetUp() override;

  LaunchReport run(const SimOptions &options = {});

  /// The products are exact in f32, so the result is too.
  bool right() const;

  std::vector<uint16_t> a = std::vector<uint16_t>(kRows * kDepth),
                        b = std::vector<uint16_t>(kColumns * kDepth);
  std::vector<float> c, sums;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_UNITTESTS_TESTING_SIMULATOR_PIPELINEDMATMUL_H
