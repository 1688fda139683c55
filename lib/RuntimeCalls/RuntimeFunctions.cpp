//===- RuntimeFunctions.cpp - the runtime as compiled code sees it --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/LLVMIR/FunctionCallUtils.h"
#include "llvm/Support/raw_ostream.h"

#include <type_traits>

using namespace mlir;
using namespace mlir::diffattn;

/// The LLVM type of the C type `T`.
template <typename T>
static Type getLLVMType(MLIRContext *context) {
  if constexpr (std::is_void_v<T>) {
    return LLVM::LLVMVoidType::get(context);
  } else if constexpr (std::is_pointer_v<T>) {
    return LLVM::LLVMPointerType::get(context);
  } else if constexpr (std::is_same_v<T, float>) {
    return Float32Type::get(context);
  } else {
    static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>,
                  "expected a type that is passed in one register");
    return IntegerType::get(context, 8 * sizeof(T));
  }
}

/// The LLVM type of a pointer to a C function.
template <typename Function>
struct FunctionTypeOf;
template <typename Result, typename... Arguments>
struct FunctionTypeOf<Result (*)(Arguments...)> {
  static LLVM::LLVMFunctionType get(MLIRContext *context) {
    return LLVM::LLVMFunctionType::get(getLLVMType<Result>(context),
                                       {getLLVMType<Arguments>(context)...});
  }
};

namespace {
struct Declaration {
  StringLiteral name;
  LLVM::LLVMFunctionType (*getType)(MLIRContext *);
};
} // namespace

/// Declarations in the order of RuntimeFunction. Only types are taken of the
/// functions: the compiler does not link the runtime.
static constexpr Declaration kDeclarations[] = {
#define DIFFATTN_ROW(name)                                                     \
  {"diffattn_rt_" #name, FunctionTypeOf<decltype(&diffattn_rt_##name)>::get},
    DIFFATTN_RT_TABLE(DIFFATTN_ROW) DIFFATTN_RT_LATER_TABLE(DIFFATTN_ROW)
#undef DIFFATTN_ROW
#define DIFFATTN_ROW(name)                                                     \
  {"diffattn_rt_device_" #name,                                                \
   FunctionTypeOf<decltype(&diffattn_rt_device_##name)>::get},
        DIFFATTN_RT_DEVICE_TABLE(DIFFATTN_ROW)
#undef DIFFATTN_ROW
};

static const Declaration &getDeclaration(RuntimeFunction function) {
  return kDeclarations[static_cast<size_t>(function)];
}

StringRef mlir::diffattn::getRuntimeFunctionName(RuntimeFunction function) {
  return getDeclaration(function).name;
}

bool mlir::diffattn::isRuntimeFunctionName(StringRef name) {
  return llvm::any_of(kDeclarations, [&](const Declaration &declaration) {
    return declaration.name == name;
  });
}

LLVM::LLVMFunctionType
mlir::diffattn::getRuntimeFunctionType(MLIRContext *context,
                                       RuntimeFunction function) {
  return getDeclaration(function).getType(context);
}

FailureOr<LLVM::LLVMFuncOp> mlir::diffattn::getOrDeclareRuntimeFunction(
    OpBuilder &builder, Operation *module, RuntimeFunction function) {
  auto type = getRuntimeFunctionType(module->getContext(), function);
  return LLVM::lookupOrCreateFn(builder, module,
                                getRuntimeFunctionName(function),
                                type.getParams(), type.getReturnType());
}

LogicalResult mlir::diffattn::verifyThreads(Operation *module,
                                            int64_t threads) {
  if (threads >= 0 && threads <= DIFFATTN_RT_MAX_THREADS)
    return success();
  return module->emitError()
         << "expected threads from 0 to " << DIFFATTN_RT_MAX_THREADS
         << ", but got " << threads;
}

LLVM::LLVMStructType mlir::diffattn::getWeightSlotType(MLIRContext *context) {
  return LLVM::LLVMStructType::getLiteral(
      context, {
#define DIFFATTN_FIELD(type, name) getLLVMType<type>(context),
                   DIFFATTN_WEIGHT_FIELDS(DIFFATTN_FIELD)
#undef DIFFATTN_FIELD
               });
}

std::optional<int32_t> mlir::diffattn::getElementTypeCode(Type type) {
  if (type.isIndex())
    return DIFFATTN_I64;
  auto integer = dyn_cast<IntegerType>(type);
  if (integer && (integer.isSigned() || integer.getWidth() == 1))
    type = IntegerType::get(type.getContext(), integer.getWidth());
  std::string name;
  llvm::raw_string_ostream(name) << type;
#define DIFFATTN_ROW(row, number, text, bytes, isFloat)                        \
  if (name == (text))                                                          \
    return DIFFATTN_##row;
  DIFFATTN_DTYPES(DIFFATTN_ROW)
#undef DIFFATTN_ROW
  return std::nullopt;
}
