//===- BackwardKernel.cpp - gradients of attention on CPUs ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Heads fall into groups that share no head of keys, values or noise, and
// queries into slices. Within a group and slice one block of queries follows
// another, and adds to sums for each key, so that no two threads add to one
// number. Slices are added in their order, whether they are work items or
// follow one another in one: results depend neither on threads nor on the
// number of batches.
//
// For a block of queries the exponentials of both maps are kept, as in the
// forward kernel. They make X, unless it was saved, whose norm and gate have dX
// behind them; dX times the values gives the products that D1 and D2 sum; and
// then each KV block becomes gradients of scores, in place, and adds its
// products. With more keys than scratch has room for, a first pass makes the
// products of both maps with V, of which X is the difference and dX has D1 and
// D2, and a second one makes the maps again.
//
//===----------------------------------------------------------------------===//
#include "BackwardKernel.h"

#include "BackwardPhases.h"
#include "SpecBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

/// Groups of heads, of all batches, for each thread below which slices of
/// queries become work items.
static constexpr int64_t kGroupsPerThread = 2;

/// Slices that are work items need the memory of so many gradients of keys and
/// values.
static constexpr int64_t kMaxSlices = 8;

/// Keys whose sums one work item adds up.
static constexpr int64_t kKeysPerItem = 256;

namespace {
/// A group of heads of a batch.
struct Group {
  Value batch, number;
};

/// The functions of a kernel in one module.
class BackwardFunctions {
public:
  BackwardFunctions(KernelBuilder &b, ModuleOp module, StringRef name,
                    const BackwardSpec &spec)
      : b(b), module(module), name(name), spec(spec) {}

  /// A group, its slices one after the other. (context: ptr, index: i64,
  /// scratch: ptr)
  LLVM::LLVMFuncOp emitGroups();
  /// A slice of a group; the same arguments.
  LLVM::LLVMFuncOp emitSlices();
  /// Adds the slices of some keys of a group; the same arguments.
  LLVM::LLVMFuncOp emitSliceSums();
  /// The function that adds up the parts of d_norm_weight and d_lambda of all
  /// work items. It has the same arguments.
  LLVM::LLVMFuncOp emitCallSums();

private:
  /// The function that computes all blocks of a slice of a group.
  ///   (context: ptr, batch, group, slice, sums: ptr, scratch: ptr)
  LLVM::LLVMFuncOp emitSlice();
  /// Adds `count` slices, `stride` f32 apart, and rounds, for keys [first,
  /// end) of a group.
  ///   (context: ptr, batch, group, first, end, sums: ptr, count, stride,
  ///    row: ptr)
  LLVM::LLVMFuncOp emitStoreKeys();
  LLVM::LLVMFuncOp emit(StringRef suffix, TypeRange arguments,
                        function_ref<void(KernelValues &, ValueRange)> body);
  BackwardSizes getSizes(KernelValues &v) {
    return getBackwardSizes(b, spec,
                            [&](const SpecSize &size) { return v.size(size); });
  }
  SharedParts getShared(Value context, const BackwardSizes &sizes) {
    Value memory =
        b.load(b.pointer, context, b.i64, b.index(spec.attention.slots));
    ScratchParts parts(b, memory);
    return takeSharedParts(parts, spec, sizes);
  }

  KernelBuilder &b;
  ModuleOp module;
  StringRef name;
  const BackwardSpec &spec;
};

/// The blocks of queries of one slice of a group.
class SliceBuilder {
public:
  SliceBuilder(KernelValues &v, const BackwardSpec &spec, ModuleOp module,
               StringRef name, const BackwardSizes &sizes,
               const BackwardLayout &s, Value batch)
      : b(v.b), v(v), spec(spec), module(module), name(name), sizes(sizes),
        s(s), batch(batch), masks(v, batch), scoring(v, module, masks),
        values(scoring, /*context=*/Value()),
        phases(v, spec, module, sizes, scoring, values) {}

  /// Clears the sums of the slice, and adds its blocks to them.
  void emit(Value group, Value slice, const GradientSums &sums, Value sumsSize,
            Value sumsBase, const SharedParts &shared);

private:
  PrefillItem getItem(Value signal, Value firstRow, Value end);
  void emitHead(const PrefillItem &item, const BlockSums &sums);
  void emitKept(const PrefillItem &item, const KeyHeads &heads,
                const ValueHead &valueHead, const KeyPartition &keys,
                const BlockSums &sums);
  void emitAgain(const PrefillItem &item, const KeyHeads &heads,
                 const ValueHead &valueHead, const KeyPartition &keys,
                 const BlockSums &sums);
  /// `body` of the KV blocks, and where each has its scores.
  void forKvBlocks(
      const PrefillItem &item, const KeyPartition &keys,
      function_ref<void(Value number, const KvBlock &kvBlock, Value position)>
          body);

  KernelBuilder &b;
  KernelValues &v;
  const BackwardSpec &spec;
  ModuleOp module;
  /// The beginning of the names of its functions.
  StringRef name;
  const BackwardSizes &sizes;
  const BackwardLayout &s;
  Value batch;
  KernelMasks masks;
  PrefillScoring scoring;
  PrefillValues values;
  BackwardPhases phases;
};
} // namespace

//===----------------------------------------------------------------------===//
// Blocks of queries
//===----------------------------------------------------------------------===//

PrefillItem SliceBuilder::getItem(Value signal, Value firstRow, Value end) {
  PrefillItem item;
  item.sizes = {sizes.headDim, sizes.keys};
  item.batch = batch;
  item.heads = getHeadIndices(v, signal);
  item.firstRow = firstRow;
  item.rows = b.min(b.sub(end, firstRow),
                    b.index(spec.attention.prefill.getQBlockSize()));
  item.vectors = b.ceilDiv(item.rows, b.lanes);
  return item;
}

void SliceBuilder::forKvBlocks(
    const PrefillItem &item, const KeyPartition &keys,
    function_ref<void(Value, const KvBlock &, Value)> body) {
  scoring.forKvBlocks(s, keys, [&](Value number) {
    KvBlock kvBlock = scoring.getKvBlock(s, keys, number);
    body(number, kvBlock, scoring.getPosition(item, keys, kvBlock));
  });
}

/// The rest of a head where the exponentials of all keys are kept.
void SliceBuilder::emitKept(const PrefillItem &item, const KeyHeads &heads,
                            const ValueHead &valueHead,
                            const KeyPartition &keys, const BlockSums &sums) {
  Value x;
  if (spec.wantsOutput() && spec.attention.x.present()) {
    x = phases.loadOutputs(item, s);
  } else if (spec.wantsOutput()) {
    scoring.forKvBlocks(s, keys, [&](Value number) {
      values.combineKvBlock(item, s, valueHead, keys, number);
    });
    x = s.output[0];
  }
  phases.finishRows(item, s, x, sums);
  if (spec.wantsValueProducts())
    forKvBlocks(item, keys,
                [&](Value number, const KvBlock &kvBlock, Value position) {
                  phases.multiplyValues(item, s, valueHead, kvBlock, position);
                  phases.addRowSums(item, s, kvBlock, position,
                                    phases.updateFactors(item, s, number));
                });
  phases.addLambda(item, s, sums);
  Value suspect = phases.findSuspects(item, s);
  forKvBlocks(item, keys,
              [&](Value number, const KvBlock &kvBlock, Value position) {
                phases.addGradients(item, s, heads, kvBlock, position,
                                    phases.updateFactors(item, s, number), sums,
                                    suspect);
              });
}

/// The rest of a head where the exponentials are made again.
void SliceBuilder::emitAgain(const PrefillItem &item, const KeyHeads &heads,
                             const ValueHead &valueHead,
                             const KeyPartition &keys, const BlockSums &sums) {
  Value x = phases.finishOutputs(item, s);
  phases.finishRows(item, s, x, sums);
  phases.sumOutputs(item, s);
  phases.addLambda(item, s, sums);
  Value suspect = phases.findSuspects(item, s);
  forKvBlocks(
      item, keys, [&](Value number, const KvBlock &kvBlock, Value position) {
        scoring.rescoreKvBlock(item, s, heads, keys, number);
        if (spec.wantsValueProducts())
          phases.multiplyValues(item, s, valueHead, kvBlock, position);
        phases.addGradients(item, s, heads, kvBlock, position,
                            phases.getMapValues(s.inverses), sums, suspect);
      });
}

void SliceBuilder::emitHead(const PrefillItem &item, const BlockSums &sums) {
  const AttentionSpec &attention = spec.attention;
  const KeyHeads heads = findKeyHeads(v, item);
  const ValueHead valueHead = findValueHead(v, item, sizes.valueDim);
  scoring.packQueries(item, s);
  scoring.packLambda(item, s);
  scoring.clear(item, s);
  values.clear(s);
  phases.packQueryRows(item, s);
  if (spec.dQ[0].present())
    phases.clear(s.queryGradients[0], item.rows, sizes.paddedHeadDim);
  const KeyPartition keys = scoring.cutKeys(item, s);
  scoring.relateKvBlocks(item, s, keys);
  const KeyPaths paths = getKeyPaths(attention);
  Value isOnline =
      b.less(b.index(attention.prefill.getTwoPassKeys()), sizes.keys);
  scoring.forKvBlocks(s, keys, [&](Value number) {
    scoring.scoreKvBlock(item, s, heads, keys, number);
    auto merge = [&] { values.mergeKvBlock(item, s, valueHead, keys, number); };
    if (paths.online && paths.shared)
      b.ifThen(isOnline, merge);
    else if (paths.online)
      merge();
  });
  phases.finishSums(item, s);
  auto again = [&] { emitAgain(item, heads, valueHead, keys, sums); };
  auto kept = [&] { emitKept(item, heads, valueHead, keys, sums); };
  if (paths.online && paths.shared)
    b.ifElse(isOnline, again, kept);
  else if (paths.online)
    again();
  else
    kept();
  phases.storeQueries(item, s, 0);
}

void SliceBuilder::emit(Value group, Value slice, const GradientSums &sums,
                        Value sumsSize, Value sumsBase,
                        const SharedParts &shared) {
  phases.clear(sumsBase, sumsSize, b.index(1));
  BlockSums head;
  if (shared.normWeights) {
    Value number = b.add(
        b.mul(b.add(b.mul(batch, sizes.groups), group), sizes.slices), slice);
    head.normWeights =
        b.at(shared.normWeights, b.f32, b.mul(number, sizes.paddedValueDim));
    phases.clear(head.normWeights, b.index(1), sizes.paddedValueDim);
  }
  Value lambdas;
  if (shared.lambdas) {
    Value number = b.add(b.mul(batch, sizes.slices), slice);
    lambdas = b.at(shared.lambdas, b.f32, b.mul(number, sizes.signalHeads));
    Value first = b.mul(group, sizes.groupSignal);
    b.loop(sizes.groupSignal, [&](Value i) {
      b.store(emitConstant(b, b.f32, 0.0f), lambdas, b.add(first, i));
    });
  }
  Value begin = b.mul(slice, sizes.sliceQueries);
  Value end = b.min(sizes.queries, b.add(begin, sizes.sliceQueries));
  const int64_t rows = spec.attention.prefill.getQBlockSize();
  // Rows of keys or values of a head of all that a batch has.
  auto rowsOf = [&](Value base, Value groupHeads, Value head, Value columns) {
    if (!base)
      return Value();
    Value inGroup = b.sub(head, b.mul(group, groupHeads));
    return b.at(base, b.f32, b.mul(b.mul(inGroup, sizes.keys), columns));
  };
  b.loop(sizes.groupNoise, [&](Value i) {
    Value firstSignal =
        b.mul(b.add(b.mul(group, sizes.groupNoise), i), sizes.perNoise);
    b.loop(begin, end, rows, [&](Value firstRow) {
      if (spec.dQ[1].present())
        phases.clear(s.queryGradients[1], b.index(rows), sizes.paddedHeadDim);
      b.loop(sizes.perNoise, [&](Value j) {
        const PrefillItem item = getItem(b.add(firstSignal, j), firstRow, end);
        Value keyHeads[] = {item.heads.key1, item.heads.key2};
        for (int map : {0, 1})
          head.keys[map] = rowsOf(sums.keys[map], sizes.groupKeys[map],
                                  keyHeads[map], sizes.paddedHeadDim);
        head.values = rowsOf(sums.values, sizes.groupValues, item.heads.value,
                             sizes.paddedValueDim);
        if (lambdas)
          head.lambda = b.at(lambdas, b.f32, item.heads.signal);
        b.outline(module, (name + "_head").str(),
                  [&] { emitHead(item, head); });
      });
      phases.storeQueries(getItem(firstSignal, firstRow, end), s, 1);
    });
  });
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

LLVM::LLVMFuncOp
BackwardFunctions::emit(StringRef suffix, TypeRange arguments,
                        function_ref<void(KernelValues &, ValueRange)> body) {
  return b.getOrEmitFunction(module, (name + suffix).str(), arguments,
                             [&](ValueRange args) {
                               KernelValues v(b, spec.attention, args[0]);
                               body(v, args);
                             });
}

LLVM::LLVMFuncOp BackwardFunctions::emitSlice() {
  Type p = b.pointer, i = b.i64;
  return emit(
      "_slice", {p, i, i, i, p, p}, [&](KernelValues &v, ValueRange args) {
        const BackwardSizes sizes = getSizes(v);
        ScratchParts scratch(b, args[5]), panel(b, args[4]);
        const BackwardLayout s = layOutBackward(scratch, spec, sizes);
        const GradientSums sums = takeGradientSums(panel, spec, sizes);
        const SharedParts shared = getShared(args[0], sizes);
        SliceBuilder slice(v, spec, module, name, sizes, s, args[1]);
        slice.emit(args[2], args[3], sums, panel.getTotal(), args[4], shared);
      });
}

LLVM::LLVMFuncOp BackwardFunctions::emitStoreKeys() {
  Type p = b.pointer, i = b.i64;
  return emit(
      "_store", {p, i, i, i, i, p, i, i, p},
      [&](KernelValues &v, ValueRange args) {
        Value batch = args[1], group = args[2], first = args[3], end = args[4],
              count = args[6], stride = args[7], row = args[8];
        const BackwardSizes sizes = getSizes(v);
        ScratchParts panel(b, args[5]);
        const GradientSums sums = takeGradientSums(panel, spec, sizes);
        auto store = [&](const SpecOperand &operand, Value from, Value heads,
                         const SpecSize &known, Value columns, float scale) {
          if (!operand.present())
            return;
          const Columns cut = cutColumns(b, known, columns);
          Value padded = b.roundUp(columns, b.lanes);
          b.loop(heads, [&](Value head) {
            Value to = v.head(operand, batch, b.add(b.mul(group, heads), head));
            b.loop(first, end, 1, [&](Value key) {
              Value at =
                  b.at(from, b.f32,
                       b.mul(b.add(b.mul(head, sizes.keys), key), padded));
              storeColumns(
                  v, operand,
                  b.at(to, operand.element, b.mul(key, v.stride(operand, 2))),
                  cut, row, [&](const ColumnVector &c) {
                    Value sum = b.loop(
                        b.index(1), count, 1, b.load(b.vector, at, c.first),
                        [&](Value slice, ValueRange carried) {
                          Value next =
                              b.load(b.vector, at,
                                     b.add(b.mul(slice, stride), c.first));
                          return SmallVector<Value>{b.addf(carried[0], next)};
                        })[0];
                    return scale == 1.0f ? sum : b.mulf(sum, b.splat(scale));
                  });
            });
          });
        };
        const AttentionSpec &attention = spec.attention;
        // Queries that were not scaled leave it to the sums.
        const float scale =
            attention.getAtom().scalesQueries ? 1.0f : attention.scores.scale;
        for (int map : {0, 1})
          store(spec.dK[map], sums.keys[map], sizes.groupKeys[map],
                attention.headDim, sizes.headDim, scale);
        store(spec.dV, sums.values, sizes.groupValues, attention.valueDim,
              sizes.valueDim, /*scale=*/1.0f);
      });
}

LLVM::LLVMFuncOp BackwardFunctions::emitGroups() {
  LLVM::LLVMFuncOp slice = emitSlice(), store = emitStoreKeys();
  Type p = b.pointer;
  return emit("", {p, b.i64, p}, [&](KernelValues &v, ValueRange args) {
    Value context = args[0], index = args[1], scratch = args[2];
    const BackwardSizes sizes = getSizes(v);
    Value batch = b.div(index, sizes.groups),
          group = b.rem(index, sizes.groups), none = b.index(0);
    ScratchParts parts(b, scratch);
    const BackwardLayout s = layOutBackward(parts, spec, sizes);
    Value size = getGradientSumsSize(b, spec, sizes);
    Value total = parts.take(size);
    LLVM::CallOp::create(
        b, slice, ValueRange{context, batch, group, none, total, scratch});
    if (KernelBuilder::known(sizes.slices) != 1) {
      Value next = parts.take(size);
      b.loop(b.index(1), sizes.slices, 1, [&](Value number) {
        LLVM::CallOp::create(
            b, slice, ValueRange{context, batch, group, number, next, scratch});
        b.loop(none, size, b.lanes,
               [&](Value i) { b.addTo(total, i, b.load(b.vector, next, i)); });
      });
    }
    LLVM::CallOp::create(b, store,
                         ValueRange{context, batch, group, none, sizes.keys,
                                    total, b.index(1), none, s.row});
  });
}

LLVM::LLVMFuncOp BackwardFunctions::emitSlices() {
  LLVM::LLVMFuncOp slice = emitSlice();
  Type p = b.pointer;
  return emit("_slices", {p, b.i64, p}, [&](KernelValues &v, ValueRange args) {
    const BackwardSizes sizes = getSizes(v);
    Value number = b.rem(args[1], sizes.slices),
          item = b.div(args[1], sizes.slices);
    Value sums = b.at(getShared(args[0], sizes).sums, b.f32,
                      b.mul(args[1], getGradientSumsSize(b, spec, sizes)));
    LLVM::CallOp::create(b, slice,
                         ValueRange{args[0], b.div(item, sizes.groups),
                                    b.rem(item, sizes.groups), number, sums,
                                    args[2]});
  });
}

LLVM::LLVMFuncOp BackwardFunctions::emitSliceSums() {
  LLVM::LLVMFuncOp store = emitStoreKeys();
  Type p = b.pointer;
  return emit("_slice_sums", {p, b.i64, p},
              [&](KernelValues &v, ValueRange args) {
                const BackwardSizes sizes = getSizes(v);
                Value parts = b.ceilDiv(sizes.keys, kKeysPerItem);
                Value item = b.div(args[1], parts),
                      first = b.mul(b.rem(args[1], parts), kKeysPerItem);
                Value size = getGradientSumsSize(b, spec, sizes);
                Value sums = b.at(getShared(args[0], sizes).sums, b.f32,
                                  b.mul(b.mul(item, sizes.slices), size));
                LLVM::CallOp::create(
                    b, store,
                    ValueRange{args[0], b.div(item, sizes.groups),
                               b.rem(item, sizes.groups), first,
                               b.min(sizes.keys, b.add(first, kKeysPerItem)),
                               sums, sizes.slices, size, args[2]});
              });
}

LLVM::LLVMFuncOp BackwardFunctions::emitCallSums() {
  Type p = b.pointer;
  return emit("_sums", {p, b.i64, p}, [&](KernelValues &v, ValueRange args) {
    const BackwardSizes sizes = getSizes(v);
    const SharedParts shared = getShared(args[0], sizes);
    Value perBatch = b.mul(sizes.batch, sizes.slices);
    if (shared.normWeights) {
      Value count = b.mul(perBatch, sizes.groups);
      storeColumns(
          v, spec.dNormWeight, v.address(spec.dNormWeight),
          cutColumns(b, spec.attention.valueDim, sizes.valueDim), args[2],
          [&](const ColumnVector &c) {
            return b.loop(
                b.index(0), count, 1, b.zero(),
                [&](Value i, ValueRange carried) {
                  Value at = b.add(b.mul(i, sizes.paddedValueDim), c.first);
                  return SmallVector<Value>{b.addf(
                      carried[0], b.load(b.vector, shared.normWeights, at))};
                })[0];
          });
    }
    if (!shared.lambdas)
      return;
    Value zero = emitConstant(b, b.f32, 0.0f);
    auto sumHead = [&](Value head, Value begin) {
      return b.loop(
          b.index(0), perBatch, 1, begin, [&](Value i, ValueRange carried) {
            Value at = b.add(b.mul(i, sizes.signalHeads), head);
            return SmallVector<Value>{
                b.addf(carried[0], b.load(b.f32, shared.lambdas, at))};
          })[0];
    };
    Value out = v.address(spec.dLambda);
    if (spec.lambdaRank == 1) {
      b.loop(sizes.signalHeads, [&](Value head) {
        b.store(sumHead(head, zero), out,
                b.mul(head, v.stride(spec.dLambda, 1)));
      });
      return;
    }
    Value sum = b.loop(b.index(0), sizes.signalHeads, 1, zero,
                       [&](Value head, ValueRange carried) {
                         return SmallVector<Value>{sumHead(head, carried[0])};
                       })[0];
    b.store(sum, out, b.index(0));
  });
}

//===----------------------------------------------------------------------===//
// The call
//===----------------------------------------------------------------------===//

/// The most groups into which heads fall: the greatest common divisor of all
/// numbers of heads but those of signal heads, which they divide.
static Value countGroups(KernelBuilder &b, ArrayRef<Value> heads) {
  int64_t divisor = 0;
  bool isKnown = true;
  for (Value count : heads) {
    std::optional<int64_t> number = KernelBuilder::known(count);
    isKnown &= number.has_value();
    divisor = std::gcd(divisor, number.value_or(0));
  }
  if (isKnown)
    return b.index(divisor);
  Value zero = b.index(0), one = b.index(1);
  return b.loop(one, b.add(heads[0], 1), 1, one,
                [&](Value candidate, ValueRange carried) {
                  Value divides;
                  for (Value count : heads) {
                    Value here = b.equal(b.rem(count, candidate), zero);
                    divides = divides ? b.both(divides, here) : here;
                  }
                  return SmallVector<Value>{
                      b.select(divides, candidate, carried[0])};
                })[0];
}

/// Cuts heads into groups and queries into slices.
static void cutWork(KernelBuilder &b, SpecBuilder &builder,
                    BackwardSpec &spec) {
  const AttentionSpec &attention = spec.attention;
  SmallVector<Value> heads;
  for (const SpecSize *size : {&attention.noiseHeads, &attention.key1Heads,
                               &attention.key2Heads, &attention.valueHeads})
    heads.push_back(builder.value(*size));
  spec.groups = builder.bind(countGroups(b, heads));
  const int64_t rows = spec.schedule.getQBlockSize();
  Value queries = builder.value(attention.queries), one = b.index(1);
  Value most = b.max(
      b.min(b.div(queries, spec.schedule.getQSliceSize()), b.index(kMaxSlices)),
      one);
  Value perSlice =
      b.roundUp(b.div(b.add(queries, b.sub(most, one)), most), rows);
  perSlice = b.max(perSlice, b.index(rows));
  spec.sliceQueries = builder.bind(perSlice);
  Value slices = b.div(b.add(queries, b.sub(perSlice, one)), perSlice);
  spec.slices = builder.bind(b.max(slices, one));
}

LogicalResult mlir::diffattn::callBackwardKernel(KernelCaller &caller,
                                                 AttentionBackwardOp op,
                                                 CpuBackwardAttr schedule,
                                                 StringRef name) {
  KernelBuilder &b = caller.b;
  SpecBuilder builder(b, op);
  BackwardSpec spec;
  spec.schedule = schedule;
  spec.attention.scores = getScoreRules(op);
  spec.attention.epilogue = getEpilogueRules(op);
  spec.attention.keepsSoftcapSlopes = spec.attention.scores.softcap.has_value();
  spec.attention.keepsOneMap = true;
  spec.attention.keepsWideExponentials = true;
  spec.attention.target = b.target;
  spec.attention.prefill = schedule.getPhases();
  if (failed(builder.build(getBackwardOperands(op), spec)))
    return failure();
  // A d_out of f32 is not rounded: operands are widened beside it.
  if (spec.dOut.element == spec.attention.v.element)
    spec.attention.product = schedule.getProduct();
  cutWork(b, builder, spec);
  spec.attention.slots = builder.context.size();
  Value context = caller.packContext(op, builder.context);

  const BackwardSizes sizes = getBackwardSizes(
      b, spec, [&](const SpecSize &size) { return builder.value(size); });
  ScratchParts scratch(b, /*base=*/Value()), shared(b, /*base=*/Value());
  layOutBackward(scratch, spec, sizes);
  takeSharedParts(shared, spec, sizes);
  Value sums = getGradientSumsSize(b, spec, sizes);
  Value groups = b.mul(sizes.batch, sizes.groups);
  Value slices = b.mul(groups, sizes.slices);
  auto bytes = [&](Value count) { return b.mul(count, 4); };

  BackwardFunctions functions(b, caller.module, name, spec);
  auto bySlices = [&] {
    LLVM::LLVMFuncOp body = functions.emitSlices(),
                     add = functions.emitSliceSums();
    caller.parallelFor(body, context, slices, bytes(scratch.getTotal()));
    caller.parallelFor(add, context,
                       b.mul(groups, b.ceilDiv(sizes.keys, kKeysPerItem)),
                       bytes(b.max(sizes.paddedHeadDim, sizes.paddedValueDim)));
  };
  auto byGroups = [&] {
    Value panels =
        b.select(b.less(b.index(1), sizes.slices), b.index(2), b.index(1));
    Value size = b.add(scratch.getTotal(), b.mul(sums, panels));
    caller.parallelFor(functions.emitGroups(), context, groups, bytes(size));
  };
  // Slices that are work items have memory of their own each.
  Value areItems = b.less(b.index(1), sizes.slices);
  if (KernelBuilder::known(sizes.slices) != 1) {
    Value available = caller.getThreads();
    Value share = b.both(b.less(b.index(1), available),
                         b.less(groups, b.mul(available, kGroupsPerThread)));
    areItems = b.both(areItems, share);
  }
  Value panels = b.select(areItems, b.mul(slices, sums), b.index(0));
  Value memory = bytes(b.add(shared.getTotal(), panels));
  caller.withMemory(context, spec.attention.slots, memory, [&] {
    std::optional<int64_t> known = KernelBuilder::known(areItems);
    if (!known)
      b.ifElse(areItems, bySlices, byGroups);
    else if (*known)
      bySlices();
    else
      byGroups();
    if (spec.dNormWeight.present() || spec.sumsLambda())
      caller.parallelFor(functions.emitCallSums(), context, b.index(1),
                         bytes(sizes.paddedValueDim));
  });
  return success();
}
