//===- ColumnSums.cpp - sums over the rows of a matrix --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Axes that are summed up, and behind them the axes of the result. Memory is
// read in its order, so a row is added to sums in memory. Some rows have sums
// of their own, in a buffer of the stack, which are then added to the result:
// in one chain over many rows equal terms would all be rounded alike.
//
//===----------------------------------------------------------------------===//
#include "LinalgBody.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Rows that have sums of their own, and columns of them: 16 KiB of f32.
constexpr int64_t kRows = 256, kColumns = 4096;

class ColumnSums {
public:
  ColumnSums(RewriterBase &rewriter, linalg::LinalgOp op)
      : b(rewriter), op(op), loc(op.getLoc()),
        staticSizes(op.getStaticLoopRanges()) {}

  bool match();
  void emit(SmallVectorImpl<Value> &buffers);

private:
  using Body = function_ref<void()>;
  int64_t count() const { return staticSizes.size(); }
  /// The product of the sizes of [first, end), or none if one is not known.
  std::optional<int64_t> product(int64_t first, int64_t end) const;
  void emitLoop(int64_t depth, Value lower, Value upper, Value step, Body body);
  /// Loops over whole axes, one in another.
  void emitLoops(int64_t first, int64_t end, Body body);
  void emitColumns(Body body);
  void emitChunk();
  void emitRows();
  void getBuffers(SmallVectorImpl<Value> &buffers);
  Value index(int64_t value) {
    return arith::ConstantIndexOp::create(b, loc, value);
  }
  /// Where an element of the columns lies in a buffer.
  SmallVector<Value> inBuffer();
  /// The end of the part of axis `depth` that begins with `first`.
  Value endOf(Value first, int64_t length, int64_t depth) {
    Value end = arith::AddIOp::create(b, loc, first, index(length));
    const int64_t size = staticSizes[depth];
    if (!ShapedType::isDynamic(size) && size % length == 0)
      return end;
    return arith::MinSIOp::create(b, loc, end, sizes[depth]);
  }

  RewriterBase &b;
  linalg::LinalgOp op;
  Location loc;
  SmallVector<int64_t> staticSizes;
  /// The axes that are summed up, those before `columns`, and the one of them
  /// that is cut, into `rows` at a time.
  int64_t sums = 0, columns = 0, cut = 0, rows = kRows;
  /// One axis of columns is cut, too, which begins at `chunk` then.
  bool cutsColumns = false;
  Value chunk, zero, one;
  SmallVector<Value> sizes, ivs, parts;
};
} // namespace

std::optional<int64_t> ColumnSums::product(int64_t first, int64_t end) const {
  int64_t result = 1;
  for (int64_t i = first; i < end; ++i) {
    if (ShapedType::isDynamic(staticSizes[i]) ||
        llvm::MulOverflow(result, staticSizes[i], result))
      return std::nullopt;
  }
  return result;
}

bool ColumnSums::match() {
  SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
  auto skip = [&](int64_t from, utils::IteratorType type) {
    while (from < count() && iterators[from] == type)
      ++from;
    return from;
  };
  sums = skip(0, utils::IteratorType::parallel);
  columns = skip(sums, utils::IteratorType::reduction);
  if (sums == columns || columns == count() ||
      skip(columns, utils::IteratorType::parallel) != count())
    return false;
  if (product(sums, columns).value_or(2 * kRows) < 2 * kRows)
    return false;
  for (auto [i, init] : llvm::enumerate(op.getDpsInitsMutable())) {
    AffineMap map = op.getMatchingIndexingMap(&init);
    if (!isRelaxedSum(op, i) || !map.isProjectedPermutation())
      return false;
    // An output without one of the columns would be added to once for each.
    for (int64_t axis = 0; axis < count(); ++axis)
      if (map.isFunctionOfDim(axis) != (axis < sums || axis >= columns))
        return false;
  }
  std::optional<int64_t> width = product(columns, count());
  cutsColumns = !width || *width > kColumns;
  if (cutsColumns && count() - columns > 1)
    return false;
  // The innermost axes that are no more than kRows rows are left whole.
  for (cut = columns - 1; cut > sums; --cut) {
    std::optional<int64_t> here = product(cut, columns);
    if (!here || *here > kRows)
      break;
  }
  rows =
      std::max<int64_t>(1, kRows / product(cut + 1, columns).value_or(kRows));
  return true;
}

void ColumnSums::emitLoop(int64_t depth, Value lower, Value upper, Value step,
                          Body body) {
  auto loop = scf::ForOp::create(b, loc, lower, upper, step);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(loop.getBody()->getTerminator());
  ivs[depth] = loop.getInductionVar();
  body();
}

void ColumnSums::emitLoops(int64_t first, int64_t end, Body body) {
  if (first == end)
    return body();
  emitLoop(first, zero, sizes[first], one,
           [&] { emitLoops(first + 1, end, body); });
}

void ColumnSums::emitColumns(Body body) {
  if (cutsColumns)
    return emitLoop(columns, chunk, endOf(chunk, kColumns, columns), one, body);
  emitLoops(columns, count(), body);
}

SmallVector<Value> ColumnSums::inBuffer() {
  if (cutsColumns)
    return {arith::SubIOp::create(b, loc, ivs[columns], chunk)};
  // The columns in their order.
  Value position = zero;
  for (int64_t i = columns; i < count(); ++i) {
    position = arith::MulIOp::create(b, loc, position, sizes[i]);
    position = arith::AddIOp::create(b, loc, position, ivs[i]);
  }
  return {position};
}

/// Some rows: their sums in the buffers, and from there to the outputs.
void ColumnSums::emitRows() {
  emitColumns([&] {
    SmallVector<Value> at = inBuffer();
    for (Value part : parts)
      memref::StoreOp::create(
          b, loc,
          emitNeutral(b, loc,
                      cast<MemRefType>(part.getType()).getElementType()),
          part, at);
  });
  Value first = ivs[cut];
  emitLoop(cut, first, endOf(first, rows, cut), one, [&] {
    emitLoops(cut + 1, columns, [&] {
      emitColumns([&] {
        SmallVector<Value> at = inBuffer();
        SmallVector<Value> before =
            llvm::map_to_vector(parts, [&](Value part) -> Value {
              return memref::LoadOp::create(b, loc, part, at);
            });
        SmallVector<Value> after = emitBody(b, op, ivs, before);
        for (auto [part, value] : llvm::zip_equal(parts, after))
          memref::StoreOp::create(b, loc, value, part, at);
      });
    });
  });
  emitColumns([&] {
    SmallVector<Value> at = inBuffer(), outside(ivs);
    std::fill(outside.begin() + sums, outside.begin() + columns, zero);
    for (auto [init, part] : llvm::zip_equal(op.getDpsInitsMutable(), parts)) {
      SmallVector<Value> position = getPosition(b, op, &init, outside);
      Value before = memref::LoadOp::create(b, loc, init.get(), position);
      Value sum = memref::LoadOp::create(b, loc, part, at);
      memref::StoreOp::create(b, loc,
                              arith::AddFOp::create(b, loc, before, sum),
                              init.get(), position);
    }
  });
}

void ColumnSums::emitChunk() {
  emitLoops(sums, cut, [&] {
    emitLoop(cut, zero, sizes[cut], index(rows), [&] { emitRows(); });
  });
}

void ColumnSums::getBuffers(SmallVectorImpl<Value> &buffers) {
  // A buffer serves every op of the function.
  SmallVector<Value> free(ArrayRef<Value>{buffers});
  for (Value init : op.getDpsInits()) {
    auto type = MemRefType::get({kColumns}, getElementTypeOrSelf(init));
    auto *it = llvm::find_if(
        free, [&](Value buffer) { return buffer.getType() == type; });
    if (it != free.end()) {
      parts.push_back(*it);
      free.erase(it);
      continue;
    }
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(
        &op->getParentOfType<FunctionOpInterface>().getFunctionBody().front());
    parts.push_back(
        memref::AllocaOp::create(b, loc, type, b.getI64IntegerAttr(64)));
    buffers.push_back(parts.back());
  }
}

void ColumnSums::emit(SmallVectorImpl<Value> &buffers) {
  getBuffers(buffers);
  for (Range range : op.createLoopRanges(b, loc))
    sizes.push_back(getValueOrCreateConstantIndexOp(b, loc, range.size));
  zero = index(0);
  one = index(1);
  ivs.assign(count(), zero);
  emitLoops(0, sums, [&] {
    if (!cutsColumns)
      return emitChunk();
    emitLoop(columns, zero, sizes[columns], index(kColumns), [&] {
      chunk = ivs[columns];
      emitChunk();
    });
  });
  b.eraseOp(op);
}

bool mlir::diffattn::emitColumnSums(RewriterBase &rewriter, linalg::LinalgOp op,
                                    SmallVectorImpl<Value> &buffers) {
  ColumnSums columns(rewriter, op);
  if (!columns.match())
    return false;
  columns.emit(buffers);
  return true;
}
