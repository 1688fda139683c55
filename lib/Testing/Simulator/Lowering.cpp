//===- Lowering.cpp - kernels as code that calls the runtime --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"

#include "DiffAttn/Testing/Simulator/TensorMap.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Analysis/CFG.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/DebugInfo.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Transforms/Scalar/ScalarizeMaskedMemIntrin.h"
#include "llvm/Transforms/Utils/Local.h"

using namespace llvm;
using namespace mlir::diffattn::sim;

static constexpr unsigned kSharedSpace = 3;
/// Bytes that nothing may touch between two static arrays.
static constexpr uint32_t kRedZone = 64;

Lowering::Lowering(Module &module, Lowered &result, unsigned capability)
    : module(module), result(result), capability(capability),
      context(module.getContext()), voidType(Type::getVoidTy(context)),
      i32(Type::getInt32Ty(context)), i64(Type::getInt64Ty(context)),
      f32(Type::getFloatTy(context)), pointer(PointerType::getUnqual(context)) {
}

uint32_t Lowering::addSite(Site site, const Instruction &instruction,
                           StringRef op) {
  site.where.op = op.str();
  site.where.function = instruction.getFunction()->getName().str();
  if (const DILocation *location = instruction.getDebugLoc()) {
    site.where.file = location->getFilename().str();
    site.where.line = location->getLine();
    site.where.column = location->getColumn();
  }
  result.sites.push_back(std::move(site));
  return result.sites.size() - 1;
}

Error Lowering::unsupported(const Instruction &instruction,
                            const Twine &what) const {
  std::string place;
  raw_string_ostream os(place);
  os << " in @" << instruction.getFunction()->getName();
  if (const DILocation *location = instruction.getDebugLoc())
    os << " at " << location->getFilename() << ":" << location->getLine() << ":"
       << location->getColumn();
  return createStringError(inconvertibleErrorCode(),
                           "the simulator does not know " + what + place);
}

FunctionCallee Lowering::runtime(StringRef name, Type *resultType,
                                 ArrayRef<Type *> arguments, bool pure) {
  FunctionCallee callee = module.getOrInsertFunction(
      name, FunctionType::get(resultType, arguments, false));
  auto *function = cast<Function>(callee.getCallee());
  function->setDoesNotThrow();
  if (pure) {
    function->setDoesNotAccessMemory();
    function->setWillReturn();
  }
  return callee;
}

Value *Lowering::addressOf(IRBuilder<> &builder, Value *pointer) {
  return builder.CreatePtrToInt(pointer, i64);
}

/// A result below the normal numbers becomes a zero of its sign.
Value *Lowering::flush(IRBuilder<> &builder, Value *value) {
  Type *type = value->getType();
  if (!type->getScalarType()->isFloatTy())
    return value;
  Value *magnitude = builder.CreateUnaryIntrinsic(Intrinsic::fabs, value);
  Value *tiny =
      builder.CreateFCmpOLT(magnitude, ConstantFP::get(type, 0x1p-126));
  Value *zero = builder.CreateBinaryIntrinsic(
      Intrinsic::copysign, ConstantFP::get(type, 0.0), value);
  return builder.CreateSelect(tiny, zero, value);
}

/// Puts the parts of aggregates where they are taken out again. Without that
/// FastISel gives up each block that has an aggregate, and SelectionDAG takes
/// time that grows with the square of its parts, which of products by
/// warpgroups are many.
static void forwardParts(Function &function) {
  SmallVector<WeakTrackingVH> aggregates;
  for (Instruction &instruction : make_early_inc_range(instructions(function)))
    if (auto *extract = dyn_cast<ExtractValueInst>(&instruction)) {
      Value *aggregate = extract->getAggregateOperand();
      if (Value *part = FindInsertedValue(aggregate, extract->getIndices());
          part && part != extract) {
        extract->replaceAllUsesWith(part);
        extract->eraseFromParent();
        aggregates.push_back(aggregate);
      }
    }
  RecursivelyDeleteTriviallyDeadInstructionsPermissive(aggregates);
}

Error Lowering::lowerFunction(Function &function) {
  SmallVector<Instruction *> accesses, calls, divisions, ends;
  for (Instruction &instruction : instructions(function)) {
    if (auto *variable = dyn_cast<AllocaInst>(&instruction))
      if (Error error = checkVariable(*variable))
        return error;
    if (isa<LoadInst, StoreInst, AtomicRMWInst, AtomicCmpXchgInst>(instruction))
      accesses.push_back(&instruction);
    else if (isa<CallInst>(instruction))
      calls.push_back(&instruction);
    else if (isa<UnreachableInst>(instruction))
      ends.push_back(&instruction);
    else if (instruction.isIntDivRem())
      divisions.push_back(&instruction);
    else if (isa<InvokeInst, CallBrInst>(instruction) ||
             instruction.getOpcode() == Instruction::FRem)
      return unsupported(instruction, instruction.getOpcodeName());
  }
  SmallVector<std::pair<const BasicBlock *, const BasicBlock *>> backEdges;
  FindFunctionBackedges(function, backEdges);

  IRBuilder<> entry(&*function.getEntryBlock().getFirstInsertionPt());
  capacity = getWords(function);
  Type *words = ArrayType::get(i32, capacity);
  in = entry.CreateAlloca(words);
  out = entry.CreateAlloca(words);
  noteRegisters(function);
  for (Instruction *access : accesses)
    if (Error error = lowerAccess(*access))
      return error;
  for (Instruction *division : divisions)
    lowerDivision(cast<BinaryOperator>(*division));
  for (Instruction *end : ends)
    lowerUnreachable(cast<UnreachableInst>(*end));
  for (Instruction *call : calls)
    if (Error error = lowerIntrinsic(cast<CallInst>(*call)))
      return error;
  forwardParts(function);
  // A loop that waits for something which never comes is stopped by its own
  // step.
  SmallPtrSet<const BasicBlock *, 8> stepped;
  for (auto [from, to] : backEdges) {
    if (!stepped.insert(from).second)
      continue;
    Instruction *jump = const_cast<BasicBlock *>(from)->getTerminator();
    uint32_t site = addSite(Site{OpKind::Step}, *jump, "loop");
    IRBuilder<>(jump).CreateCall(runtime("diffattn_sim_step", voidType, {i32}),
                                 {ConstantInt::get(i32, site)});
  }
  return Error::success();
}

/// The functions that `kernel` can reach.
static SetVector<Function *> reachableFrom(Function &kernel) {
  SetVector<Function *> reached;
  reached.insert(&kernel);
  for (size_t i = 0; i < reached.size(); ++i)
    for (Instruction &instruction : instructions(*reached[i]))
      for (Value *operand : instruction.operands())
        if (auto *callee = dyn_cast<Function>(operand->stripPointerCasts()))
          reached.insert(callee);
  return reached;
}

/// The functions that use `value`, also through constant expressions.
static void collectUsers(Value &value, SetVector<Function *> &users) {
  for (User *user : value.users()) {
    if (auto *instruction = dyn_cast<Instruction>(user))
      users.insert(instruction->getFunction());
    else
      collectUsers(*user, users);
  }
}

static bool isKernel(const Function &function) {
  return function.getCallingConv() == CallingConv::PTX_Kernel ||
         function.hasFnAttribute("nvvm.kernel");
}

/// Gives every static array an address of the alignment that it declares and no
/// more, and dynamic memory the one after them.
static void placeShared(Module &module, Lowered &result) {
  DenseMap<Function *, SetVector<Function *>> reached;
  SmallVector<Function *> kernels;
  for (Function &function : module)
    if (isKernel(function) && !function.isDeclaration()) {
      kernels.push_back(&function);
      reached[&function] = reachableFrom(function);
    }
  SmallVector<GlobalVariable *> statics, dynamics;
  uint64_t dynamicAlignment = 16;
  for (GlobalVariable &global : module.globals()) {
    if (global.getAddressSpace() != kSharedSpace)
      continue;
    if (module.getDataLayout()
            .getTypeAllocSize(global.getValueType())
            .getFixedValue() == 0) {
      dynamics.push_back(&global);
      dynamicAlignment = std::max<uint64_t>(
          dynamicAlignment, global.getAlign().valueOrOne().value());
    } else {
      statics.push_back(&global);
    }
  }
  auto oddMultiple = [](uint64_t offset, uint64_t alignment) {
    uint64_t multiple = divideCeil(offset, alignment);
    return (multiple | 1) * alignment;
  };
  uint64_t offset = kRedZone;
  auto replace = [&](GlobalVariable &global, uint64_t at) {
    Constant *address = ConstantInt::get(Type::getInt64Ty(module.getContext()),
                                         kSharedBase + at);
    global.replaceAllUsesWith(
        ConstantExpr::getIntToPtr(address, global.getType()));
    global.eraseFromParent();
  };
  for (GlobalVariable *global : statics) {
    uint64_t bytes = module.getDataLayout()
                         .getTypeAllocSize(global->getValueType())
                         .getFixedValue();
    uint64_t alignment = std::max(
        global->getAlign().valueOrOne().value(),
        module.getDataLayout().getABITypeAlign(global->getValueType()).value());
    offset = oddMultiple(offset, alignment);
    SetVector<Function *> users;
    collectUsers(*global, users);
    for (size_t number = 0; number < kernels.size(); ++number)
      if (any_of(users, [&](Function *user) {
            return reached[kernels[number]].contains(user);
          }))
        result.kernels[number].arrays.push_back(result.arrays.size());
    result.arrays.push_back(
        {global->getName().str(), uint32_t(offset), uint32_t(bytes)});
    replace(*global, offset);
    offset += bytes + kRedZone;
  }
  result.dynamicOffset = oddMultiple(offset, dynamicAlignment);
  for (GlobalVariable *global : dynamics) {
    SetVector<Function *> users;
    collectUsers(*global, users);
    for (size_t number = 0; number < kernels.size(); ++number)
      if (any_of(users, [&](Function *user) {
            return reached[kernels[number]].contains(user);
          }))
        result.kernels[number].usesDynamic = true;
    replace(*global, result.dynamicOffset);
  }
}

/// Reads up to three numbers of an attribute such as "nvvm.reqntid"="128,1,1".
static SmallVector<uint32_t, 3> numbersOf(const Function &function,
                                          StringRef attribute) {
  SmallVector<uint32_t, 3> numbers;
  SmallVector<StringRef> parts;
  function.getFnAttribute(attribute).getValueAsString().split(
      parts, ',', -1, /*KeepEmpty=*/false);
  for (StringRef part : parts) {
    uint32_t number = 0;
    if (!part.trim().getAsInteger(10, number))
      numbers.push_back(number);
  }
  return numbers;
}

static Error describeKernels(Module &module, Lowered &result) {
  for (Function &function : module) {
    if (!isKernel(function) || function.isDeclaration())
      continue;
    // Launches and entries find it by its name.
    if (!function.hasName())
      return createStringError(inconvertibleErrorCode(),
                               "expected a name for each kernel, but got one "
                               "without");
    LoweredKernel kernel;
    kernel.name = function.getName().str();
    kernel.entry =
        "diffattn_sim_entry_" + std::to_string(result.kernels.size());
    for (Argument &argument : function.args()) {
      if (Type *object = argument.getParamByValType()) {
        if (module.getDataLayout().getTypeAllocSize(object) !=
                sizeof(TensorMapHandle) ||
            argument.getParamAlign().valueOrOne() <
                Align::Constant<alignof(TensorMapHandle)>())
          return createStringError(
              inconvertibleErrorCode(),
              "expected 128 bytes, aligned to 64, in what kernel @" +
                  kernel.name +
                  " takes by value, but got another for argument " +
                  Twine(argument.getArgNo()));
        kernel.parameters.push_back({sizeof(TensorMapHandle), false});
        continue;
      }
      if (!argument.getType()->isSingleValueType() ||
          argument.getType()->isVectorTy())
        return createStringError(
            inconvertibleErrorCode(),
            "expected scalars, pointers and tensor maps as arguments of kernel "
            "@" +
                kernel.name + ", but got another for argument " +
                Twine(argument.getArgNo()));
      const uint64_t bytes =
          module.getDataLayout().getTypeStoreSize(argument.getType());
      kernel.parameters.push_back(
          {uint32_t(bytes), argument.getType()->isPointerTy()});
    }
    SmallVector<uint32_t, 3> required = numbersOf(function, "nvvm.reqntid"),
                             most = numbersOf(function, "nvvm.maxntid"),
                             cluster = numbersOf(function, "nvvm.cluster_dim");
    for (size_t i = 0; i < cluster.size() && i < 3; ++i)
      kernel.cluster[i] = cluster[i];
    for (size_t i = 0; i < required.size() && i < 3; ++i)
      kernel.requiredBlock[i] = required[i];
    for (size_t i = required.size(); !required.empty() && i < 3; ++i)
      kernel.requiredBlock[i] = 1;
    if (!most.empty())
      kernel.maxThreads = std::accumulate(most.begin(), most.end(), 1u,
                                          std::multiplies<uint32_t>());
    result.kernels.push_back(std::move(kernel));
  }
  return Error::success();
}

/// Adds `entry(words)`, which calls the kernel with its arguments taken from
/// `words`.
static void addEntry(Module &module, const LoweredKernel &kernel) {
  LLVMContext &context = module.getContext();
  Type *i64 = Type::getInt64Ty(context),
       *pointer = PointerType::getUnqual(context);
  auto *type = FunctionType::get(Type::getVoidTy(context), {pointer}, false);
  Function *entry = Function::Create(type, GlobalValue::ExternalLinkage,
                                     kernel.entry, module);
  IRBuilder<> builder(BasicBlock::Create(context, "", entry));
  Function *callee = module.getFunction(kernel.name);
  SmallVector<Value *> values;
  for (Argument &argument : callee->args()) {
    Value *slot =
        builder.CreateConstGEP1_64(i64, entry->getArg(0), argument.getArgNo());
    if (argument.getType()->isPointerTy())
      values.push_back(builder.CreateIntToPtr(builder.CreateLoad(i64, slot),
                                              argument.getType()));
    else
      values.push_back(builder.CreateLoad(argument.getType(), slot));
  }
  builder.CreateCall(callee, values);
  builder.CreateRetVoid();
}

/// f64 as f32 rounded to odd: a second rounding then sees whether anything was
/// cut off.
static Value *roundToOdd(IRBuilder<> &builder, Value *wide) {
  Type *single = builder.getFloatTy(), *i32 = builder.getInt32Ty();
  Value *near = builder.CreateFPTrunc(wide, single);
  Value *bits = builder.CreateBitCast(near, i32);
  Value *back = builder.CreateFPExt(near, wide->getType());
  Value *inexact = builder.CreateFCmpONE(back, wide);
  Value *away = builder.CreateFCmpOGT(
      builder.CreateUnaryIntrinsic(Intrinsic::fabs, back),
      builder.CreateUnaryIntrinsic(Intrinsic::fabs, wide));
  Value *cut = builder.CreateSub(bits, builder.CreateZExt(away, i32));
  return builder.CreateBitCast(
      builder.CreateSelect(inexact, builder.CreateOr(cut, 1), bits), single);
}

static Value *roundToBfloat(IRBuilder<> &builder, Value *single) {
  Type *i32 = builder.getInt32Ty();
  Value *bits = builder.CreateBitCast(single, i32);
  Value *odd = builder.CreateAnd(builder.CreateLShr(bits, 16), 1);
  Value *rounded = builder.CreateLShr(
      builder.CreateAdd(builder.CreateAdd(bits, ConstantInt::get(i32, 0x7fff)),
                        odd),
      16);
  Value *isNan = builder.CreateFCmpUNO(single, single);
  Value *half = builder.CreateTrunc(
      builder.CreateSelect(isNan, ConstantInt::get(i32, 0x7fff), rounded),
      builder.getInt16Ty());
  return builder.CreateBitCast(half, builder.getBFloatTy());
}

/// Defines the functions that x86 code calls to round to 16 bits: neither
/// libgcc nor the instructions of every CPU round to bf16 with subnormals kept,
/// and none rounds f64 to f16.
static void addRounding(Module &module) {
  LLVMContext &context = module.getContext();
  Type *f32 = Type::getFloatTy(context), *f64 = Type::getDoubleTy(context),
       *bfloat = Type::getBFloatTy(context), *half = Type::getHalfTy(context);
  const std::tuple<StringRef, Type *, Type *> functions[] = {
      {"__truncsfbf2", f32, bfloat},
      {"__truncdfbf2", f64, bfloat},
      {"__truncdfhf2", f64, half}};
  for (auto [name, source, target] : functions) {
    Function *function =
        Function::Create(FunctionType::get(target, {source}, false),
                         GlobalValue::ExternalLinkage, name, module);
    IRBuilder<> builder(BasicBlock::Create(context, "", function));
    Value *single = function->getArg(0);
    if (source == f64)
      single = roundToOdd(builder, single);
    builder.CreateRet(target == bfloat ? roundToBfloat(builder, single)
                                       : builder.CreateFPTrunc(single, half));
  }
}

/// Loads and stores of some of the elements of a vector become branches, as
/// NVPTX makes of them.
static void scalarizeMaskedAccesses(Module &module) {
  LoopAnalysisManager loops;
  FunctionAnalysisManager functions;
  CGSCCAnalysisManager components;
  ModuleAnalysisManager modules;
  PassBuilder builder;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  for (Function &function : module)
    if (!function.isDeclaration())
      ScalarizeMaskedMemIntrinPass().run(function, functions);
}

Expected<Lowered> mlir::diffattn::sim::lowerKernels(Module &module,
                                                    unsigned capability) {
  scalarizeMaskedAccesses(module);
  Lowered result;
  // Number 0 is no instruction.
  result.sites.emplace_back();
  result.sites.back().where.op = "start of the kernel";
  if (Error error = describeKernels(module, result))
    return error;
  placeShared(module, result);
  SmallVector<Function *> bodies;
  for (Function &function : module)
    if (!function.isDeclaration())
      bodies.push_back(&function);
  Lowering lowering(module, result, capability);
  for (Function *function : bodies)
    if (Error error = lowering.lowerFunction(*function))
      return error;
  DenseMap<Function *, uint64_t> stackBytes;
  for (LoweredKernel &kernel : result.kernels) {
    auto bytes = findStackBytes(*module.getFunction(kernel.name), stackBytes);
    if (!bytes)
      return bytes.takeError();
    kernel.stackBytes = *bytes;
  }
  // Sites are numbered in 16 bits where each byte of shared memory has one.
  if (result.sites.size() > UINT16_MAX)
    return createStringError(inconvertibleErrorCode(),
                             "expected at most 65535 instructions that touch "
                             "memory or other threads, but got " +
                                 Twine(result.sites.size()));
  for (Function *function : bodies) {
    function->setCallingConv(CallingConv::C);
    for (Argument &argument : function->args())
      argument.removeAttr(Attribute::ByVal);
    function->setAttributes(
        function->getAttributes().removeFnAttributes(module.getContext()));
    for (User *user : function->users())
      if (auto *call = dyn_cast<CallBase>(user))
        call->setCallingConv(CallingConv::C);
  }
  for (GlobalVariable &global : module.globals()) {
    if (!global.hasInitializer())
      return createStringError(inconvertibleErrorCode(),
                               "expected a value for global @" +
                                   global.getName());
    global.setLinkage(GlobalValue::ExternalLinkage);
    global.setName("diffattn_sim_constant_" + global.getName());
    result.constants.push_back(
        {global.getName().str(), module.getDataLayout()
                                     .getTypeAllocSize(global.getValueType())
                                     .getFixedValue()});
  }
  for (const LoweredKernel &kernel : result.kernels)
    addEntry(module, kernel);
  addRounding(module);
  StripDebugInfo(module);
  return result;
}
