//===- HostEvaluator.h - runs the host side of launches ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_GPU_HOSTEVALUATOR_H
#define DIFFATTN_UNITTESTS_GPU_HOSTEVALUATOR_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"

#include <functional>
#include <vector>

namespace mlir::diffattn {

/// A memref argument: where the device finds its element 0, sizes and strides.
struct DeviceMemref {
  uint64_t address = 0;
  std::vector<int64_t> sizes, strides;
};

/// One gpu.launch_func with everything known.
struct EvaluatedLaunch {
  std::string kernel;
  std::array<uint32_t, 3> grid, block;
  uint32_t sharedBytes = 0;
  /// Bits, and their number of bytes.
  std::vector<std::pair<uint64_t, uint32_t>> arguments;
};

/// Arguments of diffattn_rt_device_tensor_map; sizes and strides, in elements,
/// are of columns, rows, heads and batches.
struct EvaluatedMap {
  uint64_t base = 0;
  int64_t boxRows = 0;
  std::array<int64_t, 4> sizes = {};
  std::array<int64_t, 3> strides = {};
};

struct EvaluationHooks {
  std::function<void(const EvaluatedLaunch &)> launch;
  /// Device memory of so many bytes.
  std::function<uint64_t(uint64_t)> allocate;
  /// Sets so many bytes from an address on to a value; null: nothing.
  std::function<void(uint64_t, uint8_t, uint64_t)> fill;
  /// The bits of an argument that passes this map.
  std::function<uint64_t(const EvaluatedMap &)> makeMap;
};

/// Runs `function`, which holds arith ops, scf.if, gpu.alloc and gpu.memset,
/// tensor maps and launches, on `arguments`. Ops are evaluated by their own
/// folders. Returns the text of an op that it cannot evaluate, or nothing.
std::string evaluateHost(func::FuncOp function,
                         ArrayRef<DeviceMemref> arguments,
                         const EvaluationHooks &hooks);

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_GPU_HOSTEVALUATOR_H
