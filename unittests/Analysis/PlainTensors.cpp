//===- PlainTensors.cpp - ops on tensors in plain C++ ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Plain.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"

#include "gtest/gtest.h"

using namespace mlir;

namespace plain {

static int64_t product(ArrayRef<int64_t> shape) {
  int64_t elements = 1;
  for (int64_t size : shape)
    elements *= size;
  return elements;
}

Array Array::filled(ArrayRef<int64_t> shape, Number number) {
  Array array;
  array.shape.assign(shape.begin(), shape.end());
  array.elements.assign(product(shape), number);
  return array;
}

int64_t Array::place(ArrayRef<int64_t> at) const {
  int64_t place = 0;
  for (auto [size, k] : llvm::zip_equal(shape, at)) {
    if (k < 0 || k >= size)
      return -1;
    place = place * size + k;
  }
  return place;
}

Number Array::at(ArrayRef<int64_t> position) const {
  int64_t number = place(position);
  return number < 0 ? Number() : elements[number];
}

void forEach(ArrayRef<int64_t> shape,
             llvm::function_ref<void(ArrayRef<int64_t>)> fn) {
  SmallVector<int64_t> at(shape.size(), 0);
  for (int64_t turn = product(shape); turn > 0; --turn) {
    fn(at);
    for (int64_t axis = static_cast<int64_t>(shape.size()) - 1;
         axis >= 0 && ++at[axis] == shape[axis]; --axis)
      at[axis] = 0;
  }
}

/// An array of `shape` whose elements `fn` gives for each position.
static Array fromPositions(ArrayRef<int64_t> shape,
                           llvm::function_ref<Number(ArrayRef<int64_t>)> fn) {
  Array array;
  array.shape.assign(shape.begin(), shape.end());
  forEach(shape,
          [&](ArrayRef<int64_t> at) { array.elements.push_back(fn(at)); });
  return array;
}

Number Execution::number(Value value) const {
  auto it = numbers.find(value);
  EXPECT_TRUE(it != numbers.end()) << "a scalar without a value";
  return it == numbers.end() ? Number() : it->second;
}

const Array &Execution::array(Value value) const {
  static const Array none;
  auto it = arrays.find(value);
  EXPECT_TRUE(it != arrays.end()) << "a tensor without elements";
  return it == arrays.end() ? none : it->second;
}

int64_t Execution::integer(OpFoldResult value) const {
  if (auto attribute = dyn_cast<Attribute>(value))
    return cast<IntegerAttr>(attribute).getInt();
  return number(cast<Value>(value)).integer;
}

void Execution::run(func::FuncOp function) {
  for (Operation &op : function.getBody().front().without_terminator())
    run(&op);
}

SmallVector<Number> Execution::run(Block &block) {
  for (Operation &op : block.without_terminator())
    run(&op);
  SmallVector<Number> yielded;
  for (Value value : block.getTerminator()->getOperands())
    yielded.push_back(number(value));
  return yielded;
}

void Execution::run(Operation *op) {
  if (isa<cf::AssertOp>(op))
    return;
  if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op))
    return runLinalg(linalgOp);
  if (auto choice = dyn_cast<scf::IfOp>(op)) {
    Number condition = number(choice.getCondition());
    SmallVector<Number> results(op->getNumResults());
    if (condition.isDefined())
      results = run(condition.integer ? choice.getThenRegion().front()
                                      : choice.getElseRegion().front());
    for (auto [result, value] : llvm::zip(op->getResults(), results))
      numbers[result] = value;
    return;
  }
  if (auto index = dyn_cast<linalg::IndexOp>(op)) {
    numbers[index.getResult()] = Number::of(position[index.getDim()]);
    return;
  }
  if (auto apply = dyn_cast<affine::AffineApplyOp>(op)) {
    SmallVector<Attribute> operands;
    Builder builder(op->getContext());
    for (Value operand : apply.getMapOperands())
      operands.push_back(builder.getIndexAttr(number(operand).integer));
    SmallVector<Attribute> results;
    bool poison = false;
    numbers[apply.getResult()] =
        succeeded(
            apply.getAffineMap().constantFold(operands, results, &poison)) &&
                !poison
            ? Number::of(cast<IntegerAttr>(results[0]).getInt())
            : Number();
    return;
  }
  bool isTensor =
      llvm::any_of(op->getOperandTypes(), llvm::IsaPred<TensorType>) ||
      llvm::any_of(op->getResultTypes(), llvm::IsaPred<TensorType>);
  if (isTensor)
    return runTensor(op);
  if (op->getNumResults() != 1)
    return;
  SmallVector<Number> operands;
  for (Value operand : op->getOperands())
    operands.push_back(number(operand));
  numbers[op->getResult(0)] = compute(op, operands);
}

void Execution::runLinalg(linalg::LinalgOp op) {
  SmallVector<int64_t> extents(op.getNumLoops(), -1);
  for (OpOperand &operand : op->getOpOperands())
    if (isa<TensorType>(operand.get().getType()))
      for (auto [axis, expr] :
           llvm::enumerate(op.getMatchingIndexingMap(&operand).getResults()))
        if (auto dim = dyn_cast<AffineDimExpr>(expr))
          extents[dim.getPosition()] = array(operand.get()).shape[axis];
  SmallVector<Array> results;
  for (Value init : op.getDpsInits())
    results.push_back(array(init));
  Block &body = *op.getBlock();
  Builder builder(op.getContext());
  SmallVector<int64_t> outer = position;
  forEach(extents, [&](ArrayRef<int64_t> at) {
    position.assign(at.begin(), at.end());
    auto read = [&](OpOperand &operand) {
      SmallVector<int64_t> element =
          op.getMatchingIndexingMap(&operand).compose(at);
      return element;
    };
    for (OpOperand &operand : op->getOpOperands()) {
      Value argument = op.getMatchingBlockArgument(&operand);
      if (op.isDpsInit(&operand)) {
        unsigned k = operand.getOperandNumber() - op.getNumDpsInputs();
        numbers[argument] = results[k].at(read(operand));
      } else if (isa<TensorType>(operand.get().getType())) {
        numbers[argument] = array(operand.get()).at(read(operand));
      } else {
        numbers[argument] = number(operand.get());
      }
    }
    SmallVector<Number> yielded = run(body);
    for (auto [k, value] : llvm::enumerate(yielded)) {
      int64_t place = results[k].place(read(*op.getDpsInitOperand(k)));
      if (place >= 0)
        results[k].elements[place] = value;
    }
  });
  position = outer;
  for (auto [result, array] : llvm::zip(op->getResults(), results))
    arrays[result] = std::move(array);
}

static Array constantArray(Attribute attribute) {
  auto elements = cast<DenseElementsAttr>(attribute);
  Array array;
  array.shape.assign(elements.getType().getShape().begin(),
                     elements.getType().getShape().end());
  Type type = elements.getElementType();
  if (isa<FloatType>(type))
    for (APFloat number : elements.getValues<APFloat>())
      array.elements.push_back(Number::ofReal(number.convertToDouble()));
  else
    for (APInt number : elements.getValues<APInt>())
      array.elements.push_back(Number::of(wrap(number.getSExtValue(), type)));
  return array;
}

void Execution::runTensor(Operation *op) {
  auto all = [&](ArrayRef<OpFoldResult> values) {
    SmallVector<int64_t> numbers;
    for (OpFoldResult value : values)
      numbers.push_back(integer(value));
    return numbers;
  };
  if (Attribute elements; matchPattern(op, m_Constant(&elements))) {
    arrays[op->getResult(0)] = constantArray(elements);
    return;
  }
  if (auto dim = dyn_cast<tensor::DimOp>(op)) {
    int64_t axis = number(dim.getIndex()).integer;
    const Array &source = array(dim.getSource());
    bool exists = axis >= 0 && axis < static_cast<int64_t>(source.shape.size());
    numbers[dim] = exists ? Number::of(source.shape[axis]) : Number();
    return;
  }
  if (auto extract = dyn_cast<tensor::ExtractOp>(op)) {
    SmallVector<int64_t> at;
    bool isDefined = true;
    for (Value index : extract.getIndices()) {
      isDefined &= number(index).isDefined();
      at.push_back(number(index).integer);
    }
    numbers[extract] = isDefined ? array(extract.getTensor()).at(at) : Number();
    return;
  }
  Value result = op->getResult(0);
  auto regroup = [&](Value source, ArrayRef<int64_t> shape) {
    Array regrouped = array(source);
    EXPECT_EQ(product(shape), product(regrouped.shape));
    regrouped.shape.assign(shape.begin(), shape.end());
    arrays[result] = std::move(regrouped);
  };
  if (auto empty = dyn_cast<tensor::EmptyOp>(op)) {
    arrays[result] = Array::filled(all(empty.getMixedSizes()), Number());
  } else if (auto recast = dyn_cast<tensor::CastOp>(op)) {
    arrays[result] = Array(array(recast.getSource()));
  } else if (auto expand = dyn_cast<tensor::ExpandShapeOp>(op)) {
    regroup(expand.getSrc(), all(expand.getMixedOutputShape()));
  } else if (auto collapse = dyn_cast<tensor::CollapseShapeOp>(op)) {
    SmallVector<int64_t> shape;
    for (auto &group : collapse.getReassociationIndices()) {
      shape.push_back(1);
      for (int64_t k : group)
        shape.back() *= array(collapse.getSrc()).shape[k];
    }
    regroup(collapse.getSrc(), shape);
  } else if (auto reshape = dyn_cast<tensor::ReshapeOp>(op)) {
    SmallVector<int64_t> shape;
    for (Number size : array(reshape.getShape()).elements)
      shape.push_back(size.integer);
    regroup(reshape.getSource(), shape);
  } else if (auto slice = dyn_cast<tensor::ExtractSliceOp>(op)) {
    SmallVector<int64_t> offsets = all(slice.getMixedOffsets()),
                         sizes = all(slice.getMixedSizes()),
                         strides = all(slice.getMixedStrides());
    const Array &source = array(slice.getSource());
    Array whole = fromPositions(sizes, [&](ArrayRef<int64_t> at) {
      SmallVector<int64_t> from;
      for (auto [k, offset, stride] : llvm::zip(at, offsets, strides))
        from.push_back(offset + k * stride);
      return source.at(from);
    });
    SmallVector<int64_t> kept;
    llvm::SmallBitVector dropped = slice.getDroppedDims();
    for (auto [axis, size] : llvm::enumerate(sizes))
      if (!dropped.test(axis))
        kept.push_back(size);
    whole.shape.assign(kept.begin(), kept.end());
    arrays[result] = std::move(whole);
  } else if (auto insert = dyn_cast<tensor::InsertSliceOp>(op)) {
    SmallVector<int64_t> offsets = all(insert.getMixedOffsets()),
                         sizes = all(insert.getMixedSizes()),
                         strides = all(insert.getMixedStrides());
    Array into = array(insert.getDest());
    int64_t next = 0;
    const Array &source = array(insert.getSource());
    forEach(sizes, [&](ArrayRef<int64_t> at) {
      SmallVector<int64_t> to;
      for (auto [k, offset, stride] : llvm::zip(at, offsets, strides))
        to.push_back(offset + k * stride);
      if (int64_t place = into.place(to); place >= 0)
        into.elements[place] = source.elements[next];
      ++next;
    });
    arrays[result] = std::move(into);
  } else if (auto concat = dyn_cast<tensor::ConcatOp>(op)) {
    int64_t along = concat.getDim();
    SmallVector<int64_t> shape = array(concat.getInputs()[0]).shape;
    shape[along] = 0;
    for (Value input : concat.getInputs())
      shape[along] += array(input).shape[along];
    arrays[result] = fromPositions(shape, [&](ArrayRef<int64_t> at) {
      SmallVector<int64_t> from(at);
      for (Value input : concat.getInputs()) {
        if (from[along] < array(input).shape[along])
          return array(input).at(from);
        from[along] -= array(input).shape[along];
      }
      return Number();
    });
  } else if (auto pad = dyn_cast<tensor::PadOp>(op)) {
    SmallVector<int64_t> low = all(pad.getMixedLowPad()),
                         high = all(pad.getMixedHighPad()), shape;
    Array source = array(pad.getSource());
    for (auto [before, size, after] : llvm::zip(low, source.shape, high))
      shape.push_back(before + size + after);
    Number padding = number(pad.getConstantPaddingValue());
    arrays[result] = fromPositions(shape, [&](ArrayRef<int64_t> at) {
      SmallVector<int64_t> from;
      for (auto [k, before] : llvm::zip(at, low))
        from.push_back(k - before);
      return source.place(from) < 0 ? padding : source.at(from);
    });
  } else if (auto splat = dyn_cast<tensor::SplatOp>(op)) {
    auto type = cast<RankedTensorType>(result.getType());
    SmallVector<int64_t> shape;
    unsigned dynamic = 0;
    for (int64_t size : type.getShape())
      shape.push_back(ShapedType::isDynamic(size)
                          ? number(splat.getDynamicSizes()[dynamic++]).integer
                          : size);
    arrays[result] = Array::filled(shape, number(splat.getInput()));
  } else if (auto from = dyn_cast<tensor::FromElementsOp>(op)) {
    Array array;
    array.shape.assign(from.getType().getShape().begin(),
                       from.getType().getShape().end());
    for (Value element : from.getElements())
      array.elements.push_back(number(element));
    arrays[result] = std::move(array);
  } else {
    // Element-wise on tensors; scalars stand for all elements.
    SmallVector<int64_t> shape;
    for (Value operand : op->getOperands())
      if (isa<TensorType>(operand.getType()))
        shape = array(operand).shape;
    arrays[result] = fromPositions(shape, [&](ArrayRef<int64_t> at) {
      SmallVector<Number> operands;
      for (Value operand : op->getOperands())
        operands.push_back(isa<TensorType>(operand.getType())
                               ? array(operand).at(at)
                               : number(operand));
      return compute(op, operands);
    });
  }
}

} // namespace plain
