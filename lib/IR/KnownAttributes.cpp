//===- KnownAttributes.cpp - names of attributes that ops may have --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The discardable attributes of our dialect that passes read on `op`.
static ArrayRef<StringRef> getDiscardableNames(Operation *op) {
  static const StringRef kOfAttention[] = {
      kGpuScheduleName, kGpuElementScheduleName, kGpuDecodeScheduleName};
  if (isa<AttentionOp>(op))
    return kOfAttention;
  return {};
}

/// Whether other dialects and passes may set `name` for their own use.
static bool isForeign(StringRef name) {
  auto [prefix, rest] = name.split('.');
  if (!rest.empty())
    return prefix != DiffAttnDialect::getDialectNamespace();
  // Marks that upstream passes leave for a while, as
  // `__inplace_operands_attr__`.
  return name.starts_with("__");
}

// attention_c21, online_attention_c17, merge_c6, finalize_c12, layer_weight_c4
LogicalResult mlir::diffattn::verifyKnownAttributes(Operation *op) {
  for (NamedAttribute attribute : op->getDiscardableAttrs()) {
    StringRef name = attribute.getName();
    if (isForeign(name) || llvm::is_contained(getDiscardableNames(op), name))
      continue;
    StringRef nearest;
    auto consider = [&](StringRef known) {
      if (nearest.empty() || name.edit_distance_insensitive(known) <
                                 name.edit_distance_insensitive(nearest))
        nearest = known;
    };
    for (StringAttr known : op->getName().getAttributeNames())
      if (known != "operandSegmentSizes")
        consider(known);
    for (StringRef known : getDiscardableNames(op))
      consider(known);
    if (nearest.empty())
      return op->emitOpError()
             << "expected only attributes of other dialects, but got '" << name
             << "'";
    return op->emitOpError() << "expected a known attribute, but got '" << name
                             << "'; did you mean '" << nearest << "'?";
  }
  return success();
}
