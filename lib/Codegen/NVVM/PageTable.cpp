//===- PageTable.cpp - keys in pages --------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PageTable.h"
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

PageTable::PageTable(AttentionKernel &kernel, Value sequence)
    : kernel(kernel), b(kernel.b),
      entries(kernel.stridePointer(
          kernel.spec.pageType, kernel.param(GpuParam::BlockTable),
          b.toI64(sequence), kernel.param(GpuParam::BlockTableB))) {}

PageTable::Place PageTable::find(Value key) {
  // key / rows = (16 key * ceil(2^60 / rows)) >> 64, exactly: key and rows are
  // below 2^28, so the error of rounding is less than the distance to the next
  // integer. The upper half of the product needs no 128 bits, as 16 key is
  // below 2^32.
  Value scaled = b.toI64(b.shiftLeft(key, 4)),
        part = kernel.param(GpuParam::PagePart);
  auto word = [&](Value wide) { return b.andI(wide, b.i64(0xffffffff)); };
  scaled = word(scaled);
  Value lower = b.shiftRightU(b.mul(scaled, word(part)), 32);
  Value upper = b.mul(scaled, b.shiftRightU(part, 32));
  Value number = b.toI32(b.shiftRightU(b.add(upper, lower), 32));
  Value row = b.sub(key, b.mul(number, kernel.param(GpuParam::PageRows)));

  Type type = kernel.spec.pageType;
  Value entry = b.toI64(b.loadConstant(
      type, kernel.stridePointer(type, entries, b.toI64(number),
                                 kernel.param(GpuParam::BlockTableP))));
  // A negative number is a very large one here.
  Value isOutside = b.compare(LLVM::ICmpPredicate::uge, entry,
                              b.toI64(kernel.param(GpuParam::Pages)));
  b.checkIndex(getGpuParam(GpuParam::BlockTable).name, isOutside, entry);
  return {b.select(isOutside, b.i32(0), b.toI32(entry)), row,
          b.xorI(isOutside, b.i1(true))};
}
