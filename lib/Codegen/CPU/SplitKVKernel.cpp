//===- SplitKVKernel.cpp - attention of few queries -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVKernel.h"

#include "SplitKVRows.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

SplitKVKernel::SplitKVKernel(KernelBuilder &b, ModuleOp module,
                             const AttentionSpec &spec, const CallSizes &sizes,
                             Value context)
    : SplitKVCall(b, spec, sizes, context), module(module), context(context),
      valueAtom(atom.usesTiles ? getFmaF32() : atom),
      // Parts of sums must be pairs of vectors, too.
      pairsValues(readsPairs(spec.v, valueAtom) &&
                  getOutputVectors(schedule.getPvRows()) > 1) {}

bool SplitKVKernel::readsPairs(const SpecOperand &operand,
                               const ProductAtom &of) const {
  return &of == &getFmaF32() && operand.element.isBF16() &&
         (operand.hasUnitColumns() || spec.isPaged());
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

/// Whether two operands have one element type and equal strides, or strides in
/// slots at one distance.
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
  return spec.hasSecondMap() && !spec.isPaged() &&
         areAlike(spec.signalHeads, spec.noiseHeads) &&
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

/// Emits work item `index` of scores, of map `number` if that is static: all
/// items of the first map come before those of the second one.
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
                    getHeader(map.maxima, map, batch, head, query), block);
            b.store(emitConstant(b, b.f32, 0.0f),
                    getHeader(map.sums, map, batch, head, query), block);
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

/// Calls the functions of both maps for item `args[1]`. K2 is read after K1,
/// not in turn with it, so that a thread reads on where it stopped. Where both
/// are the same, both maps take a block while it is in the cache.
static void callScores(KernelBuilder &b, const AttentionSpec &spec, Value items,
                       ArrayRef<LLVM::LLVMFuncOp> maps, ValueRange args) {
  Value context = args[0], index = args[1], scratch = args[2];
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
  using Body = function_ref<void(const CallSizes &, ValueRange args)>;
  auto emit = [&](const Twine &suffix, Body body) {
    return b.getOrEmitFunction(
        module, (name + suffix).str(), arguments, [&](ValueRange args) {
          KernelValues v(b, spec, args[0]);
          auto read = [&](const SpecSize &size) { return v.size(size); };
          body(getCallSizes(spec, read), args);
        });
  };
  SplitKVFunctions functions;
  // Registers are allocated for one map at a time.
  const bool alike = SplitKVKernel::readsMapsAlike(spec);
  auto emitScores = [&](const Twine &suffix, std::optional<int> map) {
    return emit(suffix, [&](const CallSizes &sizes, ValueRange args) {
      SplitKVKernel kernel(b, module, spec, sizes, args[0]);
      kernel.emitScores(map, args[1], args[2]);
    });
  };
  if (spec.hasSecondMap()) {
    LLVM::LLVMFuncOp maps[2];
    for (int map : spec.maps())
      maps[map] = alike ? emitScores("_scores_of_map", std::nullopt)
                        : emitScores("_scores" + Twine(map + 1), map);
    functions.scores =
        emit("_scores", [&](const CallSizes &sizes, ValueRange args) {
          Value items = SplitKVCall(b, spec, sizes, args[0]).getItems();
          callScores(b, spec, items, maps, args);
        });
  } else {
    functions.scores = emitScores("_scores", /*map=*/0);
  }
  functions.factors =
      emit("_factors", [&](const CallSizes &sizes, ValueRange args) {
        SplitKVRows(b, spec, sizes, args[0]).emitFactors(args[1]);
      });
  functions.values =
      emit("_values", [&](const CallSizes &sizes, ValueRange args) {
        SplitKVKernel kernel(b, module, spec, sizes, args[0]);
        kernel.emitValues(args[1], args[2]);
      });
  functions.merge =
      emit("_merge", [&](const CallSizes &sizes, ValueRange args) {
        SplitKVRows(b, spec, sizes, args[0]).emitMerge(args[1], args[2]);
      });
  return functions;
}

SplitKVSizes mlir::diffattn::emitSplitKVSizes(KernelBuilder &b,
                                              const AttentionSpec &spec,
                                              const CallSizes &sizes) {
  return SplitKVCall(b, spec, sizes).getSizes();
}
