//===- TileQueue.cpp - tiles of queries that blocks share out -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The words of a ticket: the head, or -1 if there is no tile; the sequence (of
// packed ones, else the batch); the first row; and of packed sequences where
// queries and keys begin, and how many there are.
//
//===----------------------------------------------------------------------===//
#include "TileQueue.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

/// The first word that only tickets of packed sequences have.
static constexpr int64_t kBounds = 3;
static_assert(kBounds + 4 == GpuSharedLayout::kTicketWords);

Value TileQueue::first() { return b.blockId(0); }

Value TileQueue::next() {
  Value counter = kernel.param(GpuParam::Counter);
  Value none = LLVM::ZeroOp::create(b, counter.getType());
  Value asks =
      b.andI(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)),
             LLVM::ICmpOp::create(b, LLVM::ICmpPredicate::ne, counter, none));
  Values taken = b.branch(
      asks,
      [&]() -> Values {
        Value more = LLVM::AtomicRMWOp::create(
            b, LLVM::AtomicBinOp::add, counter, b.i32(1),
            LLVM::AtomicOrdering::monotonic, "device");
        return {b.add(b.gridSize(0), more)};
      },
      ValueRange{b.i32(-1)});
  return taken[0];
}

Value TileQueue::exists(Value number) {
  Value all = b.mul(kernel.param(GpuParam::QueryTiles),
                    kernel.param(GpuParam::AllHeads));
  return b.compare(LLVM::ICmpPredicate::ult, number, all);
}

QueryBlock TileQueue::locate(Value number) {
  Value tiles = kernel.param(GpuParam::QueryTiles);
  Value sectionHeads = kernel.param(GpuParam::SectionHeads);
  // Heads of the sections before this one, and tiles of this one before the
  // tile.
  Value before =
      b.mul(b.divU(number, b.mul(tiles, sectionHeads)), sectionHeads);
  Value rest = b.sub(number, b.mul(before, tiles));
  Value heads =
      b.minS(sectionHeads, b.sub(kernel.param(GpuParam::AllHeads), before));
  Value turn = b.divU(rest, heads);
  Value ofAll = b.add(before, b.sub(rest, b.mul(turn, heads)));
  Value ofBatch = kernel.param(GpuParam::Heads);
  Value batch = b.divU(ofAll, ofBatch);
  Value head = b.sub(ofAll, b.mul(batch, ofBatch));
  return kernel.locate(b.sub(b.add(tiles, -1), turn), head, batch);
}

Value TileQueue::address(int64_t word) {
  return b.bytes(kernel.shared, kernel.layout.ticket.offset + 4 * word);
}
void TileQueue::store(int64_t first, ArrayRef<Value> words) {
  for (auto [i, word] : llvm::enumerate(words))
    b.store(word, address(first + i), 4);
}
SmallVector<Value> TileQueue::load(int64_t first, int64_t count) {
  // By the lane that will release the ticket for the warp.
  Value isFirst = b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0));
  Values words = b.branch(
      isFirst,
      [&]() -> Values {
        // Volatile: a word that is read a second time is not kept in a register
        // until then.
        Values words;
        for (int64_t i = 0; i < count; ++i)
          words.push_back(
              LLVM::LoadOp::create(b, b.i32Type(), address(first + i),
                                   /*alignment=*/4, /*isVolatile=*/true));
        return words;
      },
      Values(count, b.i32(0)));
  for (Value &word : words)
    word = b.shuffle(word, b.i32(0));
  return SmallVector<Value>(words.begin(), words.end());
}

void TileQueue::publish(const QueryBlock &place) {
  store(0, {place.head, place.sequence, place.firstRow});
  if (kernel.spec.isPacked())
    store(kBounds, kernel.getSequenceBounds());
}

void TileQueue::publishEnd() { store(0, b.i32(-1)); }

Value TileQueue::readEnd() {
  return b.compare(LLVM::ICmpPredicate::slt, load(0, 1)[0], b.i32(0));
}

QueryBlock TileQueue::read() {
  SmallVector<Value> words = load(0, kBounds);
  QueryBlock place;
  place.head = words[0];
  place.sequence = place.batch = words[1];
  place.firstRow = place.clusterRow = words[2];
  if (kernel.spec.isPacked()) {
    place.batch = b.i32(0);
    kernel.setSequenceBounds(load(kBounds, kernel.spec.keyBoundType ? 4 : 2));
  }
  place.noiseHead = kernel.noiseHeadOf(place.head);
  return place;
}
