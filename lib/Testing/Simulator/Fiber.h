//===- Fiber.h - one thread of a kernel -------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_FIBER_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_FIBER_H

#include <cstddef>
#include <cstdint>

namespace mlir::diffattn::sim {

/// A stack and the place where it was left.
struct Fiber {
  void *stackPointer = nullptr;
  char *low = nullptr;
  char *high = nullptr;
};

/// Stacks for `count` fibers in one mapping, each with a guard page below it.
class FiberStacks {
public:
  FiberStacks() = default;
  FiberStacks(const FiberStacks &) = delete;
  FiberStacks &operator=(const FiberStacks &) = delete;
  ~FiberStacks();

  /// Returns false if the memory cannot be had.
  bool reserve(unsigned count, size_t bytes);
  Fiber get(unsigned index) const;

private:
  char *base = nullptr;
  size_t mapped = 0;
  size_t stride = 0;
};

/// Makes `fiber` begin with `entry`, which must never return.
void prepareFiber(Fiber &fiber, void (*entry)());

/// Leaves `from` and goes on where `to` was left.
void switchFiber(Fiber &from, Fiber &to);

/// To be called first in a fiber's entry. `main` is where the first switch came
/// from: a thread's own stack, whose bounds are not known before.
void enterFiber(Fiber &main);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_FIBER_H
