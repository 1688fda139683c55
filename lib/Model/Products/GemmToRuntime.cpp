//===- GemmToRuntime.cpp - products of the runtime's library -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RuntimeMatrix.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Products/SmallGemm.h"
#include "DiffAttn/Model/Schedule/BatchInvariance.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTGEMMTORUNTIMEPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

int32_t mlir::diffattn::getTileFlags(const CpuTarget &target) {
  if (target.emulatesTiles)
    return DIFFATTN_GEMM_EMULATED_TILES;
  return target.hasTiles() ? DIFFATTN_GEMM_BF16_TILES : 0;
}

/// How the runtime's own code multiplies bf16 on `target`.
static int32_t getInOrderFlags(const CpuTarget &target) {
  const int32_t inOrder = DIFFATTN_GEMM_IN_ORDER;
  if (int32_t tiles = getTileFlags(target))
    return inOrder | tiles;
  return target.hasBf16Dot() ? inOrder | DIFFATTN_GEMM_BF16_PAIRS : inOrder;
}

namespace {
class GemmCall {
public:
  GemmCall(GemmOp op, const GemmChoices &choices)
      : op(op), b(op), threads(choices.threads),
        batchInvariance(choices.batchInvariance), target(choices.target) {}

  LogicalResult emit() {
    auto module = op->getParentOfType<ModuleOp>();
    auto typeC = cast<MemRefType>(op.getC().getType());
    int64_t rank = typeC.getRank(), batches = rank - 2;
    Value c = op.getC();
    bool bounced = !MatrixBuilder::hasRows(typeC);
    if (bounced)
      c = b.copyOf(op.getC(), /*fill=*/op.getAccumulate());
    RuntimeMatrix mA = b.describe(op.getA(), /*mayTranspose=*/false);
    RuntimeMatrix mB = b.describe(op.getB(), /*mayTranspose=*/true);
    RuntimeMatrix mC = b.describe(c, /*mayTranspose=*/false);
    Value m = b.dim(c, rank - 2), n = b.dim(c, rank - 1);
    Value k =
        b.dim(op.getA(), cast<MemRefType>(op.getA().getType()).getRank() - 1);
    bool transposed = op.getTransposeB() != mB.transposed;

    Value slot = target && batches == 0 ? b.weightSlot(op.getB()) : Value();
    bool inOrder =
        target && sumsInOrder(batchInvariance, mB.element,
                              /*isWeight=*/static_cast<bool>(slot), *target);

    OpBuilder::InsertionGuard guard(b);
    Value zero = arith::ConstantIndexOp::create(b, 0);
    Value one = arith::ConstantIndexOp::create(b, 1);
    for (int64_t i = 0; i + 1 < batches; ++i) {
      Value size = memref::DimOp::create(b, c, i);
      auto loop = scf::ForOp::create(b, zero, size, one);
      b.setInsertionPointToStart(loop.getBody());
      for (RuntimeMatrix *matrix : {&mA, &mB, &mC})
        if (!matrix->batchStrides.empty())
          matrix->address = b.advance(*matrix, loop.getInductionVar(), i);
    }
    if (target && !inOrder && batches == 0 && transposed &&
        !mC.element.isF64() && !(typeC.getDimSize(0) > kSmallGemmRows)) {
      // Few rows are bound by reading B: the emitted kernel for them. Unsigned,
      // so that no rows at all go to the library.
      Value few = arith::CmpIOp::create(b, arith::CmpIPredicate::ult,
                                        arith::SubIOp::create(b, m, b.i64(1)),
                                        b.i64(kSmallGemmRows));
      auto choice = scf::IfOp::create(b, few, /*withElseRegion=*/true);
      b.setInsertionPointToStart(choice.thenBlock());
      LLVM::LLVMFuncOp kernel = getOrEmitSmallGemm(
          module, b.getLoc(),
          {mA.element, mB.element, mC.element, op.getAccumulate(), *target});
      LLVM::CallOp::create(b, kernel,
                           ValueRange{b.pointer(mA.address), mA.leading,
                                      b.pointer(mB.address), mB.leading,
                                      b.pointer(mC.address), mC.leading, m, n,
                                      k, b.i64(threads)});
      b.setInsertionPointToStart(choice.elseBlock());
    }
    SmallVector<Value> arguments = {
        b.i32(*getElementTypeCode(mA.element)),
        b.i32(*getElementTypeCode(mB.element)),
        b.i32(*getElementTypeCode(mC.element)),
        m,
        n,
        k,
        b.pointer(mA.address),
        mA.leading,
        b.pointer(mB.address),
        mB.leading,
        b.i32((transposed ? DIFFATTN_GEMM_TRANSPOSE_B : 0) |
              (inOrder ? getInOrderFlags(*target) : 0)),
        b.pointer(mC.address),
        mC.leading,
        arith::ConstantOp::create(
            b, b.getF32FloatAttr(op.getAccumulate() ? 1.0f : 0.0f))};
    auto function = RuntimeFunction::device_gemm;
    if (target) {
      function = batches ? RuntimeFunction::batch_gemm : RuntimeFunction::gemm;
      if (batches == 0)
        arguments.push_back(
            slot ? slot
                 : LLVM::ZeroOp::create(
                       b, LLVM::LLVMPointerType::get(b.getContext())));
      arguments.push_back(b.i64(threads));
    }
    if (batches == 0 && !target) {
      arguments.push_back(b.i64(1));
      arguments.append(3, b.i64(0));
    } else if (batches != 0) {
      arguments.push_back(b.toI64(memref::DimOp::create(b, c, batches - 1)));
      for (RuntimeMatrix *matrix : {&mA, &mB, &mC})
        arguments.push_back(matrix->batchStrides.empty()
                                ? b.i64(0)
                                : b.toI64(matrix->batchStrides[batches - 1]));
    }
    FailureOr<LLVM::LLVMFuncOp> callee =
        getOrDeclareRuntimeFunction(b, module, function);
    if (failed(callee))
      return failure();
    LLVM::CallOp::create(b, *callee, arguments);
    b.setInsertionPoint(op);
    if (bounced)
      memref::CopyOp::create(b, c, op.getC());
    op.erase();
    return success();
  }

private:
  GemmOp op;
  MatrixBuilder b;
  int64_t threads;
  BatchInvariance batchInvariance;
  const CpuTarget *target;
};

struct ConvertGemmToRuntimePass final
    : diffattn::impl::ConvertGemmToRuntimePassBase<ConvertGemmToRuntimePass> {
  using ConvertGemmToRuntimePassBase::ConvertGemmToRuntimePassBase;
  void runOnOperation() override {
    if (failed(verifyThreads(getOperation(), threads)))
      return signalPassFailure();
    llvm::Expected<CpuTarget> target = getCpuTarget(isa, prefetchBytes);
    if (!target) {
      getOperation().emitError() << llvm::toString(target.takeError());
      return signalPassFailure();
    }
    GemmChoices choices{threads, batchInvariant, device ? nullptr : &*target};
    SmallVector<Operation *> ops;
    getOperation().walk([&](Operation *op) {
      if (llvm::isa<GatedGemmOp, GemmOp, QuantizedGemmOp>(op))
        ops.push_back(op);
    });
    for (Operation *op : ops)
      if (failed(convert(op, choices)))
        return signalPassFailure();
  }

  static LogicalResult convert(Operation *op, const GemmChoices &choices) {
    auto destination = cast<DestinationStyleOpInterface>(op);
    if (!llvm::isa<MemRefType>(destination.getDpsInits()[0].getType()))
      return op->emitOpError("expected operands that are buffers, but got "
                             "tensors");
    if (auto quantized = dyn_cast<QuantizedGemmOp>(op))
      return convertQuantizedGemm(quantized, choices);
    if (auto gated = dyn_cast<GatedGemmOp>(op))
      return convertGatedGemm(gated, choices);
    return GemmCall(cast<GemmOp>(op), choices).emit();
  }
};
} // namespace
