//===- ReadSignature.cpp - arguments and results of a module --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/ReadSignature.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/ViewLikeInterface.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

/// Numbers of MLIR's, with `any` in the place of those that are dynamic.
static std::vector<int64_t> toNumbers(ArrayRef<int64_t> numbers, int64_t any) {
  std::vector<int64_t> result;
  for (int64_t number : numbers)
    result.push_back(ShapedType::isDynamic(number) ? any : number);
  return result;
}

static ValueType toValueType(Type type) {
  ValueType value;
  llvm::raw_string_ostream(value.text) << type;
  auto shaped = dyn_cast<ShapedType>(type);
  std::optional<DType> dtype =
      getElementTypeCode(shaped ? shaped.getElementType() : type);
  value.kind = ValueType::Unsupported;
  if (!dtype || (shaped && !shaped.hasRank()))
    return value;
  value.dtype = *dtype;
  if (!shaped) {
    value.kind = ValueType::Scalar;
    return value;
  }
  value.shape = toNumbers(shaped.getShape(), /*any=*/-1);
  if (isa<RankedTensorType>(type)) {
    value.kind = ValueType::Tensor;
    return value;
  }
  auto memref = dyn_cast<MemRefType>(type);
  SmallVector<int64_t> strides;
  int64_t offset;
  if (!memref || failed(memref.getStridesAndOffset(strides, offset)))
    return value;
  value.strides = toNumbers(strides, kAnyStride);
  // Arrays come with the address of their first element.
  if (ShapedType::isDynamic(offset) || offset == 0)
    value.kind = ValueType::MemRef;
  return value;
}

llvm::Expected<const FunctionSignature *>
mlir::diffattn::getFunction(const Signature &signature, llvm::StringRef name) {
  const FunctionSignature *function;
  if (Failure failure = signature.get(name, function))
    return toError(failure);
  return function;
}

static llvm::Expected<WeightDeclaration> toDeclaration(WeightAttr weight) {
  std::optional<DType> dtype =
      getElementTypeCode(weight.getType().getElementType());
  if (!dtype) {
    std::string type;
    llvm::raw_string_ostream(type) << weight.getType();
    return makeError(ErrorClass::IR,
                     "weight @" + weight.getName() +
                         ": expected a tensor of floats or integers, but got " +
                         type);
  }
  WeightDeclaration declared;
  declared.name = weight.getName().str();
  declared.source = weight.getSource().str();
  declared.dtype = *dtype;
  llvm::ArrayRef<int64_t> shape = weight.getType().getShape();
  declared.shape.assign(shape.begin(), shape.end());
  declared.layers = weight.getLayers();
  declared.firstLayer = weight.getFirstLayer();
  declared.layerStep = weight.getLayerStep();
  declared.transpose = weight.getTranspose();
  declared.rowBlockSize = weight.getRowBlockSize();
  if (DenseI64ArrayAttr blocks = weight.getRowBlocks())
    declared.rowBlocks.assign(blocks.asArrayRef().begin(),
                              blocks.asArrayRef().end());
  declared.finite = weight.getFinite();
  declared.follows = weight.getFollows().str();
  return declared;
}

llvm::Expected<std::vector<WeightDeclaration>>
mlir::diffattn::readWeights(ModuleOp module) {
  std::vector<WeightDeclaration> declarations;
  llvm::SmallVector<WeightAttr> weights = getWeights(module);
  for (auto global : module.getOps<ml_program::GlobalOp>()) {
    if (!isa_and_nonnull<ml_program::ExternAttr>(global.getValueAttr()))
      continue;
    std::string message;
    ScopedDiagnosticHandler handler(
        module.getContext(), [&](Diagnostic &diagnostic) {
          message += (message.empty() ? "" : "; ") + diagnostic.str();
          return success();
        });
    FailureOr<WeightAttr> weight = WeightAttr::ofGlobal(
        global, [&] { return mlir::emitError(global.getLoc()); });
    if (failed(weight))
      return makeError(ErrorClass::IR,
                       "weight @" + global.getSymName() + ": " + message);
    weights.push_back(*weight);
  }
  for (WeightAttr weight : weights) {
    llvm::Expected<WeightDeclaration> declared = toDeclaration(weight);
    if (!declared)
      return declared.takeError();
    declarations.push_back(std::move(*declared));
  }
  return declarations;
}

/// Whether a function may write to the memory of `memref`, or give it to others
/// that may. `seen` holds what has been looked at.
static bool mayBeWritten(Value memref, ModuleOp module,
                         llvm::SmallPtrSetImpl<Value> &seen) {
  if (!seen.insert(memref).second)
    return false;
  return llvm::any_of(memref.getUses(), [&](OpOperand &use) {
    Operation *user = use.getOwner();
    if (isa<memref::LoadOp, memref::DimOp>(user))
      return false;
    if (isa<ViewLikeOpInterface>(user))
      return mayBeWritten(user->getResult(0), module, seen);
    if (auto copy = dyn_cast<memref::CopyOp>(user))
      return copy.getTarget() == memref;
    if (auto op = dyn_cast<DestinationStyleOpInterface>(user))
      return op.isDpsInit(&use);
    if (auto call = dyn_cast<func::CallOp>(user)) {
      auto callee = module.lookupSymbol<func::FuncOp>(call.getCallee());
      return !callee || callee.isExternal() ||
             mayBeWritten(callee.getArgument(use.getOperandNumber()), module,
                          seen);
    }
    return true;
  });
}

llvm::Expected<Signature> mlir::diffattn::readSignature(ModuleOp module) {
  Signature signature;
  auto weights = readWeights(module);
  if (!weights)
    return weights.takeError();
  signature.weights = std::move(*weights);
  for (auto function : module.getOps<func::FuncOp>()) {
    if (!function.isPublic() || function.isExternal())
      continue;
    FunctionSignature entry;
    entry.name = function.getSymName().str();
    for (auto [i, type] : llvm::enumerate(function.getArgumentTypes())) {
      entry.arguments.push_back(toValueType(type));
      auto writable = function.getArgAttrOfType<BoolAttr>(
          i, bufferization::BufferizationDialect::kWritableAttrName);
      llvm::SmallPtrSet<Value, 8> seen;
      entry.arguments.back().inPlace =
          isa<BaseMemRefType>(type)
              ? mayBeWritten(function.getArgument(i), module, seen)
              : writable && writable.getValue();
    }
    for (Type type : function.getResultTypes())
      entry.results.push_back(toValueType(type));
    signature.functions.push_back(std::move(entry));
  }
  return signature;
}
