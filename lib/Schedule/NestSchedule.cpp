//===- NestSchedule.cpp - how a CPU attention nest is cut -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/NestSchedule.h"

#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;
using namespace mlir::diffattn;

NestSchedule mlir::diffattn::selectNestSchedule(const AttentionShape &shape,
                                                const CpuTarget &target) {
  NestSchedule schedule;
  schedule.lanes = target.vectorBytes / 4;
  if (target.vectorRegisters >= 32) {
    // 24 accumulators, 3 vectors of queries or 4 of values, one broadcast.
    schedule.scores = {8, 3, 8};
    schedule.product = {6, 4, 4};
    schedule.chunk = 256;
  } else {
    // 12 accumulators in 16 registers.
    schedule.scores = {4, 3, 4};
    schedule.product = {6, 2, 4};
    schedule.chunk = 128;
  }
  schedule.bf16Dot = target.fastBf16Dot && shape.elementType.isBF16();
  // Two maps of f32 scores for a block of queries. Up to 16k keys streaming
  // them from the last cache level is faster than two accumulators; a bound on
  // memory is wanted anyway.
  schedule.sharedKeys = 16384;
  return schedule;
}

ScheduleAttr mlir::diffattn::getScheduleAttr(MLIRContext *context,
                                             const NestSchedule &s,
                                             CpuIsa isa) {
  auto tile = [&](const RegisterTile &t) {
    return DenseI64ArrayAttr::get(context, {t.height, t.vectors, t.unroll});
  };
  return ScheduleAttr::get(context, SchedulePath::Nest, stringifyCpuIsa(isa),
                           s.lanes, s.rows, tile(s.scores), tile(s.product),
                           s.chunk, s.sharedKeys, s.splitRows, s.splitKeys,
                           s.bf16Dot);
}

ScheduleAttr mlir::diffattn::getLinalgScheduleAttr(MLIRContext *context) {
  return ScheduleAttr::get(
      context, SchedulePath::Linalg, /*isa=*/"", /*lanes=*/0, /*rows=*/0,
      /*score_tile=*/{}, /*product_tile=*/{}, /*chunk=*/0,
      /*shared_keys=*/0, /*split_rows=*/0, /*split_keys=*/0,
      /*bf16_dot=*/false);
}

NestSchedule mlir::diffattn::getNestSchedule(ScheduleAttr attr) {
  auto tile = [](DenseI64ArrayAttr t) {
    return RegisterTile{t[0], t[1], t[2]};
  };
  NestSchedule s;
  s.lanes = attr.getLanes();
  s.rows = attr.getRows();
  s.scores = tile(attr.getScoreTile());
  s.product = tile(attr.getProductTile());
  s.chunk = attr.getChunk();
  s.sharedKeys = attr.getSharedKeys();
  s.splitRows = attr.getSplitRows();
  s.splitKeys = attr.getSplitKeys();
  s.bf16Dot = attr.getBf16Dot();
  return s;
}
