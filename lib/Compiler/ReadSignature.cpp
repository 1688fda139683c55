//===- ReadSignature.cpp - what a module takes and gives ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/ReadSignature.h"

#include "DiffAttn/Codegen/Runtime/RuntimeFunctions.h"

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

/// A model has hundreds of layers at most; the table of weights has a slot for
/// each.
static constexpr int64_t kMostLayers = 65536;

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

static llvm::Error weightError(ml_program::GlobalOp global, const Twine &text) {
  return makeError(ErrorClass::IR,
                   "weight @" + global.getSymName() + ": " + text);
}

static llvm::Error attributeError(ml_program::GlobalOp global, StringRef name,
                                  const Twine &what, Attribute attr) {
  std::string got;
  llvm::raw_string_ostream(got) << attr;
  return weightError(global, "expected diffattn." + name + " to be " + what +
                                 ", but got " + got);
}

/// The attribute `diffattn.<name>` of kind `Attr`, which messages call `what`;
/// null if it is not there.
template <typename Attr>
static llvm::Expected<Attr> getOptional(ml_program::GlobalOp global,
                                        StringRef name, StringRef what) {
  Attribute attr = global->getAttr(("diffattn." + name).str());
  auto typed = dyn_cast_or_null<Attr>(attr);
  if (!attr || typed)
    return typed;
  return attributeError(global, name, what, attr);
}

/// As `getOptional`, an integer of 64 bits from `least` to `most`; `value`
/// stays as it is without one.
static llvm::Error readInteger(ml_program::GlobalOp global, StringRef name,
                               int64_t least, int64_t most, int64_t &value) {
  std::string what =
      ("an i64 from " + Twine(least) + " to " + Twine(most)).str();
  auto attr = getOptional<IntegerAttr>(global, name, what);
  if (!attr)
    return attr.takeError();
  if (!*attr)
    return llvm::Error::success();
  if (!attr->getType().isSignlessInteger(64) || attr->getInt() < least ||
      attr->getInt() > most)
    return attributeError(global, name, what, *attr);
  value = attr->getInt();
  return llvm::Error::success();
}

/// `diffattn.row_block_size` and `diffattn.row_blocks`: both or neither.
static llvm::Error readRowBlocks(ml_program::GlobalOp global,
                                 WeightDeclaration &weight) {
  auto blocks =
      getOptional<DenseI64ArrayAttr>(global, "row_blocks", "an array of i64");
  if (!blocks)
    return blocks.takeError();
  if (llvm::Error error = readInteger(global, "row_block_size", 1, INT64_MAX,
                                      weight.rowBlockSize))
    return error;
  int64_t size = weight.rowBlockSize;
  if (!size && !*blocks)
    return llvm::Error::success();
  if (!size || !*blocks || weight.shape.empty() || weight.shape[0] % size ||
      weight.shape[0] / size != blocks->size())
    return weightError(global, "expected diffattn.row_block_size times the "
                               "number of diffattn.row_blocks to be the "
                               "number of rows");
  std::vector<bool> seen(blocks->size(), false);
  for (int64_t block : blocks->asArrayRef()) {
    if (block < 0 || block >= blocks->size() || seen[block])
      return weightError(global, "expected diffattn.row_blocks to name each "
                                 "block once");
    seen[block] = true;
    weight.rowBlocks.push_back(block);
  }
  return llvm::Error::success();
}

static llvm::Expected<WeightDeclaration>
readWeight(ml_program::GlobalOp global) {
  WeightDeclaration weight;
  weight.name = global.getSymName().str();
  auto type = dyn_cast<RankedTensorType>(global.getType());
  std::optional<DType> dtype =
      type ? getElementTypeCode(type.getElementType()) : std::nullopt;
  if (!dtype || !type.hasStaticShape())
    return weightError(global, "expected a tensor of static shape, of floats "
                               "or integers");
  weight.dtype = *dtype;
  weight.shape.assign(type.getShape().begin(), type.getShape().end());
  auto source = getOptional<StringAttr>(global, "source", "a string");
  if (!source)
    return source.takeError();
  if (*source)
    weight.source = source->str();
  if (llvm::Error error =
          readInteger(global, "layers", 1, kMostLayers, weight.layers))
    return error;
  if (llvm::Error error =
          readInteger(global, "first_layer", 0, INT32_MAX, weight.firstLayer))
    return error;
  if (StringRef(weight.name).contains("{}") != (weight.layers > 0))
    return weightError(global, "expected diffattn.layers on a name with {}, "
                               "and only there");
  weight.transpose = global->hasAttr("diffattn.transpose");
  if (weight.transpose && type.getRank() != 2)
    return weightError(global, "expected rank 2 for diffattn.transpose");
  if (llvm::Error error = readRowBlocks(global, weight))
    return error;
  return weight;
}

/// The weights of a module whose globals have become slots: `diffattn.weights`
/// says again what each global said (see diffattn-bind-weights).
static llvm::Error readSlots(ModuleOp module, Signature &signature) {
  Attribute attr = module->getAttr("diffattn.weights");
  if (!attr)
    return llvm::Error::success();
  auto error = [](const Twine &text) {
    return makeError(ErrorClass::IR, "diffattn.weights: " + text);
  };
  auto list = dyn_cast<ArrayAttr>(attr);
  if (!list)
    return error("expected an array of dictionaries");
  MLIRContext *context = module.getContext();
  context->getOrLoadDialect<ml_program::MLProgramDialect>();
  OpBuilder builder(context);
  int64_t slot = 0;
  for (auto [i, element] : llvm::enumerate(list)) {
    auto entry = dyn_cast<DictionaryAttr>(element);
    auto name = entry ? entry.getAs<StringAttr>("name") : StringAttr();
    auto index = entry ? entry.getAs<IntegerAttr>("index") : IntegerAttr();
    auto shape =
        entry ? entry.getAs<DenseI64ArrayAttr>("shape") : DenseI64ArrayAttr();
    auto dtype = entry ? entry.getAs<TypeAttr>("dtype") : TypeAttr();
    if (!name || !index || !shape || !dtype ||
        !RankedTensorType::isValidElementType(dtype.getValue()) ||
        llvm::any_of(shape.asArrayRef(), [](int64_t n) { return n < 0; }))
      return error("expected name, index, shape and dtype of weight " +
                   Twine(i));
    if (!index.getType().isSignlessInteger(64) || index.getInt() != slot)
      return error("expected weight " + Twine(i) + " at index " + Twine(slot) +
                   ", after the layers of those before");
    OwningOpRef<ml_program::GlobalOp> global = ml_program::GlobalOp::create(
        builder, module.getLoc(), name.getValue(),
        RankedTensorType::get(shape.asArrayRef(), dtype.getValue()),
        /*is_mutable=*/false, /*value=*/Attribute(),
        /*sym_visibility=*/nullptr);
    for (NamedAttribute more : entry)
      (*global)->setAttr(("diffattn." + more.getName().getValue()).str(),
                         more.getValue());
    llvm::Expected<WeightDeclaration> weight = readWeight(*global);
    if (!weight)
      return weight.takeError();
    slot += std::max<int64_t>(1, weight->layers);
    signature.weights.push_back(std::move(*weight));
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
  if (llvm::Error error = readSlots(module, signature))
    return error;
  for (auto global : module.getOps<ml_program::GlobalOp>()) {
    if (!isa_and_nonnull<ml_program::ExternAttr>(global.getValueAttr()))
      continue;
    llvm::Expected<WeightDeclaration> weight = readWeight(global);
    if (!weight)
      return weight.takeError();
    signature.weights.push_back(std::move(*weight));
  }
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

/// Whether `weight` is what readWeight may have made.
static bool isSound(const WeightDeclaration &weight) {
  if (!isDType(weight.dtype) || !getByteSize(weight.shape, weight.dtype) ||
      weight.layers < 0 || weight.layers > kMostLayers ||
      weight.firstLayer < 0 || weight.firstLayer > INT32_MAX ||
      (weight.transpose && weight.shape.size() != 2))
    return false;
  int64_t size = weight.rowBlockSize, count = weight.rowBlocks.size();
  if (size == 0)
    return count == 0;
  return size > 0 && !weight.shape.empty() && weight.shape[0] % size == 0 &&
         weight.shape[0] / size == count &&
         llvm::all_of(weight.rowBlocks, [&](int64_t block) {
           return block >= 0 && block < count;
         });
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
        !isSound(weight))
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
