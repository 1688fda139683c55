//===- StructuredBuilder.h - linalg on tensors or on memrefs ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_STRUCTUREDBUILDER_H
#define DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_STRUCTUREDBUILDER_H

#include "mlir/Dialect/Utils/StructuredOpsUtils.h"
#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/OpDefinition.h"

namespace mlir::diffattn {

/// An input of a structured op: a value and where a point of the loops reads
/// it.
struct StructuredInput {
  Value value;
  AffineMap map;
};

/// Writes the same chain of linalg ops in two forms: on tensors, where every
/// step makes a new value, and on memrefs, where a step overwrites its buffer.
/// A caller that uses each intermediate value as if it were consumed by the
/// step that updates it is right in both.
class StructuredBuilder {
public:
  StructuredBuilder(OpBuilder &builder, Location loc, bool onTensors)
      : builder(builder), loc(loc), onTensors(onTensors) {}

  using Body = llvm::function_ref<Value(ImplicitLocOpBuilder &, ValueRange)>;

  /// The size of `shaped` along `axis`, as an attribute where it is static.
  OpFoldResult size(Value shaped, int64_t axis);
  /// The same as an i64 value.
  Value sizeAsI64(Value shaped, int64_t axis);

  /// New f32 storage with no value yet, freed by `freeTemporaries`.
  Value empty(ArrayRef<OpFoldResult> sizes);
  /// New f32 storage that holds `value` everywhere.
  Value filled(ArrayRef<OpFoldResult> sizes, float value);
  /// Storage with the contents of `value` that a step may overwrite while
  /// `value` itself is still read.
  Value copyToUpdate(Value value);
  /// Makes `target` hold `value`; returns what holds it now.
  Value store(Value value, Value target);

  /// One linalg.generic over loops of the given kinds that reads `inputs` and
  /// writes `out`. The body gets the elements of the inputs and then of `out`.
  Value generic(ArrayRef<StructuredInput> inputs, Value out, AffineMap outMap,
                ArrayRef<utils::IteratorType> loops, Body body);

  /// Frees, after everything that was built, the buffers that `empty`,
  /// `filled` and `copyToUpdate` made. Tensors have none.
  void freeTemporaries();

  /// Affine helpers: loop `i`, and the map of `loops` loops to `results`.
  AffineExpr dim(unsigned i) { return builder.getAffineDimExpr(i); }
  AffineMap map(unsigned loops, ArrayRef<AffineExpr> results) {
    return AffineMap::get(loops, 0, results, builder.getContext());
  }

  OpBuilder &builder;
  Location loc;

private:
  bool onTensors;
  SmallVector<Value> temporaries;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_STRUCTUREDBUILDER_H
