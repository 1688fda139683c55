//===- LoweringTest.cpp - refused instructions ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/PtxConvergence.h"
#include "Harness.h"

#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"

using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

namespace {

class LoweringTest : public SimulatorTest {
protected:
  std::string body(const std::string &text) {
    return compile(
        "define ptx_kernel void @k(ptr addrspace(1) %p, i32 %n) {\n" + text +
        "  ret void\n}\n");
  }
};

TEST_F(LoweringTest, UnknownInlineAssembly) {
  EXPECT_EQ(
      body("  call void asm sideeffect \"bra $0;\", \"r\"(i32 %n)\n"),
      "the simulator does not know the inline assembly \"bra $0;\" in @k");
}

TEST_F(LoweringTest, UnknownIntrinsic) {
  EXPECT_NE(body("  %x = call i32 @llvm.nvvm.read.ptx.sreg.clock()\n")
                .find("does not know llvm.nvvm.read.ptx.sreg.clock"),
            std::string::npos);
  // NVPTX has no instruction for it either.
  EXPECT_NE(
      body("  %x = call float @llvm.exp.f32(float 1.0)\n").find("llvm.exp.f32"),
      std::string::npos);
}

TEST_F(LoweringTest, RemaindersOfFloats) {
  // NVPTX lowers frem to code that rounds the quotient, which no CPU does.
  EXPECT_NE(body("  %x = sitofp i32 %n to float\n"
                 "  %y = frem float %x, 3.0\n")
                .find("does not know frem"),
            std::string::npos);
}

TEST_F(LoweringTest, FunctionWithoutABody) {
  EXPECT_NE(
      compile(
          "declare float @__nv_expf(float)\ndefine ptx_kernel void @k(float "
          "%x) {\n  %y = call float @__nv_expf(float %x)\n  ret void\n}\n")
          .find("function @__nv_expf, which has no body"),
      std::string::npos);
}

TEST_F(LoweringTest, InstructionsOfNewerChips) {
  std::string text = R"(
define ptx_kernel void @k(ptr addrspace(3) %p) {
  call void @llvm.nvvm.stmatrix.sync.aligned.m8n8.x1.b16.p3(ptr addrspace(3) %p, i32 0)
  ret void
}
)";
  EXPECT_NE(compile(text), "");
  EXPECT_EQ(compile(text, SimChip{"sm_90", 90, 227 << 10, 1024}), "");
}

TEST_F(LoweringTest, LaunchesThatADriverRefuses) {
  ASSERT_EQ(compile(R"(
@dynamic = external addrspace(3) global [0 x i8], align 16
@fixed = internal addrspace(3) global [1024 x i8] poison, align 16
define ptx_kernel void @k(i32 %n) #0 {
  store i8 0, ptr addrspace(3) @fixed, align 1
  store i8 0, ptr addrspace(3) @dynamic, align 1
  ret void
}
define ptx_kernel void @other() {
  ret void
}
attributes #0 = { "nvvm.reqntid"="64" }
)"),
            "");
  auto refused = [&](const std::string &kernel, LaunchShape shape,
                     llvm::ArrayRef<KernelArgument> arguments) {
    auto report = simulator->launch(kernel, shape, arguments);
    return report ? "" : llvm::toString(report.takeError());
  };
  const KernelArgument n = KernelArgument::i32(1);
  EXPECT_EQ(refused("k", {{1, 1, 1}, {64, 1, 1}, 16}, {n}), "");
  EXPECT_EQ(refused("missing", {}, {}),
            "expected one of the kernels k, other, but got missing");
  EXPECT_EQ(refused("k", {{1, 1, 1}, {64, 1, 1}, 16}, {}),
            "expected 1 arguments for kernel @k, but got 0");
  EXPECT_EQ(refused("k", {{1, 1, 1}, {64, 1, 1}, 16}, {KernelArgument::i64(1)}),
            "expected argument 0 of kernel @k to have 4 bytes, but got 8");
  EXPECT_EQ(
      refused("k", {{1, 1, 1}, {32, 1, 1}, 16}, {n}),
      "expected the block of kernel @k to be 64 x 1 x 1, but got 32 x 1 x 1");
  EXPECT_EQ(refused("k", {{1, 1, 1}, {64, 1, 1}, 162 << 10 | 1}, {n}),
            "expected at most 166912 bytes of shared memory on sm_80, but "
            "kernel @k takes 166913");
  EXPECT_EQ(refused("other", {{1, 1, 1}, {64, 1, 1}, 163 << 10}, {}), "");
  EXPECT_EQ(refused("other", {{1, 1, 1}, {2048, 1, 1}, 0}, {}),
            "expected a block of 1 to 1024 threads, but got 2048");
  EXPECT_NE(refused("other", {{0, 1, 1}, {32, 1, 1}, 0}, {}), "");
  EXPECT_EQ(simulator->getKernelNames(),
            (std::vector<std::string>{"k", "other"}));
}

TEST_F(LoweringTest, DeviceFunctionsAndModuleStaysUntouched) {
  const char *text = R"(
define internal i32 @twice(i32 %x) {
  %y = shl i32 %x, 1
  ret i32 %y
}
define ptx_kernel void @k(ptr addrspace(1) %out, i32 %n) {
  %y = call i32 @twice(i32 %n)
  store i32 %y, ptr addrspace(1) %out, align 4
  ret void
}
)";
  llvm::SMDiagnostic diagnostic;
  std::unique_ptr<llvm::Module> module =
      llvm::parseAssemblyString(text, diagnostic, context);
  std::string before, after;
  llvm::raw_string_ostream(before) << *module;
  auto made = Simulator::create(*module, {});
  ASSERT_TRUE(bool(made));
  simulator = std::move(*made);
  llvm::raw_string_ostream(after) << *module;
  EXPECT_EQ(before, after);
  std::vector<int> out(1);
  EXPECT_EQ(launch(1, {buffer(out, "out"), KernelArgument::i32(21)}).str(), "");
  EXPECT_EQ(out[0], 42);
}

TEST(PtxConvergence, MarksWhatLlvmDoesNot) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic diagnostic;
  std::unique_ptr<llvm::Module> module =
      llvm::parseAssemblyString(R"(
define void @f(<2 x half> %a, float %c) {
  %d = call {float, float, float, float} @llvm.nvvm.mma.m16n8k8.row.col.f32.f32(<2 x half> %a, <2 x half> %a, <2 x half> %a, float %c, float %c, float %c, float %c)
  %e = call float @llvm.nvvm.ex2.approx.ftz.f32(float %c)
  call void asm sideeffect "something.unknown;", ""()
  ret void
}
)",
                                diagnostic, context);
  ASSERT_TRUE(module) << diagnostic.getMessage().str();
  EXPECT_EQ(markWarpCollectives(*module), 2u);
  llvm::Function *function = module->getFunction("f");
  EXPECT_TRUE(function->isConvergent());
  std::vector<bool> marks;
  for (llvm::Instruction &instruction : llvm::instructions(*function))
    if (auto *call = llvm::dyn_cast<llvm::CallInst>(&instruction))
      marks.push_back(
          call->getAttributes().hasFnAttr(llvm::Attribute::Convergent));
  EXPECT_EQ(marks, (std::vector<bool>{true, false, true}));
}

} // namespace
