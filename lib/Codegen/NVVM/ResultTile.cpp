//===- ResultTile.cpp - rows of the result through shared memory ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ResultTile.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

/// Chunks of a row of a panel, each a tile of 8 columns, which the swizzle
/// exchanges.
static constexpr int64_t kChunks = kGpuPanelPitch / kChunkBytes;

ResultTile::ResultTile(AttentionKernel &kernel, const QueryBlock &place,
                       Value localRow, Value firstRow)
    : kernel(kernel), b(kernel.b), hopper(kernel.b), place(place),
      epilogue(kernel, place.batch, place.head), firstRow(firstRow),
      base(b.bytes(b.bytes(kernel.shared, kernel.layout.result.offset),
                   b.mul(localRow, kGpuPanelPitch))) {}

void ResultTile::store(ArrayRef<Fragment> x, std::array<Value, 2> factors) {
  write(x, factors);
  Value isWhole = b.compare(LLVM::ICmpPredicate::sle, b.add(firstRow, kRows),
                            kernel.queries());
  b.choose(
      isWhole,
      [&]() -> GpuBuilder::Values {
        storeBoxes();
        return {};
      },
      [&]() -> GpuBuilder::Values {
        storeRows();
        return {};
      });
}

void ResultTile::write(ArrayRef<Fragment> x, std::array<Value, 2> factors) {
  // A row beyond the last one reads the last one's gate and is not stored.
  Value last = b.add(kernel.queries(), -1);
  std::array<Epilogue::Row, 2> rows;
  for (int64_t h = 0; h < 2; ++h)
    rows[h] = epilogue.locate(
        b.minS(b.add(b.add(firstRow, kernel.laneRow), 8 * h), last));
  // Lanes 0 to 15 give the addresses of the rows of a chunk, the others those
  // of the next one.
  Value row = b.remU(kernel.lane, kRows);
  Value start = b.bytes(base, b.mul(row, kGpuPanelPitch));
  Value chunk = b.xorI(b.divU(kernel.lane, kRows), b.remU(row, kChunks));
  chunk = b.mul(chunk, kChunkBytes);
  const QuadColumns columns{b.i32(0)};
  for (int64_t n = 0; n < static_cast<int64_t>(x.size()); n += 2) {
    std::array<Value, 4> words;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t tile = n + i / 2, h = i % 2;
      words[i] = epilogue.finishPair({x[tile][2 * h], x[tile][2 * h + 1]},
                                     factors[h], rows[h], columns, tile);
    }
    const int64_t panel = n / kChunks;
    hopper.storeMatrices(
        b.bytes(b.bytes(start, b.xorI(chunk, n % kChunks * kChunkBytes)),
                panel * kernel.layout.queryPanelBytes),
        words);
  }
  hopper.publishToCopies();
  b.warpBarrier();
}

void ResultTile::storeBoxes() {
  b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)), [&] {
    for (int64_t panel = 0; panel < kernel.layout.valuePanels; ++panel)
      hopper.storeBox(kernel.param(GpuParam::OMap),
                      {b.i32(panel * kGpuPanelWidth), kernel.queryAt(firstRow),
                       place.head, place.batch},
                      b.bytes(base, panel * kernel.layout.queryPanelBytes));
    hopper.commitStores();
    // The block's shared memory must not go before it is read.
    hopper.waitForStoresToRead();
  });
}

void ResultTile::storeRows() {
  Value inRow = b.remU(kernel.lane, kChunks);
  Value first = b.divU(kernel.lane, kChunks);
  for (int64_t step = 0; step < kRows; step += 32 / kChunks) {
    Value row = b.add(first, step);
    Value query = b.add(firstRow, row);
    Value inside = b.compare(LLVM::ICmpPredicate::slt, query, kernel.queries());
    b.branch(inside, [&] {
      Value chunk = b.mul(b.xorI(inRow, b.remU(row, kChunks)), kChunkBytes);
      Value from = b.bytes(b.bytes(base, b.mul(row, kGpuPanelPitch)), chunk);
      Value to = epilogue.locate(query).out;
      const int64_t width = kernel.spec.valueDim;
      for (int64_t panel = 0; panel < kernel.layout.valuePanels; ++panel) {
        Value column = b.add(b.mul(inRow, 8), panel * kGpuPanelWidth);
        auto store = [&] {
          auto words = VectorType::get(4, b.i32Type());
          b.store(b.load(words,
                         b.bytes(from, panel * kernel.layout.queryPanelBytes),
                         kChunkBytes),
                  b.element(kernel.spec.resultType, to, b.toI64(column)),
                  kChunkBytes);
        };
        if ((panel + 1) * kGpuPanelWidth <= width)
          store();
        else
          b.branch(b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width)),
                   store);
      }
    });
  }
}
