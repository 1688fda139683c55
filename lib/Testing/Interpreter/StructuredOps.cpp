//===- StructuredOps.cpp - linalg ops by maps and regions -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A structured op is a nest of loops, whose sizes are those of the operands,
// and a region that is run for each element in the order of the loops. A map
// that is linear in the loops becomes one stride a loop; others are evaluated.
//
//===----------------------------------------------------------------------===//
#include "Strided.h"
#include "StructuredOp.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

// --- maps

/// Adds `expr` times `factor` to `linear`; false if it is not linear.
static bool addLinear(AffineExpr expr, int64_t factor, LinearExpr &linear) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
    linear.factors[dim.getPosition()] += factor;
    return true;
  }
  if (auto constant = dyn_cast<AffineConstantExpr>(expr)) {
    linear.constant += factor * constant.getValue();
    return true;
  }
  auto binary = dyn_cast<AffineBinaryOpExpr>(expr);
  if (!binary)
    return false;
  if (expr.getKind() == AffineExprKind::Add)
    return addLinear(binary.getLHS(), factor, linear) &&
           addLinear(binary.getRHS(), factor, linear);
  auto constant = dyn_cast<AffineConstantExpr>(binary.getRHS());
  return expr.getKind() == AffineExprKind::Mul && constant &&
         addLinear(binary.getLHS(), factor * constant.getValue(), linear);
}

static void readMap(AffineMap map, StructuredOperand &operand) {
  operand.map = map;
  for (AffineExpr expr : map.getResults()) {
    LinearExpr linear;
    linear.factors.assign(map.getNumDims(), 0);
    if (!addLinear(expr, 1, linear)) {
      operand.linear.clear();
      operand.isLinear = false;
      return;
    }
    operand.linear.push_back(std::move(linear));
  }
}

// --- building

/// The first axis of an operand that is a loop alone gives its size.
static bool findLoopSizes(linalg::LinalgOp op, StructuredOp &details) {
  details.loopSizes.resize(op.getNumLoops());
  for (auto [number, map] : llvm::enumerate(op.getIndexingMapsArray()))
    for (auto [axis, expr] : llvm::enumerate(map.getResults()))
      if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
        LoopSize &size = details.loopSizes[dim.getPosition()];
        if (size.operand < 0)
          size = {static_cast<int32_t>(number), static_cast<int32_t>(axis)};
      }
  return llvm::all_of(details.loopSizes,
                      [](const LoopSize &size) { return size.operand >= 0; });
}

bool mlir::diffattn::interpreter::buildStructuredOp(CodeBuilder &b,
                                                    Operation *operation) {
  auto op = cast<linalg::LinalgOp>(operation);
  if (!op.hasPureTensorSemantics())
    return b.unsupported(op, "expected operands that are tensors");
  auto details = std::make_unique<StructuredOp>();
  Block &body = *op.getBlock();
  if (!findLoopSizes(op, *details))
    return b.unsupported(op, "expected each loop to be an axis of an operand");
  if (!b.define(body.getArguments()))
    return false;
  for (OpOperand &use : op->getOpOperands()) {
    StructuredOperand operand;
    readMap(op.getMatchingIndexingMap(&use), operand);
    Register from = b.get(use.get());
    operand.isTensor = from.isTensor;
    operand.number = from.number;
    if (use.getOperandNumber() < body.getNumArguments()) {
      BlockArgument argument = body.getArgument(use.getOperandNumber());
      operand.inside = b.scalar(argument);
      operand.isRead = !argument.use_empty();
    }
    details->operands.push_back(std::move(operand));
  }
  details->numInputs = op.getNumDpsInputs();
  // Code of linalg.index sets these.
  for (unsigned loop = 0; loop < op.getNumLoops(); ++loop)
    details->indices.push_back(-1);
  body.walk([&](linalg::IndexOp index) {
    int32_t &number = details->indices[index.getDim()];
    if (number < 0)
      number = b.newScalar();
    b.alias(index.getResult(), {number, false});
  });
  auto terminate = [&](Operation *yield) {
    for (Value value : yield->getOperands())
      details->yielded.push_back(b.scalar(value));
    return true;
  };
  if (!b.buildBlock(body, details->body, terminate))
    return false;
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    Register register_;
    if (!b.define(result, register_))
      return false;
    details->results.push_back(register_.number);
    StructuredOperand &init = details->operands[details->numInputs + i];
    Value value = op.getDpsInits()[i];
    if (llvm::none_of(value.getUsers(), [&](Operation *user) {
          return op->isProperAncestor(user);
        }))
      details->released.push_back(init.number);
    // Every element is written, and nothing of what was there is read.
    details->isOverwritten.push_back(!init.isRead && init.map.isPermutation());
  }
  details->product = findProduct(op, *details, b);
  b.keepDetails(b.emit(runStructuredOp, operation), std::move(details));
  return true;
}

static bool buildIndex(CodeBuilder &, Operation *) { return true; }

// --- softmax

namespace {
struct Softmax : Details {
  int64_t axis = 0;
  FloatKind kind = FloatKind::F64;
};
} // namespace

static bool runSoftmax(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Softmax>();
  const Array input = m.tensors[inst.a];
  if (input.getShape() != m.tensors[inst.b].getShape())
    return m.fail(inst, "expected operands of one shape, but got " +
                            describeShape(input.getShape()) + " and " +
                            describeShape(m.tensors[inst.b].getShape()));
  Array array = m.create(inst, input.getElementType(), input.getShape());
  if (!array || !m.count(4 * input.getNumElements(), inst.op))
    return false;
  const int64_t size = input.getShape()[details.axis];
  const int64_t stride = stridesOf(input.getShape())[details.axis];
  for (int64_t i = 0; i < input.getNumElements(); ++i) {
    if (i / stride % size)
      continue; // not the first of its row
    const Slot *from = input.begin() + i;
    Slot *to = array.begin() + i;
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < size; ++j)
      // A NaN stays the maximum.
      if (!(from[j * stride].f <= max) && !std::isnan(max))
        max = from[j * stride].f;
    for (int64_t j = 0; j < size; ++j) {
      const double distance =
          roundTo(details.kind, from[j * stride].f - max, m.random);
      to[j * stride].f = roundTo(details.kind, std::exp(distance), m.random);
      sum = roundTo(details.kind, sum + to[j * stride].f, m.random);
    }
    for (int64_t j = 0; j < size; ++j)
      to[j * stride].f =
          roundTo(details.kind, to[j * stride].f / sum, m.random);
  }
  m.tensors[inst.dst] = std::move(array);
  return true;
}
static bool buildSoftmax(CodeBuilder &b, Operation *op) {
  auto softmax = cast<linalg::SoftmaxOp>(op);
  if (!softmax.hasPureTensorSemantics() ||
      !isa<FloatType>(getElementTypeOrSelf(softmax.getInput().getType())))
    return b.unsupported(op, "expected tensors of floats");
  if (!b.emitOp(runSoftmax, op))
    return false;
  auto &details = b.addDetails<Softmax>(b.code->insts.back());
  details.axis = softmax.getDimension();
  details.kind = b.kindOf(softmax.getInput().getType());
  return true;
}

void mlir::diffattn::interpreter::addLinalgOps(OpTable &table) {
  table["linalg.index"] = buildIndex;
  table["linalg.softmax"] = buildSoftmax;
}
