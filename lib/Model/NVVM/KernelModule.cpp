//===- KernelModule.cpp - the kernels of a module -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelWriter.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

LLVM::LLVMFuncOp KernelModule::create(Location loc, int64_t threads) {
  auto builder = OpBuilder::atBlockEnd(module.getBody());
  auto type = LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(builder.getContext()), {});
  auto kernel = LLVM::LLVMFuncOp::create(builder, loc, "unnamed", type);
  kernel->setAttr(gpu::GPUDialect::getKernelFuncAttrName(),
                  builder.getUnitAttr());
  kernel->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(),
                  builder.getUnitAttr());
  kernel->setAttr(
      NVVM::NVVMDialect::getReqntidAttrName(),
      builder.getDenseI32ArrayAttr({static_cast<int32_t>(threads), 1, 1}));
  kernel->setAttr("diffattn.shared_bytes", builder.getI64IntegerAttr(0));
  return kernel;
}

LLVM::LLVMFuncOp KernelModule::intern(LLVM::LLVMFuncOp kernel, StringRef form) {
  kernel.setName("unnamed");
  kernel.setType(LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(kernel.getContext()),
      SmallVector<Type>(kernel.getBody().front().getArgumentTypes())));
  std::string text = form.str();
  llvm::raw_string_ostream stream(text);
  kernel->print(stream, OpPrintingFlags().useLocalScope());
  auto [slot, isNew] = kernels.try_emplace(text, kernel);
  if (!isNew) {
    kernel.erase();
    return slot->second;
  }
  std::string name;
  do
    name = ("diffattn_" + form + "_" + Twine(counts[form]++)).str();
  while (module.lookupSymbol(name));
  kernel.setName(name);
  return kernel;
}

void KernelModule::eraseUnused(ModuleOp host) {
  llvm::StringSet<> launched;
  host.walk([&](gpu::LaunchFuncOp launch) {
    launched.insert(launch.getKernelName().getValue());
  });
  // any order: each goes or stays by itself
  for (auto &entry : kernels)
    if (!launched.contains(entry.second.getName()))
      entry.second.erase();
  kernels.clear();
}

LLVM::GlobalOp KernelModule::getConstant(memref::GetGlobalOp get) {
  std::string name = get.getName().str();
  if (auto known = module.lookupSymbol<LLVM::GlobalOp>(name))
    return known;
  auto global = SymbolTable::lookupNearestSymbolFrom<memref::GlobalOp>(
      get, get.getNameAttr());
  auto value = cast<DenseElementsAttr>(*global.getInitialValue());
  OpBuilder b(get.getContext());
  Type element = value.getElementType();
  // Elements as they lie in memory: i1 in a byte, index as i64.
  if (element.isInteger(1))
    value = value.mapValues(b.getI8Type(),
                            [](const APInt &bit) { return bit.zext(8); });
  else if (isa<IndexType>(element))
    value = value.mapValues(b.getI64Type(), [](const APInt &number) {
      return number.sextOrTrunc(64);
    });
  element = value.getElementType();
  int64_t count = value.getNumElements();
  value = value.reshape(RankedTensorType::get({count}, element));
  b.setInsertionPointToStart(module.getBody());
  return LLVM::GlobalOp::create(
      b, get.getLoc(), LLVM::LLVMArrayType::get(element, count),
      /*isConstant=*/true, LLVM::Linkage::Internal, name, value,
      /*alignment=*/16, /*addrSpace=*/1);
}

LLVM::GlobalOp KernelModule::getShared(Type type, int64_t count) {
  std::string name = "diffattn_partials_";
  llvm::raw_string_ostream stream(name);
  stream << type << "_" << count;
  if (auto known = module.lookupSymbol<LLVM::GlobalOp>(name))
    return known;
  auto b = OpBuilder::atBlockBegin(module.getBody());
  return LLVM::GlobalOp::create(b, module.getLoc(),
                                LLVM::LLVMArrayType::get(type, count),
                                /*isConstant=*/false, LLVM::Linkage::Internal,
                                name, Attribute(), /*alignment=*/16,
                                /*addrSpace=*/3);
}

static bool isSupported(Type element) {
  return isa<IndexType>(element) || element.isF16() || element.isBF16() ||
         element.isF32() || element.isF64() ||
         llvm::any_of(ArrayRef<int>{1, 8, 16, 32, 64},
                      [&](int width) { return element.isInteger(width); });
}

/// Why a kernel cannot address `memref`; empty if it can.
static std::string findUnsupported(Value memref, ArrayRef<scf::ForOp> loops) {
  auto type = dyn_cast<MemRefType>(memref.getType());
  if (!type || !type.isStrided())
    return "expected a strided memref";
  if (!isSupported(type.getElementType())) {
    std::string text = "expected elements of type f16, bf16, f32, f64, index, "
                       "i1, i8, i16, i32 or i64, but got ";
    llvm::raw_string_ostream(text) << type.getElementType();
    return text;
  }
  memref::GetGlobalOp constant = constantOf(memref);
  if (!DeviceValues::contains(memref) &&
      !DeviceValues::dependsOn(memref, loops) && !constant)
    return "";
  for (Value view = memref;;) {
    Operation *op = view.getDefiningOp();
    if (view.getDefiningOp<memref::GetGlobalOp>())
      return "";
    if (!constant && !DeviceValues::contains(view) &&
        !DeviceValues::dependsOn(view, loops))
      return "";
    if (!op || !isa<memref::SubViewOp, memref::CastOp, memref::ExpandShapeOp,
                    memref::CollapseShapeOp>(op))
      return "expected a view by memref.subview, cast, expand_shape or "
             "collapse_shape where an offset is data";
    if (auto part = dyn_cast<memref::SubViewOp>(op)) {
      for (Value size : part.getSizes())
        if (DeviceValues::contains(size) ||
            DeviceValues::dependsOn(size, loops))
          return "expected sizes that the host knows, but one depends on data "
                 "in device memory";
      for (Value operand : op->getOperands().drop_front())
        if (!DeviceValues::canCompute(operand, loops))
          return "expected an offset that a kernel can compute";
    } else if (isa<memref::ExpandShapeOp>(op)) {
      for (int64_t stride :
           cast<MemRefType>(view.getType()).getStridesAndOffset().first)
        if (ShapedType::isDynamic(stride))
          return "expected static strides of memref.expand_shape where an "
                 "offset is data";
    }
    view = op->getOperand(0);
  }
}

std::string mlir::diffattn::linalggpu::findUnsupported(const Phase &phase) {
  for (Value scalar : phase.getScalars())
    if (!DeviceValues::canCompute(scalar, phase.getEnclosing()))
      return "expected scalars that a kernel can compute from elements, but "
             "one depends on control flow that the host runs";
  for (const Access &access : phase.getAccesses()) {
    std::string reason = ::findUnsupported(access.memref, phase.getEnclosing());
    if (!reason.empty())
      return reason;
  }
  if (auto store = dyn_cast<memref::StoreOp>(phase.getOp()))
    if (constantOf(store.getMemRef()))
      return "expected to write no constant";
  linalg::GenericOp generic = phase.getGeneric();
  if (!generic)
    return "";
  for (unsigned loop = phase.getEnclosing().size();
       loop < phase.getLoops().size(); ++loop)
    if (!phase.findSize(loop))
      return "expected every loop to be an index of some operand by itself";
  WalkResult result = generic.getBody()->walk([&](Operation *op) {
    bool fine = isMemoryEffectFree(op) || isa<memref::LoadOp>(op) ||
                op->hasTrait<OpTrait::HasRecursiveMemoryEffects>();
    return fine ? WalkResult::advance() : WalkResult::interrupt();
  });
  if (result.wasInterrupted())
    return "expected a body that writes no memory";
  return "";
}
