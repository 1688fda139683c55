//===- RowSums.cpp - sinks and logarithms of the sums of rows -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

Value Epilogue::loadSink(int64_t map) {
  using P = GpuParam;
  const Type type = kernel.spec.sinkTypes[map];
  if (!type)
    return b.minusInfinity();
  Value pointer =
      kernel.stridePointer(type, kernel.param(map ? P::Sink2 : P::Sink1),
                           b.toI64(map ? kernel.noiseHeadOf(head) : head),
                           kernel.param(map ? P::Sink2H : P::Sink1H));
  return b.mulF(b.loadAsF32(type, pointer), b.f32(kLog2E));
}

void Epilogue::storeLogarithm(int64_t map, Value logarithm, Value query) {
  const GpuParam lse = map ? GpuParam::Lse2 : GpuParam::Lse1;
  Value pointer = kernel.param(lse);
  const Value places[] = {batch, map ? kernel.noiseHeadOf(head) : head,
                          kernel.queryAt(query)};
  for (auto [axis, place] : llvm::enumerate(places))
    pointer = kernel.stridePointer(b.f32(), pointer, b.toI64(place),
                                   kernel.param(getGpuStride(lse, axis)));
  b.store(logarithm, pointer, 4);
}

Value Epilogue::divideBySum(Value weight, const RowSum &row,
                            Value *inverseSum) {
  const GpuKernelSpec &spec = kernel.spec;
  // The maps that the row may be of.
  SmallVector<int64_t> maps{row.map};
  if (row.isSecond)
    maps = {0, 1};
  const bool hasSink = llvm::any_of(
      maps, [&](int64_t map) { return bool(spec.sinkTypes[map]); });
  const bool wantsLogarithm =
      llvm::any_of(maps, [&](int64_t map) { return spec.storesLogSums[map]; });
  if (!hasSink && !wantsLogarithm) {
    GpuMath math(b);
    if (inverseSum)
      *inverseSum = emitPerSum(math, b.f32(1.0), row.sum);
    return emitPerSum(math, weight, row.sum);
  }
  Value one = b.f32(1.0);
  GpuMath math(b, b.f32(1.0));
  // All in log2 from here on.
  Value max = b.mulF(row.max, kernel.getLog2Scale()), sum = row.sum;
  if (hasSink) {
    Value sink = loadSink(maps.front());
    if (row.isSecond)
      sink = b.select(row.isSecond, loadSink(1), sink);
    Value before = max;
    max = b.maxF(before, sink);
    // Where the maximum stays, numbers change by the added terms alone.
    Value factor = b.select(math.isEqual(before, max), b.f32(1.0),
                            b.exp2(b.subF(before, max)));
    Value withSink = b.addF(b.mulF(sum, factor), emitWeight(math, sink, max));
    // A row without keys keeps its sum of 0, whose logarithm is -inf.
    Value isEmpty = math.isEqual(sum, b.f32(0.0));
    sum = b.select(isEmpty, sum, withSink);
    weight = b.mulF(weight, factor);
    one = factor;
  }
  if (wantsLogarithm) {
    Value logarithm =
        b.mulF(b.addF(max, b.log2(sum)), b.f32(llvm::numbers::ln2));
    for (int64_t map : maps) {
      if (!spec.storesLogSums[map])
        continue;
      Value isStored = row.isStored;
      if (row.isSecond)
        isStored = b.andI(isStored, map ? row.isSecond
                                        : b.xorI(row.isSecond, b.i1(true)));
      // The first of the signal heads that share a noise head stores for all of
      // them.
      if (map)
        isStored = b.andI(
            isStored, b.compare(LLVM::ICmpPredicate::eq, head,
                                b.mul(kernel.noiseHeadOf(head),
                                      kernel.param(GpuParam::SignalPerNoise))));
      b.branch(isStored, [&] { storeLogarithm(map, logarithm, row.query); });
    }
  }
  if (inverseSum)
    *inverseSum = emitPerSum(math, one, sum);
  return emitPerSum(math, weight, sum);
}
