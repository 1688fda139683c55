//===- Epilogue.cpp - what follows the combination of the maps ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

Value Epilogue::inverseSum(Value sum) {
  Value empty = b.compareF(LLVM::FCmpPredicate::oeq, sum, b.f32(0.0));
  return b.select(empty, b.f32(0.0), b.reciprocal(sum));
}

Value Epilogue::rowFactor(Value squares) {
  Value flags = kernel.param(GpuParam::Flags);
  auto isSet = [&](GpuFlag flag) {
    return b.compare(LLVM::ICmpPredicate::ne, b.andI(flags, flag), b.i32(0));
  };
  Value eps = kernel.param(GpuParam::NormEps);
  Value mean =
      b.mulF(squares, b.f32(1.0 / static_cast<double>(kernel.spec.valueDim)));
  Value inside = b.reciprocalSqrt(b.addF(mean, eps));
  Value outside = b.reciprocal(b.addF(b.sqrt(mean), eps));
  Value norm = b.select(isSet(GpuFlagEpsOutside), outside, inside);
  // A row of zeros stays one, also where eps is 0.
  Value zero = b.compareF(LLVM::FCmpPredicate::oeq, squares, b.f32(0.0));
  norm = b.select(zero, b.f32(0.0), norm);
  norm = b.select(isSet(GpuFlagNorm), norm, b.f32(1.0));
  return b.mulF(norm, kernel.param(GpuParam::OutScale));
}

Value Epilogue::finish(Value x, Value factor, Value gateBase, Value column) {
  const GpuKernelSpec &spec = kernel.spec;
  x = b.mulF(x, factor);
  if (Type type = spec.normWeightType) {
    Value pointer = kernel.stridePointer(
        type, kernel.param(GpuParam::NormWeight), b.toI64(column),
        kernel.param(GpuParam::NormWeightW));
    x = b.mulF(x, b.loadAsF32(type, pointer));
  }
  if (Type type = spec.gateType) {
    Value pointer = kernel.stridePointer(type, gateBase, b.toI64(column),
                                         kernel.param(GpuParam::GateW));
    x = b.mulF(x, b.sigmoid(b.loadAsF32(type, pointer)));
  }
  return x;
}

void Epilogue::storeOne(Value x, Value factor, Value outBase, Value gateBase,
                        Value column, int64_t maxColumn) {
  Type type = kernel.element;
  auto store = [&] {
    Value y = b.round(type, finish(x, factor, gateBase, column));
    b.store(y, kernel.stridePointer(type, outBase, b.toI64(column),
                                    kernel.param(GpuParam::OW)));
  };
  Value width = b.i32(kernel.spec.valueDim);
  if (maxColumn < kernel.spec.valueDim)
    store();
  else
    b.branch(b.compare(LLVM::ICmpPredicate::slt, column, width), store);
}

void Epilogue::storePair(Value x0, Value x1, Value factor, Value outBase,
                         Value gateBase, Value column, int64_t maxColumn) {
  int64_t width = kernel.spec.valueDim;
  Type type = kernel.element;
  auto storeBoth = [&] {
    Value y0 = finish(x0, factor, gateBase, column);
    Value y1 = finish(x1, factor, gateBase, b.add(column, 1));
    Value pair = b.packPair(type, y0, y1);
    b.store(pair, b.element(type, outBase, b.toI64(column)), 4);
  };
  if (kernel.spec.elementwise) {
    storeOne(x0, factor, outBase, gateBase, column, maxColumn);
    storeOne(x1, factor, outBase, gateBase, b.add(column, 1), maxColumn + 1);
  } else if (maxColumn + 1 < width) {
    storeBoth();
  } else {
    // Widths are multiples of 8 here, so a pair is inside or outside.
    b.branch(b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width)),
             storeBoth);
  }
}
