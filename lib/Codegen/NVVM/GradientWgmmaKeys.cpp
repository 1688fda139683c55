//===- GradientWgmmaKeys.cpp - gradients of keys, by warpgroups -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// In warpgroup 0, one thread copies K1, K2 and V once, then tiles of Q1, Q2 and
// dX of all signal heads that share them (TensorRing.h), and one warp the
// numbers of the tiles' queries. Warpgroups 1 and 2 have 64 keys each, of both
// maps, and the sums of their gradients. Scores are transposed, so that weights
// and gradients of scores go from registers into the products that sum over
// queries.
//
// Registers hold two tiles of scores beside the sums: those of dX V^T and of
// one map. So each thread parks the weights of map 1 in a place of its own,
// which no other thread reads, until those of map 2 are there, and their
// difference is rounded once.
//
//===----------------------------------------------------------------------===//
#include "GradientKeys.h"
#include "Warpgroups.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

static constexpr WarpgroupRegisters kRegistersOfKeys{40, 232};

/// Fragments of sums of `width` columns.
static size_t countFragments(int64_t width) {
  return llvm::alignTo(width, kWgmmaDepth) / 8;
}

namespace {
class WgmmaGradientKeys : GradientKeyBlock {
public:
  explicit WgmmaGradientKeys(AttentionKernel &kernel)
      : GradientKeyBlock(kernel, countFragments(kernel.spec.headDim)),
        hopper(kernel.b), ring(kernel),
        hasRoom(kernel.spec.maps == 1 ||
                4 * (fragments * keyTensors +
                     countFragments(kernel.spec.valueDim)) <=
                    kMostSumsWithRoom) {}
  void emit();

private:
  using Sums = HopperBuilder::Sums;
  using Position = TensorRing::Position;
  /// The loop over signal heads, with the position in the ring carried first.
  Values forHeads(Position start, ValueRange sums,
                  function_ref<Values(Value head, ValueRange carried)> body);
  QueryBlock placeOf(Value head) {
    QueryBlock place;
    place.batch = place.sequence = batch;
    place.head = head;
    place.noiseHead = kernel.noiseHeadOf(head);
    return place;
  }
  /// Without room, computes anew what follows from `thread`, the thread's
  /// number.
  void renewThread(Value thread) {
    if (hasRoom)
      return;
    kernel.setThread(hopper.renew(thread));
    locateWarp();
  }
  void bring();
  void bringStatistics();
  /// Numbers of query `row` of signal head `head`, to where `to` and the next
  /// ones of each kind lie; zeros of queries that do not exist.
  void writeStatistics(Value head, Value row, Value to);
  void multiply();
  void computeTile(const GradientTiles::Place &where, Position position,
                   MutableArrayRef<Sums> keySums, Sums &valueSums);
  /// Both numbers of the columns of fragment `n`, read when they are asked for.
  Value readStatistic(Statistic which, Position position, int64_t n, int64_t i);
  void park(ArrayRef<Fragment> weights);
  void addParked(MutableArrayRef<Fragment> weights);
  Value parkedPlace(int64_t n);

  /// Keys of this warpgroup that lie from `offset` on.
  PanelRows rows(int64_t offset) {
    return getGroupRows(kernel, ring, group, offset);
  }
  /// Rows of a tile, and the same rows as the second operand of a sum over
  /// them.
  PanelRows tileRows(Value base) { return getTileRows(kernel, base); }
  Value tileColumns(Value base) {
    return hopper.describe(base, layout.keyPanelBytes);
  }

  HopperBuilder hopper;
  TensorRing ring;
  const bool hasRoom;
  Value group;
  llvm::SmallDenseMap<std::pair<int64_t, int64_t>, SmallVector<Value>> numbers;
};
} // namespace

//===----------------------------------------------------------------------===//
// Copies by warpgroup 0
//===----------------------------------------------------------------------===//

GpuBuilder::Values WgmmaGradientKeys::forHeads(
    Position start, ValueRange sums,
    function_ref<Values(Value head, ValueRange carried)> body) {
  Values initial{start.stage, start.parity};
  llvm::append_range(initial, sums);
  return b.loop(firstHead, b.add(firstHead, perKey), 1, initial, body,
                /*mayUnroll=*/false);
}

void WgmmaGradientKeys::bring() {
  QueryBlock rows = placeOf(firstHead);
  rows.head = rows.noiseHead = keyHead;
  rows.firstRow = firstKey;
  ring.enter(rows);
  ring.bringQueries();
  forHeads(ring.beginBringing(), {},
           [&](Value head, ValueRange carried) -> Values {
             const QueryBlock place = placeOf(head);
             ring.enter(place);
             Position position =
                 ring.bring(firstTile, endTile, {carried[0], carried[1]});
             return {position.stage, position.parity};
           });
}

void WgmmaGradientKeys::writeStatistics(Value head, Value row, Value to) {
  Value last = b.add(kernel.queries(), -1), zero = b.f32(0.0);
  Value exists = b.compare(LLVM::ICmpPredicate::sle, row, last);
  Value place = b.minS(row, last);
  auto write = [&](Statistic which, Value number) {
    b.store(b.select(exists, number, zero), b.bytes(to, which * 4 * queries));
  };
  // Addresses are computed anew for each number: registers are few here.
  for (int64_t map = 0; map < spec.maps; ++map) {
    head = hopper.renew(head);
    Value logarithm = b.loadConstant(
        b.f32(),
        kernel.stridePointer(
            b.f32(),
            tiles.getLogSums(map, batch, map ? kernel.noiseHeadOf(head) : head),
            b.toI64(place), tiles.getLogSumStride(map)));
    write(map ? Lse2 : Lse1, tiles.getShift(logarithm));
    head = hopper.renew(head);
    Value sums = tiles.getRowSums(map ? GpuParam::D2 : GpuParam::D1, batch,
                                  head, signalHeads);
    write(map ? D2 : D1,
          b.loadConstant(b.f32(), b.element(b.f32(), sums, b.toI64(place))));
  }
  if (spec.maps == 2) {
    head = hopper.renew(head);
    write(Lambda, b.mulF(kernel.loadLambda(batch, place, head), b.f32(-1.0)));
  }
}

void WgmmaGradientKeys::bringStatistics() {
  forHeads(
      ring.beginBringing(), {}, [&](Value head, ValueRange carried) -> Values {
        return ring.forTiles(
            firstTile, endTile, carried,
            [&](Value number, ValueRange carried) -> Values {
              Position position{carried[0], carried[1]};
              ring.waitForPlace(position);
              Value first = b.add(b.mul(number, queries), kernel.lane);
              Value base =
                  b.bytes(ring.statistics(position), b.mul(kernel.lane, 4));
              for (int64_t i = 0; i < queries; i += 32) {
                auto write = [&] {
                  writeStatistics(head, b.add(first, i), b.bytes(base, 4 * i));
                };
                if (i + 32 <= queries)
                  write();
                else
                  b.branch(b.compare(LLVM::ICmpPredicate::slt, kernel.lane,
                                     b.i32(queries - i)),
                           write);
              }
              ring.arriveWithStatistics(position);
              position = ring.following(position);
              return {position.stage, position.parity};
            },
            /*mayUnroll=*/false);
      });
}

//===----------------------------------------------------------------------===//
// Products by warpgroups 1 and 2
//===----------------------------------------------------------------------===//

Value WgmmaGradientKeys::readStatistic(Statistic which, Position position,
                                       int64_t n, int64_t i) {
  SmallVector<Value> &pair = numbers[{which, n}];
  if (pair.empty())
    pair = b.unpack(b.load(
        VectorType::get(2, b.f32()),
        b.bytes(b.bytes(ring.statistics(position), b.mul(kernel.laneColumn, 8)),
                which * 4 * queries + 32 * n),
        8));
  return pair[i % 2];
}

Value WgmmaGradientKeys::parkedPlace(int64_t n) {
  constexpr int64_t threads = WgmmaBarriers::kReadingThreads,
                    bytes = GpuSharedLayout::kParkedBytes;
  Value reader = b.add(kernel.thread, -GpuWgmmaAttr::kGroupThreads);
  return b.bytes(b.bytes(kernel.shared, b.mul(reader, bytes)),
                 layout.parked.offset + n * threads * bytes);
}

void WgmmaGradientKeys::park(ArrayRef<Fragment> weights) {
  for (auto [n, fragment] : llvm::enumerate(weights))
    b.store(b.pack(fragment), parkedPlace(n), GpuSharedLayout::kParkedBytes);
}

void WgmmaGradientKeys::addParked(MutableArrayRef<Fragment> weights) {
  auto type = VectorType::get(4, b.f32());
  for (auto [n, fragment] : llvm::enumerate(weights))
    for (auto [weight, parked] : llvm::zip_equal(
             fragment, b.unpack(b.load(type, parkedPlace(n),
                                       GpuSharedLayout::kParkedBytes))))
      weight = b.addF(parked, weight);
}

void WgmmaGradientKeys::computeTile(const GradientTiles::Place &where,
                                    Position position,
                                    MutableArrayRef<Sums> keySums,
                                    Sums &valueSums) {
  numbers.clear();
  auto numberOf = [&](Statistic which) {
    return [this, which, position](int64_t n, int64_t i) {
      return readStatistic(which, position, n, i);
    };
  };
  ring.waitForKeys(position);
  ring.waitForValues(position);
  ring.waitForStatistics(position);
  const Value q1 = ring.keys(position), dX = ring.values(position);
  Sums weights = hopper.undefined(queries / 8),
       dP = hopper.undefined(queries / 8);
  hopper.fence();
  startRowProduct(hopper, weights, rows(0), tileRows(q1), spec.headDim,
                  kernel.element);
  hopper.commit();
  startRowProduct(hopper, dP, rows(layout.rowValueOffset), tileRows(dX),
                  spec.valueDim, kernel.element);
  hopper.commit();
  hopper.wait({&weights}, /*operands=*/{}, /*pending=*/1);
  RowFragments slopes;
  tiles.weigh(weights, where, numberOf(Lse1), slopes);
  // The weights too: LLVM would sink them behind the wait.
  hopper.wait({&dP, &weights});
  SmallVector<Fragment> dS =
      tiles.pack(tiles.differentiate(weights, dP, numberOf(D1), slopes));
  Sums *ofKeys = &keySums[0];
  if (spec.maps == 2) {
    park(weights);
    const Value q2 = b.bytes(q1, layout.keyBytes);
    weights = hopper.undefined(queries / 8);
    hopper.tie({ofKeys}, dS);
    hopper.fence();
    addBeside(
        hopper, hasRoom, *ofKeys, dS,
        [&] {
          startColumnProduct(hopper, *ofKeys, dS, tileColumns(q1),
                             kernel.element);
        },
        weights,
        [&] {
          startRowProduct(hopper, weights,
                          rows(spec.hasSecondKeys() ? layout.queryBytes : 0),
                          tileRows(q2), spec.headDim, kernel.element);
        });
    RowFragments slopesOfSecond;
    tiles.weigh(weights, where, numberOf(Lse2), slopesOfSecond);
    for (auto [n, fragment] : llvm::enumerate(weights))
      for (auto [i, weight] : llvm::enumerate(fragment))
        weight = b.mulF(weight, readStatistic(Lambda, position, n, i));
    if (hasRoom)
      hopper.wait({ofKeys, &weights}, dS);
    dS = tiles.pack(
        tiles.differentiate(weights, dP, numberOf(D2), slopesOfSecond));
    ofKeys = &keySums[keyTensors - 1];
    addParked(weights);
  }
  SmallVector<Fragment> difference = tiles.pack(weights);
  SmallVector<Fragment> operands(dS);
  llvm::append_range(operands, difference);
  hopper.tie({ofKeys, &valueSums}, operands);
  hopper.fence();
  const auto both = ArrayRef(operands);
  startColumnProduct(
      hopper, *ofKeys, both.take_front(dS.size()),
      tileColumns(spec.maps == 2 ? b.bytes(q1, layout.keyBytes) : q1),
      kernel.element);
  startColumnProduct(hopper, valueSums, both.drop_front(dS.size()),
                     tileColumns(dX), kernel.element);
  hopper.commit();
  hopper.wait({ofKeys, &valueSums}, operands);
  // The lane that arrives speaks for all, who have read numbers of the stage.
  b.warpBarrier();
  ring.release(position);
}

void WgmmaGradientKeys::multiply() {
  group = getReadingGroup(kernel);
  ring.waitForQueries(b.i32(0));
  ring.clearHiddenRows(firstKey, [&] { meetReaders(b); });
  const Value thread = kernel.thread;
  const size_t ofKeys = 4 * fragments * keyTensors,
               ofValues = 4 * countFragments(spec.valueDim);
  Values final =
      forHeads(ring.begin(), Values(ofKeys + ofValues, b.f32(0.0)),
               [&](Value head, ValueRange carried) -> Values {
                 Value noiseHead = kernel.noiseHeadOf(head);
                 return ring.forTiles(
                     firstTile, endTile, carried,
                     [&](Value number, ValueRange carried) -> Values {
                       renewThread(thread);
                       Position position{carried[0], carried[1]};
                       ValueRange sums = carried.drop_front(2);
                       SmallVector<Sums> keySums;
                       for (int64_t i = 0; i < keyTensors; ++i)
                         keySums.push_back(toFragments(
                             sums.slice(4 * fragments * i, 4 * fragments)));
                       Sums valueSums = toFragments(sums.drop_front(ofKeys));
                       computeTile({noiseHead, warpKey, b.mul(number, queries)},
                                   position, keySums, valueSums);
                       position = ring.following(position);
                       Values next{position.stage, position.parity};
                       for (const Sums &all : keySums)
                         llvm::append_range(next, toValues(all));
                       llvm::append_range(next, toValues(valueSums));
                       return next;
                     },
                     /*mayUnroll=*/false);
               });
  renewThread(thread);
  store(toFragments(ValueRange(final).drop_front(2)));
}

void WgmmaGradientKeys::emit() {
  locate();
  emitWarpgroups(
      kernel, ring, kRegistersOfKeys,
      [&] {
        b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0)),
                 [&] { bring(); });
        b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.warp, b.i32(1)),
                 [&] { bringStatistics(); });
      },
      [&] { multiply(); });
}

void mlir::diffattn::gpucode::emitWgmmaGradientKeys(AttentionKernel &kernel) {
  WgmmaGradientKeys(kernel).emit();
}
