//===- HostAccess.cpp - accesses of the host to buffers -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Conversion/HostAccess.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace mlir::diffattn;

static bool isBuffer(Type type) { return isa<BaseMemRefType>(type); }

static bool isContiguous(Value buffer) {
  auto type = dyn_cast<MemRefType>(buffer.getType());
  return type && type.getLayout().isIdentity();
}

/// Whether the runtime multiplies the matrices of `buffer` where they lie.
static bool isMatrix(Value buffer, bool mayTranspose) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset, rank = type.getRank();
  if (failed(type.getStridesAndOffset(strides, offset)))
    return false;
  return strides[rank - 1] == 1 || type.getDimSize(rank - 1) == 1 ||
         (mayTranspose && strides[rank - 2] == 1);
}

static bool staysOffBuffers(Operation *op) {
  if (llvm::none_of(op->getOperandTypes(), isBuffer) &&
      llvm::none_of(op->getResultTypes(), isBuffer))
    return true;
  // Control flow only passes buffers on. The ops in it are looked at by
  // themselves.
  if (isa<func::ReturnOp, scf::YieldOp, scf::ForOp, scf::IfOp, scf::WhileOp,
          scf::ConditionOp, scf::ExecuteRegionOp, cf::BranchOp,
          cf::CondBranchOp, arith::SelectOp>(op))
    return true;
  if (auto call = dyn_cast<func::CallOp>(op)) {
    auto callee = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        op, call.getCalleeAttr());
    return callee && !callee.isDeclaration();
  }
  if (isa<memref::AllocOp, memref::DeallocOp, memref::DimOp, memref::CastOp,
          memref::SubViewOp, memref::ReinterpretCastOp, memref::ViewOp,
          memref::CollapseShapeOp, memref::ExpandShapeOp, memref::TransposeOp,
          memref::ExtractStridedMetadataOp,
          memref::ExtractAlignedPointerAsIndexOp, memref::GetGlobalOp,
          memref::AssumeAlignmentOp, memref::MemorySpaceCastOp, WeightOp,
          gpu::LaunchFuncOp, gpu::AllocOp, gpu::DeallocOp>(op))
    return true;
  if (auto copy = dyn_cast<memref::CopyOp>(op))
    return isContiguous(copy.getSource()) && isContiguous(copy.getTarget());
  if (auto fill = dyn_cast<gpu::MemsetOp>(op))
    return isContiguous(fill.getDst());
  if (auto product = dyn_cast<GemmOp>(op))
    return isMatrix(product.getA(), false) && isMatrix(product.getB(), true) &&
           isMatrix(product.getC(), false);
  return false;
}

Operation *mlir::diffattn::findHostAccess(ModuleOp module) {
  Operation *access = nullptr;
  for (auto function : module.getOps<func::FuncOp>())
    function.walk([&](Operation *op) {
      if (op == function || staysOffBuffers(op))
        return WalkResult::advance();
      access = op;
      return WalkResult::interrupt();
    });
  return access;
}
