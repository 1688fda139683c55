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

/// How a structured op finds its place along one axis of an input: loop `loop`
/// divided by `group`, or times `group` plus loop `inner`, or always 0 for a
/// negative `loop`.
struct Axis {
  Axis(int64_t loop, OpFoldResult group = {}, bool mayBroadcast = false)
      : loop(loop), group(group), mayBroadcast(mayBroadcast) {}

  /// Place `inner` of group `loop` of groups of so many places.
  static Axis inGroup(int64_t loop, OpFoldResult group, int64_t inner) {
    Axis axis(loop, group);
    axis.inner = inner;
    return axis;
  }

  int64_t loop;
  OpFoldResult group;
  int64_t inner = -1;
  /// The axis may turn out to have size 1, which is then used for every place.
  bool mayBroadcast;
};

/// An input of a structured op and where a point of the loops reads it.
struct StructuredInput {
  Value value;
  SmallVector<Axis> axes;
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
  /// The size of `shaped` along `axis` as an i64 value.
  Value sizeAsI64(Value shaped, int64_t axis);
  /// The size of `shaped` along `axis` as an f32 value.
  Value sizeAsF32(Value shaped, int64_t axis);
  /// The sizes of `shaped` along all axes.
  SmallVector<OpFoldResult> sizes(Value shaped);

  /// The quotient of two sizes.
  OpFoldResult ratio(OpFoldResult whole, OpFoldResult part);

  /// `whole` if `size` is 1, else 1.
  OpFoldResult wholeIfOne(OpFoldResult size, OpFoldResult whole);

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
  /// An input becomes an operand where its places are affine, else the body
  /// loads it.
  Value generic(ArrayRef<StructuredInput> inputs, Value out,
                ArrayRef<Axis> outAxes, ArrayRef<utils::IteratorType> loops,
                Body body);

  /// Adds up groups of places of `value`, f32: place `n` along axis `a` of the
  /// sum, which has new storage of `sizes`, is that of the `groups[a]` places
  /// from `n * groups[a]` on. Gives `value` itself where all groups are 1.
  Value sumGroups(Value value, ArrayRef<OpFoldResult> sizes,
                  ArrayRef<OpFoldResult> groups);

  /// Frees, after everything that was built, the buffers that `empty`,
  /// `filled` and `copyToUpdate` made. Tensors have none.
  void freeTemporaries();

  OpBuilder &builder;
  Location loc;

private:
  bool isAffine(const StructuredInput &input) const;
  Value load(ImplicitLocOpBuilder &b, const StructuredInput &input,
             ArrayRef<Value> sizes);

  bool onTensors;
  SmallVector<Value> temporaries;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_STRUCTUREDBUILDER_H
