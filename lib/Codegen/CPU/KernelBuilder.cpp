//===- KernelBuilder.cpp - short names for building kernels ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mlir::diffattn;

KernelBuilder::KernelBuilder(Location loc, const CpuTarget &target,
                             int64_t lanes)
    : ImplicitLocOpBuilder(loc, loc.getContext()), target(target), lanes(lanes),
      i1(getI1Type()), i8(getI8Type()), i32(getI32Type()), i64(getI64Type()),
      f32(getF32Type()), bf16(getBF16Type()),
      pointer(LLVM::LLVMPointerType::get(loc.getContext())),
      vector(VectorType::get({lanes}, f32)),
      integers(VectorType::get({lanes}, i32)),
      mask(VectorType::get({lanes}, i1)) {}

//===----------------------------------------------------------------------===//
// Integers
//===----------------------------------------------------------------------===//

Value KernelBuilder::boolean(bool value) {
  return arith::ConstantOp::create(*this, getBoolAttr(value));
}
Value KernelBuilder::index(int64_t value) {
  return arith::ConstantOp::create(*this, getI64IntegerAttr(value));
}
Value KernelBuilder::add(Value a, Value b) {
  return createOrFold<arith::AddIOp>(a, b, arith::IntegerOverflowFlags::nsw);
}
Value KernelBuilder::sub(Value a, Value b) {
  return createOrFold<arith::SubIOp>(a, b, arith::IntegerOverflowFlags::nsw);
}
Value KernelBuilder::mul(Value a, Value b) {
  return createOrFold<arith::MulIOp>(a, b, arith::IntegerOverflowFlags::nsw);
}
Value KernelBuilder::div(Value a, Value b) {
  return createOrFold<arith::DivUIOp>(a, b);
}
Value KernelBuilder::rem(Value a, Value b) {
  return createOrFold<arith::RemUIOp>(a, b);
}
Value KernelBuilder::min(Value a, Value b) {
  return createOrFold<arith::MinSIOp>(a, b);
}
Value KernelBuilder::max(Value a, Value b) {
  return createOrFold<arith::MaxSIOp>(a, b);
}
Value KernelBuilder::less(Value a, Value b) {
  return createOrFold<arith::CmpIOp>(arith::CmpIPredicate::slt, a, b);
}
Value KernelBuilder::equal(Value a, Value b) {
  return createOrFold<arith::CmpIOp>(arith::CmpIPredicate::eq, a, b);
}
Value KernelBuilder::both(Value a, Value b) {
  return createOrFold<arith::AndIOp>(a, b);
}
Value KernelBuilder::select(Value condition, Value a, Value b) {
  // Constants of their own, which arith.select does not look into.
  if (std::optional<int64_t> number = known(a); number && number == known(b))
    return a;
  return createOrFold<arith::SelectOp>(condition, a, b);
}
Value KernelBuilder::narrow(Value a) {
  return createOrFold<arith::TruncIOp>(i32, a);
}

//===----------------------------------------------------------------------===//
// Floats
//===----------------------------------------------------------------------===//

Value KernelBuilder::splat(float value) {
  return emitConstant(*this, vector, value);
}
Value KernelBuilder::splat(Value scalar) {
  return vector::BroadcastOp::create(
      *this, VectorType::get({lanes}, scalar.getType()), scalar);
}
Value KernelBuilder::addf(Value a, Value b) {
  return arith::AddFOp::create(*this, a, b);
}
Value KernelBuilder::subf(Value a, Value b) {
  return arith::SubFOp::create(*this, a, b);
}
Value KernelBuilder::mulf(Value a, Value b) {
  return arith::MulFOp::create(*this, a, b);
}
Value KernelBuilder::divf(Value a, Value b) {
  return arith::DivFOp::create(*this, a, b);
}
Value KernelBuilder::fma(Value a, Value b, Value c) {
  return vector::FMAOp::create(*this, a, b, c);
}
std::optional<int64_t> KernelBuilder::known(Value value) {
  APInt number;
  if (matchPattern(value, m_ConstantInt(&number)))
    return number.getSExtValue();
  return std::nullopt;
}
Value KernelBuilder::lane(Value vector, int64_t i) {
  return vector::ExtractOp::create(*this, vector, i);
}
Value KernelBuilder::sum(Value value) {
  // A fixed tree of shuffles, so that the order of the sum does not depend on
  // the compiler.
  SmallVector<int64_t> order(lanes);
  for (int64_t half = lanes / 2; half; half /= 2) {
    for (int64_t i = 0; i < lanes; ++i)
      order[i] = (i + half) % lanes;
    value = addf(value, vector::ShuffleOp::create(*this, value, value, order));
  }
  return lane(value, 0);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Bytes of one element in memory; an i1 takes a byte.
static unsigned bytesOf(Type element) {
  if (isa<LLVM::LLVMPointerType>(element))
    return 8;
  return std::max(1u, element.getIntOrFloatBitWidth() / 8);
}

Value KernelBuilder::at(Value base, Type element, Value index) {
  return LLVM::GEPOp::create(*this, pointer, element, base, ValueRange{index});
}
Value KernelBuilder::load(Type type, Value base, Type element, Value index) {
  return LLVM::LoadOp::create(*this, type, at(base, element, index),
                              bytesOf(element));
}
void KernelBuilder::prefetch(Value base, Value index, int level) {
  LLVM::Prefetch::create(*this, at(base, i8, index), /*rw=*/0,
                         /*hint=*/4 - level, /*cache=*/1);
}
void KernelBuilder::store(Value value, Value base, Type element, Value index) {
  LLVM::StoreOp::create(*this, value, at(base, element, index),
                        bytesOf(element));
}

void KernelBuilder::keepOrder() {
  LLVM::FenceOp::create(*this, LLVM::AtomicOrdering::acq_rel, "singlethread");
}

/// `type` with `element` in place of its elements.
static Type like(Type type, Type element) {
  if (auto vector = dyn_cast<VectorType>(type))
    return vector.clone(element);
  return element;
}

static Value integerConstant(ImplicitLocOpBuilder &b, Type type,
                             int64_t value) {
  Type element = getElementTypeOrSelf(type);
  IntegerAttr scalar = b.getIntegerAttr(element, value);
  if (auto vector = dyn_cast<VectorType>(type))
    return arith::ConstantOp::create(
        b, DenseElementsAttr::get(vector, Attribute(scalar)));
  return arith::ConstantOp::create(b, scalar);
}

Value KernelBuilder::widen(Value value, Type element) {
  if (element.isF32())
    return value;
  Type wide = like(value.getType(), f32);
  if (element.isF16() && target.hasHalfConversion())
    return arith::ExtFOp::create(*this, wide, value);
  // By bits: a conversion that the CPU does not have would be a call of a
  // library.
  Type bits16 = like(value.getType(), getI16Type()),
       bits32 = like(value.getType(), i32);
  auto constant = [&](int64_t v) { return integerConstant(*this, bits32, v); };
  Value bits = arith::ExtUIOp::create(
      *this, bits32, arith::BitcastOp::create(*this, bits16, value));
  if (element.isBF16())
    return arith::BitcastOp::create(
        *this, wide, arith::ShLIOp::create(*this, bits, constant(16)));
  Value magnitude = arith::ShLIOp::create(
      *this, arith::AndIOp::create(*this, bits, constant(0x7fff)),
      constant(13));
  Value scaled = mulf(arith::BitcastOp::create(*this, wide, magnitude),
                      emitConstant(*this, wide, 0x1p112f));
  Value result = arith::BitcastOp::create(*this, bits32, scaled);
  Value special = arith::CmpIOp::create(*this, arith::CmpIPredicate::uge,
                                        magnitude, constant(0x7c00 << 13));
  result = arith::SelectOp::create(
      *this, special, arith::OrIOp::create(*this, result, constant(0x7f800000)),
      result);
  Value sign = arith::ShLIOp::create(
      *this, arith::AndIOp::create(*this, bits, constant(0x8000)),
      constant(16));
  return arith::BitcastOp::create(*this, wide,
                                  arith::OrIOp::create(*this, result, sign));
}

Value KernelBuilder::round(Value value, Type element) {
  if (element.isF32())
    return value;
  Type narrowType = like(value.getType(), element);
  if (element.isF16() && target.hasHalfConversion())
    return arith::TruncFOp::create(*this, narrowType, value);
  Type bits16 = like(value.getType(), getI16Type()),
       bits32 = like(value.getType(), i32);
  auto constant = [&](int64_t v) { return integerConstant(*this, bits32, v); };
  Value bits = arith::BitcastOp::create(*this, bits32, value);
  Value rounded;
  Value isNan =
      arith::CmpFOp::create(*this, arith::CmpFPredicate::UNO, value, value);
  if (element.isBF16()) {
    // To nearest, ties to even; a NaN keeps its sign and becomes quiet.
    Value odd = arith::AndIOp::create(
        *this, arith::ShRUIOp::create(*this, bits, constant(16)), constant(1));
    rounded = arith::ShRUIOp::create(
        *this,
        arith::AddIOp::create(
            *this, bits, arith::AddIOp::create(*this, odd, constant(0x7fff))),
        constant(16));
    Value quiet = arith::OrIOp::create(
        *this, arith::ShRUIOp::create(*this, bits, constant(16)),
        constant(0x40));
    rounded = arith::SelectOp::create(*this, isNan, quiet, rounded);
  } else {
    Value sign = arith::AndIOp::create(
        *this, arith::ShRUIOp::create(*this, bits, constant(16)),
        constant(0x8000));
    Value magnitude = arith::AndIOp::create(*this, bits, constant(0x7fffffff));
    // A normal result: bias and rounding in integers. It overflows into
    // infinity by itself.
    Value odd = arith::AndIOp::create(
        *this, arith::ShRUIOp::create(*this, magnitude, constant(13)),
        constant(1));
    Value normal = arith::ShRUIOp::create(
        *this,
        arith::AddIOp::create(
            *this, magnitude,
            arith::AddIOp::create(*this, odd,
                                  constant(static_cast<int32_t>(0xc8000fff)))),
        constant(13));
    // A subnormal result: the sum with 0.5 rounds to its last bit.
    Value small = arith::AddFOp::create(
        *this,
        arith::BitcastOp::create(*this, like(value.getType(), f32), magnitude),
        emitConstant(*this, value.getType(), 0.5f));
    small = arith::SubIOp::create(
        *this, arith::BitcastOp::create(*this, bits32, small),
        constant(0x3f000000));
    auto below = [&](int64_t limit) {
      return arith::CmpIOp::create(*this, arith::CmpIPredicate::ult, magnitude,
                                   constant(limit));
    };
    rounded = arith::SelectOp::create(*this, below(0x38800000), small, normal);
    rounded = arith::SelectOp::create(*this, below(0x47800000), rounded,
                                      constant(0x7c00));
    rounded = arith::SelectOp::create(*this, isNan, constant(0x7e00), rounded);
    rounded = arith::OrIOp::create(*this, rounded, sign);
  }
  return arith::BitcastOp::create(
      *this, narrowType, arith::TruncIOp::create(*this, bits16, rounded));
}

Value KernelBuilder::loadMasked(VectorType type, Value base, Value index,
                                Value mask) {
  Type element = type.getElementType();
  Value none = arith::ConstantOp::create(*this, getZeroAttr(type));
  return LLVM::MaskedLoadOp::create(*this, type, at(base, element, index), mask,
                                    none, bytesOf(element));
}

/// The type by which 16-bit floats go to and from memory: LLVM would widen and
/// round each element of a masked access that the CPU does not have, by a call.
static Type memoryType(KernelBuilder &b, Type element) {
  return element.isF32() ? element : b.getI16Type();
}

Value KernelBuilder::loadWide(Value base, Type element, Value index,
                              Value mask) {
  Type memory = memoryType(*this, element);
  VectorType type = VectorType::get({lanes}, memory);
  Value loaded = mask ? loadMasked(type, base, index, mask)
                      : load(type, base, memory, index);
  if (memory != element)
    loaded = arith::BitcastOp::create(*this, type.clone(element), loaded);
  return widen(loaded, element);
}

std::array<Value, 2> KernelBuilder::loadWidePairs(Value base, Value index) {
  Value pairs =
      load(integers, at(base, getI16Type(), index), i32, this->index(0));
  auto constant = [&](int32_t value) {
    return arith::ConstantOp::create(*this,
                                     DenseElementsAttr::get(integers, value));
  };
  Value even = arith::ShLIOp::create(*this, pairs, constant(16)),
        odd = arith::AndIOp::create(*this, pairs,
                                    constant(static_cast<int32_t>(0xffff0000)));
  return {arith::BitcastOp::create(*this, vector, even),
          arith::BitcastOp::create(*this, vector, odd)};
}

Value KernelBuilder::loadWideScalar(Value base, Type element, Value index) {
  Type memory = memoryType(*this, element);
  Value loaded = load(memory, base, memory, index);
  if (memory != element)
    loaded = arith::BitcastOp::create(*this, element, loaded);
  return widen(loaded, element);
}

Value KernelBuilder::loadStrided(Value base, Type element, Value index,
                                 Value stride, Value count) {
  Value result = zero();
  Value nothing = emitConstant(*this, f32, 0.0f);
  for (int64_t i = 0; i < lanes; ++i) {
    // Elements past the end must not be read: the last valid one is read
    // instead.
    Value inside = less(this->index(i), count);
    Value position = select(inside, this->index(i), sub(count, this->index(1)));
    Value scalar =
        loadWideScalar(base, element, add(index, mul(position, stride)));
    scalar = select(inside, scalar, nothing);
    result = vector::InsertOp::create(*this, scalar, result, i);
  }
  return result;
}

Value KernelBuilder::loadFlags(Value base, Value index, Value stride,
                               Value count) {
  VectorType type = VectorType::get({lanes}, i8);
  Value result = arith::ConstantOp::create(*this, getZeroAttr(type));
  Value nothing = arith::ConstantOp::create(*this, getI8IntegerAttr(0));
  for (int64_t i = 0; i < lanes; ++i) {
    Value inside = less(this->index(i), count);
    Value position = select(inside, this->index(i), sub(count, this->index(1)));
    Value flag = load(i8, base, i8, add(index, mul(position, stride)));
    flag = select(inside, flag, nothing);
    result = vector::InsertOp::create(*this, flag, result, i);
  }
  Value zeros = arith::ConstantOp::create(*this, getZeroAttr(type));
  return arith::CmpIOp::create(*this, arith::CmpIPredicate::ne, result, zeros);
}

void KernelBuilder::storeNarrow(Value value, Value base, Type element,
                                Value index, Value mask) {
  // LLVM 22 writes four bytes where one lane of 16 bits, known to be the only
  // one, is stored behind a mask (X86, narrowed from 32 bits): a scalar is
  // stored instead.
  if (DenseElementsAttr lanes;
      mask && matchPattern(mask, m_Constant(&lanes)) &&
      llvm::count(lanes.getValues<bool>(), true) == 1) {
    auto values = lanes.getValues<bool>();
    int64_t only = std::distance(values.begin(), llvm::find(values, true));
    return storeNarrow(lane(value, only), base, element, add(index, only));
  }
  Value rounded = round(value, element);
  Type memory = memoryType(*this, element);
  if (memory != element)
    rounded =
        arith::BitcastOp::create(*this, like(value.getType(), memory), rounded);
  if (mask)
    LLVM::MaskedStoreOp::create(*this, rounded, at(base, memory, index), mask,
                                bytesOf(memory));
  else
    store(rounded, base, memory, index);
}

Value KernelBuilder::firstLanes(Value count, int64_t lanes) {
  if (std::optional<int64_t> number = known(count)) {
    SmallVector<bool> valid(lanes);
    for (int64_t i = 0; i < lanes; ++i)
      valid[i] = i < *number;
    return arith::ConstantOp::create(
        *this, DenseElementsAttr::get(VectorType::get({lanes}, i1),
                                      ArrayRef<bool>(valid)));
  }
  SmallVector<int32_t> numbers(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    numbers[i] = i;
  VectorType type = VectorType::get({lanes}, i32);
  Value iota = arith::ConstantOp::create(
      *this, DenseElementsAttr::get(type, ArrayRef<int32_t>(numbers)));
  Value limit = vector::BroadcastOp::create(*this, type, narrow(count));
  return arith::CmpIOp::create(*this, arith::CmpIPredicate::slt, iota, limit);
}

//===----------------------------------------------------------------------===//
// Control
//===----------------------------------------------------------------------===//

SmallVector<Value> KernelBuilder::loop(Value lower, Value upper, int64_t step,
                                       ValueRange inits, LoopBody body) {
  auto op = scf::ForOp::create(*this, lower, upper, index(step), inits);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.getBody());
  SmallVector<Value> results =
      body(op.getInductionVar(), op.getRegionIterArgs());
  if (!inits.empty())
    scf::YieldOp::create(*this, results);
  return op.getResults();
}

void KernelBuilder::loop(Value lower, Value upper, int64_t step,
                         function_ref<void(Value)> body) {
  loop(lower, upper, step, {}, [&](Value i, ValueRange) {
    body(i);
    return SmallVector<Value>();
  });
}

SmallVector<Value>
KernelBuilder::choose(Value condition, TypeRange types,
                      function_ref<SmallVector<Value>()> then,
                      function_ref<SmallVector<Value>()> otherwise) {
  auto op = scf::IfOp::create(*this, types, condition, /*addThenBlock=*/true,
                              /*addElseBlock=*/true);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  SmallVector<Value> results = then();
  scf::YieldOp::create(*this, results);
  setInsertionPointToStart(op.elseBlock());
  results = otherwise();
  scf::YieldOp::create(*this, results);
  return op.getResults();
}

void KernelBuilder::ifThen(Value condition, function_ref<void()> then) {
  auto op = scf::IfOp::create(*this, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  then();
}

void KernelBuilder::ifElse(Value condition, function_ref<void()> then,
                           function_ref<void()> otherwise) {
  auto op = scf::IfOp::create(*this, condition, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  then();
  setInsertionPointToStart(op.elseBlock());
  otherwise();
}

static LLVM::LLVMFunctionType getVoidFunction(MLIRContext *context,
                                              TypeRange arguments) {
  return LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(context),
                                     SmallVector<Type>(arguments));
}

LLVM::LLVMFuncOp KernelBuilder::beginFunction(ModuleOp module, StringRef name,
                                              TypeRange arguments) {
  setInsertionPointToEnd(module.getBody());
  auto function = LLVM::LLVMFuncOp::create(
      *this, name, getVoidFunction(getContext(), arguments),
      LLVM::Linkage::Private);
  function.setNoInline(true);
  if (ArrayRef<StringRef> features = target.features; !features.empty())
    function.setTargetFeaturesAttr(
        LLVM::TargetFeaturesAttr::get(getContext(), features));
  setInsertionPointToStart(function.addEntryBlock(*this));
  return function;
}

LLVM::LLVMFuncOp
KernelBuilder::getOrEmitFunction(ModuleOp module, StringRef name,
                                 TypeRange arguments,
                                 function_ref<void(ValueRange)> body) {
  if (auto existing = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return existing;
  OpBuilder::InsertionGuard guard(*this);
  LLVM::LLVMFuncOp function = beginFunction(module, name, arguments);
  body(function.getArguments());
  LLVM::ReturnOp::create(*this, ValueRange());
  return function;
}

/// Replaces values of other functions that `function` uses by arguments of its
/// own, or by constants. Returns the operands of its calls.
static SmallVector<Value> takeCallerValues(OpBuilder &b,
                                           LLVM::LLVMFuncOp function) {
  Region &region = function.getBody();
  SetVector<Value> used;
  function.walk([&](Operation *op) {
    for (Value operand : op->getOperands())
      if (!region.isAncestor(operand.getParentRegion()))
        used.insert(operand);
  });
  SmallVector<Value> callerValues;
  SmallVector<Type> types;
  b.setInsertionPointToStart(&region.front());
  for (Value value : used) {
    Value own;
    if (matchPattern(value, m_Constant())) {
      own = b.clone(*value.getDefiningOp())->getResult(0);
    } else {
      own = region.addArgument(value.getType(), value.getLoc());
      callerValues.push_back(value);
      types.push_back(value.getType());
    }
    value.replaceUsesWithIf(own, [&](OpOperand &use) {
      return region.isAncestor(use.getOwner()->getParentRegion());
    });
  }
  function.setFunctionType(getVoidFunction(b.getContext(), types));
  return callerValues;
}

void KernelBuilder::outline(ModuleOp module, StringRef name,
                            function_ref<void()> body) {
  LLVM::LLVMFuncOp function;
  SmallVector<Value> arguments;
  {
    OpBuilder::InsertionGuard guard(*this);
    function = beginFunction(module, name, {});
    body();
    LLVM::ReturnOp::create(*this, ValueRange());
    arguments = takeCallerValues(*this, function);
  }
  LLVM::CallOp::create(*this, function, arguments);
}

std::string KernelBuilder::kernelName(const Twine &name) const {
  return ("diffattn_" + name + "_" + Twine(lanes) + "_" + target.name).str();
}

LLVM::LLVMFuncOp KernelBuilder::getRuntimeFunction(ModuleOp module,
                                                   RuntimeFunction function) {
  StringRef name = getRuntimeFunctionName(function);
  if (auto existing = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return existing;
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(module.getBody());
  return LLVM::LLVMFuncOp::create(
      *this, name, getRuntimeFunctionType(getContext(), function));
}
