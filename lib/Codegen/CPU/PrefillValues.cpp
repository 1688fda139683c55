//===- PrefillValues.cpp - both maps combined, times the values -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillKernel.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Sums become weights: 1 / sum of map 1, lambda / sum of map 2; 0 for a row
/// that saw no key.
void PrefillKernel::finishMaxima() {
  for (int map : {0, 1})
    forEachVector([&](Value lane) {
      Value sum = b.load(b.vector, s.sums[map], lane);
      Value numerator = map ? b.load(b.vector, s.lambda, lane) : b.splat(1.0f);
      PolynomialMath math = lanes();
      b.store(emitPerSum(math, numerator, sum), s.sums[map], lane);
    });
}

/// P = e1 * factor1 - e2 * factor2 for `n` keys, as the product reads it.
void PrefillKernel::combine(Value e1, Value e2, Value factor1, Value factor2,
                            Value n) {
  if (atom.usesTiles)
    return combineTiles(e1, e2, factor1, factor2, n);
  forVectors([&](Value lane, int64_t width) {
    auto kernel = getCombineKernel(b, module, schedule, width, atom);
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{b.at(e1, b.f32, lane), b.at(e2, b.f32, lane),
                   b.at(factor1, b.f32, lane), b.at(factor2, b.f32, lane), n,
                   b.at(s.probabilities, b.f32, lane)});
  });
}

void PrefillKernel::combineKvBlock(Value number) {
  KvBlock kvBlock = getKvBlock(number);
  for (int map : {0, 1})
    forEachVector([&](Value lane) {
      Value then = b.load(
          b.vector,
          b.at(s.history[map], b.f32, b.mul(number, schedule.getQBlockSize())),
          lane);
      Value decay = emitDecay(then, b.load(b.vector, s.maxima[map], lane));
      Value weight = b.load(b.vector, s.sums[map], lane);
      b.store(b.mulf(decay, weight), s.factors[map], lane);
    });
  Value position = b.sub(kvBlock.first, seen.low);
  Value e1 = weightsAt(0, position), e2 = weightsAt(1, position);
  combine(e1, e2, s.factors[0], s.factors[1], kvBlock.n);
  copyPagedValues(kvBlock.first, kvBlock.n);
  multiply(s.probabilities, kvBlock.n, kvBlock.first, kvBlock.partial,
           s.output[0], {e1, e2});
}

/// Online: both outputs move to the new maxima, then take this KV block.
void PrefillKernel::mergeKvBlock(Value number) {
  KvBlock kvBlock = getKvBlock(number);
  copyPagedValues(kvBlock.first, kvBlock.n);
  for (int map : {0, 1}) {
    b.loop(rows, [&](Value row) {
      Value factor = b.splat(b.load(b.f32, s.factors[map], row));
      Value out = b.at(s.output[map], b.f32, b.mul(row, s.valuePanelStride));
      b.loop(b.index(0), s.valuePanelStride, b.lanes, [&](Value c) {
        b.store(b.mulf(b.load(b.vector, out, c), factor), out, c);
      });
    });
    Value p = s.scores[map];
    if (atom.pack > 1) {
      // The exponentials as they are, in packs.
      forEachVector([&](Value lane) {
        b.store(b.splat(1.0f), s.newMaxima, lane);
        b.store(b.zero(), s.factors[map], lane);
      });
      combine(p, p, s.newMaxima, s.factors[map], kvBlock.n);
      p = s.probabilities;
    }
    multiply(p, kvBlock.n, kvBlock.first, kvBlock.partial, s.output[map],
             s.scores[map]);
  }
}

PrefillKernel::RowRange PrefillKernel::getRowRange(Value n, Value first) {
  Value zero = b.index(0), one = b.index(1), start = b.sub(firstRow, first);
  RowRange range{zero, zero, n, zero};
  if (masks->low) {
    range.low = b.add(masks->low, start);
    range.lowSlope = one;
  }
  if (masks->high) {
    range.high = b.add(masks->high, start);
    range.highSlope = one;
  }
  return range;
}

/// out += p * values for the keys from `first` on, by register tiles.
void PrefillKernel::multiplyTiles(Value p, Value n, Value first, Value out) {
  std::pair<Value, Value> valueRows = getValueRows(first, n);
  RowRange range = getRowRange(n, first);
  Value zero = b.index(0);
  int64_t widest = schedule.getPv().vectors;
  auto call = [&](int64_t vectors, bool masked, Value column, Value columns) {
    auto kernel = getProductKernel(b, module, schedule, vectors, masked, atom);
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{p, b.at(valueRows.first, b.f32, column), valueRows.second,
                   b.at(out, b.f32, column), s.valuePanelStride, rows, columns,
                   n, range.low, range.lowSlope, range.high, range.highSlope});
  };
  // A packed panel is padded to whole vectors; V itself is not.
  bool inPlace = atom.readsValues(b, spec.v);
  Value columns = inPlace ? valueDim : s.valuePanelStride;
  Value done = b.mul(b.div(columns, widest * b.lanes), widest * b.lanes);
  call(widest, /*masked=*/false, zero, done);
  for (int64_t width = widest / 2; width; width /= 2) {
    if (spec.valueDim.isStatic()) {
      int64_t whole = inPlace ? spec.valueDim.value / b.lanes
                              : (spec.valueDim.value + b.lanes - 1) / b.lanes;
      if (whole % widest % (2 * width) < width)
        continue;
    }
    Value rest = b.sub(columns, done);
    Value here = b.mul(b.div(rest, width * b.lanes), width * b.lanes);
    call(width, /*masked=*/false, done, here);
    done = b.add(done, here);
  }
  if (inPlace && (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes))
    call(/*vectors=*/1, /*masked=*/true, done, b.sub(columns, done));
}

/// A hidden key has probability 0, but 0 times Inf or NaN would reach rows that
/// do not see it: where some rows see a key and others not, and its values are
/// not finite, only those are added that a row sees.
void PrefillKernel::multiply(Value p, Value n, Value first, Value partial,
                             Value out, ArrayRef<Value> evidence) {
  auto tiles = [&] {
    if (atom.usesTiles)
      multiplyByTiles(p, n, first, out, /*finite=*/false);
    else
      multiplyTiles(p, n, first, out);
  };
  if (!spec.hasPartialTiles() && !spec.addsBias())
    return tiles();
  Value suspects = n;
  if (!spec.addsBias())
    suspects = b.select(partial, n, b.index(0));
  Value suspect = hasNonFinite(suspects, first);
  auto carefully = [&] {
    if (atom.usesTiles)
      multiplyTilesCarefully(p, n, first, out, evidence);
    else
      multiplyCarefully(p, n, first, out, evidence);
  };
  b.ifElse(suspect, carefully, tiles);
}

/// Whether a value of `n` keys from `first` on is Inf or NaN.
Value PrefillKernel::hasNonFinite(Value n, Value first) {
  Value whole = b.mul(b.div(valueDim, b.lanes), b.lanes);
  Value rest = b.sub(valueDim, whole);
  Value mask = b.firstLanes(rest);
  Value stride = v.stride(spec.v, 2);
  auto row = [&](Value key) {
    return b.at(valueBase, spec.v.element, b.mul(b.add(first, key), stride));
  };
  auto add = [&](Value key, Value c, Value mask, Value count, Value sum) {
    return b.fma(loadValues(row(key), c, mask, count), b.zero(), sum);
  };
  Value found =
      b.loop(b.index(0), n, 1, b.zero(), [&](Value key, ValueRange carried) {
        return b.loop(b.index(0), whole, b.lanes, carried,
                      [&](Value c, ValueRange carried) {
                        return SmallVector<Value>{
                            add(key, c, Value(), b.index(b.lanes), carried[0])};
                      });
      })[0];
  if (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes) {
    Value keysWithRest = b.select(b.less(b.index(0), rest), n, b.index(0));
    found = b.loop(
        b.index(0), keysWithRest, 1, found, [&](Value key, ValueRange carried) {
          return SmallVector<Value>{add(key, whole, mask, rest, carried[0])};
        })[0];
  }
  Value sum = b.sum(found);
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, sum, sum);
}

Value PrefillKernel::loadValues(Value row, Value c, Value mask, Value count) {
  if (spec.v.hasUnitColumns())
    return b.loadWide(row, spec.v.element, c, mask);
  Value stride = v.stride(spec.v, 3);
  return b.loadStrided(row, spec.v.element, b.mul(c, stride), stride, count);
}

Value PrefillKernel::isVisible(ArrayRef<Value> evidence, Value row, Value key) {
  auto isSeenBy = [&](Value exponentials) -> Value {
    if (atom.usesTiles) {
      Type i16 = b.getI16Type();
      Value pair = b.add(b.mul(b.div(key, 2), schedule.getQBlockSize()), row);
      Value bits = b.load(i16, exponentials, i16,
                          b.add(b.mul(pair, 2), b.rem(key, b.index(2))));
      Value hidden = arith::ConstantOp::create(b, b.getI16IntegerAttr(0));
      return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, bits, hidden);
    }
    Value at = b.add(b.mul(key, schedule.getQBlockSize()), row);
    return arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                 b.load(b.f32, exponentials, at),
                                 emitConstant(b, b.f32, 0.0f));
  };
  Value seen = isSeenBy(evidence.front());
  for (Value other : evidence.drop_front())
    seen = arith::OrIOp::create(b, seen, isSeenBy(other));
  return seen;
}

/// Adds only keys that a row sees: those of which an exponential is not 0. Each
/// pack of keys is one multiply-add, and the sum of the KV block is added to
/// the output, as in the tiles, so that a row that sees no such value is the
/// same number for number.
void PrefillKernel::multiplyCarefully(Value p, Value n, Value first, Value out,
                                      ArrayRef<Value> evidence) {
  Value whole = b.mul(b.div(valueDim, b.lanes), b.lanes);
  Value rest = b.sub(valueDim, whole);
  Value mask = b.firstLanes(rest);
  const int64_t rowsOfBlock = schedule.getQBlockSize();
  b.loop(rows, [&](Value row) {
    Value to = b.at(out, b.f32, b.mul(row, s.valuePanelStride));
    auto addPack = [&](Value key, Value c, Value mask, Value count, Value sum) {
      SmallVector<Value> visible, parts;
      Value any;
      for (int64_t i = 0; i < atom.pack; ++i) {
        // What lies beyond the last key is that one again, hidden.
        Value at = i ? b.min(b.add(key, i), b.add(n, -1)) : key;
        Value sees = isVisible(evidence, row, at);
        if (i)
          sees = b.both(b.less(b.add(key, i), n), sees);
        any = any ? Value(arith::OrIOp::create(b, any, sees)) : sees;
        Value from = b.at(valueBase, spec.v.element,
                          b.mul(b.add(first, at), v.stride(spec.v, 2)));
        parts.push_back(
            b.select(sees, loadValues(from, c, mask, count), b.zero()));
      }
      Value pack = b.div(key, atom.pack);
      Value weight =
          b.splat(atom.loadScalar(b, p, b.add(b.mul(pack, rowsOfBlock), row)));
      return b.select(
          any, atom.multiplyAdd(b, weight, atom.makePack(b, parts), sum), sum);
    };
    auto add = [&](Value c, Value mask, Value count) {
      Value sum = b.loop(b.index(0), n, atom.pack, b.zero(),
                         [&](Value key, ValueRange carried) {
                           return SmallVector<Value>{
                               addPack(key, c, mask, count, carried[0])};
                         })[0];
      b.addTo(to, c, sum);
    };
    b.loop(b.index(0), whole, b.lanes,
           [&](Value c) { add(c, Value(), b.index(b.lanes)); });
    if (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes)
      b.ifThen(b.less(b.index(0), rest), [&] { add(whole, mask, rest); });
  });
}

void PrefillKernel::finishOnline() {
  b.loop(rows, [&](Value row) {
    Value weight1 = b.splat(b.load(b.f32, s.sums[0], row));
    Value weight2 = b.splat(b.load(b.f32, s.sums[1], row));
    Value offset = b.mul(row, s.valuePanelStride);
    Value o1 = b.at(s.output[0], b.f32, offset),
          o2 = b.at(s.output[1], b.f32, offset);
    b.loop(b.index(0), s.valuePanelStride, b.lanes, [&](Value c) {
      Value x1 = b.mulf(b.load(b.vector, o1, c), weight1);
      Value x2 = b.mulf(b.load(b.vector, o2, c), weight2);
      b.store(b.subf(x1, x2), o1, c);
    });
  });
}

void PrefillKernel::finishRows() {
  b.loop(rows, [&](Value row) {
    Value x = b.at(s.output[0], b.f32, b.mul(row, s.valuePanelStride));
    emitFinishRow(v, x, batch, heads.signal, b.add(firstRow, row));
  });
}
