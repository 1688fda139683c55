//===- HopperText.h - pieces of kernels for sm_90 ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HOPPERTEXT_H
#define DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HOPPERTEXT_H

#include "Harness.h"

#include "DiffAttn/Target/PtxAsm.h"

namespace mlir::diffattn::sim {

/// sm_90 with all its shared memory.
inline SimChip hopper() { return {"sm_90", 90, 227 << 10, 1024}; }

/// "  call void @llvm.nvvm.NAME(ARGUMENTS)".
inline std::string nvvm(const std::string &name, const std::string &arguments,
                        const std::string &result = "void") {
  return "call " + result + " @llvm.nvvm." + name + "(" + arguments + ")\n";
}

/// A pointer %NAME to byte `offset`, an i32, of dynamic shared memory @smem.
inline std::string sharedPointer(const std::string &name,
                                 const std::string &offset) {
  return "  %" + name + " = getelementptr i8, ptr addrspace(3) @smem, i32 " +
         offset + "\n";
}

/// The declarations of @smem and of kernel @k, with `parameters` beside as many
/// tensor maps %m0, %m1, ... .
std::string beginKernel(unsigned maps, const std::string &parameters,
                        unsigned threads);

/// A descriptor %NAME of the bytes at pointer %POINTER, 128-byte swizzle.
std::string descriptor(const std::string &name, const std::string &pointer,
                       unsigned leadingBytes, unsigned strideBytes);

/// Waits for a phase of the mbarrier at %BAR. Blocks are named after `label`,
/// and the text goes on in block %LABELdone.
std::string waitFor(const std::string &label, const std::string &bar,
                    const std::string &parity);

/// A load of the box at the i32s `at` of map %MAP to %TO.
std::string loadBox(const std::string &map, const std::string &to,
                    const std::string &bar, const std::vector<std::string> &at);
/// A store of the box at %FROM.
std::string storeBox(const std::string &map, const std::string &from,
                     const std::vector<std::string> &at);

/// Values `prefix`0, `prefix`1, ... , as arguments of an assembly or all zero.
struct Registers {
  std::string prefix;
  unsigned count = 0;
  std::string type = "float";

  std::string arguments() const;
};

/// %RESULT0, ... = wgmma of `sums` (zeros if their prefix is empty), A (four
/// i32s or an i64, written with their types) and the descriptor %B.
std::string multiply(const std::string &result, const Wgmma &wgmma,
                     const std::string &sums, const std::string &a,
                     const std::string &b, int scale);

/// %RESULT0, ... = `registers` after a wait for all but `pending` groups.
std::string waitMatrices(const std::string &result, unsigned pending,
                         const std::string &registers, unsigned count);
/// %RESULT0, ... = `registers` after a tie.
std::string tie(const std::string &result, const std::string &registers,
                unsigned count);

inline std::string fenceMatrices() {
  return "  " + nvvm("wgmma.fence.sync.aligned", "");
}
inline std::string commitMatrices() {
  return "  " + nvvm("wgmma.commit_group.sync.aligned", "");
}

/// Stores accumulators %REGISTERS0, ... of the n columns to the f32 matrix %d
/// with rows of n, from row `firstRow`, an i32, on. %tid is the thread.
std::string storeSums(const std::string &registers, unsigned n,
                      const std::string &firstRow);

/// A matrix of small numbers, as bf16 or f16, and what they are.
struct Matrix {
  unsigned rows, columns;
  std::vector<uint16_t> bits;
  std::vector<float> values;

  static Matrix random(unsigned rows, unsigned columns, bool bfloat,
                       unsigned seed);
  float at(unsigned row, unsigned column) const {
    return values[row * columns + column];
  }
  /// A map of it, with boxes of `boxRows` x 64.
  TensorMap map(uint64_t device, unsigned boxRows) const;
};

/// A·B, or A·B^T, as wgmma adds it up: 16 products at a time.
std::vector<float> product(const Matrix &a, const Matrix &b, bool transposed);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_UNITTESTS_TESTING_SIMULATOR_HOPPERTEXT_H
