//===- RuntimeFunctionsTest.cpp - compiled code and runtime agree ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Interfaces/DataLayoutInterfaces.h"
#include "gtest/gtest.h"

#include <dlfcn.h>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class RuntimeFunctions : public testing::Test {
protected:
  RuntimeFunctions() { context.loadDialect<LLVM::LLVMDialect>(); }
  static std::string print(Type type) {
    std::string text;
    llvm::raw_string_ostream(text) << type;
    return text;
  }
  std::string typeOf(RuntimeFunction function) {
    return print(getRuntimeFunctionType(&context, function));
  }
  MLIRContext context;
};

/// Written out once more: a change of the ABI must be meant.
TEST_F(RuntimeFunctions, HaveTheTypesOfTheHeader) {
  EXPECT_EQ(typeOf(RuntimeFunction::parallel_for),
            "!llvm.func<void (ptr, ptr, i64, i64, i64)>");
  EXPECT_EQ(typeOf(RuntimeFunction::alloc), "!llvm.func<ptr (i64)>");
  EXPECT_EQ(typeOf(RuntimeFunction::mark), "!llvm.func<i64 ()>");
  EXPECT_EQ(typeOf(RuntimeFunction::gemm),
            "!llvm.func<void (i32, i32, i32, i64, i64, i64, ptr, i64, ptr, "
            "i64, i32, ptr, i64, f32, ptr, i64)>");
  EXPECT_EQ(typeOf(RuntimeFunction::device_launch),
            "!llvm.func<void (i32, ptr, ptr)>");
  EXPECT_EQ(typeOf(RuntimeFunction::device_gemm),
            "!llvm.func<void (i32, i32, i32, i64, i64, i64, ptr, i64, ptr, "
            "i64, i32, ptr, i64, f32, i64, i64, i64, i64)>");
  EXPECT_EQ(typeOf(RuntimeFunction::fail_with),
            "!llvm.func<void (ptr, i64, i64)>");
  EXPECT_EQ(typeOf(RuntimeFunction::trace_begin),
            "!llvm.func<void (ptr, i64, i64)>");
  EXPECT_EQ(typeOf(RuntimeFunction::trace_end), "!llvm.func<void ()>");
}

/// Every name is one that the runtime exports, and the runtime's table has it.
TEST_F(RuntimeFunctions, AreTheRuntimes) {
  const diffattn_rt_table *table = diffattn_rt_get_table();
  auto check = [&](RuntimeFunction function, void *address) {
    StringRef name = getRuntimeFunctionName(function);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, name.data()), address) << name.str();
  };
#define DIFFATTN_ROW(name)                                                     \
  check(RuntimeFunction::name, reinterpret_cast<void *>(table->name));
  DIFFATTN_RT_TABLE(DIFFATTN_ROW)
  DIFFATTN_RT_LATER_TABLE(DIFFATTN_ROW)
#undef DIFFATTN_ROW
#define DIFFATTN_ROW(name)                                                     \
  check(RuntimeFunction::device_##name,                                        \
        reinterpret_cast<void *>(table->device_##name));
  DIFFATTN_RT_DEVICE_TABLE(DIFFATTN_ROW)
#undef DIFFATTN_ROW
}

/// LLVM lays a slot out as the C compiler does.
TEST_F(RuntimeFunctions, SlotsAreLaidOutAsInC) {
  LLVM::LLVMStructType slot = getWeightSlotType(&context);
  DataLayout layout;
  const std::pair<size_t, size_t> fields[] = {
#define DIFFATTN_FIELD(type, name)                                             \
  {offsetof(diffattn_weight, name), sizeof(type)},
      DIFFATTN_WEIGHT_FIELDS(DIFFATTN_FIELD)
#undef DIFFATTN_FIELD
  };
  ASSERT_EQ(slot.getBody().size(), std::size(fields));
  uint64_t offset = 0;
  for (auto [type, field] : llvm::zip(slot.getBody(), fields)) {
    offset = llvm::alignTo(offset, layout.getTypeABIAlignment(type));
    EXPECT_EQ(offset, field.first) << print(type);
    EXPECT_EQ(layout.getTypeSize(type).getFixedValue(), field.second);
    offset += field.second;
  }
  EXPECT_EQ(layout.getTypeSize(slot).getFixedValue(), sizeof(diffattn_weight));
}

TEST_F(RuntimeFunctions, ElementTypesHaveTheirNumbers) {
  Builder b(&context);
  EXPECT_EQ(getElementTypeCode(b.getF32Type()), DIFFATTN_F32);
  EXPECT_EQ(getElementTypeCode(b.getBF16Type()), DIFFATTN_BF16);
  EXPECT_EQ(getElementTypeCode(b.getIndexType()), DIFFATTN_I64);
  EXPECT_EQ(getElementTypeCode(b.getI1Type()), DIFFATTN_BOOL);
  EXPECT_EQ(getElementTypeCode(b.getIntegerType(8)), DIFFATTN_I8);
  EXPECT_EQ(getElementTypeCode(b.getIntegerType(16, /*isSigned=*/true)),
            DIFFATTN_I16);
  EXPECT_EQ(getElementTypeCode(b.getIntegerType(8, /*isSigned=*/false)),
            DIFFATTN_U8);
  for (Type none : {Type(b.getIntegerType(32, /*isSigned=*/false)),
                    Type(b.getIntegerType(4)), Type(b.getTF32Type()),
                    Type(ComplexType::get(b.getF32Type()))})
    EXPECT_EQ(getElementTypeCode(none), std::nullopt) << print(none);
}

/// A module that has something else under the name gets an error.
TEST_F(RuntimeFunctions, AnotherFunctionOfTheNameIsAnError) {
  Location loc = UnknownLoc::get(&context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  OpBuilder b = OpBuilder::atBlockBegin(module->getBody());
  auto declared =
      getOrDeclareRuntimeFunction(b, *module, RuntimeFunction::alloc);
  ASSERT_TRUE(succeeded(declared));
  EXPECT_EQ(*getOrDeclareRuntimeFunction(b, *module, RuntimeFunction::alloc),
            *declared);
  LLVM::LLVMFuncOp::create(
      b, loc, "diffattn_rt_mark",
      LLVM::LLVMFunctionType::get(b.getF32Type(), {b.getF32Type()}));
  ScopedDiagnosticHandler quiet(&context,
                                [](Diagnostic &) { return success(); });
  EXPECT_TRUE(
      failed(getOrDeclareRuntimeFunction(b, *module, RuntimeFunction::mark)));
}

} // namespace
