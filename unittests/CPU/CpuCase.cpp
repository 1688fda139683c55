//===- CpuCase.cpp - an attention whose phases are tested -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CpuCase.h"

#include "ProductAtom.h"

#include "mlir/Dialect/AMX/AMXDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"

using namespace mlir;
using namespace mlir::diffattn;

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

int64_t Tensor::getOffset(std::array<int64_t, 4> at) const {
  int64_t offset = 0;
  for (int axis = 0; axis < 4; ++axis)
    offset = offset * sizes[axis] + at[axis];
  return offset * getBytes();
}

static reference::Element getKind(bool isBf16) {
  return isBf16 ? reference::Element::BF16 : reference::Element::F32;
}

void Tensor::set(std::array<int64_t, 4> at, float value) {
  reference::store(getKind(element.isBF16()), &bytes[getOffset(at)], value);
}

float Tensor::get(std::array<int64_t, 4> at) const {
  return reference::load(getKind(element.isBF16()), &bytes[getOffset(at)]);
}

float mlir::diffattn::readNumber(const char *numbers, int64_t i, bool isBf16) {
  return reference::load(getKind(isBf16), numbers + i * (isBf16 ? 2 : 4));
}

reference::View Tensor::getView() const {
  return reference::View(bytes.data(), getKind(element.isBF16()),
                         {sizes.begin(), sizes.end()});
}

void Tensor::fill(std::mt19937 &random) {
  std::uniform_int_distribution<int> eighths(-16, 16);
  for (int64_t b = 0; b < sizes[0]; ++b)
    for (int64_t h = 0; h < sizes[1]; ++h)
      for (int64_t r = 0; r < sizes[2]; ++r)
        for (int64_t c = 0; c < sizes[3]; ++c)
          set({b, h, r, c}, eighths(random) / 8.0f);
}

//===----------------------------------------------------------------------===//
// Kinds
//===----------------------------------------------------------------------===//

std::string CaseKind::getName() const {
  std::string name = target + (isBf16 ? "_bf16" : "_f32");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<CaseKind> mlir::diffattn::getCaseKinds() {
  std::vector<CaseKind> kinds;
  for (const CpuTarget &target : getCpuTargets())
    if (!target.has("amx-tile") && hostSupports(target)) {
      // bf16 where it is multiplied as it is, and once where it is widened.
      const bool multipliesBf16 = target.hasBf16Dot() || target.hasTiles();
      if (!multipliesBf16)
        kinds.push_back({target.name.str(), /*isBf16=*/false});
      if (multipliesBf16 || target.name == "generic")
        kinds.push_back({target.name.str(), /*isBf16=*/true});
    }
  return kinds;
}

CpuPhaseTest::CpuPhaseTest() {
  registerBuiltinDialectTranslation(context);
  registerLLVMDialectTranslation(context);
  context.loadDialect<DiffAttnDialect, LLVM::LLVMDialect, amx::AMXDialect,
                      arith::ArithDialect, math::MathDialect,
                      memref::MemRefDialect, scf::SCFDialect,
                      vector::VectorDialect>();
}

//===----------------------------------------------------------------------===//
// Operands
//===----------------------------------------------------------------------===//

static CpuPrefillAttr makeSchedule(Type element, const CaseSizes &sizes,
                                   const CpuTarget &target,
                                   int64_t twoPassKeys) {
  AttentionShape shape;
  shape.elementType = element;
  shape.headDim = sizes.headDim;
  shape.valueDim = sizes.valueDim;
  CpuPrefillAttr selected = selectCpuPrefill(shape, target);
  return CpuPrefillAttr::get(
      element.getContext(), selected.getIsa(), selected.getLanes(),
      selected.getQBlockSize(), selected.getQkTile(), selected.getPvTile(),
      CpuCase::kKvBlockSize, twoPassKeys, selected.getProduct());
}

CpuCase::CpuCase(MLIRContext &context, const CaseKind &kind,
                 const CaseSizes &sizes, int64_t twoPassKeys)
    : sizes(sizes), target(*getCpuTarget(kind.target)), mlirContext(context) {
  Type f32 = Float32Type::get(&context);
  Type element = kind.isBf16 ? Type(BFloat16Type::get(&context)) : f32;
  std::mt19937 random(7);
  auto make = [&](int64_t rows, int64_t columns) {
    Tensor tensor(element, {sizes.batch, sizes.heads, rows, columns});
    tensor.fill(random);
    return tensor;
  };
  for (int map : {0, 1}) {
    q[map] = make(sizes.queries, sizes.headDim);
    k[map] = make(sizes.keys, sizes.headDim);
  }
  v = make(sizes.keys, sizes.valueDim);
  spec.q1 = bind(q[0]);
  spec.q2 = bind(q[1]);
  spec.k1 = bind(k[0]);
  spec.k2 = bind(k[1]);
  spec.v = bind(v);
  arguments.q1 = q[0].getView();
  arguments.k1 = k[0].getView();
  arguments.q2 = q[1].getView();
  arguments.k2 = k[1].getView();
  arguments.v = v.getView();
  positions = arguments;
  Tensor half(f32, {1, 1, 1, 1});
  half.set({0, 0, 0, 0}, 0.5f);
  setLambda(half, /*isSigmoid=*/false);
  for (SpecSize *heads : {&spec.signalHeads, &spec.noiseHeads, &spec.key1Heads,
                          &spec.key2Heads, &spec.valueHeads, &spec.lambdaHeads})
    heads->value = sizes.heads;
  spec.batch.value = sizes.batch;
  spec.queries.value = sizes.queries;
  spec.keys.value = sizes.keys;
  spec.headDim.value = sizes.headDim;
  spec.valueDim.value = sizes.valueDim;
  spec.scores.scale = 0.25f;
  arguments.scale = 0.25;
  spec.prefill = makeSchedule(element, sizes, target, twoPassKeys);
  spec.product = spec.prefill.getProduct();
  spec.target = target;
}

int64_t CpuCase::addSlot(void *address) {
  context.push_back(reinterpret_cast<int64_t>(address));
  spec.slots = context.size();
  return spec.slots - 1;
}

SpecOperand CpuCase::bind(Tensor &tensor) {
  SpecOperand operand;
  operand.element = tensor.element;
  operand.slot = addSlot(tensor.getData());
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; --axis) {
    operand.strides[axis].value = tensor.sizes[axis] == 1 ? 0 : stride;
    stride *= tensor.sizes[axis];
  }
  // Columns lie side by side, however many there are.
  operand.strides[3].value = 1;
  for (SpecSize &size : operand.strides)
    size.slot = -1;
  return operand;
}

void CpuCase::setLambda(Tensor given, bool isSigmoid) {
  lambda = std::move(given);
  spec.lambda = bind(lambda);
  spec.epilogue.lambdaSigmoid = isSigmoid;
  // One number, or [batch][head][query].
  arguments.lambda = lambda.getView().transposed(1, 2);
  const size_t rank =
      lambda.sizes == std::array<int64_t, 4>{1, 1, 1, 1} ? 0 : 3;
  arguments.lambda.sizes.resize(rank);
  arguments.lambda.strides.resize(rank);
  arguments.lambdaSigmoid = isSigmoid;
}

void CpuCase::bindIntegers(MaskOperand which, std::vector<int64_t> &integers,
                           int64_t batchStride) {
  SpecOperand operand;
  operand.element = IntegerType::get(&mlirContext, 64);
  operand.slot = addSlot(integers.data());
  operand.strides[0].value = batchStride;
  operand.strides[1].value = 0;
  operand.strides[2].value = 1;
  operand.strides[3].value = 0;
  spec.masks[static_cast<size_t>(which)] = operand;
}

//===----------------------------------------------------------------------===//
// Masks
//===----------------------------------------------------------------------===//

void CpuCase::addWindow(int64_t left, int64_t right) {
  addMask<WindowMaskAttr>(left, right);
  if (left >= 0)
    spec.scores.reach.left = arguments.left = positions.left = left;
  if (right >= 0)
    spec.scores.reach.right = arguments.right = positions.right = right;
}

void CpuCase::addKvLength(std::vector<int64_t> given) {
  lengths = std::move(given);
  addMask<LengthMaskAttr>();
  bindIntegers(MaskOperand::KvLen, lengths, /*batchStride=*/1);
  arguments.kvLen = positions.kvLen =
      reference::View(lengths.data(), reference::Element::I64, {sizes.batch});
}

void CpuCase::addSegments(std::vector<int64_t> ofQueries,
                          std::vector<int64_t> ofKeys) {
  segments[0] = std::move(ofQueries);
  segments[1] = std::move(ofKeys);
  addMask<SegmentMaskAttr>();
  bindIntegers(MaskOperand::QSegments, segments[0], sizes.queries);
  bindIntegers(MaskOperand::KvSegments, segments[1], sizes.keys);
  arguments.qSegments =
      reference::View(segments[0].data(), reference::Element::I64,
                      {sizes.batch, sizes.queries});
  arguments.kvSegments = reference::View(
      segments[1].data(), reference::Element::I64, {sizes.batch, sizes.keys});
}

void CpuCase::addBooleanMask(std::vector<uint8_t> given) {
  flags = std::move(given);
  addMask<BooleanMaskAttr>();
  SpecOperand &operand = spec.masks[static_cast<size_t>(MaskOperand::Bias)];
  operand.element = IntegerType::get(&mlirContext, 1);
  operand.slot = addSlot(flags.data());
  operand.strides[0].value = sizes.queries * sizes.keys;
  operand.strides[1].value = 0;
  operand.strides[2].value = sizes.keys;
  operand.strides[3].value = 1;
  arguments.bias = reference::View(flags.data(), reference::Element::Bool,
                                   {sizes.batch, 1, sizes.queries, sizes.keys});
}

void CpuCase::addBias(Tensor given) {
  bias = std::move(given);
  addMask<AdditiveBiasAttr>();
  spec.masks[static_cast<size_t>(MaskOperand::Bias)] = bind(bias);
  arguments.bias = bias.getView();
}

void CpuCase::movePages(int64_t rows) {
  const int64_t perBatch = sizes.keys / rows, count = sizes.batch * perBatch;
  table.resize(count);
  for (int64_t i = 0; i < count; ++i)
    table[i] = (i * 11 + 3) % count; // no multiple of 11 pages
  const Tensor *dense[] = {&k[0], &k[1], &v};
  SpecOperand *operands[] = {&spec.k1, &spec.k2, &spec.v};
  for (int i = 0; i < 3; ++i) {
    const Tensor &from = *dense[i];
    // With rows to spare, so that the strides of none are those of another.
    pages[i] =
        Tensor(from.element, {count, sizes.heads, rows + i, from.sizes[3]});
    for (int64_t b = 0; b < sizes.batch; ++b)
      for (int64_t h = 0; h < sizes.heads; ++h)
        for (int64_t key = 0; key < sizes.keys; ++key)
          for (int64_t c = 0; c < from.sizes[3]; ++c)
            pages[i].set({table[b * perBatch + key / rows], h, key % rows, c},
                         from.get({b, h, key, c}));
    *operands[i] = bind(pages[i]);
  }
  spec.blockTable.element = IntegerType::get(&mlirContext, 64);
  spec.blockTable.slot = addSlot(table.data());
  const int64_t strides[] = {perBatch, 0, 1, 0};
  for (int axis = 0; axis < 4; ++axis)
    spec.blockTable.strides[axis].value = strides[axis];
  spec.pageRows.value = rows;
  spec = spec.withDenseRows();
}

void CpuCase::forgetSizes() {
  for (SpecSize *size : {&spec.queries, &spec.keys, &spec.headDim,
                         &spec.valueDim, &spec.signalHeads, &spec.batch}) {
    size->slot = context.size();
    context.push_back(size->value);
    size->value = ShapedType::kDynamic;
  }
  spec.slots = context.size();
}

//===----------------------------------------------------------------------===//
// Visible pairs, and blocks of queries
//===----------------------------------------------------------------------===//

bool CpuCase::isInRange(int64_t batch, int64_t query, int64_t key) const {
  double bias;
  return reference::isVisible(positions, batch, 0, query, key, bias);
}

bool CpuCase::isVisible(int64_t batch, int64_t query, int64_t key) const {
  double bias;
  return reference::isVisible(arguments, batch, 0, query, key, bias);
}

int64_t CpuCase::getBlocks() const {
  return llvm::divideCeil(sizes.queries, spec.prefill.getQBlockSize());
}

int64_t CpuCase::getBlockRows(int64_t block) const {
  const int64_t rows = spec.prefill.getQBlockSize();
  return std::min(rows, sizes.queries - block * rows);
}

/// The last blocks of a head come first.
int64_t CpuCase::getItem(int64_t batch, int64_t head, int64_t block) const {
  return (batch * sizes.heads + head + 1) * getBlocks() - 1 - block;
}
