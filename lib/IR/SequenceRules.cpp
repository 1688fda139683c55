//===- SequenceRules.cpp - packed sequences and pages of keys -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

using namespace mlir;
using namespace mlir::diffattn;

int64_t AttentionOp::getKeyCount() {
  const int64_t rows = getShaped(getK1()).getDimSize(lengthAxis(getKLayout()));
  if (!isPaged())
    return rows;
  const int64_t pages = getShaped(getBlockTable()).getDimSize(1);
  return ShapedType::isDynamic(rows) || ShapedType::isDynamic(pages)
             ? ShapedType::kDynamic
             : rows * pages;
}

static bool isIntegral(Operation *op) {
  auto attention = dyn_cast<AttentionOp>(op);
  return attention && attention.getIntegral();
}

/// Checks which of the operands come together, and which exclude others.
static LogicalResult verifyForm(DifferentialMapsOpInterface op,
                                ShapeRules rules) {
  // attention_c28
  if (!op.isPacked() && op.getCuSeqlensK())
    return rules.error() << "expected cu_seqlens_q with cu_seqlens_k, but got "
                            "none";
  if (op.isPacked() && op.isPaged() == static_cast<bool>(op.getCuSeqlensK()))
    return rules.error() << "expected cu_seqlens_q with either cu_seqlens_k or "
                            "block_table, but got "
                         << (op.isPaged() ? "both" : "none");
  if (op.isPaged() && !op.getKvLen())
    return rules.error() << "expected kv_len with block_table, but got none";
  if (op.getCuSeqlensK() && op.getKvLen())
    return rules.error() << "expected no kv_len with cu_seqlens_k, which says "
                            "how many keys there are";
  // attention_c29
  const StringRef given = op.getBias()        ? "a bias"
                          : op.getQSegments() ? "segments"
                          : isIntegral(op)    ? "integral"
                                              : "";
  if (!given.empty())
    return rules.error() << "expected no bias, segments and integral with "
                            "cu_seqlens_q and block_table, but got "
                         << given;
  return success();
}

/// `operand` has one number or row for each sequence, of which `bounds` has one
/// number more. Sizes that are not known are checked when the op runs.
static LogicalResult verifyCount(ShapeRules rules, NamedOperand operand,
                                 NamedOperand bounds) {
  const int64_t count = operand.size(0), ends = bounds.size(0);
  if (ShapedType::isDynamic(count) || ShapedType::isDynamic(ends) ||
      count + 1 == ends)
    return success();
  return rules.error() << "expected " << operand.name << " of length "
                       << ends - 1 << ", the number of sequences, but got "
                       << count;
}

static LogicalResult verifyOneBatch(ShapeRules rules, NamedOperand operand) {
  if (operand.size(0) == 1)
    return success();
  InFlightDiagnostic error = rules.error()
                             << "expected one batch of " << operand.name
                             << ", in which sequences follow one another, but "
                                "got ";
  if (ShapedType::isDynamic(operand.size(0)))
    return error << "?";
  return error << operand.size(0);
}

LogicalResult diffattn::verifySequences(DifferentialMapsOpInterface op,
                                        ShapeRules rules,
                                        const MapInputs &inputs) {
  if (!op.isPacked() && !op.isPaged() && !op.getCuSeqlensK())
    return success();
  if (failed(verifyForm(op, rules)))
    return failure();
  // attention_c30
  NamedOperand table{"block_table", op.getBlockTable()};
  if (op.isPaged() &&
      (failed(verifyRank(rules, table, 2)) ||
       failed(verifyPositive(rules, "number of pages", inputs.k1, 0)) ||
       failed(verifyPositive(rules, "number of keys in a page", inputs.k1,
                             AttentionOp::lengthAxis(inputs.kLayout)))))
    return failure();
  if (!op.isPacked())
    return verifySame(rules, "batches", inputs.q1, 0, table, 0);
  NamedOperand bounds{"cu_seqlens_q", op.getCuSeqlensQ()};
  if (failed(verifyRank(rules, bounds, 1)) ||
      failed(verifyPositive(rules, "length", bounds, 0)) ||
      failed(verifyOneBatch(rules, inputs.q1)))
    return failure();
  for (NamedOperand operand :
       {NamedOperand{"kv_len", op.getKvLen()},
        NamedOperand{"q_offset", op.getQOffset()}, table})
    if (operand.value && failed(verifyCount(rules, operand, bounds)))
      return failure();
  if (op.isPaged())
    return success();
  NamedOperand keyBounds{"cu_seqlens_k", op.getCuSeqlensK()};
  if (failed(verifyRank(rules, keyBounds, 1)) ||
      failed(verifySame(rules, "lengths", bounds, 0, keyBounds, 0)))
    return failure();
  return verifyOneBatch(rules, inputs.k1);
}
