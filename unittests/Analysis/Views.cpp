//===- Views.cpp - chains of views drawn from a seed ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Views.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;

namespace plain {

static int64_t product(ArrayRef<int64_t> shape) {
  int64_t elements = 1;
  for (int64_t size : shape)
    elements *= size;
  return elements;
}

RankedTensorType Views::typeOf(ArrayRef<int64_t> shape) const {
  return RankedTensorType::get(shape, program.builder.getF32Type());
}

static SmallVector<int64_t> typeShape(Value tensor) {
  return SmallVector<int64_t>(
      cast<RankedTensorType>(tensor.getType()).getShape());
}

Value Views::base(ArrayRef<int64_t> shape, bool mayBeConstant) {
  int64_t first = nextElement;
  nextElement += product(shape);
  if (mayBeConstant && draw.chance(6)) {
    SmallVector<float> elements;
    for (int64_t k = first; k < nextElement; ++k)
      elements.push_back(static_cast<float>(k));
    return note(
        arith::ConstantOp::create(
            program.builder, program.loc,
            DenseElementsAttr::get(typeOf(shape), ArrayRef<float>(elements))),
        shape);
  }
  SmallVector<int64_t> sizes(shape);
  for (int64_t &size : sizes)
    if (draw.chance(2))
      size = ShapedType::kDynamic;
  func::FuncOp function = program.function;
  unsigned k = function.getNumArguments();
  (void)function.insertArgument(k, typeOf(sizes), {}, program.loc);
  Value argument = function.getArgument(k);
  bases.push_back({argument, first});
  return note(argument, shape);
}

void Views::prepare(Execution &run) const {
  for (auto [argument, first] : bases) {
    Array array = Array::filled(shapes.lookup(argument), Number());
    for (auto [k, element] : llvm::enumerate(array.elements))
      element = Number::ofReal(static_cast<double>(first + k));
    run.set(argument, std::move(array));
  }
  for (auto [argument, number] : numbers)
    run.set(argument, Number::of(number));
}

OpFoldResult Views::sizeOf(Value tensor, int64_t axis) {
  return tensor::getMixedSize(program.builder, program.loc, tensor, axis);
}

Value Views::asValue(OpFoldResult size) {
  if (auto value = dyn_cast<Value>(size))
    return value;
  return program.integer(cast<IntegerAttr>(cast<Attribute>(size)).getInt(),
                         program.index());
}

OpFoldResult Views::number(int64_t number) {
  if (draw.chance(2))
    return program.builder.getIndexAttr(number);
  func::FuncOp function = program.function;
  unsigned k = function.getNumArguments();
  (void)function.insertArgument(k, program.index(), {}, program.loc);
  numbers.push_back({function.getArgument(k), number});
  return OpFoldResult(function.getArgument(k));
}

int64_t Views::staticSize(OpFoldResult size) const {
  auto attribute = dyn_cast<Attribute>(size);
  return attribute ? cast<IntegerAttr>(attribute).getInt()
                   : ShapedType::kDynamic;
}

Value Views::empty(ArrayRef<OpFoldResult> sizes, ArrayRef<int64_t> shape) {
  return tensor::EmptyOp::create(program.builder, program.loc, sizes,
                                 program.builder.getF32Type());
}

Value Views::transpose(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), moved, order;
  for (unsigned k = 0; k < shape.size(); ++k)
    order.push_back(k);
  for (unsigned k = shape.size(); k > 1; --k)
    std::swap(order[k - 1], order[draw.below(k)]);
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis : order) {
    moved.push_back(shape[axis]);
    sizes.push_back(sizeOf(tensor, axis));
  }
  return note(linalg::TransposeOp::create(program.builder, program.loc, tensor,
                                          empty(sizes, moved), order)
                  ->getResult(0),
              moved);
}

Value Views::expand(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), split;
  SmallVector<int64_t> types;
  SmallVector<OpFoldResult> sizes;
  SmallVector<ReassociationIndices> groups;
  int64_t chosen = draw.below(shape.size());
  for (auto [axis, size] : llvm::enumerate(shape)) {
    ReassociationIndices group = {static_cast<int64_t>(split.size())};
    OpFoldResult whole = sizeOf(tensor, axis);
    if (static_cast<int64_t>(axis) != chosen) {
      split.push_back(size);
      sizes.push_back(whole);
      groups.push_back(group);
      continue;
    }
    SmallVector<int64_t> factors;
    for (int64_t k = 1; k <= size; ++k)
      if (size % k == 0)
        factors.push_back(k);
    int64_t factor = draw.one(factors);
    group.push_back(split.size() + 1);
    groups.push_back(group);
    split.append({size / factor, factor});
    StringRef divisions[] = {"arith.divsi", "arith.divui", "arith.floordivsi",
                             "arith.ceildivsi", "arith.ceildivui"};
    OpFoldResult outer = program.builder.getIndexAttr(size / factor);
    if (isa<Value>(whole))
      outer = OpFoldResult(program.add(
          draw.one(divisions),
          {asValue(whole), program.integer(factor, program.index())},
          program.index()));
    sizes.push_back(outer);
    sizes.push_back(program.builder.getIndexAttr(factor));
  }
  for (OpFoldResult size : sizes)
    types.push_back(staticSize(size));
  return note(tensor::ExpandShapeOp::create(program.builder, program.loc,
                                            typeOf(types), tensor, groups,
                                            sizes),
              split);
}

Value Views::collapse(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), types = typeShape(tensor);
  if (shape.size() < 2)
    return expand(tensor);
  int64_t first = draw.below(shape.size() - 1),
          last = draw.from(first + 1, shape.size() - 1);
  SmallVector<ReassociationIndices> groups;
  SmallVector<int64_t> merged, mergedTypes;
  for (int64_t axis = 0; axis < static_cast<int64_t>(shape.size()); ++axis) {
    if (axis > first && axis <= last) {
      groups.back().push_back(axis);
      merged.back() *= shape[axis];
      mergedTypes.back() = ShapedType::isDynamic(mergedTypes.back()) ||
                                   ShapedType::isDynamic(types[axis])
                               ? ShapedType::kDynamic
                               : mergedTypes.back() * types[axis];
      continue;
    }
    groups.push_back({axis});
    merged.push_back(shape[axis]);
    mergedTypes.push_back(types[axis]);
  }
  return note(tensor::CollapseShapeOp::create(program.builder, program.loc,
                                              typeOf(mergedTypes), tensor,
                                              groups),
              merged);
}

/// Reshapes to any shape of as many elements, whose sizes are numbers.
Value Views::reshape(Value tensor) {
  int64_t rest = product(shapeOf(tensor));
  SmallVector<int64_t> shape, types;
  while (rest > 1 && shape.size() < 3) {
    SmallVector<int64_t> factors;
    for (int64_t k = 2; k <= rest; ++k)
      if (rest % k == 0)
        factors.push_back(k);
    int64_t factor = draw.one(factors);
    shape.push_back(factor);
    rest /= factor;
  }
  shape.push_back(rest);
  bool isDynamic = draw.chance(3);
  SmallVector<Value> sizes;
  for (int64_t size : shape) {
    sizes.push_back(
        asValue(isDynamic ? number(size)
                          : OpFoldResult(program.builder.getIndexAttr(size))));
    types.push_back(isDynamic ? ShapedType::kDynamic : size);
  }
  Value newShape =
      tensor::FromElementsOp::create(program.builder, program.loc, sizes);
  return note(tensor::ReshapeOp::create(program.builder, program.loc,
                                        typeOf(types), tensor, newShape),
              shape);
}

Value Views::slice(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), kept, types;
  SmallVector<OpFoldResult> offsets, sizes, strides;
  for (auto [axis, size] : llvm::enumerate(shape)) {
    int64_t offset = draw.chance(2) ? 0 : draw.below(size),
            stride = draw.chance(3) ? draw.from(1, 3) : 1;
    int64_t most = (size - offset + stride - 1) / stride,
            count = draw.chance(2) ? most : draw.from(1, most);
    bool isWhole = offset == 0 && stride == 1 && count == size;
    offsets.push_back(number(offset));
    strides.push_back(number(stride));
    sizes.push_back(isWhole ? sizeOf(tensor, axis)
                            : program.builder.getIndexAttr(count));
    if (!isWhole && count == 1 && draw.chance(2))
      continue; // an axis that is left out
    kept.push_back(count);
    types.push_back(staticSize(sizes.back()));
  }
  return note(tensor::ExtractSliceOp::create(program.builder, program.loc,
                                             typeOf(types), tensor, offsets,
                                             sizes, strides),
              kept);
}

/// Another tensor into this one, or this one into a larger one.
Value Views::insert(Value tensor) {
  bool isSource = draw.chance(2);
  SmallVector<int64_t> shape = shapeOf(tensor), other;
  SmallVector<OpFoldResult> offsets, sizes, strides;
  for (int64_t size : shape) {
    int64_t count = isSource ? size + draw.below(3) : draw.from(1, size);
    other.push_back(count);
    int64_t slack = std::abs(count - size);
    offsets.push_back(number(draw.from(0, slack)));
    strides.push_back(program.builder.getIndexAttr(1));
  }
  Value second = base(other), source = isSource ? tensor : second,
        into = isSource ? second : tensor;
  for (int64_t axis = 0; axis < static_cast<int64_t>(shape.size()); ++axis)
    sizes.push_back(sizeOf(source, axis));
  return note(tensor::InsertSliceOp::create(program.builder, program.loc,
                                            source, into, offsets, sizes,
                                            strides),
              shapeOf(into));
}

Value Views::concat(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor);
  int64_t along = draw.below(shape.size());
  SmallVector<Value> inputs = {tensor};
  int64_t total = shape[along];
  for (int64_t k = draw.from(1, 2); k > 0; --k) {
    if (draw.chance(3)) {
      inputs.push_back(tensor);
      total += shape[along];
      continue;
    }
    SmallVector<int64_t> other(shape);
    other[along] = draw.from(1, 3);
    inputs.push_back(base(other));
    total += other[along];
  }
  if (draw.chance(2))
    std::swap(inputs.front(), inputs.back());
  SmallVector<int64_t> types = typeShape(inputs[0]);
  types[along] = 0;
  for (Value input : inputs) {
    int64_t size = typeShape(input)[along];
    types[along] =
        ShapedType::isDynamic(size) || ShapedType::isDynamic(types[along])
            ? ShapedType::kDynamic
            : types[along] + size;
  }
  for (auto [axis, type] : llvm::enumerate(types))
    for (Value input : inputs)
      if (static_cast<int64_t>(axis) != along && ShapedType::isDynamic(type))
        type = typeShape(input)[axis];
  shape[along] = total;
  return note(tensor::ConcatOp::create(program.builder, program.loc,
                                       typeOf(types), along, inputs),
              shape);
}

Value Views::broadcast(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), wide;
  int64_t at = draw.below(shape.size() + 1), extent = draw.from(1, 3);
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0; axis <= static_cast<int64_t>(shape.size()); ++axis) {
    if (axis == at) {
      wide.push_back(extent);
      sizes.push_back(number(extent));
    }
    if (axis < static_cast<int64_t>(shape.size())) {
      wide.push_back(shape[axis]);
      sizes.push_back(sizeOf(tensor, axis));
    }
  }
  return note(linalg::BroadcastOp::create(program.builder, program.loc, tensor,
                                          empty(sizes, wide),
                                          ArrayRef<int64_t>{at})
                  ->getResult(0),
              wide);
}

Value Views::pad(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), types = typeShape(tensor);
  SmallVector<OpFoldResult> low, high;
  for (auto [axis, size] : llvm::enumerate(shape)) {
    int64_t before = draw.below(2), after = draw.below(2);
    low.push_back(program.builder.getIndexAttr(before));
    high.push_back(program.builder.getIndexAttr(after));
    size += before + after;
    if (!ShapedType::isDynamic(types[axis]))
      types[axis] += before + after;
  }
  return note(tensor::PadOp::create(
                  program.builder, program.loc, typeOf(types), tensor, low,
                  high, program.real(-1, program.builder.getF32Type())),
              shape);
}

/// A body that reads elsewhere along one axis: backwards, every second, each
/// twice, in turns, or in a fixed order.
Value Views::gather(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor);
  int64_t along = draw.below(shape.size()), size = shape[along];
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0; axis < static_cast<int64_t>(shape.size()); ++axis)
    sizes.push_back(sizeOf(tensor, axis));
  Value length = asValue(sizes[along]);
  int64_t way = draw.below(6), by = draw.from(1, 3);
  if (way == 1)
    shape[along] = (size + by - 1) / by;
  if (way == 2 || way == 3)
    shape[along] = size * by;
  SmallVector<int32_t> order;
  for (int64_t k = 0; k < size; ++k)
    order.push_back(static_cast<int32_t>(draw.below(size)));
  Value table;
  if (way == 4)
    table = arith::ConstantOp::create(
        program.builder, program.loc,
        DenseElementsAttr::get(RankedTensorType::get(size, program.type(32)),
                               ArrayRef<int32_t>(order)));
  if (shape[along] != size || way == 4)
    sizes[along] = program.builder.getIndexAttr(shape[along]);
  OpBuilder &b = program.builder;
  SmallVector<AffineMap> maps = {b.getMultiDimIdentityMap(shape.size())};
  SmallVector<utils::IteratorType> iterators(shape.size(),
                                             utils::IteratorType::parallel);
  Value init = empty(sizes, shape);
  auto generic = linalg::GenericOp::create(
      b, program.loc, init.getType(), ValueRange(), init, maps, iterators,
      [&](OpBuilder &inner, Location loc, ValueRange) {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToEnd(inner.getInsertionBlock());
        SmallVector<Value> at;
        for (unsigned axis = 0; axis < shape.size(); ++axis)
          at.push_back(linalg::IndexOp::create(b, loc, axis));
        Value &k = at[along];
        Type index = program.index();
        auto op = [&](StringRef name, Value x, Value y) {
          return program.add(("arith." + name).str(), {x, y}, index);
        };
        Value one = program.integer(1, index),
              number = program.integer(by, index);
        if (way == 0) {
          k = op("subi", op("subi", length, one), k);
        } else if (way == 1) {
          k = op("muli", k, number);
        } else if (way == 2) {
          StringRef divisions[] = {"divsi", "divui", "floordivsi"};
          k = op(draw.one(divisions), k, number);
        } else if (way == 3) {
          StringRef rests[] = {"remsi", "remui"};
          k = op(draw.one(rests), k, length);
        } else if (way == 4) {
          Value place = tensor::ExtractOp::create(b, loc, table, k);
          k = program.add(draw.chance(2) ? "arith.index_cast"
                                         : "arith.index_castui",
                          place, index);
        } else {
          // As a front end broadcasts: at 0 in an axis of one element.
          Value isOne = program.compare(arith::CmpIPredicate::eq, length, one);
          k = program.add("arith.select", {isOne, program.integer(0, index), k},
                          index);
        }
        Value element = tensor::ExtractOp::create(b, loc, tensor, at);
        linalg::YieldOp::create(b, loc, element);
      });
  return note(generic.getResult(0), shape);
}

/// Some sizes are forgotten, or stated.
Value Views::recast(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor), types = typeShape(tensor);
  for (auto [axis, type] : llvm::enumerate(types))
    if (draw.chance(2))
      type = ShapedType::isDynamic(type) ? shape[axis] : ShapedType::kDynamic;
  if (typeOf(types) == tensor.getType())
    return tensor;
  return note(tensor::CastOp::create(program.builder, program.loc,
                                     typeOf(types), tensor),
              shape);
}

Value Views::step(Value tensor) {
  SmallVector<int64_t> shape = shapeOf(tensor);
  int64_t elements = product(shape);
  if (shape.empty())
    return broadcast(tensor);
  switch (draw.below(12)) {
  case 0:
  case 1:
    return transpose(tensor);
  case 2:
    return shape.size() < 4 ? expand(tensor) : collapse(tensor);
  case 3:
    return collapse(tensor);
  case 4:
    return reshape(tensor);
  case 5:
    return slice(tensor);
  case 6:
    return insert(tensor);
  case 7:
    return elements < 60 ? concat(tensor) : slice(tensor);
  case 8:
    return elements < 60 && shape.size() < 4 ? broadcast(tensor)
                                             : slice(tensor);
  case 9:
    return elements < 40 && draw.chance(3) ? pad(tensor) : transpose(tensor);
  case 10:
    return elements < 60 ? gather(tensor) : slice(tensor);
  default:
    return recast(tensor);
  }
}

} // namespace plain
