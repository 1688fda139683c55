//===- ReadSignature.cpp - what a module takes and gives ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/ReadSignature.h"

#include "DiffAttn/Codegen/Runtime/RuntimeFunctions.h"
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/ViewLikeInterface.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
namespace json = llvm::json;

static void assignSizes(ArrayRef<int64_t> sizes, std::vector<int64_t> &to) {
  for (int64_t size : sizes)
    to.push_back(ShapedType::isDynamic(size) ? -1 : size);
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
  assignSizes(shaped.getShape(), value.shape);
  if (isa<RankedTensorType>(type)) {
    value.kind = ValueType::Tensor;
    return value;
  }
  auto memref = dyn_cast<MemRefType>(type);
  SmallVector<int64_t> strides;
  int64_t offset;
  if (!memref || failed(memref.getStridesAndOffset(strides, offset)))
    return value;
  assignSizes(strides, value.strides);
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
  declared.transpose = weight.getTranspose();
  declared.rowBlockSize = weight.getRowBlockSize();
  if (DenseI64ArrayAttr blocks = weight.getRowBlocks())
    declared.rowBlocks.assign(blocks.asArrayRef().begin(),
                              blocks.asArrayRef().end());
  return declared;
}

/// The weights that are bound already, and those of globals.
static llvm::Error readWeights(ModuleOp module, Signature &signature) {
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
    signature.weights.push_back(std::move(*declared));
  }
  return llvm::Error::success();
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
  if (llvm::Error error = readWeights(module, signature))
    return error;
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

static json::Array sizesToJSON(ArrayRef<int64_t> sizes) {
  json::Array array;
  for (int64_t size : sizes)
    array.push_back(size);
  return array;
}

static json::Array typesToJSON(const std::vector<ValueType> &types) {
  json::Array array;
  for (const ValueType &type : types)
    array.push_back(json::Object{{"kind", static_cast<int64_t>(type.kind)},
                                 {"dtype", type.dtype},
                                 {"shape", sizesToJSON(type.shape)},
                                 {"strides", sizesToJSON(type.strides)},
                                 {"in_place", type.inPlace},
                                 {"text", type.text}});
  return array;
}

json::Value mlir::diffattn::toJSON(const Signature &signature) {
  json::Array functions, weights;
  for (const FunctionSignature &function : signature.functions)
    functions.push_back(json::Object{
        {"name", function.name},
        {"arguments", typesToJSON(function.arguments)},
        {"results", typesToJSON(function.results)},
    });
  for (const WeightDeclaration &weight : signature.weights)
    weights.push_back(json::Object{
        {"name", weight.name},
        {"source", weight.source},
        {"dtype", weight.dtype},
        {"shape", sizesToJSON(weight.shape)},
        {"layers", weight.layers},
        {"first_layer", weight.firstLayer},
        {"transpose", weight.transpose},
        {"row_block_size", weight.rowBlockSize},
        {"row_blocks", sizesToJSON(weight.rowBlocks)},
    });
  return json::Object{{"functions", std::move(functions)},
                      {"weights", std::move(weights)}};
}

static bool sizesFromJSON(const json::Value &json, std::vector<int64_t> &sizes,
                          json::Path path) {
  return json::fromJSON(json, sizes, path);
}

static bool typesFromJSON(const json::Value *json,
                          std::vector<ValueType> &types, json::Path path) {
  const json::Array *array = json ? json->getAsArray() : nullptr;
  if (!array)
    return false;
  for (const json::Value &element : *array) {
    ValueType type;
    int64_t kind;
    json::ObjectMapper map(element, path);
    const json::Object *object = element.getAsObject();
    if (!map || !map.map("kind", kind) || !map.map("dtype", type.dtype) ||
        !map.map("in_place", type.inPlace) || !map.map("text", type.text) ||
        !object->get("shape") || !object->get("strides") ||
        !sizesFromJSON(*object->get("shape"), type.shape, path) ||
        !sizesFromJSON(*object->get("strides"), type.strides, path) ||
        kind < 0 || kind > ValueType::Unsupported || !isDType(type.dtype))
      return false;
    type.kind = static_cast<ValueType::Kind>(kind);
    types.push_back(std::move(type));
  }
  return true;
}

static bool signatureFromJSON(const json::Value &json, Signature &signature,
                              json::Path path) {
  const json::Object *root = json.getAsObject();
  const json::Array *functions = root ? root->getArray("functions") : nullptr;
  const json::Array *weights = root ? root->getArray("weights") : nullptr;
  if (!functions || !weights)
    return false;
  for (const json::Value &element : *functions) {
    FunctionSignature function;
    json::ObjectMapper map(element, path);
    if (!map || !map.map("name", function.name))
      return false;
    const json::Object *object = element.getAsObject();
    if (!typesFromJSON(object->get("arguments"), function.arguments, path) ||
        !typesFromJSON(object->get("results"), function.results, path))
      return false;
    signature.functions.push_back(std::move(function));
  }
  for (const json::Value &element : *weights) {
    WeightDeclaration weight;
    json::ObjectMapper map(element, path);
    const json::Object *object = element.getAsObject();
    if (!map || !map.map("name", weight.name) ||
        !map.map("source", weight.source) || !map.map("dtype", weight.dtype) ||
        !map.map("layers", weight.layers) ||
        !map.map("first_layer", weight.firstLayer) ||
        !map.map("transpose", weight.transpose) ||
        !map.map("row_block_size", weight.rowBlockSize) ||
        !object->get("shape") || !object->get("row_blocks") ||
        !sizesFromJSON(*object->get("shape"), weight.shape, path) ||
        !sizesFromJSON(*object->get("row_blocks"), weight.rowBlocks, path) ||
        weight.findFault())
      return false;
    signature.weights.push_back(std::move(weight));
  }
  return true;
}

llvm::Expected<Signature>
mlir::diffattn::signatureFromJSON(const json::Value &json) {
  Signature signature;
  json::Path::Root root("signature");
  if (::signatureFromJSON(json, signature, root))
    return signature;
  return makeError(ErrorClass::Compile,
                   "expected the signature of compiled code, but got other "
                   "JSON");
}
