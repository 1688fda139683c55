//===- SmallGemmTest.cpp - products with few rows, run --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Products/SmallGemm.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/ExecutionEngine/ExecutionEngine.h"
#include "mlir/IR/Builders.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/Support/TargetSelect.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

using Function = void (*)(const void *a, int64_t lda, const void *b,
                          int64_t ldb, void *c, int64_t ldc, int64_t m,
                          int64_t n, int64_t k, int64_t maxThreads);

/// One kernel, compiled for this machine.
class Kernel {
public:
  Kernel(Type a, Type b, Type c, bool accumulate, const CpuTarget &target) {
    MLIRContext *context = a.getContext();
    Location loc = UnknownLoc::get(context);
    module = ModuleOp::create(loc);
    SmallGemmSpec spec{a, b, c, accumulate, target};
    LLVM::LLVMFuncOp function = getOrEmitSmallGemm(*module, loc, spec);
    EXPECT_EQ(function, getOrEmitSmallGemm(*module, loc, spec));
    function.setLinkage(LLVM::Linkage::External);
    std::string name = function.getName().str();
    PassManager pm(context);
    pm.addPass(createSCFToControlFlowPass());
    pm.addPass(createConvertVectorToLLVMPass());
    pm.addPass(createArithToLLVMConversionPass());
    pm.addPass(createConvertControlFlowToLLVMPass());
    pm.addPass(createReconcileUnrealizedCastsPass());
    EXPECT_TRUE(succeeded(pm.run(*module)));
    auto made = ExecutionEngine::create(*module);
    EXPECT_TRUE(static_cast<bool>(made));
    engine = std::move(*made);
    auto address = engine->lookup(name);
    EXPECT_TRUE(static_cast<bool>(address));
    run = reinterpret_cast<Function>(*address);
  }

  Function run = nullptr;

private:
  OwningOpRef<ModuleOp> module;
  std::unique_ptr<ExecutionEngine> engine;
};

/// Numbers of one type in memory, and as double.
struct Matrix {
  Matrix(Type type, int64_t rows, int64_t columns, int64_t stride,
         std::mt19937 &random)
      : type(type), stride(stride),
        bytes(rows * stride * type.getIntOrFloatBitWidth() / 8, 0xff) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        set(r, c, normal(random));
  }
  void set(int64_t r, int64_t c, float value) {
    APFloat number(value);
    bool lost;
    number.convert(cast<FloatType>(type).getFloatSemantics(),
                   APFloat::rmNearestTiesToEven, &lost);
    uint64_t bits = number.bitcastToAPInt().getZExtValue();
    int64_t size = type.getIntOrFloatBitWidth() / 8;
    std::memcpy(&bytes[(r * stride + c) * size], &bits, size);
  }
  double get(int64_t r, int64_t c) const {
    int64_t size = type.getIntOrFloatBitWidth() / 8;
    uint64_t bits = 0;
    std::memcpy(&bits, &bytes[(r * stride + c) * size], size);
    APFloat number(cast<FloatType>(type).getFloatSemantics(),
                   APInt(8 * size, bits));
    return number.convertToDouble();
  }
  Type type;
  int64_t stride;
  std::vector<uint8_t> bytes;
};

class SmallGemm : public ::testing::Test {
protected:
  SmallGemm() {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    registerBuiltinDialectTranslation(context);
    registerLLVMDialectTranslation(context);
    context.loadDialect<arith::ArithDialect, scf::SCFDialect,
                        vector::VectorDialect, LLVM::LLVMDialect>();
    types = {Float32Type::get(&context), Float16Type::get(&context),
             BFloat16Type::get(&context)};
    for (const CpuTarget &target : getCpuTargets())
      if (!target.hasBf16Dot() && hostSupports(target))
        targets.push_back(target);
  }
  MLIRContext context;
  SmallVector<Type> types;
  SmallVector<CpuTarget> targets;
};

TEST_F(SmallGemm, MatchesDoubleForEveryTypeAndIsa) {
  std::mt19937 random(1);
  for (const CpuTarget &target : targets)
    for (Type type : types)
      for (bool accumulate : {false, true}) {
        Type a = type, b = type, c = accumulate ? types[0] : type;
        Kernel kernel(a, b, c, accumulate, target);
        for (int64_t k : {1, 4, 15, 16, 33, 64, 100, 257})
          for (int64_t m : {1, 3, 4, 8}) {
            int64_t n = 19;
            Matrix x(a, m, k, k + 3, random), w(b, n, k, k + 1, random),
                y(c, m, n, n + 2, random), before = y;
            kernel.run(x.bytes.data(), x.stride, w.bytes.data(), w.stride,
                       y.bytes.data(), y.stride, m, n, k, 0);
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j) {
                double sum = accumulate ? before.get(i, j) : 0, bound = 1;
                for (int64_t l = 0; l < k; ++l) {
                  sum += x.get(i, l) * w.get(j, l);
                  bound += std::abs(x.get(i, l) * w.get(j, l));
                }
                double u = c.isF32() ? 1e-6 : c.isF16() ? 5e-4 : 4e-3;
                ASSERT_NEAR(y.get(i, j), sum, u * bound)
                    << target.name.str() << " m " << m << " k " << k;
              }
          }
      }
}

TEST_F(SmallGemm, ARowIsTheSameForEveryNumberOfRowsAndThreads) {
  std::mt19937 random(2);
  for (const CpuTarget &target : targets) {
    Kernel kernel(types[0], types[0], types[0], false, target);
    int64_t n = 700, k = 333;
    Matrix x(types[0], 8, k, k, random), w(types[0], n, k, k, random),
        all(types[0], 8, n, n, random), one(types[0], 8, n, n, random);
    kernel.run(x.bytes.data(), k, w.bytes.data(), k, all.bytes.data(), n, 8, n,
               k, 1);
    for (int64_t i = 0; i < 8; ++i)
      kernel.run(&x.bytes[i * k * 4], k, w.bytes.data(), k,
                 &one.bytes[i * n * 4], n, 1, n, k, 2);
    EXPECT_EQ(all.bytes, one.bytes);
  }
}

} // namespace
