//===- Maps.h - softmax maps and what is linear in them ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_MAPS_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_MAPS_H

#include "HalfFloats.h"
#include "Softmax.h"

#include "llvm/ADT/SetVector.h"

#include <string>

namespace mlir::diffattn::raise {

/// The reason where a map has keys without values, and is none with a sink.
constexpr llvm::StringLiteral kMoreKeys =
    "a softmax is over more keys than have values";

/// coefficient * factors * map * value; `value` is null before the product
/// with the values, after it `map` and `value` are taken at the shared key.
struct Term {
  double coefficient = 1;
  SmallVector<Expr, 2> factors;
  Expr map = nullptr;
  Expr value = nullptr;
  /// Where the map is made: the results of softmaxes.
  SmallVector<Value, 2> sources = {};
  /// The 16-bit types that the map, or its product with the value, is rounded
  /// to on the way to the sum.
  llvm::SmallSetVector<Type, 2> roundedTo = {};
  /// A score more in the sums of the map, which no value has; null: none.
  Expr sink = nullptr;
};
using Terms = SmallVector<Term, 4>;

/// Finds softmax maps by what they compute and writes what depends on them as
/// a sum of terms.
class Maps {
public:
  enum class Role {
    None,
    Map,      ///< linear in softmax maps
    Attention ///< linear in products of maps with values
  };

  Maps(ExprGraph &graph, Operation *function);

  Role roleOf(Value value) const { return roles.lookup(value); }
  bool isSoftmax(Value value) const { return softmaxes.contains(value); }
  /// How many softmaxes the body that makes `value` holds among other things.
  unsigned softmaxesInside(Value value) const {
    auto it = bodies.find(value);
    return it == bodies.end() ? 0 : it->second.count;
  }
  /// True for a sum over an axis of few maps, or what may be one.
  bool combinesFewMaps(linalg::LinalgOp op) const;
  bool dependsOnMap(Expr expr) const;
  /// `expr` as a sum of terms; none if it is not linear in maps. Products with
  /// values are taken at `sharedKey`.
  std::optional<Terms> linearize(Expr expr);
  /// The softmax maps that `root` is computed from; `combined` is set if two
  /// parts of these meet in one op.
  llvm::SetVector<Value> sourceMaps(Value root, bool &combined) const;
  /// True if `product` sums over the keys of a map.
  bool runsAlongKeys(Value product);
  /// Prepares for one result: the keys of all its maps become one loop.
  void start() {
    sharedKey.reset();
    reason.clear();
    flaw = "";
    used.clear();
    droppedNanGuard = losesFarRows = false;
  }

  std::optional<AtomId> sharedKey;
  /// Why the last `linearize` gave nothing, where that is worth a remark.
  std::string reason;
  /// Why one of these is no softmax; empty where all are.
  llvm::StringRef flaw;
  bool droppedNanGuard = false;
  /// Whether one of these `losesFarRows` (Softmax).
  bool losesFarRows = false;
  /// The maps that `linearize` has met.
  llvm::SetVector<Value> used;

private:
  /// An element with the softmaxes inside of it as nodes: where bodies were
  /// fused, no value is a softmax alone.
  struct Body {
    SmallVector<IndexPoly> loops;
    Expr element = nullptr;
    unsigned count = 0;
    /// The loop of the sum that the element is, if it is one.
    std::optional<AtomId> summed;
    Role role = Role::Map;
    llvm::StringRef flaw;
    bool losesFarRows = false;
  };
  std::optional<Body> readBody(Value value);
  Expr withSoftmaxes(Expr expr, ArrayRef<IndexPoly> loops, Body &body);
  Expr open(Expr load);
  std::optional<Terms> linearizeNode(Expr expr);
  Role computeRole(Value value);
  Role roleOfReduction(linalg::LinalgOp op, Value result);
  bool runsAlongKeys(Expr expr, AtomId loop);
  std::optional<Terms> linearizeSelect(Expr select);
  std::optional<Terms> linearizeProduct(Expr reduce);
  bool takeSink(Term &term, AtomId loop);
  std::optional<Terms> linearizeFewFold(Expr reduce);
  bool isEmptyRowGuard(Expr condition, Expr map);

  ExprGraph &graph;
  llvm::DenseMap<Value, Role> roles;
  llvm::DenseMap<Value, Softmax> softmaxes;
  llvm::DenseMap<Value, Body> bodies;
  /// The value whose body `linearize` is inside of.
  Value source;
  /// The loop of the product that `linearize` is inside of.
  std::optional<AtomId> summed;
};

/// Whether two terms have the same sink, or none.
bool haveSameSink(ExprGraph &graph, const Term &a, const Term &b);

/// The product of two factors, in f32 where their types differ.
Expr multiply(ExprGraph &graph, Expr a, Expr b);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_MAPS_H
