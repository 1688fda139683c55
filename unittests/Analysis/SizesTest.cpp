//===- SizesTest.cpp - sizes that ops state to be equal ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// That sizes are what they are read as in every run is shown for chains of
// views by AccessTest.cpp. Here: which sizes are seen to be one.
//
//===----------------------------------------------------------------------===//
#include "Programs.h"

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

/// A function whose first two arguments are of type tensor<?x?xf32>.
struct Case {
  const char *name, *body;
  /// Whether axis 1 of the first argument is axis 0 of the second: where what
  /// ops take for granted is trusted, and by how values are made alone.
  bool trusted, made;
};

const Case kCases[] = {
    {"nothing", "", false, false},
    {"product", R"(
      %c = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>)
          outs(%o : tensor<?x?xf32>) -> tensor<?x?xf32>)",
     true, false},
    {"elementwise", R"(
      %t = linalg.transpose ins(%b : tensor<?x?xf32>) outs(%o : tensor<?x?xf32>)
          permutation = [1, 0]
      %c = arith.addf %a, %t : tensor<?x?xf32>)",
     true, false},
    {"assertion", R"(
      %n = tensor.dim %a, %c1 : tensor<?x?xf32>
      %m = tensor.dim %b, %c0 : tensor<?x?xf32>
      %same = arith.cmpi eq, %n, %m : index
      cf.assert %same, "expected equal sizes")",
     true, false},
    {"assertion of i64", R"(
      %n = tensor.dim %a, %c1 : tensor<?x?xf32>
      %m = tensor.dim %b, %c0 : tensor<?x?xf32>
      %i = arith.index_cast %n : index to i64
      %j = arith.index_cast %m : index to i64
      %same = arith.cmpi eq, %i, %j : i64
      cf.assert %same, "expected equal sizes")",
     true, false},
    {"assertion of an order", R"(
      %n = tensor.dim %a, %c1 : tensor<?x?xf32>
      %m = tensor.dim %b, %c0 : tensor<?x?xf32>
      %same = arith.cmpi sle, %n, %m : index
      cf.assert %same, "expected sizes in order")",
     false, false},
    {"an init that is not read", R"(
      %n = tensor.dim %a, %c1 : tensor<?x?xf32>
      %e = tensor.empty(%n, %n) : tensor<?x?xf32>
      %c = linalg.copy ins(%b : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>)
          -> tensor<?x?xf32>)",
     true, false},
};

TEST(SizesTest, WhatOpsTakeForGrantedIsTrustedOrNot) {
  for (const Case &c : kCases)
    for (bool trusting : {true, false}) {
      auto module = parseProgram((Twine(R"(
    func.func @main(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>,
                    %o: tensor<?x?xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      )") + c.body + R"(
      return
    })")
                                     .str());
      ASSERT_TRUE(module) << c.name;
      auto function = *module->getOps<func::FuncOp>().begin();
      ExprGraph graph(function, trusting);
      Value a = function.getArgument(0), b = function.getArgument(1);
      EXPECT_EQ(graph.sizeOf(a, 1) == graph.sizeOf(b, 0),
                trusting ? c.trusted : c.made)
          << c.name << (trusting ? "" : ", not trusted");
      EXPECT_NE(graph.sizeOf(a, 0), graph.sizeOf(a, 1)) << c.name;
    }
}

/// The operands of an op give the size of its result, trusted or not.
TEST(SizesTest, SizesOfResultsAreComputed) {
  auto module = parseProgram(R"(
    func.func @main(%a: tensor<?x6x?xf32>, %k: index) {
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %n = tensor.dim %a, %c0 : tensor<?x6x?xf32>
      %m = tensor.dim %a, %c2 : tensor<?x6x?xf32>
      %0 = tensor.collapse_shape %a [[0, 1], [2]]
          : tensor<?x6x?xf32> into tensor<?x?xf32>
      %1 = tensor.expand_shape %0 [[0, 1], [2]] output_shape [%n, 6, %m]
          : tensor<?x?xf32> into tensor<?x6x?xf32>
      %2 = tensor.concat dim(1) %0, %0
          : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
      %3 = tensor.extract_slice %2 [0, 0] [%n, %k] [1, 1]
          : tensor<?x?xf32> to tensor<?x?xf32>
      %4 = arith.negf %3 : tensor<?x?xf32>
      %5 = tensor.cast %4 : tensor<?x?xf32> to tensor<8x?xf32>
      return
    })");
  ASSERT_TRUE(module);
  auto function = *module->getOps<func::FuncOp>().begin();
  for (bool trusting : {true, false}) {
    ExprGraph graph(function, trusting);
    Value a = function.getArgument(0);
    IndexPoly n = graph.sizeOf(a, 0), m = graph.sizeOf(a, 2),
              k = graph.polyOf(function.getArgument(1));
    SmallVector<Value> tensors;
    for (Operation &op : function.getBody().front())
      if (op.getNumResults() == 1 &&
          isa<RankedTensorType>(op.getResult(0).getType()))
        tensors.push_back(op.getResult(0));
    EXPECT_EQ(graph.sizeOf(tensors[0], 0), n * IndexPoly(6));
    EXPECT_EQ(graph.sizeOf(tensors[1], 0), n);
    EXPECT_EQ(graph.sizeOf(tensors[1], 2), m);
    EXPECT_EQ(graph.sizeOf(tensors[2], 1), m * IndexPoly(2));
    EXPECT_EQ(graph.sizeOf(tensors[4], 1), k);
    EXPECT_EQ(graph.sizeOf(tensors[5], 0), IndexPoly(8));
    // The cast states that the slice, and so the argument, has eight rows.
    EXPECT_EQ(n == IndexPoly(8), trusting);
  }
}

} // namespace
