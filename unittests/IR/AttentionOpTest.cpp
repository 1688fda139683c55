//===- AttentionOpTest.cpp - result types and the builder -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Verifier.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
constexpr int64_t kDynamic = ShapedType::kDynamic;

class AttentionOpTest : public ::testing::Test {
protected:
  AttentionOpTest() : builder(&context) {
    context.loadDialect<DiffAttnDialect, arith::ArithDialect, func::FuncDialect,
                        tensor::TensorDialect>();
  }
  RankedTensorType tensor(ArrayRef<int64_t> shape, Type element) {
    return RankedTensorType::get(shape, element);
  }

  MLIRContext context;
  OpBuilder builder;
};

/// Every pair of widths in use, in every type, with static and dynamic sizes
/// and both layouts: the verifier accepts the inferred type as that of init.
TEST_F(AttentionOpTest, InferredTypeSatisfiesTheVerifier) {
  const std::pair<int64_t, int64_t> widths[] = {
      {32, 64}, {48, 96},   {64, 128},  {96, 192},  {128, 256},
      {64, 64}, {128, 128}, {192, 128}, {2, 4},     {4, 2},
      {1, 1},   {8, 16},    {16, 8},    {256, 256}, {kDynamic, kDynamic}};
  const Type types[] = {builder.getF32Type(), builder.getF16Type(),
                        builder.getBF16Type()};
  Location loc = builder.getUnknownLoc();
  for (auto [d, dv] : widths)
    for (Type type : types)
      for (int64_t batch : {int64_t(2), kDynamic})
        for (int64_t length : {int64_t(7), kDynamic})
          for (Layout layout : {Layout::BHTD, Layout::BTHD}) {
            auto shape = [&](int64_t heads, int64_t t, int64_t width) {
              return layout == Layout::BHTD
                         ? SmallVector<int64_t>{batch, heads, t, width}
                         : SmallVector<int64_t>{batch, t, heads, width};
            };
            auto q = tensor(shape(4, length, d), type);
            auto k = tensor(shape(2, 9, d), type);
            auto v = tensor(shape(2, 9, dv), type);
            auto lambda = tensor({}, builder.getF32Type());
            RankedTensorType result =
                AttentionOp::inferResultType(q, v, layout, layout);
            EXPECT_EQ(result, tensor(shape(4, length, dv), type));
            auto other = layout == Layout::BHTD ? Layout::BTHD : Layout::BHTD;
            RankedTensorType turned =
                AttentionOp::inferResultType(q, v, layout, other);
            EXPECT_EQ(turned.getDimSize(1), result.getDimSize(2));
            EXPECT_EQ(turned.getDimSize(2), result.getDimSize(1));

            OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
            builder.setInsertionPointToEnd(module->getBody());
            auto func = func::FuncOp::create(
                builder, loc, "f",
                builder.getFunctionType({q, k, v, lambda, result}, {}));
            Block *body = func.addEntryBlock();
            builder.setInsertionPointToEnd(body);
            auto arg = [&](unsigned i) { return body->getArgument(i); };
            auto op = AttentionOp::create(builder, loc, arg(0), arg(1), arg(0),
                                          arg(1), arg(2), arg(3), arg(4),
                                          0.125f, /*isCausal=*/true);
            for (StringRef name :
                 {"q_layout", "k_layout", "v_layout", "o_layout"})
              op->setAttr(name, LayoutAttr::get(&context, layout));
            func::ReturnOp::create(builder, loc);
            EXPECT_TRUE(succeeded(verify(*module)));
            EXPECT_EQ(op.getResult().getType(), result);
          }
}

TEST_F(AttentionOpTest, BuilderOnMemRefsHasNoResult) {
  Location loc = builder.getUnknownLoc();
  auto q = MemRefType::get({1, 2, 3, 4}, builder.getF32Type());
  auto lambda = MemRefType::get({}, builder.getF32Type());
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  builder.setInsertionPointToEnd(module->getBody());
  auto func = func::FuncOp::create(builder, loc, "f",
                                   builder.getFunctionType({q, lambda}, {}));
  Block *body = func.addEntryBlock();
  builder.setInsertionPointToEnd(body);
  Value x = body->getArgument(0);
  auto op = AttentionOp::create(builder, loc, x, x, x, x, x,
                                body->getArgument(1), x, 1.0f);
  func::ReturnOp::create(builder, loc);
  EXPECT_TRUE(succeeded(verify(*module)));
  EXPECT_EQ(op->getNumResults(), 0u);
  EXPECT_FALSE(op.getIsCausal());
  EXPECT_EQ(op.getNormEps().convertToFloat(), 1e-5f);
  EXPECT_EQ(op.getOutScale().convertToFloat(), 1.0f);

  SmallVector<SideEffects::EffectInstance<MemoryEffects::Effect>> effects;
  op.getEffects(effects);
  int64_t writes = llvm::count_if(effects, [](auto &effect) {
    return isa<MemoryEffects::Write>(effect.getEffect());
  });
  EXPECT_EQ(writes, 1);
  EXPECT_EQ(effects.size(), 7u);
}
} // namespace
