//===- HopperRingTest.cpp - a producer and two consumers ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperInjection.h"
#include "HopperText.h"

#include "DiffAttn/Target/PtxConvergence.h"

#include "llvm/Passes/PassBuilder.h"

using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

namespace {

constexpr unsigned kStages = 2, kTileA = 128 * 128, kTileB = 64 * 128,
                   kStage = kTileA + kTileB, kBars = kStages * kStage;

/// Warpgroup 0 brings tiles of A (128 x 64) and of B (64 x 64) into a ring of
/// two stages, 1 and 2 multiply 64 rows each.
class HopperRingTest : public SimulatorTest {
protected:
  const Wgmma wgmma{64, true, false, false};

  /// Barriers of stage %stage.
  static std::string stageOf(const std::string &i) {
    return "  %stage = and i32 %" + i + ", 1\n  %round = lshr i32 %" + i +
           ", 1\n  %parity = and i32 %round, 1\n"
           "  %at = mul i32 %stage, " +
           std::to_string(kStage) +
           "\n  %bar8 = shl i32 %stage, 3\n  %fullat = add i32 %bar8, " +
           std::to_string(kBars) + "\n  %emptyat = add i32 %fullat, 16\n" +
           sharedPointer("full", "%fullat") +
           sharedPointer("empty", "%emptyat") + sharedPointer("a", "%at") +
           "  %bat = add i32 %at, " + std::to_string(kTileA) + "\n" +
           sharedPointer("b", "%bat");
  }

  /// A prefix for the names of one branch.
  static std::string named(std::string text, const std::string &prefix) {
    for (const char *name : {"stage", "round", "parity", "at", "bar8", "fullat",
                             "emptyat", "full", "empty", "a", "bat", "b"})
      for (const char *end : {" ", ",", "\n", ")"})
        if (std::string from = std::string("%") + name + end;
            text.find(from) != std::string::npos)
          text = replaced(text, from, "%" + prefix + name + end);
    return text;
  }

  std::string produce() const {
    return "produce:\n  " + nvvm("setmaxnreg.dec.sync.aligned.u32", "i32 24") +
           "  br i1 %isfirst, label %fill, label %end\nfill:\n"
           "  %i = phi i32 [ 0, %produce ], [ %inext, %emptydone ]\n" +
           stageOf("i") + "  %other = xor i32 %parity, 1\n" +
           waitFor("empty", "empty", "%other") + "  %s = " +
           nvvm("mbarrier.arrive.expect.tx.scope.cta.space.cta",
                "ptr addrspace(3) %full, i32 " + std::to_string(kStage),
                "i64") +
           "  %x = shl i32 %i, 6\n" + loadBox("m0", "a", "full", {"%x", "0"}) +
           loadBox("m1", "b", "full", {"%x", "0"}) +
           "  %inext = add i32 %i, 1\n"
           "  %imore = icmp slt i32 %inext, %tiles\n"
           "  br i1 %imore, label %fill, label %end\n";
  }

  std::string consume() const {
    std::string text =
        "consume:\n  " + nvvm("setmaxnreg.inc.sync.aligned.u32", "i32 240") +
        "  %me = sub i32 %group, 1\n  %mine = shl i32 %me, 13\n"
        "  %inwg = and i32 %tid, 127\n  %leads = icmp eq i32 %inwg, 0\n"
        "  br label %turn\nturn:\n"
        "  %j = phi i32 [ 0, %consume ], [ %jnext, %released ]\n";
    for (unsigned i = 0; i < 32; ++i) {
      const std::string s = std::to_string(i);
      text += "  %o" + s + " = phi float [ 0.0, %consume ], [ %w" + s +
              ", %released ]\n";
    }
    std::string body =
        stageOf("j") + waitFor("full", "full", "%parity") +
        "  %rows = getelementptr i8, ptr addrspace(3) %a, i32 %mine\n" +
        descriptor("da", "rows", 0, 1024) + descriptor("db", "b", 0, 1024) +
        fenceMatrices();
    text += named(body, "c");
    std::string sums = "o";
    for (unsigned step = 0; step < 4; ++step) {
      const std::string s = std::to_string(step);
      text +=
          "  %da" + s + " = add i64 %da, " + std::to_string(2 * step) +
          "\n  %db" + s + " = add i64 %db, " + std::to_string(2 * step) + "\n" +
          multiply("acc" + s + ".", wgmma, sums, "i64 %da" + s, "db" + s, 1);
      sums = "acc" + s + ".";
    }
    return text + commitMatrices() + waitMatrices("w", 0, sums, 32) +
           "  br i1 %leads, label %release, label %released\nrelease:\n"
           "  %r = " +
           nvvm("mbarrier.arrive.scope.cta.space.cta",
                "ptr addrspace(3) %cempty, i32 1", "i64") +
           "  br label %released\nreleased:\n"
           "  %jnext = add i32 %j, 1\n"
           "  %jmore = icmp slt i32 %jnext, %tiles\n"
           "  br i1 %jmore, label %turn, label %store\nstore:\n"
           "  %first = shl i32 %me, 6\n" +
           storeSums("w", 64, "%first") + "  br label %end\n";
  }

  std::string kernel() const {
    std::string text = beginKernel(2, "ptr addrspace(1) %d, i32 %tiles", 384) +
                       "  %group = lshr i32 %tid, 7\n"
                       "  br i1 %isfirst, label %init, label %meet\ninit:\n";
    for (unsigned i = 0; i < 2 * kStages; ++i) {
      const std::string name = "init" + std::to_string(i);
      text += sharedPointer(name, std::to_string(kBars + 8 * i)) + "  " +
              nvvm("mbarrier.init.shared",
                   "ptr addrspace(3) %" + name +
                       (i < kStages ? ", i32 1" : ", i32 2"));
    }
    return text + "  " + nvvm("fence.mbarrier_init.release.cluster", "") +
           "  br label %meet\nmeet:\n  " +
           nvvm("barrier.cta.sync.aligned.all", "i32 0") +
           "  %produces = icmp eq i32 %group, 0\n"
           "  br i1 %produces, label %produce, label %consume\n" +
           produce() + consume() + "end:\n  ret void\n}\n";
  }

  LaunchReport run(const std::string &text, const SimOptions &options = {}) {
    EXPECT_EQ(compile(text, hopper()), "");
    return launchRing(options);
  }

  LaunchReport launchRing(const SimOptions &options) {
    d.assign(128 * 64, -1);
    auto mapA = encodeTensorMap(a.map(buffer(a.bits, "a").bits, 128));
    auto mapB = encodeTensorMap(b.map(buffer(b.bits, "b").bits, 64));
    EXPECT_TRUE(bool(mapA)) << llvm::toString(mapA.takeError());
    EXPECT_TRUE(bool(mapB)) << llvm::toString(mapB.takeError());
    return launch(LaunchShape{{1, 1, 1}, {384, 1, 1}, kBars + 32},
                  {KernelArgument::map(*mapA), KernelArgument::map(*mapB),
                   buffer(d, "d"), KernelArgument::i32(5)},
                  options);
  }

  /// Runs it in some orders and with both timings, until one shows a fault.
  std::string faults(const std::string &text) {
    for (CopyTiming copies : {CopyTiming::Late, CopyTiming::Early})
      for (uint64_t seed : {0, 1, 2}) {
        SimOptions options;
        options.copies = copies;
        options.seed = seed;
        if (LaunchReport report = run(text, options); !report.clean())
          return report.str();
      }
    return "";
  }

  Matrix a = Matrix::random(128, 5 * 64, true, 5),
         b = Matrix::random(64, 5 * 64, true, 6);
  std::vector<float> d;
};

TEST_F(HopperRingTest, IsTheProductInEveryOrder) {
  const std::vector<float> expected = product(a, b, true);
  for (CopyTiming copies : {CopyTiming::Late, CopyTiming::Early})
    for (uint64_t seed : {0, 1, 2, 3}) {
      SimOptions options;
      options.copies = copies;
      options.seed = seed;
      EXPECT_EQ(run(kernel(), options).str(), "") << seed;
      EXPECT_EQ(d, expected) << seed;
    }
}

TEST_F(HopperRingTest, IsTheProductAfterOptimization) {
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseAssemblyString(
      "target triple = \"nvptx64-nvidia-cuda\"\n" + kernel(), diagnostic,
      context);
  ASSERT_TRUE(module) << diagnostic.getMessage().str();
  EXPECT_GT(markWarpCollectives(*module), 0u);
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2)
      .run(*module, modules);
  ASSERT_EQ(compileModule(*module, hopper()), "");
  EXPECT_EQ(launchRing({}).str(), "");
  EXPECT_EQ(d, product(a, b, true));
}

TEST_F(HopperRingTest, EveryInjectionIsFound) {
  const std::vector<float> expected = product(a, b, true);
  unsigned kinds = 0;
  for (HopperInjection injection : getHopperInjections()) {
    llvm::SMDiagnostic diagnostic;
    auto parse = [&] {
      return llvm::parseAssemblyString(kernel(), diagnostic, context);
    };
    const unsigned count = countInjections(*parse(), "k", injection);
    kinds += count > 0;
    for (unsigned index = 0; index < count; ++index) {
      auto broken = parse();
      inject(*broken, "k", injection, index);
      ASSERT_EQ(compileModule(*broken, hopper()), "");
      EXPECT_TRUE(!launchRing({}).clean() || d != expected)
          << stringifyInjection(injection).str() << " " << index;
    }
  }
  // All but masks, packs, proxy fences, stores, clusters, turns, votes and
  // waits for kernels.
  EXPECT_EQ(kinds, getHopperInjections().size() - 12);
}

TEST_F(HopperRingTest, BreaksAsItShould) {
  const std::string text = kernel();
  auto skip = [&](const std::string &label) {
    return replaced(text, "label %" + label + "ask\n" + label + "ask",
                    "label %" + label + "done\n" + label + "ask");
  };
  const std::string bytes = "i32 " + std::to_string(kStage) + ")";
  struct Case {
    const char *what;
    std::string kernel;
    std::vector<const char *> any;
  };
  const Case cases[] = {
      {"16 bytes more", replaced(text, bytes, "i32 24592)"), {"deadlock: "}},
      {"16 bytes less", replaced(text, bytes, "i32 24560)"), {"deadlock: "}},
      {"no full wait", skip("full"), {"not arrived: ", "race: "}},
      {"no empty wait", skip("empty"), {"race: ", "barrier mismatch: "}},
      {"wrong parity of full",
       replaced(text, "%cfull, i32 %cparity", "%cfull, i32 %stage1"),
       {"race: ", "not arrived: ", "deadlock: "}},
      {"wrong parity of empty",
       replaced(text, "%other = xor i32 %parity, 1",
                "%other = xor i32 %parity, 0"),
       {"deadlock: "}},
      {"empty count one more",
       replaced(text, "i32 2)\n", "i32 3)\n"),
       {"deadlock: "}},
      {"empty count one less",
       replaced(text, "i32 2)\n", "i32 1)\n"),
       {"race: ", "barrier mismatch: "}},
      {"no release",
       replaced(text, "label %release, label",
                "label "
                "%released, label"),
       {"deadlock: "}},
      {"release before the wait",
       replaced(replaced(text, "  %r = ",
                         "  %unused = xor i32 %tid, 0\n"
                         "  %r = "),
                "  %w = ",
                "  br i1 %leads, label %early, label %on\nearly:\n  %re = " +
                    nvvm("mbarrier.arrive.scope.cta.space.cta",
                         "ptr addrspace(3) %cempty, i32 1", "i64") +
                    "  br label %on\non:\n  %w = "),
       {"race: ", "barrier mismatch: "}},
      {"no fence", replaced(text, fenceMatrices(), ""), {"missing fence: "}},
      {"weak wait",
       replaced(text, getPtxAsm(WgmmaWait{0, 32, 0}).text,
                getPtxAsm(WgmmaWait{1, 32, 0}).text),
       {"in flight: "}},
      {"other coordinate",
       replaced(text, "ptr %m1, i32 %x, i32 0", "ptr %m1, i32 %x, i32 1"),
       {}},
  };
  for (const Case &each : cases) {
    std::string changed = each.kernel;
    if (std::string(each.what) == "wrong parity of full")
      changed = replaced(
          changed, "  %cbat = ", "  %stage1 = xor i32 %cparity, 1\n  %cbat = ");
    const std::string report = faults(changed);
    if (each.any.empty()) {
      // No fault, but another product.
      EXPECT_EQ(report, "") << each.what;
      EXPECT_NE(d, product(a, b, true)) << each.what;
      continue;
    }
    bool isReported = false;
    for (const char *kind : each.any)
      isReported |= report.find(kind) != std::string::npos;
    EXPECT_TRUE(isReported) << each.what << "\n" << report;
  }
}

} // namespace
