//===- GpuLaunchToRuntime.cpp - launches as calls -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/Passes.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/FunctionCallUtils.h"
#include "mlir/IR/IRMapping.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTGPULAUNCHTORUNTIMEPASS
#include "DiffAttn/Conversion/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

static constexpr StringLiteral kLauncher = "diffattn_gpu_launch";
static constexpr StringLiteral kDevice = "diffattn_gpu_device";

/// The bits of `value` as an i64, or null if it is no number and no pointer.
static Value bitsOf(OpBuilder &b, Location loc, Value value) {
  Type i64 = b.getI64Type();
  if (isa<LLVM::LLVMPointerType>(value.getType()))
    return LLVM::PtrToIntOp::create(b, loc, i64, value);
  if (isa<IndexType>(value.getType()))
    return arith::IndexCastOp::create(b, loc, i64, value);
  if (!value.getType().isIntOrFloat() ||
      value.getType().getIntOrFloatBitWidth() > 64)
    return nullptr;
  if (isa<FloatType>(value.getType()))
    value = arith::BitcastOp::create(
        b, loc, b.getIntegerType(value.getType().getIntOrFloatBitWidth()),
        value);
  if (value.getType() == i64)
    return value;
  return arith::ExtUIOp::create(b, loc, i64, value);
}

/// A constant string with its end marked by a zero.
static Value nameOf(OpBuilder &b, ModuleOp module, Location loc,
                    StringRef kernel) {
  std::string symbol = ("diffattn_kernel_name_" + kernel).str();
  auto global = module.lookupSymbol<LLVM::GlobalOp>(symbol);
  if (!global) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(module.getBody());
    std::string text = kernel.str() + '\0';
    auto type = LLVM::LLVMArrayType::get(b.getI8Type(), text.size());
    global = LLVM::GlobalOp::create(b, loc, type, /*isConstant=*/true,
                                    LLVM::Linkage::Private, symbol,
                                    b.getStringAttr(text));
  }
  return LLVM::AddressOfOp::create(b, loc, global);
}

namespace {
struct ConvertGpuLaunchToRuntimePass final
    : diffattn::impl::ConvertGpuLaunchToRuntimePassBase<
          ConvertGpuLaunchToRuntimePass> {
  void runOnOperation() override {
    SmallVector<gpu::LaunchFuncOp> launches;
    SmallVector<gpu::AllocOp> allocs;
    SmallVector<gpu::DeallocOp> deallocs;
    WalkResult walk = getOperation().walk([&](Operation *op) {
      if (isa<gpu::GPUModuleOp>(op))
        return WalkResult::skip();
      if (auto launch = dyn_cast<gpu::LaunchFuncOp>(op)) {
        if (failed(check(launch)))
          return WalkResult::interrupt();
        launches.push_back(launch);
      } else if (auto alloc = dyn_cast<gpu::AllocOp>(op)) {
        if (alloc.getAsyncToken() || !alloc.getSymbolOperands().empty()) {
          alloc.emitOpError() << "expected an allocation without token and "
                                 "symbols";
          return WalkResult::interrupt();
        }
        allocs.push_back(alloc);
      } else if (auto dealloc = dyn_cast<gpu::DeallocOp>(op)) {
        deallocs.push_back(dealloc);
      }
      return WalkResult::advance();
    });
    if (walk.wasInterrupted())
      return signalPassFailure();
    OpBuilder b(&getContext());
    for (gpu::LaunchFuncOp launch : launches)
      if (failed(convert(b, launch)))
        return signalPassFailure();
    for (gpu::DeallocOp dealloc : deallocs)
      dealloc.erase();
    for (gpu::AllocOp alloc : allocs) {
      b.setInsertionPoint(alloc);
      Value memory = memref::AllocOp::create(b, alloc.getLoc(), alloc.getType(),
                                             alloc.getDynamicSizes());
      alloc.getMemref().replaceAllUsesWith(memory);
      alloc.erase();
    }
  }

  static LogicalResult check(gpu::LaunchFuncOp launch) {
    if (launch.getAsyncToken() || launch.hasClusterSize() ||
        launch.getAsyncObject())
      return launch.emitOpError()
             << "expected a launch without token, stream and cluster";
    for (Value operand : launch.getKernelOperands())
      if (!operand.getType().isIntOrIndexOrFloat() &&
          !isa<LLVM::LLVMPointerType>(operand.getType()))
        return launch.emitOpError()
               << "expected numbers and pointers as arguments, but got "
               << operand.getType();
    return success();
  }

  LogicalResult convert(OpBuilder &b, gpu::LaunchFuncOp launch) {
    ModuleOp module = getOperation();
    Location loc = launch.getLoc();
    Type pointer = LLVM::LLVMPointerType::get(&getContext());
    FailureOr<LLVM::LLVMFuncOp> callee = LLVM::lookupOrCreateFn(
        b, module, kLauncher, {pointer, pointer, pointer, pointer},
        LLVM::LLVMVoidType::get(&getContext()));
    if (failed(callee))
      return failure();
    auto device = module.lookupSymbol<LLVM::GlobalOp>(kDevice);
    if (!device) {
      b.setInsertionPointToStart(module.getBody());
      device = LLVM::GlobalOp::create(
          b, loc, b.getI8Type(),
          /*isConstant=*/false, LLVM::Linkage::External, kDevice, Attribute());
    }
    // Stack of the function, not of a loop's iteration.
    auto function = launch->getParentOfType<FunctionOpInterface>();
    b.setInsertionPointToStart(&function.getFunctionBody().front());
    const int64_t count = launch.getKernelOperands().size();
    auto number = [&](int64_t n) {
      return LLVM::ConstantOp::create(b, loc, b.getI64Type(), n).getResult();
    };
    Value shape = LLVM::AllocaOp::create(b, loc, pointer, b.getI32Type(),
                                         number(7), /*alignment=*/4);
    Value words = LLVM::AllocaOp::create(b, loc, pointer, b.getI64Type(),
                                         number(std::max<int64_t>(count, 1)),
                                         /*alignment=*/8);

    b.setInsertionPoint(launch);
    gpu::KernelDim3 grid = launch.getGridSizeOperandValues();
    gpu::KernelDim3 block = launch.getBlockSizeOperandValues();
    Value shared = launch.getDynamicSharedMemorySize();
    Value dims[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
    auto store = [&](Value value, Value to, Type type, int64_t index) {
      Value at = LLVM::GEPOp::create(b, loc, pointer, type, to,
                                     ArrayRef<LLVM::GEPArg>{index});
      LLVM::StoreOp::create(b, loc, value, at);
    };
    for (auto [i, dim] : llvm::enumerate(dims)) {
      Value bits = bitsOf(b, loc, dim);
      store(arith::TruncIOp::create(b, loc, b.getI32Type(), bits), shape,
            b.getI32Type(), i);
    }
    if (!shared)
      shared = LLVM::ConstantOp::create(b, loc, b.getI32Type(), 0);
    store(shared, shape, b.getI32Type(), 6);
    for (auto [i, operand] : llvm::enumerate(launch.getKernelOperands())) {
      Value bits = bitsOf(b, loc, operand);
      if (!bits)
        return launch.emitOpError() << "expected numbers of at most 64 bits";
      store(bits, words, b.getI64Type(), i);
    }
    Value name = nameOf(b, module, loc, launch.getKernelName().getValue());
    Value address = LLVM::AddressOfOp::create(b, loc, device);
    LLVM::CallOp::create(b, loc, *callee,
                         ValueRange{address, name, shape, words});
    launch.erase();
    return success();
  }
};
} // namespace
