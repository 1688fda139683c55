//===- GemmToRuntime.cpp - products of the runtime's library -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WeightTable.h"

#include "DiffAttn/Codegen/CPU/SmallGemm.h"
#include "DiffAttn/Codegen/Runtime/RuntimeFunctions.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Schedule/BatchInvariance.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTGEMMTORUNTIMEPASS
#include "DiffAttn/Conversion/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// How products are compiled.
struct GemmChoices {
  int64_t threads = 0;
  BatchInvariance batchInvariance = BatchInvariance::Auto;
  /// Null for products on a device.
  const CpuTarget *target = nullptr;
};

/// What the runtime wants to know about one operand.
struct Matrix {
  Value address;                   // i64
  Value leading;                   // i64, in elements
  SmallVector<Value> batchStrides; // index, in elements; empty: one for all
  Type element;
  bool transposed = false;
};

class GemmCall {
public:
  GemmCall(GemmOp op, const GemmChoices &choices)
      : op(op), b(op.getLoc(), op), threads(choices.threads),
        batchInvariance(choices.batchInvariance), target(choices.target) {}

  LogicalResult emit() {
    auto module = op->getParentOfType<ModuleOp>();
    auto typeC = cast<MemRefType>(op.getC().getType());
    int64_t rank = typeC.getRank(), batches = rank - 2;
    Value c = op.getC();
    bool bounced = !hasRows(typeC);
    if (bounced)
      c = copyOf(op.getC(), /*fill=*/op.getAccumulate());
    Matrix mA = describe(op.getA(), /*mayTranspose=*/false);
    Matrix mB = describe(op.getB(), /*mayTranspose=*/true);
    Matrix mC = describe(c, /*mayTranspose=*/false);
    Value m = dim(c, rank - 2), n = dim(c, rank - 1);
    Value k =
        dim(op.getA(), cast<MemRefType>(op.getA().getType()).getRank() - 1);
    bool transposed = op.getTransposeB() != mB.transposed;

    Value slot = target && batches == 0 ? weightSlot(module) : Value();
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
      for (Matrix *matrix : {&mA, &mB, &mC})
        if (!matrix->batchStrides.empty())
          matrix->address = advance(*matrix, loop.getInductionVar(), i);
    }
    if (target && !inOrder && batches == 0 && transposed &&
        !mC.element.isF64() && !(typeC.getDimSize(0) > kSmallGemmRows)) {
      // Few rows are bound by reading B: the emitted kernel for them. Unsigned,
      // so that no rows at all go to the library.
      Value few = arith::CmpIOp::create(b, arith::CmpIPredicate::ult,
                                        arith::SubIOp::create(b, m, i64(1)),
                                        i64(kSmallGemmRows));
      auto choice = scf::IfOp::create(b, few, /*withElseRegion=*/true);
      b.setInsertionPointToStart(choice.thenBlock());
      LLVM::LLVMFuncOp kernel = getOrEmitSmallGemm(
          module, b.getLoc(),
          {mA.element, mB.element, mC.element, op.getAccumulate(), *target});
      LLVM::CallOp::create(b, kernel,
                           ValueRange{pointer(mA.address), mA.leading,
                                      pointer(mB.address), mB.leading,
                                      pointer(mC.address), mC.leading, m, n, k,
                                      i64(threads)});
      b.setInsertionPointToStart(choice.elseBlock());
    }
    SmallVector<Value> arguments = {
        i32(*getElementTypeCode(mA.element)),
        i32(*getElementTypeCode(mB.element)),
        i32(*getElementTypeCode(mC.element)),
        m,
        n,
        k,
        pointer(mA.address),
        mA.leading,
        pointer(mB.address),
        mB.leading,
        i32((transposed ? DIFFATTN_GEMM_TRANSPOSE_B : 0) |
            (inOrder ? DIFFATTN_GEMM_IN_ORDER |
                           (target->hasBf16Dot() ? DIFFATTN_GEMM_BF16_PAIRS : 0)
                     : 0)),
        pointer(mC.address),
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
      arguments.push_back(i64(threads));
    }
    if (batches == 0 && !target) {
      arguments.push_back(i64(1));
      arguments.append(3, i64(0));
    } else if (batches != 0) {
      arguments.push_back(toI64(memref::DimOp::create(b, c, batches - 1)));
      for (Matrix *matrix : {&mA, &mB, &mC})
        arguments.push_back(matrix->batchStrides.empty()
                                ? i64(0)
                                : toI64(matrix->batchStrides[batches - 1]));
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
  /// True if the elements of a row lie side by side.
  static bool hasRows(MemRefType type) {
    int64_t rank = type.getRank();
    return type.getStridesAndOffset().first[rank - 1] == 1 ||
           type.getDimSize(rank - 1) == 1;
  }
  static bool hasColumns(MemRefType type) {
    return type.getStridesAndOffset().first[type.getRank() - 2] == 1;
  }

  /// A contiguous buffer of the same shape.
  Value copyOf(Value buffer, bool fill) {
    auto type = cast<MemRefType>(buffer.getType());
    SmallVector<Value> sizes;
    for (int64_t i = 0; i < type.getRank(); ++i)
      if (type.isDynamicDim(i))
        sizes.push_back(memref::DimOp::create(b, buffer, i));
    auto plain = MemRefType::get(type.getShape(), type.getElementType());
    Value copy =
        memref::AllocOp::create(b, plain, sizes, b.getI64IntegerAttr(64));
    if (fill)
      memref::CopyOp::create(b, buffer, copy);
    return copy;
  }

  Matrix describe(Value buffer, bool mayTranspose) {
    auto type = cast<MemRefType>(buffer.getType());
    bool transposed = mayTranspose && !hasRows(type) && hasColumns(type);
    if (!hasRows(type) && !transposed) {
      buffer = copyOf(buffer, /*fill=*/true);
      type = cast<MemRefType>(buffer.getType());
    }
    int64_t rank = type.getRank();
    auto metadata = memref::ExtractStridedMetadataOp::create(b, buffer);
    Matrix matrix;
    matrix.element = type.getElementType();
    matrix.transposed = transposed;
    matrix.address = offsetBy(
        toI64(memref::ExtractAlignedPointerAsIndexOp::create(b, buffer)),
        toI64(metadata.getOffset()), matrix.element);
    matrix.leading =
        toI64(type.getDimSize(rank - 2) == 1 && !transposed
                  ? Value(memref::DimOp::create(b, buffer, rank - 1))
                  : metadata.getStrides()[transposed ? rank - 1 : rank - 2]);
    for (int64_t i = 0; i < rank - 2; ++i)
      matrix.batchStrides.push_back(metadata.getStrides()[i]);
    return matrix;
  }

  Value advance(Matrix &matrix, Value index, int64_t batch) {
    Value elements =
        arith::MulIOp::create(b, index, matrix.batchStrides[batch]);
    return offsetBy(matrix.address, toI64(elements), matrix.element);
  }

  Value offsetBy(Value address, Value elements, Type element) {
    Value bytes = arith::MulIOp::create(
        b, elements, i64(element.getIntOrFloatBitWidth() / 8));
    return arith::AddIOp::create(b, address, bytes);
  }

  /// The slot of the weight or constant that B is, whole; null if it is
  /// neither: what may change cannot be packed once.
  Value weightSlot(ModuleOp module) {
    Value source = op.getB();
    for (Operation *view = source.getDefiningOp();
         isa_and_nonnull<memref::CastOp, memref::CollapseShapeOp,
                         memref::ExpandShapeOp, memref::TransposeOp>(view);
         view = source.getDefiningOp())
      source = view->getOperand(0);
    if (auto weight = source.getDefiningOp<WeightOp>())
      return emitWeightSlot(b, b.getLoc(), getOrDeclareWeightTable(module),
                            weight.getSlot());
    if (auto constant = source.getDefiningOp<memref::GetGlobalOp>())
      if (auto global = SymbolTable::lookupNearestSymbolFrom<memref::GlobalOp>(
              constant, constant.getNameAttr());
          global && global.getConstant())
        return emitConstantSlot(b, module, global.getSymName());
    return {};
  }

  Value i32(int32_t value) {
    return arith::ConstantIntOp::create(b, value, 32);
  }
  Value i64(int64_t value) {
    return arith::ConstantIntOp::create(b, value, 64);
  }
  Value toI64(Value index) {
    return arith::IndexCastOp::create(b, b.getI64Type(), index);
  }
  Value dim(Value buffer, int64_t i) {
    return toI64(memref::DimOp::create(b, buffer, i));
  }
  Value pointer(Value address) {
    return LLVM::IntToPtrOp::create(
        b, LLVM::LLVMPointerType::get(b.getContext()), address);
  }

  GemmOp op;
  ImplicitLocOpBuilder b;
  int64_t threads;
  BatchInvariance batchInvariance;
  const CpuTarget *target;
};

struct ConvertGemmToRuntimePass final
    : diffattn::impl::ConvertGemmToRuntimePassBase<ConvertGemmToRuntimePass> {
  using ConvertGemmToRuntimePassBase::ConvertGemmToRuntimePassBase;
  void runOnOperation() override {
    std::optional<CpuTarget> target = getCpuTarget(isa);
    if (!target) {
      getOperation().emitError("expected isa to be one of ")
          << llvm::join(getCpuIsaNames(), ", ") << ", but got " << isa;
      return signalPassFailure();
    }
    std::optional<BatchInvariance> invariance =
        parseBatchInvariance(batchInvariant);
    if (!invariance) {
      getOperation().emitError("expected batch-invariant to be auto, true or "
                               "false, but got ")
          << batchInvariant;
      return signalPassFailure();
    }
    GemmChoices choices{threads, *invariance, device ? nullptr : &*target};
    SmallVector<GemmOp> ops;
    getOperation().walk([&](GemmOp op) { ops.push_back(op); });
    for (GemmOp op : ops) {
      if (!llvm::isa<MemRefType>(op.getC().getType())) {
        op.emitOpError("expected operands that are buffers, but got tensors");
        return signalPassFailure();
      }
      if (failed(GemmCall(op, choices).emit()))
        return signalPassFailure();
    }
  }
};
} // namespace
