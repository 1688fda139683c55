//===- TensorSliceOps.cpp - slices, padding, concatenation ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"
#include "ElementBody.h"
#include "Strided.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

namespace {
struct Slice : Details {
  SmallVector<Operand> offsets, sizes, strides;
  llvm::SmallBitVector dropped; ///< axes that the small side does not have
};

/// A slice of an array, checked.
struct Box {
  SmallVector<int64_t> sizes;   ///< of all axes of the large side
  SmallVector<int64_t> strides; ///< in its memory
  SmallVector<int64_t> kept;    ///< sizes without the dropped axes
  int64_t offset = 0;
};
} // namespace

static bool findBox(Machine &m, const Inst &inst, ArrayRef<int64_t> shape,
                    Box &box) {
  const auto &slice = inst.as<Slice>();
  box.strides = stridesOf(shape);
  for (auto [axis, size] : llvm::enumerate(shape)) {
    const int64_t offset = slice.offsets[axis].get(m),
                  count = slice.sizes[axis].get(m),
                  step = slice.strides[axis].get(m);
    // The place of the last element; a slice of none may begin at the end.
    const __int128 last =
        __int128(offset) + __int128(std::max<int64_t>(count - 1, 0)) * step;
    if (offset < 0 || count < 0 || offset > size ||
        (count > 0 && (offset >= size || last < 0 || last >= size)))
      return m.fail(inst, "expected a slice inside of size " + Twine(size) +
                              " on axis " + Twine(axis) + ", but got " +
                              Twine(count) + " from " + Twine(offset) +
                              " in steps of " + Twine(step));
    if (slice.dropped.test(axis) && count != 1)
      return m.fail(inst, "expected size 1 on the dropped axis " + Twine(axis) +
                              ", but got " + Twine(count));
    box.offset += offset * box.strides[axis];
    // Beyond one element no step leaves the array, so this cannot overflow.
    box.strides[axis] = count > 1 ? box.strides[axis] * step : 0;
    box.sizes.push_back(count);
    if (!slice.dropped.test(axis))
      box.kept.push_back(count);
  }
  return true;
}

template <typename Op>
static void readSlice(CodeBuilder &b, Op op, Slice &to) {
  to.offsets = b.operands(op.getMixedOffsets());
  to.sizes = b.operands(op.getMixedSizes());
  to.strides = b.operands(op.getMixedStrides());
  to.dropped = op.getDroppedDims();
}

static bool runExtractSlice(Machine &m, const Inst &inst) {
  Box box;
  if (!findBox(m, inst, m.tensors[inst.a].getShape(), box))
    return false;
  const Array &from = m.tensors[inst.a];
  Array array = m.create(inst, from.getElementType(), box.kept);
  if (!array || !m.count(array.getNumElements(), inst.op))
    return false;
  if (array.getNumElements())
    copyStrided(array.begin(), stridesOf(box.sizes), from.begin() + box.offset,
                box.strides, box.sizes);
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildExtractSlice(CodeBuilder &b, Operation *op) {
  if (!b.emitOp(runExtractSlice, op))
    return false;
  readSlice(b, cast<tensor::ExtractSliceOp>(op),
            b.addDetails<Slice>(b.code->insts.back()));
  return true;
}

/// Writes tensor `a` into tensor `b`; where `imm` is 1, into its register.
static bool runInsertSlice(Machine &m, const Inst &inst) {
  Box box;
  const Array source = m.tensors[inst.a];
  if (!findBox(m, inst, m.tensors[inst.b].getShape(), box))
    return false;
  if (source.getShape() != ArrayRef<int64_t>(box.kept))
    return m.fail(inst, "expected a source of shape " +
                            describeShape(box.kept) + ", but got " +
                            describeShape(source.getShape()));
  Array array = m.makeWritable(inst, inst.imm ? std::move(m.tensors[inst.b])
                                              : m.take(inst, inst.b));
  if (!array || !m.count(source.getNumElements(), inst.op))
    return false;
  if (source.getNumElements())
    copyStrided(array.begin() + box.offset, box.strides, source.begin(),
                stridesOf(box.sizes), box.sizes);
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildInsertSlice(CodeBuilder &b, Operation *op) {
  if (!b.emitOp(runInsertSlice, op))
    return false;
  readSlice(b, cast<tensor::InsertSliceOp>(op),
            b.addDetails<Slice>(b.code->insts.back()));
  return true;
}

// --- concat

namespace {
struct Parts : Details {
  int64_t axis = 0;
  SmallVector<int32_t> parts;
};
} // namespace

static bool runConcat(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Parts>();
  const Array &first = m.tensors[details.parts.front()];
  SmallVector<int64_t> shape(first.getShape());
  shape[details.axis] = 0;
  for (int32_t number : details.parts) {
    ArrayRef<int64_t> part = m.tensors[number].getShape();
    for (auto [axis, sizes] :
         llvm::enumerate(llvm::zip_equal(part, first.getShape()))) {
      auto [got, expected] = sizes;
      if (static_cast<int64_t>(axis) != details.axis && got != expected)
        return m.fail(inst, "expected size " + Twine(expected) + " on axis " +
                                Twine(axis) + " of all operands, but got " +
                                Twine(got));
    }
    shape[details.axis] += part[details.axis];
  }
  Array array = m.create(inst, first.getElementType(), shape);
  if (!array || !m.count(array.getNumElements(), inst.op))
    return false;
  SmallVector<int64_t> strides = stridesOf(shape);
  Slot *to = array.begin();
  for (int32_t number : details.parts) {
    const Array &part = m.tensors[number];
    if (part.getNumElements())
      copyStrided(to, strides, part.begin(), stridesOf(part.getShape()),
                  part.getShape());
    to += part.getShape()[details.axis] * strides[details.axis];
  }
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildConcat(CodeBuilder &b, Operation *op) {
  if (!b.emitOp(runConcat, op))
    return false;
  auto &details = b.addDetails<Parts>(b.code->insts.back());
  details.axis = cast<tensor::ConcatOp>(op).getDim();
  for (Value part : op->getOperands())
    details.parts.push_back(b.scalar(part));
  return true;
}

// --- pad

namespace {
struct Pad : Details {
  SmallVector<Operand> low, high;
  ElementBody body;
};
} // namespace

static bool runPad(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Pad>();
  const Array source = m.tensors[inst.a];
  SmallVector<int64_t> shape(source.getShape()), low;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    low.push_back(details.low[axis].get(m));
    const int64_t high = details.high[axis].get(m);
    if (low[axis] < 0 || high < 0 ||
        __builtin_add_overflow(shape[axis], low[axis], &shape[axis]) ||
        __builtin_add_overflow(shape[axis], high, &shape[axis]))
      return m.fail(inst, "expected padding of at least 0 on axis " +
                              Twine(axis) + ", but got " + Twine(low[axis]) +
                              " and " + Twine(high));
  }
  Array array = m.create(inst, source.getElementType(), shape);
  if (!array || !details.body.fill(m, inst, array))
    return false;
  SmallVector<int64_t> strides = stridesOf(shape);
  int64_t offset = 0;
  for (auto [stride, at] : llvm::zip_equal(strides, low))
    offset += stride * at;
  if (source.getNumElements())
    copyStrided(array.begin() + offset, strides, source.begin(),
                stridesOf(source.getShape()), source.getShape());
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildPad(CodeBuilder &b, Operation *op) {
  auto pad = cast<tensor::PadOp>(op);
  auto details = std::make_unique<Pad>();
  if (!details->body.build(b, *pad.getBody()) || !b.emitOp(runPad, op))
    return false;
  details->low = b.operands(pad.getMixedLowPad());
  details->high = b.operands(pad.getMixedHighPad());
  b.keepDetails(b.code->insts.back(), std::move(details));
  return true;
}

// --- forall, whose body ends with insertions into what the loop carries

namespace {
struct ForAll : Details {
  SmallVector<Operand> lower, upper, step;
  SmallVector<int32_t> indices;
  Code body;
};
} // namespace

static bool runForAll(Machine &m, const Inst &inst) {
  const auto &details = inst.as<ForAll>();
  SmallVector<int64_t> lower, upper, step;
  for (size_t axis = 0; axis < details.lower.size(); ++axis) {
    lower.push_back(details.lower[axis].get(m));
    upper.push_back(details.upper[axis].get(m));
    step.push_back(details.step[axis].get(m));
    if (step[axis] < 1)
      return m.fail(inst, "expected a step of at least 1, but got " +
                              Twine(step[axis]));
    if (lower[axis] >= upper[axis])
      return true;
  }
  SmallVector<int64_t> index = lower;
  for (;;) {
    for (auto [number, at] : llvm::zip_equal(details.indices, index))
      m.scalars[number].i = at;
    if (!m.count(1, inst.op) || !m.run(details.body))
      return false;
    size_t axis = index.size();
    for (; axis-- > 0; index[axis] = lower[axis])
      if (!__builtin_add_overflow(index[axis], step[axis], &index[axis]) &&
          index[axis] < upper[axis])
        break;
    if (axis == size_t(-1))
      return true;
  }
}

static bool buildForAll(CodeBuilder &b, Operation *op) {
  auto loop = cast<scf::ForallOp>(op);
  SmallVector<Register> carried, indices;
  if (!b.define(loop.getInductionVars(), &indices) ||
      !b.define(loop.getRegionIterArgs(), &carried))
    return false;
  b.emitMoves(loop.getOutputs(), carried, op);
  for (auto [result, register_] : llvm::zip_equal(op->getResults(), carried))
    b.alias(result, register_);
  auto details = std::make_unique<ForAll>();
  auto terminate = [&](Operation *terminator) {
    auto inParallel = cast<scf::InParallelOp>(terminator);
    for (Operation &nested : inParallel.getYieldingOps()) {
      auto insert = dyn_cast<tensor::ParallelInsertSliceOp>(nested);
      if (!insert)
        return b.unsupported(&nested, "expected tensor.parallel_insert_slice, "
                                      "but got '" +
                                          nested.getName().getStringRef() +
                                          "'");
      Inst &inst = b.emit(runInsertSlice, &nested);
      inst.a = b.scalar(insert.getSource());
      inst.b = inst.dst = b.scalar(insert.getDest());
      inst.imm = 1;
      readSlice(b, insert, b.addDetails<Slice>(inst));
    }
    return true;
  };
  // They stay where they are from one turn to the next.
  b.keepAlive(loop.getRegionIterArgs());
  if (!b.buildBlock(*loop.getBody(), details->body, terminate))
    return false;
  for (Register index : indices)
    details->indices.push_back(index.number);
  details->lower = b.operands(loop.getMixedLowerBound());
  details->upper = b.operands(loop.getMixedUpperBound());
  details->step = b.operands(loop.getMixedStep());
  Inst &inst = b.emit(runForAll, op);
  b.keepDetails(inst, std::move(details));
  return true;
}

void mlir::diffattn::interpreter::addTensorSliceOps(OpTable &table) {
  table["tensor.extract_slice"] = buildExtractSlice;
  table["tensor.insert_slice"] = buildInsertSlice;
  table["tensor.concat"] = buildConcat;
  table["tensor.pad"] = buildPad;
  table["scf.forall"] = buildForAll;
}
