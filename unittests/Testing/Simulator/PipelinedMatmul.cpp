//===- PipelinedMatmul.cpp - a kernel to run and to break -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PipelinedMatmul.h"
#include "Numerics.h"

#include <cmath>

using namespace mlir::diffattn::sim;

/// Copies tile %kt of A and B, `rows` rows of 128 bytes each, by 64 threads
/// into stage %kt & 1.
static std::string issue() {
  std::string text = R"(
define internal void @issue(ptr addrspace(1) %a, ptr addrspace(1) %b, i32 %kt) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %chunk = and i32 %tid, 7
  %first = lshr i32 %tid, 3
  %swizzled = xor i32 %chunk, %first
  %odd = and i32 %kt, 1
  %stage = mul i32 %odd, STAGE
  %column = shl i32 %chunk, 4
  %tile = shl i32 %kt, 7
  %source0 = add i32 %column, %tile
  %source1 = mul i32 %first, PITCH
  %source = add i32 %source0, %source1
  %target0 = shl i32 %swizzled, 4
  %target1 = shl i32 %first, 7
  %target2 = add i32 %target0, %target1
  %target = add i32 %target2, %stage
)";
  for (int i = 0; i < 6; ++i) {
    const bool isB = i >= 4;
    const std::string n = std::to_string(i),
                      group = std::to_string((isB ? i - 4 : i) * 8);
    text += "  %from" + n + " = add i32 %source, " +
            std::to_string(std::stoi(group) * kDepth * 2) + "\n  %to" + n +
            " = add i32 %target, " + std::to_string(i * 8 * 128) + "\n  %src" +
            n + " = getelementptr i8, ptr addrspace(1) %" + (isB ? "b" : "a") +
            ", i32 %from" + n + "\n  %dst" + n +
            " = getelementptr i8, ptr addrspace(3) @smem, i32 %to" + n +
            "\n  call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr "
            "addrspace(3) %dst" +
            n + ", ptr addrspace(1) %src" + n + ")\n";
  }
  text += "  ret void\n}\n";
  return replaced(replaced(text, "STAGE", std::to_string(kStageBytes)), "PITCH",
                  std::to_string(kDepth * 2));
}

std::string mlir::diffattn::sim::matmul() {
  std::string text =
      "@smem = external addrspace(3) global [0 x i8], align 1024\n" + issue() +
      R"(
define ptx_kernel void @k(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c, ptr addrspace(1) %sums) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
  %warp = lshr i32 %tid, 5
  %l16 = and i32 %lane, 15
  %warprow = shl i32 %warp, 4
  %arow = add i32 %warprow, %l16
  %achunk = lshr i32 %lane, 4
  %l8 = and i32 %lane, 7
  %bgroup = shl i32 %achunk, 3
  %brow = add i32 %l8, %bgroup
  %l3 = lshr i32 %lane, 3
  %bchunk = and i32 %l3, 1
  %abase = shl i32 %arow, 7
  %bbase0 = shl i32 %brow, 7
  %bbase = add i32 %bbase0, 4096
  call void @issue(ptr addrspace(1) %a, ptr addrspace(1) %b, i32 0)
  call void @llvm.nvvm.cp.async.commit.group()
  br label %loop
loop:
  %kt = phi i32 [0, %entry], [%next, %compute]
  %p0 = phi float [0.0, %entry], [%d3_0, %compute]
  %p1 = phi float [0.0, %entry], [%d3_1, %compute]
  %p2 = phi float [0.0, %entry], [%d3_2, %compute]
  %p3 = phi float [0.0, %entry], [%d3_3, %compute]
  %p4 = phi float [0.0, %entry], [%d3_4, %compute]
  %p5 = phi float [0.0, %entry], [%d3_5, %compute]
  %p6 = phi float [0.0, %entry], [%d3_6, %compute]
  %p7 = phi float [0.0, %entry], [%d3_7, %compute]
  %next = add i32 %kt, 1
  call void @llvm.nvvm.cp.async.wait.group(i32 0) ; WAIT
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) ; BARRIER
  %more = icmp ult i32 %next, TILES
  br i1 %more, label %fetch, label %compute
fetch:
  call void @issue(ptr addrspace(1) %a, ptr addrspace(1) %b, i32 %next)
  call void @llvm.nvvm.cp.async.commit.group()
  br label %compute
compute:
  %odd = and i32 %kt, 1
  %stage = mul i32 %odd, STAGE
  %astage = add i32 %abase, %stage
  %bstage = add i32 %bbase, %stage
)";
  for (int kk = 0; kk < 4; ++kk) {
    const std::string n = std::to_string(kk), column = std::to_string(2 * kk);
    for (std::string m : {"a", "b"})
      text +=
          "  %" + m + "c" + n + " = add i32 %" + m + "chunk, " + column +
          "\n  %" + m + "x" + n + " = xor i32 %" + m + "c" + n +
          ", %l8 ; SWIZZLE\n  %" + m + "o" + n + " = shl i32 %" + m + "x" + n +
          ", 4\n  %" + m + "t" + n + " = add i32 %" + m + "stage, %" + m + "o" +
          n + "\n  %" + m + "p" + n +
          " = getelementptr i8, ptr addrspace(3) @smem, i32 %" + m + "t" + n +
          "\n  %" + m + n +
          " = call {i32, i32, i32, i32} "
          "@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3) %" +
          m + "p" + n + ")\n";
    for (int i = 0; i < 8; ++i)
      text += "  %" + std::string(i < 4 ? "a" : "b") + n + "_" +
              std::to_string(i % 4) + " = extractvalue {i32, i32, i32, i32} %" +
              (i < 4 ? "a" : "b") + n + ", " + std::to_string(i % 4) + "\n";
    for (int t = 0; t < 2; ++t) {
      std::string accumulators;
      for (int i = 0; i < 4; ++i)
        accumulators +=
            ", float %" +
            (kk ? "d" + std::to_string(kk - 1) + "_" : std::string("p")) +
            std::to_string(4 * t + i);
      text += "  %m" + n + std::to_string(t) +
              " = call {float, float, float, float} "
              "@llvm.nvvm.mma.m16n8k16.row.col.bf16(i32 %a" +
              n + "_0, i32 %a" + n + "_1, i32 %a" + n + "_2, i32 %a" + n +
              "_3, i32 %b" + n + "_" + std::to_string(2 * t) + ", i32 %b" + n +
              "_" + std::to_string(2 * t + 1) + accumulators + ")\n";
      for (int i = 0; i < 4; ++i)
        text += "  %d" + n + "_" + std::to_string(4 * t + i) +
                " = extractvalue {float, float, float, float} %m" + n +
                std::to_string(t) + ", " + std::to_string(i) + "\n";
    }
  }
  text += "  br i1 %more, label %loop, label %end\nend:\n  %g = lshr i32 "
          "%lane, 2\n  %t = and i32 %lane, 3\n  %t2 = shl i32 %t, 1\n";
  for (int half = 0; half < 2; ++half) {
    const std::string h = std::to_string(half);
    text += "  %r" + h + "a = add i32 %g, " + std::to_string(8 * half) +
            "\n  %r" + h + " = add i32 %r" + h + "a, %warprow\n";
    std::string sum;
    for (int tile = 0; tile < 2; ++tile) {
      const std::string n = h + std::to_string(tile),
                        low = "%d3_" + std::to_string(4 * tile + 2 * half),
                        high = "%d3_" + std::to_string(4 * tile + 2 * half + 1);
      text += "  %v" + n + "a = insertelement <2 x float> poison, float " +
              low + ", i32 0\n  %v" + n + " = insertelement <2 x float> %v" +
              n + "a, float " + high + ", i32 1\n  %o" + n + "a = shl i32 %r" +
              h + ", 4\n  %o" + n + "b = add i32 %o" + n + "a, " +
              std::to_string(8 * tile) + "\n  %o" + n + "c = add i32 %o" + n +
              "b, %t2\n  %q" + n +
              " = getelementptr float, ptr addrspace(1) %c, i32 %o" + n +
              "c\n  store <2 x float> %v" + n + ", ptr addrspace(1) %q" + n +
              ", align 8\n  %s" + n + " = fadd float " + low + ", " + high +
              "\n";
    }
    text += "  %s" + h + "x = fadd float %s" + h + "0, %s" + h + "1\n  %u" + h +
            " = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %s" + h +
            "x, i32 1, i32 31)\n  %w" + h + " = fadd float %s" + h + "x, %u" +
            h + "\n  %y" + h +
            " = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %w" + h +
            ", i32 2, i32 31)\n  %z" + h + " = fadd float %w" + h + ", %y" + h +
            "\n  %to" + h +
            " = getelementptr float, ptr addrspace(1) %sums, i32 %r" + h + "\n";
  }
  text += "  %writes = icmp eq i32 %t, 0\n  br i1 %writes, label %write, label "
          "%done\nwrite:\n  store float %z0, ptr addrspace(1) %to0, align 4\n  "
          "store "
          "float %z1, ptr addrspace(1) %to1, align 4\n  br label "
          "%done\ndone:\n  ret void\n}\n";
  return replaced(replaced(text, "STAGE", std::to_string(kStageBytes)), "TILES",
                  std::to_string(kTiles));
}

void MatmulTest::SetUp() {
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = floatToBfloat(float(int(i * 37 % 23) - 11) / 8);
  for (size_t i = 0; i < b.size(); ++i)
    b[i] = floatToBfloat(float(int(i * 53 % 19) - 9) / 4);
}

LaunchReport MatmulTest::run(const SimOptions &options) {
  c.assign(kRows * kColumns, NAN);
  sums.assign(kRows, NAN);
  KernelArgument arguments[] = {buffer(a, "A", {/*writable=*/false}),
                                buffer(b, "B", {/*writable=*/false}),
                                buffer(c, "C"), buffer(sums, "sums")};
  LaunchReport report = launch(
      LaunchShape{{1, 1, 1}, {64, 1, 1}, 2 * kStageBytes}, arguments, options);
  for (const KernelArgument &argument : arguments)
    simulator->releaseBuffer(argument.bits);
  return report;
}

bool MatmulTest::right() const {
  for (int i = 0; i < kRows; ++i) {
    float sum = 0;
    for (int j = 0; j < kColumns; ++j) {
      float dot = 0;
      for (int k = 0; k < kDepth; ++k)
        dot +=
            bfloatToFloat(a[i * kDepth + k]) * bfloatToFloat(b[j * kDepth + k]);
      sum += dot;
      if (c[i * kColumns + j] != dot)
        return false;
    }
    if (sums[i] != sum)
      return false;
  }
  return true;
}
