//===- AttentionBuilder.h - parts of the op ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_ATTENTIONBUILDER_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_ATTENTIONBUILDER_H

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Transforms/Raising/Materialize.h"
#include "Epilogue.h"

namespace mlir::diffattn::raise {

/// Writes the operands of one attention, and its result in the graph's shape.
struct AttentionBuilder {
  ExprGraph &graph;
  const Differential &match;
  const Epilogue &epilogue;
  OpBuilder &builder;
  Location loc;
  Materializer tensors;
  Type type; ///< of the elements of queries, keys and values

  IndexPoly extent(AtomId loop) { return graph.space.extent(loop); }
  Type f32() { return builder.getF32Type(); }

  /// The largest number of neighbouring heads that share all of `exprs`, in
  /// multiples of `multiple`.
  int64_t sharedHeads(ArrayRef<Expr> exprs, int64_t multiple);
  /// `expr` by a loop over groups of `shared` heads.
  Expr perGroup(Expr expr, int64_t shared, AtomId group);
  AtomId groupLoop(int64_t shared);

  /// A view, or the parts of a concatenation side by side, in one of `orders`;
  /// null where a copy would be needed.
  Value uncopied(Expr expr, ArrayRef<SmallVector<AtomId>> orders,
                 unsigned &chosen);
  /// An operand in the layout that needs no copy, if one does.
  Value headTensor(Expr expr, ArrayRef<AtomId> loops, Layout &layout);
  /// Two operands in one layout.
  void headTensors(Expr a, SmallVector<AtomId> loopsA, Expr b,
                   SmallVector<AtomId> loopsB, Value &first, Value &second,
                   Layout &layout);
  Value lambda(int64_t noiseShared, AtomId noise, Activation &activation);
  Value bias(int64_t noiseShared, AtomId noise, Mask mask);
  /// The gate's logits in the type that holds them as they are.
  Value gate(ArrayRef<AtomId> order);
  Value product(ArrayRef<Expr> factors, ArrayRef<AtomId> loops);
  bool placeBand(Mask &mask, bool &causal, SmallVectorImpl<int64_t> &window,
                 Value &offset);
  Value scaled(Value attention, ArrayRef<AtomId> order);
  Value shaped(Value attention, ArrayRef<AtomId> order);
  std::optional<SmallVector<AtomId>> resultOrder();
  bool sameRowMajor(ArrayRef<AtomId> order);
  Value regrouped(Value value);
  bool groupsOf(ArrayRef<AtomId> order,
                SmallVectorImpl<ReassociationIndices> &groups);
  SmallVector<IndexPoly> plainPosition();
};

/// [batch, head, length, width] with the second and third in either order.
SmallVector<AtomId> inLayout(Layout layout, AtomId batch, AtomId head,
                             AtomId length, AtomId width);
SmallVector<SmallVector<AtomId>> bothLayouts(ArrayRef<AtomId> loops);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_ATTENTIONBUILDER_H
