//===- QuantizedGemmSchedule.cpp - products with quantized weights --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/QuantizedGemmSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

QuantizedGemmSchedule
mlir::diffattn::selectQuantizedGemmSchedule(const CpuTarget &target,
                                            int64_t bits, int64_t group) {
  QuantizedGemmSchedule schedule;
  // A byte gives an integer to each of 8 / bits vectors.
  schedule.lanes = target.vectorBytes / 4;
  while (group % (schedule.lanes * 8 / bits))
    schedule.lanes /= 2;
  // Sums of a group and of the row, and the widened weights, stay in registers.
  schedule.rows = target.vectorRegisters >= 32 ? 4 : 2;
  schedule.columns = 2;
  // Memory gives one row of B faster than two in turn: on a core of Zen 4 8
  // bits take 0.6 of the time and 4 bits 0.7. 4 bits by AVX2 are bound by
  // arithmetic, of which two rows share some.
  schedule.fewRows = bits == 8 || target.vectorRegisters >= 32 ? 2 : 0;
  schedule.unroll = 8;
  schedule.itemBytes = 128 << 10;
  // Widening keeps a core so busy that it has too few loads under way by
  // itself.
  schedule.prefetchBytes = 4096;
  schedule.passRows = 32;
  schedule.wideBytes = 4 << 20;
  return schedule;
}
