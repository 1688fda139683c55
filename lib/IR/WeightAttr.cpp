//===- WeightAttr.cpp - #diffattn.weight, and globals that say the same ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Runtime/ABI/Table.h"

#include "mlir/Dialect/MLProgram/IR/MLProgram.h"

using namespace mlir;
using namespace mlir::diffattn;

using EmitError = function_ref<InFlightDiagnostic()>;

/// Whether `blocks` name each block of `size` rows once, or there are none.
static LogicalResult verifyRowBlocks(EmitError emitError, RankedTensorType type,
                                     int64_t size, DenseI64ArrayAttr blocks) {
  if (!size && !blocks)
    return success();
  if (size < 1 || !blocks || type.getRank() == 0 || type.getDimSize(0) % size ||
      type.getDimSize(0) / size != blocks.size())
    return emitError() << "expected row_block_size times the number of "
                          "row_blocks to be the number of rows";
  SmallVector<bool> seen(blocks.size(), false);
  for (int64_t block : blocks.asArrayRef()) {
    if (block < 0 || block >= blocks.size() || seen[block])
      return emitError() << "expected row_blocks to name each block once";
    seen[block] = true;
  }
  return success();
}

LogicalResult WeightAttr::verify(EmitError emitError, StringRef name,
                                 RankedTensorType type, StringRef source,
                                 int64_t layers, int64_t firstLayer,
                                 int64_t layerStep, bool transpose,
                                 int64_t rowBlockSize,
                                 DenseI64ArrayAttr rowBlocks, bool finite,
                                 StringRef follows) {
  if (!type.hasStaticShape()) // weight_c1
    return emitError() << "expected a weight of static shape, but got " << type;
  if (layers < 0 || layers > DIFFATTN_MAX_LAYERS) // weight_c2
    return emitError() << "expected layers to be at most "
                       << DIFFATTN_MAX_LAYERS << ", but got " << layers;
  if (name.contains("{}") != (layers > 0)) // weight_c3
    return emitError() << "expected layers on a name with {}, and only there, "
                          "but got "
                       << layers << " of '" << name << "'";
  if (firstLayer < 0 || firstLayer > INT32_MAX) // weight_c4
    return emitError() << "expected first_layer to be from 0 to " << INT32_MAX
                       << ", but got " << firstLayer;
  if (layerStep < 1 || layerStep > INT32_MAX) // weight_c7
    return emitError() << "expected layer_step to be from 1 to " << INT32_MAX
                       << ", but got " << layerStep;
  if (transpose && type.getRank() != 2) // weight_c5
    return emitError() << "expected rank 2 for transpose, but got " << type;
  if (finite && !isa<FloatType>(type.getElementType())) // weight_c8
    return emitError() << "expected floats for finite, but got " << type;
  return verifyRowBlocks(emitError, type, rowBlockSize, rowBlocks); // weight_c6
}

namespace {
/// Reads the attributes `diffattn.<name>` of a global. The first one that is of
/// another kind is an error, and fails the whole.
struct GlobalReader {
  Operation *global;
  EmitError emitError;
  bool failed = false;

  void emitMismatch(StringRef name, const Twine &expected, Attribute attr) {
    failed = true;
    emitError() << "expected diffattn." << name << " to be " << expected
                << ", but got " << attr;
  }

  /// Reads an attribute; null if it is absent.
  template <typename Attr>
  Attr read(StringRef name, StringRef expected) {
    Attribute attr = global->getAttr(("diffattn." + name).str());
    auto typed = dyn_cast_or_null<Attr>(attr);
    if (attr && !typed && !failed)
      emitMismatch(name, expected, attr);
    return typed;
  }

  /// Reads an i64 from `least` to `most`; 0 if it is absent.
  int64_t readInteger(StringRef name, int64_t least, int64_t most) {
    std::string expected =
        ("an i64 from " + Twine(least) + " to " + Twine(most)).str();
    auto attr = read<IntegerAttr>(name, expected);
    if (!attr || failed)
      return 0;
    if (attr.getType().isSignlessInteger(64) && attr.getInt() >= least &&
        attr.getInt() <= most)
      return attr.getInt();
    emitMismatch(name, expected, attr);
    return 0;
  }
};
} // namespace

FailureOr<WeightAttr> WeightAttr::ofGlobal(Operation *op, EmitError emitError) {
  // A module with weights need not have an op of the dialect.
  op->getContext()->getOrLoadDialect<DiffAttnDialect>();
  auto global = cast<ml_program::GlobalOp>(op);
  auto type = dyn_cast<RankedTensorType>(global.getType());
  if (!type) {
    emitError() << "expected a weight of static shape, but got "
                << global.getType();
    return failure();
  }
  GlobalReader reader{op, emitError};
  auto source = reader.read<StringAttr>("source", "a string");
  int64_t layers = reader.readInteger("layers", 1, DIFFATTN_MAX_LAYERS);
  int64_t firstLayer = reader.readInteger("first_layer", 0, INT32_MAX);
  int64_t layerStep = op->hasAttr("diffattn.layer_step")
                          ? reader.readInteger("layer_step", 1, INT32_MAX)
                          : 1;
  int64_t rowBlockSize = reader.readInteger("row_block_size", 1, INT64_MAX);
  auto rowBlocks =
      reader.read<DenseI64ArrayAttr>("row_blocks", "an array of i64");
  if (reader.failed)
    return failure();
  auto weight = WeightAttr::getChecked(
      emitError, op->getContext(), global.getSymName(), type,
      source ? source.getValue() : StringRef(), layers, firstLayer, layerStep,
      op->hasAttr("diffattn.transpose"), rowBlockSize, rowBlocks,
      op->hasAttr("diffattn.finite"), /*follows=*/StringRef());
  if (!weight)
    return failure();
  return weight;
}

WeightAttr WeightAttr::withFollows(StringRef name) const {
  return get(getContext(), getName(), getType(), getSource(), getLayers(),
             getFirstLayer(), getLayerStep(), getTranspose(), getRowBlockSize(),
             getRowBlocks(), getFinite(), name);
}

SmallVector<WeightAttr> mlir::diffattn::getWeights(ModuleOp module) {
  auto list = module->getAttrOfType<ArrayAttr>(kWeightsName);
  return list ? llvm::to_vector(list.getAsRange<WeightAttr>())
              : SmallVector<WeightAttr>();
}

/// Whether the rows of `weight` can go on behind those of `first`, layer by
/// layer, as those of one matrix.
static bool canFollow(WeightAttr weight, WeightAttr first) {
  RankedTensorType type = weight.getType(), before = first.getType();
  if (weight.getLayers() != first.getLayers() ||
      type.getElementType() != before.getElementType() ||
      !type.getElementType().isIntOrFloat() || type.getRank() == 0 ||
      before.getRank() == 0 ||
      type.getShape().drop_front() != before.getShape().drop_front())
    return false;
  const int64_t bits =
      before.getNumElements() * before.getElementTypeBitWidth();
  return bits % (8 * DIFFATTN_WEIGHT_ALIGNMENT) == 0;
}

/// Whether each weight that follows another can: an earlier one of the list, so
/// that none follows itself, which nothing else follows.
static LogicalResult verifyFollowing(EmitError emitError, ArrayAttr list) {
  llvm::StringMap<WeightAttr> earlier;
  for (auto weight : list.getAsRange<WeightAttr>()) {
    if (StringRef name = weight.getFollows(); !name.empty()) {
      WeightAttr first = earlier.lookup(name);
      if (!first) // weights_c2
        return emitError() << "weight '" << weight.getName()
                           << "': expected to follow a weight before it that "
                              "no other follows, but got '"
                           << name << "'";
      if (!canFollow(weight, first)) // weights_c3
        return emitError() << "weight '" << weight.getName()
                           << "': expected to follow a weight of as many "
                              "layers, of the same columns and elements, and "
                              "of a multiple of "
                           << DIFFATTN_WEIGHT_ALIGNMENT << " bytes, but got "
                           << first;
      earlier.erase(name);
    }
    earlier[weight.getName()] = weight;
  }
  return success();
}

// weights_c1
LogicalResult
DiffAttnDialect::verifyOperationAttribute(Operation *op,
                                          NamedAttribute attribute) {
  if (attribute.getName() != kWeightsName)
    return success();
  auto list = dyn_cast<ArrayAttr>(attribute.getValue());
  if (isa<ModuleOp>(op) && list &&
      llvm::all_of(list, llvm::IsaPred<WeightAttr>))
    return verifyFollowing([&] { return op->emitError(); }, list);
  return op->emitError() << "expected '" << kWeightsName
                         << "' to be a list of #diffattn.weight on a module, "
                            "but got "
                         << attribute.getValue();
}
