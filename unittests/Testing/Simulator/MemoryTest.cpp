//===- MemoryTest.cpp - bounds, alignment, contents -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

#include "llvm/Support/Memory.h"

#include <numeric>

using namespace mlir::diffattn::sim;

namespace {

/// Every thread copies one i32 from %in to %out at index tid + %shift.
const char *kCopy = R"(
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out, i32 %shift) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %size = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %base = mul i32 %block, %size
  %index = add i32 %base, %tid
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %index
  %value = load i32, ptr addrspace(1) %from, align 4
  %shifted = add i32 %index, %shift
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %shifted
  store i32 %value, ptr addrspace(1) %to, align 4
  ret void
}
)";

class MemoryTest : public SimulatorTest {};

/// A kernel that may start early touches nothing before its wait, whichever way
/// that is written; one without a wait starts when all is done.
TEST_F(MemoryTest, AccessesBehindTheWaitForEarlierKernels) {
  SimChip chip;
  chip.name = "sm_90";
  chip.capability = 90;
  const std::string text = kCopy, pointer = "ptr addrspace(1)",
                    load = "  %value = load";
  const std::string assembly = "  %there = call " + pointer +
                               " asm sideeffect \"griddepcontrol.wait;\", "
                               "\"=l,0,~{memory}\"(" +
                               pointer + " %out)\n";
  const std::string intrinsic =
      "  call void @llvm.nvvm.griddepcontrol.wait()\n";
  auto run = [&](const std::string &wait, const std::string &before) {
    std::string changed = text;
    changed.insert(changed.find(before), wait);
    EXPECT_EQ(compile(changed, chip), "");
    std::vector<int> in(64), out(64);
    return launch(
               LaunchShape{{1, 1, 1}, {64, 1, 1}, 0},
               {buffer(in, "in"), buffer(out, "out"), KernelArgument::i32(0)})
        .str();
  };
  const std::string next =
      "  call void @llvm.nvvm.griddepcontrol.launch.dependents()\n";
  // The start of the next kernel implies nothing about the ones before.
  for (const std::string &wait :
       {assembly, intrinsic, next + assembly, assembly + next}) {
    EXPECT_EQ(run(wait, load), "");
    std::string report = run(wait, "  %shifted");
    EXPECT_NE(report.find("before the wait for earlier kernels: "),
              std::string::npos)
        << report;
    EXPECT_NE(report.find("load 4 bytes"), std::string::npos) << report;
  }
}

TEST_F(MemoryTest, CopiesAndCounts) {
  ASSERT_EQ(compile(kCopy), "");
  std::vector<int> in(128), out(128, -1);
  for (int i = 0; i < 128; ++i)
    in[i] = i * 3;
  LaunchReport report =
      launch(LaunchShape{{2, 1, 1}, {64, 1, 1}, 0},
             {buffer(in, "in"), buffer(out, "out"), KernelArgument::i32(0)});
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(in, out);
  EXPECT_EQ(report.stats.blocks, 2u);
  EXPECT_EQ(report.stats.findBuffer("in")->loadedBytes, 512u);
  EXPECT_EQ(report.stats.findBuffer("out")->storedBytes, 512u);
  // Four warps, each with 128 bytes in four sectors, or in five where the
  // buffer does not start at one.
  EXPECT_GE(report.stats.findBuffer("in")->sectors, 16u);
  EXPECT_LE(report.stats.findBuffer("in")->sectors, 20u);
  ASSERT_EQ(report.stats.sites.size(), 2u);
  EXPECT_EQ(report.stats.sites[0].where.op, "load 4 bytes");
  EXPECT_EQ(report.stats.sites[0].warpAccesses, 4u);
}

TEST_F(MemoryTest, WorkersRunTheSameBlocks) {
  ASSERT_EQ(compile(kCopy), "");
  std::vector<int> in(64 * 50), out(64 * 50, -1);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = i * 7;
  SimOptions options;
  options.workers = 2;
  LaunchReport report = launch(
      LaunchShape{{50, 1, 1}, {64, 1, 1}, 0},
      {buffer(in, "in"), buffer(out, "out"), KernelArgument::i32(0)}, options);
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(in, out);
  EXPECT_EQ(report.stats.blocks, 50u);
}

TEST_F(MemoryTest, StoreBeyondTheEnd) {
  ASSERT_EQ(compile(kCopy), "");
  // The next buffer begins where this one ends: nothing may reach it.
  std::vector<int> in(64), both(65, -1);
  KernelArgument out = KernelArgument::pointer(
      simulator->registerBuffer(both.data(), 256, "out"));
  simulator->registerBuffer(both.data() + 64, 4, "next");
  LaunchReport report =
      launch(64, {buffer(in, "in"), out, KernelArgument::i32(1)});
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].kind, FaultKind::OutOfBounds);
  EXPECT_EQ(report.faults[0].message,
            "4 bytes at 256 of buffer out, which has 256 bytes");
  EXPECT_EQ(report.faults[0].thread, 63u);
  EXPECT_EQ(report.faults[0].where.op, "store 4 bytes");
  EXPECT_EQ(both[64], -1);
}

TEST_F(MemoryTest, LoadBeforeTheBeginning) {
  ASSERT_EQ(
      compile(replaced(kCopy, "i32 %index\n  %value", "i32 -1\n  %value")), "");
  std::vector<int> in(64), out(64);
  LaunchReport report = launch(
      64, {buffer(in, "in"), buffer(out, "out"), KernelArgument::i32(0)});
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].message,
            "4 bytes at -4 of buffer in, which has 256 bytes");
  EXPECT_EQ(report.faults[0].count, 64u);
}

TEST_F(MemoryTest, BlocksOfMemoryAreCheckedAsAWhole) {
  // Each thread copies four words, and clears the last one of the copy.
  const std::string text = R"(
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out, i32 %shift, i64 %bytes) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %from = getelementptr [4 x i32], ptr addrspace(1) %in, i32 %tid
  %shifted = add i32 %tid, %shift
  %to = getelementptr [4 x i32], ptr addrspace(1) %out, i32 %shifted
  call void @llvm.memcpy.p1.p1.i64(ptr addrspace(1) align 4 %to, ptr addrspace(1) align 4 %from, i64 16, i1 false)
  %last = getelementptr i32, ptr addrspace(1) %to, i32 3
  call void @llvm.memset.p1.i64(ptr addrspace(1) align 4 %last, i8 0, i64 4, i1 false)
  ret void
}
)";
  ASSERT_EQ(compile(text), "");
  std::vector<int> in(128), out(128, -1);
  std::iota(in.begin(), in.end(), 1);
  auto run = [&](int shift) {
    return launch(32, {buffer(in, "in"), buffer(out, "out"),
                       KernelArgument::i32(shift), KernelArgument::i64(16)});
  };
  EXPECT_EQ(run(0).str(), "");
  for (int i = 0; i < 128; ++i)
    EXPECT_EQ(out[i], i % 4 == 3 ? 0 : in[i]) << i;
  LaunchReport report = run(1);
  ASSERT_EQ(report.faults.size(), 2u) << report.str();
  EXPECT_EQ(report.faults[0].message,
            "16 bytes at 512 of buffer out, which has 512 bytes");
  EXPECT_EQ(report.faults[0].where.op, "memcpy to");
  EXPECT_EQ(report.faults[1].message,
            "4 bytes at 524 of buffer out, which has 512 bytes");
  EXPECT_EQ(report.faults[1].where.op, "memset");

  EXPECT_NE(compile(replaced(text, "i64 16, i1", "i64 %bytes, i1"))
                .find("a memory transfer of a length that is no constant"),
            std::string::npos);
  EXPECT_NE(compile(replaced(text, "i64 16, i1", "i64 32769, i1"))
                .find("a memory transfer of more than 32 KiB"),
            std::string::npos);
}

/// Kernels of which x86 code would end the process.
TEST_F(MemoryTest, UndefinedCodeIsAFault) {
  auto run = [&](const std::string &body, int n) {
    EXPECT_EQ(compile("define ptx_kernel void @k(ptr addrspace(1) %out, i32 "
                      "%n) {\n" +
                      body + "}\n"),
              "");
    std::vector<int> out(1, -1);
    LaunchReport report =
        launch(1, {buffer(out, "out"), KernelArgument::i32(n)});
    EXPECT_EQ(report.faults.size(), report.clean() ? 0u : 1u);
    return report.clean() ? std::to_string(out[0])
                          : (stringifyFaultKind(report.faults[0].kind) + ": " +
                             report.faults[0].message + " [" +
                             report.faults[0].where.op + "]")
                                .str();
  };
  auto divide = [&](const std::string &operation, int n) {
    return run("  %q = " + operation +
                   ", %n\n  store i32 %q, ptr addrspace(1) %out\n  ret void\n",
               n);
  };
  const std::string undivided =
      "undefined: an integer is divided by 0, or the quotient does not fit [";
  EXPECT_EQ(divide("udiv i32 7", 2), "3");
  EXPECT_EQ(divide("sdiv i32 -7", 2), "-3");
  EXPECT_EQ(divide("srem i32 -2147483647", -1), "0");
  for (const char *name : {"udiv", "sdiv", "urem", "srem"})
    EXPECT_EQ(divide(name + std::string(" i32 7"), 0), undivided + name + "]");
  EXPECT_EQ(divide("sdiv i32 -2147483648", -1), undivided + "sdiv]");
  EXPECT_EQ(divide("srem i32 -2147483648", -1), undivided + "srem]");
  EXPECT_EQ(divide("udiv i32 -2147483648", -1), "0");

  const std::string branch =
      "  %ends = icmp eq i32 %n, 0\n  br i1 %ends, label %no, label %yes\n"
      "no:\n  unreachable\nyes:\n  store i32 5, ptr addrspace(1) %out\n"
      "  ret void\n";
  EXPECT_EQ(run(branch, 1), "5");
  EXPECT_EQ(run(branch, 0),
            "undefined: the kernel reached code that it declares unreachable "
            "[unreachable]");

  const std::string variable =
      "  %a = alloca [4 x i32]\n  %p = getelementptr i32, ptr %a, i32 %n\n"
      "  store i32 9, ptr %p\n  %v = load i32, ptr %p\n"
      "  store i32 %v, ptr addrspace(1) %out\n  ret void\n";
  EXPECT_EQ(run(variable, 3), "9");
  EXPECT_EQ(run(variable, 4), "out of bounds: 4 bytes at 16 of a variable of "
                              "the thread [store 4 bytes]");
  EXPECT_EQ(run(variable, -100000),
            "out of bounds: 4 bytes at -400000 of a variable of the thread "
            "[store 4 bytes]");
  auto clear = [&](int bytes) {
    return run("  %a = alloca [4 x i32]\n  call void @llvm.memset.p0.i64(ptr "
               "%a, i8 0, i64 " +
                   std::to_string(bytes) +
                   ", i1 false)\n  %v = load i32, ptr %a\n"
                   "  store i32 %v, ptr addrspace(1) %out\n  ret void\n",
               0);
  };
  EXPECT_EQ(clear(16), "0");
  EXPECT_EQ(clear(17), "out of bounds: 17 bytes at 0 of a variable of the "
                       "thread [memset]");
  EXPECT_NE(compile("define ptx_kernel void @k(ptr addrspace(5) %a) {\n"
                    "  store i32 1, ptr addrspace(5) %a\n  ret void\n}\n")
                .find("an address in memory of a thread that is not in one "
                      "variable in @k"),
            std::string::npos);
}

TEST_F(MemoryTest, StacksHaveAnEnd) {
  const std::string start = "define ptx_kernel void @k(ptr addrspace(1) %out, "
                            "i32 %n) {\n";
  auto refuse = [&](const std::string &text) {
    std::string message = compile(text);
    EXPECT_NE(message, "") << text;
    return message;
  };
  EXPECT_NE(refuse("define void @f(i32 %n) {\n  call void @g(i32 %n)\n  ret "
                   "void\n}\ndefine void @g(i32 %n) {\n  call void @f(i32 "
                   "%n)\n  ret void\n}\n" +
                   start + "  call void @f(i32 %n)\n  ret void\n}\n")
                .find("expected functions that do not call themselves"),
            std::string::npos);
  EXPECT_NE(refuse(start + "  %a = alloca i32, i32 %n\n  ret void\n}\n")
                .find("a variable of a size that is computed in @k"),
            std::string::npos);
  for (const char *type : {"[300000 x i32]", "[4611686018427387904 x i32]",
                           "{i8, [4294967296 x [4294967296 x i8]]}"})
    EXPECT_NE(refuse(start + "  %a = alloca " + type + "\n  ret void\n}\n")
                  .find("a variable of more than 1 MiB in @k"),
              std::string::npos);
  // A thread has 256 KiB by default, of which calls of the runtime take some.
  const std::string callee =
      "define void @f() {\n  %a = alloca [102400 x i8]\n  ret void\n}\n";
  for (bool isDeep : {false, true}) {
    ASSERT_EQ(compile(callee + start +
                      (isDeep ? "  %b = alloca [153600 x i8]\n" : "") +
                      "  call void @f()\n  ret void\n}\n"),
              "");
    std::vector<int> out(1);
    auto report = simulator->launch(
        "k", LaunchShape{{1, 1, 1}, {32, 1, 1}, 0},
        {buffer(out, "out"), KernelArgument::i32(0)}, SimOptions());
    EXPECT_EQ(static_cast<bool>(report), !isDeep);
    if (!report)
      EXPECT_NE(llvm::toString(report.takeError())
                    .find("bytes of variables in a thread, but kernel @k has"),
                std::string::npos);
  }
}

TEST_F(MemoryTest, HostPointersAreNoAddresses) {
  ASSERT_EQ(compile(kCopy), "");
  std::vector<int> in(64), out(64);
  LaunchReport report = launch(
      64, {KernelArgument::pointer(reinterpret_cast<uint64_t>(in.data())),
           buffer(out, "out"), KernelArgument::i32(0)});
  ASSERT_TRUE(report.has(FaultKind::OutOfBounds));
  EXPECT_NE(report.str().find("lies in no buffer"), std::string::npos);
}

TEST_F(MemoryTest, ReadOnlyBuffer) {
  ASSERT_EQ(compile(kCopy), "");
  std::vector<int> in(64), out(64);
  LaunchReport report =
      launch(64, {buffer(in, "in"), buffer(out, "out", {/*writable=*/false}),
                  KernelArgument::i32(0)});
  EXPECT_NE(report.str().find("buffer out is only to be read"),
            std::string::npos);
}

TEST_F(MemoryTest, ReadOfWhatNothingWrote) {
  ASSERT_EQ(compile(kCopy), "");
  std::vector<int> in(64), out(64);
  KernelArgument from =
      buffer(in, "in", {/*writable=*/true, /*initialized=*/false});
  KernelArgument to = buffer(out, "out");
  LaunchReport report = launch(64, {from, to, KernelArgument::i32(0)});
  ASSERT_TRUE(report.has(FaultKind::Uninitialized));
  // Memory keeps the writes of an earlier launch.
  EXPECT_EQ(launch(64, {to, from, KernelArgument::i32(0)}).str(), "");
  EXPECT_EQ(launch(64, {from, to, KernelArgument::i32(0)}).str(), "");
}

TEST_F(MemoryTest, MisalignedGlobal) {
  ASSERT_EQ(compile(replaced(kCopy, "load i32, ptr addrspace(1) %from, align 4",
                             "load i32, ptr addrspace(1) %from, align 16")),
            "");
  std::vector<int> in(68), out(64);
  size_t skip = 0;
  while (reinterpret_cast<uint64_t>(in.data() + skip) % 16)
    ++skip;
  KernelArgument from = KernelArgument::pointer(
      simulator->registerBuffer(in.data() + skip, 256, "in"));
  LaunchReport report =
      launch(64, {from, buffer(out, "out"), KernelArgument::i32(0)});
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].kind, FaultKind::Misaligned);
  EXPECT_EQ(report.faults[0].count, 48u);
}

TEST_F(MemoryTest, OffsetsBeyondFourGiB) {
  // A pointer 5 GiB into a buffer of 6 GiB that is mapped but not filled.
  ASSERT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %p, i64 %offset) {
  %at = getelementptr i8, ptr addrspace(1) %p, i64 %offset
  %old = load i32, ptr addrspace(1) %at, align 4
  %new = add i32 %old, 7
  store i32 %new, ptr addrspace(1) %at, align 4
  ret void
}
)"),
            "");
  const uint64_t bytes = 6ull << 30, offset = 5ull << 30;
  std::error_code error;
  llvm::sys::MemoryBlock block = llvm::sys::Memory::allocateMappedMemory(
      bytes, nullptr, llvm::sys::Memory::MF_READ | llvm::sys::Memory::MF_WRITE,
      error);
  ASSERT_FALSE(error);
  char *data = static_cast<char *>(block.base());
  KernelArgument p =
      KernelArgument::pointer(simulator->registerBuffer(data, bytes, "large"));
  EXPECT_EQ(launch(1, {p, KernelArgument::i64(offset)}).str(), "");
  EXPECT_EQ(data[offset], 7);
  EXPECT_TRUE(
      launch(1, {p, KernelArgument::i64(bytes)}).has(FaultKind::OutOfBounds));
  llvm::sys::Memory::releaseMappedMemory(block);
}

/// Thread t stores t at word %scale·t of shared memory; after a barrier it
/// loads the word of thread t ^ 1.
const char *kShared = R"(
@tile = internal addrspace(3) global [64 x i32] poison, align 4
define ptx_kernel void @k(ptr addrspace(1) %out, i32 %scale) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %mine = mul i32 %tid, %scale
  %to = getelementptr i32, ptr addrspace(3) @tile, i32 %mine
  store i32 %tid, ptr addrspace(3) %to, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %other = xor i32 %tid, 1
  %theirs = mul i32 %other, %scale
  %from = getelementptr i32, ptr addrspace(3) @tile, i32 %theirs
  %value = load i32, ptr addrspace(3) %from, align 4
  %result = getelementptr i32, ptr addrspace(1) %out, i32 %tid
  store i32 %value, ptr addrspace(1) %result, align 4
  ret void
}
)";

TEST_F(MemoryTest, SharedIsExchanged) {
  ASSERT_EQ(compile(kShared), "");
  std::vector<int> out(64);
  LaunchReport report =
      launch(64, {buffer(out, "out"), KernelArgument::i32(1)});
  EXPECT_EQ(report.str(), "");
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(out[i], i ^ 1);
  EXPECT_EQ(report.stats.bankConflicts, 0u);
  EXPECT_EQ(report.stats.sharedWavefronts, 4u);
}

TEST_F(MemoryTest, BankConflictsAreCounted) {
  ASSERT_EQ(compile(kShared), "");
  std::vector<int> out(32);
  // A stride of two words: two lanes a bank, for the store and for the load.
  LaunchReport report =
      launch(32, {buffer(out, "out"), KernelArgument::i32(2)});
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(report.stats.bankConflicts, 2u);
  EXPECT_EQ(report.stats.sites[0].bankConflicts, 1u);
}

TEST_F(MemoryTest, SharedBeyondTheArray) {
  ASSERT_EQ(compile(kShared), "");
  std::vector<int> out(64);
  LaunchReport report =
      launch(64, {buffer(out, "out"), KernelArgument::i32(2)});
  ASSERT_TRUE(report.has(FaultKind::OutOfBounds));
  EXPECT_EQ(report.faults[0].thread, 32u);
}

TEST_F(MemoryTest, SharedMisaligned) {
  ASSERT_EQ(
      compile(replaced(kShared, "getelementptr i32, ptr addrspace(3) @tile",
                       "getelementptr i8, ptr addrspace(3) @tile")),
      "");
  std::vector<int> out(64);
  LaunchReport report =
      launch(64, {buffer(out, "out"), KernelArgument::i32(3)});
  EXPECT_TRUE(report.has(FaultKind::Misaligned));
}

TEST_F(MemoryTest, SharedArraysAreNotMoreAlignedThanDeclared) {
  // The array has alignment 4; a vector of 16 bytes at its beginning must not
  // happen to be aligned.
  ASSERT_EQ(
      compile(replaced(kShared, "load i32, ptr addrspace(3) %from, align 4",
                       "load i32, ptr addrspace(3) @tile, align 16")),
      "");
  std::vector<int> out(64);
  EXPECT_TRUE(launch(64, {buffer(out, "out"), KernelArgument::i32(1)})
                  .has(FaultKind::Misaligned));
}

TEST_F(MemoryTest, SharedNeverWritten) {
  ASSERT_EQ(compile(replaced(
                kShared, "store i32 %tid, ptr addrspace(3) %to, align 4", "")),
            "");
  std::vector<int> out(64);
  LaunchReport report =
      launch(64, {buffer(out, "out"), KernelArgument::i32(1)});
  ASSERT_TRUE(report.has(FaultKind::Uninitialized));
  EXPECT_NE(report.faults[0].message.find("nothing wrote byte"),
            std::string::npos);
  SimOptions options;
  options.checkUninitialized = false;
  EXPECT_EQ(
      launch(64, {buffer(out, "out"), KernelArgument::i32(1)}, options).str(),
      "");
}

TEST_F(MemoryTest, GlobalPointerIntoShared) {
  ASSERT_EQ(compile(kShared), "");
  LaunchReport report =
      launch(64, {KernelArgument::pointer(0x1000040), KernelArgument::i32(1)});
  EXPECT_NE(report.str().find("through a global pointer"), std::string::npos);
}

TEST_F(MemoryTest, DynamicSharedHasTheSizeOfTheLaunch) {
  ASSERT_EQ(compile(R"(
@dynamic = external addrspace(3) global [0 x i8], align 128
define ptx_kernel void @k(i32 %offset) {
  %at = getelementptr i8, ptr addrspace(3) @dynamic, i32 %offset
  store <4 x float> zeroinitializer, ptr addrspace(3) %at, align 16
  ret void
}
)"),
            "");
  auto run = [&](int offset) {
    return launch(LaunchShape{{1, 1, 1}, {1, 1, 1}, 1024},
                  {KernelArgument::i32(offset)});
  };
  EXPECT_EQ(run(1008).str(), "");
  EXPECT_TRUE(run(1024).has(FaultKind::OutOfBounds));
  EXPECT_TRUE(run(-16).has(FaultKind::OutOfBounds));
  EXPECT_TRUE(run(8).has(FaultKind::Misaligned));
}

TEST_F(MemoryTest, ConstantTablesAndLocals) {
  ASSERT_EQ(compile(R"(
@table = private unnamed_addr addrspace(4) constant [4 x i32] [i32 5, i32 6, i32 7, i32 8]
define ptx_kernel void @k(ptr addrspace(1) %out, i32 %bias) {
  %local = alloca [4 x i32], align 4
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %index = add i32 %tid, %bias
  %from = getelementptr [4 x i32], ptr addrspace(4) @table, i32 0, i32 %index
  %value = load i32, ptr addrspace(4) %from, align 4
  %slot = getelementptr i32, ptr %local, i32 %tid
  store i32 %value, ptr %slot, align 4
  %again = load i32, ptr %slot, align 4
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %tid
  store i32 %again, ptr addrspace(1) %to, align 4
  ret void
}
)"),
            "");
  std::vector<int> out(4);
  KernelArgument to = buffer(out, "out");
  EXPECT_EQ(launch(4, {to, KernelArgument::i32(0)}).str(), "");
  EXPECT_EQ(out, (std::vector<int>{5, 6, 7, 8}));
  EXPECT_TRUE(
      launch(4, {to, KernelArgument::i32(1)}).has(FaultKind::OutOfBounds));
}

TEST_F(MemoryTest, NamesSourceLines) {
  ASSERT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %p) !dbg !3 {
  store i32 0, ptr addrspace(1) %p, align 4, !dbg !5
  ret void, !dbg !5
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2}
!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, isOptimized: false, runtimeVersion: 0, emissionKind: FullDebug)
!1 = !DIFile(filename: "kernel.mlir", directory: "")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = distinct !DISubprogram(name: "k", file: !1, line: 1, type: !4, unit: !0)
!4 = !DISubroutineType(types: !{})
!5 = !DILocation(line: 12, column: 5, scope: !3)
)"),
            "");
  LaunchReport report = launch(1, {KernelArgument::pointer(64)});
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].where.file, "kernel.mlir");
  EXPECT_EQ(report.faults[0].where.line, 12u);
  EXPECT_EQ(report.faults[0].where.column, 5u);
  EXPECT_NE(report.str().find("store 4 bytes at kernel.mlir:12:5 in @k"),
            std::string::npos);
}

} // namespace
