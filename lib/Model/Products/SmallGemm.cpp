//===- SmallGemm.cpp - products with few rows -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With few rows of A the time is that of reading B. Rows of B are read one
// after the other, each in the order of its addresses; every row of A that
// meets it keeps two sums of vectors, so that the order of the sums is the same
// for one row as for eight.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Products/SmallGemm.h"

#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Slots of a work item's arguments.
enum Slot { A, LdA, B, LdB, C, LdC, M, N, K, RowsOfItem, NumSlots };
} // namespace

/// `rows` elements of C: row `n` of B with rows `m`, `m + 1`, ... of A.
static void emitRowReduction(KernelBuilder &b, const SmallGemmSpec &spec,
                             ArrayRef<Value> context, Value n, Value m,
                             int64_t rows) {
  Value row = b.at(context[B], spec.bType, b.mul(n, context[LdB]));
  SmallVector<Value> inputs;
  for (int64_t r = 0; r < rows; ++r)
    inputs.push_back(
        b.at(context[A], spec.aType, b.mul(b.add(m, r), context[LdA])));
  // Two sums, so that numbers of bf16 can be read by pairs.
  const bool pairs = spec.aType.isBF16() && spec.bType.isBF16();
  auto loadStep = [&](Value base, Type type, Value k) {
    if (pairs)
      return b.loadWidePairs(base, k);
    return std::array<Value, 2>{b.loadWide(base, type, k),
                                b.loadWide(base, type, b.add(k, b.lanes))};
  };
  const int64_t bytes = spec.bType.getIntOrFloatBitWidth() / 8,
                ahead = bytes < 4 ? b.target.getBusyPrefetchBytes()
                                  : b.target.prefetchBytes,
                stepBytes = 2 * b.lanes * bytes;
  constexpr int64_t kLine = 64;
  // The line that a step reads `ahead` bytes later; the last ones of a row are
  // in the next row.
  auto prefetch = [&](Value k) {
    for (int64_t line = 0; ahead && line < stepBytes; line += kLine)
      b.prefetch(row, b.add(b.mul(k, bytes), ahead + line));
  };
  Value whole = b.mul(b.div(context[K], 2 * b.lanes), 2 * b.lanes);
  SmallVector<Value> sums(2 * rows, b.zero());
  sums = b.loop(
      b.index(0), whole, 2 * b.lanes, sums, [&](Value k, ValueRange carried) {
        SmallVector<Value> next(carried);
        prefetch(k);
        std::array<Value, 2> weights = loadStep(row, spec.bType, k);
        for (int64_t r = 0; r < rows; ++r) {
          std::array<Value, 2> xs = loadStep(inputs[r], spec.aType, k);
          for (int part : {0, 1}) {
            Value &sum = next[2 * r + part];
            sum = b.fma(xs[part], weights[part], sum);
          }
        }
        return next;
      });
  // Less than two vectors are left: at most one of them whole.
  sums = b.loop(whole, context[K], b.lanes, sums,
                [&](Value k, ValueRange carried) {
                  SmallVector<Value> next(carried);
                  Value mask = b.firstLanes(b.sub(context[K], k));
                  Value weight = b.loadWide(row, spec.bType, k, mask);
                  for (int64_t r = 0; r < rows; ++r) {
                    Value x = b.loadWide(inputs[r], spec.aType, k, mask);
                    next[2 * r] = b.fma(x, weight, next[2 * r]);
                  }
                  return next;
                });
  for (int64_t r = 0; r < rows; ++r) {
    Value sum = b.sum(b.addf(sums[2 * r], sums[2 * r + 1]));
    Value at = b.add(b.mul(b.add(m, r), context[LdC]), n);
    if (spec.accumulate)
      sum = b.addf(sum, b.loadWideScalar(context[C], spec.cType, at));
    b.storeNarrow(sum, context[C], spec.cType, at);
  }
}

static void emitItem(KernelBuilder &b, const SmallGemmSpec &spec, Value slots,
                     Value index) {
  SmallVector<Value> context;
  for (int64_t slot = 0; slot < NumSlots; ++slot) {
    bool isAddress = slot == A || slot == B || slot == C;
    context.push_back(
        b.load(isAddress ? b.pointer : b.i64, slots, b.i64, b.index(slot)));
  }
  Value first = b.mul(index, context[RowsOfItem]);
  Value last = b.min(b.add(first, context[RowsOfItem]), context[N]);
  const int64_t atOnce = selectSmallGemmSchedule(spec.target).rows;
  Value groups = b.mul(b.div(context[M], atOnce), atOnce);
  b.loop(first, last, 1, [&](Value n) {
    b.loop(b.index(0), groups, atOnce,
           [&](Value m) { emitRowReduction(b, spec, context, n, m, atOnce); });
    b.loop(groups, context[M], 1,
           [&](Value m) { emitRowReduction(b, spec, context, n, m, 1); });
  });
}

static StringRef shortName(Type type) {
  return type.isF32() ? "f32" : type.isF16() ? "f16" : "bf16";
}

LLVM::LLVMFuncOp mlir::diffattn::getOrEmitSmallGemm(ModuleOp module,
                                                    Location loc,
                                                    const SmallGemmSpec &spec) {
  KernelBuilder b(loc, spec.target, spec.target.vectorBytes / 4);
  std::string name = b.kernelName(
      "gemv_" + Twine(shortName(spec.aType)) + "_" + shortName(spec.bType) +
      "_" + shortName(spec.cType) + (spec.accumulate ? "_add" : ""));
  if (auto existing = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return existing;
  Type p = b.pointer, i = b.i64;
  LLVM::LLVMFuncOp item = b.getOrEmitFunction(
      module, name + "_item", {p, i, p},
      [&](ValueRange args) { emitItem(b, spec, args[0], args[1]); });
  LLVM::LLVMFuncOp runtime =
      b.getRuntimeFunction(module, RuntimeFunction::parallel_for);
  return b.getOrEmitFunction(
      module, name, {p, i, p, i, p, i, i, i, i, i}, [&](ValueRange args) {
        Value context =
            LLVM::AllocaOp::create(b, b.pointer, b.i64, b.index(NumSlots), 8);
        for (int64_t slot = 0; slot <= K; ++slot)
          b.store(args[slot], context, b.i64, b.index(slot));
        // Items of about the same number of bytes, whatever the length of a
        // row.
        int64_t bytes = spec.bType.getIntOrFloatBitWidth() / 8;
        Value rowBytes = b.max(b.mul(args[K], bytes), b.index(1));
        Value rows =
            b.max(b.div(b.index(selectSmallGemmSchedule(spec.target).itemBytes),
                        rowBytes),
                  b.index(1));
        b.store(rows, context, b.i64, b.index(RowsOfItem));
        Value count = b.div(b.add(args[N], b.sub(rows, b.index(1))), rows);
        Value address = LLVM::AddressOfOp::create(b, item);
        LLVM::CallOp::create(
            b, runtime,
            ValueRange{address, context, count, b.index(0), args[K + 1]});
      });
}
