//===- SplitKVKernel.cpp - attention of few queries -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVKernel.h"
#include "TileBuilder.h"

#include "DiffAttn/Semantics/Activations.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

static CallSizes readSizes(KernelValues v) {
  const AttentionSpec &spec = v.spec;
  CallSizes sizes;
  sizes.batch = v.size(spec.batch);
  sizes.signalHeads = v.size(spec.signalHeads);
  sizes.noiseHeads = v.size(spec.noiseHeads);
  sizes.key1Heads = v.size(spec.key1Heads);
  sizes.key2Heads = v.size(spec.key2Heads);
  sizes.valueHeads = v.size(spec.valueHeads);
  sizes.queries = v.size(spec.queries);
  sizes.keys = v.size(spec.keys);
  sizes.headDim = v.size(spec.headDim);
  sizes.valueDim = v.size(spec.valueDim);
  return sizes;
}

SplitKVKernel::SplitKVKernel(KernelBuilder &b, ModuleOp module,
                             const AttentionSpec &spec, const CallSizes &sizes,
                             Value context)
    : b(b), module(module), spec(spec), schedule(spec.splitKV),
      atom(spec.getAtom()), valueAtom(atom.usesTiles ? getFmaF32() : atom),
      // Parts of sums must be pairs of vectors, too.
      pairsValues(readsPairs(spec.v, valueAtom) &&
                  getOutputVectors(schedule.getPvRows()) > 1),
      v(b, spec, context), sizes(sizes), context(context) {
  groups = getGroups();
  groupRows[0] = b.mul(groups.signal, sizes.queries);
  groupRows[1] = b.mul(groups.noise, sizes.queries);
  queryStride = b.roundUp(sizes.headDim, b.lanes);
  // A width that is not known has a last step of masked keys, perhaps of none:
  // the query must be 0 there, not what lay in memory.
  if (!spec.headDim.isStatic())
    queryStride = b.add(queryStride, b.lanes);
  paddedValueDim = b.roundUp(sizes.valueDim, b.lanes);
  blocks = b.ceilDiv(sizes.keys, schedule.getKvSplitSize());
  paddedBlocks = b.roundUp(blocks, b.lanes);
  m = layOutMemory(context
                       ? b.load(b.pointer, context, b.i64, b.index(spec.slots))
                       : Value());
  s = layOutScratch(Value());
}

bool SplitKVKernel::readsPairs(const SpecOperand &operand,
                               const ProductAtom &of) const {
  return &of == &getFmaF32() && operand.element.isBF16() &&
         (operand.hasUnitColumns() || spec.isPaged());
}

HeadGroups SplitKVKernel::getGroups() {
  // The signal heads of one head of each operand; groups must be made of whole
  // ones. (A noise head's lie within those of its head of K2.)
  Value all = sizes.signalHeads, size = b.index(1);
  Value parts[] = {b.div(all, sizes.key1Heads), b.div(all, sizes.key2Heads),
                   b.div(all, sizes.valueHeads)};
  for (Value part : parts)
    size = b.max(size, part);
  Value most = size;
  for (Value part : parts)
    size = b.select(b.equal(b.rem(most, part), b.index(0)), size, all);
  HeadGroups result;
  result.groups = b.div(all, size);
  result.signal = size;
  result.noise = b.div(sizes.noiseHeads, result.groups);
  result.key1 = b.div(sizes.key1Heads, result.groups);
  result.key2 = b.div(sizes.key2Heads, result.groups);
  result.value = b.div(sizes.valueHeads, result.groups);
  return result;
}

/// Lays parts one after another, each on a cache line.
static auto partTaker(KernelBuilder &b, Value base, Value &at) {
  at = b.index(0);
  return [&b, base, &at](Value count) {
    Value part = base ? b.at(base, b.f32, at) : Value();
    at = b.add(at, b.roundUp(count, 16));
    return part;
  };
}

SplitKVMemory SplitKVKernel::layOutMemory(Value base) {
  SplitKVMemory m;
  auto take = partTaker(b, base, m.total);
  Value rows[] = {b.mul(sizes.signalHeads, sizes.queries),
                  b.mul(sizes.noiseHeads, sizes.queries)};
  for (int map : {0, 1}) {
    Value count = b.mul(b.mul(sizes.batch, rows[map]), paddedBlocks);
    m.maxima[map] = take(count);
    m.sums[map] = take(count);
  }
  m.factors = take(b.mul(b.mul(b.mul(sizes.batch, rows[0]), paddedBlocks), 2));
  Value items = getItems();
  Value both = b.add(groupRows[0], groupRows[1]);
  m.scores = take(b.mul(b.mul(items, both), schedule.getKvSplitSize()));
  m.outputs = take(b.mul(b.mul(items, groupRows[0]), paddedValueDim));
  return m;
}

SplitKVScratch SplitKVKernel::layOutScratch(Value base) {
  SplitKVScratch s;
  {
    auto take = partTaker(b, base, s.scores);
    if (atom.usesTiles) {
      Value pairs = b.div(b.roundUp(sizes.headDim, kTileDepth), 2);
      s.queries = take(b.mul(pairs, kTileLanes));
      s.keyPanel = take(b.mul(pairs, kTileRows));
      s.tileSums = take(b.index(schedule.getKvSplitSize() * kTileLanes));
    } else {
      s.queries = take(b.mul(queryStride, schedule.getQkRows()));
      s.keyPanel = take(b.mul(queryStride, b.lanes));
    }
  }
  auto take = partTaker(b, base, s.values);
  s.weights = take(b.mul(groupRows[0], schedule.getKvSplitSize()));
  s.outputs = take(b.mul(groupRows[0], paddedValueDim));
  s.valuePanel = take(b.mul(paddedValueDim, schedule.getPvKeys()));
  return s;
}

SplitKVSizes SplitKVKernel::getSizes() {
  SplitKVSizes result;
  result.items = getItems();
  result.rows = b.mul(b.mul(sizes.batch, sizes.signalHeads), sizes.queries);
  result.stateBytes = b.mul(m.total, 4);
  result.scoresScratch = b.mul(s.scores, 4);
  result.valuesScratch = b.mul(s.values, 4);
  result.rowScratch = b.mul(paddedValueDim, 4);
  return result;
}

void SplitKVKernel::forBlocks(Value total, int64_t largest,
                              function_ref<void(Value, int64_t)> body) {
  Value done = b.index(0);
  std::optional<int64_t> known = KernelBuilder::known(total);
  for (int64_t count = largest; count; count /= 2) {
    if (known && (count < largest ? *known % (2 * count) : *known) < count)
      continue;
    Value end = b.mul(b.div(total, count), count);
    b.loop(done, end, count, [&](Value first) { body(first, count); });
    done = end;
  }
}

SplitKVKernel::Map SplitKVKernel::getMap(int number) {
  const bool second = number == 1;
  return {{second ? &spec.q2 : &spec.q1, v},
          {second ? &spec.k2 : &spec.k1, v},
          second ? sizes.noiseHeads : sizes.signalHeads,
          second ? groups.noise : groups.signal,
          second ? groups.key2 : groups.key1,
          groupRows[number],
          second ? groupRows[0] : b.index(0),
          m.maxima[number],
          m.sums[number]};
}

/// Of two operands with the same strides, or as many slots for them.
static bool readsAlike(const SpecOperand &a, const SpecOperand &b) {
  return a.element == b.element &&
         llvm::all_of(llvm::zip_equal(a.strides, b.strides), [&](auto both) {
           auto [x, y] = both;
           return x.value == y.value &&
                  (x.isStatic() || y.slot - x.slot == b.slot - a.slot);
         });
}

bool SplitKVKernel::readsMapsAlike(const AttentionSpec &spec) {
  // Numbers of heads that are known make code shorter, so maps for which they
  // differ stay apart. So do keys in pages: they are found by a table that both
  // maps have, which does not lie further on for the second one.
  auto areAlike = [](const SpecSize &x, const SpecSize &y) {
    return x.value == y.value;
  };
  return !spec.isPaged() && areAlike(spec.signalHeads, spec.noiseHeads) &&
         areAlike(spec.key1Heads, spec.key2Heads) &&
         readsAlike(spec.q1, spec.q2) && readsAlike(spec.k1, spec.k2);
}

/// The operands of the second map are those of the first one in a context that
/// begins as many slots further on.
SplitKVKernel::Map SplitKVKernel::getEitherMap(Value isSecond) {
  const Map maps[] = {getMap(0), getMap(1)};
  auto pick = [&](Value first, Value second) {
    return b.select(isSecond, second, first);
  };
  auto read = [&](const SpecOperand &first, const SpecOperand &second) {
    Value slots = pick(b.index(0), b.index(second.slot - first.slot));
    return Operand{&first, KernelValues(b, spec, b.at(context, b.i64, slots))};
  };
  return {read(spec.q1, spec.q2),
          read(spec.k1, spec.k2),
          pick(maps[0].allHeads, maps[1].allHeads),
          pick(maps[0].heads, maps[1].heads),
          pick(maps[0].keyHeads, maps[1].keyHeads),
          pick(maps[0].rows, maps[1].rows),
          pick(maps[0].rowsBefore, maps[1].rowsBefore),
          pick(maps[0].maxima, maps[1].maxima),
          pick(maps[0].sums, maps[1].sums)};
}

Value SplitKVKernel::getHeader(Value part, const Map &map, Value head,
                               Value query) {
  Value number = row(b.add(b.mul(batch, map.allHeads), head), query);
  return b.at(part, b.f32, b.mul(number, paddedBlocks));
}

Value SplitKVKernel::getFactors(int map, Value head, Value query) {
  Value number = row(b.add(b.mul(batch, sizes.signalHeads), head), query);
  number = b.add(b.mul(number, 2), map);
  return b.at(m.factors, b.f32, b.mul(number, paddedBlocks));
}

Value SplitKVKernel::getScores(const Map &map, Value row) {
  Value number = b.mul(item, b.add(groupRows[0], groupRows[1]));
  number = b.add(number, map.rowsBefore);
  Value first = b.mul(number, schedule.getKvSplitSize());
  return b.at(m.scores, b.f32, b.add(first, b.mul(row, b.lanes)));
}

Value SplitKVKernel::getPosition(const Map &map, Value key, int64_t step) {
  if (step >= b.lanes)
    return b.mul(key, map.rows);
  Value lane = b.rem(key, b.index(b.lanes));
  return b.add(b.mul(b.sub(key, lane), map.rows), lane);
}

Value SplitKVKernel::getOutput(Value item, Value row) {
  Value number = b.add(b.mul(item, groupRows[0]), row);
  return b.at(m.outputs, b.f32, b.mul(number, paddedValueDim));
}

Value SplitKVKernel::getSums(Value row) {
  return b.at(s.outputs, b.f32, b.mul(row, paddedValueDim));
}

int64_t SplitKVKernel::getPageTile(int64_t least) const {
  const int64_t split = schedule.getKvSplitSize();
  if (!spec.pageRows.isStatic() || spec.pageRows.value % least || split % least)
    return 0;
  return split % spec.pageRows.value ? least : spec.pageRows.value;
}

SplitKVKernel::Rows SplitKVKernel::getPagedTile(const SpecOperand &pages,
                                                Value base, Value first,
                                                Value count, Value columns,
                                                int64_t tile, Value panel) {
  Value key = b.add(begin, first);
  if (pages.hasUnitColumns() && getPageTile(tile))
    return {v.pagedRow(pages, base, batch, key), pages.element,
            v.stride(pages, 2), columns, /*padded=*/false};
  v.copyPagedRows(pages, base, batch, key, count, columns, panel);
  return {panel, pages.element, columns, columns, /*padded=*/false};
}

KeyRange SplitKVKernel::getSeenKeys(Value query) {
  if (!spec.hasPositionMask())
    return {b.index(0), n};
  KeyRange range = masks->getRowKeys(query);
  auto clamp = [&](Value key) {
    return b.max(b.min(b.sub(key, begin), n), b.index(0));
  };
  // Without a window, a row sees every key before its last.
  Value low = spec.scores.reach.left ? clamp(range.low) : b.index(0);
  return {low, clamp(range.high)};
}

PolynomialMath SplitKVKernel::lanes(int degree) {
  std::optional<float> factor = spec.exponentFactor();
  return PolynomialMath(b, b.vector, degree,
                        factor ? b.splat(*factor) : Value());
}

void SplitKVKernel::beginItem(Value index, bool isOfValues) {
  item = index;
  block = b.rem(index, blocks);
  Value rest = b.div(index, blocks);
  group = b.rem(rest, groups.groups);
  batch = b.div(rest, groups.groups);
  masks.emplace(v, batch);
  int64_t size = schedule.getKvSplitSize();
  // Keys that any query sees.
  Value lastQuery = b.add(sizes.queries, -1);
  KeyRange seen = masks->getTileKeys(b.index(0), lastQuery).some;
  Value low = seen.low;
  // Tiles of keys lie in one page where they begin with a multiple of a tile.
  if (spec.isPaged() && spec.scores.reach.left) {
    int64_t tile = std::lcm(b.lanes, schedule.getPvKeys());
    for (int64_t least : {tile, schedule.getPvKeys()})
      tile = std::lcm(tile, std::max<int64_t>(1, getPageTile(least)));
    low = b.mul(b.div(low, tile), tile);
  }
  begin = b.max(low, b.mul(block, size));
  Value end = b.min(seen.high, b.mul(b.add(block, 1), size));
  n = b.sub(end, begin);
  seenFromBegin = b.sub(seen.high, begin);
  if (spec.scores.hasTileMasks()) {
    masks->beginRows(b.index(0), lastQuery);
    TileRelation relation = masks->getTileRelation(begin, b.add(end, -1));
    n = b.select(KernelMasks::unwrap(relation.none), b.index(0), n);
    seesAll = KernelMasks::unwrap(relation.all);
  }
  if (!spec.bias().present())
    return;
  const bool wantsNone = isOfValues || !spec.addsBias();
  BiasScan scan = scanBias(wantsNone);
  n = b.select(scan.hidesAll, b.index(0), n);
  if (wantsNone)
    seesAll = seesAll ? b.both(seesAll, scan.hidesNone) : scan.hidesNone;
}

BiasScan SplitKVKernel::scanBias(bool wantsNone) {
  Value headStride = v.stride(spec.bias(), 1);
  const bool isShared = KernelBuilder::known(headStride) == 0;
  Value hidesAll = b.boolean(true), hidesNone = b.boolean(wantsNone);
  // Without keys, none is read.
  Value heads = b.select(b.less(b.index(0), n),
                         isShared ? b.index(1) : groups.noise, b.index(0));
  SmallVector<Value> found =
      b.loop(b.index(0), heads, 1, {hidesAll, hidesNone},
             [&](Value head, ValueRange carried) {
               BiasScan scan =
                   emitBiasScan(b, spec.bias(),
                                {getBias(head, b.index(0)),
                                 v.stride(spec.bias(), 2), sizes.queries, n},
                                wantsNone);
               return SmallVector<Value>{b.both(carried[0], scan.hidesAll),
                                         b.both(carried[1], scan.hidesNone)};
             });
  return {found[0], found[1]};
}

Value SplitKVKernel::getBias(Value noiseHead, Value query) {
  Value head = b.add(b.mul(group, groups.noise), noiseHead);
  return v.bias(batch, head, query, begin);
}

/// All items of the first map, then those of the second one.
void SplitKVKernel::emitScores(std::optional<int> number, Value index,
                               Value scratch) {
  s = layOutScratch(scratch);
  Value items = getItems();
  auto begin = [&] {
    if (number) {
      beginItem(*number ? b.sub(index, items) : index, /*isOfValues=*/false);
      return getMap(*number);
    }
    Value isSecond = b.less(b.add(items, -1), index);
    beginItem(b.sub(index, b.select(isSecond, items, b.index(0))),
              /*isOfValues=*/false);
    return getEitherMap(isSecond);
  };
  Map map = begin();
  b.ifElse(
      b.less(b.index(0), n), [&] { scoreMap(map); },
      [&] {
        b.loop(map.heads, [&](Value i) {
          Value head = b.add(b.mul(group, map.heads), i);
          b.loop(sizes.queries, [&](Value query) {
            b.store(emitConstant(b, b.f32, -std::numeric_limits<float>::max()),
                    getHeader(map.maxima, map, head, query), block);
            b.store(emitConstant(b, b.f32, 0.0f),
                    getHeader(map.sums, map, head, query), block);
          });
        });
      });
}

void SplitKVKernel::emitValues(Value index, Value scratch) {
  s = layOutScratch(scratch);
  beginItem(index, /*isOfValues=*/true);
  auto multiply = [&](bool careful) {
    isCareful = careful;
    multiplyValues();
  };
  b.ifThen(b.less(b.index(0), n), [&] {
    if (!seesAll)
      return multiply(/*careful=*/false);
    if (KernelBuilder::known(seesAll) == 0)
      return multiply(/*careful=*/true);
    b.ifElse(
        seesAll, [&] { multiply(/*careful=*/false); },
        [&] { multiply(/*careful=*/true); });
  });
}

/// K2 is read after K1, not in turn with it, so that a thread reads on where it
/// stopped. Where both are the same, both maps take a block while it is in the
/// cache.
void SplitKVKernel::callScores(ArrayRef<LLVM::LLVMFuncOp> maps, Value index,
                               Value scratch) {
  Value items = getItems();
  auto address = [&](const SpecOperand &keys) {
    return b.load(b.i64, context, b.i64, b.index(keys.slot));
  };
  Value shared = b.equal(address(spec.k1), address(spec.k2));
  auto call = [&](int map, Value index) {
    LLVM::CallOp::create(b, maps[map], ValueRange{context, index, scratch});
  };
  b.ifElse(
      b.less(index, items),
      [&] {
        call(0, index);
        b.ifThen(shared, [&] { call(1, b.add(index, items)); });
      },
      [&] { b.ifElse(shared, [] {}, [&] { call(1, index); }); });
}

SplitKVFunctions mlir::diffattn::emitSplitKVKernel(KernelBuilder &b,
                                                   ModuleOp module,
                                                   StringRef name,
                                                   const AttentionSpec &spec) {
  SmallVector<Type> arguments = {b.pointer, b.i64, b.pointer};
  auto emit = [&](const Twine &suffix,
                  function_ref<void(SplitKVKernel &, Value, Value)> body) {
    return b.getOrEmitFunction(
        module, (name + suffix).str(), arguments, [&](ValueRange args) {
          CallSizes sizes = readSizes(KernelValues(b, spec, args[0]));
          SplitKVKernel kernel(b, module, spec, sizes, args[0]);
          body(kernel, args[1], args[2]);
        });
  };
  SplitKVFunctions functions;
  // Registers are allocated for one map at a time.
  const bool alike = SplitKVKernel::readsMapsAlike(spec);
  auto emitScores = [&](const Twine &suffix, std::optional<int> map) {
    return emit(suffix, [&](SplitKVKernel &kernel, Value index, Value scratch) {
      kernel.emitScores(map, index, scratch);
    });
  };
  LLVM::LLVMFuncOp maps[2];
  for (int map : {0, 1})
    maps[map] = alike ? emitScores("_scores_of_map", std::nullopt)
                      : emitScores("_scores" + Twine(map + 1), map);
  functions.scores =
      emit("_scores", [&](SplitKVKernel &kernel, Value index, Value scratch) {
        kernel.callScores(maps, index, scratch);
      });
  functions.factors = emit("_factors", [](SplitKVKernel &kernel, Value i,
                                          Value) { kernel.emitFactors(i); });
  functions.values = emit("_values", [](SplitKVKernel &kernel, Value i,
                                        Value s) { kernel.emitValues(i, s); });
  functions.merge = emit("_merge", [](SplitKVKernel &kernel, Value i, Value s) {
    kernel.emitMerge(i, s);
  });
  return functions;
}

SplitKVSizes mlir::diffattn::emitSplitKVSizes(KernelBuilder &b,
                                              const AttentionSpec &spec,
                                              const CallSizes &sizes) {
  return SplitKVKernel(b, ModuleOp(), spec, sizes).getSizes();
}
