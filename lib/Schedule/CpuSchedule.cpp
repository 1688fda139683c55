//===- CpuSchedule.cpp - how a CPU attention kernel is cut ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

// With 32 registers 24 accumulators, 3 vectors of queries or 4 of values and
// one broadcast; with 16, 12 accumulators.
static constexpr CpuMicroKernel kMicroKernels[] = {
    {"bf16 pairs", "avx512bf16", 32, true, {8, 3, 8}, {6, 4, 4}, 256},
    {"f32 in 32 registers", "", 32, false, {8, 3, 8}, {6, 4, 4}, 256},
    {"f32 in 16 registers", "", 16, false, {4, 3, 4}, {6, 2, 4}, 128},
};

ArrayRef<CpuMicroKernel> mlir::diffattn::getCpuMicroKernels() {
  return kMicroKernels;
}

bool CpuMicroKernel::takes(Type elementType, const CpuTarget &target) const {
  return (feature.empty() || target.has(feature)) &&
         target.vectorRegisters >= registers &&
         (!bf16Dot || elementType.isBF16());
}

CpuSchedule mlir::diffattn::selectCpuSchedule(const AttentionShape &shape,
                                              const CpuTarget &target) {
  const CpuMicroKernel &kernel =
      *llvm::find_if(kMicroKernels, [&](const CpuMicroKernel &row) {
        return row.takes(shape.elementType, target);
      });
  CpuSchedule schedule;
  schedule.lanes = target.vectorBytes / 4;
  schedule.scores = kernel.scores;
  schedule.product = kernel.product;
  schedule.kvBlockSize = kernel.kvBlockSize;
  schedule.bf16Dot = kernel.bf16Dot;
  // Two maps of f32 scores for a block of queries. Up to 16k keys streaming
  // them from the last cache level is faster than two accumulators; a bound on
  // memory is wanted anyway.
  schedule.twoPassKeys = 16384;
  return schedule;
}

ScheduleAttr mlir::diffattn::getScheduleAttr(MLIRContext *context,
                                             const CpuSchedule &s,
                                             const CpuTarget &target) {
  auto tile = [&](const RegisterTile &t) {
    return DenseI64ArrayAttr::get(context, {t.height, t.vectors, t.unroll});
  };
  return ScheduleAttr::get(context, SchedulePath::Nest, target.name, s.lanes,
                           s.rows, tile(s.scores), tile(s.product),
                           s.kvBlockSize, s.twoPassKeys, s.splitRows,
                           s.splitKeys, s.bf16Dot);
}

ScheduleAttr mlir::diffattn::getLinalgScheduleAttr(MLIRContext *context) {
  return ScheduleAttr::get(
      context, SchedulePath::Linalg, /*isa=*/"", /*lanes=*/0, /*rows=*/0,
      /*qk_tile=*/{}, /*pv_tile=*/{}, /*kv_block_size=*/0,
      /*two_pass_keys=*/0, /*split_rows=*/0, /*split_keys=*/0,
      /*bf16_dot=*/false);
}

CpuSchedule mlir::diffattn::getCpuSchedule(ScheduleAttr attr) {
  auto tile = [](DenseI64ArrayAttr t) {
    return RegisterTile{t[0], t[1], t[2]};
  };
  CpuSchedule s;
  s.lanes = attr.getLanes();
  s.rows = attr.getRows();
  s.scores = tile(attr.getQkTile());
  s.product = tile(attr.getPvTile());
  s.kvBlockSize = attr.getKvBlockSize();
  s.twoPassKeys = attr.getTwoPassKeys();
  s.splitRows = attr.getSplitRows();
  s.splitKeys = attr.getSplitKeys();
  s.bf16Dot = attr.getBf16Dot();
  return s;
}
