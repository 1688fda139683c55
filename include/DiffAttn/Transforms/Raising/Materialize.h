//===- Materialize.h - tensors out of expressions ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TRANSFORMS_RAISING_MATERIALIZE_H
#define DIFFATTN_TRANSFORMS_RAISING_MATERIALIZE_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"

namespace mlir::diffattn::raise {

using namespace tensorexpr;

/// Writes tensors whose elements are given as expressions.
class Materializer {
public:
  Materializer(ExprGraph &graph, OpBuilder &builder, Location loc)
      : graph(graph), builder(builder), loc(loc),
        block(builder.getInsertionBlock()), at(builder.getInsertionPoint()) {}

  /// The tensor over `loops`, converted to `type`: a view of an existing value
  /// where that is enough, else a copy.
  Value tensor(Expr element, ArrayRef<AtomId> loops, Type type);
  /// A view of the base that `element` reads, with `loops` as its axes in any
  /// order of `orders`; sets `chosen`. Null where a copy would be needed.
  Value view(Expr element, ArrayRef<SmallVector<AtomId>> orders,
             unsigned &chosen);
  /// Parts of two tensors side by side, as importers write a concatenation, in
  /// any order of `orders` for the axes; sets `chosen`. Null if `element` is
  /// something else.
  Value concatenated(Expr element, ArrayRef<SmallVector<AtomId>> orders,
                     Type type, unsigned &chosen);
  Value generic(Expr element, ArrayRef<AtomId> loops, Type type);
  /// `source` with its axes split into `sizes`, by groups. It is cast first
  /// where sizes are static that are dynamic in its type, or the other way
  /// round.
  Value expanded(Value source, ArrayRef<ReassociationIndices> groups,
                 ArrayRef<OpFoldResult> sizes);
  OpFoldResult size(const IndexPoly &poly);
  /// True if all that `poly` is computed from is there before the tensors.
  bool canCompute(const IndexPoly &poly);
  Value index(const IndexPoly &poly);

  /// Ops that will be gone: sizes are taken from other values.
  llvm::SetVector<Operation *> dying;

private:
  struct Piece {
    IndexPoly size, offset;
    int64_t stride = 1;
    std::optional<AtomId> loop;
  };
  /// A view that `load` reads, with the loops that it depends on as its axes,
  /// in any order; sets `axes` to these as dimensions among `loops`.
  Value viewInAnyOrder(Expr load, ArrayRef<AtomId> loops,
                       SmallVectorImpl<AffineExpr> &axes);
  bool isBefore(Operation *op);
  /// True if sizes and numbers can be read from `value`.
  bool isReadable(Value value);
  /// `tensor`, or a copy of it where it is a constant of another body.
  Value baseOf(OpBuilder &body, Value tensor);
  bool decompose(const IndexPoly &poly, const IndexPoly &size,
                 SmallVectorImpl<Piece> &pieces);
  Value scalar(OpBuilder &body, Expr expr,
               const llvm::DenseMap<AtomId, Value> &loops,
               llvm::DenseMap<Expr, Value> &known);
  Value asIndex(OpBuilder &body, const IndexPoly &poly,
                const llvm::DenseMap<AtomId, Value> &loops);

  ExprGraph &graph;
  OpBuilder &builder;
  Location loc;
  /// Where the tensors are written; the builder also goes into their bodies.
  Block *block;
  Block::iterator at;
};

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_TRANSFORMS_RAISING_MATERIALIZE_H
