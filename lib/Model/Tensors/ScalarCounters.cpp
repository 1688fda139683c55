//===- ScalarCounters.cpp - loop counters that are tensors, as numbers ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/SetVector.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SCALARCOUNTERSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

/// A tensor of one integer, without axes.
static bool isInteger(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.getRank() == 0 &&
         tensor.getElementType().isSignlessIntOrIndex();
}

namespace {
/// Which integers follow from constants, sizes and scalar arguments alone, and
/// those integers as scalars.
class Counters {
public:
  explicit Counters(func::FuncOp function) : function(function) {}
  void run();

private:
  /// Where what a loop carries comes from.
  static SmallVector<Value> getSources(Value carried);
  void collect();
  bool isKnown(Value value);
  bool isComputedFromKnown(Operation *op);
  void makeScalars(scf::WhileOp loop);
  void makeScalar(Value carried, OpBuilder &after);
  /// Has `operand` give the scalar of the tensor that it gives.
  void giveScalar(OpOperand &operand);
  Value scalarOf(Value tensor);

  func::FuncOp function;
  SmallVector<scf::WhileOp> loops;
  /// Taken to be known until a source is found that is not.
  llvm::SetVector<Value> carried;
  DenseMap<Value, bool> known;
  DenseMap<Value, Value> scalars;
};
} // namespace

SmallVector<Value> Counters::getSources(Value carried) {
  if (auto result = dyn_cast<OpResult>(carried))
    return {cast<scf::WhileOp>(result.getOwner())
                .getConditionOp()
                .getArgs()[result.getResultNumber()]};
  auto argument = cast<BlockArgument>(carried);
  auto loop = cast<scf::WhileOp>(argument.getOwner()->getParentOp());
  const unsigned number = argument.getArgNumber();
  if (argument.getOwner() == loop.getAfterBody())
    return {loop.getConditionOp().getArgs()[number]};
  return {loop.getInits()[number], loop.getYieldOp().getOperand(number)};
}

void Counters::collect() {
  function.walk<WalkOrder::PreOrder>([&](scf::WhileOp loop) {
    loops.push_back(loop);
    for (ValueRange values :
         {ValueRange(loop.getBeforeArguments()),
          ValueRange(loop.getAfterArguments()), ValueRange(loop.getResults())})
      for (Value value : values)
        if (isInteger(value.getType()))
          carried.insert(value);
  });
  bool changed = true;
  while (changed) {
    known.clear();
    changed = carried.remove_if([&](Value value) {
      return !llvm::all_of(getSources(value),
                           [&](Value source) { return isKnown(source); });
    });
  }
  known.clear();
}

bool Counters::isKnown(Value value) {
  if (carried.contains(value))
    return true;
  auto [at, isNew] = known.try_emplace(value, false);
  if (!isNew)
    return at->second;
  bool result = false;
  if (Operation *op = value.getDefiningOp()) {
    result = (value.getType().isSignlessIntOrIndex() ||
              isInteger(value.getType())) &&
             isComputedFromKnown(op);
  } else {
    auto argument = cast<BlockArgument>(value);
    Operation *parent = argument.getOwner()->getParentOp();
    const bool isCounter =
        isa<scf::ForOp>(parent) && argument.getArgNumber() == 0;
    result = value.getType().isSignlessIntOrIndex() &&
             (parent == function || isCounter);
  }
  return known[value] = result;
}

bool Counters::isComputedFromKnown(Operation *op) {
  auto areKnown = [&](ValueRange values) {
    return llvm::all_of(values, [&](Value value) { return isKnown(value); });
  };
  if (isa<tensor::DimOp>(op))
    return true;
  if (auto constant = dyn_cast<arith::ConstantOp>(op))
    return isa<IntegerAttr, DenseElementsAttr>(constant.getValue());
  if (auto extract = dyn_cast<tensor::ExtractOp>(op))
    return isKnown(extract.getTensor());
  if (isa<tensor::FromElementsOp>(op))
    return areKnown(op->getOperands());
  if (auto generic = dyn_cast<linalg::GenericOp>(op)) {
    if (generic.getNumLoops() || !areKnown(generic.getInputs()) ||
        llvm::any_of(generic.getRegionOutputArgs(),
                     [](BlockArgument old) { return !old.use_empty(); }))
      return false;
    llvm::SetVector<Value> above;
    getUsedValuesDefinedAbove(generic.getRegion(), above);
    return areKnown(above.getArrayRef()) &&
           llvm::all_of(
               generic.getBody()->without_terminator(), [](Operation &inner) {
                 return isMemoryEffectFree(&inner) && !inner.getNumRegions() &&
                        !isa<tensor::ExtractOp>(inner);
               });
  }
  return isa<arith::ArithDialect>(op->getDialect()) &&
         areKnown(op->getOperands());
}

Value Counters::scalarOf(Value tensor) {
  if (Value known = scalars.lookup(tensor))
    return known;
  Operation *op = tensor.getDefiningOp();
  OpBuilder b(op);
  b.setInsertionPointAfter(op);
  Value result;
  if (auto from = dyn_cast<tensor::FromElementsOp>(op)) {
    result = from.getElements().front();
  } else if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    auto number =
        cast<DenseElementsAttr>(constant.getValue()).getSplatValue<TypedAttr>();
    result = arith::ConstantOp::create(b, op->getLoc(), number);
  } else if (auto generic = dyn_cast<linalg::GenericOp>(op)) {
    IRMapping mapping;
    Block *body = generic.getBody();
    for (auto [argument, input] :
         llvm::zip(body->getArguments(), generic.getInputs()))
      mapping.map(argument,
                  isa<TensorType>(input.getType()) ? scalarOf(input) : input);
    for (Operation &inner : body->without_terminator())
      b.clone(inner, mapping);
    for (auto [value, yielded] : llvm::zip_equal(
             generic.getResults(), body->getTerminator()->getOperands()))
      scalars[value] = mapping.lookupOrDefault(yielded);
    return scalars[tensor];
  } else {
    // An operation on tensors of one element, element by element.
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      operands.push_back(isa<TensorType>(operand.getType()) ? scalarOf(operand)
                                                            : operand);
    OperationState state(op->getLoc(), op->getName());
    state.addOperands(operands);
    state.addTypes(getElementTypeOrSelf(tensor.getType()));
    state.addAttributes(op->getAttrDictionary().getValue());
    result = b.create(state)->getResult(0);
  }
  return scalars[tensor] = result;
}

void Counters::makeScalar(Value value, OpBuilder &after) {
  auto type = cast<RankedTensorType>(value.getType());
  value.setType(type.getElementType());
  auto tensor = tensor::FromElementsOp::create(after, value.getLoc(), type,
                                               ValueRange(value));
  value.replaceAllUsesExcept(tensor, tensor);
  scalars[tensor] = value;
}

void Counters::giveScalar(OpOperand &operand) {
  OpBuilder b(operand.getOwner());
  operand.set(tensor::ExtractOp::create(b, operand.getOwner()->getLoc(),
                                        operand.get(), ValueRange()));
}

void Counters::makeScalars(scf::WhileOp loop) {
  auto change = [&](ValueRange values, OpBuilder after,
                    function_ref<void(unsigned)> give) {
    for (auto [number, value] : llvm::enumerate(values))
      if (carried.contains(value)) {
        give(number);
        makeScalar(value, after);
      }
  };
  change(loop.getBeforeArguments(),
         OpBuilder::atBlockBegin(loop.getBeforeBody()), [&](unsigned number) {
           giveScalar(loop.getInitsMutable()[number]);
           giveScalar(loop.getYieldOp()->getOpOperand(number));
         });
  // Arguments and results are the same numbers, so both are carried or none.
  change(loop.getAfterArguments(), OpBuilder::atBlockBegin(loop.getAfterBody()),
         [&](unsigned number) {
           giveScalar(loop.getConditionOp().getArgsMutable()[number]);
         });
  OpBuilder after(loop);
  after.setInsertionPointAfter(loop);
  change(loop.getResults(), after, [](unsigned) {});
}

void Counters::run() {
  collect();
  for (scf::WhileOp loop : loops)
    makeScalars(loop);
  if (carried.empty())
    return;
  // The values that were carried are scalars now, and known as they were.
  SmallVector<tensor::ExtractOp> reads;
  function.walk([&](tensor::ExtractOp read) {
    if (read.getIndices().empty() && isKnown(read.getTensor()))
      reads.push_back(read);
  });
  for (tensor::ExtractOp read : reads) {
    read.replaceAllUsesWith(scalarOf(read.getTensor()));
    read.erase();
  }
}

namespace {
struct ScalarCountersPass final
    : diffattn::impl::ScalarCountersPassBase<ScalarCountersPass> {
  void runOnOperation() override { Counters(getOperation()).run(); }
};
} // namespace
