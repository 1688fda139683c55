//===- TensorMap.h - a tensor as the copy engine sees it --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_SIMULATOR_TENSORMAP_H
#define DIFFATTN_TESTING_SIMULATOR_TENSORMAP_H

#include "llvm/Support/Error.h"

#include <array>
#include <cstdint>
#include <optional>

namespace mlir::diffattn::sim {

/// Arguments of cuTensorMapEncodeTiled, as far as they are simulated: elements
/// that are tiled without interleave and with an element stride of 1, and zeros
/// where a box lies outside of the tensor. Axis 0 is contiguous.
struct TensorMap {
  /// The address of the first element as kernels see it.
  uint64_t base = 0;
  /// 1 to 5 axes.
  uint32_t rank = 1;
  /// 1, 2, 4 or 8.
  uint32_t elementBytes = 2;
  /// Elements of the tensor and of the box on each axis.
  std::array<uint64_t, 5> sizes = {1, 1, 1, 1, 1};
  std::array<uint32_t, 5> box = {1, 1, 1, 1, 1};
  /// Bytes from one element to the next of axes 1, 2, ...
  std::array<uint64_t, 4> strides = {0, 0, 0, 0};
  /// Within each 1024 bytes of shared memory, 16 bytes lie where the number of
  /// their row of 128 bytes is added to theirs by xor. A row of the box must
  /// have 128 bytes then; CUDA takes shorter ones too.
  bool swizzle128 = false;

  uint32_t getBoxBytes() const;
};

/// The 128 bytes that a kernel takes, `ptr byval([128 x i8]) align 64`. Their
/// format is private to encode and decode, as it is to CUDA on a device.
struct TensorMapHandle {
  alignas(64) std::array<char, 128> bytes = {};
};

/// Checks what CUDA checks: base and strides are multiples of 16, strides are
/// below 2^40, sizes from 1 to 2^32, boxes from 1 to 256, rows of a box are
/// multiples of 16 bytes. The error names the argument.
llvm::Expected<TensorMapHandle> encodeTensorMap(const TensorMap &map);

/// The map that encodeTensorMap made `bytes` of; nothing for other bytes.
std::optional<TensorMap> decodeTensorMap(const void *bytes);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_TESTING_SIMULATOR_TENSORMAP_H
