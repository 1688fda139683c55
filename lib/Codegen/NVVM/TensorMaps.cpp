//===- TensorMaps.cpp - operands and results as tensor maps ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LaunchBuilder.h"

#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"
#include "DiffAttn/Schedule/GpuSchedule.h"
#include "DiffAttn/Target/GpuTarget.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The axes of a map behind its columns, as kernels give their coordinates.
static constexpr OperandView::Role kOuterAxes[] = {
    OperandView::Row, OperandView::Head, OperandView::Batch};

Value LaunchBuilder::canUseMaps(bool storesResult) {
  Value all = canCopyChunks();
  if (operands.blockTable)
    all = compute<arith::AndIOp>(all, isPageMultiple(kGpuMapBoxRows));
  SmallVector<const OperandView *> views{
      &operands.q1, &operands.k1, &operands.q2, &operands.k2, &operands.v};
  if (storesResult)
    views.push_back(&operands.output);
  return canUseMaps(all, views);
}

Value LaunchBuilder::canUseMaps(Value copied,
                                ArrayRef<const OperandView *> views) {
  Value all = copied;
  for (const OperandView *view : views)
    for (OperandView::Role role : kOuterAxes) {
      if (!*view || view->axes[role] < 0)
        continue;
      // An axis of one element is never stepped along; a map of none is no map.
      Value count = size(*view, role);
      Value isOne = compare(arith::CmpIPredicate::eq, count, 1);
      Value bytes = compute<arith::MulIOp>(stride(*view, role),
                                           index(elementBytes(view->value)));
      Value fits = compute<arith::AndIOp>(
          compare(arith::CmpIPredicate::sgt, bytes, 0),
          compare(arith::CmpIPredicate::slt, bytes, GpuTarget::kMaxMapStride));
      fits = compute<arith::AndIOp>(
          fits, compare(arith::CmpIPredicate::ne, count, 0));
      all = compute<arith::AndIOp>(all, compute<arith::OrIOp>(isOne, fits));
    }
  return all;
}

void LaunchBuilder::setMap(GpuParam param, const OperandView &view, Value rows,
                           diffattn_tensor_operand operand) {
  auto module =
      b.getInsertionBlock()->getParentOp()->getParentOfType<ModuleOp>();
  FailureOr<LLVM::LLVMFuncOp> encode = getOrDeclareRuntimeFunction(
      b, module, RuntimeFunction::device_tensor_map);
  if (failed(encode))
    return;
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  Value map;
  {
    // Stack of the function, not of a loop's iteration.
    OpBuilder::InsertionGuard guard(b);
    auto function = b.getInsertionBlock()
                        ->getParent()
                        ->getParentOfType<FunctionOpInterface>();
    b.setInsertionPointToStart(&function.getFunctionBody().front());
    Value bytes = LLVM::ConstantOp::create(
        b, b.getI64Type(), b.getI64IntegerAttr(kTensorMapBytes));
    map = LLVM::AllocaOp::create(b, pointer, b.getI8Type(), bytes,
                                 kTensorMapAlignment);
  }
  Type element = cast<MemRefType>(view.getType()).getElementType();
  SmallVector<Value> values{
      map,
      i32(operand),
      i32(*getElementTypeCode(element)),
      i32(rows),
      LLVM::IntToPtrOp::create(b, pointer, i64(address(view.value))),
      i64(size(view, OperandView::Column))};
  for (bool strides : {false, true})
    for (OperandView::Role role : kOuterAxes) {
      const bool exists = view.axes[role] >= 0;
      values.push_back(i64(strides  ? stride(view, role)
                           : exists ? size(view, role)
                                    : index(1)));
    }
  LLVM::CallOp::create(b, *encode, values);
  argument(param) = map;
}

void LaunchBuilder::fillMaps(const GpuKernelSpec &spec, const OperandView &dX) {
  using P = GpuParam;
  // Keys of a tile that one block of a cluster brings.
  const int64_t tileKeys = spec.getTileKeys() / spec.getClusterBlocks();
  Value rows = index(spec.getRows()), keys = index(tileKeys);
  if (operands.blockTable) {
    // A box lies in one page: the largest one that divides pages and tiles.
    keys = index(kGpuMapBoxRows);
    for (int64_t box = 2 * kGpuMapBoxRows; box <= tileKeys;
         box += kGpuMapBoxRows)
      if (tileKeys % box == 0)
        keys = b.createOrFold<arith::SelectOp>(isPageMultiple(box), index(box),
                                               keys);
    argument(P::PageBox) = i32(keys);
  }
  if (spec.kind == GpuKernelKind::GradientKeys)
    std::swap(rows, keys);
  if (spec.isWgmma()) {
    setMap(P::Q1Map, operands.q1, rows, DIFFATTN_TENSOR_Q1);
    if (spec.maps == 2)
      setMap(P::Q2Map, operands.q2, rows, DIFFATTN_TENSOR_Q2);
  }
  setMap(P::K1Map, operands.k1, keys, DIFFATTN_TENSOR_K1);
  if (spec.hasSecondKeys())
    setMap(P::K2Map, operands.k2, keys, DIFFATTN_TENSOR_K2);
  setMap(P::VMap, operands.v, keys, DIFFATTN_TENSOR_V);
  if (spec.isOfGradients())
    setMap(P::DXMap, dX, rows, DIFFATTN_TENSOR_DX);
  if (spec.storesByMap())
    setMap(P::OMap, operands.output, index(GpuWgmmaAttr::kResultRows),
           DIFFATTN_TENSOR_O);
}
