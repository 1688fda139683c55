//===- Roles.cpp - which loop is batch, head, query and width -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Differential.h"

#include <tuple>

namespace mlir::diffattn::raise {

namespace {
struct RoleSolver {
  ExprGraph &graph;
  Differential &match;
  std::string &reason;

  bool in(Expr expr, AtomId loop) { return graph.mentions(expr, loop); }
  bool inQuery(AtomId loop) {
    return llvm::any_of(match.maps(), [&](const Scores *scores) {
      return in(scores->query, loop);
    });
  }
  bool inKey(AtomId loop) {
    return llvm::any_of(match.maps(), [&](const Scores *scores) {
      return in(scores->key, loop);
    });
  }
  bool inMask(AtomId loop) {
    for (Scores *scores : match.maps())
      for (MaskPart &part : scores->mask)
        if (in(part.visible ? part.visible : part.bias, loop))
          return true;
    return false;
  }
  /// True if a mask has the loop and that of keys in one comparison, or in one
  /// number.
  bool isComparedWithKey(AtomId loop) {
    AtomId key = match.roles.key;
    std::function<bool(Expr)> walk = [&](Expr expr) {
      if (expr->kind == Kind::CmpI && in(expr, loop) && in(expr, key))
        return true;
      if (expr->kind == Kind::Index)
        return graph.space.mentions(expr->index, loop) &&
               graph.space.mentions(expr->index, key);
      return llvm::any_of(expr->operands, walk);
    };
    for (Scores *scores : match.maps())
      for (MaskPart &part : scores->mask)
        if (walk(part.visible ? part.visible : part.bias))
          return true;
    return false;
  }
  AtomId unit() { return *graph.space.loop(1).asAtom(); }

  void substitute(const IndexSpace::Substitution &map) {
    forEachExpr(match, [&](Expr &expr) { expr = graph.substitute(expr, map); });
    for (IndexPoly &poly : match.position)
      poly = graph.space.substitute(poly, map);
  }

  /// A divisor by which an expression splits `loop` into batch and head.
  std::optional<int64_t> splitOf(AtomId loop) {
    std::optional<int64_t> best;
    std::optional<int64_t> extent = graph.space.extent(loop).constant();
    auto look = [&](const IndexPoly &poly) {
      graph.space.visit(poly, [&](AtomId id) {
        const IndexSpace::Atom &atom = graph.space[id];
        if (atom.kind != IndexSpace::Atom::FloorDiv ||
            atom.first != IndexPoly::atom(loop))
          return;
        std::optional<int64_t> divisor = atom.second.constant();
        if (divisor && *divisor > 0 && (!extent || *extent % *divisor == 0) &&
            (!best || *divisor > *best))
          best = divisor;
      });
    };
    std::function<void(Expr)> walk = [&](Expr expr) {
      look(expr->index);
      for (const IndexPoly &poly : expr->indices)
        look(poly);
      for (Expr operand : expr->operands)
        walk(operand);
    };
    forEachExpr(match, [&](Expr &expr) { walk(expr); });
    return best;
  }

  bool solve();
};
} // namespace

bool RoleSolver::solve() {
  SmallVector<AtomId> loops;
  for (const IndexPoly &poly : match.position)
    graph.space.visit(poly, [&](AtomId id) {
      if (graph.space[id].kind == IndexSpace::Atom::Loop)
        loops.push_back(id);
    });
  // A factor that differs by query and key multiplies a map, not the values.
  SmallVector<Expr> factors;
  flattenProduct(match.value, factors);
  for (AtomId loop : loops)
    if (inQuery(loop) && !inKey(loop) && in(match.value, loop) &&
        !llvm::all_of(factors, [&](Expr e) { return in(e, loop); })) {
      reason = "a map is multiplied by a value that depends on query and key";
      return false;
    }
  // Merged axes come back in the order of their atoms, outermost first.
  SmallVector<AtomId> widths, queries, outer;
  for (AtomId loop : loops) {
    bool query = inQuery(loop), key = inKey(loop),
         value = in(match.value, loop);
    if (value && !query && !key && !inMask(loop))
      widths.push_back(loop);
    else if (query && !key && !value)
      queries.push_back(loop);
    else
      outer.push_back(loop);
  }
  if (widths.size() > 1) {
    reason = "the values have more than one axis of their own";
    return false;
  }
  match.roles.valueWidth = widths.empty() ? unit() : widths[0];
  // With one key head for all, heads and queries look alike. A mask
  // distinguishes them, one of positions best; without one either reading is
  // right.
  if (queries.size() > 1) {
    auto rank = [&](AtomId loop) {
      std::optional<int64_t> extent = graph.space.extent(loop).constant();
      return std::make_tuple(isComparedWithKey(loop), inMask(loop), !extent,
                             extent.value_or(0));
    };
    auto *chosen =
        std::max_element(queries.begin(), queries.end(),
                         [&](AtomId a, AtomId b) { return rank(a) < rank(b); });
    match.roles.query = *chosen;
    for (AtomId loop : loops)
      if (loop != *chosen && llvm::is_contained(queries, loop))
        outer.push_back(loop);
    llvm::sort(outer, [&](AtomId a, AtomId b) {
      return llvm::find(loops, a) < llvm::find(loops, b);
    });
  } else {
    match.roles.query = queries.empty() ? unit() : queries[0];
  }

  if (outer.size() == 1) {
    if (std::optional<int64_t> heads = splitOf(outer[0])) {
      IndexPoly batches =
          graph.space.floorDiv(graph.space.extent(outer[0]), IndexPoly(*heads));
      IndexPoly batch = graph.space.loop(batches),
                head = graph.space.loop(*heads);
      substitute({{outer[0], batch * IndexPoly(*heads) + head}});
      outer = {*batch.asAtom(), *head.asAtom()};
    }
  }
  // Several axes of heads (groups, and heads in a group) are one.
  if (outer.size() > 2) {
    IndexPoly heads = 1;
    for (AtomId loop : ArrayRef(outer).drop_front())
      heads = heads * graph.space.extent(loop);
    IndexPoly head = graph.space.loop(heads), rest = head;
    IndexSpace::Substitution map;
    for (AtomId loop : llvm::reverse(ArrayRef(outer).drop_front())) {
      IndexPoly extent = graph.space.extent(loop);
      map[loop] = loop == outer[1] ? rest : graph.space.mod(rest, extent);
      rest = graph.space.floorDiv(rest, extent);
    }
    substitute(map);
    outer = {outer[0], *head.asAtom()};
  }
  match.roles.batch = outer.empty() ? unit() : outer[0];
  match.roles.head = outer.size() < 2 ? unit() : outer[1];
  if (!graph.space.extent(match.roles.head).constant()) {
    std::swap(match.roles.batch, match.roles.head);
    if (!graph.space.extent(match.roles.head).constant()) {
      reason = "the number of heads is not known";
      return false;
    }
  }
  for (AtomId loop : {match.roles.width, match.roles.valueWidth})
    if (!graph.space.extent(loop).constant()) {
      reason = "the width of a head is not known";
      return false;
    }
  // With one batch the only loop of a sink is that of heads.
  if (match.sink && in(match.sink, match.roles.batch) &&
      graph.space.extent(match.roles.head) == IndexPoly(1) &&
      graph.space.extent(match.roles.batch).constant())
    std::swap(match.roles.batch, match.roles.head);
  // Operands may depend on their own loops only.
  auto only = [&](Expr expr, std::initializer_list<AtomId> allowed) {
    for (AtomId loop :
         {match.roles.batch, match.roles.head, match.roles.query,
          match.roles.key, match.roles.width, match.roles.valueWidth})
      if (!llvm::is_contained(allowed, loop) && in(expr, loop))
        return false;
    return true;
  };
  const Roles &r = match.roles;
  bool separate = only(match.value, {r.batch, r.head, r.key, r.valueWidth});
  for (Scores *scores : match.maps())
    separate &= only(scores->query, {r.batch, r.head, r.query, r.width}) &&
                only(scores->key, {r.batch, r.head, r.key, r.width});
  if (!separate) {
    reason = "queries, keys and values do not separate";
    return false;
  }
  // Nor is the score of a key a sink.
  if (match.sink && !only(match.sink, {r.head})) {
    reason = kMoreKeys.str();
    return false;
  }
  for (Expr factor : match.lambdaFactors)
    if (in(factor, r.valueWidth) || in(factor, r.key)) {
      reason = "lambda depends on the width of the values";
      return false;
    }
  return true;
}

bool solveRoles(ExprGraph &graph, Differential &match, std::string &reason) {
  return RoleSolver{graph, match, reason}.solve();
}

} // namespace mlir::diffattn::raise
