//===- DiffAttnOps.cpp - ops of ours by the reference ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttnOps.h"
#include "ElementBody.h"
#include "Strided.h"

#include "DiffAttn/IR/SizeRelations.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;
namespace diffattn = mlir::diffattn;
namespace reference = mlir::diffattn::reference;

reference::View mlir::diffattn::interpreter::viewOf(const Array &array,
                                                    Layout layout) {
  if (!array)
    return {};
  reference::View view(
      array.begin(),
      array.isFloat() ? reference::Element::F64 : reference::Element::I64,
      std::vector<int64_t>(array.getShape().begin(), array.getShape().end()));
  return layout == diffattn::Layout::BTHD ? view.transposed(1, 2) : view;
}

static reference::View &maskView(reference::AttentionArguments &a,
                                 diffattn::MaskOperand operand) {
  using Operand = diffattn::MaskOperand;
  switch (operand) {
  case Operand::Bias:
    return a.bias;
  case Operand::KvLen:
    return a.kvLen;
  case Operand::QOffset:
    return a.qOffset;
  case Operand::QSegments:
    return a.qSegments;
  case Operand::KvSegments:
    return a.kvSegments;
  }
  llvm_unreachable("unknown operand of a mask");
}

void MaskViews::read(reference::AttentionArguments &a,
                     llvm::function_ref<Array(diffattn::MaskOperand)> operand) {
  for (diffattn::MaskOperand which : diffattn::kMaskOperands) {
    const Array array = operand(which);
    reference::View &view = maskView(a, which);
    view = viewOf(array);
    if (which != diffattn::MaskOperand::Bias || !array || array.isFloat())
      continue;
    truths.resize(std::max<int64_t>(array.getNumElements(), 1));
    array.write(truths.data());
    view = reference::View(truths.data(), reference::Element::Bool, view.sizes);
  }
}

/// The number of keys that a sequence has at most.
static int64_t keysOf(const reference::AttentionArguments &a) {
  return a.k1.sizes[2] * (a.blockTable.rank() ? a.blockTable.sizes[1] : 1);
}

namespace {
struct Attention : Details {
  reference::AttentionArguments attributes;
  diffattn::Layout qLayout, kLayout, vLayout, oLayout;
  int32_t q1, k1, q2, k2, v, lambda, init;
  int32_t normWeight = -1, gate = -1;
  int32_t cuSeqlensQ = -1, cuSeqlensK = -1, blockTable = -1;
  std::array<int32_t, std::size(diffattn::kMaskOperands)> masks;
  FloatKind kind = FloatKind::F64;
  /// What the operands are written in, if results are to be moved at random.
  std::optional<reference::Element> moved;

  /// By how much of their magnitudes, the usual and the flat one, results are
  /// moved: as much of what docs/numerics.md allows as other ops are off by.
  std::pair<double, double>
  getErrorParts(const reference::AttentionArguments &a,
                const reference::AttentionResult &result) const {
    if (!moved)
      return {0.0, 0.0};
    return {reference::errorBound(*moved, a.q1.sizes[3], keysOf(a),
                                  result.scoreMagnitude) /
                kRandomRoundingsToBound,
            reference::subnormalError(*moved) / kRandomRoundingsToBound};
  }
};
} // namespace

static bool runAttention(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Attention>();
  auto tensor = [&](int32_t number) { return arrayOf(m, number); };
  reference::AttentionArguments a = details.attributes;
  a.q1 = viewOf(tensor(details.q1), details.qLayout);
  a.q2 = viewOf(tensor(details.q2), details.qLayout);
  a.k1 = viewOf(tensor(details.k1), details.kLayout);
  a.k2 = viewOf(tensor(details.k2), details.kLayout);
  a.v = viewOf(tensor(details.v), details.vLayout);
  a.lambda = viewOf(tensor(details.lambda));
  a.normWeight = viewOf(tensor(details.normWeight));
  a.gate = viewOf(tensor(details.gate), details.oLayout);
  a.cuSeqlensQ = viewOf(tensor(details.cuSeqlensQ));
  a.cuSeqlensK = viewOf(tensor(details.cuSeqlensK));
  a.blockTable = viewOf(tensor(details.blockTable));
  MaskViews masks;
  masks.read(a, [&](diffattn::MaskOperand which) {
    return tensor(details.masks[static_cast<size_t>(which)]);
  });
  if (std::string wrong = reference::check(a); !wrong.empty())
    return m.fail(inst, wrong);
  const Array &init = m.tensors[details.init];
  SmallVector<int64_t> shape{a.q1.sizes[0], a.q1.sizes[1], a.q1.sizes[2],
                             a.v.sizes[3]};
  SmallVector<int64_t> axes(shape);
  const bool isTransposed = details.oLayout == diffattn::Layout::BTHD;
  if (isTransposed)
    std::swap(axes[1], axes[2]);
  if (init.getShape() != ArrayRef<int64_t>(axes))
    return m.fail(inst, "expected outs of shape " + describeShape(axes) +
                            ", but got " + describeShape(init.getShape()));
  // The scores of two maps, and P V.
  const __int128 steps = __int128(shape[0]) * shape[1] * shape[2] * keysOf(a) *
                         (2 * a.q1.sizes[3] + 2 * shape[3]);
  if (!m.count(static_cast<int64_t>(std::min<__int128>(steps, INT64_MAX)),
               inst.op))
    return false;
  Array array = m.create(inst, init.getElementType(), axes);
  if (!array)
    return false;
  reference::AttentionResult result = reference::attention(a);
  if (m.options.onAttention)
    m.options.onAttention(cast<diffattn::AttentionOp>(inst.op), result);
  SmallVector<Slot> rounded(result.output.size());
  const auto [part, flatPart] = details.getErrorParts(a, result);
  for (auto [slot, value, magnitude, flat] : llvm::zip_equal(
           rounded, result.output, result.magnitude, result.flatMagnitude)) {
    slot.f = value;
    if (part > 0)
      slot.f += (part * magnitude + flatPart * flat) * m.random.nextSigned();
    slot.f = roundTo(details.kind, slot.f, m.random);
  }
  SmallVector<int64_t> strides = stridesOf(axes);
  if (isTransposed)
    std::swap(strides[1], strides[2]);
  if (array.getNumElements())
    copyStrided(array.begin(), strides, rounded.data(), stridesOf(shape),
                shape);
  m.tensors[inst.dst] = std::move(array);
  return true;
}

static bool buildAttention(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::AttentionOp>(operation);
  if (!op.getResult())
    return b.unsupported(op, "expected operands that are tensors");
  if (!b.emitOp(runAttention, op))
    return false;
  auto &details = b.addDetails<Attention>(b.code->insts.back());
  auto number = [&](Value value) { return value ? b.scalar(value) : -1; };
  details.q1 = number(op.getQ1());
  details.k1 = number(op.getK1());
  details.q2 = number(op.getQ2());
  details.k2 = number(op.getK2());
  details.v = number(op.getV());
  details.lambda = number(op.getLambda());
  details.normWeight = number(op.getNormWeight());
  details.gate = number(op.getGate());
  details.cuSeqlensQ = number(op.getCuSeqlensQ());
  details.cuSeqlensK = number(op.getCuSeqlensK());
  details.blockTable = number(op.getBlockTable());
  details.masks = registersOfMasks(b, op);
  details.init = number(op.getInit());
  details.qLayout = op.getQLayout();
  details.kLayout = op.getKLayout();
  details.vLayout = op.getVLayout();
  details.oLayout = op.getOLayout();
  details.kind = b.kindOf(op.getResult().getType());
  if (b.machine.options.precision == Precision::RandomlyRounded) {
    Type element = getElementTypeOrSelf(op.getQ1().getType());
    details.moved = element.isF32()   ? reference::Element::F32
                    : element.isF16() ? reference::Element::F16
                                      : reference::Element::BF16;
  }
  reference::AttentionArguments &a = details.attributes;
  a.scale = op.getScale().convertToFloat();
  readMaskAttributes(a, op);
  if (auto softcap = op.getSoftcap())
    a.softcap = softcap->convertToFloat();
  a.lambdaSigmoid = op.getLambdaAct() == diffattn::Activation::Sigmoid;
  a.integral = op.getIntegral();
  a.rmsNorm = op.getNorm() == diffattn::Norm::RMS;
  a.normEps = op.getNormEps().convertToFloat();
  a.epsOutside = op.getNormEpsMode() == diffattn::EpsMode::Outside;
  a.outScale = op.getOutScale().convertToFloat();
  return true;
}

// --- rules about sizes

namespace {
struct Rules : Details {
  struct Axis {
    int32_t tensor;
    int64_t axis, operand;
  };
  struct Rule {
    diffattn::SizeRelation::Kind kind;
    Axis subject;
    SmallVector<Axis, 2> others;
    bool orOne;
    int64_t number;
  };
  SmallVector<Rule> rules;
};
} // namespace

static bool runSizeRules(Machine &m, const Inst &inst) {
  auto sizeOf = [&](const Rules::Axis &axis) {
    return m.tensors[axis.tensor].getShape()[axis.axis];
  };
  for (const Rules::Rule &rule : inst.as<Rules>().rules) {
    const int64_t size = sizeOf(rule.subject);
    bool holds = size >= rule.number;
    std::string wanted = "a size of at least " + std::to_string(rule.number);
    if (rule.kind == diffattn::SizeRelation::Kind::AtMost) {
      holds = size <= rule.number;
      wanted = "a size of at most " + std::to_string(rule.number);
    } else if (rule.kind == diffattn::SizeRelation::Kind::Equal) {
      holds = rule.orOne && size == 1;
      wanted = rule.orOne ? "size 1" : "";
      for (const Rules::Axis &other : rule.others) {
        holds |= size == sizeOf(other);
        wanted +=
            (wanted.empty() ? "size " : " or ") + std::to_string(sizeOf(other));
      }
    } else if (rule.kind == diffattn::SizeRelation::Kind::Divides) {
      holds = size > 0 && sizeOf(rule.others[0]) % size == 0;
      wanted = "a divisor of " + std::to_string(sizeOf(rule.others[0]));
    } else if (rule.kind == diffattn::SizeRelation::Kind::Covers) {
      const int64_t least =
          llvm::divideCeil(sizeOf(rule.others[0]), rule.number);
      holds = size >= least;
      wanted = "a size of at least " + std::to_string(least);
    }
    if (!holds)
      return m.fail(inst, "expected " + wanted + " on axis " +
                              Twine(rule.subject.axis) + " of operand " +
                              Twine(rule.subject.operand) + ", but got " +
                              Twine(size));
  }
  return true;
}

void mlir::diffattn::interpreter::emitSizeRules(CodeBuilder &b, Operation *op) {
  auto rules = std::make_unique<Rules>();
  auto read = [&](const diffattn::OperandAxis &axis) {
    const int64_t number = std::distance(
        op->operand_begin(), llvm::find(op->getOperands(), axis.operand));
    return Rules::Axis{b.scalar(axis.operand), axis.axis, number};
  };
  for (const diffattn::SizeRelation &relation :
       diffattn::getDynamicSizeRelations(op))
    rules->rules.push_back({relation.kind, read(relation.subject),
                            llvm::map_to_vector<2>(relation.others, read),
                            relation.orOne, relation.number});
  if (!rules->rules.empty())
    b.keepDetails(b.emit(runSizeRules, op), std::move(rules));
}

void mlir::diffattn::interpreter::addDiffAttnOps(OpTable &table) {
  addOnlineOps(table);
  addProductOps(table);
  table["diffattn.attention"] = buildAttention;
}
