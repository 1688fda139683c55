//===- MmaSync16816.cpp - products by mma.sync.m16n8k16 -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MatrixAtom.h"
#include "MatrixReader.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

namespace {
class MmaSync16816 final : public MatrixAtom {
public:
  MmaSync16816(AttentionKernel &kernel, Value valueChunk);
  RowFragments loadQueries(Value base, int64_t rowTile) override;
  SmallVector<ScoreTile> multiplyKeys(ArrayRef<QueryRows> queries,
                                      ArrayRef<Value> keyTiles,
                                      int64_t keys) override;
  void multiplyValues(Value values, ArrayRef<Probabilities> probabilities,
                      MutableArrayRef<Accumulator> sums) override;

private:
  AttentionKernel &kernel;
  GpuBuilder &b;
  int64_t headSteps;
  /// Chunks from one pair of tiles of columns of V to the next.
  int64_t chunkStep;
  MatrixReader queryReader, keyReader, valueReader;
};
} // namespace

static Fragment loadMatrix(GpuBuilder &b, Value sharedPointer, bool transpose,
                           int64_t count) {
  auto type = LLVM::LLVMStructType::getLiteral(
      b.getContext(), SmallVector<Type>(count, b.getI32Type()));
  auto layout = transpose ? NVVM::MMALayout::col : NVVM::MMALayout::row;
  Value loaded = NVVM::LdMatrixOp::create(
      b, type, sharedPointer, count, layout,
      NVVM::LdStMatrixShapeAttr::get(b.getContext(), 8, 8),
      NVVM::LdStMatrixEltType::B16);
  Fragment fragment;
  for (int64_t i = 0; i < count; ++i)
    fragment[i] = LLVM::ExtractValueOp::create(b, loaded, i);
  return fragment;
}

Fragment mlir::diffattn::gpucode::multiplyFragments(GpuBuilder &b, Type type,
                                                    const Fragment &a, Value b0,
                                                    Value b1,
                                                    const Fragment &c) {
  auto result = LLVM::LLVMStructType::getLiteral(b.getContext(),
                                                 SmallVector<Type>(4, b.f32()));
  SmallVector<Value> aValues(a.begin(), a.end()), bValues{b0, b1};
  auto ptxType = NVVM::MMATypes::bf16;
  if (type.isF16()) {
    ptxType = NVVM::MMATypes::f16;
    // The f16 form of the intrinsic takes pairs where the bf16 form takes
    // registers.
    for (SmallVector<Value> *values : {&aValues, &bValues})
      for (Value &value : *values)
        value = LLVM::BitcastOp::create(b, VectorType::get(2, type), value);
  }
  Value product = NVVM::MmaOp::create(
      b, result, aValues, bValues, ValueRange(ArrayRef<Value>(c.data(), 4)),
      ArrayRef<int64_t>{16, 8, 16}, std::nullopt, std::nullopt,
      std::array<NVVM::MMATypes, 2>{ptxType, ptxType},
      std::array<NVVM::MMALayout, 2>{NVVM::MMALayout::row,
                                     NVVM::MMALayout::col});
  Fragment fragment;
  for (int64_t i = 0; i < 4; ++i)
    fragment[i] = LLVM::ExtractValueOp::create(b, product, i);
  return fragment;
}

MatrixReader::MatrixReader(AttentionKernel &kernel, int64_t pitch,
                           Pattern pattern, Value chunk, int64_t panelBytes)
    : kernel(kernel), pitch(pitch), mask(SharedTile::swizzleMask(pitch)),
      panelBytes(panelBytes ? panelBytes : (mask + 1) * kChunkBytes),
      pattern(pattern) {
  GpuBuilder &b = kernel.b;
  Value lane = kernel.lane;
  if (pattern == RowsFirst) {
    row = b.remU(lane, 16);
    half = b.divU(lane, 16);
  } else if (pattern == EightRows) {
    row = b.remU(lane, 8);
    half = b.remU(b.divU(lane, 8), 2);
  } else {
    row = b.add(b.remU(lane, 8), b.mul(b.divU(lane, 16), 8));
    half = b.remU(b.divU(lane, 8), 2);
  }
  if (chunk)
    half = b.add(half, chunk);
}

Fragment MatrixReader::read(Value tileBase, int64_t rowBlock, int64_t chunk,
                            bool transpose) {
  GpuBuilder &b = kernel.b;
  // (half + chunk) ^ f = (half ^ f) ^ (chunk & mask) + (chunk & ~mask), since
  // half and chunk have no bit in common.
  Value &offset = offsets[chunk & mask];
  if (!offset) {
    Value swizzled = b.xorI(
        b.xorI(b.mul(half, kChunkBytes), SharedTile::swizzle(b, pitch, row)),
        (chunk & mask) * kChunkBytes);
    offset = b.add(b.mul(row, pitch), swizzled);
  }
  Value pointer =
      b.bytes(b.bytes(tileBase, offset),
              rowBlock * 16 * pitch + chunk / (mask + 1) * panelBytes);
  if (pattern != EightRows)
    return loadMatrix(b, pointer, transpose, /*count=*/4);
  Fragment read = loadMatrix(b, pointer, transpose, /*count=*/2);
  return {read[0], b.i32(0), read[1], b.i32(0)};
}

MmaSync16816::MmaSync16816(AttentionKernel &kernel, Value valueChunk)
    : kernel(kernel), b(kernel.b),
      headSteps(kernel.spec.getPaddedHeadDim() / 16),
      chunkStep(valueChunk ? 4 : 2),
      queryReader(kernel, kernel.layout.headPitch,
                  kernel.spec.getLaneRows() == 2 ? MatrixReader::RowsFirst
                                                 : MatrixReader::EightRows),
      keyReader(kernel, kernel.layout.keyPitch, MatrixReader::ColumnsFirst,
                /*chunk=*/{}, kernel.layout.keyPanelBytes),
      valueReader(kernel, kernel.layout.valuePitch, MatrixReader::RowsFirst,
                  valueChunk, kernel.layout.keyPanelBytes) {}

RowFragments MmaSync16816::loadQueries(Value base, int64_t rowTile) {
  RowFragments result;
  for (int64_t step = 0; step < headSteps; ++step)
    result.push_back(
        queryReader.read(base, rowTile, 2 * step, /*transpose=*/false));
  return result;
}

SmallVector<ScoreTile> MmaSync16816::multiplyKeys(ArrayRef<QueryRows> queries,
                                                  ArrayRef<Value> keyTiles,
                                                  int64_t keys) {
  assert(std::min(queries.size(), keyTiles.size()) == 1 &&
         "expected one K or one Q");
  Value zero = b.f32(0.0);
  const int64_t rowTiles = queries.front().tiles;
  SmallVector<ScoreTile> result(
      std::max(queries.size(), keyTiles.size()),
      ScoreTile(rowTiles,
                RowFragments(keys / 8, Fragment{zero, zero, zero, zero})));
  for (int64_t step = 0; step < headSteps; ++step) {
    SmallVector<RowFragments> q;
    for (const QueryRows &ofMap : queries)
      for (RowFragments &all = q.emplace_back();
           int64_t(all.size()) < rowTiles;)
        all.push_back(ofMap.fragments.empty()
                          ? queryReader.read(ofMap.base, all.size(), 2 * step,
                                             /*transpose=*/false)
                          : ofMap.fragments[all.size()][step]);
    for (auto [tile, base] : llvm::enumerate(keyTiles))
      for (int64_t block = 0; block < keys / 16; ++block) {
        Fragment k = keyReader.read(base, block, 2 * step, /*transpose=*/false);
        for (auto [map, ofMap] : llvm::enumerate(q))
          for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
            for (int64_t n = 0; n < 2; ++n) {
              Fragment &sum = result[tile + map][rowTile][2 * block + n];
              sum = multiplyFragments(b, kernel.element, ofMap[rowTile],
                                      k[2 * n], k[2 * n + 1], sum);
            }
      }
  }
  return result;
}

void MmaSync16816::multiplyValues(Value values,
                                  ArrayRef<Probabilities> probabilities,
                                  MutableArrayRef<Accumulator> sums) {
  int64_t blocks = probabilities.front().front().size(),
          pairs = sums.front().front().size() / 2;
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      // One load of V for both maps.
      Fragment v = valueReader.read(values, block, chunkStep * pair,
                                    /*transpose=*/true);
      for (auto [map, ofMap] : llvm::enumerate(sums))
        for (auto [rowTile, ofTile] : llvm::enumerate(ofMap))
          for (int64_t n = 0; n < 2; ++n) {
            Fragment &sum = ofTile[2 * pair + n];
            sum = multiplyFragments(b, kernel.element,
                                    probabilities[map][rowTile][block],
                                    v[2 * n], v[2 * n + 1], sum);
          }
    }
}

std::unique_ptr<MatrixAtom>
mlir::diffattn::gpucode::createMmaSync16816(AttentionKernel &kernel,
                                            Value valueChunk) {
  return std::make_unique<MmaSync16816>(kernel, valueChunk);
}
