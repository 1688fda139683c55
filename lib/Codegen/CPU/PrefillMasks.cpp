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

BiasScan PrefillKernel::scanBias(const KvBlock &kvBlock) {
  Value base = v.bias(batch, heads.noise, firstRow, kvBlock.first);
  // What is added to scores is added where it hides none, too.
  return emitBiasScan(b, spec.bias(),
                      {base, v.stride(spec.bias(), 2), rows, kvBlock.n},
                      /*wantsNone=*/!spec.addsBias());
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
    Value none = b.boolean(false), all = b.boolean(true);
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
  if (spec.hasPositionMask())
    result.partial = pick(b.boolean(true), b.boolean(false), b.boolean(true));
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
  Value base = v.bias(batch, heads.noise, b.index(0), first);
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
