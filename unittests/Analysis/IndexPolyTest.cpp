//===- IndexPolyTest.cpp - polynomials, ranges and proofs ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"
#include "Programs.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

using Wide = __int128;

Wide floorDivided(Wide a, Wide b) {
  Wide quotient = a / b;
  return quotient * b > a ? quotient - 1 : quotient;
}

/// Loops, sizes and integers that are not known, with numbers for one point.
struct Space {
  explicit Space(Draw &draw)
      : program({tensorType(), IndexType::get(&Program::context()),
                 IntegerType::get(&Program::context(), 8)}) {
    for (int64_t axis : {0, 1})
      sizes.push_back(space.size(program.argument(0), axis));
    opaque = space.opaque(program.argument(1));
    narrow = space.opaque(program.argument(2));
    for (int k = 0; k < 2; ++k)
      loops.push_back(space.loop(draw.from(1, 5)));
    loops.push_back(space.loop(sizes[0]));
    loops.push_back(space.loop(sizes[0] * sizes[1]));
  }
  static Type tensorType() {
    return RankedTensorType::get({ShapedType::kDynamic, ShapedType::kDynamic},
                                 Float32Type::get(&Program::context()));
  }

  /// Calls `fn` at every point where no size is above `most`.
  void
  forEachPoint(int64_t most, ArrayRef<int64_t> unknowns,
               llvm::function_ref<void(const Execution &, const Point &)> fn) {
    forEach({most, most, static_cast<int64_t>(unknowns.size()), 3},
            [&](ArrayRef<int64_t> at) {
              Execution run;
              Array sized;
              sized.shape = {at[0] + 1, at[1] + 1};
              run.set(program.argument(0), sized);
              run.set(program.argument(1), Number::of(unknowns[at[2]]));
              const int64_t edges[] = {-128, 0, 127};
              run.set(program.argument(2), Number::of(edges[at[3]]));
              Meaning meaning(space, run);
              SmallVector<int64_t> extents;
              for (const IndexPoly &loop : loops)
                extents.push_back(
                    *meaning.of(space.extent(*loop.asAtom()), Point()));
              forEach(extents, [&](ArrayRef<int64_t> turn) {
                fn(run, pointOf(loops, turn));
              });
            });
  }

  Program program;
  IndexSpace space;
  SmallVector<IndexPoly> loops, sizes;
  IndexPoly opaque, narrow;
};

/// A polynomial, and how it was made.
struct Tree {
  enum Op { Leaf, Sum, Difference, Product, Quotient, Rest } op = Leaf;
  IndexPoly poly;
  std::shared_ptr<Tree> a, b;
};
using TreeRef = std::shared_ptr<Tree>;

/// A number that was computed at one point, and whether it stayed within 62
/// bits.
struct Exact {
  Wide number;
  bool fits;
};

std::optional<Exact> evaluate(const TreeRef &tree, const Meaning &meaning,
                              const Point &at) {
  auto checked = [](Wide number, bool fits) {
    Wide most = Wide(1) << 62;
    return Exact{number, fits && -most < number && number < most};
  };
  if (tree->op == Tree::Leaf) {
    std::optional<int64_t> number = meaning.of(tree->poly, at);
    return number ? std::optional(checked(*number, true)) : std::nullopt;
  }
  std::optional<Exact> a = evaluate(tree->a, meaning, at),
                       b = evaluate(tree->b, meaning, at);
  if (!a || !b)
    return std::nullopt;
  bool fits = a->fits && b->fits;
  if (!fits)
    return Exact{0, false};
  switch (tree->op) {
  case Tree::Sum:
    return checked(a->number + b->number, fits);
  case Tree::Difference:
    return checked(a->number - b->number, fits);
  case Tree::Product:
    return checked(a->number * b->number, fits);
  default:
    if (b->number <= 0)
      return std::nullopt;
    Wide quotient = floorDivided(a->number, b->number);
    return checked(tree->op == Tree::Quotient
                       ? quotient
                       : a->number - b->number * quotient,
                   fits);
  }
}

class Forest {
public:
  Forest(Space &space, Draw &draw, bool withOpaque)
      : space(space), draw(draw), withOpaque(withOpaque) {}

  TreeRef leaf() {
    auto tree = std::make_shared<Tree>();
    switch (draw.below(withOpaque ? 8 : 6)) {
    case 0:
      tree->poly = draw.from(-4, 9);
      break;
    case 1:
      tree->poly = draw.one(space.sizes);
      break;
    case 6:
      tree->poly = space.opaque;
      break;
    case 7:
      tree->poly = space.narrow;
      break;
    default:
      tree->poly = draw.one(space.loops);
    }
    return tree;
  }

  TreeRef grow(int depth) {
    if (depth == 0 || draw.chance(5))
      return leaf();
    auto tree = std::make_shared<Tree>();
    tree->a = grow(depth - 1);
    switch (draw.below(7)) {
    case 0:
    case 1:
      tree->op = Tree::Sum;
      tree->b = grow(depth - 1);
      tree->poly = tree->a->poly + tree->b->poly;
      break;
    case 2:
      tree->op = Tree::Difference;
      tree->b = grow(depth - 1);
      tree->poly = tree->a->poly - tree->b->poly;
      break;
    case 3:
    case 4:
      tree->op = Tree::Product;
      tree->b = grow(depth - 1);
      tree->poly = tree->a->poly * tree->b->poly;
      break;
    default:
      // By a number, a size or a product of these, as axes are split, some of
      // which are a size and something, as a cache with its new tokens.
      tree->b = std::make_shared<Tree>();
      tree->b->poly = draw.from(1, 6);
      if (draw.chance(2))
        tree->b->poly = tree->b->poly * draw.one(space.sizes);
      if (draw.chance(3))
        tree->b->poly = tree->b->poly + draw.one(space.sizes);
      if (draw.chance(3))
        tree->b->poly = tree->b->poly * draw.one(space.sizes);
      tree->op = draw.chance(2) ? Tree::Quotient : Tree::Rest;
      tree->poly = tree->op == Tree::Quotient
                       ? space.space.floorDiv(tree->a->poly, tree->b->poly)
                       : space.space.mod(tree->a->poly, tree->b->poly);
    }
    return tree;
  }

private:
  Space &space;
  Draw &draw;
  bool withOpaque;
};

std::string show(Wide number) {
  return std::to_string(static_cast<int64_t>(number));
}

/// A polynomial is what it was made of, lies in its range, and what is proven
/// of it is so: at every point of a small box.
TEST(IndexPolyTest, IsWhatItWasMadeOfAtEveryPoint) {
  int64_t points = 0, proofs = 0, ranges = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    Space space(draw);
    Forest forest(space, draw, seed % 3 == 0);
    TreeRef tree = forest.grow(3), other = forest.grow(2);
    const IndexPoly &poly = tree->poly;
    IndexSpace &s = space.space;
    bool notNegative = s.provablyNonNegative(poly),
         less = s.provablyLess(poly, other->poly);
    std::optional<IndexSpace::Range> range = s.rangeOf(poly);
    std::optional<int64_t> constant = poly.constant();
    proofs += notNegative + less;
    ranges += range.has_value();
    space.forEachPoint(
        3, {-5, 0, 1, 6}, [&](const Execution &run, const Point &at) {
          if (::testing::Test::HasFailure())
            return;
          Meaning meaning(s, run);
          std::optional<Exact> exact = evaluate(tree, meaning, at);
          if (!exact)
            return;
          ASSERT_TRUE(exact->fits);
          ++points;
          std::optional<int64_t> number = meaning.of(poly, at);
          ASSERT_TRUE(number) << "seed " << seed;
          ASSERT_EQ(show(*number), show(exact->number)) << "seed " << seed;
          ASSERT_TRUE(!constant || *constant == *number);
          // By the analysis itself, with a number for each atom.
          Point atoms = at;
          for (const IndexPoly &leaf :
               {space.sizes[0], space.sizes[1], space.opaque, space.narrow})
            atoms[*leaf.asAtom()] = *meaning.of(leaf, at);
          ASSERT_EQ(s.evaluate(poly, atoms), number) << "seed " << seed;
          ASSERT_TRUE(!notNegative || *number >= 0) << "seed " << seed;
          if (range) {
            ASSERT_LE(range->low, *number) << "seed " << seed;
            ASSERT_GE(range->high, *number) << "seed " << seed;
          }
          std::optional<Exact> right = evaluate(other, meaning, at);
          if (less && right)
            ASSERT_TRUE(*number < right->number) << "seed " << seed;
        });
    if (HasFailure())
      FAIL() << "seed " << seed;
  }
  EXPECT_GT(points, 100000);
  EXPECT_GT(proofs, 60);
  EXPECT_GT(ranges, 150);
}

/// Large sizes: nothing is proven that a long axis breaks.
TEST(IndexPolyTest, HoldsForLargeSizes) {
  int64_t points = 0;
  for (int seed = 0; seed < 600; ++seed) {
    Draw draw(20000 + seed);
    Space space(draw);
    Forest forest(space, draw, seed % 2 == 0);
    TreeRef tree = forest.grow(3);
    IndexSpace &s = space.space;
    bool notNegative = s.provablyNonNegative(tree->poly);
    for (int turn = 0; turn < 60; ++turn) {
      Execution run;
      Array sized;
      // A tensor of these sizes has at most 2^40 elements.
      int64_t rows = int64_t(1) << draw.below(31);
      rows = std::max<int64_t>(rows - draw.below(2), 1);
      int64_t columns = std::max<int64_t>(
          1, std::min<int64_t>((int64_t(1) << 40) / rows,
                               (int64_t(1) << draw.below(31)) - draw.below(2)));
      sized.shape = {rows, columns};
      run.set(space.program.argument(0), sized);
      std::vector<int64_t> edges =
          edgesOf(IndexType::get(&Program::context()), draw);
      run.set(space.program.argument(1), Number::of(draw.one(edges)));
      run.set(space.program.argument(2), Number::of(draw.from(-128, 127)));
      Meaning meaning(s, run);
      SmallVector<int64_t> at;
      for (const IndexPoly &loop : space.loops) {
        int64_t extent = *meaning.of(s.extent(*loop.asAtom()), Point());
        at.push_back(draw.chance(2) ? (draw.chance(2) ? 0 : extent - 1)
                                    : draw.below(extent));
      }
      Point point = pointOf(space.loops, at);
      std::optional<Exact> exact = evaluate(tree, meaning, point);
      if (!exact || !exact->fits)
        continue;
      // Products that no tensor's elements make are beyond what is promised.
      bool isBeyond =
          rows * columns > int64_t(1) << 20 && !tree->poly.terms.empty() &&
          llvm::any_of(tree->poly.terms,
                       [](const auto &term) { return term.first.size() > 2; });
      if (isBeyond)
        continue;
      ++points;
      ASSERT_EQ(show(*meaning.of(tree->poly, point)), show(exact->number))
          << "seed " << seed;
      ASSERT_TRUE(!notNegative || exact->number >= 0) << "seed " << seed;
    }
  }
  EXPECT_GT(points, 10000);
}

/// Replacing loops and replacing their numbers is the same.
TEST(IndexPolyTest, SubstitutesAsNumbersDo) {
  int64_t points = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Draw draw(40000 + seed);
    Space space(draw);
    IndexSpace &s = space.space;
    Forest forest(space, draw, false);
    TreeRef tree = forest.grow(3);
    // Positions inside of the axes that the loops run over.
    IndexSpace::Substitution map;
    IndexPoly group = s.loop(1 + draw.below(3)), member = s.loop(2);
    IndexPoly merged = group * IndexPoly(2) + member;
    AtomId replaced = *draw.one(space.loops).asAtom();
    map[replaced] = s.within(merged, s.extent(replaced));
    IndexPoly result = s.substitute(tree->poly, map);
    bool mentions = s.mentions(result, replaced);
    EXPECT_FALSE(mentions) << "seed " << seed;
    space.forEachPoint(3, {0}, [&](const Execution &run, const Point &at) {
      if (::testing::Test::HasFailure() || at.lookup(replaced) != 0)
        return;
      Meaning meaning(s, run);
      for (int64_t g : {0, 1})
        for (int64_t m : {0, 1}) {
          Point inner = at;
          inner[*group.asAtom()] = g;
          inner[*member.asAtom()] = m;
          Point outer = at;
          outer[replaced] = *meaning.of(map[replaced], inner);
          std::optional<int64_t> expected = meaning.of(tree->poly, outer),
                                 got = meaning.of(result, inner);
          if (g >= s.extent(*group.asAtom()).constant())
            continue;
          ++points;
          ASSERT_EQ(got.has_value(), expected.has_value());
          if (got)
            ASSERT_EQ(*got, *expected) << "seed " << seed;
        }
    });
  }
  EXPECT_GT(points, 10000);
}

/// Affine expressions of MLIR, against their own evaluation.
TEST(IndexPolyTest, AppliesAffineExpressions) {
  MLIRContext *context = &Program::context();
  for (int seed = 0; seed < 500; ++seed) {
    Draw draw(60000 + seed);
    Space space(draw);
    std::function<AffineExpr(int)> grow = [&](int depth) -> AffineExpr {
      if (depth == 0 || draw.chance(4))
        return draw.chance(3) ? getAffineConstantExpr(draw.from(-3, 5), context)
                              : getAffineDimExpr(draw.below(2), context);
      AffineExpr a = grow(depth - 1);
      int64_t number = draw.from(1, 5);
      switch (draw.below(5)) {
      case 0:
        return a + grow(depth - 1);
      case 1:
        return a * draw.from(-3, 3);
      case 2:
        return a.floorDiv(number);
      case 3:
        return a.ceilDiv(number);
      default:
        return a % number;
      }
    };
    AffineExpr expr = grow(4);
    SmallVector<IndexPoly> operands = {space.loops[0], space.loops[1]};
    IndexPoly poly = space.space.apply(expr, operands);
    Execution run;
    Meaning meaning(space.space, run);
    SmallVector<int64_t> extents;
    for (const IndexPoly &loop : operands)
      extents.push_back(*space.space.extent(*loop.asAtom()).constant());
    forEach(extents, [&](ArrayRef<int64_t> at) {
      SmallVector<Attribute> numbers, results;
      for (int64_t number : at)
        numbers.push_back(space.program.builder.getIndexAttr(number));
      ASSERT_TRUE(
          succeeded(AffineMap::get(2, 0, expr).constantFold(numbers, results)));
      std::optional<int64_t> got = meaning.of(poly, pointOf(operands, at));
      ASSERT_TRUE(got) << "seed " << seed;
      ASSERT_EQ(*got, cast<IntegerAttr>(results[0]).getInt())
          << "seed " << seed;
    });
  }
}

/// A broadcast at run time is its position, or 0 in an axis of one element.
TEST(IndexPolyTest, BroadcastsAtRunTime) {
  for (int seed = 0; seed < 300; ++seed) {
    Draw draw(80000 + seed);
    Space space(draw);
    IndexSpace &s = space.space;
    Forest forest(space, draw, false);
    TreeRef position = forest.grow(2);
    IndexPoly size = draw.one(space.sizes);
    IndexPoly poly = s.broadcast(position->poly, size);
    bool notNegative = s.provablyNonNegative(poly);
    std::optional<IndexSpace::Range> range = s.rangeOf(poly);
    space.forEachPoint(3, {0}, [&](const Execution &run, const Point &at) {
      Meaning meaning(s, run);
      std::optional<int64_t> where = meaning.of(position->poly, at);
      if (!where || ::testing::Test::HasFailure())
        return;
      int64_t expected = *meaning.of(size, at) == 1 ? 0 : *where;
      ASSERT_EQ(*meaning.of(poly, at), expected) << "seed " << seed;
      ASSERT_TRUE(!notNegative || expected >= 0) << "seed " << seed;
      ASSERT_TRUE(!range || (range->low <= expected && expected <= range->high))
          << "seed " << seed;
    });
  }
}

/// The example in the header.
TEST(IndexPolyTest, DividesWhatWasMerged) {
  Program program({Space::tensorType()});
  Value tensor = program.argument(0);
  IndexSpace space;
  IndexPoly H = space.size(tensor, 1);
  IndexPoly b = space.loop(space.size(tensor, 0)), h = space.loop(H);
  EXPECT_EQ(space.floorDiv(b * H + h, H), b);
  EXPECT_EQ(space.mod(b * H + h, H), h);
  EXPECT_TRUE(space.provablyLess(b * H + h, space.size(tensor, 0) * H));
}

/// An axis whose size is a sum: `past` keys of a cache, and new ones.
TEST(IndexPolyTest, DividesBySums) {
  Program program({Space::tensorType()});
  Value tensor = program.argument(0);
  IndexSpace space;
  IndexPoly past = space.size(tensor, 0), added = space.size(tensor, 1);
  for (const IndexPoly &length :
       {past + 1, past + added, past * IndexPoly(2) + added * added + 3}) {
    IndexPoly b = space.loop(added), h = space.loop(4), k = space.loop(length);
    IndexPoly row = b * IndexPoly(4) + h, flat = row * length + k;
    EXPECT_EQ(space.floorDiv(flat, length), row);
    EXPECT_EQ(space.mod(flat, length), k);
    EXPECT_EQ(space.floorDiv(flat, length * IndexPoly(4)), b);
    // A position beyond the axis is in the next one.
    EXPECT_NE(space.floorDiv(flat + 1, length), row);
    EXPECT_NE(space.floorDiv(flat - 1, length), row);
  }
}

/// Sizes that are stated to be equal are one polynomial, and what is known of
/// either is known of both.
TEST(IndexPolyTest, JoinsSizes) {
  Draw draw(0);
  Space space(draw);
  IndexSpace s;
  Value tensor = space.program.argument(0);
  IndexPoly a = s.size(tensor, 0), b = s.size(tensor, 1),
            c = s.opaque(space.program.argument(1));
  EXPECT_NE(a, b);
  s.join(b, a);
  EXPECT_EQ(s.size(tensor, 1), a);
  // An integer that is a size is at least 1.
  EXPECT_FALSE(s.provablyLess(0, c));
  s.join(c, a);
  EXPECT_TRUE(s.provablyLess(0, s.opaque(space.program.argument(1))));

  // a * b = 6 * a leaves b = 6.
  IndexSpace t;
  IndexPoly x = t.size(tensor, 0), y = t.size(tensor, 1);
  t.joinProducts(x * y, x * IndexPoly(6));
  EXPECT_EQ(t.size(tensor, 1), IndexPoly(6));
  // Equations without information change nothing: 0 and names in terms of
  // themselves.
  IndexSpace u;
  IndexPoly p = u.size(tensor, 0);
  u.join(p, p * p);
  EXPECT_EQ(u.size(tensor, 0), p);
  u.joinProducts(IndexPoly(0), p);
  EXPECT_EQ(u.size(tensor, 0), p);
}

} // namespace
