//===- KernelWriter.cpp - writes one kernel and its launch -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelWriter.h"

#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "DiffAttn/Codegen/NVVM/HopperBuilder.h"

#include "mlir/Dialect/Affine/Utils.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

void Launch::emit(ImplicitLocOpBuilder &host) const {
  auto module = kernel->getParentOfType<gpu::GPUModuleOp>();
  auto symbol = SymbolRefAttr::get(module.getNameAttr(),
                                   {FlatSymbolRefAttr::get(kernel)});
  Value one = arith::ConstantIndexOp::create(host, 1);
  Value width = arith::ConstantIndexOp::create(host, threads);
  Value shared = arith::ConstantIntOp::create(host, 0, 32);
  gpu::LaunchFuncOp::create(host, symbol, gpu::KernelDim3{blocks, one, one},
                            gpu::KernelDim3{width, one, one}, shared,
                            arguments);
}

KernelWriter::KernelWriter(KernelModule &kernels, ImplicitLocOpBuilder &host,
                           ArrayRef<scf::ForOp> enclosing, int64_t threads)
    : kernels(kernels), host(host), enclosing(enclosing), threads(threads),
      kernel(kernels.create(host.getLoc(), threads)), b(host.getLoc(), kernel) {
}

// Values.

Value KernelWriter::index(int64_t value) {
  return arith::ConstantIndexOp::create(b, value);
}
Value KernelWriter::add(Value x, Value y) {
  return b.createOrFold<arith::AddIOp>(x, y);
}
Value KernelWriter::mul(Value x, Value y) {
  return b.createOrFold<arith::MulIOp>(x, y);
}

Value KernelWriter::parameter(Value value) {
  Value &slot = parameters[value];
  if (slot)
    return slot;
  Type type = value.getType();
  bool isIndex = isa<IndexType>(type), isBit = type.isInteger(1);
  Value bits = value;
  if (isIndex)
    bits = arith::IndexCastOp::create(host, host.getI64Type(), value);
  else if (isBit)
    bits = arith::ExtUIOp::create(host, host.getI32Type(), value);
  Block &entry = kernel.getBody().front();
  Value argument = entry.addArgument(bits.getType(), b.getLoc());
  arguments.push_back(bits);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&entry);
  if (isIndex)
    argument = arith::IndexCastOp::create(b, type, argument);
  else if (isBit)
    argument = arith::TruncIOp::create(b, type, argument);
  return slot = argument;
}

Value KernelWriter::pointerParameter(Value memref) {
  Value &slot = pointers[memref];
  if (slot)
    return slot;
  auto type = LLVM::LLVMPointerType::get(host.getContext(), 1);
  Value address = arith::IndexCastOp::create(host, host.getI64Type(),
                                             addressOf(host, memref));
  arguments.push_back(LLVM::IntToPtrOp::create(host, type, address));
  return slot = kernel.getBody().front().addArgument(type, b.getLoc());
}

Value KernelWriter::size(OpFoldResult value) {
  if (std::optional<int64_t> constant = getConstantIntValue(value))
    return index(*constant);
  return parameter(cast<Value>(value));
}

Value KernelWriter::thread() {
  Value wide = b.toI64(b.threadId());
  return arith::IndexCastOp::create(b, b.getIndexType(), wide);
}
Value KernelWriter::block() {
  return arith::IndexCastOp::create(b, b.getIndexType(), b.toI64(b.blockId(0)));
}
Value KernelWriter::blocks() {
  return arith::IndexCastOp::create(b, b.getIndexType(),
                                    b.toI64(b.gridSize(0)));
}

Value KernelWriter::scalar(Value value) {
  if (Value known = scalars.lookup(value))
    return known;
  Operation *op = value.getDefiningOp();
  Value result;
  if (op && op->hasTrait<OpTrait::ConstantLike>()) {
    result = b.clone(*op)->getResult(0);
  } else if (!DeviceValues::contains(value) &&
             !DeviceValues::dependsOn(value, enclosing)) {
    result = parameter(value);
  } else if (auto load = dyn_cast<memref::LoadOp>(op)) {
    result = getRegister(load.getMemRef());
    if (!result) {
      SmallVector<Value> indices;
      for (Value i : load.getIndices())
        indices.push_back(scalar(i));
      result = this->load(view(load.getMemRef()), indices);
    }
  } else {
    IRMapping mapping;
    for (Value operand : op->getOperands())
      mapping.map(operand, scalar(operand));
    Operation *clone = b.clone(*op, mapping);
    result = clone->getResult(cast<OpResult>(value).getResultNumber());
  }
  return scalars[value] = result;
}

void KernelWriter::setCounter(scf::ForOp loop, Value value) {
  scalars[loop.getInductionVar()] = value;
}

void KernelWriter::prepare(const Phase &phase) {
  bool countersSet = enclosing.empty() ||
                     scalars.contains(enclosing.front().getInductionVar());
  auto isReady = [&](Value value) {
    return countersSet || !DeviceValues::dependsOn(value, enclosing);
  };
  for (Value value : phase.getScalars())
    if (isReady(value))
      scalar(value);
  for (const Access &access : phase.getAccesses())
    if (isReady(access.memref) && !getRegister(access.memref) &&
        !kept.contains(access.memref))
      view(access.memref);
}

// Memory.

bool KernelWriter::isHostMemRef(Value memref) {
  return !DeviceValues::contains(memref) &&
         !DeviceValues::dependsOn(memref, enclosing) && !constantOf(memref);
}

View KernelWriter::view(Value memref) {
  auto known = views.find(memref);
  if (known != views.end())
    return known->second;
  View result;
  if (!isHostMemRef(memref)) {
    result = derivedView(memref);
  } else {
    auto type = cast<MemRefType>(memref.getType());
    result.pointer = pointerParameter(memref);
    result.element = type.getElementType();
    for (int64_t axis = 0; axis < type.getRank(); ++axis)
      result.strides.push_back(size(strideOf(host, memref, axis)));
  }
  views[memref] = result;
  return result;
}

View KernelWriter::derivedView(Value memref) {
  auto type = cast<MemRefType>(memref.getType());
  Operation *op = memref.getDefiningOp();
  View result;
  result.element = type.getElementType();
  auto staticStrides = [&] {
    for (int64_t stride : type.getStridesAndOffset().first)
      result.strides.push_back(index(stride));
  };
  if (auto get = dyn_cast<memref::GetGlobalOp>(op)) {
    result.pointer = LLVM::AddressOfOp::create(b, kernels.getConstant(get));
    staticStrides();
    return result;
  }
  View source = view(op->getOperand(0));
  result.pointer = source.pointer;
  auto part = dyn_cast<memref::SubViewOp>(op);
  if (isa<memref::CastOp>(op)) {
    result.strides = source.strides;
    return result;
  }
  if (auto collapse = dyn_cast<memref::CollapseShapeOp>(op)) {
    // Joined axes have the stride of the last one among them whose size is not
    // 1.
    MemRefType from = collapse.getSrcType();
    for (const ReassociationIndices &group :
         collapse.getReassociationIndices()) {
      int64_t axis = group.back();
      for (int64_t i : group)
        if (from.getDimSize(i) != 1)
          axis = i;
      result.strides.push_back(source.strides[axis]);
    }
    return result;
  }
  if (!part) {
    staticStrides();
    return result;
  }
  auto valueOf = [&](OpFoldResult x) {
    std::optional<int64_t> constant = getConstantIntValue(x);
    return constant ? index(*constant) : scalar(cast<Value>(x));
  };
  SmallVector<Value> offsets;
  for (OpFoldResult x : part.getMixedOffsets())
    offsets.push_back(valueOf(x));
  result.pointer = offset(source, offsets);
  llvm::SmallBitVector dropped = part.getDroppedDims();
  for (auto [axis, step] : llvm::enumerate(part.getMixedStrides()))
    if (!dropped.test(axis))
      result.strides.push_back(mul(source.strides[axis], valueOf(step)));
  return result;
}

/// The type of an element in memory.
static Type storageOf(Type element) {
  OpBuilder b(element.getContext());
  if (isa<IndexType>(element))
    return b.getI64Type();
  return element.isInteger(1) ? b.getI8Type() : element;
}

Value KernelWriter::offset(const View &view, ValueRange indices) {
  Value sum;
  for (auto [i, stride] : llvm::zip_equal(indices, view.strides)) {
    Value term = mul(i, stride);
    sum = sum ? add(sum, term) : term;
  }
  if (!sum)
    return view.pointer;
  Value wide = arith::IndexCastOp::create(b, b.getI64Type(), sum);
  return b.element(storageOf(view.element), view.pointer, wide);
}

static Value fromStorage(gpucode::GpuBuilder &b, Type element, Value stored) {
  if (isa<IndexType>(element))
    return arith::IndexCastOp::create(b, element, stored);
  if (element.isInteger(1))
    return arith::CmpIOp::create(
        b, arith::CmpIPredicate::ne, stored,
        arith::ConstantIntOp::create(b, stored.getType(), 0));
  return stored;
}

static Value toStorage(gpucode::GpuBuilder &b, Value value) {
  Type type = storageOf(value.getType());
  if (isa<IndexType>(value.getType()))
    return arith::IndexCastOp::create(b, type, value);
  if (value.getType().isInteger(1))
    return arith::ExtUIOp::create(b, type, value);
  return value;
}

Value KernelWriter::load(const View &view, ValueRange indices) {
  Value loaded = b.load(storageOf(view.element), offset(view, indices));
  return fromStorage(b, view.element, loaded);
}

void KernelWriter::store(Value value, const View &view, ValueRange indices) {
  b.store(toStorage(b, convertTo(view.element, value)), offset(view, indices));
}

SmallVector<Value> KernelWriter::loadVector(const View &view,
                                            ValueRange indices, int64_t width) {
  Type type = storageOf(view.element);
  int64_t bytes = bytesOf(view.element);
  int64_t part = std::min(width, 16 / bytes);
  Value first = offset(view, indices);
  SmallVector<Value> elements;
  for (int64_t from = 0; from < width; from += part) {
    Value chunk = b.load(VectorType::get(part, type),
                         b.bytes(first, from * bytes), part * bytes);
    for (int64_t i = 0; i < part; ++i)
      elements.push_back(fromStorage(
          b, view.element, LLVM::ExtractElementOp::create(b, chunk, b.i32(i))));
  }
  return elements;
}

void KernelWriter::storeVector(ArrayRef<Value> values, const View &view,
                               ValueRange indices) {
  Type type = storageOf(view.element);
  int64_t bytes = bytesOf(view.element), width = values.size();
  int64_t part = std::min(width, 16 / bytes);
  Value first = offset(view, indices);
  for (int64_t from = 0; from < width; from += part) {
    auto vector = VectorType::get(part, type);
    Value chunk = LLVM::PoisonOp::create(b, vector);
    for (int64_t i = 0; i < part; ++i) {
      Value element = convertTo(view.element, values[from + i]);
      chunk = LLVM::InsertElementOp::create(b, chunk, toStorage(b, element),
                                            b.i32(i));
    }
    b.store(chunk, b.bytes(first, from * bytes), part * bytes);
  }
}

SmallVector<Value> KernelWriter::evaluate(AffineMap map, ValueRange loops) {
  SmallVector<Value> results;
  for (AffineExpr expr : map.getResults()) {
    if (auto dim = dyn_cast<AffineDimExpr>(expr))
      results.push_back(loops[dim.getPosition()]);
    else
      results.push_back(
          affine::expandAffineExpr(b, b.getLoc(), expr, loops, {}));
  }
  return results;
}

// Control flow.

SmallVector<Value>
KernelWriter::loop(Value lower, Value upper, Value step, ValueRange initial,
                   function_ref<SmallVector<Value>(Value, ValueRange)> body) {
  auto loop = scf::ForOp::create(b, lower, upper, step, initial);
  OpBuilder::InsertionGuard guard(b);
  // Values that the loop computes are not known after it.
  DenseMap<Value, Value> outerScalars = scalars;
  DenseMap<Value, View> outerViews = views;
  // Without carried values the builder has made the terminator.
  b.setInsertionPointToStart(loop.getBody());
  SmallVector<Value> next =
      body(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!initial.empty())
    scf::YieldOp::create(b, next);
  scalars = std::move(outerScalars);
  views = std::move(outerViews);
  return SmallVector<Value>(loop.getResults());
}

void KernelWriter::branch(Value condition, function_ref<void()> then) {
  auto choice = scf::IfOp::create(b, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  DenseMap<Value, Value> outerScalars = scalars;
  DenseMap<Value, View> outerViews = views;
  b.setInsertionPointToStart(choice.thenBlock());
  then();
  scalars = std::move(outerScalars);
  views = std::move(outerViews);
}

Value KernelWriter::choose(Value condition, function_ref<Value()> then,
                           Value otherwise) {
  auto choice = scf::IfOp::create(b, otherwise.getType(), condition,
                                  /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  scf::YieldOp::create(b, then());
  b.setInsertionPointToStart(choice.elseBlock());
  scf::YieldOp::create(b, otherwise);
  return choice.getResult(0);
}

void KernelWriter::unlessFailed(Value status, function_ref<void()> body) {
  if (!status)
    return body();
  Value word = load(view(status), {});
  Value fine = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, word,
                                     arith::ConstantIntOp::create(b, 0, 32));
  branch(fine, body);
}

// Bodies.

Value KernelWriter::convertTo(Type type, Value value) {
  if (value.getType() == type || !isa<FloatType>(type))
    return value;
  if (type.getIntOrFloatBitWidth() < value.getType().getIntOrFloatBitWidth())
    return arith::TruncFOp::create(b, type, value);
  return arith::ExtFOp::create(b, type, value);
}

/// The order of operations is what is written.
static void dropFastMath(Operation *op) {
  op->walk([](arith::ArithFastMathInterface math) {
    math->setAttr(math.getFastMathAttrName(),
                  arith::FastMathFlagsAttr::get(math->getContext(),
                                                arith::FastMathFlags::none));
  });
}

Value KernelWriter::combine(Operation *op, Value x, Value y) {
  OperationState state(b.getLoc(), op->getName().getIdentifier());
  state.addOperands({x, y});
  state.addTypes(x.getType());
  Operation *result = b.create(state);
  dropFastMath(result);
  return result->getResult(0);
}

Value KernelWriter::loadInBody(memref::LoadOp load, ValueRange indices) {
  if (Value known = indices.empty() ? getRegister(load.getMemRef()) : Value())
    return known;
  return this->load(view(load.getMemRef()), indices);
}

void KernelWriter::replaceNested(Operation *op, ValueRange loops,
                                 unsigned first) {
  OpBuilder::InsertionGuard guard(b);
  op->walk([&](Operation *inner) {
    b.setInsertionPoint(inner);
    Value value;
    if (auto number = dyn_cast<linalg::IndexOp>(inner)) {
      value = loops[first + number.getDim()];
    } else if (auto load = dyn_cast<memref::LoadOp>(inner)) {
      // A view made here is not known elsewhere.
      DenseMap<Value, View> outer = views;
      value = loadInBody(load, load.getIndices());
      views = std::move(outer);
    }
    if (!value)
      return;
    inner->getResult(0).replaceAllUsesWith(value);
    inner->erase();
  });
}

SmallVector<Value> KernelWriter::computeBody(const Phase &phase,
                                             ValueRange loops,
                                             ArrayRef<Value> values,
                                             ArrayRef<Combiner> combiners) {
  linalg::GenericOp generic = phase.getGeneric();
  Block *body = generic.getBody();
  unsigned first = phase.getEnclosing().size();
  IRMapping mapping;
  mapping.map(body->getArguments(), values);
  for (Value value : phase.getScalars())
    mapping.map(value, scalar(value));
  auto typeOf = [&](Operation *op) -> Type {
    for (const Combiner &combiner : combiners)
      if (llvm::is_contained(combiner.chain, op))
        return combiner.type;
    return Type();
  };
  for (Operation &op : body->without_terminator()) {
    if (auto number = dyn_cast<linalg::IndexOp>(op)) {
      mapping.map(number.getResult(), loops[first + number.getDim()]);
    } else if (auto load = dyn_cast<memref::LoadOp>(op)) {
      SmallVector<Value> indices;
      for (Value i : load.getIndices())
        indices.push_back(mapping.lookup(i));
      mapping.map(load.getResult(), loadInBody(load, indices));
    } else if (Type type = typeOf(&op)) {
      Value x = convertTo(type, mapping.lookup(op.getOperand(0)));
      Value y = convertTo(type, mapping.lookup(op.getOperand(1)));
      mapping.map(op.getResult(0), combine(&op, x, y));
    } else {
      Operation *clone = b.clone(op, mapping);
      dropFastMath(clone);
      if (clone->getNumRegions())
        replaceNested(clone, loops, first);
    }
  }
  SmallVector<Value> yielded;
  for (Value value : body->getTerminator()->getOperands())
    yielded.push_back(mapping.lookup(value));
  return yielded;
}

SmallVector<Value> KernelWriter::delinearize(Value linear,
                                             ArrayRef<Value> sizes) {
  SmallVector<Value> numbers(sizes.size());
  for (int64_t i = static_cast<int64_t>(sizes.size()) - 1; i > 0; --i) {
    numbers[i] = b.createOrFold<arith::RemUIOp>(linear, sizes[i]);
    linear = b.createOrFold<arith::DivUIOp>(linear, sizes[i]);
  }
  if (!sizes.empty())
    numbers[0] = linear;
  return numbers;
}

Launch KernelWriter::finish(StringRef form, Value blocks) {
  if (hasDependentLaunch(kernels.getModule()))
    gpucode::HopperBuilder(b).startEarly();
  b.finish();
  return {kernels.intern(kernel, form), arguments, blocks, threads};
}
