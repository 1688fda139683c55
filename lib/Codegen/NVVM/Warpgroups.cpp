//===- Warpgroups.cpp - roles of the warpgroups of a block ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Warpgroups.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

void mlir::diffattn::gpucode::emitWarpgroups(
    AttentionKernel &kernel, TensorRing &ring,
    const WarpgroupRegisters &registers, function_ref<void()> bring,
    function_ref<void()> multiply) {
  GpuBuilder &b = kernel.b;
  HopperBuilder hopper(b);
  Value isFirst = b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0));
  b.branch(isFirst, [&] { ring.initBarriers(); });
  ring.meet();
  // A shuffle makes `warpgroup` known to be uniform in a warp: products then
  // take their descriptions from uniform registers.
  Value warpgroup =
      b.shuffle(b.divU(kernel.thread, GpuWgmmaAttr::kGroupThreads), b.i32(0));
  b.choose(
      b.compare(LLVM::ICmpPredicate::eq, warpgroup, b.i32(0)),
      [&]() -> GpuBuilder::Values {
        hopper.setRegisters(registers.bringing, /*more=*/false);
        bring();
        return {};
      },
      [&]() -> GpuBuilder::Values {
        hopper.setRegisters(registers.multiplying, /*more=*/true);
        multiply();
        return {};
      });
}

Value mlir::diffattn::gpucode::getReadingGroup(AttentionKernel &kernel) {
  GpuBuilder &b = kernel.b;
  return b.add(
      b.shuffle(b.divU(kernel.thread, GpuWgmmaAttr::kGroupThreads), b.i32(0)),
      -1);
}

void mlir::diffattn::gpucode::meetReaders(GpuBuilder &b) {
  b.namedBarrier(b.i32(WgmmaBarriers::kReaders),
                 WgmmaBarriers::kReadingThreads);
}

void mlir::diffattn::gpucode::addBeside(HopperBuilder &hopper, bool hasRoom,
                                        HopperBuilder::Sums &sums,
                                        MutableArrayRef<Fragment> operands,
                                        function_ref<void()> startAdding,
                                        HopperBuilder::Sums &next,
                                        function_ref<void()> startNext) {
  auto start = [&](function_ref<void()> product) {
    product();
    hopper.commit();
  };
  if (hasRoom) {
    start(startNext);
    start(startAdding);
    hopper.wait({&next}, /*operands=*/{}, /*pending=*/1);
    return;
  }
  start(startAdding);
  hopper.wait({&sums}, operands);
  hopper.fence();
  start(startNext);
  hopper.wait({&next});
}

PanelRows mlir::diffattn::gpucode::getGroupRows(AttentionKernel &kernel,
                                                TensorRing &ring, Value group,
                                                int64_t offset) {
  GpuBuilder &b = kernel.b;
  Value first = b.mul(group, GpuWgmmaAttr::kRows * kGpuPanelPitch);
  return {HopperBuilder(b).describe(b.bytes(ring.queries(offset), first),
                                    /*panelBytes=*/16),
          kernel.layout.queryPanelBytes};
}

PanelRows mlir::diffattn::gpucode::getTileRows(AttentionKernel &kernel,
                                               Value base) {
  return {HopperBuilder(kernel.b).describe(base, /*panelBytes=*/16),
          kernel.layout.keyPanelBytes};
}

void mlir::diffattn::gpucode::startRowProduct(HopperBuilder &hopper,
                                              HopperBuilder::Sums &sums,
                                              const PanelRows &a,
                                              const PanelRows &b, int64_t width,
                                              Type type, int64_t offset) {
  const int64_t steps = llvm::divideCeil(width, kWgmmaDepth);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t panel = step * kWgmmaDepth / kGpuPanelWidth,
                  column = step * kWgmmaDepth % kGpuPanelWidth * 2;
    hopper.multiply(
        sums, hopper.advance(a.description, panel * a.panelBytes + column),
        hopper.advance(b.description, offset + panel * b.panelBytes + column),
        type, /*add=*/step > 0);
  }
}

void mlir::diffattn::gpucode::startColumnProduct(HopperBuilder &hopper,
                                                 HopperBuilder::Sums &sums,
                                                 ArrayRef<Fragment> a, Value b,
                                                 Type type) {
  for (auto [block, fragment] : llvm::enumerate(a))
    hopper.multiply(sums, fragment,
                    hopper.advance(b, block * kWgmmaDepth * kGpuPanelPitch),
                    type);
}
