//===- GatedGemmToRuntime.cpp - gated products by the runtime's tiles -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RuntimeMatrix.h"

#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace mlir;
using namespace mlir::diffattn;

static constexpr bool isSame(GateRounding step, diffattn_gate_rounding code) {
  return static_cast<uint32_t>(step) == static_cast<uint32_t>(code);
}
static_assert(isSame(GateRounding::Sums, DIFFATTN_ROUND_SUMS) &&
                  isSame(GateRounding::Exponential,
                         DIFFATTN_ROUND_EXPONENTIAL) &&
                  isSame(GateRounding::Denominator,
                         DIFFATTN_ROUND_DENOMINATOR) &&
                  isSame(GateRounding::Sigmoid, DIFFATTN_ROUND_SIGMOID) &&
                  isSame(GateRounding::Silu, DIFFATTN_ROUND_SILU),
              "the op's roundings go to the runtime as they are");

LogicalResult mlir::diffattn::convertGatedGemm(GatedGemmOp op,
                                               const GemmChoices &choices) {
  const int32_t tiles = choices.target ? getTileFlags(*choices.target) : 0;
  if (!tiles || !getElementTypeOrSelf(op.getA()).isBF16())
    return op.emitOpError("expected operands of bf16 and a CPU with tiles; "
                          "diffattn-decompose makes products of it for others");
  auto module = op->getParentOfType<ModuleOp>();
  MatrixBuilder b(op);
  Value c = op.getC();
  const bool bounced = !MatrixBuilder::hasRows(cast<MemRefType>(c.getType()));
  if (bounced)
    c = b.copyOf(c, /*fill=*/false);
  RuntimeMatrix mA = b.describe(op.getA(), /*mayTranspose=*/false),
                mGate = b.describe(op.getGate(), /*mayTranspose=*/false),
                mUp = b.describe(op.getUp(), /*mayTranspose=*/false),
                mC = b.describe(c, /*mayTranspose=*/false);
  auto slotOf = [&](Value weight) -> Value {
    Value slot;
    // A weight that has to be copied first has no slot.
    if (MatrixBuilder::hasRows(cast<MemRefType>(weight.getType())))
      slot = b.weightSlot(weight);
    return slot ? slot
                : LLVM::ZeroOp::create(
                      b, LLVM::LLVMPointerType::get(b.getContext()));
  };
  const int32_t flags =
      tiles | (op.getTransposeB() ? DIFFATTN_GEMM_TRANSPOSE_B : 0);
  Value m = b.dim(c, 0), n = b.dim(c, 1), k = b.dim(op.getA(), 1);
  SmallVector<Value> arguments{b.i32(*getElementTypeCode(mC.element)),
                               m,
                               n,
                               k,
                               b.pointer(mA.address),
                               mA.leading,
                               b.pointer(mGate.address),
                               mGate.leading,
                               b.pointer(mUp.address),
                               mUp.leading,
                               b.i32(flags),
                               b.i32(static_cast<int32_t>(op.getRounded())),
                               b.pointer(mC.address),
                               mC.leading,
                               slotOf(op.getGate()),
                               slotOf(op.getUp()),
                               b.i64(choices.threads)};
  FailureOr<LLVM::LLVMFuncOp> callee =
      getOrDeclareRuntimeFunction(b, module, RuntimeFunction::gated_gemm);
  if (failed(callee))
    return failure();
  LLVM::CallOp::create(b, *callee, arguments);
  if (bounced)
    memref::CopyOp::create(b, c, op.getC());
  op.erase();
  return success();
}
