//===- KernelRun.h - kernels of specs on arrays in memory -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_GPU_KERNELRUN_H
#define DIFFATTN_UNITTESTS_GPU_KERNELRUN_H

#include "GpuOperands.h"

#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/Testing/Simulator/Simulator.h"

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mlir::diffattn {

/// An operand in memory; `letters` name its axes as parameters of kernels do.
struct DeviceArray {
  reference::Element element = reference::Element::F32;
  std::string letters;
  /// Strides count elements.
  std::vector<int64_t> sizes, strides;
  std::vector<uint8_t> memory;
  bool isOutput = false;

  reference::View view() const {
    reference::View view(memory.data(), element, sizes);
    view.strides = strides;
    return view;
  }
  double at(llvm::ArrayRef<int64_t> index) const {
    return reference::load(element, memory.data() + offset(index));
  }
  void set(llvm::ArrayRef<int64_t> index, double value) {
    reference::store(element, memory.data() + offset(index), value);
  }
  /// Calls `body` with the number of each element, in the order of a dense
  /// array, and its offset in bytes.
  template <typename Body>
  void forEach(Body body) const {
    forEachElement(sizes, strides, [&](int64_t i, int64_t offset) {
      body(i, offset * reference::byteSize(element));
    });
  }

private:
  int64_t offset(llvm::ArrayRef<int64_t> index) const {
    int64_t offset = 0;
    for (auto [at, stride] : llvm::zip_equal(index, strides))
      offset += at * stride;
    return offset * reference::byteSize(element);
  }
};

/// Kernels of specs, and the arrays that they are launched on.
class KernelRun {
public:
  KernelRun();
  std::map<std::string, DeviceArray> arrays;
  /// The kernels as they go to NVPTX.
  const llvm::Module &getKernels() const { return *translated; }
  /// Runs `module` in the place of these from now on.
  void replaceKernels(const llvm::Module &module);

protected:
  Type typeOf(reference::Element element);
  /// The array `name`, with `step` elements from one to the next along the last
  /// axis, and `behind` more behind each row. All bits are set: NaN, or -1.
  DeviceArray &make(const std::string &name, reference::Element element,
                    const std::string &letters, std::vector<int64_t> sizes,
                    int64_t step = 1, int64_t behind = 0);
  /// Fills it with numbers around `offset`, which follow those drawn before.
  void draw(DeviceArray &array, double offset, double scale);
  /// Sets all bits of the results.
  void clearResults();
  void compile(llvm::ArrayRef<GpuKernelSpec> specs, llvm::StringRef chip);
  /// Launches the kernel of `spec`. Its parameters are, by their names,
  /// `numbers` and `reals`, addresses of arrays (null without one), their
  /// strides (0 along an axis of one element), and tensor maps of them.
  sim::LaunchReport launch(const GpuKernelSpec &spec, sim::Dim3 grid,
                           const std::map<std::string, int64_t> &numbers,
                           const std::map<std::string, double> &reals,
                           const sim::SimOptions &options);

  MLIRContext context{MLIRContext::Threading::DISABLED};

private:
  sim::TensorMapHandle describe(const std::string &name, int64_t rows,
                                uint64_t address) const;
  int64_t getStride(const std::string &parameter) const;

  sim::SimChip chip;
  llvm::LLVMContext llvmContext;
  std::unique_ptr<llvm::Module> translated;
  std::unique_ptr<sim::Simulator> simulator;
  size_t drawn = 0;
};

/// Blocks of `each` that hold `count`.
inline uint32_t countBlocks(int64_t count, int64_t each) {
  return static_cast<uint32_t>((count + each - 1) / each);
}

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_GPU_KERNELRUN_H
