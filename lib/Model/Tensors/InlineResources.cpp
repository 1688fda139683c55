//===- InlineResources.cpp - resources as dense constants -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/DialectResourceBlobManager.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_INLINERESOURCESPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

static constexpr int64_t kMaxElements = 1024;

/// The bytes of one element in a resource; 0 for types of no whole bytes.
static int64_t getElementBytes(Type type) {
  if (type.isIndex())
    return 8;
  if (!type.isIntOrFloat())
    return 0;
  const unsigned bits = type.getIntOrFloatBitWidth();
  return bits == 1 ? 1 : bits % 8 == 0 ? bits / 8 : 0;
}

/// Fails where the resource is missing or has another size than its type.
static LogicalResult checkSize(Location loc, DenseResourceElementsAttr value) {
  ShapedType type = value.getType();
  StringRef name = value.getRawHandle().getKey();
  AsmResourceBlob *blob = value.getRawHandle().getBlob();
  if (!blob)
    return emitError(loc) << "expected the resource '" << name
                          << "' in the module, but there is none";
  const int64_t bytes = getElementBytes(type.getElementType()),
                expected = type.getNumElements() * bytes,
                got = static_cast<int64_t>(blob->getData().size());
  if (bytes == 0 || got == expected)
    return success();
  return emitError(loc) << "expected " << expected << " bytes in the resource '"
                        << name << "' of " << type << ", but got " << got;
}

/// `value` as a constant with inline elements; null if it may stay a resource.
static DenseElementsAttr inlined(DenseResourceElementsAttr value) {
  ShapedType type = value.getType();
  if (type.getNumElements() == 0)
    return DenseElementsAttr::get(type, ArrayRef<Attribute>());
  ArrayRef<char> data = value.getRawHandle().getBlob()->getData();
  if (type.getElementType().isInteger(1))
    return DenseElementsAttr::get(
        type, llvm::to_vector_of<bool>(
                  llvm::map_range(data, [](char byte) { return byte != 0; })));
  if (type.getNumElements() > kMaxElements ||
      getElementBytes(type.getElementType()) == 0)
    return {};
  return DenseElementsAttr::getFromRawBuffer(type, data);
}

namespace {
struct InlineResourcesPass final
    : diffattn::impl::InlineResourcesPassBase<InlineResourcesPass> {
  void runOnOperation() override {
    WalkResult walked = getOperation()->walk([](Operation *op) {
      for (NamedAttribute attribute : op->getAttrs()) {
        auto value = dyn_cast<DenseResourceElementsAttr>(attribute.getValue());
        if (!value)
          continue;
        // A resource without elements is not read.
        if (value.getType().getNumElements() != 0 &&
            failed(checkSize(op->getLoc(), value)))
          return WalkResult::interrupt();
        if (DenseElementsAttr dense = inlined(value))
          op->setAttr(attribute.getName(), dense);
      }
      return WalkResult::advance();
    });
    if (walked.wasInterrupted())
      signalPassFailure();
  }
};
} // namespace
