//===- TensorOps.cpp - making, reading and reshaping tensors --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"
#include "ElementBody.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

namespace {
/// A tensor of a type with sizes that are known or lie in registers.
struct Sized : Details {
  Type elementType;
  SmallVector<Operand> sizes;
  SmallVector<int32_t> elements; ///< registers of tensor.from_elements

  SmallVector<int64_t> getShape(const Machine &m) const {
    return llvm::map_to_vector(
        sizes, [&](const Operand &size) { return size.get(m); });
  }
};
} // namespace

static SmallVector<Operand> sizesOf(CodeBuilder &b, RankedTensorType type,
                                    ValueRange dynamic) {
  SmallVector<Operand> sizes;
  size_t next = 0;
  for (int64_t size : type.getShape()) {
    if (ShapedType::isDynamic(size))
      sizes.push_back({0, b.scalar(dynamic[next++])});
    else
      sizes.push_back({size, -1});
  }
  return sizes;
}

/// An instruction that makes the only result of `op`.
template <typename T>
static T *emitWith(CodeBuilder &b, Operation *op, Handler run) {
  if (!b.emitOp(run, op))
    return nullptr;
  return &b.addDetails<T>(b.code->insts.back());
}

static Sized *buildSized(CodeBuilder &b, Operation *op, Handler run,
                         ValueRange dynamic) {
  auto *details = emitWith<Sized>(b, op, run);
  if (!details)
    return nullptr;
  auto type = cast<RankedTensorType>(op->getResult(0).getType());
  details->elementType = type.getElementType();
  details->sizes = sizesOf(b, type, dynamic);
  return details;
}

/// Elements that are read before they are written should be seen: NaN, and
/// integers of an odd pattern.
static bool runEmpty(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Sized>();
  SmallVector<int64_t> shape = details.getShape(m);
  Array array = m.create(inst, details.elementType, shape);
  if (!array)
    return false;
  Slot unset;
  if (array.isFloat())
    unset.f = std::numeric_limits<double>::quiet_NaN();
  else
    unset.i = signExtend(0x5a5a5a5a5a5a5a5a, getWidth(details.elementType));
  std::fill_n(array.begin(), array.getNumElements(), unset);
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildEmpty(CodeBuilder &b, Operation *op) {
  return buildSized(b, op, runEmpty, op->getOperands());
}

static bool runSplat(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Sized>();
  SmallVector<int64_t> shape = details.getShape(m);
  Array array = m.create(inst, details.elementType, shape);
  if (!array)
    return false;
  std::fill_n(array.begin(), array.getNumElements(), m.scalars[inst.a]);
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildSplat(CodeBuilder &b, Operation *op) {
  return buildSized(b, op, runSplat, op->getOperands().drop_front());
}

static bool runFromElements(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Sized>();
  SmallVector<int64_t> shape = details.getShape(m);
  Array array = m.create(inst, details.elementType, shape);
  if (!array)
    return false;
  for (auto [i, number] : llvm::enumerate(details.elements))
    array.begin()[i] = m.scalars[number];
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildFromElements(CodeBuilder &b, Operation *op) {
  Sized *details = buildSized(b, op, runFromElements, {});
  if (!details)
    return false;
  for (Value element : op->getOperands())
    details->elements.push_back(b.scalar(element));
  return true;
}

// --- generate

namespace {
struct Generate : Details {
  Type elementType;
  SmallVector<Operand> sizes;
  ElementBody body;
};
} // namespace

static bool runGenerate(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Generate>();
  SmallVector<int64_t> shape = llvm::map_to_vector(
      details.sizes, [&](const Operand &size) { return size.get(m); });
  Array array = m.create(inst, details.elementType, shape);
  if (!array || !details.body.fill(m, inst, array))
    return false;
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildGenerate(CodeBuilder &b, Operation *op) {
  auto generate = cast<tensor::GenerateOp>(op);
  auto details = std::make_unique<Generate>();
  if (!details->body.build(b, generate.getBody().front()) ||
      !b.emitOp(runGenerate, op))
    return false;
  details->elementType = generate.getType().getElementType();
  details->sizes = sizesOf(b, generate.getType(), generate.getDynamicExtents());
  b.keepDetails(b.code->insts.back(), std::move(details));
  return true;
}

// --- elements and sizes

namespace {
struct Indices : Details {
  SmallVector<Operand> indices;
};
} // namespace

/// The place of an element; -1 after a failure.
static int64_t findElement(Machine &m, const Inst &inst, const Array &array) {
  int64_t at = 0;
  ArrayRef<int64_t> shape = array.getShape();
  for (auto [axis, index] : llvm::enumerate(inst.as<Indices>().indices)) {
    const int64_t i = index.get(m);
    if (static_cast<uint64_t>(i) >= static_cast<uint64_t>(shape[axis])) {
      m.fail(inst, "expected an index from 0 and below " + Twine(shape[axis]) +
                       " on axis " + Twine(axis) + ", but got " + Twine(i));
      return -1;
    }
    at = at * shape[axis] + i;
  }
  return at;
}

static bool runExtract(Machine &m, const Inst &inst) {
  const Array &array = m.tensors[inst.a];
  const int64_t at = findElement(m, inst, array);
  if (at < 0)
    return false;
  m.scalars[inst.dst] = array.begin()[at];
  return true;
}
static bool buildExtract(CodeBuilder &b, Operation *op) {
  auto extract = cast<tensor::ExtractOp>(op);
  auto *details = emitWith<Indices>(b, op, runExtract);
  if (!details)
    return false;
  for (Value index : extract.getIndices())
    details->indices.push_back(b.operand(index));
  return true;
}

static bool runInsert(Machine &m, const Inst &inst) {
  const int64_t at = findElement(m, inst, m.tensors[inst.b]);
  if (at < 0)
    return false;
  Array array = m.makeWritable(inst, m.take(inst, inst.b));
  if (!array)
    return false;
  array.begin()[at] = m.scalars[inst.a];
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildInsert(CodeBuilder &b, Operation *op) {
  auto insert = cast<tensor::InsertOp>(op);
  auto *details = emitWith<Indices>(b, op, runInsert);
  if (!details)
    return false;
  for (Value index : insert.getIndices())
    details->indices.push_back(b.operand(index));
  return true;
}

static bool runDim(Machine &m, const Inst &inst) {
  const Array &array = m.tensors[inst.a];
  const int64_t axis = m.scalars[inst.b].i;
  if (axis < 0 || axis >= array.getRank())
    return m.fail(inst, "expected an axis from 0 and below " +
                            Twine(array.getRank()) + ", but got " +
                            Twine(axis));
  m.scalars[inst.dst].i = array.getShape()[axis];
  return true;
}
static bool buildDim(CodeBuilder &b, Operation *op) {
  return b.emitOp(runDim, op);
}

static bool runRank(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].i = m.tensors[inst.a].getRank();
  return true;
}
static bool buildRank(CodeBuilder &b, Operation *op) {
  return b.emitOp(runRank, op);
}

// --- other types and shapes of the same elements

namespace {
struct Typed : Details {
  RankedTensorType type;
  SmallVector<ReassociationIndices> groups;
  SmallVector<Operand> sizes;
};
} // namespace

/// Whether `shape` is one of `type`.
static bool checkShape(Machine &m, const Inst &inst, ArrayRef<int64_t> shape,
                       RankedTensorType type) {
  if (static_cast<int64_t>(shape.size()) != type.getRank())
    return m.fail(inst, "expected rank " + Twine(type.getRank()) +
                            ", but got " + Twine(shape.size()));
  for (auto [axis, sizes] :
       llvm::enumerate(llvm::zip_equal(shape, type.getShape()))) {
    auto [got, expected] = sizes;
    if (!ShapedType::isDynamic(expected) && expected != got)
      return m.fail(inst, "expected size " + Twine(expected) + " on axis " +
                              Twine(axis) + ", but got " + Twine(got));
  }
  return true;
}

static bool runCast(Machine &m, const Inst &inst) {
  if (!checkShape(m, inst, m.tensors[inst.a].getShape(), inst.as<Typed>().type))
    return false;
  m.tensors[inst.dst] = m.take(inst, inst.a);
  return true;
}
static bool buildCast(CodeBuilder &b, Operation *op) {
  auto *details = emitWith<Typed>(b, op, runCast);
  if (details)
    details->type = cast<RankedTensorType>(op->getResult(0).getType());
  return details;
}

static bool runReshape(Machine &m, const Inst &inst) {
  const Array &newShape = m.tensors[inst.b];
  const Array &from = m.tensors[inst.a];
  SmallVector<int64_t> shape;
  int64_t count = 1;
  bool fits = true;
  for (int64_t i = 0; i < newShape.getNumElements(); ++i) {
    shape.push_back(newShape.begin()[i].i);
    fits &= shape.back() >= 0 &&
            !__builtin_mul_overflow(count, shape.back(), &count);
  }
  if (!fits || count != from.getNumElements())
    return m.fail(inst, "expected a shape of " + Twine(from.getNumElements()) +
                            " elements, but got " + describeShape(shape));
  if (!checkShape(m, inst, shape, inst.as<Typed>().type))
    return false;
  m.tensors[inst.dst] = m.take(inst, inst.a).reshaped(shape);
  return true;
}
static bool buildReshape(CodeBuilder &b, Operation *op) {
  auto *details = emitWith<Typed>(b, op, runReshape);
  if (details)
    details->type = cast<RankedTensorType>(op->getResult(0).getType());
  return details;
}

static bool runCollapse(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Typed>();
  ArrayRef<int64_t> from = m.tensors[inst.a].getShape();
  SmallVector<int64_t> shape;
  for (const ReassociationIndices &group : details.groups) {
    int64_t size = 1;
    for (int64_t axis : group)
      // Since the array exists, a product overflows only beside a size of 0.
      if (__builtin_mul_overflow(size, from[axis], &size))
        return m.fail(inst,
                      "expected sizes whose product is an index, but got " +
                          describeShape(from));
    shape.push_back(size);
  }
  if (!checkShape(m, inst, shape, details.type))
    return false;
  m.tensors[inst.dst] = m.take(inst, inst.a).reshaped(shape);
  return true;
}
static bool runExpand(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Typed>();
  ArrayRef<int64_t> from = m.tensors[inst.a].getShape();
  SmallVector<int64_t> shape = llvm::map_to_vector(
      details.sizes, [&](const Operand &size) { return size.get(m); });
  for (auto [axis, group] : llvm::enumerate(details.groups)) {
    int64_t size = 1;
    bool fits = true;
    for (int64_t part : group)
      fits &=
          shape[part] >= 0 && !__builtin_mul_overflow(size, shape[part], &size);
    if (!fits || size != from[axis])
      return m.fail(inst, "expected sizes whose product is " +
                              Twine(from[axis]) + " for axis " + Twine(axis) +
                              ", but got the shape " + describeShape(shape));
  }
  m.tensors[inst.dst] = m.take(inst, inst.a).reshaped(shape);
  return true;
}
static bool buildCollapse(CodeBuilder &b, Operation *op) {
  auto *details = emitWith<Typed>(b, op, runCollapse);
  if (!details)
    return false;
  auto collapse = cast<tensor::CollapseShapeOp>(op);
  details->type = collapse.getResultType();
  details->groups = collapse.getReassociationIndices();
  return true;
}
static bool buildExpand(CodeBuilder &b, Operation *op) {
  auto *details = emitWith<Typed>(b, op, runExpand);
  if (!details)
    return false;
  auto expand = cast<tensor::ExpandShapeOp>(op);
  details->type = expand.getResultType();
  details->groups = expand.getReassociationIndices();
  details->sizes = b.operands(expand.getMixedOutputShape());
  return true;
}

void mlir::diffattn::interpreter::addTensorOps(OpTable &table) {
  table["tensor.empty"] = buildEmpty;
  table["tensor.splat"] = buildSplat;
  table["tensor.from_elements"] = buildFromElements;
  table["tensor.generate"] = buildGenerate;
  table["tensor.extract"] = buildExtract;
  table["tensor.insert"] = buildInsert;
  table["tensor.dim"] = buildDim;
  table["tensor.rank"] = buildRank;
  table["tensor.cast"] = buildCast;
  table["tensor.reshape"] = buildReshape;
  table["tensor.collapse_shape"] = buildCollapse;
  table["tensor.expand_shape"] = buildExpand;
}
