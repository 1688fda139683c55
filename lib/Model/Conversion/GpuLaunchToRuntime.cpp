//===- GpuLaunchToRuntime.cpp - launches as calls -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/Codegen/NVVM/GpuLaunch.h"
#include "DiffAttn/Model/Conversion/HostAccess.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"
#include "DiffAttn/Target/PtxAsm.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/IR/IRMapping.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTGPULAUNCHTORUNTIMEPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// The words of diffattn_launch_shape: grid, block, shared_bytes.
static constexpr int64_t kShapeWords =
    sizeof(diffattn_launch_shape) / sizeof(uint32_t);
static constexpr int64_t kSharedBytesWord =
    offsetof(diffattn_launch_shape, shared_bytes) / sizeof(uint32_t);
static_assert(offsetof(diffattn_launch_shape, block) == 3 * sizeof(uint32_t) &&
                  kSharedBytesWord == 6,
              "expected the sizes of grid and block before shared_bytes");
static constexpr StringLiteral kKernels = "diffattn.kernels";

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

/// One character a parameter, as diffattn_kernel of the runtime has it; empty
/// if one is no number and no pointer.
static std::optional<std::string> getLayout(LLVM::LLVMFuncOp kernel) {
  std::string layout;
  for (auto [i, type] : llvm::enumerate(kernel.getFunctionType().getParams())) {
    if (isa<LLVM::LLVMPointerType>(type)) {
      // The only values that are passed whole are tensor maps.
      layout += kernel.getArgAttr(i, LLVM::LLVMDialect::getByValAttrName())
                    ? 'm'
                    : 'p';
      continue;
    }
    unsigned bits = type.isIntOrFloat() ? type.getIntOrFloatBitWidth() : 0;
    if (bits == 1)
      bits = 8;
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
      return std::nullopt;
    layout += static_cast<char>('0' + bits / 8);
  }
  return layout;
}

/// Whether the kernel waits itself for those ahead of it.
static bool startsEarly(LLVM::LLVMFuncOp kernel) {
  return kernel
      .walk([](LLVM::InlineAsmOp assembly) {
        auto read =
            parsePtxAsm(assembly.getAsmString(), assembly.getConstraints());
        return read && read->gridWait ? WalkResult::interrupt()
                                      : WalkResult::advance();
      })
      .wasInterrupted();
}

FailureOr<ArrayAttr> mlir::diffattn::listGpuKernels(ModuleOp module) {
  if (auto known = module->getAttrOfType<ArrayAttr>(kKernels))
    return known;
  Builder b(module.getContext());
  SmallVector<Attribute> kernels;
  for (auto kernelModule : module.getOps<gpu::GPUModuleOp>())
    for (auto kernel : kernelModule.getOps<LLVM::LLVMFuncOp>()) {
      if (!kernel->hasAttr(gpu::GPUDialect::getKernelFuncAttrName()))
        continue;
      std::optional<std::string> layout = getLayout(kernel);
      if (!layout)
        return kernel.emitOpError()
               << "expected parameters that are pointers or numbers of 8 to 64 "
                  "bits";
      SmallVector<NamedAttribute> entry{
          b.getNamedAttr("name", kernel.getSymNameAttr()),
          b.getNamedAttr("parameters", b.getStringAttr(*layout))};
      if (startsEarly(kernel))
        entry.push_back(b.getNamedAttr("starts_early", b.getUnitAttr()));
      kernels.push_back(b.getDictionaryAttr(entry));
    }
  ArrayAttr list = b.getArrayAttr(kernels);
  if (!kernels.empty())
    module->setAttr(kKernels, list);
  return list;
}

namespace {
/// The numbers of one module's kernels, by name.
using KernelNumbers = llvm::StringMap<int64_t>;

struct ConvertGpuLaunchToRuntimePass final
    : diffattn::impl::ConvertGpuLaunchToRuntimePassBase<
          ConvertGpuLaunchToRuntimePass> {
  void runOnOperation() override {
    SmallVector<gpu::LaunchFuncOp> launches;
    SmallVector<gpu::AllocOp> allocs;
    SmallVector<gpu::DeallocOp> deallocs;
    SmallVector<gpu::MemsetOp> memsets;
    auto collect = [&](Operation *op) {
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
      } else if (auto memset = dyn_cast<gpu::MemsetOp>(op)) {
        if (failed(check(memset)))
          return WalkResult::interrupt();
        memsets.push_back(memset);
      }
      return WalkResult::advance();
    };
    if (walkOwnOps(getOperation(), collect).wasInterrupted())
      return signalPassFailure();
    FailureOr<ArrayAttr> kernels = listGpuKernels(getOperation());
    if (failed(kernels))
      return signalPassFailure();
    KernelNumbers numbers;
    for (auto [i, kernel] :
         llvm::enumerate(kernels->getAsRange<DictionaryAttr>()))
      if (auto name = kernel.getAs<StringAttr>("name"))
        numbers[name.getValue()] = i;
    OpBuilder b(&getContext());
    // Done before launches are lowered, since these show that the host leaves
    // memory alone.
    if (!findHostAccess(getOperation()) && failed(convertCopies(b)))
      return signalPassFailure();
    for (gpu::LaunchFuncOp launch : launches)
      if (failed(convert(b, launch, numbers)))
        return signalPassFailure();
    for (gpu::MemsetOp memset : memsets)
      if (failed(convert(b, memset)))
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

  LogicalResult convertCopies(OpBuilder &b) {
    ModuleOp module = getOperation();
    SmallVector<memref::CopyOp> copies;
    for (auto function : module.getOps<func::FuncOp>())
      function.walk([&](memref::CopyOp copy) { copies.push_back(copy); });
    if (copies.empty())
      return success();
    FailureOr<LLVM::LLVMFuncOp> callee =
        getOrDeclareRuntimeFunction(b, module, RuntimeFunction::device_copy);
    if (failed(callee))
      return failure();
    for (memref::CopyOp copy : copies) {
      Location loc = copy.getLoc();
      b.setInsertionPoint(copy);
      Value size = bytesOf(b, loc, copy.getSource());
      Value to = address(b, loc, copy.getTarget()),
            from = address(b, loc, copy.getSource());
      LLVM::CallOp::create(b, loc, *callee, ValueRange{to, from, size});
      copy.erase();
    }
    return success();
  }

  /// Bytes of a buffer without strides, as an i64.
  static Value bytesOf(OpBuilder &b, Location loc, Value buffer) {
    auto type = cast<MemRefType>(buffer.getType());
    unsigned bits = type.getElementTypeBitWidth();
    Value bytes =
        arith::ConstantIndexOp::create(b, loc, bits < 8 ? 1 : bits / 8);
    for (int64_t axis = 0; axis < type.getRank(); ++axis)
      bytes = arith::MulIOp::create(
          b, loc, bytes, memref::DimOp::create(b, loc, buffer, axis));
    return arith::IndexCastOp::create(b, loc, b.getI64Type(), bytes);
  }

  static Value address(OpBuilder &b, Location loc, Value buffer) {
    Value at = memref::ExtractAlignedPointerAsIndexOp::create(b, loc, buffer);
    Value bits = arith::IndexCastOp::create(b, loc, b.getI64Type(), at);
    return LLVM::IntToPtrOp::create(
        b, loc, LLVM::LLVMPointerType::get(b.getContext()), bits);
  }

  static LogicalResult check(gpu::MemsetOp memset) {
    auto type = dyn_cast<MemRefType>(memset.getDst().getType());
    if (memset.getAsyncToken() || !memset.getAsyncDependencies().empty() ||
        !type || !type.getLayout().isIdentity() ||
        !type.getElementType().isInteger(8))
      return memset.emitOpError()
             << "expected bytes without strides, and no token, but got "
             << memset.getDst().getType();
    return success();
  }

  LogicalResult convert(OpBuilder &b, gpu::MemsetOp memset) {
    FailureOr<LLVM::LLVMFuncOp> callee = getOrDeclareRuntimeFunction(
        b, getOperation(), RuntimeFunction::device_fill);
    if (failed(callee))
      return failure();
    Location loc = memset.getLoc();
    b.setInsertionPoint(memset);
    Value value =
        arith::ExtUIOp::create(b, loc, b.getI32Type(), memset.getValue());
    LLVM::CallOp::create(b, loc, *callee,
                         ValueRange{address(b, loc, memset.getDst()), value,
                                    bytesOf(b, loc, memset.getDst())});
    memset.erase();
    return success();
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

  LogicalResult convert(OpBuilder &b, gpu::LaunchFuncOp launch,
                        const KernelNumbers &numbers) {
    ModuleOp module = getOperation();
    Location loc = launch.getLoc();
    Type pointer = LLVM::LLVMPointerType::get(&getContext());
    FailureOr<LLVM::LLVMFuncOp> callee =
        getOrDeclareRuntimeFunction(b, module, RuntimeFunction::device_launch);
    if (failed(callee))
      return failure();
    StringRef name = launch.getKernelName().getValue();
    auto number = numbers.find(name);
    if (number == numbers.end())
      return launch.emitOpError()
             << "expected kernel " << name
             << " among the functions of the LLVM dialect in a gpu.module";
    // Stack of the function, not of a loop's iteration.
    auto function = launch->getParentOfType<FunctionOpInterface>();
    b.setInsertionPointToStart(&function.getFunctionBody().front());
    const int64_t count = launch.getKernelOperands().size();
    auto constant = [&](int64_t n) {
      return LLVM::ConstantOp::create(b, loc, b.getI64Type(), n).getResult();
    };
    Value shape =
        LLVM::AllocaOp::create(b, loc, pointer, b.getI32Type(),
                               constant(kShapeWords), /*alignment=*/4);
    Value words = LLVM::AllocaOp::create(b, loc, pointer, b.getI64Type(),
                                         constant(std::max<int64_t>(count, 1)),
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
    store(shared, shape, b.getI32Type(), kSharedBytesWord);
    for (auto [i, operand] : llvm::enumerate(launch.getKernelOperands())) {
      Value bits = bitsOf(b, loc, operand);
      if (!bits)
        return launch.emitOpError() << "expected numbers of at most 64 bits";
      store(bits, words, b.getI64Type(), i);
    }
    Value id = LLVM::ConstantOp::create(b, loc, b.getI32Type(),
                                        static_cast<int32_t>(number->second));
    LLVM::CallOp::create(b, loc, *callee, ValueRange{id, shape, words});
    launch.erase();
    return success();
  }
};
} // namespace
