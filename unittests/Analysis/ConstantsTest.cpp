//===- ConstantsTest.cpp - elements of constants -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Programs.h"

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

/// The bytes of `numbers` as a resource holds them: a byte for a truth value.
template <typename Bits>
DenseResourceElementsAttr resource(RankedTensorType type,
                                   ArrayRef<uint64_t> numbers) {
  SmallVector<Bits> data;
  for (uint64_t number : numbers)
    data.push_back(static_cast<Bits>(number));
  auto bytes = ArrayRef<char>(reinterpret_cast<const char *>(data.data()),
                              data.size() * sizeof(Bits));
  return DenseResourceElementsAttr::get(
      type, "numbers",
      HeapAsmResourceBlob::allocateAndCopyWithAlign(bytes, alignof(Bits)));
}

DenseResourceElementsAttr resourceOf(RankedTensorType type,
                                     ArrayRef<uint64_t> numbers) {
  unsigned width = widthOf(type.getElementType());
  if (width <= 8)
    return resource<uint8_t>(type, numbers);
  if (width == 16)
    return resource<uint16_t>(type, numbers);
  return width == 32 ? resource<uint32_t>(type, numbers)
                     : resource<uint64_t>(type, numbers);
}

TEST(ConstantsTest, ReadsIntegersOfEveryWidth) {
  MLIRContext *context = &Program::context();
  Draw draw(1);
  for (unsigned width : {1, 4, 8, 16, 32, 64, 0}) {
    Type type = width ? Type(IntegerType::get(context, width))
                      : Type(IndexType::get(context));
    std::vector<int64_t> edges = edgesOf(type, draw);
    auto tensor =
        RankedTensorType::get(static_cast<int64_t>(edges.size()), type);
    SmallVector<APInt> bits;
    SmallVector<uint64_t> raw;
    for (int64_t edge : edges) {
      bits.push_back(
          APInt(widthOf(type), static_cast<uint64_t>(edge), true, true));
      raw.push_back(static_cast<uint64_t>(edge));
    }
    SmallVector<Attribute> constants = {DenseElementsAttr::get(tensor, bits)};
    if (width != 4)
      constants.push_back(resourceOf(tensor, raw));
    for (Attribute elements : constants) {
      for (auto [k, edge] : llvm::enumerate(edges)) {
        EXPECT_EQ(integerAt(elements, k), edge) << width;
        EXPECT_EQ(constantAt(elements, k), static_cast<double>(edge)) << width;
      }
      EXPECT_FALSE(integerAt(elements, edges.size()));
      EXPECT_FALSE(constantAt(elements, edges.size()));
    }
    EXPECT_EQ(integerAt(DenseElementsAttr::get(tensor, bits.back()), 0),
              edges.back());
  }
}

TEST(ConstantsTest, ReadsFloatsOfEveryType) {
  MLIRContext *context = &Program::context();
  Draw draw(2);
  for (FloatType type : {FloatType(Float16Type::get(context)),
                         FloatType(BFloat16Type::get(context)),
                         FloatType(Float32Type::get(context)),
                         FloatType(Float64Type::get(context))}) {
    std::vector<double> edges = realEdgesOf(type, draw);
    auto tensor =
        RankedTensorType::get(static_cast<int64_t>(edges.size()), type);
    SmallVector<APFloat> numbers;
    SmallVector<uint64_t> raw;
    for (double edge : edges) {
      APFloat number(edge);
      bool lost;
      number.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven,
                     &lost);
      numbers.push_back(number);
      raw.push_back(number.bitcastToAPInt().getZExtValue());
    }
    for (Attribute elements :
         {Attribute(DenseElementsAttr::get(tensor, numbers)),
          Attribute(resourceOf(tensor, raw))}) {
      for (auto [k, edge] : llvm::enumerate(edges)) {
        std::optional<double> got = constantAt(elements, k);
        ASSERT_TRUE(got);
        EXPECT_TRUE(same(Number::ofReal(*got), Number::ofReal(edge)))
            << edge << " " << *got;
        EXPECT_EQ(std::signbit(*got), std::signbit(edge));
        EXPECT_FALSE(integerAt(elements, k));
      }
      EXPECT_FALSE(constantAt(elements, edges.size()));
    }
  }
}

/// A truth value of a resource is any byte but 0.
TEST(ConstantsTest, TruthIsAnyByteButZero) {
  auto tensor =
      RankedTensorType::get(4, IntegerType::get(&Program::context(), 1));
  DenseResourceElementsAttr truths = resource<uint8_t>(tensor, {0, 1, 255, 2});
  for (int64_t k = 0; k < 4; ++k) {
    EXPECT_EQ(integerAt(truths, k), k != 0) << k;
    EXPECT_EQ(constantAt(truths, k), k != 0) << k;
  }
}

/// Positions that a tensor does not have are not read.
TEST(ConstantsTest, ReadsNothingOutside) {
  auto module = parseProgram(R"(
    func.func @main(%a: f32) {
      %0 = arith.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
      %1 = tensor.from_elements %a, %a, %a, %a : tensor<2x2xf32>
      %2 = tensor.empty() : tensor<2x2xf32>
      return
    })");
  ASSERT_TRUE(module);
  auto function = *module->getOps<func::FuncOp>().begin();
  ExprGraph graph(function);
  for (Operation &op : function.getBody().front().without_terminator())
    for (auto [i, k] : {std::pair(-1, 0), std::pair(0, -1), std::pair(2, 0),
                        std::pair(0, 2), std::pair(0, 3), std::pair(-3, 9)}) {
      Expr element = graph.load(op.getResult(0), {IndexPoly(i), IndexPoly(k)});
      EXPECT_EQ(element->kind, Kind::Load) << i << ", " << k;
      EXPECT_FALSE(graph.constantValue(element));
    }
}

} // namespace
