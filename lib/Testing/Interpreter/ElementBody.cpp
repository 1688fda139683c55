//===- ElementBody.cpp - a region that computes an element ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ElementBody.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

bool ElementBody::build(CodeBuilder &b, Block &block) {
  SmallVector<Register> registers;
  if (!b.define(block.getArguments(), &registers))
    return false;
  for (Register index : registers)
    indices.push_back(index.number);
  return b.buildBlock(block, code, [&](Operation *yield) {
    yielded = b.scalar(yield->getOperand(0));
    return true;
  });
}

bool ElementBody::fill(Machine &m, const Inst &inst, Array &array) const {
  ArrayRef<int64_t> shape = array.getShape();
  const int64_t count = array.getNumElements();
  if (!m.count(stepsOf(code, count), inst.op))
    return false;
  Slot *slots = array.begin();
  SmallVector<int64_t> index(shape.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    for (auto [number, at] : llvm::zip_equal(indices, index))
      m.scalars[number].i = at;
    if (!m.runCounted(code))
      return false;
    slots[i] = m.scalars[yielded];
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis])
        break;
      index[axis] = 0;
    }
  }
  return true;
}
