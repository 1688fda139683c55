//===- PrefillMasks.cpp - which blocks of keys a block of queries sees ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillKernel.h"
#include "Transpose.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

/// How a KV block stands to the block of queries by the masks that know it.
enum BlockRelation : int64_t { kNone, kAll, kSome };

void PrefillKernel::packIntegers() {
  Value last = b.sub(rows, b.index(1));
  for (MaskOperand which : kMaskOperands) {
    Value part = s.integers[static_cast<size_t>(which)];
    if (!part)
      continue;
    b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
      Value row = b.add(firstRow, b.min(lane, last));
      b.store(v.integer(spec.mask(which), batch, row), part, b.i64, lane);
    });
  }
}

PrefillKernel::BiasScan PrefillKernel::scanBias(const KvBlock &kvBlock) {
  const SpecOperand &operand = spec.bias();
  auto constant = [&](bool value) -> Value {
    return arith::ConstantOp::create(b, b.getBoolAttr(value));
  };
  if (!operand.hasUnitColumns())
    return {constant(false), constant(false)};
  // As bits, which differ from those of what hides a key.
  const bool isFlag = !spec.addsBias();
  const int64_t width = isFlag ? 8 : operand.element.getIntOrFloatBitWidth();
  auto element = IntegerType::get(b.getContext(), width);
  APInt hides(width, 0);
  if (!isFlag)
    hides = llvm::APFloat::getInf(
                cast<FloatType>(operand.element).getFloatSemantics(),
                /*Negative=*/true)
                .bitcastToAPInt();
  const int64_t lanes = 32 * b.lanes / width;
  auto type = VectorType::get({lanes}, element);
  auto splat = [&](Type type, const APInt &bits) -> Value {
    if (auto vector = dyn_cast<VectorType>(type))
      return arith::ConstantOp::create(b, DenseElementsAttr::get(vector, bits));
    return arith::ConstantOp::create(b, IntegerAttr::get(type, bits));
  };
  Value rowStride = v.stride(operand, 2);
  Value base = b.at(v.head(operand, batch, heads.noise), element,
                    b.add(b.mul(firstRow, rowStride), kvBlock.first));
  // Bits of any key that do not hide it, and the least flag of all keys.
  auto scan = [&](Type type, Value from, Value key, ValueRange carried) {
    Value bits = b.load(type, from, element, key);
    Value differs = arith::XOrIOp::create(b, bits, splat(type, hides));
    SmallVector<Value> next = {arith::OrIOp::create(b, carried[0], differs)};
    if (isFlag)
      next.push_back(arith::MinUIOp::create(b, carried[1], bits));
    return next;
  };
  auto begin = [&](Type type) {
    SmallVector<Value> inits = {splat(type, APInt::getZero(width))};
    if (isFlag)
      inits.push_back(splat(type, APInt::getAllOnes(width)));
    return inits;
  };
  auto forRows = [&](ArrayRef<Value> inits,
                     function_ref<SmallVector<Value>(Value, ValueRange)> body) {
    bool isShared = KernelBuilder::known(rowStride) == 0;
    return b.loop(b.index(0), isShared ? b.index(1) : rows, 1, inits,
                  [&](Value row, ValueRange carried) {
                    return body(b.at(base, element, b.mul(row, rowStride)),
                                carried);
                  });
  };
  // The last vector ends with the last key; fewer keys than a vector go one by
  // one.
  Value isShort = b.less(kvBlock.n, b.index(lanes));
  SmallVector<Value> inits = begin(element);
  SmallVector<Value> found = b.choose(
      isShort, ValueRange(inits).getTypes(),
      [&] {
        return forRows(inits, [&](Value row, ValueRange carried) {
          return b.loop(b.index(0), kvBlock.n, 1, carried,
                        [&](Value key, ValueRange carried) {
                          return scan(element, row, key, carried);
                        });
        });
      },
      [&] {
        Value last = b.sub(kvBlock.n, b.index(lanes));
        SmallVector<Value> all =
            forRows(begin(type), [&](Value row, ValueRange carried) {
              return b.loop(b.index(0), kvBlock.n, lanes, carried,
                            [&](Value key, ValueRange carried) {
                              return scan(type, row, b.min(key, last), carried);
                            });
            });
        all[0] =
            vector::ReductionOp::create(b, vector::CombiningKind::OR, all[0]);
        if (isFlag)
          all[1] = vector::ReductionOp::create(b, vector::CombiningKind::MINUI,
                                               all[1]);
        return all;
      });
  auto compare = [&](arith::CmpIPredicate predicate, Value value) -> Value {
    return arith::CmpIOp::create(b, predicate, value,
                                 splat(element, APInt::getZero(width)));
  };
  return {compare(arith::CmpIPredicate::eq, found[0]),
          isFlag ? compare(arith::CmpIPredicate::ne, found[1])
                 : constant(false)};
}

void PrefillKernel::relateKvBlocks() {
  if (!s.relations)
    return;
  const bool hasTileMasks = spec.scores.hasTileMasks();
  if (hasTileMasks) {
    packIntegers();
    masks->beginRows(firstRow, b.add(firstRow, b.sub(rows, b.index(1))));
  }
  b.loop(kvBlocks, [&](Value number) {
    KvBlock kvBlock = cutKvBlock(number);
    Value none = arith::ConstantOp::create(b, b.getBoolAttr(false));
    Value all = arith::ConstantOp::create(b, b.getBoolAttr(true));
    auto restrict = [&](Value byNone, Value byAll) {
      none = arith::OrIOp::create(b, none, byNone);
      all = arith::AndIOp::create(b, all, byAll);
    };
    if (spec.bias().present()) {
      BiasScan scan = scanBias(kvBlock);
      restrict(scan.hidesAll, scan.hidesNone);
    }
    if (hasTileMasks) {
      TileRelation relation = masks->getTileRelation(
          kvBlock.first, b.add(kvBlock.first, b.add(kvBlock.n, -1)));
      restrict(KernelMasks::unwrap(relation.none),
               KernelMasks::unwrap(relation.all));
    }
    Value code = b.select(none, b.index(kNone),
                          b.select(all, b.index(kAll), b.index(kSome)));
    b.store(b.narrow(code), s.relations, b.i32, number);
  });
}

void PrefillKernel::forKvBlocks(function_ref<void(Value)> body) {
  b.loop(kvBlocks, [&](Value kvBlock) {
    if (!s.relations)
      return body(kvBlock);
    Value relation = b.load(b.i32, s.relations, b.i32, kvBlock);
    b.ifElse(
        b.equal(relation, b.narrow(b.index(kNone))), [] {},
        [&] { body(kvBlock); });
  });
}

PrefillKernel::KvBlock PrefillKernel::getKvBlock(Value kvBlock) {
  KvBlock result = cutKvBlock(kvBlock);
  if (!s.relations)
    return result;
  Value relation = b.load(b.i32, s.relations, b.i32, kvBlock);
  Value some = b.equal(relation, b.narrow(b.index(kSome)));
  result.partial =
      result.partial ? arith::OrIOp::create(b, result.partial, some).getResult()
                     : some;
  return result;
}

PrefillKernel::KvBlock PrefillKernel::cutKvBlock(Value kvBlock) {
  Value inBefore = b.less(kvBlock, blocksBefore);
  Value upToWhole = b.add(blocksBefore, blocksWhole);
  Value inWhole = b.less(kvBlock, upToWhole);
  auto pick = [&](Value before, Value whole, Value after) {
    return b.select(inBefore, before, b.select(inWhole, whole, after));
  };
  Value number =
      pick(kvBlock, b.sub(kvBlock, blocksBefore), b.sub(kvBlock, upToWhole));
  Value begin = pick(seen.low, wholeBegin, wholeEnd);
  Value end = pick(wholeBegin, wholeEnd, seen.high);
  KvBlock result;
  result.first = b.add(begin, b.mul(number, schedule.getKvBlockSize()));
  result.n =
      b.min(b.sub(end, result.first), b.index(schedule.getKvBlockSize()));
  if (spec.hasPositionMask()) {
    Value always = arith::ConstantOp::create(b, b.getBoolAttr(true));
    Value never = arith::ConstantOp::create(b, b.getBoolAttr(false));
    result.partial = pick(always, never, always);
  }
  return result;
}

/// The bias of `n` keys, transposed once for both maps; a boolean mask becomes
/// 0 and -inf.
void PrefillKernel::packBias(Value n, Value first) {
  const SpecOperand &operand = spec.bias();
  const int64_t stride = schedule.getQBlockSize();
  const bool isFlag = operand.element.isInteger(1);
  Type element = isFlag ? b.i8 : operand.element;
  Value last = b.sub(rows, b.index(1));
  Value rowStride = v.stride(operand, 2), keyStride = v.stride(operand, 3);
  Value base = b.at(v.head(operand, batch, heads.noise), element,
                    b.mul(first, keyStride));
  Value done = b.index(0);
  if (operand.hasUnitColumns()) {
    done = b.mul(b.div(n, b.lanes), b.lanes);
    auto kernel = getPackBiasKernel(b, module, operand.element, stride);
    forEachVector([&](Value lane) {
      Value row = b.add(firstRow, lane);
      LLVM::CallOp::create(
          b, kernel,
          ValueRange{b.at(base, element, b.mul(row, rowStride)), rowStride,
                     b.sub(last, lane), done, b.at(s.bias, b.f32, lane)});
    });
  }
  Value visible = emitConstant(b, b.f32, 0.0f);
  Value hidden =
      emitConstant(b, b.f32, -std::numeric_limits<float>::infinity());
  b.loop(b.mul(vectors, b.lanes), [&](Value lane) {
    Value row = b.add(firstRow, b.min(lane, last));
    Value from = b.at(base, element, b.mul(row, rowStride));
    Value to = b.at(s.bias, b.f32, lane);
    b.loop(done, n, 1, [&](Value key) {
      Value position = b.mul(key, keyStride), value;
      if (isFlag) {
        Value flag = b.load(b.i8, from, b.i8, position);
        Value zero = arith::ConstantOp::create(b, b.getI8IntegerAttr(0));
        value = b.select(b.equal(flag, zero), hidden, visible);
      } else {
        value = b.loadWideScalar(from, element, position);
      }
      b.store(value, to, b.mul(key, stride));
    });
  });
}
