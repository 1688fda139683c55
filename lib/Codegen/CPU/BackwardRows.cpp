//===- BackwardRows.cpp - gradients of the ends of rows -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardPhases.h"
#include "Transpose.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

void BackwardPhases::finishSums(const PrefillItem &item,
                                const BackwardLayout &s) {
  for (int map : attention.maps())
    scoring.forEachVector(item, [&](Value lane) {
      PolynomialMath math = scoring.lanes();
      Value sum = b.load(b.vector, s.sums[map], lane);
      Value inverse = emitPerSum(math, b.splat(1.0f), sum);
      b.store(inverse, s.inverses[map], lane);
      if (map)
        inverse = emitPerSum(math, b.load(b.vector, s.lambda, lane), sum);
      b.store(inverse, s.sums[map], lane);
      b.store(b.zero(), s.rowSums[map], lane);
    });
}

Value BackwardPhases::finishOutputs(const PrefillItem &item,
                                    const BackwardLayout &s) {
  b.loop(item.rows, [&](Value row) {
    Value inverses[2], outputs[2], lambda;
    for (int map : attention.maps()) {
      inverses[map] = b.splat(b.load(b.f32, s.inverses[map], row));
      outputs[map] = b.at(s.output[map], b.f32, b.mul(row, s.valuePanelStride));
    }
    if (attention.hasSecondMap()) {
      lambda = b.splat(b.load(b.f32, s.lambda, row));
      // A row without keys has an output of 0, whatever its lambda is.
      Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ,
                                            inverses[1], b.zero());
      lambda = b.select(isEmpty, b.zero(), lambda);
    }
    Value x = b.at(s.laneGradients, b.f32, b.mul(row, sizes.paddedValueDim));
    b.loop(b.index(0), sizes.paddedValueDim, b.lanes, [&](Value c) {
      Value parts[2];
      for (int map : attention.maps()) {
        parts[map] = b.mulf(b.load(b.vector, outputs[map], c), inverses[map]);
        b.store(parts[map], outputs[map], c);
      }
      Value difference = parts[0];
      if (attention.hasSecondMap())
        difference = b.subf(difference, b.mulf(lambda, parts[1]));
      b.store(difference, x, c);
    });
  });
  return s.laneGradients;
}

Value BackwardPhases::loadOutputs(const PrefillItem &item,
                                  const BackwardLayout &s) {
  Value base = v.head(attention.x, item.batch, item.heads.signal);
  b.loop(item.rows, [&](Value row) {
    Value from =
        b.at(base, attention.x.element,
             b.mul(b.add(item.firstRow, row), v.stride(attention.x, 2)));
    Value to = b.at(s.laneGradients, b.f32, b.mul(row, sizes.paddedValueDim));
    forColumns(b, cutValues(), [&](const ColumnVector &c) {
      b.store(loadColumns(v, attention.x, from, c), to, c.first);
    });
  });
  return s.laneGradients;
}

void BackwardPhases::sumOutputs(const PrefillItem &item,
                                const BackwardLayout &s) {
  b.loop(item.rows, [&](Value row) {
    Value gradients =
        b.at(s.rowGradients, b.f32, b.mul(row, sizes.paddedValueDim));
    for (int map : attention.maps()) {
      Value output = b.at(s.output[map], b.f32, b.mul(row, s.valuePanelStride));
      Value sum = b.loop(b.index(0), sizes.paddedValueDim, b.lanes, b.zero(),
                         [&](Value c, ValueRange carried) {
                           return SmallVector<Value>{
                               b.fma(b.load(b.vector, gradients, c),
                                     b.load(b.vector, output, c), carried[0])};
                         })[0];
      b.store(b.sum(sum), s.rowSums[map], row);
    }
  });
}

//===----------------------------------------------------------------------===//
// Norm and gate
//===----------------------------------------------------------------------===//

/// 1 / x, or 0 for 0: rows of zeros, with an eps of 0, have no direction.
static Value invertUnlessZero(KernelBuilder &b, Value x) {
  Value zero = emitConstant(b, b.f32, 0.0f);
  Value isZero = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, x, zero);
  Value inverse = b.divf(emitConstant(b, b.f32, 1.0f), x);
  return b.select(isZero, zero, inverse);
}

namespace {
/// Inverses of the number that the norm divides a row by, and of the one that
/// its derivative along the row divides by; null without a norm.
struct RowNorm {
  Value inverse, inverseSlope;
};
} // namespace

static RowNorm getRowNorm(KernelBuilder &b, const EpilogueRules &rules, Value x,
                          const BackwardSizes &sizes) {
  Value squares =
      b.loop(b.index(0), sizes.paddedValueDim, b.lanes, b.zero(),
             [&](Value c, ValueRange carried) {
               Value value = b.load(b.vector, x, c);
               return SmallVector<Value>{b.fma(value, value, carried[0])};
             })[0];
  Value count = arith::SIToFPOp::create(b, b.f32, sizes.valueDim);
  Value mean = b.divf(b.sum(squares), count);
  Value eps = emitConstant(b, b.f32, rules.eps);
  PolynomialMath math(b, b.f32);
  if (!rules.epsOutside) {
    Value inverse = invertUnlessZero(b, math.squareRoot(b.addf(mean, eps)));
    return {inverse, inverse};
  }
  Value root = math.squareRoot(mean);
  return {invertUnlessZero(b, b.addf(root, eps)), invertUnlessZero(b, root)};
}

void BackwardPhases::finishRow(const PrefillItem &item, const BackwardLayout &s,
                               Value row, Value x, const BlockSums &sums) {
  const EpilogueRules &rules = attention.epilogue;
  const Columns columns = cutValues();
  Value query = b.add(item.firstRow, row);
  Value gradients =
      b.at(s.rowGradients, b.f32, b.mul(row, sizes.paddedValueDim));
  auto rowOf = [&](const SpecOperand &operand) {
    return b.at(v.head(operand, item.batch, item.heads.signal), operand.element,
                b.mul(query, v.stride(operand, 2)));
  };
  // A row without keys passes nothing on, whatever its gradient is.
  Value sees;
  for (int map : attention.maps()) {
    Value has = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                      b.load(b.f32, s.inverses[map], row),
                                      emitConstant(b, b.f32, 0.0f));
    sees = sees ? arith::OrIOp::create(b, sees, has).getResult() : has;
  }
  if (x)
    x = b.at(x, b.f32, b.mul(row, sizes.paddedValueDim));
  RowNorm norm;
  if (rules.rmsNorm)
    norm = getRowNorm(b, rules, x, sizes);

  PolynomialMath math(b, b.vector);
  auto unlessEmpty = [&](Value gradient) {
    return b.select(sees, gradient, b.zero());
  };
  auto loadOut = [&](const ColumnVector &c) {
    return loadColumns(v, spec.dOut, rowOf(spec.dOut), c);
  };
  auto loadGate = [&](const ColumnVector &c) {
    return loadColumns(v, attention.gate, rowOf(attention.gate), c);
  };
  // X / rho.
  auto loadDirection = [&](const ColumnVector &c) {
    Value direction = b.load(b.vector, x, c.first);
    return norm.inverse ? b.mulf(direction, b.splat(norm.inverse)) : direction;
  };
  auto loadWeight = [&](const ColumnVector &c) {
    Value weight = b.splat(rules.outScale);
    if (attention.normWeight.present())
      weight = b.mulf(weight, loadColumns(v, attention.normWeight,
                                          v.address(attention.normWeight), c));
    return weight;
  };

  forColumns(b, columns, [&](const ColumnVector &c) {
    Value dU = loadOut(c);
    if (attention.gate.present())
      dU = b.mulf(dU, emitSigmoid(math, loadGate(c)));
    if (sums.normWeights)
      b.addTo(sums.normWeights, c.first,
              unlessEmpty(b.mulf(b.mulf(dU, b.splat(rules.outScale)),
                                 loadDirection(c))));
    b.store(unlessEmpty(b.mulf(dU, loadWeight(c))), gradients, c.first);
  });
  if (spec.dGate.present())
    storeColumns(v, spec.dGate, rowOf(spec.dGate), columns, s.row,
                 [&](const ColumnVector &c) {
                   Value slope = emitSigmoidSlope(math, loadGate(c));
                   Value output = b.mulf(loadWeight(c), loadDirection(c));
                   return unlessEmpty(
                       b.mulf(b.mulf(loadOut(c), output), slope));
                 });
  if (!rules.rmsNorm)
    return;
  // Behind the last column both are 0.
  Value along = b.loop(b.index(0), sizes.paddedValueDim, b.lanes, b.zero(),
                       [&](Value c, ValueRange carried) {
                         return SmallVector<Value>{
                             b.fma(b.load(b.vector, gradients, c),
                                   loadDirection({c, {}, {}}), carried[0])};
                       })[0];
  Value count = arith::SIToFPOp::create(b, b.f32, sizes.valueDim);
  Value mean = b.divf(b.sum(along), count);
  Value back = b.splat(b.mulf(mean, norm.inverseSlope));
  b.loop(b.index(0), sizes.paddedValueDim, b.lanes, [&](Value c) {
    Value straight =
        b.mulf(b.load(b.vector, gradients, c), b.splat(norm.inverse));
    Value turned = b.mulf(loadDirection({c, {}, {}}), back);
    b.store(b.subf(straight, turned), gradients, c);
  });
}

void BackwardPhases::finishRows(const PrefillItem &item,
                                const BackwardLayout &s, Value x,
                                const BlockSums &sums) {
  b.loop(item.rows, [&](Value row) { finishRow(item, s, row, x, sums); });
  Value rows = s.rowGradients, stride = sizes.paddedValueDim;
  if (scoring.atom.pack > 1) {
    roundGradients(item, s);
    rows = s.roundedGradients;
    stride = sizes.roundedValueDim;
  }
  if (!spec.wantsValueProducts())
    return;
  Type element = scoring.atom.getNumber(b);
  auto kernel = getPackQueriesKernel(b, module, element,
                                     schedule.getQBlockSize(), scoring.atom);
  Value last = b.sub(item.rows, b.index(1));
  scoring.forEachVector(item, [&](Value lane) {
    LLVM::CallOp::create(b, kernel,
                         ValueRange{b.at(rows, element, b.mul(lane, stride)),
                                    stride, b.sub(last, lane), stride,
                                    emitConstant(b, b.f32, 1.0f),
                                    b.at(s.laneGradients, b.f32, lane)});
  });
}

void BackwardPhases::roundGradients(const PrefillItem &item,
                                    const BackwardLayout &s) {
  Type number = scoring.atom.getNumber(b);
  auto rowOf = [&](Value row) {
    return b.at(s.rowGradients, b.f32, b.mul(row, sizes.paddedValueDim));
  };
  b.loop(item.rows, [&](Value row) {
    Value from = rowOf(row), to = b.at(s.roundedGradients, number,
                                       b.mul(row, sizes.roundedValueDim));
    b.loop(b.index(0), sizes.paddedValueDim, b.lanes, [&](Value c) {
      // All that reads them reads the same numbers.
      Value rounded = scoring.atom.roundNumbers(b, b.load(b.vector, from, c));
      b.store(rounded, to, number, c);
      b.store(arith::ExtFOp::create(b, b.vector, rounded), from, c);
    });
    b.loop(sizes.paddedValueDim, sizes.roundedValueDim, b.lanes, [&](Value c) {
      b.store(scoring.atom.roundNumbers(b, b.zero()), to, number, c);
    });
  });
  if (spec.dV.present())
    packRows(item, cutValues(), s.packedGradients, sizes.paddedValueDim,
             [&](Value row, const ColumnVector &c) {
               return b.load(b.vector, rowOf(row), c.first);
             });
}

//===----------------------------------------------------------------------===//
// Queries and lambda
//===----------------------------------------------------------------------===//

void BackwardPhases::packRows(
    const PrefillItem &item, const Columns &columns, Value to, Value stride,
    function_ref<Value(Value, const ColumnVector &)> load) {
  const ProductAtom &atom = scoring.atom;
  const bool leavesOut = atom.usesTiles && mayHide();
  auto store = [&](Value pack, int64_t count) {
    Value panel = b.at(to, b.f32, b.mul(pack, stride));
    forColumns(b, columns, [&](const ColumnVector &c) {
      SmallVector<Value> parts;
      for (int64_t i = 0; i < count; ++i) {
        Value part = load(b.add(b.mul(pack, atom.pack), i), c);
        if (leavesOut)
          part = b.select(emitIsFinite(b, part), part, b.zero());
        parts.push_back(part);
      }
      parts.resize(atom.pack, b.zero());
      b.store(atom.makePack(b, parts), panel, atom.getPacked(b), c.first);
    });
  };
  Value whole = b.div(item.rows, atom.pack);
  b.loop(whole, [&](Value pack) { store(pack, atom.pack); });
  if (atom.pack > 1)
    b.loop(whole, b.ceilDiv(item.rows, atom.pack), 1,
           [&](Value pack) { store(pack, 1); });
  if (!atom.usesTiles)
    return;
  Value packs = b.ceilDiv(item.rows, atom.pack),
        end = b.div(b.roundUp(item.rows, atom.getPanelKeys()), atom.pack);
  b.loop(b.mul(packs, stride), b.mul(end, stride), b.lanes,
         [&](Value i) { b.store(b.zero(), to, i); });
}

void BackwardPhases::packQueryRows(const PrefillItem &item,
                                   const BackwardLayout &s) {
  if (scoring.atom.usesTiles) {
    // Two vectors of lanes are contracted at a time, of which the second one
    // may have no query.
    Value lane = b.mul(item.vectors, b.lanes),
          count = b.mul(b.rem(item.vectors, b.index(2)), b.lanes);
    Type number = scoring.atom.getNumber(b);
    Value zeros = scoring.atom.roundNumbers(b, b.zero());
    for (Value rows : s.roundedRows)
      b.loop(b.index(schedule.getKvBlockSize()), [&](Value key) {
        Value row = b.add(b.mul(key, schedule.getQBlockSize()), lane);
        b.loop(b.index(0), count, b.lanes,
               [&](Value i) { b.store(zeros, rows, number, b.add(row, i)); });
      });
  }
  Value scale = b.splat(attention.scores.scale);
  const std::pair<const SpecOperand &, Value> queries[] = {
      {attention.q1, item.heads.signal}, {attention.q2, item.heads.noise}};
  for (int map : attention.maps()) {
    if (!spec.keySums(map).present() && !mayHide())
      continue;
    auto &[operand, head] = queries[map];
    Value base = v.head(operand, item.batch, head);
    packRows(item, cutHead(), s.queryRows[map], sizes.paddedHeadDim,
             [&, &operand = operand](Value row, const ColumnVector &c) {
               Value from =
                   b.at(base, operand.element,
                        b.mul(b.add(item.firstRow, row), v.stride(operand, 2)));
               Value loaded = loadColumns(v, operand, from, c);
               return scoring.atom.scalesQueries ? b.mulf(loaded, scale)
                                                 : loaded;
             });
  }
}

void BackwardPhases::addLambda(const PrefillItem &item, const BackwardLayout &s,
                               const BlockSums &sums) {
  if (!spec.dLambda.present())
    return;
  const bool isSigmoid = attention.epilogue.lambdaSigmoid;
  if (isSigmoid)
    scoring.forEachLane(item, [&](Value lane, Value row) {
      b.store(emitLambdaScalar(v, item.batch, item.heads, row), s.logits, lane);
    });
  auto gradient = [&](Value lane) {
    Value sum = b.subf(b.zero(), b.load(b.vector, s.rowSums[1], lane));
    if (!isSigmoid)
      return sum;
    PolynomialMath math(b, b.vector);
    Value slope = emitSigmoidSlope(math, b.load(b.vector, s.logits, lane));
    // The lambda of a row without keys may be anything.
    Value isEmpty =
        arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ,
                              b.load(b.vector, s.inverses[1], lane), b.zero());
    return b.select(isEmpty, b.zero(), b.mulf(sum, slope));
  };
  if (sums.lambda) {
    // Lanes behind the last query repeat it.
    Value sum = b.loop(b.index(0), b.mul(item.vectors, b.lanes), b.lanes,
                       b.zero(), [&](Value lane, ValueRange carried) {
                         Value isQuery = b.firstLanes(b.sub(item.rows, lane));
                         Value term =
                             b.select(isQuery, gradient(lane), b.zero());
                         return SmallVector<Value>{b.addf(carried[0], term)};
                       })[0];
    Value none = b.index(0);
    b.store(b.addf(b.load(b.f32, sums.lambda, none), b.sum(sum)), sums.lambda,
            none);
    return;
  }
  // A lambda of a noise head waits for all of its signal heads.
  Value shared = b.div(sizes.signalHeads, v.size(attention.lambdaHeads));
  Value place = b.rem(item.heads.signal, shared);
  b.ifThen(b.equal(place, b.index(0)), [&] {
    scoring.forEachVector(
        item, [&](Value lane) { b.store(b.zero(), s.lambdaGradients, lane); });
  });
  scoring.forEachVector(item, [&](Value lane) {
    b.addTo(s.lambdaGradients, lane, gradient(lane));
  });
  b.ifThen(b.equal(b.add(place, 1), shared), [&] {
    const SpecOperand &operand = spec.dLambda;
    Value base = v.head(operand, item.batch, b.div(item.heads.signal, shared));
    b.loop(item.rows, [&](Value row) {
      b.store(b.load(b.f32, s.lambdaGradients, row), base,
              b.mul(b.add(item.firstRow, row), v.stride(operand, 2)));
    });
  });
}

void BackwardPhases::storeQueries(const PrefillItem &item,
                                  const BackwardLayout &s, int map) {
  const SpecOperand &operand = spec.dQ[map];
  if (!operand.present())
    return;
  const Columns columns = cutHead();
  Value scale = b.splat(attention.scores.scale);
  Value base =
      v.head(operand, item.batch, map ? item.heads.noise : item.heads.signal);
  b.loop(item.rows, [&](Value row) {
    Value from =
        b.at(s.queryGradients[map], b.f32, b.mul(row, sizes.paddedHeadDim));
    Value to = b.at(base, operand.element,
                    b.mul(b.add(item.firstRow, row), v.stride(operand, 2)));
    storeColumns(v, operand, to, columns, s.row, [&](const ColumnVector &c) {
      return b.mulf(b.load(b.vector, from, c.first), scale);
    });
  });
}
