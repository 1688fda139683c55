//===- GpuBuilder.cpp - builds the code of one GPU kernel --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"

#include "DiffAttn/Target/PtxAsm.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

GpuBuilder::GpuBuilder(Location loc, LLVM::LLVMFuncOp kernel)
    : ImplicitLocOpBuilder(loc, kernel.getContext()), kernel(kernel),
      entry(kernel.addEntryBlock(*this)) {
  setInsertionPointToEnd(entry);
}

Value GpuBuilder::constant(Type type, TypedAttr value) {
  Value &slot = constants[{type, value}];
  if (!slot) {
    OpBuilder::InsertionGuard guard(*this);
    setInsertionPointToStart(entry);
    slot = LLVM::ConstantOp::create(*this, type, value);
  }
  return slot;
}

Value GpuBuilder::i1(bool value) {
  return constant(getI1Type(), getBoolAttr(value));
}
Value GpuBuilder::i32(int64_t value) {
  return constant(getI32Type(), getI32IntegerAttr(static_cast<int32_t>(value)));
}
Value GpuBuilder::i64(int64_t value) {
  return constant(getI64Type(), getI64IntegerAttr(value));
}
Value GpuBuilder::f32(double value) {
  return constant(getF32Type(), getF32FloatAttr(static_cast<float>(value)));
}
Value GpuBuilder::minusInfinity() {
  return f32(-std::numeric_limits<double>::infinity());
}

Value GpuBuilder::intrinsic(Type type, StringRef name, ValueRange arguments) {
  return LLVM::CallIntrinsicOp::create(*this, type, getStringAttr(name),
                                       arguments)
      .getResult(0);
}

// Integers.

Value GpuBuilder::add(Value a, Value b) {
  return LLVM::AddOp::create(*this, a, b);
}
Value GpuBuilder::add(Value a, int64_t b) {
  if (!b)
    return a;
  return add(a, a.getType().isInteger(64) ? i64(b) : i32(b));
}
Value GpuBuilder::sub(Value a, Value b) {
  return LLVM::SubOp::create(*this, a, b);
}
Value GpuBuilder::mul(Value a, Value b) {
  return LLVM::MulOp::create(*this, a, b);
}
Value GpuBuilder::mul(Value a, int64_t b) {
  if (b == 1)
    return a;
  return mul(a, a.getType().isInteger(64) ? i64(b) : i32(b));
}
Value GpuBuilder::divU(Value a, Value b) {
  return LLVM::UDivOp::create(*this, a, b);
}
Value GpuBuilder::divU(Value a, int64_t b) { return divU(a, i32(b)); }
Value GpuBuilder::remU(Value a, int64_t b) {
  return LLVM::URemOp::create(*this, a, i32(b));
}
Value GpuBuilder::andI(Value a, Value b) {
  return LLVM::AndOp::create(*this, a, b);
}
Value GpuBuilder::andI(Value a, int64_t b) { return andI(a, i32(b)); }
Value GpuBuilder::orI(Value a, Value b) {
  return LLVM::OrOp::create(*this, a, b);
}
Value GpuBuilder::xorI(Value a, Value b) {
  return LLVM::XOrOp::create(*this, a, b);
}
Value GpuBuilder::xorI(Value a, int64_t b) { return b ? xorI(a, i32(b)) : a; }
Value GpuBuilder::shiftLeft(Value a, int64_t bits) {
  return bits ? LLVM::ShlOp::create(*this, a, i32(bits)).getResult() : a;
}
Value GpuBuilder::shiftRightU(Value a, int64_t bits) {
  return LLVM::LShrOp::create(
      *this, a, a.getType().isInteger(64) ? i64(bits) : i32(bits));
}
Value GpuBuilder::minS(Value a, Value b) {
  return LLVM::SMinOp::create(*this, a, b);
}
Value GpuBuilder::maxS(Value a, Value b) {
  return LLVM::SMaxOp::create(*this, a, b);
}
Value GpuBuilder::toI64(Value a) {
  return a.getType().isInteger(64)
             ? a
             : LLVM::SExtOp::create(*this, getI64Type(), a).getResult();
}
Value GpuBuilder::toI32(Value a) {
  return LLVM::TruncOp::create(*this, getI32Type(), a);
}
Value GpuBuilder::compare(LLVM::ICmpPredicate predicate, Value a, Value b) {
  return LLVM::ICmpOp::create(*this, predicate, a, b);
}
Value GpuBuilder::select(Value condition, Value a, Value b) {
  return LLVM::SelectOp::create(*this, condition, a, b);
}

// f32.

Value GpuBuilder::addF(Value a, Value b) {
  return LLVM::FAddOp::create(*this, a, b);
}
Value GpuBuilder::subF(Value a, Value b) {
  return LLVM::FSubOp::create(*this, a, b);
}
Value GpuBuilder::mulF(Value a, Value b) {
  return LLVM::FMulOp::create(*this, a, b);
}
Value GpuBuilder::fma(Value a, Value b, Value c) {
  return LLVM::FMAOp::create(*this, a, b, c);
}
Value GpuBuilder::maxF(Value a, Value b) {
  return LLVM::MaxNumOp::create(*this, a, b);
}
Value GpuBuilder::compareF(LLVM::FCmpPredicate predicate, Value a, Value b) {
  return LLVM::FCmpOp::create(*this, predicate, a, b);
}
Value GpuBuilder::exp2(Value x) {
  return intrinsic(f32(), "llvm.nvvm.ex2.approx.ftz.f32", x);
}
Value GpuBuilder::log2(Value x) {
  return intrinsic(f32(), "llvm.nvvm.lg2.approx.ftz.f", x);
}
Value GpuBuilder::reciprocal(Value x) {
  return intrinsic(f32(), "llvm.nvvm.rcp.approx.ftz.f", x);
}
Value GpuBuilder::reciprocalSqrt(Value x) {
  return intrinsic(f32(), "llvm.nvvm.rsqrt.approx.ftz.f", x);
}
Value GpuBuilder::sqrt(Value x) {
  return intrinsic(f32(), "llvm.nvvm.sqrt.approx.ftz.f", x);
}

// Memory.

Value GpuBuilder::element(Type type, Value pointer, Value index) {
  return LLVM::GEPOp::create(*this, pointer.getType(), type, pointer,
                             ValueRange{index});
}
Value GpuBuilder::bytes(Value pointer, Value offset) {
  return element(getI8Type(), pointer, offset);
}
Value GpuBuilder::bytes(Value pointer, int64_t offset) {
  if (!offset)
    return pointer;
  return LLVM::GEPOp::create(
      *this, pointer.getType(), getI8Type(), pointer,
      ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(offset)});
}
Value GpuBuilder::load(Type type, Value pointer, int64_t align) {
  return LLVM::LoadOp::create(*this, type, pointer, align);
}
Value GpuBuilder::loadConstant(Type type, Value pointer, int64_t align) {
  auto loaded = LLVM::LoadOp::create(*this, type, pointer, align);
  loaded.setInvariant(true);
  return loaded;
}
void GpuBuilder::store(Value value, Value pointer, int64_t align) {
  LLVM::StoreOp::create(*this, value, pointer, align);
}
Value GpuBuilder::widen(Value loaded) {
  Type type = loaded.getType();
  if (type.isInteger(8))
    return compare(LLVM::ICmpPredicate::ne, loaded,
                   constant(type, getI8IntegerAttr(0)));
  return type.isF32() ? loaded
                      : LLVM::FPExtOp::create(*this, f32(), loaded).getResult();
}
Type GpuBuilder::inMemory(Type type) {
  return type.isInteger(1) ? IntegerType::get(type.getContext(), 8) : type;
}
Value GpuBuilder::loadAsF32(Type type, Value pointer) {
  return widen(loadConstant(inMemory(type), pointer));
}
std::array<Value, 2> GpuBuilder::loadPairAsF32(Type type, Value pointer) {
  Type memory = inMemory(type);
  unsigned bits = memory.getIntOrFloatBitWidth();
  // An integer: O2 would take a vector apart and merge its halves with the
  // loads of another branch.
  Value both = loadConstant(getIntegerType(2 * bits), pointer, bits / 4);
  Value shift =
      constant(both.getType(), IntegerAttr::get(both.getType(), int64_t(bits)));
  std::array<Value, 2> pair{both, LLVM::LShrOp::create(*this, both, shift)};
  for (Value &value : pair) {
    value = LLVM::TruncOp::create(*this, getIntegerType(bits), value);
    value = widen(LLVM::BitcastOp::create(*this, memory, value));
  }
  return pair;
}
Value GpuBuilder::round(Type type, Value x) {
  return type.isF32() ? x : LLVM::FPTruncOp::create(*this, type, x).getResult();
}
Value GpuBuilder::packPair(Type type, Value low, Value high) {
  auto rounding = NVVM::FPRoundingMode::RN;
  Value pair;
  if (type.isBF16())
    pair = NVVM::ConvertF32x2ToBF16x2Op::create(*this, VectorType::get(2, type),
                                                high, low, Value(), rounding,
                                                NVVM::SaturationMode::NONE,
                                                /*relu=*/false);
  else
    pair = NVVM::ConvertF32x2ToF16x2Op::create(*this, VectorType::get(2, type),
                                               high, low, Value(), rounding,
                                               NVVM::SaturationMode::NONE,
                                               /*relu=*/false);
  return LLVM::BitcastOp::create(*this, getI32Type(), pair);
}

Value GpuBuilder::pack(ArrayRef<Value> values) {
  auto type = VectorType::get(static_cast<int64_t>(values.size()),
                              values.front().getType());
  Value vector = LLVM::PoisonOp::create(*this, type);
  for (auto [i, value] : llvm::enumerate(values))
    vector = LLVM::InsertElementOp::create(*this, vector, value, i32(i));
  return vector;
}
SmallVector<Value> GpuBuilder::unpack(Value vector) {
  SmallVector<Value> values;
  for (int64_t i = 0; i < cast<VectorType>(vector.getType()).getNumElements();
       ++i)
    values.push_back(LLVM::ExtractElementOp::create(*this, vector, i32(i)));
  return values;
}

// Threads.

Value GpuBuilder::threadId() {
  return NVVM::ThreadIdXOp::create(*this, getI32Type());
}
Value GpuBuilder::laneId() {
  return NVVM::LaneIdOp::create(*this, getI32Type());
}
Value GpuBuilder::blockId(int axis) {
  switch (axis) {
  case 0:
    return NVVM::BlockIdXOp::create(*this, getI32Type());
  case 1:
    return NVVM::BlockIdYOp::create(*this, getI32Type());
  default:
    return NVVM::BlockIdZOp::create(*this, getI32Type());
  }
}
Value GpuBuilder::gridSize(int axis) {
  switch (axis) {
  case 0:
    return NVVM::GridDimXOp::create(*this, getI32Type());
  case 1:
    return NVVM::GridDimYOp::create(*this, getI32Type());
  default:
    return NVVM::GridDimZOp::create(*this, getI32Type());
  }
}
void GpuBuilder::barrier() { NVVM::Barrier0Op::create(*this); }
void GpuBuilder::namedBarrier(Value id, int64_t threads) {
  NVVM::BarrierOp::create(*this, TypeRange{}, id, i32(threads),
                          NVVM::BarrierReductionAttr(), Value());
}
void GpuBuilder::warpBarrier() { NVVM::SyncWarpOp::create(*this, i32(-1)); }
Value GpuBuilder::shuffleXor(Value x, int64_t lanes) {
  return NVVM::ShflOp::create(*this, x.getType(), i32(-1), x, i32(lanes),
                              i32(31), NVVM::ShflKind::bfly, UnitAttr());
}
Value GpuBuilder::shuffle(Value x, Value lane) {
  if (x.getType().isInteger(64)) {
    SmallVector<Value> halves = splitWords(x);
    return joinWords(shuffle(halves[0], lane), shuffle(halves[1], lane));
  }
  return NVVM::ShflOp::create(*this, x.getType(), i32(-1), x, lane, i32(31),
                              NVVM::ShflKind::idx, UnitAttr());
}
Value GpuBuilder::voteAny(Value condition) {
  return NVVM::VoteSyncOp::create(*this, getI1Type(), i32(-1), condition,
                                  NVVM::VoteSyncKind::any);
}
SmallVector<Value> GpuBuilder::splitWords(Value wide) {
  auto words = VectorType::get(2, i32Type());
  return unpack(LLVM::BitcastOp::create(*this, words, wide));
}
Value GpuBuilder::joinWords(Value lower, Value upper) {
  return LLVM::BitcastOp::create(*this, getI64Type(), pack({lower, upper}));
}
Value GpuBuilder::warpExtremum(Value x, bool max) {
  auto reduce = [&](Value word, NVVM::ReduxKind kind) -> Value {
    return NVVM::ReduxOp::create(*this, i32Type(), word, kind, i32(-1));
  };
  NVVM::ReduxKind ofSigned = max ? NVVM::ReduxKind::MAX : NVVM::ReduxKind::MIN;
  if (x.getType().isInteger(32))
    return reduce(x, ofSigned);
  // The instruction takes 32 bits: the upper half first, then the lower half of
  // those that have it.
  SmallVector<Value> halves = splitWords(x);
  Value upper = reduce(halves[1], ofSigned);
  Value lower = select(compare(LLVM::ICmpPredicate::eq, halves[1], upper),
                       halves[0], i32(max ? 0 : -1));
  lower = reduce(lower, max ? NVVM::ReduxKind::UMAX : NVVM::ReduxKind::UMIN);
  return joinWords(lower, upper);
}

void GpuBuilder::checkIndex(StringRef table, Value isOutside, Value entry) {
  const AsmText text = getPtxAsm(IndexCheck{table.str()});
  LLVM::InlineAsmOp::create(
      *this, TypeRange(), ValueRange{isOutside, entry}, text.text,
      text.constraints, /*has_side_effects=*/true, /*is_align_stack=*/false,
      LLVM::TailCallKind::None,
      LLVM::AsmDialectAttr::get(getContext(), LLVM::AsmDialect::AD_ATT),
      ArrayAttr());
}

// Control flow. Blocks are in the order in which they run.

GpuBuilder::Values GpuBuilder::branch(Value condition,
                                      function_ref<Values()> then,
                                      ValueRange otherwise) {
  Block *head = getInsertionBlock();
  Region &region = kernel.getBody();
  Block *thenBlock = createBlock(&region, region.end());
  Values results = then();
  Block *thenEnd = getInsertionBlock();
  Block *join = createBlock(&region, region.end(), TypeRange(otherwise),
                            SmallVector<Location>(otherwise.size(), getLoc()));
  setInsertionPointToEnd(head);
  LLVM::CondBrOp::create(*this, condition, thenBlock, ValueRange{}, join,
                         otherwise);
  setInsertionPointToEnd(thenEnd);
  LLVM::BrOp::create(*this, results, join);
  setInsertionPointToEnd(join);
  return Values(join->getArguments());
}

GpuBuilder::Values GpuBuilder::choose(Value condition,
                                      function_ref<Values()> then,
                                      function_ref<Values()> otherwise) {
  Block *head = getInsertionBlock();
  Region &region = kernel.getBody();
  auto arm = [&](function_ref<Values()> body, Values &results, Block *&end) {
    Block *begin = createBlock(&region, region.end());
    results = body();
    end = getInsertionBlock();
    return begin;
  };
  Values thenResults, otherResults;
  Block *thenEnd, *otherEnd;
  Block *thenBlock = arm(then, thenResults, thenEnd);
  Block *otherBlock = arm(otherwise, otherResults, otherEnd);
  Block *join =
      createBlock(&region, region.end(), TypeRange(ValueRange(thenResults)),
                  SmallVector<Location>(thenResults.size(), getLoc()));
  setInsertionPointToEnd(head);
  LLVM::CondBrOp::create(*this, condition, thenBlock, otherBlock);
  setInsertionPointToEnd(thenEnd);
  LLVM::BrOp::create(*this, thenResults, join);
  setInsertionPointToEnd(otherEnd);
  LLVM::BrOp::create(*this, otherResults, join);
  setInsertionPointToEnd(join);
  return Values(join->getArguments());
}

void GpuBuilder::branch(Value condition, function_ref<void()> then) {
  branch(
      condition,
      [&] {
        then();
        return Values();
      },
      ValueRange{});
}

GpuBuilder::Values
GpuBuilder::loop(Value lower, Value upper, int64_t step, ValueRange initial,
                 function_ref<Values(Value, ValueRange)> body, bool mayUnroll) {
  Values carried{lower};
  llvm::append_range(carried, initial);
  Values final = loopWhile(
      carried,
      [&](ValueRange now) {
        return compare(LLVM::ICmpPredicate::slt, now.front(), upper);
      },
      [&](ValueRange now) {
        Values results = body(now.front(), now.drop_front());
        Values next{add(now.front(), step)};
        llvm::append_range(next, results);
        return next;
      },
      mayUnroll);
  return Values(ValueRange(final).drop_front());
}

GpuBuilder::Values
GpuBuilder::loopDown(Value lower, Value upper, ValueRange initial,
                     function_ref<Values(Value, ValueRange)> body,
                     bool mayUnroll) {
  Values carried{upper};
  llvm::append_range(carried, initial);
  Values final = loopWhile(
      carried,
      [&](ValueRange now) {
        return compare(LLVM::ICmpPredicate::sgt, now.front(), lower);
      },
      [&](ValueRange now) {
        Value number = add(now.front(), -1);
        Values next{number};
        llvm::append_range(next, body(number, now.drop_front()));
        return next;
      },
      mayUnroll);
  return Values(ValueRange(final).drop_front());
}

/// A block at the end of the kernel, with an argument for each of `values`.
Block *GpuBuilder::createBlockFor(ValueRange values) {
  Region &region = kernel.getBody();
  return createBlock(&region, region.end(), values.getTypes(),
                     SmallVector<Location>(values.size(), getLoc()));
}

GpuBuilder::Values
GpuBuilder::loopWhile(ValueRange initial,
                      function_ref<Value(ValueRange)> condition,
                      function_ref<Values(ValueRange)> body, bool mayUnroll) {
  Block *before = getInsertionBlock();
  Block *head = createBlockFor(initial);
  setInsertionPointToEnd(before);
  LLVM::BrOp::create(*this, initial, head);

  Block *bodyBlock = createBlockFor({});
  auto again = LLVM::BrOp::create(*this, body(head->getArguments()), head);
  if (!mayUnroll) {
    auto unroll = LLVM::LoopUnrollAttr::get(
        getContext(), /*disable=*/getBoolAttr(true), {}, {}, {}, {}, {}, {});
    again.setLoopAnnotationAttr(
        LLVM::LoopAnnotationAttr::get(getContext(), {}, {}, {}, unroll, {}, {},
                                      {}, {}, {}, {}, {}, {}, {}, {}, {}));
  }

  Block *exit = createBlockFor({});
  setInsertionPointToEnd(head);
  LLVM::CondBrOp::create(*this, condition(head->getArguments()), bodyBlock,
                         ValueRange{}, exit, ValueRange{});
  setInsertionPointToEnd(exit);
  return Values(head->getArguments());
}

GpuBuilder::Values
GpuBuilder::loopUntil(ValueRange initial,
                      function_ref<Values(ValueRange)> body) {
  Block *before = getInsertionBlock();
  Block *head = createBlockFor(initial);
  setInsertionPointToEnd(before);
  LLVM::BrOp::create(*this, initial, head);
  setInsertionPointToEnd(head);
  Values results = body(head->getArguments());
  Block *end = getInsertionBlock(), *exit = createBlockFor({});
  setInsertionPointToEnd(end);
  LLVM::CondBrOp::create(*this, results.front(), exit, ValueRange{}, head,
                         ValueRange(results).drop_front());
  setInsertionPointToEnd(exit);
  return Values(head->getArguments());
}

void GpuBuilder::finish() { LLVM::ReturnOp::create(*this, ValueRange{}); }
