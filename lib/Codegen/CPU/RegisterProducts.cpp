//===- RegisterProducts.cpp - products of a block of queries --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RegisterProducts.h"

#include "TileBuilder.h"
#include "TileKernels.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Runs `call` over the columns of `rows`: `columns` of them from `column` on
/// by kernels `vectors` wide, or less than one vector of them, `masked`.
static void forWidths(KernelBuilder &b, int64_t widest, const ProductRows &rows,
                      function_ref<void(int64_t vectors, bool masked,
                                        Value column, Value columns)>
                          call) {
  Value columns = rows.padded ? b.roundUp(rows.columns, b.lanes) : rows.columns;
  Value done = b.mul(b.div(columns, widest * b.lanes), widest * b.lanes);
  call(widest, /*masked=*/false, b.index(0), done);
  for (int64_t width = widest / 2; width; width /= 2) {
    if (rows.known.isStatic()) {
      int64_t whole = rows.padded ? (rows.known.value + b.lanes - 1) / b.lanes
                                  : rows.known.value / b.lanes;
      if (whole % widest % (2 * width) < width)
        continue;
    }
    Value rest = b.sub(columns, done);
    Value here = b.mul(b.div(rest, width * b.lanes), width * b.lanes);
    call(width, /*masked=*/false, done, here);
    done = b.add(done, here);
  }
  if (!rows.padded &&
      (!rows.known.isStatic() || rows.known.value % b.lanes != 0))
    call(/*vectors=*/1, /*masked=*/true, done, b.sub(columns, done));
}

static void emitTileQueryProduct(KernelBuilder &b, ModuleOp module,
                                 CpuPrefillAttr schedule,
                                 const ProductAtom &atom,
                                 const BlockProduct &product,
                                 const RowRange &range) {
  const ProductRows &rows = product.rows;
  Value columns = b.roundUp(rows.columns, kTileLanes);
  auto call = [&](int64_t tiles, Value begin, Value end) {
    LLVM::CallOp::create(
        b, getTileProductKernel(b, module, schedule, tiles, atom),
        ValueRange{product.p, rows.base, rows.stride, product.out,
                   product.outStride, begin, end, columns, product.keys,
                   range.low, range.lowSlope, range.high, range.highSlope});
  };
  const int64_t height = schedule.getPv().height;
  Value end = b.roundUp(product.queries, kTileRows),
        whole = b.mul(b.div(end, height), height);
  call(height / kTileRows, b.index(0), whole);
  if (height > kTileRows)
    call(1, whole, end);
}

void mlir::diffattn::emitQueryProduct(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule,
                                      const ProductAtom &atom,
                                      const BlockProduct &product,
                                      const RowRange &range, bool careful) {
  if (atom.usesTiles) {
    assert(!careful && "expected what is not finite to be left out of tiles");
    return emitTileQueryProduct(b, module, schedule, atom, product, range);
  }
  forWidths(b, schedule.getPv().vectors, product.rows,
            [&](int64_t vectors, bool masked, Value column, Value columns) {
              auto kernel = getProductKernel(b, module, schedule, vectors,
                                             masked, atom, careful);
              LLVM::CallOp::create(
                  b, kernel,
                  ValueRange{
                      product.p, b.at(product.rows.base, b.f32, column),
                      product.rows.stride, b.at(product.out, b.f32, column),
                      product.outStride, product.queries, columns, product.keys,
                      range.low, range.lowSlope, range.high, range.highSlope});
            });
}

void mlir::diffattn::emitKeyProduct(KernelBuilder &b, ModuleOp module,
                                    CpuPrefillAttr schedule,
                                    const ProductAtom &atom,
                                    const BlockProduct &product, bool careful) {
  if (atom.usesTiles) {
    assert(!careful && "expected what is not finite to be left out of tiles");
    const ProductRows &rows = product.rows;
    auto kernel = getTileKeyProductKernel(
        b, module, schedule, schedule.getPv().height / kTileRows, atom);
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{product.p, rows.base, rows.stride, product.out,
                   product.outStride, product.queries,
                   b.roundUp(rows.columns, kTileLanes), product.keys});
    return;
  }
  forWidths(
      b, schedule.getPv().vectors, product.rows,
      [&](int64_t vectors, bool, Value column, Value columns) {
        auto kernel =
            getLaneProductKernel(b, module, schedule, vectors, atom, careful);
        LLVM::CallOp::create(
            b, kernel,
            ValueRange{product.p, b.at(product.rows.base, b.f32, column),
                       product.rows.stride, b.at(product.out, b.f32, column),
                       product.outStride, product.queries, columns,
                       product.keys});
      });
}
