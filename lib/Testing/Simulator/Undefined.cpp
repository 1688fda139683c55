//===- Undefined.cpp - what LLVM IR leaves undefined ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// On a GPU a kernel goes on in some way; x86 code would end the process, or
// overwrite what belongs to the simulator. Here it is a fault of the kernel.
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PatternMatch.h"

using namespace llvm;
using namespace mlir::diffattn::sim;

/// More than a thread's stack.
static constexpr uint64_t kMaxVariableBytes = 1 << 20;

/// Ends the launch with a fault of `site` if `isFault`, an i1.
void Lowering::checkDefined(IRBuilder<> &builder, Value *isFault, Value *offset,
                            uint32_t site) {
  builder.CreateCall(
      runtime("diffattn_sim_undefined", voidType, {i32, i64, i32}),
      {builder.CreateZExt(isFault, i32), offset, ConstantInt::get(i32, site)});
}

void Lowering::lowerDivision(BinaryOperator &division) {
  Value *dividend = division.getOperand(0), *divisor = division.getOperand(1);
  const APInt *number = nullptr;
  if (PatternMatch::match(divisor, PatternMatch::m_APInt(number)) &&
      !number->isZero() && !number->isAllOnes())
    return;
  Type *type = division.getType();
  IRBuilder<> builder(&division);
  Value *isFault = builder.CreateICmpEQ(divisor, Constant::getNullValue(type));
  if (division.getOpcode() == Instruction::SDiv ||
      division.getOpcode() == Instruction::SRem) {
    Value *isLeast = builder.CreateICmpEQ(
        dividend, ConstantInt::get(type, APInt::getSignedMinValue(
                                             type->getScalarSizeInBits())));
    Value *negates =
        builder.CreateICmpEQ(divisor, Constant::getAllOnesValue(type));
    isFault = builder.CreateOr(isFault, builder.CreateAnd(isLeast, negates));
  }
  if (type->isVectorTy())
    isFault = builder.CreateOrReduce(isFault);
  checkDefined(
      builder, isFault, ConstantInt::get(i64, 0),
      addSite(Site{OpKind::Division}, division, division.getOpcodeName()));
}

void Lowering::lowerUnreachable(UnreachableInst &end) {
  IRBuilder<> builder(&end);
  checkDefined(builder, builder.getTrue(), ConstantInt::get(i64, 0),
               addSite(Site{OpKind::Unreachable}, end, "unreachable"));
}

/// Bytes of a type; huge ones without a wrap around.
static uint64_t sizeOf(Type *type, const DataLayout &layout) {
  if (auto *array = dyn_cast<ArrayType>(type))
    return SaturatingMultiply(array->getNumElements(),
                              sizeOf(array->getElementType(), layout));
  if (auto *structure = dyn_cast<StructType>(type))
    for (Type *element : structure->elements())
      if (sizeOf(element, layout) > kMaxVariableBytes)
        return UINT64_MAX;
  return layout.getTypeAllocSize(type).getFixedValue();
}

Error Lowering::checkVariable(AllocaInst &variable) const {
  Type *type = variable.getAllocatedType();
  auto *count = dyn_cast<ConstantInt>(variable.getArraySize());
  if (!variable.isStaticAlloca() || type->isScalableTy())
    return unsupported(variable, "a variable of a size that is computed");
  if (count->getValue().ugt(kMaxVariableBytes) ||
      SaturatingMultiply(count->getZExtValue(),
                         sizeOf(type, module.getDataLayout())) >
          kMaxVariableBytes)
    return unsupported(variable, "a variable of more than 1 MiB");
  return Error::success();
}

Error Lowering::lowerLocal(Instruction &instruction, Value *address,
                           uint64_t bytes, StringRef op) {
  const DataLayout &layout = module.getDataLayout();
  auto *variable =
      dyn_cast<AllocaInst>(getUnderlyingObject(address, /*MaxLookup=*/0));
  if (!variable)
    return unsupported(instruction,
                       "an address in memory of a thread that is not in one "
                       "variable");
  // checkVariable has refused what has no size.
  const uint64_t size = variable->getAllocationSize(layout)->getFixedValue();
  IRBuilder<> builder(&instruction);
  Value *offset = builder.CreateSub(addressOf(builder, address),
                                    addressOf(builder, variable));
  Value *isFault =
      bytes > size
          ? builder.getTrue()
          : builder.CreateICmpUGT(offset, ConstantInt::get(i64, size - bytes));
  Site site{OpKind::LocalAccess};
  site.bytes = bytes;
  checkDefined(builder, isFault, offset, addSite(site, instruction, op));
  return Error::success();
}

Expected<uint64_t>
mlir::diffattn::sim::findStackBytes(Function &function,
                                    DenseMap<Function *, uint64_t> &known) {
  // A function that is entered and not left has all ones.
  auto [place, isNew] = known.try_emplace(&function, UINT64_MAX);
  if (!isNew) {
    if (place->second == UINT64_MAX)
      return createStringError(
          inconvertibleErrorCode(),
          "expected functions that do not call themselves, but @" +
              function.getName() + " does");
    return place->second;
  }
  uint64_t own = 0, deepest = 0;
  for (Instruction &instruction : instructions(function)) {
    if (auto *variable = dyn_cast<AllocaInst>(&instruction))
      own += alignTo(variable->getAllocationSize(function.getDataLayout())
                         ->getFixedValue(),
                     variable->getAlign());
    auto *call = dyn_cast<CallInst>(&instruction);
    Function *callee = call ? call->getCalledFunction() : nullptr;
    if (!callee || callee->isDeclaration())
      continue;
    Expected<uint64_t> below = findStackBytes(*callee, known);
    if (!below)
      return below.takeError();
    deepest = std::max(deepest, *below);
  }
  return known[&function] = own + deepest;
}
