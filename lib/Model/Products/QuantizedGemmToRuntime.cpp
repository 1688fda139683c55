//===- QuantizedGemmToRuntime.cpp - products with quantized weights -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RuntimeMatrix.h"

#include "DiffAttn/Model/Products/QuantizedGemm.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The address of `buffer`, copied if its elements do not lie side by side.
static Value addressOfWhole(MatrixBuilder &b, Value buffer) {
  if (!cast<MemRefType>(buffer.getType()).getLayout().isIdentity())
    buffer = b.copyOf(buffer, /*fill=*/true);
  return b.pointer(
      b.toI64(memref::ExtractAlignedPointerAsIndexOp::create(b, buffer)));
}

/// The product by the runtime's tiles; `args` are those of an emitted kernel.
static LogicalResult callTiles(MatrixBuilder &b, ModuleOp module,
                               const QuantizedGemmSpec &spec,
                               ArrayRef<Value> args) {
  FailureOr<LLVM::LLVMFuncOp> callee =
      getOrDeclareRuntimeFunction(b, module, RuntimeFunction::quantized_gemm);
  if (failed(callee))
    return failure();
  const auto [a, lda, weight, scales, c, ldc, m, n, k, threads] =
      std::tie(args[0], args[1], args[2], args[3], args[4], args[5], args[6],
               args[7], args[8], args[9]);
  Value beta = arith::ConstantOp::create(
      b, b.getF32FloatAttr(spec.accumulate ? 1.0f : 0.0f));
  LLVM::CallOp::create(b, *callee,
                       ValueRange{b.i32(*getElementTypeCode(spec.aType)),
                                  b.i32(*getElementTypeCode(spec.cType)),
                                  b.i32(static_cast<int32_t>(spec.bits)),
                                  b.i64(spec.group), m, n, k, a, lda, weight,
                                  scales, b.i32(getTileFlags(spec.target)), c,
                                  ldc, beta, threads});
  return success();
}

LogicalResult mlir::diffattn::convertQuantizedGemm(QuantizedGemmOp op,
                                                   const GemmChoices &choices) {
  if (!choices.target)
    return op.emitOpError("expected buffers of the host, but got a GPU's");
  auto module = op->getParentOfType<ModuleOp>();
  MatrixBuilder b(op);
  auto typeC = cast<MemRefType>(op.getC().getType());
  Value c = op.getC();
  const bool bounced = !MatrixBuilder::hasRows(typeC);
  if (bounced)
    c = b.copyOf(c, /*fill=*/op.getAccumulate());
  RuntimeMatrix mA = b.describe(op.getA(), /*mayTranspose=*/false),
                mC = b.describe(c, /*mayTranspose=*/false);
  Value m = b.dim(c, 0);
  const QuantizedGemmSpec spec{
      mA.element,    mC.element,         static_cast<int64_t>(op.getBits()),
      op.getGroup(), op.getAccumulate(), *choices.target};
  SmallVector<Value> arguments{b.pointer(mA.address),
                               mA.leading,
                               addressOfWhole(b, op.getB()),
                               addressOfWhole(b, op.getScales()),
                               b.pointer(mC.address),
                               mC.leading,
                               m,
                               b.i64(op.getNumColumns()),
                               b.i64(op.getDepth()),
                               b.i64(choices.threads)};
  auto call = [&](LLVM::LLVMFuncOp kernel) {
    LLVM::CallOp::create(b, kernel, arguments);
  };
  if (choices.batchInvariance == BatchInvariance::Always ||
      (typeC.hasStaticShape() && typeC.getDimSize(0) <= kQuantizedGemmRows)) {
    call(getOrEmitQuantizedGemm(module, b.getLoc(), spec));
  } else {
    Value few = arith::CmpIOp::create(b, arith::CmpIPredicate::ule, m,
                                      b.i64(kQuantizedGemmRows));
    auto choice = scf::IfOp::create(b, few, /*withElseRegion=*/true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    call(getOrEmitQuantizedGemm(module, b.getLoc(), spec));
    b.setInsertionPointToStart(choice.elseBlock());
    if (!getTileFlags(spec.target))
      call(getOrEmitWidenedGemm(module, b.getLoc(), spec));
    else if (failed(callTiles(b, module, spec, arguments)))
      return failure();
  }
  if (bounced)
    memref::CopyOp::create(b, c, op.getC());
  op.erase();
  return success();
}
