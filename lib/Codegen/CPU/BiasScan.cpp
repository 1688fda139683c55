//===- BiasScan.cpp - keys that a bias hides ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BiasScan.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class Scanner {
public:
  Scanner(KernelBuilder &b, const SpecOperand &bias, const BiasRows &rows,
          bool wantsNone)
      : b(b), r(rows), wantsNone(wantsNone) {
    const bool isFlag = bias.element.isInteger(1);
    width = isFlag ? 8 : bias.element.getIntOrFloatBitWidth();
    element = IntegerType::get(b.getContext(), width);
    hides =
        isFlag
            ? APInt(width, 0)
            : APFloat::getInf(cast<FloatType>(bias.element).getFloatSemantics(),
                              /*Negative=*/true)
                  .bitcastToAPInt();
  }

  BiasScan emit() {
    if (wantsNone)
      return scanAll();
    Value none = b.boolean(false);
    Value first = b.load(element, r.base, element, b.index(0));
    SmallVector<Value> hidesAll = b.choose(
        isHidden(first), b.getI1Type(),
        [&] { return SmallVector<Value>{scanAll().hidesAll}; },
        [&] { return SmallVector<Value>{none}; });
    return {hidesAll[0], none};
  }

private:
  Value splat(Type type, const APInt &bits) {
    if (auto vector = dyn_cast<VectorType>(type))
      return arith::ConstantOp::create(b, DenseElementsAttr::get(vector, bits));
    return arith::ConstantOp::create(b, IntegerAttr::get(type, bits));
  }
  Value isHidden(Value bits) {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, bits,
                                 splat(element, hides));
  }

  /// The bits of any key that do not hide it and, where wanted, the least such
  /// bits of all keys.
  SmallVector<Value> begin(Type type) {
    SmallVector<Value> inits = {splat(type, APInt::getZero(width))};
    if (wantsNone)
      inits.push_back(splat(type, APInt::getAllOnes(width)));
    return inits;
  }
  SmallVector<Value> take(Type type, Value row, Value key, ValueRange carried) {
    Value bits = b.load(type, row, element, key);
    Value differs = arith::XOrIOp::create(b, bits, splat(type, hides));
    SmallVector<Value> next = {arith::OrIOp::create(b, carried[0], differs)};
    if (wantsNone)
      next.push_back(arith::MinUIOp::create(b, carried[1], differs));
    return next;
  }

  /// Steps of `type`, of `lanes` keys; the last one ends with the last key.
  SmallVector<Value> scanRows(Type type, int64_t lanes) {
    const bool isShared = KernelBuilder::known(r.rowStride) == 0;
    Value last = b.sub(r.keys, b.index(lanes));
    return b.loop(
        b.index(0), isShared ? b.index(1) : r.rows, 1, begin(type),
        [&](Value number, ValueRange carried) {
          Value row = b.at(r.base, element, b.mul(number, r.rowStride));
          return b.loop(b.index(0), r.keys, lanes, carried,
                        [&](Value key, ValueRange carried) {
                          return take(type, row, b.min(key, last), carried);
                        });
        });
  }

  BiasScan scanAll() {
    // Fewer keys than a vector go one by one.
    const int64_t lanes = 32 * b.lanes / width;
    auto type = VectorType::get({lanes}, element);
    SmallVector<Value> bits = b.choose(
        b.less(r.keys, b.index(lanes)), ValueRange(begin(element)).getTypes(),
        [&] { return scanRows(element, 1); },
        [&] {
          SmallVector<Value> all = scanRows(type, lanes);
          all[0] =
              vector::ReductionOp::create(b, vector::CombiningKind::OR, all[0]);
          if (wantsNone)
            all[1] = vector::ReductionOp::create(
                b, vector::CombiningKind::MINUI, all[1]);
          return all;
        });
    Value zero = splat(element, APInt::getZero(width));
    auto compare = [&](arith::CmpIPredicate predicate, Value value) -> Value {
      return arith::CmpIOp::create(b, predicate, value, zero);
    };
    return {compare(arith::CmpIPredicate::eq, bits[0]),
            wantsNone ? compare(arith::CmpIPredicate::ne, bits[1])
                      : b.boolean(false)};
  }

  KernelBuilder &b;
  const BiasRows &r;
  const bool wantsNone;
  int64_t width;
  IntegerType element;
  APInt hides;
};

} // namespace

BiasScan mlir::diffattn::emitBiasScan(KernelBuilder &b, const SpecOperand &bias,
                                      const BiasRows &rows, bool wantsNone) {
  if (!bias.hasUnitColumns())
    return {b.boolean(false), b.boolean(false)};
  return Scanner(b, bias, rows, wantsNone).emit();
}
