//===- Intrinsics.cpp - intrinsics and inline assembly of single lanes ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"
#include "Numerics.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"

using namespace llvm;
using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

/// Intrinsics of LLVM that mean the same on both machines and need no library
/// on either.
static constexpr Intrinsic::ID kCommon[] = {
    Intrinsic::abs,
    Intrinsic::assume,
    Intrinsic::bitreverse,
    Intrinsic::bswap,
    Intrinsic::ceil,
    Intrinsic::copysign,
    Intrinsic::ctlz,
    Intrinsic::ctpop,
    Intrinsic::cttz,
    Intrinsic::donothing,
    Intrinsic::expect,
    Intrinsic::fabs,
    Intrinsic::floor,
    Intrinsic::fma,
    Intrinsic::fmuladd,
    Intrinsic::fshl,
    Intrinsic::fshr,
    Intrinsic::is_fpclass,
    Intrinsic::lifetime_end,
    Intrinsic::lifetime_start,
    Intrinsic::maximum,
    Intrinsic::maxnum,
    Intrinsic::minimum,
    Intrinsic::minnum,
    Intrinsic::nearbyint,
    Intrinsic::rint,
    Intrinsic::roundeven,
    Intrinsic::smax,
    Intrinsic::smin,
    Intrinsic::sqrt,
    Intrinsic::trunc,
    Intrinsic::umax,
    Intrinsic::umin,
    Intrinsic::sadd_sat,
    Intrinsic::ssub_sat,
    Intrinsic::uadd_sat,
    Intrinsic::usub_sat,
    Intrinsic::vector_reduce_add,
    Intrinsic::vector_reduce_and,
    Intrinsic::vector_reduce_fadd,
    Intrinsic::vector_reduce_fmax,
    Intrinsic::vector_reduce_fmaximum,
    Intrinsic::vector_reduce_fmin,
    Intrinsic::vector_reduce_fminimum,
    Intrinsic::vector_reduce_fmul,
    Intrinsic::vector_reduce_mul,
    Intrinsic::vector_reduce_or,
    Intrinsic::vector_reduce_smax,
    Intrinsic::vector_reduce_smin,
    Intrinsic::vector_reduce_umax,
    Intrinsic::vector_reduce_umin,
    Intrinsic::vector_reduce_xor,
    Intrinsic::uadd_with_overflow,
    Intrinsic::umul_with_overflow,
    Intrinsic::sadd_with_overflow,
    Intrinsic::smul_with_overflow,
    Intrinsic::experimental_noalias_scope_decl,
    Intrinsic::dbg_declare,
    Intrinsic::dbg_label,
    Intrinsic::dbg_value,
};

Error Lowering::lowerIntrinsic(CallInst &call) {
  IRBuilder<> builder(&call);
  if (call.isInlineAsm())
    return lowerAssembly(call);
  Function *callee = call.getCalledFunction();
  if (!callee)
    return unsupported(call, "a call through a pointer");
  if (!callee->isIntrinsic())
    return callee->isDeclaration() &&
                   !callee->getName().starts_with("diffattn_sim_")
               ? unsupported(call, "function @" + callee->getName() +
                                       ", which has no body")
               : Error::success();
  if (isa<MemIntrinsic>(call))
    return lowerBlockTransfer(call);
  StringRef name = callee->getName();
  Expected<Value *> value = nullptr;
  Intrinsic::ID id = callee->getIntrinsicID();
  if (name.consume_front("llvm.nvvm.")) {
    value = lowerNvvm(builder, call, name);
  } else if (id == Intrinsic::trap || id == Intrinsic::ubsantrap ||
             id == Intrinsic::debugtrap) {
    uint32_t site = addSite(Site{OpKind::Trap}, call, "trap");
    value = builder.CreateCall(runtime("diffattn_sim_trap", voidType, {i32}),
                               {ConstantInt::get(i32, site)});
  } else if (id == Intrinsic::exp2 && call.getType()->isFloatTy()) {
    value = lowerApproximation(builder, call, "ex2.approx.f");
  } else if (is_contained(kCommon, id)) {
    return Error::success();
  } else {
    return unsupported(call, name);
  }
  if (!value)
    return value.takeError();
  if (!*value)
    return unsupported(call, callee->getName());
  if (!call.getType()->isVoidTy())
    call.replaceAllUsesWith(*value);
  call.eraseFromParent();
  return Error::success();
}

/// The number of a special register as Block::specialRegister counts them, or
/// -1.
static int getSpecialRegister(StringRef name) {
  static constexpr StringLiteral names[] = {
      "tid.x",           "tid.y",
      "tid.z",           "ctaid.x",
      "ctaid.y",         "ctaid.z",
      "ntid.x",          "ntid.y",
      "ntid.z",          "nctaid.x",
      "nctaid.y",        "nctaid.z",
      "laneid",          "warpid",
      "nwarpid",         "warpsize",
      "lanemask.eq",     "lanemask.lt",
      "lanemask.le",     "lanemask.gt",
      "lanemask.ge",     "dynamic_smem_size",
      "total_smem_size", "cluster.ctarank",
      "cluster.nctarank"};
  const auto *it = find(names, name);
  return it == std::end(names) ? -1 : it - std::begin(names);
}

Expected<Value *> Lowering::lowerNvvm(IRBuilder<> &builder, CallInst &call,
                                      StringRef name) {
  Site site;
  if (describeCollective(name, site))
    return callCollective(builder, call, site);
  if (Expected<Value *> value = lowerAsync(builder, call, name);
      !value || *value)
    return value;
  if (name.starts_with("cp.async."))
    return lowerCopy(builder, call, name);
  if (name.starts_with("read.ptx.sreg.")) {
    int number = getSpecialRegister(name.drop_front(strlen("read.ptx.sreg.")));
    if (number < 0)
      return nullptr;
    return builder.CreateCall(
        runtime("diffattn_sim_register", i32, {i32}, /*pure=*/true),
        {ConstantInt::get(i32, number)});
  }
  // Memory fences order nothing that a barrier does not order; a race is
  // reported all the same.
  if (name.starts_with("membar.") || name == "nanosleep")
    return PoisonValue::get(i32);
  if (name == "exit")
    return builder.CreateCall(runtime("diffattn_sim_exit", voidType, {}), {});
  if (name == "isspacep.shared")
    return builder.CreateICmpULT(
        builder.CreateSub(addressOf(builder, call.getArgOperand(0)),
                          ConstantInt::get(i64, kSharedBase)),
        ConstantInt::get(i64, kSharedWindow));
  if (name == "isspacep.global")
    return builder.CreateICmpNE(
        builder.CreateAnd(addressOf(builder, call.getArgOperand(0)),
                          kGlobalTag),
        ConstantInt::get(i64, 0));
  if (name == "prmt")
    return builder.CreateCall(
        runtime("diffattn_sim_permute", i32, {i32, i32, i32}, /*pure=*/true),
        {call.getArgOperand(0), call.getArgOperand(1), call.getArgOperand(2)});
  if (Value *value = lowerApproximation(builder, call, name))
    return value;
  return lowerArithmetic(builder, call, name);
}

Value *Lowering::lowerApproximation(IRBuilder<> &builder, CallInst &call,
                                    StringRef name) {
  if (!call.getType()->isFloatTy())
    return nullptr;
  bool ftz = name.contains(".ftz");
  if (name.starts_with("div.approx") || name.starts_with("div.full"))
    return builder.CreateCall(
        runtime("diffattn_sim_divide", f32, {f32, f32, i32}),
        {call.getArgOperand(0), call.getArgOperand(1),
         ConstantInt::get(i32, ftz)});
  auto [head, tail] = name.split('.');
  if (!tail.starts_with("approx"))
    return nullptr;
  int function = StringSwitch<int>(head)
                     .Case("ex2", int(Approx::Exp2))
                     .Case("lg2", int(Approx::Log2))
                     .Case("rcp", int(Approx::Rcp))
                     .Case("sqrt", int(Approx::Sqrt))
                     .Case("rsqrt", int(Approx::Rsqrt))
                     .Case("sin", int(Approx::Sin))
                     .Case("cos", int(Approx::Cos))
                     .Case("tanh", int(Approx::Tanh))
                     .Default(-1);
  if (function < 0)
    return nullptr;
  return builder.CreateCall(
      runtime("diffattn_sim_approximate", f32, {i32, f32, i32}),
      {ConstantInt::get(i32, function), call.getArgOperand(0),
       ConstantInt::get(i32, ftz)});
}

Value *Lowering::lowerArithmetic(IRBuilder<> &builder, CallInst &call,
                                 StringRef name) {
  Type *type = call.getType();
  auto argument = [&](unsigned i) { return call.getArgOperand(i); };
  // Two floats to a register: the first argument is the upper half.
  bool toBfloat = name.starts_with("ff2bf16x2."),
       toHalf = name.starts_with("ff2f16x2.");
  bool single = name == "f2bf16.rn" || name == "f2bf16.rz";
  if (toBfloat || toHalf || single) {
    StringRef rounding = name.drop_front(name.find('.') + 1);
    if (rounding != "rn" && rounding != "rz")
      return nullptr;
    FunctionCallee round =
        runtime("diffattn_sim_round", i32, {i32, f32}, /*pure=*/true);
    Value *mode =
        ConstantInt::get(i32, (toHalf ? 0 : 1) | (rounding == "rz" ? 2 : 0));
    if (single)
      return builder.CreateBitCast(
          builder.CreateTrunc(builder.CreateCall(round, {mode, argument(0)}),
                              builder.getInt16Ty()),
          type);
    Value *high =
        builder.CreateShl(builder.CreateCall(round, {mode, argument(0)}), 16);
    return builder.CreateBitCast(
        builder.CreateOr(high, builder.CreateCall(round, {mode, argument(1)})),
        type);
  }
  if (!type->isFloatTy() && !type->isDoubleTy())
    return nullptr;
  bool ftz = name.contains(".ftz");
  auto in = [&](unsigned i) {
    return ftz ? flush(builder, argument(i)) : argument(i);
  };
  auto finish = [&](Value *value) {
    return ftz ? flush(builder, value) : value;
  };
  auto [head, tail] = name.split('.');
  bool nearest = tail == "rn.f" || tail == "rn.ftz.f" || tail == "rn.d";
  if (head == "fma" && nearest)
    return finish(
        builder.CreateIntrinsic(Intrinsic::fma, {type}, {in(0), in(1), in(2)}));
  if (head == "add" && nearest)
    return finish(builder.CreateFAdd(in(0), in(1)));
  if (head == "mul" && nearest)
    return finish(builder.CreateFMul(in(0), in(1)));
  if (head == "div" && nearest)
    return finish(builder.CreateFDiv(in(0), in(1)));
  if (head == "rcp" && nearest)
    return finish(builder.CreateFDiv(ConstantFP::get(type, 1.0), in(0)));
  if (head == "sqrt" && nearest)
    return finish(builder.CreateUnaryIntrinsic(Intrinsic::sqrt, in(0)));
  if (head == "fmax" || head == "fmin") {
    bool most = head == "fmax";
    if (tail == "f" || tail == "d" || tail == "ftz.f")
      return finish(builder.CreateBinaryIntrinsic(
          most ? Intrinsic::maxnum : Intrinsic::minnum, in(0), in(1)));
    if (tail == "nan.f" || tail == "ftz.nan.f")
      return finish(builder.CreateBinaryIntrinsic(
          most ? Intrinsic::maximum : Intrinsic::minimum, in(0), in(1)));
  }
  return nullptr;
}

Expected<Value *> Lowering::lowerCopy(IRBuilder<> &builder, CallInst &call,
                                      StringRef name) {
  Value *nothing = PoisonValue::get(i32);
  StringRef op = call.getCalledFunction()->getName();
  if (name == "cp.async.commit.group") {
    builder.CreateCall(runtime("diffattn_sim_commit", voidType, {}), {});
    return nothing;
  }
  if (name == "cp.async.wait.group" || name == "cp.async.wait.all") {
    Value *newest = name.ends_with("all")
                        ? ConstantInt::getSigned(i64, -1)
                        : builder.CreateZExt(call.getArgOperand(0), i64);
    builder.CreateCall(runtime("diffattn_sim_wait", voidType, {i64}), {newest});
    return nothing;
  }
  if (!name.consume_front("cp.async.ca.shared.global.") &&
      !name.consume_front("cp.async.cg.shared.global."))
    return nullptr;
  bool sized = name.consume_back(".s");
  Site site;
  site.kind = OpKind::CopyAsync;
  if (name.getAsInteger(10, site.bytes))
    return nullptr;
  site.alignment = site.bytes;
  uint32_t number = addSite(site, call, op);
  Value *bytes =
      sized ? call.getArgOperand(2) : ConstantInt::get(i32, site.bytes);
  builder.CreateCall(
      runtime("diffattn_sim_copy", voidType, {i64, i64, i32, i32}),
      {addressOf(builder, call.getArgOperand(0)),
       addressOf(builder, call.getArgOperand(1)), bytes,
       ConstantInt::get(i32, number)});
  return nothing;
}
