//===- GpuGradientsFaultTest.cpp - kernels of f32 gradients, broken -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels of products in f32 as they are shipped, with one thing changed:
// the simulator says what is wrong, or a gradient is off by more than the
// bound, or its bits are not those of sums in their order. They have no
// barrier: a row is a warp's own, and its lanes meet in shuffles.
//
//===----------------------------------------------------------------------===//
#include "FaultInjection.h"
#include "GradientsCase.h"

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;
using sim::FaultKind;

static llvm::Argument *getArgument(llvm::Function &function,
                                   const GpuKernelSpec &spec, GpuParam param) {
  const SmallVector<GpuParam> params = getGpuParams(spec);
  return function.getArg(llvm::find(params, param) - params.begin());
}

static SmallVector<llvm::IntrinsicInst *> findShuffles(llvm::Function &f) {
  SmallVector<llvm::IntrinsicInst *> shuffles;
  for (llvm::Instruction &instruction : llvm::instructions(f))
    if (auto *call = dyn_cast<llvm::IntrinsicInst>(&instruction))
      if (call->getIntrinsicID() == llvm::Intrinsic::nvvm_shfl_sync_idx_f32)
        shuffles.push_back(call);
  return shuffles;
}

//===----------------------------------------------------------------------===//
// Changes, which return how many instructions they changed
//===----------------------------------------------------------------------===//

static unsigned exchangeRowSums(llvm::Function &function,
                                const GpuKernelSpec &spec) {
  llvm::Argument *d1 = getArgument(function, spec, GpuParam::D1),
                 *d2 = getArgument(function, spec, GpuParam::D2);
  unsigned changed = 0;
  for (llvm::Instruction &instruction : llvm::instructions(function))
    for (llvm::Use &use : instruction.operands()) {
      if (use != d1 && use != d2)
        continue;
      use = use == d1 ? d2 : d1;
      ++changed;
    }
  return changed;
}

/// Warps behind the last row of a head take rows too.
static unsigned takeRowsBehind(llvm::Function &function,
                               const GpuKernelSpec &spec) {
  llvm::Argument *rows =
      getArgument(function, spec,
                  spec.kind == GpuKernelKind::GradientKeys ? GpuParam::Keys
                                                           : GpuParam::Queries);
  unsigned changed = 0;
  for (llvm::Instruction &instruction : llvm::instructions(function)) {
    auto *branch = dyn_cast<llvm::BranchInst>(&instruction);
    if (!branch || !branch->isConditional())
      continue;
    auto *compare = dyn_cast<llvm::ICmpInst>(branch->getCondition());
    if (!compare || !llvm::is_contained(compare->operands(), rows))
      continue;
    // Whichever way the compiler has turned it, the first block of a kernel
    // goes on where the row exists.
    const bool isNegated =
        isa<llvm::ReturnInst>(branch->getSuccessor(0)->getTerminator());
    branch->setCondition(
        llvm::ConstantInt::getBool(function.getContext(), !isNegated));
    ++changed;
  }
  return changed;
}

/// Each number is taken from the lane of another row.
static unsigned shuffleOther(llvm::Function &function, const GpuKernelSpec &) {
  const auto shuffles = findShuffles(function);
  for (llvm::IntrinsicInst *shuffle : shuffles) {
    llvm::IRBuilder<> b(shuffle);
    shuffle->setArgOperand(2, b.CreateXor(shuffle->getArgOperand(2), 7));
  }
  return shuffles.size();
}

/// Rows of each 32 are added from the last one to the first.
static unsigned turnSumsAround(llvm::Function &function,
                               const GpuKernelSpec &) {
  SetVector<llvm::PHINode *> rows;
  for (llvm::IntrinsicInst *shuffle : findShuffles(function)) {
    llvm::Value *lane = shuffle->getArgOperand(2);
    if (auto *narrow = dyn_cast<llvm::TruncInst>(lane))
      lane = narrow->getOperand(0);
    if (auto *row = dyn_cast<llvm::PHINode>(lane))
      rows.insert(row);
  }
  unsigned changed = 0;
  for (llvm::PHINode *row : rows) {
    llvm::IRBuilder<> b(row->getParent(),
                        row->getParent()->getFirstInsertionPt());
    llvm::Value *turned =
        b.CreateSub(llvm::ConstantInt::get(row->getType(), 31), row);
    row->replaceUsesWithIf(turned, [&](llvm::Use &use) {
      auto *user = cast<llvm::Instruction>(use.getUser());
      const bool counts = isa<llvm::ICmpInst>(user) ||
                          llvm::is_contained(row->incoming_values(), user) ||
                          user == turned;
      changed += !counts;
      return !counts;
    });
  }
  return changed;
}

namespace {
struct FaultOfPlain {
  const char *name;
  unsigned (*change)(llvm::Function &, const GpuKernelSpec &);
  /// Outcomes of which one must be seen: the faults, or with `wrong` a gradient
  /// beyond the bound.
  std::vector<FaultKind> kinds;
  bool wrong = false;
};

const FaultOfPlain kFaults[] = {
    {"RowSumsExchanged", exchangeRowSums, {}, true},
    {"RowsBehindTheLast", takeRowsBehind, {FaultKind::OutOfBounds}},
    {"NumbersOfOtherRows", shuffleOther, {}, true},
    {"HalfWarp",
     [](llvm::Function &function, const GpuKernelSpec &) {
       const StringRef name = function.getName();
       llvm::Module &module = *function.getParent();
       const unsigned count =
           sim::countInjections(module, name, sim::Injection::HalfWarp);
       if (count)
         sim::inject(module, name, sim::Injection::HalfWarp, count - 1);
       return count;
     },
     {FaultKind::Divergence}},
};

class GpuPlainGradients : public testing::TestWithParam<GpuKernelKind> {
protected:
  /// Changes the kernel of `run` that the test is of.
  void change(GradientsRun &run,
              unsigned (*change)(llvm::Function &, const GpuKernelSpec &)) {
    const GpuKernelSpec &spec = run.getSpec(GetParam());
    std::unique_ptr<llvm::Module> broken = llvm::CloneModule(run.getKernels());
    ASSERT_GT(change(*broken->getFunction(spec.getName()), spec), 0u);
    std::string message;
    llvm::raw_string_ostream os(message);
    ASSERT_FALSE(llvm::verifyModule(*broken, &os)) << message;
    run.replaceKernels(*broken);
  }
};
} // namespace

static GradientsCase getPlainCase() {
  GradientsCase c;
  c.type = c.result = Element::F32;
  c.d = 12;
  c.dv = 36;
  c.step = 2;
  return c;
}

TEST_P(GpuPlainGradients, FaultsAreFound) {
  GradientsCase c = getPlainCase();
  c.queries = 38;
  c.keys = 45;
  c.right = 0;
  for (const FaultOfPlain &fault : kFaults) {
    SCOPED_TRACE(fault.name);
    GradientsRun run(c);
    change(run, fault.change);
    const Gradients result = run.run({}, GetParam());
    EXPECT_TRUE(result.has(fault.kinds) ||
                (fault.wrong && run.worst(result) > 1.0))
        << result.str();
  }
}

/// The sums of a kernel, known to the bit: with queries, values and logarithms
/// of 0 every weight is 1, and with a row sum of -1 so is the gradient of every
/// score, that a scale of 1 leaves as it is. d_v then is a sum of rows of dX
/// and d_q1 one of keys, in the order of rows, and of heads that share a key.
static std::vector<double> sumInOrder(GradientsRun &run, const GradientsCase &c,
                                      GpuKernelKind kind) {
  for (const char *name : {"q1", "v", "lse1", "d1"}) {
    DeviceArray &array = run.arrays.at(name);
    array.forEach([&](int64_t, int64_t at) {
      reference::store(Element::F32, array.memory.data() + at,
                       StringRef(name) == "d1" ? -1.0 : 0.0);
    });
  }
  const bool ofKeys = kind == GpuKernelKind::GradientKeys;
  const reference::View rows = run.arrays.at(ofKeys ? "dx" : "k1").view();
  const int64_t heads = ofKeys ? c.signal : 1,
                length = ofKeys ? c.queries : c.keys,
                width = ofKeys ? c.dv : c.d;
  std::vector<double> sums;
  for (int64_t column = 0; column < width; ++column) {
    float sum = 0.0f;
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < length; ++row)
        sum += static_cast<float>(rows.at({0, head, row, column}));
    sums.push_back(sum);
  }
  return sums;
}

TEST_P(GpuPlainGradients, SumsHaveTheBitsOfTheirOrder) {
  GradientsCase c = getPlainCase();
  c.maps = 1;
  c.scale = 1.0;
  c.signal = c.noise = 2;
  c.queries = c.keys = 64;
  GradientsRun run(c);
  const std::vector<double> expected = sumInOrder(run, c, GetParam());
  const std::string name =
      GetParam() == GpuKernelKind::GradientKeys ? "d_v" : "d_q1";
  auto isEqual = [&] {
    const Gradients result = run.run({}, GetParam());
    EXPECT_TRUE(result.isClean()) << result.str();
    const std::vector<double> &got = result.values.at(name);
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i] != expected[i % expected.size()])
        return false;
    return true;
  };
  EXPECT_TRUE(isEqual());
  change(run, turnSumsAround);
  EXPECT_FALSE(isEqual());
}

INSTANTIATE_TEST_SUITE_P(Kernels, GpuPlainGradients,
                         testing::Values(GpuKernelKind::GradientKeys,
                                         GpuKernelKind::GradientQueries),
                         [](const auto &info) {
                           return info.param == GpuKernelKind::GradientKeys
                                      ? "Keys"
                                      : "Queries";
                         });
