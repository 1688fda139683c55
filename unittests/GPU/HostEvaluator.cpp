//===- HostEvaluator.cpp - runs the host side of launches -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostEvaluator.h"

#include "DiffAttn/Codegen/NVVM/KernelParams.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
class Evaluator {
public:
  explicit Evaluator(const EvaluationHooks &hooks) : hooks(hooks) {}
  std::string run(Block &block);
  DenseMap<Value, DeviceMemref> memrefs;

private:
  std::string visit(Operation &op);
  std::string fold(Operation &op);
  std::string launch(gpu::LaunchFuncOp op);
  std::string makeMap(LLVM::CallOp call);
  void set(Value value, int64_t number) {
    Type type = isa<LLVM::LLVMPointerType>(value.getType())
                    ? IntegerType::get(value.getContext(), 64)
                    : value.getType();
    constants[value] = IntegerAttr::get(type, number);
  }
  int64_t integer(Value value) {
    return cast<IntegerAttr>(constants.at(value)).getInt();
  }

  const EvaluationHooks &hooks;
  DenseMap<Value, Attribute> constants;
};
} // namespace

std::string Evaluator::run(Block &block) {
  for (Operation &op : block) {
    std::string error = visit(op);
    if (!error.empty())
      return error;
  }
  return "";
}

std::string Evaluator::launch(gpu::LaunchFuncOp op) {
  EvaluatedLaunch launch;
  launch.kernel = op.getKernelName().str();
  auto dims = [&](gpu::KernelDim3 from) {
    return std::array<uint32_t, 3>{static_cast<uint32_t>(integer(from.x)),
                                   static_cast<uint32_t>(integer(from.y)),
                                   static_cast<uint32_t>(integer(from.z))};
  };
  launch.grid = dims(op.getGridSizeOperandValues());
  launch.block = dims(op.getBlockSizeOperandValues());
  launch.sharedBytes = integer(op.getDynamicSharedMemorySize());
  for (Value operand : op.getKernelOperands()) {
    uint32_t bytes = 8;
    if (operand.getDefiningOp<LLVM::AllocaOp>())
      bytes = kTensorMapBytes;
    else if (operand.getType().isIntOrFloat())
      bytes = operand.getType().getIntOrFloatBitWidth() / 8;
    Attribute attr = constants.at(operand);
    APInt bits(64, 0);
    if (auto number = dyn_cast<FloatAttr>(attr))
      bits = number.getValue().bitcastToAPInt().zext(64);
    else
      bits = cast<IntegerAttr>(attr).getValue().sextOrTrunc(64);
    launch.arguments.push_back({bits.getZExtValue(), bytes});
  }
  hooks.launch(launch);
  return "";
}

std::string Evaluator::makeMap(LLVM::CallOp call) {
  OperandRange given = call.getArgOperands();
  if (call.getCallee() != "diffattn_rt_device_tensor_map" || given.size() != 12)
    return "cannot evaluate a call of " + call.getCallee()->str();
  EvaluatedMap map;
  map.boxRows = integer(given[3]);
  map.base = integer(given[4]);
  for (auto [i, size] : llvm::enumerate(map.sizes))
    size = integer(given[5 + i]);
  for (auto [i, stride] : llvm::enumerate(map.strides))
    stride = integer(given[9 + i]);
  set(given[0], static_cast<int64_t>(hooks.makeMap(map)));
  return "";
}

std::string Evaluator::fold(Operation &op) {
  SmallVector<Attribute> operands;
  for (Value operand : op.getOperands())
    operands.push_back(constants.lookup(operand));
  SmallVector<OpFoldResult> results;
  if (failed(op.fold(operands, results)) ||
      results.size() != op.getNumResults()) {
    // Casts between integers have no folder for every width.
    if (op.getNumOperands() == 1 && op.getNumResults() == 1 &&
        isa_and_nonnull<IntegerAttr>(operands[0])) {
      set(op.getResult(0), cast<IntegerAttr>(operands[0]).getInt());
      return "";
    }
    std::string text;
    llvm::raw_string_ostream stream(text);
    op.print(stream);
    return "cannot evaluate " + text;
  }
  for (auto [result, folded] : llvm::zip(op.getResults(), results)) {
    // A copy: the insertion may move the element of the lookup.
    auto value = dyn_cast<Value>(folded);
    Attribute known = value ? constants.at(value) : cast<Attribute>(folded);
    constants[result] = known;
  }
  return "";
}

std::string Evaluator::visit(Operation &op) {
  if (auto dim = dyn_cast<memref::DimOp>(op)) {
    set(dim, memrefs.at(dim.getSource()).sizes[integer(dim.getIndex())]);
  } else if (auto pointer =
                 dyn_cast<memref::ExtractAlignedPointerAsIndexOp>(op)) {
    set(pointer, memrefs.at(pointer.getSource()).address);
  } else if (auto metadata = dyn_cast<memref::ExtractStridedMetadataOp>(op)) {
    const DeviceMemref &memref = memrefs.at(metadata.getSource());
    set(metadata.getOffset(), 0);
    for (auto [i, stride] : llvm::enumerate(metadata.getStrides()))
      set(stride, memref.strides[i]);
    for (auto [i, size] : llvm::enumerate(metadata.getSizes()))
      set(size, memref.sizes[i]);
  } else if (auto choice = dyn_cast<scf::IfOp>(op)) {
    bool condition = cast<IntegerAttr>(constants.at(choice.getCondition()))
                         .getValue()
                         .isOne();
    Region &region =
        condition ? choice.getThenRegion() : choice.getElseRegion();
    return region.empty() ? "" : run(region.front());
  } else if (auto cast = dyn_cast<LLVM::IntToPtrOp>(op)) {
    set(cast, integer(cast.getArg()));
  } else if (isa<LLVM::AllocaOp>(op)) {
    // Known once the map is made.
  } else if (auto call = dyn_cast<LLVM::CallOp>(op)) {
    return makeMap(call);
  } else if (auto zero = dyn_cast<LLVM::ZeroOp>(op)) {
    set(zero, 0);
  } else if (auto alloc = dyn_cast<gpu::AllocOp>(op)) {
    const int64_t bytes = alloc.getType().hasStaticShape()
                              ? alloc.getType().getNumElements()
                              : integer(alloc.getDynamicSizes()[0]);
    memrefs[alloc.getMemref()] = {hooks.allocate(bytes), {bytes}, {1}};
  } else if (auto view = dyn_cast<memref::ViewOp>(op)) {
    DeviceMemref memref;
    memref.address =
        memrefs.at(view.getSource()).address + integer(view.getByteShift());
    auto dynamic = view.getSizes().begin();
    for (int64_t size : view.getType().getShape())
      memref.sizes.push_back(ShapedType::isDynamic(size) ? integer(*dynamic++)
                                                         : size);
    memref.strides.resize(memref.sizes.size());
    int64_t step = 1;
    for (size_t axis = memref.sizes.size(); axis-- > 0;) {
      memref.strides[axis] = step;
      step *= memref.sizes[axis];
    }
    memrefs[view] = memref;
  } else if (auto memset = dyn_cast<gpu::MemsetOp>(op)) {
    const DeviceMemref &memref = memrefs.at(memset.getDst());
    if (hooks.fill)
      hooks.fill(memref.address, integer(memset.getValue()), memref.sizes[0]);
  } else if (auto launchOp = dyn_cast<gpu::LaunchFuncOp>(op)) {
    return launch(launchOp);
  } else if (!isa<gpu::DeallocOp, func::ReturnOp, scf::YieldOp>(op)) {
    return fold(op);
  }
  return "";
}

std::string mlir::diffattn::evaluateHost(func::FuncOp function,
                                         ArrayRef<DeviceMemref> arguments,
                                         const EvaluationHooks &hooks) {
  Evaluator evaluator(hooks);
  for (auto [value, memref] :
       llvm::zip_equal(function.getArguments(), arguments))
    evaluator.memrefs[value] = memref;
  return evaluator.run(function.getBody().front());
}
