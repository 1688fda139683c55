//===- GradientWgmmaQueries.cpp - gradients of queries, by warpgroups -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Warpgroup 0 brings Q1, Q2 and dX of a signal head, then its tiles of keys and
// values (TensorRing.h), and so for each head of the noise head; 1 and 2 have
// 64 queries each, of both maps. Gradients of scores go from registers into the
// product with K.
//
// While the products with K1 and V run, nothing else does; then the weights of
// map 1 are computed beside dX V^T, and those of map 2 beside the product that
// adds to the sums of Q1.
//
//===----------------------------------------------------------------------===//
#include "GradientQueries.h"
#include "Warpgroups.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

/// Registers of this kernel. The thread that brings computes the rows and tiles
/// of one head after the other, for which it needs 40.
static constexpr WarpgroupRegisters kRegistersOfQueries{40, 232};

namespace {
class WgmmaGradientQueries : GradientQueryBlock {
public:
  explicit WgmmaGradientQueries(AttentionKernel &kernel)
      : GradientQueryBlock(kernel), hopper(kernel.b), ring(kernel),
        hasRoom(4 * spec.maps * fragments <= kMostSumsWithRoom) {}
  void emit();

private:
  using Sums = HopperBuilder::Sums;
  /// Where in the ring, and which filling of the place of the rows: stage,
  /// parity and parity of the rows, i32.
  static constexpr size_t kPlaceNumbers = 3;
  /// Without room, computes anew what follows from `thread`, the thread's
  /// number.
  void renewThread(Value thread) {
    if (hasRoom)
      return;
    kernel.setThread(hopper.renew(thread));
    locateWarp();
  }
  void bring();
  void multiply();
  /// All of signal head `head`, from `carried`, a place and sums of Q2, on.
  Values multiplyHead(Value head, ValueRange carried);
  /// The tile that begins at `firstKey`: adds to the sums of each map.
  void computeTile(Value firstKey, TensorRing::Position position,
                   MutableArrayRef<Sums> sums);
  /// Starts the products of the warpgroup's Q1 or Q2 with its keys.
  void startScores(int64_t map, Sums &scores, TensorRing::Position position);
  void startAdding(int64_t map, Sums &sums, ArrayRef<Fragment> dS,
                   TensorRing::Position position);
  Value keyTile(int64_t map, TensorRing::Position position) {
    Value base = ring.keys(position);
    return map && spec.hasSecondKeys() ? b.bytes(base, layout.keyBytes) : base;
  }
  /// Rows of this warpgroup that lie from `offset` on.
  PanelRows rows(int64_t offset) {
    return getGroupRows(kernel, ring, group, offset);
  }
  PanelRows tileRows(Value base) { return getTileRows(kernel, base); }

  HopperBuilder hopper;
  TensorRing ring;
  /// Fragments of the sums of one map.
  const int64_t fragments =
      static_cast<int64_t>(llvm::alignTo(spec.headDim, kWgmmaDepth) / 8);
  const bool hasRoom;
  Value group;
};
} // namespace

void WgmmaGradientQueries::startScores(int64_t map, Sums &scores,
                                       TensorRing::Position position) {
  startRowProduct(hopper, scores, rows(map * layout.queryBytes),
                  tileRows(keyTile(map, position)), spec.headDim,
                  kernel.element);
}

void WgmmaGradientQueries::startAdding(int64_t map, Sums &sums,
                                       ArrayRef<Fragment> dS,
                                       TensorRing::Position position) {
  startColumnProduct(
      hopper, sums, dS,
      hopper.describe(keyTile(map, position), layout.keyPanelBytes),
      kernel.element);
}

void WgmmaGradientQueries::computeTile(Value firstKey,
                                       TensorRing::Position position,
                                       MutableArrayRef<Sums> sums) {
  const GradientTiles::Place where = at(firstKey);
  ring.waitForKeys(position);
  ring.waitForValues(position);
  ring.clearHiddenKeys(position, firstKey, [&] { meetReaders(b); });
  Sums scores = hopper.undefined(keys / 8), dP = hopper.undefined(keys / 8);
  hopper.fence();
  startScores(/*map=*/0, scores, position);
  hopper.commit();
  startRowProduct(hopper, dP, rows(layout.rowValueOffset),
                  tileRows(ring.values(position)), spec.valueDim,
                  kernel.element);
  hopper.commit();
  hopper.wait({&scores}, /*operands=*/{}, /*pending=*/1);
  RowFragments slopes;
  weigh(/*map=*/0, scores, where, slopes);
  // The weights too: LLVM would sink them behind the wait.
  hopper.wait({&dP, &scores});
  SmallVector<Fragment> dS = differentiate(/*map=*/0, scores, dP, slopes);
  hopper.tie({&sums[0]}, dS);
  if (spec.maps == 2) {
    Sums second = hopper.undefined(keys / 8);
    hopper.fence();
    addBeside(
        hopper, hasRoom, sums[0], dS,
        [&] { startAdding(/*map=*/0, sums[0], dS, position); }, second,
        [&] { startScores(/*map=*/1, second, position); });
    RowFragments slopesOfSecond;
    weigh(/*map=*/1, second, where, slopesOfSecond);
    if (hasRoom)
      hopper.wait({&sums[0], &second}, dS);
    dS = differentiate(/*map=*/1, second, dP, slopesOfSecond);
    hopper.tie({&sums[1]}, dS);
  }
  const int64_t last = spec.maps - 1;
  hopper.fence();
  startAdding(last, sums[last], dS, position);
  hopper.commit();
  hopper.wait({&sums[last]}, dS);
  ring.release(position);
}

GpuBuilder::Values WgmmaGradientQueries::multiplyHead(Value head,
                                                      ValueRange carried) {
  Value ofRows = carried[2];
  const Value thread = kernel.thread, batch = place.batch;
  // Addresses of the batch would else be computed ahead of all heads, and kept.
  auto renew = [&] {
    renewThread(thread);
    if (!hasRoom)
      place.batch = hopper.renew(batch);
  };
  renew();
  loadStatistics(head);
  ring.waitForQueries(ofRows);
  // Zeros of Q1 ahead of the sums of Q2.
  Values initial{carried[0], carried[1]};
  initial.append(4 * fragments, b.f32(0.0));
  llvm::append_range(initial, carried.drop_front(kPlaceNumbers));
  Values final = ring.forTiles(
      firstTile, endTile, initial,
      [&](Value number, ValueRange carried) -> Values {
        renewThread(thread);
        TensorRing::Position position{carried[0], carried[1]};
        SmallVector<Sums> sums;
        for (int64_t map = 0; map < spec.maps; ++map)
          sums.push_back(toFragments(
              carried.drop_front(2).slice(4 * fragments * map, 4 * fragments)));
        computeTile(b.mul(number, keys), position, sums);
        position = ring.following(position);
        Values next{position.stage, position.parity};
        for (const Sums &ofMap : sums)
          llvm::append_range(next, toValues(ofMap));
        return next;
      },
      /*mayUnroll=*/false);
  renew();
  ring.releaseQueries(/*wroteThere=*/false);
  ValueRange sums = ValueRange(final).drop_front(2);
  store(GpuGradient::Q1, toFragments(sums.take_front(4 * fragments)), head);
  if (!hasRoom)
    kernel.setThread(thread);
  place.batch = batch;
  Values next{final[0], final[1], b.xorI(ofRows, 1)};
  llvm::append_range(next, sums.drop_front(4 * fragments));
  return next;
}

void WgmmaGradientQueries::multiply() {
  group = getReadingGroup(kernel);
  TensorRing::Position start = ring.begin();
  Values initial{start.stage, start.parity, b.i32(0)};
  if (spec.maps == 2)
    initial.append(4 * fragments, b.f32(0.0));
  Values final = forHeads(initial, [&](Value head, ValueRange carried) {
    return multiplyHead(head, carried);
  });
  renewThread(kernel.thread);
  if (spec.maps == 2)
    store(GpuGradient::Q2,
          toFragments(ValueRange(final).drop_front(kPlaceNumbers)),
          place.noiseHead);
}

void WgmmaGradientQueries::bring() {
  TensorRing::Position start = ring.beginBringing();
  forHeads({start.stage, start.parity, start.parity},
           [&](Value head, ValueRange carried) -> Values {
             QueryBlock ofHead = place;
             ofHead.head = head;
             ring.enter(ofHead);
             ring.waitForQueryPlace(carried[2]);
             ring.bringQueries();
             TensorRing::Position position =
                 ring.bring(firstTile, endTile, {carried[0], carried[1]});
             return {position.stage, position.parity, b.xorI(carried[2], 1)};
           });
}

void WgmmaGradientQueries::emit() {
  locate();
  emitWarpgroups(
      kernel, ring, kRegistersOfQueries,
      [&] {
        b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0)),
                 [&] { bring(); });
      },
      [&] { multiply(); });
}

void mlir::diffattn::gpucode::emitWgmmaGradientQueries(
    AttentionKernel &kernel) {
  WgmmaGradientQueries(kernel).emit();
}
