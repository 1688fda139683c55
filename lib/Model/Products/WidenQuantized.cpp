//===- WidenQuantized.cpp - quantized weights for the library -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With many rows of A a product is bound by arithmetic, and the library's is
// the fastest. It takes some rows of B at a time, widened to the type of A in
// memory that stays in a cache; each is widened once for all rows of A.
//
//===----------------------------------------------------------------------===//
#include "QuantizedBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Slots of a work item's arguments.
enum Slot { B, Scales, Out, K, NumSlots };
} // namespace

/// Rows of B as `spec.aType`, from row 0 of `Out` on.
static void emitItem(QuantizedBuilder &b, TypeRange types, Value context,
                     Value index) {
  QuantizedBuilder::Item item = b.readItem(context, index, types);
  Value k = item.slots[K], groups = b.div(k, b.spec.group);
  Type type = b.spec.aType;
  b.loop(item.first, item.last, 1, [&](Value n) {
    Value row = b.at(item.slots[B], b.i8, b.mul(n, b.bytesOf(k))),
          scales = b.at(item.slots[Scales], b.f32, b.mul(n, groups)),
          out = b.at(item.slots[Out], type, b.mul(n, k));
    b.loop(groups, [&](Value group) {
      Value scale = b.splat(b.load(b.f32, scales, group));
      Value first = b.mul(group, b.spec.group);
      b.loop(first, b.add(first, b.spec.group), b.unit, [&](Value at) {
        SmallVector<Value> parts = b.loadUnit(row, b.bytesOf(at));
        for (Value &part : parts)
          part = b.mulf(part, scale);
        for (auto [i, vector] : llvm::enumerate(b.fromUnit(parts)))
          b.storeNarrow(vector, out, type,
                        b.add(at, static_cast<int64_t>(i) * b.lanes));
      });
    });
  });
}

/// Calls the runtime's product for `rows` rows of B.
static void callGemm(QuantizedBuilder &b, ModuleOp module, ValueRange args,
                     Value wide, Value c, Value rows) {
  auto i32 = [&](int32_t value) -> Value {
    return LLVM::ConstantOp::create(b, b.i32, value);
  };
  Value beta = LLVM::ConstantOp::create(
      b, b.f32, b.getF32FloatAttr(b.spec.accumulate ? 1.0f : 0.0f));
  Value a = args[0], lda = args[1], ldc = args[5], m = args[6], k = args[8];
  LLVM::CallOp::create(b, b.getRuntimeFunction(module, RuntimeFunction::gemm),
                       ValueRange{i32(*getElementTypeCode(b.spec.aType)),
                                  i32(*getElementTypeCode(b.spec.aType)),
                                  i32(*getElementTypeCode(b.spec.cType)), m,
                                  rows, k, a, lda, wide, k,
                                  i32(DIFFATTN_GEMM_TRANSPOSE_B), c, ldc, beta,
                                  LLVM::ZeroOp::create(b, b.pointer), args[9]});
}

LLVM::LLVMFuncOp
mlir::diffattn::getOrEmitWidenedGemm(ModuleOp module, Location loc,
                                     const QuantizedGemmSpec &spec) {
  QuantizedBuilder b(loc, spec);
  std::string name = b.nameOf("widened_gemm");
  if (auto existing = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return existing;
  Type p = b.pointer, i = b.i64;
  SmallVector<Type> types{p, p, p, i};
  LLVM::LLVMFuncOp item = b.getOrEmitFunction(
      module, name + "_item", {p, i, p},
      [&](ValueRange args) { emitItem(b, types, args[0], args[1]); });
  LLVM::LLVMFuncOp mark = b.getRuntimeFunction(module, RuntimeFunction::mark),
                   alloc = b.getRuntimeFunction(module, RuntimeFunction::alloc),
                   release =
                       b.getRuntimeFunction(module, RuntimeFunction::release);
  return b.getOrEmitFunction(
      module, name, {p, i, p, p, p, i, i, i, i, i}, [&](ValueRange args) {
        Value bytes = args[2], scales = args[3], c = args[4], n = args[7],
              k = args[8];
        Value rowBytes = b.mul(k, spec.aType.getIntOrFloatBitWidth() / 8);
        Value atOnce =
            b.min(n, b.max(b.div(b.index(b.schedule.wideBytes), rowBytes),
                           b.index(1)));
        Value before = LLVM::CallOp::create(b, mark, ValueRange()).getResult();
        Value wide =
            LLVM::CallOp::create(b, alloc, b.mul(atOnce, rowBytes)).getResult();
        Value steps = b.div(b.add(n, b.sub(atOnce, b.index(1))), atOnce);
        b.loop(steps, [&](Value step) {
          Value first = b.mul(step, atOnce),
                rows = b.min(atOnce, b.sub(n, first));
          Value fromB = b.at(bytes, b.i8, b.mul(first, b.bytesOf(k))),
                fromScales =
                    b.at(scales, b.f32, b.mul(first, b.div(k, spec.group)));
          b.callItems(module, item, rows, k, {fromB, fromScales, wide, k},
                      args[9]);
          callGemm(b, module, args, wide, b.at(c, spec.cType, first), rows);
        });
        LLVM::CallOp::create(b, release, before);
      });
}
