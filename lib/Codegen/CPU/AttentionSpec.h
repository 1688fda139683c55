//===- AttentionSpec.h - parameters of an attention kernel ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_ATTENTIONSPEC_H
#define DIFFATTN_LIB_CODEGEN_CPU_ATTENTIONSPEC_H

#include "DiffAttn/Schedule/CpuSchedule.h"
#include "DiffAttn/Semantics/Activations.h"
#include "DiffAttn/Semantics/AttentionRules.h"

namespace mlir::diffattn {

class ProductAtom;

/// A size or stride: a number, or a slot of the context that a work item is
/// given.
struct SpecSize {
  int64_t value = ShapedType::kDynamic;
  int64_t slot = -1;
  bool isStatic() const { return slot < 0; }
};

/// An operand in memory: a slot with its address, and its strides in elements.
/// Head-split operands have them in the order batch, head, position, column,
/// whatever their layout.
struct SpecOperand {
  Type element;
  int64_t slot = -1;
  SpecSize strides[4];
  bool present() const { return slot >= 0; }
  bool hasUnitRows() const {
    return strides[2].isStatic() && strides[2].value == 1;
  }
  bool hasUnitColumns() const {
    return strides[3].isStatic() && strides[3].value == 1;
  }
};

/// The specification of an attention kernel. Lambda uses the strides of
/// batch, head and position (0 where it does not vary), a sink that of head, a
/// logarithm of sums those of batch, head and position; operands of masks those
/// that their axes count; norm_weight that of columns. A bias that is broadcast
/// along an axis has stride 0 there.
struct AttentionSpec {
  /// The schedule of the kernel that is emitted: one of the two.
  CpuPrefillAttr prefill;
  CpuSplitKVAttr splitKV;
  CpuProduct product = CpuProduct::F32;
  CpuTarget target;
  SpecSize batch, signalHeads, noiseHeads, key1Heads, key2Heads, valueHeads;
  SpecSize queries, keys, headDim, valueDim;
  /// Operands; those of map 2 and lambda are absent where there is one map, and
  /// its numbers of heads then are those of map 2 as well.
  SpecOperand q1, k1, q2, k2, v, lambda, normWeight, gate, output;
  /// The output before norm and gate: attention writes it beside the output,
  /// and its gradient reads it.
  SpecOperand x;
  /// Sinks and destinations of logarithms of sums, of map 1 and map 2; of
  /// attention alone.
  SpecOperand sinks[2], lses[2];
  SpecOperand masks[std::size(kMaskOperands)];
  /// The table of pages, by batch and row, if keys and values lie in pages of
  /// `pageRows`; then pages are the batches of k1, k2 and v.
  SpecOperand blockTable;
  SpecSize pageRows;
  /// k1, k2 and v in pages, where those above are dense copies of a KV block.
  SpecOperand pages[3];
  /// Heads of a lambda of one value per token: all signal heads or the noise
  /// heads.
  SpecSize lambdaHeads;
  ScoreRules scores;
  EpilogueRules epilogue;
  /// Whether the softcap's derivatives are kept beside the scores.
  bool keepsSoftcapSlopes = false;
  /// Whether the exponentials of all keys are kept of one map too, as long as
  /// scratch has room: gradients read them once more.
  bool keepsOneMap = false;
  /// Whether exponentials stay f32 by tiles too: gradients are made from them.
  bool keepsWideExponentials = false;
  /// Addresses and dynamic sizes in the context.
  int64_t slots = 0;

  const SpecOperand &mask(MaskOperand operand) const {
    return masks[static_cast<size_t>(operand)];
  }
  bool isPaged() const { return blockTable.present(); }
  bool hasSecondMap() const { return q2.present(); }
  /// The numbers of the maps that a kernel computes.
  ArrayRef<int> maps() const {
    static constexpr int numbers[] = {0, 1};
    return ArrayRef(numbers).take_front(hasSecondMap() ? 2 : 1);
  }
  const SpecOperand &queriesOf(int map) const { return map ? q2 : q1; }
  const SpecOperand &keysOf(int map) const { return map ? k2 : k1; }
  /// A copy with dense rows of k1, k2 and v in place of pages.
  AttentionSpec withDenseRows() const;
  const SpecOperand &bias() const { return mask(MaskOperand::Bias); }
  /// Whether a mask's operand is there and has an integer for each query, or
  /// for each key, of a batch.
  bool hasIntegers(MaskOperand operand, AxisRole::Kind counted) const {
    SmallVector<AxisRole> roles = getAxisRoles(operand);
    return mask(operand).present() && roles.size() == 2 &&
           roles[1].kind == counted;
  }
  /// Whether which keys a query sees depends on its position.
  bool hasPositionMask() const { return static_cast<bool>(scores.reach); }
  /// Whether the bias is added to scores; one of truth values only hides keys.
  bool addsBias() const {
    return bias().present() && !bias().element.isInteger(1);
  }
  /// Whether masks hide some scores of some tiles and leave whole tiles as they
  /// are.
  bool hasPartialTiles() const {
    return hasPositionMask() || scores.hasTileMasks() ||
           (bias().present() && !addsBias());
  }
  /// Whether every score changes between the product and the softmax.
  bool editsEveryScore() const { return scores.softcap || addsBias(); }
  /// The atom of products: that of the schedule, or f32 if the operands do not
  /// suit it.
  const ProductAtom &getAtom() const;
  /// Whether exponentials are kept as pairs of numbers of 16 bits.
  bool pairsExponentials() const;
  /// Whether scores leave the product in units of log2(e), ready for powers of
  /// two.
  bool foldsLog2E() const { return !editsEveryScore(); }
  /// The factor of differences of scores before 2^x; nothing if it is 1.
  std::optional<float> exponentFactor() const;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_ATTENTIONSPEC_H
