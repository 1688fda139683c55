//===- DiffAttn.h - the dialect, its attributes and ops ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTN_H
#define DIFFATTN_IR_DIFFATTN_H

#include "DiffAttn/IR/MaskBuilder.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/DestinationStyleOpInterface.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Interfaces/TilingInterface.h"

#include "DiffAttn/IR/DiffAttnDialect.h.inc"

#include "DiffAttn/IR/DiffAttnEnums.h.inc"

#include "DiffAttn/IR/MaskInterface.h.inc"
#include "DiffAttn/IR/ScheduleInterface.h.inc"

namespace mlir::diffattn {
/// Meaning of an operand's axis: batches, heads, queries and so on.
struct AxisRole {
  enum Kind { Batch, Head, Query, Key, Width, Range, Page, Sequence };
  AxisRole(Kind kind, bool mayBroadcast = false)
      : kind(kind), mayBroadcast(mayBroadcast) {}

  Kind kind;
  /// The axis may have size 1, which is then used for every place.
  bool mayBroadcast;
};

/// Bodies of methods of the ops' interfaces.
namespace detail {
SmallVector<MaskAttrInterface> getMasks(Operation *maps);
OpOperand *findMaskOperand(Operation *maps, MaskOperand operand);
Value materializeQOffset(Operation *maps, OpBuilder &builder);
} // namespace detail
} // namespace mlir::diffattn

#include "DiffAttn/IR/MapsInterface.h.inc"

namespace mlir::diffattn {
/// A register block of a matrix product: `height` scalars are broadcast against
/// `vectors` vectors, and the loop over the contracted axis takes `unroll`
/// steps at a time.
struct RegisterTile {
  int64_t height, vectors, unroll;
};
} // namespace mlir::diffattn

#define GET_ATTRDEF_CLASSES
#include "DiffAttn/IR/DiffAttnAttrs.h.inc"

namespace mlir::diffattn {
/// Whether a matrix unit makes the product, from tiles of rows in memory.
inline bool usesTiles(CpuProduct product) {
  return product == CpuProduct::Bf16Tiles;
}

/// The role of each axis of `operand`: batches, heads, queries or keys.
SmallVector<AxisRole> getAxisRoles(MaskOperand operand);

/// Adds operands to `state` in the order of the op's definition, of which null
/// ones are optional and absent; `list`: all of the next one, which is a list,
/// `behind`: those behind it.
void addOperandSegments(OpBuilder &builder, OperationState &state,
                        ArrayRef<Value> operands,
                        std::optional<ValueRange> list = std::nullopt,
                        ArrayRef<Value> behind = {});

/// Whether a mask depends on the positions of queries.
bool readPosition(ArrayRef<MaskAttrInterface> masks);

/// The relation of a tile of keys to a tile of queries by those of `masks` that
/// are decided for whole tiles, at least one.
TileRelation getTileRelation(MaskBuilder &b, ArrayRef<MaskAttrInterface> masks,
                             const MaskTile &queries, const MaskTile &keys);

/// Fails if `op` has an attribute that nothing reads.
LogicalResult verifyKnownAttributes(Operation *op);

template <typename ConcreteType>
class KnownAttributes
    : public OpTrait::TraitBase<ConcreteType, KnownAttributes> {
public:
  static LogicalResult verifyTrait(Operation *op) {
    return verifyKnownAttributes(op);
  }
};

/// The weights of a module, in the order of the table of weights, once they are
/// bound: a list of `#diffattn.weight`.
constexpr StringLiteral kWeightsName = "diffattn.weights";
SmallVector<WeightAttr> getWeights(ModuleOp module);

/// The largest magnitude of a scale: scores of operands up to 2^31 are then
/// finite, also times log2(e).
constexpr float kMaxScale = 0x1p64f;
} // namespace mlir::diffattn

#define GET_OP_CLASSES
#include "DiffAttn/IR/DiffAttnOps.h.inc"

namespace mlir::diffattn {
/// Attaches the bufferization of the dialect's ops.
void registerBufferizableOpInterfaceExternalModels(DialectRegistry &registry);
} // namespace mlir::diffattn

#endif // DIFFATTN_IR_DIFFATTN_H
