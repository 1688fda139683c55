//===- SmallGemmKernel.cpp - products of few rows -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A step of a decoder multiplies one row, or a few, with every weight: all that
// takes time is to read the weights, and to begin to. One or several warps sum
// up a column of the result, which is a row of the weights.
//
//===----------------------------------------------------------------------===//
#include "KernelKinds.h"

#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

static constexpr int64_t kChunkBytes = 16;

namespace {
class SmallGemmEmitter {
public:
  SmallGemmEmitter(Emission &emission, GemmOp op,
                   const GpuSmallGemmSchedule &schedule)
      : emission(emission), op(op), schedule(schedule),
        k(cast<MemRefType>(op.getB().getType()).getDimSize(1)),
        rowCount(sizeOf(emission.host, op.getC(), 0)),
        columnCount(sizeOf(emission.host, op.getC(), 1)) {}

  void emit();

private:
  /// One kernel as it is written: what all its parts need.
  struct Kernel {
    Kernel(KernelWriter &w, View a, View b, View c)
        : w(w), a(std::move(a)), b(std::move(b)), c(std::move(c)) {}
    KernelWriter &w;
    View a, b, c;
    /// The row of A that is read for each row of the kernel: the last one of A
    /// where A has fewer.
    SmallVector<Value> rows;
    /// The number in the column's threads, and in the warp; the column that is
    /// read.
    Value lane, inWarp, column;
    /// Lanes of a warp that have the sum of one row, and the row.
    int64_t lanesPerRow = kWarp;
    Value row;
  };

  /// Writes the kernel for up to `rows` rows.
  Launch write(int64_t rows);
  SmallVector<Value> sumUp(Kernel &kernel);
  /// Adds what the loads from vector `first` on give to `sums`, of each row one
  /// for each load.
  SmallVector<Value> addVectors(Kernel &kernel, Value first, int64_t vectors,
                                bool mayEnd, ValueRange sums);
  /// 16 bytes as f32, or zeros if `inside` is there and false.
  SmallVector<Value> load(Kernel &kernel, const View &view, Value row,
                          Value vector, Value inside);
  /// Adds up each row's sums of all lanes of a warp: lanes divide the rows
  /// among themselves in equal parts, and each gets the sum of its own row.
  Value addLanes(Kernel &kernel, SmallVector<Value> sums);
  /// Adds up the sums of all warps of the column, in the first lane of each
  /// part.
  Value addWarps(Kernel &kernel, Value sum);
  /// Whether the lane is the first one that has the sum of its row.
  static Value beginsPart(Kernel &kernel);
  Value canRun();

  int64_t getThreadsPerColumn() const {
    return schedule.warpsPerColumn * kWarp;
  }

  Emission &emission;
  GemmOp op;
  GpuSmallGemmSchedule schedule;
  int64_t k;
  OpFoldResult rowCount, columnCount;
};
} // namespace

SmallVector<Value> SmallGemmEmitter::load(Kernel &kernel, const View &view,
                                          Value row, Value vector,
                                          Value inside) {
  KernelWriter &w = kernel.w;
  gpucode::GpuBuilder &b = w.getBuilder();
  auto words = VectorType::get(4, b.getI32Type());
  Value at = w.mul(vector, w.index(schedule.elements));
  Value bits = b.load(words, w.offset(view, {row, at}), kChunkBytes);
  if (inside)
    bits = b.select(inside, bits, LLVM::ZeroOp::create(b, words));
  Value chunk = LLVM::BitcastOp::create(
      b, VectorType::get(schedule.elements, view.element), bits);
  SmallVector<Value> values;
  for (int64_t i = 0; i < schedule.elements; ++i)
    values.push_back(w.convertTo(
        b.f32(), LLVM::ExtractElementOp::create(b, chunk, b.i32(i))));
  return values;
}

SmallVector<Value> SmallGemmEmitter::addVectors(Kernel &kernel, Value first,
                                                int64_t vectors, bool mayEnd,
                                                ValueRange sums) {
  KernelWriter &w = kernel.w;
  gpucode::GpuBuilder &b = w.getBuilder();
  // All loads are issued before the first sum.
  SmallVector<SmallVector<Value>> columns, rows;
  for (int64_t i = 0; i < vectors; ++i) {
    Value vector = w.add(first, w.index(i * getThreadsPerColumn())), inside;
    if (mayEnd && i + 1 == vectors) {
      Value last = w.index(k / schedule.elements - 1);
      inside =
          arith::CmpIOp::create(b, arith::CmpIPredicate::ule, vector, last);
      vector = arith::MinUIOp::create(b, vector, last);
    }
    columns.push_back(load(kernel, kernel.b, kernel.column, vector, inside));
    for (Value row : kernel.rows)
      rows.push_back(load(kernel, kernel.a, row, vector, inside));
  }
  SmallVector<Value> next(sums);
  const int64_t count = kernel.rows.size();
  for (int64_t i = 0; i < vectors; ++i)
    for (int64_t element = 0; element < schedule.elements; ++element)
      for (int64_t row = 0; row < count; ++row) {
        Value &sum = next[row * schedule.vectors + i];
        sum = b.fma(rows[i * count + row][element], columns[i][element], sum);
      }
  return next;
}

SmallVector<Value> SmallGemmEmitter::sumUp(Kernel &kernel) {
  KernelWriter &w = kernel.w;
  gpucode::GpuBuilder &b = w.getBuilder();
  const int64_t perTurn = getThreadsPerColumn() * schedule.vectors;
  const int64_t vectors = k / schedule.elements, turns = vectors / perTurn;
  SmallVector<Value> sums(kernel.rows.size() * schedule.vectors, b.f32(0.0));
  if (turns > 1)
    sums = w.loop(w.index(0), w.index(turns), w.index(1), sums,
                  [&](Value turn, ValueRange carried) {
                    Value first =
                        w.add(w.mul(turn, w.index(perTurn)), kernel.lane);
                    return addVectors(kernel, first, schedule.vectors,
                                      /*mayEnd=*/false, carried);
                  });
  else if (turns == 1)
    sums = addVectors(kernel, kernel.lane, schedule.vectors, /*mayEnd=*/false,
                      sums);
  if (const int64_t rest = vectors - turns * perTurn) {
    Value first = w.add(kernel.lane, w.index(turns * perTurn));
    sums =
        addVectors(kernel, first, llvm::divideCeil(rest, getThreadsPerColumn()),
                   rest % getThreadsPerColumn() != 0, sums);
  }
  SmallVector<Value> totals;
  for (size_t row = 0; row < kernel.rows.size(); ++row) {
    auto of =
        MutableArrayRef(sums).slice(row * schedule.vectors, schedule.vectors);
    for (size_t half = of.size() / 2; half > 0; half /= 2)
      for (size_t i = 0; i < half; ++i)
        of[i] = b.addF(of[i], of[i + half]);
    totals.push_back(of.front());
  }
  return totals;
}

Value SmallGemmEmitter::addLanes(Kernel &kernel, SmallVector<Value> sums) {
  gpucode::GpuBuilder &b = kernel.w.getBuilder();
  sums.resize(kWarp / kernel.lanesPerRow, b.f32(0.0));
  int64_t lanes = kWarp / 2;
  // Each half of the lanes gives away the rows that the other half keeps. Every
  // row is added up in one order, however many there are.
  for (; sums.size() > 1; lanes /= 2) {
    const size_t half = sums.size() / 2;
    Value isUpper = arith::CmpIOp::create(
        b, arith::CmpIPredicate::ne,
        arith::AndIOp::create(b, kernel.inWarp, kernel.w.index(lanes)),
        kernel.w.index(0));
    for (size_t i = 0; i < half; ++i) {
      Value given = b.select(isUpper, sums[i], sums[i + half]);
      Value kept = b.select(isUpper, sums[i + half], sums[i]);
      sums[i] = b.addF(kept, b.shuffleXor(given, lanes));
    }
    sums.resize(half);
  }
  for (; lanes > 0; lanes /= 2)
    sums[0] = b.addF(sums[0], b.shuffleXor(sums[0], lanes));
  return sums[0];
}

Value SmallGemmEmitter::beginsPart(Kernel &kernel) {
  gpucode::GpuBuilder &b = kernel.w.getBuilder();
  Value inPart = arith::RemUIOp::create(b, kernel.inWarp,
                                        kernel.w.index(kernel.lanesPerRow));
  return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, inPart,
                               kernel.w.index(0));
}

Value SmallGemmEmitter::addWarps(Kernel &kernel, Value sum) {
  if (schedule.warpsPerColumn == 1)
    return sum;
  KernelWriter &w = kernel.w;
  gpucode::GpuBuilder &b = w.getBuilder();
  const int64_t warps = schedule.threads / kWarp,
                rows = kWarp / kernel.lanesPerRow;
  View shared;
  shared.element = b.f32();
  shared.pointer = LLVM::AddressOfOp::create(
      b, emission.kernels.getShared(b.f32(), warps * rows));
  shared.strides = {w.index(rows), w.index(1)};
  Value warp = arith::DivUIOp::create(b, w.thread(), w.index(kWarp));
  w.branch(beginsPart(kernel),
           [&] { w.store(sum, shared, {warp, kernel.row}); });
  b.barrier();
  // The column's first warp uses the sums; others read some place that is
  // there.
  SmallVector<Value> parts;
  for (int64_t i = 0; i < schedule.warpsPerColumn; ++i)
    parts.push_back(w.load(
        shared,
        {arith::RemUIOp::create(b, w.add(warp, w.index(i)), w.index(warps)),
         kernel.row}));
  sum = parts.front();
  for (Value part : ArrayRef(parts).drop_front())
    sum = b.addF(sum, part);
  return sum;
}

Launch SmallGemmEmitter::write(int64_t rows) {
  KernelWriter w(emission.kernels, emission.host, {}, schedule.threads);
  gpucode::GpuBuilder &b = w.getBuilder();
  const int64_t columnsPerBlock = schedule.threads / getThreadsPerColumn();
  Kernel kernel{w, w.view(op.getA()), w.view(op.getB()), w.view(op.getC())};
  Value thread = w.thread(), columns = w.size(columnCount);
  kernel.lane =
      arith::RemUIOp::create(b, thread, w.index(getThreadsPerColumn()));
  kernel.inWarp = arith::RemUIOp::create(b, thread, w.index(kWarp));
  kernel.lanesPerRow = kWarp / static_cast<int64_t>(llvm::PowerOf2Ceil(rows));
  kernel.row =
      arith::DivUIOp::create(b, kernel.inWarp, w.index(kernel.lanesPerRow));
  Value column =
      w.add(w.mul(w.block(), w.index(columnsPerBlock)),
            arith::DivUIOp::create(b, thread, w.index(getThreadsPerColumn())));
  // No thread leaves before the barrier: those beyond the last column read it.
  Value one = w.index(1);
  kernel.column =
      arith::MinUIOp::create(b, column, arith::SubIOp::create(b, columns, one));
  kernel.rows.push_back(w.index(0));
  if (rows > 1) {
    Value last = arith::SubIOp::create(b, w.size(rowCount), one);
    for (int64_t row = 1; row < rows; ++row)
      kernel.rows.push_back(arith::MinUIOp::create(b, w.index(row), last));
  }
  Value sum = addWarps(kernel, addLanes(kernel, sumUp(kernel)));
  auto isBelow = [&](Value x, Value y) -> Value {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, x, y);
  };
  Value writes = beginsPart(kernel);
  for (Value more :
       {isBelow(kernel.lane, w.index(kWarp)), isBelow(column, columns),
        isBelow(kernel.row, w.size(rowCount))})
    writes = arith::AndIOp::create(b, writes, more);
  w.branch(writes, [&] {
    SmallVector<Value> at = {kernel.row, column};
    if (op.getAccumulate())
      sum = b.addF(w.convertTo(b.f32(), w.load(kernel.c, at)), sum);
    w.store(sum, kernel.c, at);
  });
  return w.finish("small_gemm",
                  countBlocks(emission.host, columnCount, columnsPerBlock,
                              std::numeric_limits<int32_t>::max()));
}

/// Whether there are rows, few enough, and 16 bytes can be read at a time: null
/// if that is known.
Value SmallGemmEmitter::canRun() {
  ImplicitLocOpBuilder &host = emission.host;
  auto constant = [&](int64_t value) -> Value {
    return arith::ConstantIndexOp::create(host, value);
  };
  Value bits;
  auto addBytes = [&](Value bytes) {
    bits = bits ? arith::OrIOp::create(host, bits, bytes).getResult() : bytes;
  };
  for (Value matrix : {op.getA(), op.getB()}) {
    const int64_t bytes =
        bytesOf(cast<MemRefType>(matrix.getType()).getElementType());
    if (!isKnownAligned(matrix, kChunkBytes))
      addBytes(addressOf(host, matrix));
    OpFoldResult stride = strideOf(host, matrix, 0);
    std::optional<int64_t> known = getConstantIntValue(stride);
    if (!known || *known * bytes % kChunkBytes)
      addBytes(
          arith::MulIOp::create(host, asIndex(host, stride), constant(bytes)));
  }
  Value condition;
  if (bits)
    condition = arith::CmpIOp::create(
        host, arith::CmpIPredicate::eq,
        arith::AndIOp::create(host, bits, constant(kChunkBytes - 1)),
        constant(0));
  if (auto rows = dyn_cast<Value>(rowCount)) {
    // Unsigned, so that no rows at all go to the library.
    Value few =
        arith::CmpIOp::create(host, arith::CmpIPredicate::ult,
                              arith::SubIOp::create(host, rows, constant(1)),
                              constant(kMaxRowsOfGpuSmallGemm));
    condition = condition
                    ? arith::AndIOp::create(host, few, condition).getResult()
                    : few;
  }
  return condition;
}

void SmallGemmEmitter::emit() {
  ImplicitLocOpBuilder &host = emission.host;
  Value condition = canRun();
  if (condition) {
    auto choice = scf::IfOp::create(host, condition, /*withElseRegion=*/true);
    op->moveBefore(choice.elseBlock(), choice.elseBlock()->begin());
    host.setInsertionPointToStart(choice.thenBlock());
  }
  std::optional<int64_t> rows = getConstantIntValue(rowCount);
  if (rows) {
    write(*rows).emit(host);
  } else {
    Launch one = write(1), several = write(kMaxRowsOfGpuSmallGemm);
    Value isOne = arith::CmpIOp::create(
        host, arith::CmpIPredicate::eq, cast<Value>(rowCount),
        arith::ConstantIndexOp::create(host, 1));
    emitChoice(host, isOne, one, [&] { return several; });
  }
  if (!condition)
    op.erase();
}

void linalggpu::emitSmallGemm(Emission &emission, GemmOp op) {
  auto a = dyn_cast<MemRefType>(op.getA().getType());
  auto b = dyn_cast<MemRefType>(op.getB().getType());
  auto c = dyn_cast<MemRefType>(op.getC().getType());
  if (!a || !b || !c || a.getRank() != 2 || b.getRank() != 2 ||
      c.getRank() != 2 || !op.getTransposeB())
    return;
  Type element = b.getElementType();
  const bool isKnown = element.isF32() || element.isF16() || element.isBF16();
  if (!isKnown || a.getElementType() != element || c.getElementType().isF64())
    return;
  auto isContiguous = [](MemRefType type) {
    return type.getStridesAndOffset().first.back() == 1;
  };
  const int64_t rows = c.getDimSize(0), columns = c.getDimSize(1);
  if (!isContiguous(a) || !isContiguous(b) || b.isDynamicDim(1) ||
      (!c.isDynamicDim(0) && (rows < 1 || rows > kMaxRowsOfGpuSmallGemm)) ||
      columns == 0)
    return;
  std::optional<GpuSmallGemmSchedule> schedule =
      selectGpuSmallGemmSchedule(b.getDimSize(1), bytesOf(element));
  if (schedule)
    SmallGemmEmitter(emission, op, *schedule).emit();
}
