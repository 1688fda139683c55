//===- SequenceTables.cpp - assertions about tables of sequences ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SequenceTables.h"

#include "Assertion.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;
using arith::CmpIPredicate;

namespace {
struct TableAsserter : ImplicitLocOpBuilder {
  TableAsserter(OpBuilder &builder, DifferentialMapsOpInterface op)
      : ImplicitLocOpBuilder(op.getLoc(), builder), op(op) {}

  void assertBounds(StringRef name, Value bounds, Value shaped, int64_t axis,
                    StringRef what);
  void assertCount(StringRef name, Value counted);
  void assertPages();

private:
  Value constant(int64_t number) {
    return arith::ConstantIndexOp::create(*this, number);
  }
  Value sizeOf(Value shaped, int64_t axis) {
    if (isa<MemRefType>(shaped.getType()))
      return memref::DimOp::create(*this, shaped, axis);
    return tensor::DimOp::create(*this, shaped, axis);
  }
  Value load(Value table, ValueRange indices) {
    Value number;
    if (isa<MemRefType>(table.getType()))
      number = memref::LoadOp::create(*this, table, indices);
    else
      number = tensor::ExtractOp::create(*this, table, indices);
    return arith::IndexCastOp::create(*this, getIndexType(), number);
  }
  void check(CmpIPredicate predicate, Value a, Value b, const Twine &expected) {
    assertThat(*this, getLoc(), predicate, a, b,
               "attention: expected " + expected + ", but got {0}");
  }
  void loop(Value begin, Value end, function_ref<void(Value)> body) {
    auto made = scf::ForOp::create(*this, begin, end, constant(1));
    OpBuilder::InsertionGuard guard(*this);
    setInsertionPointToStart(made.getBody());
    body(made.getInductionVar());
  }

  DifferentialMapsOpInterface op;
};
} // namespace

void TableAsserter::assertBounds(StringRef name, Value bounds, Value shaped,
                                 int64_t axis, StringRef what) {
  Value count = sizeOf(bounds, 0), zero = constant(0), one = constant(1);
  check(CmpIPredicate::eq, load(bounds, zero), zero,
        name + " to begin with {1}");
  loop(one, count, [&](Value i) {
    Value before = load(bounds, Value(arith::SubIOp::create(*this, i, one)));
    check(CmpIPredicate::sge, load(bounds, i), before,
          name + " not to fall below {1}");
  });
  Value last = arith::SubIOp::create(*this, count, one);
  check(CmpIPredicate::eq, load(bounds, last), sizeOf(shaped, axis),
        name + " to end with {1}, the number of " + what);
}

void TableAsserter::assertCount(StringRef name, Value counted) {
  if (!counted)
    return;
  Value sequences =
      arith::SubIOp::create(*this, sizeOf(op.getCuSeqlensQ(), 0), constant(1));
  check(CmpIPredicate::eq, sizeOf(counted, 0), sequences,
        name + " of length {1}, the number of sequences");
}

void TableAsserter::assertPages() {
  Value table = op.getBlockTable();
  Value pages = sizeOf(op.getK1(), 0),
        rows = sizeOf(op.getK1(), AttentionOp::lengthAxis(op.getKLayout()));
  Value most = sizeOf(table, 1);
  Value capacity = arith::MulIOp::create(*this, most, rows);
  loop(constant(0), sizeOf(table, 0), [&](Value sequence) {
    Value keys = load(op.getKvLen(), sequence);
    keys = arith::MaxSIOp::create(
        *this, arith::MinSIOp::create(*this, keys, capacity), constant(0));
    Value used = arith::CeilDivUIOp::create(*this, keys, rows);
    loop(constant(0), used, [&](Value place) {
      // A negative number is a very large one here.
      check(CmpIPredicate::ult, load(table, {sequence, place}), pages,
            "pages from 0 and below {1} in block_table");
    });
  });
}

void mlir::diffattn::assertSequenceTables(OpBuilder &builder,
                                          DifferentialMapsOpInterface op) {
  TableAsserter tables(builder, op);
  if (op.isPacked()) {
    for (auto [name, counted] :
         {std::pair<StringRef, Value>("kv_len", op.getKvLen()),
          {"q_offset", op.getQOffset()},
          {"block_table", op.getBlockTable()}})
      tables.assertCount(name, counted);
    tables.assertBounds("cu_seqlens_q", op.getCuSeqlensQ(), op.getQ1(),
                        AttentionOp::lengthAxis(op.getQLayout()), "queries");
  }
  if (op.getCuSeqlensK())
    tables.assertBounds("cu_seqlens_k", op.getCuSeqlensK(), op.getK1(),
                        AttentionOp::lengthAxis(op.getKLayout()), "keys");
  if (op.isPaged())
    tables.assertPages();
}
