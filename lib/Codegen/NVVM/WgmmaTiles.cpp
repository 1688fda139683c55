//===- WgmmaTiles.cpp - tiles of keys that a warpgroup multiplies ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WgmmaTiles.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Barriers = WgmmaBarriers;

WgmmaTiles::WgmmaTiles(AttentionKernel &kernel, const QueryBlock &place,
                       TensorRing &ring, OnlineSoftmax &softmax, MapSums &maps)
    : kernel(kernel), b(kernel.b), hopper(kernel.b), place(place), ring(ring),
      softmax(softmax), maps(maps), keys(kernel.spec.getTileKeys()) {}

static bool takesTurns(const AttentionKernel &kernel) {
  return !cast<GpuWgmmaAttr>(kernel.spec.schedule).getOverlap();
}
static void waitForTurn(GpuBuilder &b, Value group) {
  b.namedBarrier(b.add(group, Barriers::kTurn), Barriers::kReadingThreads);
}
static void passTurn(GpuBuilder &b, Value group) {
  HopperBuilder(b).arriveAtBarrier(b.sub(b.i32(Barriers::kTurn + 1), group),
                                   Barriers::kReadingThreads);
}

void mlir::diffattn::gpucode::beginTurns(AttentionKernel &kernel, Value group) {
  GpuBuilder &b = kernel.b;
  if (takesTurns(kernel))
    b.branch(b.compare(LLVM::ICmpPredicate::ne, group, b.i32(0)),
             [&] { passTurn(b, group); });
}

void mlir::diffattn::gpucode::endTurns(AttentionKernel &kernel, Value group) {
  GpuBuilder &b = kernel.b;
  if (takesTurns(kernel))
    b.branch(b.compare(LLVM::ICmpPredicate::eq, group, b.i32(0)),
             [&] { waitForTurn(b, group); });
}

WgmmaTiles::Tile WgmmaTiles::enterTile(Value number,
                                       TensorRing::Position position) {
  Value firstKey = b.mul(number, keys);
  // With pages, what a row sees is computed anew for each tile: kept, it would
  // take registers, which products need.
  Value row = kernel.pages ? hopper.renew(warpRow) : warpRow;
  return {firstKey, kernel.isSeenInPart(row, 16, firstKey, keys), position};
}

void WgmmaTiles::startKeys(int64_t map, Sums &scores,
                           TensorRing::Position position) {
  const GpuSharedLayout &layout = kernel.layout;
  Value base = ring.keys(position);
  int64_t keyOffset = 0;
  if (kernel.spec.hasSecondKeys()) {
    if (numMaps() > 1)
      keyOffset = map * layout.keyBytes;
    else
      base = b.bytes(base, b.mul(group, layout.keyBytes));
  }
  Value described = hopper.describe(base, /*panelBytes=*/16);
  Value ofQueries = hopper.renewDescription(queries[map]);
  startRowProduct(hopper, scores, {ofQueries, layout.queryPanelBytes},
                  {described, layout.keyPanelBytes}, kernel.spec.headDim,
                  kernel.element, keyOffset);
}

void WgmmaTiles::startValues(int64_t map, ArrayRef<Fragment> probabilities,
                             TensorRing::Position position) {
  Value values =
      hopper.describe(ring.values(position), kernel.layout.keyPanelBytes);
  startColumnProduct(hopper, sums(map), probabilities, values, kernel.element);
}

void WgmmaTiles::enterValues(Value firstKey, TensorRing::Position position) {
  ring.waitForValues(position);
  ring.clearHiddenValues(position, firstKey, [&] { meetReaders(b); });
}

OnlineSoftmax::Step WgmmaTiles::exponentiate(int64_t map, Sums &scores,
                                             const Tile &tile) {
  Value row = b.add(warpRow, kernel.laneRow);
  const std::array<Value, 2> rows{row, b.add(row, 8)};
  softmax.transform(scores, place.noiseHead, rows, tile.firstKey);
  softmax.replaceIf(tile.isPartial, scores,
                    [&] { return softmax.mask(scores, rows, tile.firstKey); });
  RowState &state = maps.states[map].front();
  OnlineSoftmax::Step step = softmax.exponentiate(scores, state);
  state = step.state;
  return step;
}

//===----------------------------------------------------------------------===//
// The plain order
//===----------------------------------------------------------------------===//

void WgmmaTiles::computeTile(const Tile &tile) {
  ring.waitForKeys(tile.position);
  SmallVector<Sums> scores(numMaps(), hopper.undefined(keys / 8));
  SmallVector<Sums *> pending;
  hopper.fence();
  for (int64_t map = 0; map < numMaps(); ++map) {
    pending.push_back(&scores[map]);
    startKeys(map, scores[map], tile.position);
  }
  hopper.commit();
  hopper.wait(pending);
  waitForTurn(b, group);
  SmallVector<Fragment> probabilities;
  pending.clear();
  for (int64_t map = 0; map < numMaps(); ++map) {
    OnlineSoftmax::Step step = exponentiate(map, scores[map], tile);
    llvm::append_range(probabilities, softmax.pack(step.powers));
    rescaleSums(softmax, maps.sums[map], step);
    pending.push_back(&sums(map));
  }
  passTurn(b, group);
  enterValues(tile.firstKey, tile.position);
  // Keeps the writes to these registers before the fence.
  hopper.tie(pending, probabilities);
  hopper.fence();
  const int64_t blocks = keys / kWgmmaDepth;
  for (int64_t map = 0; map < numMaps(); ++map)
    startValues(map, ArrayRef(probabilities).slice(map * blocks, blocks),
                tile.position);
  hopper.commit();
  hopper.wait(pending, probabilities);
  ring.release(tile.position);
}

GpuBuilder::Values WgmmaTiles::multiplyInTurns(Value first, Value end,
                                               TensorRing::Position position) {
  Values initial{position.stage, position.parity};
  llvm::append_range(initial, maps.flatten());
  return ring.forTiles(
      first, end, initial,
      [&](Value number, ValueRange carried) -> Values {
        TensorRing::Position at{carried[0], carried[1]};
        maps.assign(carried.drop_front(2));
        computeTile(enterTile(number, at));
        at = ring.following(at);
        Values next{at.stage, at.parity};
        llvm::append_range(next, maps.flatten());
        return next;
      },
      /*mayUnroll=*/false);
}

//===----------------------------------------------------------------------===//
// Exponentials beside a product
//===----------------------------------------------------------------------===//

void WgmmaTiles::overlapSteps(const Tile &tile, int64_t first,
                              Pending &pending) {
  for (int64_t map = first; map < numMaps(); ++map) {
    if (pending.map == 0)
      enterValues(pending.firstKey, pending.position);
    Sums scores = hopper.undefined(keys / 8);
    Sums &running = sums(pending.map);
    hopper.tie({&running}, pending.probabilities);
    hopper.fence();
    startKeys(map, scores, tile.position);
    hopper.commit();
    startValues(pending.map, pending.probabilities, pending.position);
    hopper.commit();
    hopper.wait({&scores}, /*operands=*/{}, /*pending=*/1);
    OnlineSoftmax::Step step = exponentiate(map, scores, tile);
    // The powers too, which are rounded to where the product reads P, and what
    // is computed of them beside it: LLVM would sink that behind the wait.
    RowState &state = maps.states[map].front();
    Sums ofRows{
        Fragment{state.sum[0], state.sum[1], step.alpha[0], step.alpha[1]}};
    hopper.wait({&running, &step.powers, &ofRows}, pending.probabilities);
    state.sum = {ofRows[0][0], ofRows[0][1]};
    step.alpha = {ofRows[0][2], ofRows[0][3]};
    if (pending.map + 1 == numMaps())
      ring.release(pending.position);
    rescaleSums(softmax, maps.sums[map], step);
    pending = {map, tile.firstKey, tile.position, softmax.pack(step.powers)};
  }
}

void WgmmaTiles::finish(Pending &pending) {
  if (pending.map == 0)
    enterValues(pending.firstKey, pending.position);
  Sums &running = sums(pending.map);
  hopper.tie({&running}, pending.probabilities);
  hopper.fence();
  startValues(pending.map, pending.probabilities, pending.position);
  hopper.commit();
  hopper.wait({&running}, pending.probabilities);
  ring.release(pending.position);
}

GpuBuilder::Values
WgmmaTiles::multiplyOverlapped(Value first, Value end,
                               TensorRing::Position position) {
  // The first step has no product of another one beside it, and sums of zeros.
  Value last = b.add(end, -1);
  const Tile start = enterTile(last, position);
  ring.waitForKeys(position);
  Sums scores = hopper.undefined(keys / 8);
  hopper.fence();
  startKeys(/*map=*/0, scores, position);
  hopper.commit();
  hopper.wait({&scores});
  OnlineSoftmax::Step step = exponentiate(/*map=*/0, scores, start);
  Pending pending{/*map=*/0, start.firstKey, position,
                  softmax.pack(step.powers)};
  overlapSteps(start, /*first=*/1, pending);
  position = ring.following(position);

  // Where the tile before lies is not carried, but computed: registers are few.
  auto enter = [&](Value before, ValueRange carried) {
    position = {carried[0], carried[1]};
    pending.map = numMaps() - 1;
    pending.firstKey = b.mul(before, keys);
    pending.position = ring.preceding(position);
    carried = carried.drop_front(2);
    for (Fragment &fragment : pending.probabilities) {
      llvm::copy(carried.take_front(4), fragment.begin());
      carried = carried.drop_front(4);
    }
    maps.assign(carried);
  };
  auto leave = [&]() -> Values {
    Values carried{position.stage, position.parity};
    for (const Fragment &fragment : pending.probabilities)
      carried.append(fragment.begin(), fragment.end());
    llvm::append_range(carried, maps.flatten());
    return carried;
  };
  Values final = ring.forTiles(
      first, last, leave(),
      [&](Value number, ValueRange carried) -> Values {
        enter(b.add(number, 1), carried);
        const Tile tile = enterTile(number, position);
        ring.waitForKeys(position);
        overlapSteps(tile, /*first=*/0, pending);
        position = ring.following(position);
        return leave();
      },
      /*mayUnroll=*/false);
  enter(first, final);
  finish(pending);
  Values after{position.stage, position.parity};
  llvm::append_range(after, maps.flatten());
  return after;
}

TensorRing::Position WgmmaTiles::multiply(Value first, Value end,
                                          TensorRing::Position position) {
  Values after;
  if (!takesTurns(kernel)) {
    Values none{position.stage, position.parity};
    llvm::append_range(none, maps.flatten());
    // Without a tile there is no first step.
    after = b.branch(
        b.compare(LLVM::ICmpPredicate::slt, first, end),
        [&] { return multiplyOverlapped(first, end, position); }, none);
  } else {
    after = multiplyInTurns(first, end, position);
  }
  maps.assign(ValueRange(after).drop_front(2));
  return {after[0], after[1]};
}
