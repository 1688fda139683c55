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
#include "DiffAttn/Testing/Reference/AttentionBackward.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>

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
/// The operands and attributes that attention and its gradients have.
struct MapsAndEnd : Details {
  reference::AttentionArguments attributes;
  diffattn::Layout qLayout, kLayout, vLayout, oLayout;
  int32_t q1, k1, q2, k2, v, lambda;
  int32_t sink = -1, sink2 = -1, normWeight = -1, gate = -1;
  int32_t cuSeqlensQ = -1, cuSeqlensK = -1, blockTable = -1;
  std::array<int32_t, std::size(diffattn::kMaskOperands)> masks;
  /// Element type of the operands if results are to be moved at random.
  std::optional<reference::Element> moved;

  template <typename Op>
  void build(CodeBuilder &b, Op op);
  /// Sets the arguments of a call, which read `views`; fails if they are wrong.
  bool read(Machine &m, const Inst &inst, reference::AttentionArguments &a,
            MaskViews &views) const;
  /// Part of its magnitude by which a result is moved that adds up `terms`: as
  /// much of what docs/numerics.md allows as other ops are off by.
  double getErrorPart(const reference::AttentionArguments &a, int64_t terms,
                      double scoreMagnitude) const {
    if (!moved)
      return 0.0;
    return reference::errorBound(*moved, a.q1.sizes[3], terms, scoreMagnitude) /
           kRandomRoundingsToBound;
  }
};

struct Attention : MapsAndEnd {
  enum Content { Output, X, Lse1, Lse2, O2 };
  struct Destination {
    Content content;
    int32_t init, result;
    FloatKind kind;
  };
  /// Destinations of the output and of the other results.
  SmallVector<Destination, 4> destinations;

  /// Parts of their magnitudes, the usual and the flat one, by which results
  /// are moved.
  std::pair<double, double>
  getErrorParts(const reference::AttentionArguments &a,
                const reference::AttentionResult &result) const {
    return {getErrorPart(a, keysOf(a), result.scoreMagnitude),
            moved ? reference::subnormalError(*moved) / kRandomRoundingsToBound
                  : 0.0};
  }
};
} // namespace

template <typename Op>
void MapsAndEnd::build(CodeBuilder &b, Op op) {
  auto number = [&](Value value) { return value ? b.scalar(value) : -1; };
  q1 = number(op.getQ1());
  k1 = number(op.getK1());
  q2 = number(op.getQ2());
  k2 = number(op.getK2());
  v = number(op.getV());
  lambda = number(op.getLambda());
  normWeight = number(op.getNormWeight());
  gate = number(op.getGate());
  cuSeqlensQ = number(op.getCuSeqlensQ());
  cuSeqlensK = number(op.getCuSeqlensK());
  blockTable = number(op.getBlockTable());
  masks = registersOfMasks(b, op);
  qLayout = op.getQLayout();
  kLayout = op.getKLayout();
  vLayout = op.getVLayout();
  oLayout = op.getOLayout();
  if (b.machine.options.precision == Precision::RandomlyRounded) {
    Type element = getElementTypeOrSelf(op.getQ1().getType());
    moved = element.isF32()   ? reference::Element::F32
            : element.isF16() ? reference::Element::F16
                              : reference::Element::BF16;
  }
  reference::AttentionArguments &a = attributes;
  a.scale = op.getScale().convertToFloat();
  readMaskAttributes(a, op);
  if (auto softcap = op.getSoftcap())
    a.softcap = softcap->convertToFloat();
  a.lambdaSigmoid = op.getLambdaAct() == diffattn::Activation::Sigmoid;
  a.rmsNorm = op.getNorm() == diffattn::Norm::RMS;
  a.normEps = op.getNormEps().convertToFloat();
  a.epsOutside = op.getNormEpsMode() == diffattn::EpsMode::Outside;
  a.outScale = op.getOutScale().convertToFloat();
}

bool MapsAndEnd::read(Machine &m, const Inst &inst,
                      reference::AttentionArguments &a,
                      MaskViews &views) const {
  auto tensor = [&](int32_t number) { return arrayOf(m, number); };
  a = attributes;
  a.q1 = viewOf(tensor(q1), qLayout);
  a.q2 = viewOf(tensor(q2), qLayout);
  a.k1 = viewOf(tensor(k1), kLayout);
  a.k2 = viewOf(tensor(k2), kLayout);
  a.v = viewOf(tensor(v), vLayout);
  a.lambda = viewOf(tensor(lambda));
  a.normWeight = viewOf(tensor(normWeight));
  a.gate = viewOf(tensor(gate), oLayout);
  a.sink = viewOf(tensor(sink));
  a.sink2 = viewOf(tensor(sink2));
  a.cuSeqlensQ = viewOf(tensor(cuSeqlensQ));
  a.cuSeqlensK = viewOf(tensor(cuSeqlensK));
  a.blockTable = viewOf(tensor(blockTable));
  views.read(a, [&](diffattn::MaskOperand which) {
    return tensor(masks[static_cast<size_t>(which)]);
  });
  if (std::string wrong = reference::check(a); !wrong.empty())
    return m.fail(inst, wrong);
  return true;
}

/// Writes `rounded`, dense with the axes of layout bhtd and sizes `shape`, to
/// an array in `layout`.
static void storeDense(Array &array, ArrayRef<Slot> rounded,
                       ArrayRef<int64_t> shape, diffattn::Layout layout) {
  if (rounded.empty())
    return;
  SmallVector<int64_t> strides = stridesOf(array.getShape());
  if (layout == diffattn::Layout::BTHD)
    std::swap(strides[1], strides[2]);
  copyStrided(array.begin(), strides, rounded.data(), stridesOf(shape), shape);
}

/// A destination of a number for each row, and none of a layout.
static bool isOfRows(Attention::Content content) {
  return content == Attention::Lse1 || content == Attention::Lse2;
}

/// The sizes of a destination, with axes as in layout bhtd.
static SmallVector<int64_t> shapeOf(Attention::Content content,
                                    const reference::AttentionArguments &a) {
  SmallVector<int64_t> shape{a.q1.sizes[0],
                             content == Attention::Lse2 ? a.noiseHeads()
                                                        : a.q1.sizes[1],
                             a.q1.sizes[2]};
  if (!isOfRows(content))
    shape.push_back(a.v.sizes[3]);
  return shape;
}

namespace {
/// Numbers that attention computed for one destination, each with both
/// magnitudes by which it is moved.
struct Computed {
  std::vector<double> numbers, magnitudes, flatMagnitudes;
};
} // namespace

static Computed getComputed(Attention::Content content,
                            const reference::AttentionResult &result) {
  // An error of the scores, or a relative one of the sum, is one of the
  // logarithm itself.
  auto ofRows = [](const std::vector<double> &lse) {
    std::vector<double> magnitudes;
    for (double number : lse)
      magnitudes.push_back(std::isinf(number) ? 0.0 : 1.0 + std::fabs(number));
    return Computed{lse, magnitudes, std::vector<double>(lse.size(), 0.0)};
  };
  switch (content) {
  case Attention::Output:
    return {result.output, result.magnitude, result.flatMagnitude};
  case Attention::X:
    return {result.x, result.xMagnitude, result.xFlatMagnitude};
  case Attention::Lse1:
    return ofRows(result.lse1);
  case Attention::Lse2:
    return ofRows(result.lse2);
  case Attention::O2:
    return {result.o2, result.o2Magnitude, result.o2FlatMagnitude};
  }
  llvm_unreachable("unknown content");
}

static bool runAttention(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Attention>();
  reference::AttentionArguments a;
  MaskViews masks;
  if (!details.read(m, inst, a, masks))
    return false;
  auto layoutOf = [&](const Attention::Destination &to) {
    return isOfRows(to.content) ? diffattn::Layout::BHTD : details.oLayout;
  };
  auto axesOf = [&](const Attention::Destination &to) {
    SmallVector<int64_t> axes = shapeOf(to.content, a);
    if (layoutOf(to) == diffattn::Layout::BTHD)
      std::swap(axes[1], axes[2]);
    return axes;
  };
  for (const Attention::Destination &to : details.destinations)
    if (ArrayRef<int64_t> got = m.tensors[to.init].getShape();
        got != ArrayRef<int64_t>(axesOf(to)))
      return m.fail(inst, "expected outs of shape " +
                              describeShape(axesOf(to)) + ", but got " +
                              describeShape(got));
  // The scores of each map, and P V.
  const int64_t maps = a.hasSecondMap() ? 2 : 1;
  const __int128 steps = __int128(a.q1.sizes[0]) * a.q1.sizes[1] *
                         a.q1.sizes[2] * keysOf(a) * maps *
                         (a.q1.sizes[3] + a.v.sizes[3]);
  if (!m.count(static_cast<int64_t>(std::min<__int128>(steps, INT64_MAX)),
               inst.op))
    return false;
  SmallVector<Array, 4> arrays;
  for (const Attention::Destination &to : details.destinations)
    if (!arrays.emplace_back(
            m.create(inst, m.tensors[to.init].getElementType(), axesOf(to))))
      return false;
  reference::AttentionResult result = reference::attention(a);
  if (m.options.onAttention)
    m.options.onAttention(cast<diffattn::AttentionOp>(inst.op), result);
  const auto parts = details.getErrorParts(a, result);
  for (auto [to, array] : llvm::zip_equal(details.destinations, arrays)) {
    const Computed computed = getComputed(to.content, result);
    SmallVector<Slot> rounded(computed.numbers.size());
    for (auto [slot, value, magnitude, flat] :
         llvm::zip_equal(rounded, computed.numbers, computed.magnitudes,
                         computed.flatMagnitudes)) {
      slot.f = value;
      if (parts.first > 0)
        slot.f += (parts.first * magnitude + parts.second * flat) *
                  m.random.nextSigned();
      slot.f = roundTo(to.kind, slot.f, m.random);
    }
    storeDense(array, rounded, shapeOf(to.content, a), layoutOf(to));
    m.tensors[to.result] = std::move(array);
  }
  return true;
}

static bool buildAttention(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::AttentionOp>(operation);
  if (!op.getResult())
    return b.unsupported(op, "expected operands that are tensors");
  SmallVector<Register> results;
  if (!b.define(op.getResults(), &results))
    return false;
  auto &details = b.addDetails<Attention>(b.emit(runAttention, op));
  details.build(b, op);
  details.attributes.integral = op.getIntegral();
  for (auto [operand, number] : {std::pair(op.getSink(), &details.sink),
                                 {op.getSink2(), &details.sink2}})
    if (operand)
      *number = b.scalar(operand);
  // In the order of the results.
  for (auto [content, init] : {std::pair(Attention::Output, op.getInit()),
                               {Attention::X, op.getX()},
                               {Attention::Lse1, op.getLse1()},
                               {Attention::Lse2, op.getLse2()},
                               {Attention::O2, op.getO2()}})
    if (init)
      details.destinations.push_back(
          {content, b.scalar(init), results[details.destinations.size()].number,
           b.kindOf(init.getType())});
  return true;
}

// --- gradients of attention

namespace {
struct AttentionBackward : MapsAndEnd {
  struct Destination {
    reference::Gradient reference::AttentionGradients::*gradient;
    diffattn::Layout layout;
    FloatKind kind;
    int32_t init, result;
  };
  int32_t dOut;
  bool sharesKeys;
  SmallVector<Destination> destinations;
};
} // namespace

static reference::Gradient add(const reference::Gradient &a,
                               const reference::Gradient &b) {
  reference::Gradient sum = a;
  for (auto [to, from] : llvm::zip_equal(sum.values, b.values))
    to += from;
  for (auto [to, from] : llvm::zip_equal(sum.magnitudes, b.magnitudes))
    to += from;
  return sum;
}

static bool runAttentionBackward(Machine &m, const Inst &inst) {
  const auto &details = inst.as<AttentionBackward>();
  reference::AttentionArguments a;
  MaskViews masks;
  if (!details.read(m, inst, a, masks))
    return false;
  const reference::View dOut =
      viewOf(arrayOf(m, details.dOut), details.oLayout);
  // The scores of each map and its two gradients, X, d_v and dP.
  const int64_t maps = a.hasSecondMap() ? 2 : 1;
  const int64_t rows = a.q1.sizes[0] * a.q1.sizes[1] * a.q1.sizes[2];
  const __int128 steps = __int128(rows) * keysOf(a) *
                         (3 * maps * a.q1.sizes[3] + 3 * a.v.sizes[3]);
  if (!m.count(static_cast<int64_t>(std::min<__int128>(steps, INT64_MAX)),
               inst.op))
    return false;
  reference::AttentionGradients gradients =
      reference::attentionBackward(a, dOut);
  if (details.sharesKeys)
    gradients.k1 = add(gradients.k1, gradients.k2);
  double part = 0.0;
  if (details.moved)
    part = details.getErrorPart(a, std::max(keysOf(a), rows),
                                reference::attention(a).scoreMagnitude);
  for (const AttentionBackward::Destination &destination :
       details.destinations) {
    const reference::Gradient &gradient = gradients.*destination.gradient;
    const Array &init = m.tensors[destination.init];
    SmallVector<int64_t> axes(init.getShape()), shape = axes;
    if (destination.layout == diffattn::Layout::BTHD)
      std::swap(shape[1], shape[2]);
    Array array = m.create(inst, init.getElementType(), axes);
    if (!array)
      return false;
    SmallVector<Slot> rounded(gradient.values.size());
    for (auto [slot, value, magnitude] :
         llvm::zip_equal(rounded, gradient.values, gradient.magnitudes)) {
      slot.f = value;
      if (part > 0)
        slot.f += part * magnitude * m.random.nextSigned();
      slot.f = roundTo(destination.kind, slot.f, m.random);
    }
    storeDense(array, rounded, shape, destination.layout);
    m.tensors[destination.result] = std::move(array);
  }
  return true;
}

static bool buildAttentionBackward(CodeBuilder &b, Operation *operation) {
  using Gradients = reference::AttentionGradients;
  auto op = cast<diffattn::AttentionBackwardOp>(operation);
  if (op.getResults().empty())
    return b.unsupported(op, "expected operands that are tensors");
  emitSizeRules(b, op);
  SmallVector<Register> results;
  if (!b.define(op.getResults(), &results))
    return false;
  auto &details =
      b.addDetails<AttentionBackward>(b.emit(runAttentionBackward, op));
  details.build(b, op);
  details.dOut = b.scalar(op.getDOut());
  details.sharesKeys = op.getK1() == op.getK2();
  auto add = [&](Value init, reference::Gradient Gradients::*gradient,
                 diffattn::Layout layout = diffattn::Layout::BHTD) {
    if (init)
      details.destinations.push_back(
          {gradient, layout, b.kindOf(init.getType()), b.scalar(init),
           results[details.destinations.size()].number});
  };
  // In the order of the results.
  add(op.getDQ1(), &Gradients::q1, op.getQLayout());
  add(op.getDK1(), &Gradients::k1, op.getKLayout());
  add(op.getDQ2(), &Gradients::q2, op.getQLayout());
  add(op.getDK2(), &Gradients::k2, op.getKLayout());
  add(op.getDV(), &Gradients::v, op.getVLayout());
  add(op.getDLambda(), &Gradients::lambda);
  add(op.getDBias(), &Gradients::bias);
  add(op.getDNormWeight(), &Gradients::normWeight);
  add(op.getDGate(), &Gradients::gate, op.getOLayout());
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
    std::string expected = "a size of at least " + std::to_string(rule.number);
    if (rule.kind == diffattn::SizeRelation::Kind::AtMost) {
      holds = size <= rule.number;
      expected = "a size of at most " + std::to_string(rule.number);
    } else if (rule.kind == diffattn::SizeRelation::Kind::Equal) {
      holds = rule.orOne && size == 1;
      expected = rule.orOne ? "size 1" : "";
      for (const Rules::Axis &other : rule.others) {
        holds |= size == sizeOf(other);
        expected += (expected.empty() ? "size " : " or ") +
                    std::to_string(sizeOf(other));
      }
    } else if (rule.kind == diffattn::SizeRelation::Kind::Divides) {
      holds = size > 0 && sizeOf(rule.others[0]) % size == 0;
      expected = "a divisor of " + std::to_string(sizeOf(rule.others[0]));
    } else if (rule.kind == diffattn::SizeRelation::Kind::Covers) {
      const int64_t least =
          llvm::divideCeil(sizeOf(rule.others[0]), rule.number);
      holds = size >= least;
      expected = "a size of at least " + std::to_string(least);
    }
    if (!holds)
      return m.fail(inst, "expected " + expected + " on axis " +
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
  table["diffattn.attention_backward"] = buildAttentionBackward;
}
