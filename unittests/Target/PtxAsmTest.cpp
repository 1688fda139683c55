//===- PtxAsmTest.cpp - the inline assembly of GPU kernels ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/PtxAsm.h"
#include "DiffAttn/Target/PtxConvergence.h"

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/InstrTypes.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/SourceMgr.h"
#include "gtest/gtest.h"

using namespace mlir::diffattn;

namespace {

// The texts of test/Target/hopper-instructions.mlir, which
// assembles them.
TEST(PtxAsmTest, TextsAreThoseThatAreAssembled) {
  AsmText both = getPtxAsm(Wgmma{8, true, false, false});
  EXPECT_EQ(both.text, "{ .reg .pred p; setp.ne.b32 p, $10, 0; "
                       "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                       "{$0, $1, $2, $3}, $8, $9, p, 1, 1, 0, 0; }");
  EXPECT_EQ(both.constraints, "=f,=f,=f,=f,0,1,2,3,l,l,r,~{memory}");
  AsmText registers = getPtxAsm(Wgmma{8, false, true, true});
  EXPECT_EQ(registers.text,
            "{ .reg .pred p; setp.ne.b32 p, $13, 0; "
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{$0, $1, $2, $3}, {$8, $9, $10, $11}, $12, p, 1, 1, 1; }");
  EXPECT_EQ(registers.constraints, "=f,=f,=f,=f,0,1,2,3,r,r,r,r,l,r,~{memory}");
  AsmText wait = getPtxAsm(WgmmaWait{1, 2, 1});
  EXPECT_EQ(wait.text, "wgmma.wait_group.sync.aligned 1;");
  EXPECT_EQ(wait.constraints, "=f,=f,=r,0,1,2,~{memory}");
  EXPECT_EQ(getPtxAsm(WgmmaWait{0, 0, 0}).constraints, "~{memory}");
  AsmText tie = getPtxAsm(RegisterTie{1, 1});
  EXPECT_EQ(tie.text, "// registers end here");
  EXPECT_EQ(tie.constraints, "=f,=r,0,1,~{memory}");
}

TEST(PtxAsmTest, EveryShapeIsReadBack) {
  for (unsigned n = 8; n <= 256; n += 8)
    for (unsigned bits = 0; bits < 8; ++bits) {
      Wgmma wgmma{n, bool(bits & 1), bool(bits & 2), bool(bits & 4)};
      AsmText text = getPtxAsm(wgmma);
      auto read = parsePtxAsm(text.text, text.constraints);
      ASSERT_TRUE(read && read->wgmma) << text.text;
      EXPECT_EQ(read->wgmma->n, n);
      EXPECT_EQ(read->wgmma->bfloat, wgmma.bfloat);
      EXPECT_EQ(read->wgmma->aInRegisters, wgmma.aInRegisters);
      EXPECT_EQ(read->wgmma->transposeB, wgmma.transposeB);
    }
  AsmText wait = getPtxAsm(WgmmaWait{3, 128, 16});
  auto read = parsePtxAsm(wait.text, wait.constraints);
  ASSERT_TRUE(read && read->wait);
  EXPECT_EQ(read->wait->pending, 3u);
  EXPECT_EQ(read->wait->floats, 128u);
  EXPECT_EQ(read->wait->integers, 16u);
  AsmText grid = getPtxAsm(GridWait{3});
  EXPECT_EQ(grid.text, "griddepcontrol.wait;");
  EXPECT_EQ(grid.constraints, "=l,=l,=l,0,1,2,~{memory}");
  read = parsePtxAsm(grid.text, grid.constraints);
  ASSERT_TRUE(read && read->gridWait);
  EXPECT_EQ(read->gridWait->pointers, 3u);
  EXPECT_FALSE(parsePtxAsm(grid.text, "~{memory}"));
  AsmText tie = getPtxAsm(RegisterTie{0, 4});
  read = parsePtxAsm(tie.text, tie.constraints);
  ASSERT_TRUE(read && read->tie);
  EXPECT_EQ(read->tie->integers, 4u);
}

TEST(PtxAsmTest, AnythingElseIsUnknown) {
  AsmText good = getPtxAsm(Wgmma{64, true, true, false});
  EXPECT_FALSE(parsePtxAsm(good.text + " ", good.constraints));
  EXPECT_FALSE(parsePtxAsm(good.text, good.constraints + ",~{dirflag}"));
  EXPECT_FALSE(parsePtxAsm(good.text, ""));
  auto changed = [&](llvm::StringRef from, llvm::StringRef to) {
    std::string text = good.text;
    text.replace(text.find(from), from.size(), to);
    return parsePtxAsm(text, good.constraints).has_value();
  };
  EXPECT_FALSE(changed("m64n64", "m64n72"));
  EXPECT_FALSE(changed("m64n64", "m64n60"));
  EXPECT_FALSE(changed("m64n64", "m64n264"));
  EXPECT_FALSE(changed("bf16.bf16", "bf16.f16"));
  EXPECT_FALSE(changed("p, 1, 1, 0", "p, 1, -1, 0"));
  EXPECT_FALSE(parsePtxAsm("wgmma.wait_group.sync.aligned 8;", "~{memory}"));
  EXPECT_FALSE(parsePtxAsm("wgmma.wait_group.sync.aligned 0;", "=f,0"));
  EXPECT_FALSE(parsePtxAsm("// registers end here", "~{memory}"));
  EXPECT_FALSE(parsePtxAsm("ex2.approx.ftz.f32 $0, $1;", "=f,f"));
}

TEST(PtxAsmTest, AllButATieIsDoneTogether) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseAssemblyString(R"(
define float @f(float %x) {
  %t = call float asm sideeffect "// registers end here", "=f,0,~{memory}"(float %x)
  %w = call float asm sideeffect "wgmma.wait_group.sync.aligned 0;", "=f,0,~{memory}"(float %t)
  %u = call float asm sideeffect "mov.f32 $0, $1;", "=f,f"(float %w)
  ret float %u
})",
                                          diagnostic, context);
  ASSERT_TRUE(module) << diagnostic.getMessage().str();
  EXPECT_EQ(markWarpCollectives(*module), 2u);
  llvm::BasicBlock &block = module->getFunction("f")->getEntryBlock();
  EXPECT_FALSE(isWarpCollective(llvm::cast<llvm::CallBase>(*block.begin())));
}

} // namespace
