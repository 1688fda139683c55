//===- GpuOperands.h - operands of an op on the simulator -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_GPU_GPUOPERANDS_H
#define DIFFATTN_UNITTESTS_GPU_GPUOPERANDS_H

#include "GpuCase.h"

namespace mlir::diffattn {

/// Ends the test program: a harness without its parts proves nothing.
void require(bool condition, const std::string &message);

/// The properties of a target's chip that the simulator reads.
sim::SimChip getSimChip(const GpuTarget &target);
/// A simulator of the kernels of `module`.
std::unique_ptr<sim::Simulator> simulate(const llvm::Module &module,
                                         const sim::SimChip &chip);

/// Calls `body` with the number of each element of an array, in the order of a
/// dense one, and its offset in elements.
template <typename Body>
void forEachElement(llvm::ArrayRef<int64_t> sizes,
                    llvm::ArrayRef<int64_t> strides, Body body) {
  int64_t count = 1;
  for (int64_t size : sizes)
    count *= size;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, offset = 0;
    for (size_t axis = sizes.size(); axis-- > 0;) {
      offset += rest % sizes[axis] * strides[axis];
      rest /= sizes[axis];
    }
    body(i, offset);
  }
}

/// Describes rows of 64 columns to the copy engine, with `moreRows` in each
/// box.
sim::TensorMapHandle encode(const EvaluatedMap &given, int64_t moreRows = 0);

/// Memory of which only the pages that are touched exist.
class Memory {
public:
  Memory() = default;
  Memory(const Memory &) = delete;
  ~Memory();
  void allocate(size_t size);
  /// Whether it is small enough to be filled and read as a whole, also between
  /// rows.
  bool isDense() const { return bytes < (size_t(1) << 26); }
  uint8_t *data() const { return start; }
  size_t size() const { return bytes; }

private:
  uint8_t *start = nullptr;
  size_t bytes = 0;
};

/// An operand: its memory with room around rows, the view of it as the
/// reference takes it, and the order of axes of its type.
struct Operand {
  Memory memory;
  reference::View view;
  DeviceMemref device;
  bool output = false;
};

/// Fills the rows of `operand` behind the length of their batch with NaN.
void fillBehind(Operand &operand, const reference::View &lengths);

/// Rows of the table of pages, in an order of their own; entries that no key
/// needs are none, and with `wrongPages` the first ones of all neither.
std::vector<int64_t> drawPages(const Shape &shape, int64_t pages,
                               unsigned seed);
/// Fills the rows of pages that no sequence has with NaN.
void fillUnused(Operand &operand, const Shape &shape,
                llvm::ArrayRef<int64_t> table);
/// A page that `table` does not name.
int64_t findSpare(llvm::ArrayRef<int64_t> table, int64_t pages);
void clearPage(Operand &operand, int64_t page);

/// Number `index` of the normally distributed ones that follow from `seed`.
/// Those of the last seed are kept: drawing them takes longer than to run many
/// a kernel, and runs with the same seed follow each other.
double drawNormal(unsigned seed, size_t index);

/// A hash of the sizes and strides of all operands, and of the contents of all
/// but results. None where rows lie so far apart that reading the memory
/// between them would take too long.
std::optional<llvm::hash_code>
hashInputs(llvm::ArrayRef<std::unique_ptr<Operand>> operands);

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_GPU_GPUOPERANDS_H
