//===- AccessTest.cpp - positions through chains of views ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"
#include "Views.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

struct Counts {
  int64_t tensors = 0, reached = 0, opened = 0, sizes = 0;
};

std::string textOf(Value tensor) {
  std::string text;
  llvm::raw_string_ostream(text) << tensor << " of\n";
  return text;
}

/// Every element of every tensor is the element of the base that its position
/// leads to, seen through as it stands and opened op by op, and each size is
/// the polynomial that is read.
void checkViews(Program &program, Views &views, bool trusting, Counts &counts) {
  Execution run;
  views.prepare(run);
  run.run(program.function);
  ExprGraph graph(program.function, trusting);
  for (Value tensor : views.tensors()) {
    const Array &elements = run.array(tensor);
    ASSERT_EQ(elements.shape, views.shapeOf(tensor)) << program.text();
    ++counts.tensors;
    Meaning meaning(graph.space, run);
    for (auto [axis, size] : llvm::enumerate(elements.shape)) {
      ++counts.sizes;
      std::optional<int64_t> read =
          meaning.of(graph.sizeOf(tensor, axis), Point());
      ASSERT_TRUE(read && *read == size)
          << "axis " << axis << " of size " << size << " of " << textOf(tensor)
          << program.text();
    }
    SmallVector<IndexPoly> loops = graph.freshLoops(tensor);
    Expr load = graph.load(tensor, loops);
    counts.reached += load->kind != Kind::Load || load->value != tensor ||
                      !tensor.getDefiningOp();
    for (Expr expr = load; expr; expr = graph.expand(expr)) {
      counts.opened += expr != load;
      forEach(elements.shape, [&](ArrayRef<int64_t> at) {
        if (::testing::Test::HasFailure() || !elements.at(at).isDefined())
          return;
        Number read = meaning.of(expr, pointOf(loops, at));
        std::string where;
        for (int64_t k : at)
          where += " " + std::to_string(k);
        EXPECT_TRUE(same(read, elements.at(at)))
            << "expected " << text(elements.at(at)) << ", but got "
            << text(read) << " at" << where << " of " << textOf(tensor)
            << program.text();
      });
    }
  }
}

TEST(AccessTest, PositionsLeadToTheElementsOfTheBase) {
  Counts counts;
  for (int seed = 0; seed < 4000; ++seed) {
    Draw draw(seed);
    Program program;
    Views views(program, draw);
    SmallVector<int64_t> shape;
    for (int64_t rank = draw.from(1, 3); rank > 0; --rank)
      shape.push_back(draw.from(1, 4));
    Value tensor = views.base(shape, /*mayBeConstant=*/false);
    for (int64_t steps = draw.from(1, 5); steps > 0; --steps)
      tensor = views.step(tensor);
    program.finish();
    checkViews(program, views, /*trusting=*/seed % 4 != 0, counts);
    if (HasFailure())
      FAIL() << "seed " << seed;
  }
  EXPECT_GT(counts.tensors, 16000);
  // Most tensors are seen through; pads and pieces at unknown places are not.
  EXPECT_GT(counts.reached, counts.tensors * 7 / 10);
  EXPECT_GT(counts.opened, 100);
}

/// The example in the header.
TEST(AccessTest, OpensOneOpAtATime) {
  auto module = parseProgram(R"(
    func.func @main(%x: tensor<4x8xf32>) {
      %e = tensor.empty() : tensor<8x4xf32>
      %y = linalg.transpose ins(%x : tensor<4x8xf32>)
          outs(%e : tensor<8x4xf32>) permutation = [1, 0]
      %z = math.exp %y : tensor<8x4xf32>
      return
    })");
  ASSERT_TRUE(module);
  auto function = *module->getOps<func::FuncOp>().begin();
  Value z = *std::prev(function.getBody().front().end(), 2)->result_begin();
  ExprGraph graph(function);
  Position at = graph.freshLoops(z);
  Expr element = graph.load(z, at);
  ASSERT_EQ(element->kind, Kind::Load);
  EXPECT_EQ(element->value, z);
  Expr opened = graph.expand(element);
  ASSERT_TRUE(opened && opened->kind == Kind::Exp);
  Expr base = opened->operands[0];
  ASSERT_EQ(base->kind, Kind::Load);
  EXPECT_EQ(base->value, function.getArgument(0));
  ASSERT_EQ(base->indices.size(), 2u);
  EXPECT_EQ(base->indices[0], at[1]);
  EXPECT_EQ(base->indices[1], at[0]);
  EXPECT_EQ(graph.expand(base), nullptr);
}

} // namespace
