//===- AsyncOps.cpp - mbarriers, bulk copies and fences of sm_90 ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Instructions.h"

using namespace llvm;
using namespace mlir::diffattn::sim;

/// The axes of "g2s.tile.4d" below "cp.async.bulk.tensor.", or 0.
static uint8_t getTensorRank(StringRef name, StringRef head) {
  uint8_t rank = 0;
  if (!name.consume_front(head) || !name.consume_back("d") ||
      name.getAsInteger(10, rank) || rank < 1 || rank > 5)
    return 0;
  return rank;
}

bool Lowering::describeAsync(StringRef name, const CallInst &call,
                             Site &site) const {
  if (capability < 90)
    return false;
  auto immediate = [&](unsigned argument) {
    auto *value = dyn_cast<ConstantInt>(call.getArgOperand(argument));
    return value ? value->getZExtValue() : 0;
  };
  site.alignment = 1;
  site.kind =
      StringSwitch<OpKind>(name)
          .Case("mbarrier.init.shared", OpKind::MbarrierInit)
          .Case("mbarrier.inval.shared", OpKind::MbarrierInval)
          .Cases({"mbarrier.arrive.scope.cta.space.cta",
                  "mbarrier.arrive.scope.cluster.space.cluster"},
                 OpKind::MbarrierArrive)
          .Case("mbarrier.arrive.expect.tx.scope.cta.space.cta",
                OpKind::MbarrierExpect)
          .Cases({"mbarrier.try.wait.parity.scope.cta.space.cta",
                  "mbarrier.try.wait.parity.scope.cluster.space.cta"},
                 OpKind::MbarrierWait)
          .Case("fence.mbarrier_init.release.cluster", OpKind::MbarrierFence)
          .Cases({"fence.proxy.async", "fence.proxy.async.shared_cta"},
                 OpKind::ProxyFence)
          .Case("cp.async.bulk.commit.group", OpKind::BulkCommit)
          .Cases({"cp.async.bulk.wait.group", "cp.async.bulk.wait.group.read"},
                 OpKind::BulkWait)
          .Case("cp.async.bulk.global.to.shared.cluster", OpKind::BulkLoad)
          .Default(OpKind::Step);
  if (site.kind == OpKind::BulkWait) {
    site.mode = immediate(0);
    site.readsOnly = name.ends_with(".read");
  }
  // Only boxes go to several blocks at once.
  if (site.kind == OpKind::BulkLoad)
    return !immediate(6);
  if (name.consume_front("cp.async.bulk.tensor.")) {
    if ((site.rank = getTensorRank(name, "g2s.tile."))) {
      site.kind = OpKind::TensorLoad;
      site.multicast = immediate(5 + site.rank);
    } else if ((site.rank = getTensorRank(name, "s2g.tile.")))
      site.kind = OpKind::TensorStore;
  }
  return site.kind != OpKind::Step;
}

/// Whether the instruction is a hint to prefetch, or to start dependent
/// kernels.
static bool isHint(StringRef name) {
  return name.starts_with("prefetch.") ||
         name.starts_with("cp.async.bulk.tensor.prefetch.tile.") ||
         name == "griddepcontrol.launch.dependents";
}

void Lowering::lowerGridWait(IRBuilder<> &builder, CallInst &call) {
  builder.CreateCall(runtime("diffattn_sim_grid_wait", voidType, {}));
  for (LoweredKernel &kernel : result.kernels)
    kernel.waitsForKernels |= kernel.name == call.getFunction()->getName();
}

Expected<Value *> Lowering::lowerAsync(IRBuilder<> &builder, CallInst &call,
                                       StringRef name) {
  if (isHint(name))
    return PoisonValue::get(i32);
  if (name == "griddepcontrol.wait" && capability >= 90) {
    lowerGridWait(builder, call);
    return PoisonValue::get(i32);
  }
  if (name == "mapa.shared.cluster" && capability >= 90) {
    Value *offset = builder.CreateSub(addressOf(builder, call.getArgOperand(0)),
                                      ConstantInt::get(i64, kSharedBase));
    Value *window =
        builder.CreateMul(builder.CreateZExt(call.getArgOperand(1), i64),
                          ConstantInt::get(i64, kSharedWindow));
    return builder.CreateIntToPtr(
        builder.CreateAdd(builder.CreateAdd(offset, window),
                          ConstantInt::get(i64, kClusterBase)),
        call.getType());
  }
  Site site;
  if (!describeAsync(name, call, site))
    return nullptr;
  Value *result =
      callWithWords(builder, call, site, "diffattn_sim_asynchronous");
  // The token that an arrival returns is read by waits that are not supported.
  if (call.getType()->isIntegerTy(64) && !call.use_empty())
    return nullptr;
  return result;
}
