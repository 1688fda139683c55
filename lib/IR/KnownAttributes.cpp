//===- KnownAttributes.cpp - names of attributes that ops may have --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KnownAttributes.h"

#include "DiffAttn/IR/DiffAttn.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The attribute with the numbers of operands of each group, which the parser
/// makes.
static constexpr StringLiteral kSegmentSizesName = "operandSegmentSizes";

/// Whether other dialects and passes may set `name` for their own use.
static bool isForeign(StringRef name) {
  auto [prefix, rest] = name.split('.');
  if (!rest.empty())
    return prefix != DiffAttnDialect::getDialectNamespace();
  // Marks that upstream passes leave for a while, as
  // `__inplace_operands_attr__`.
  return name.starts_with("__");
}

/// The name of `known` that is spelled most like `name`; empty if there are
/// none.
static StringRef findNearest(StringRef name, ArrayRef<StringRef> known) {
  StringRef nearest;
  for (StringRef candidate : known)
    if (nearest.empty() || name.edit_distance_insensitive(candidate) <
                               name.edit_distance_insensitive(nearest))
      nearest = candidate;
  return nearest;
}

/// The attributes of an op that a user may write.
static SmallVector<StringRef> getOwnNames(ArrayRef<StringRef> attributes) {
  return llvm::to_vector(llvm::make_filter_range(
      attributes, [](StringRef name) { return name != kSegmentSizesName; }));
}

// attention_c21, attention_backward_c21, online_attention_c17, merge_c6,
// finalize_c12, layer_weight_c4
LogicalResult mlir::diffattn::verifyKnownAttributes(Operation *op) {
  for (NamedAttribute attribute : op->getDiscardableAttrs()) {
    StringRef name = attribute.getName();
    if (isForeign(name))
      continue;
    SmallVector<StringRef> attributes;
    for (StringAttr known : op->getName().getAttributeNames())
      attributes.push_back(known);
    SmallVector<StringRef> known = getOwnNames(attributes);
    StringRef nearest = findNearest(name, known);
    if (nearest.empty())
      return op->emitOpError()
             << "expected only attributes of other dialects, but got '" << name
             << "'";
    return op->emitOpError() << "expected a known attribute, but got '" << name
                             << "'; did you mean '" << nearest << "'?";
  }
  return success();
}

LogicalResult mlir::diffattn::checkKnownProperties(
    Attribute properties, ArrayRef<StringRef> attributes,
    llvm::function_ref<InFlightDiagnostic()> emitError) {
  auto dictionary = dyn_cast<DictionaryAttr>(properties);
  if (!dictionary)
    return success(); // the generated code says what it expects
  for (NamedAttribute property : dictionary) {
    StringRef name = property.getName();
    // The second one is how older versions of MLIR wrote it.
    if (llvm::is_contained(attributes, name) || name == "operand_segment_sizes")
      continue;
    StringRef nearest = findNearest(name, getOwnNames(attributes));
    InFlightDiagnostic error = emitError();
    if (nearest.empty())
      return error << "expected no property, but got '" << name << "'";
    return error << "expected a known property, but got '" << name
                 << "'; did you mean '" << nearest << "'?";
  }
  return success();
}
