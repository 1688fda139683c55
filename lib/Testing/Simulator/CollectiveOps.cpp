//===- CollectiveOps.cpp - intrinsics of a whole warp or block ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"
#include "Numerics.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/IR/Instructions.h"

using namespace llvm;
using namespace mlir::diffattn::sim;

/// "x1", "x2" or "x4" at the head of `name`; 0 if there is none.
static uint8_t consumeMatrices(StringRef &name) {
  for (auto [text, count] :
       {std::pair<StringRef, uint8_t>{"x1", 1}, {"x2", 2}, {"x4", 4}})
    if (name.consume_front(text))
      return count;
  return 0;
}

static bool describeMma(StringRef name, Site &site) {
  if (name.consume_front("m16n8k16."))
    site.depth = 16;
  else if (name.consume_front("m16n8k8."))
    site.depth = 8;
  else if (name.consume_front("m16n8k4."))
    site.depth = 4;
  else
    return false;
  if (!name.consume_front("row.col."))
    return false;
  site.kind = OpKind::Mma;
  site.halfAccumulator = name == "f16.f16";
  if (name == "bf16")
    site.type = MmaType::BF16;
  else if (name == "tf32")
    site.type = MmaType::TF32;
  else if (name == "f32.f32" || name == "f16.f16")
    site.type = MmaType::F16;
  else
    return false;
  return (site.type == MmaType::TF32) == (site.depth <= 8 && name == "tf32") &&
         (site.type == MmaType::TF32 || site.depth >= 8);
}

static bool describeBarrier(StringRef name, Site &site) {
  site.mode = 0;
  if (name.consume_front("sync"))
    site.kind = OpKind::BarrierSync;
  else if (name.consume_front("arrive"))
    site.kind = OpKind::BarrierArrive;
  else if (name.consume_front("red.")) {
    site.kind = OpKind::BarrierReduce;
    if (name.consume_front("popc"))
      site.mode = uint8_t(BarrierReduction::Popc);
    else if (name.consume_front("and"))
      site.mode = uint8_t(BarrierReduction::And);
    else if (name.consume_front("or"))
      site.mode = uint8_t(BarrierReduction::Or);
    else
      return false;
  } else {
    return false;
  }
  site.aligned = name.consume_front(".aligned");
  site.wholeBlock = name == ".all";
  return name == ".all" || name == ".count";
}

bool Lowering::describeCollective(StringRef name, Site &site) const {
  if (name.consume_front("mma.")) {
    site.aligned = true;
    return describeMma(name, site);
  }
  bool loads = name.consume_front("ldmatrix.sync.aligned.m8n8.");
  if (loads ||
      (capability >= 90 && name.consume_front("stmatrix.sync.aligned.m8n8."))) {
    site.kind = loads ? OpKind::LdMatrix : OpKind::StMatrix;
    site.aligned = true;
    site.space = 3;
    site.bytes = site.alignment = 16;
    site.matrices = consumeMatrices(name);
    site.transposed = name.consume_front(".trans");
    return site.matrices && name.starts_with(".b16");
  }
  if (name.consume_front("shfl.sync.")) {
    site.kind = OpKind::Shuffle;
    auto [mode, type] = name.split('.');
    int code = StringSwitch<int>(mode)
                   .Case("up", int(ShuffleMode::Up))
                   .Case("down", int(ShuffleMode::Down))
                   .Case("bfly", int(ShuffleMode::Butterfly))
                   .Case("idx", int(ShuffleMode::Index))
                   .Default(-1);
    site.mode = code;
    return code >= 0 &&
           (type == "i32" || type == "f32" || type == "i32p" || type == "f32p");
  }
  if (name.consume_front("vote.")) {
    site.kind = OpKind::Vote;
    int code = StringSwitch<int>(name)
                   .Case("all.sync", int(VoteMode::All))
                   .Case("any.sync", int(VoteMode::Any))
                   .Case("uni.sync", int(VoteMode::Uniform))
                   .Case("ballot.sync", int(VoteMode::Ballot))
                   .Default(-1);
    site.mode = code;
    return code >= 0;
  }
  if (name.consume_front("match.")) {
    site.kind = OpKind::Match;
    site.matchAll = name.consume_front("all.sync.");
    if (!site.matchAll && !name.consume_front("any.sync."))
      return false;
    site.bytes = name.starts_with("i64") ? 8 : 4;
    return true;
  }
  if (name.consume_front("redux.sync.")) {
    site.kind = OpKind::Redux;
    int code = StringSwitch<int>(name)
                   .Case("add", int(ReduxMode::Add))
                   .Case("min", int(ReduxMode::Min))
                   .Case("max", int(ReduxMode::Max))
                   .Case("umin", int(ReduxMode::UMin))
                   .Case("umax", int(ReduxMode::UMax))
                   .Case("and", int(ReduxMode::And))
                   .Case("or", int(ReduxMode::Or))
                   .Case("xor", int(ReduxMode::Xor))
                   .Default(-1);
    site.mode = code;
    return code >= 0;
  }
  if (name == "elect.sync" && capability >= 90) {
    site.kind = OpKind::Elect;
    return true;
  }
  if (capability >= 90 &&
      (name.consume_front("setmaxnreg.") || name.starts_with("wgmma."))) {
    site.aligned = true;
    site.mode = name.starts_with("inc.");
    site.kind =
        StringSwitch<OpKind>(name)
            .Case("wgmma.fence.sync.aligned", OpKind::WgmmaFence)
            .Case("wgmma.commit_group.sync.aligned", OpKind::WgmmaCommit)
            .Case("wgmma.wait_group.sync.aligned", OpKind::WgmmaWait)
            .Cases({"inc.sync.aligned.u32", "dec.sync.aligned.u32"},
                   OpKind::SetRegisters)
            .Default(OpKind::Step);
    return site.kind != OpKind::Step;
  }
  if (capability >= 90 && name.consume_front("barrier.cluster.")) {
    site.kind =
        name == "wait.aligned" ? OpKind::ClusterWait : OpKind::ClusterArrive;
    site.aligned = true;
    site.relaxed = name == "arrive.relaxed.aligned";
    return name == "wait.aligned" || name == "arrive.aligned" || site.relaxed;
  }
  if (name == "bar.warp.sync") {
    site.kind = OpKind::WarpSync;
    return true;
  }
  return name.consume_front("barrier.cta.") && describeBarrier(name, site);
}

/// `value` as words of 32 bits, the low one first.
static void appendWords(IRBuilder<> &builder, Value *value,
                        SmallVectorImpl<Value *> &words) {
  Type *i32 = builder.getInt32Ty();
  if (value->getType()->isPointerTy())
    value = builder.CreatePtrToInt(value, builder.getInt64Ty());
  unsigned bits = value->getType()->getPrimitiveSizeInBits();
  if (!value->getType()->isIntegerTy())
    value = builder.CreateBitCast(value, builder.getIntNTy(bits));
  if (bits <= 32) {
    words.push_back(builder.CreateZExt(value, i32));
    return;
  }
  words.push_back(builder.CreateTrunc(value, i32));
  words.push_back(builder.CreateTrunc(builder.CreateLShr(value, 32), i32));
}

static Value *fromWord(IRBuilder<> &builder, Value *word, Type *type) {
  if (type->isIntegerTy())
    return builder.CreateZExtOrTrunc(word, type);
  return builder.CreateBitCast(word, type);
}

Value *Lowering::callCollective(IRBuilder<> &builder, CallInst &call,
                                Site site) {
  if (site.kind == OpKind::WgmmaWait)
    site.mode = cast<ConstantInt>(call.getArgOperand(0))->getZExtValue();
  if (site.kind == OpKind::Mma &&
      call.arg_size() !=
          getMmaInputs(site.type, site.depth, site.halfAccumulator))
    return nullptr;
  return callWithWords(builder, call, site, "diffattn_sim_collective");
}

static unsigned countResults(const CallInst &call) {
  if (auto *structure = dyn_cast<StructType>(call.getType()))
    return structure->getNumElements();
  return call.getType()->isVoidTy() ? 0 : 1;
}

Value *Lowering::callWithWords(IRBuilder<> &builder, CallInst &call, Site site,
                               StringRef function) {
  site.words = call.arg_size();
  site.results = countResults(call);
  return callWithWords(builder, call,
                       addSite(site, call, call.getCalledFunction()->getName()),
                       function);
}

Value *Lowering::callWithWords(IRBuilder<> &builder, CallInst &call,
                               uint32_t number, StringRef function) {
  SmallVector<Value *> words;
  for (Value *argument : call.args())
    appendWords(builder, argument, words);
  const unsigned results = countResults(call);
  if (words.size() > capacity || results > capacity)
    return nullptr;
  for (auto [i, word] : enumerate(words))
    builder.CreateStore(word, builder.CreateConstGEP1_32(i32, in, i));
  builder.CreateCall(runtime(function, voidType, {i32, pointer, pointer}),
                     {ConstantInt::get(i32, number), in, out});
  if (results == 0)
    return PoisonValue::get(i32);
  auto *structure = dyn_cast<StructType>(call.getType());
  SmallVector<Value *> values;
  for (unsigned i = 0; i < results; ++i)
    values.push_back(fromWord(
        builder,
        builder.CreateLoad(i32, builder.CreateConstGEP1_32(i32, out, i)),
        structure ? structure->getElementType(i) : call.getType()));
  if (!structure)
    return values.front();
  Value *result = PoisonValue::get(structure);
  for (auto [i, value] : enumerate(values))
    result = builder.CreateInsertValue(result, value, i);
  return result;
}
