//===- CodeBuilder.cpp - from functions to register programs --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"
#include "ElementBody.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

static OpTable makeTable() {
  OpTable table;
  addIntegerOps(table);
  addFloatOps(table);
  addCastOps(table);
  addMathOps(table);
  addAffineOps(table);
  addControlFlowOps(table);
  addTensorOps(table);
  addTensorSliceOps(table);
  addWeightOps(table);
  addLinalgOps(table);
  addDiffAttnOps(table);
  return table;
}

static BuildOp findBuilder(Operation *op) {
  static const OpTable table = makeTable();
  if (BuildOp builder = table.lookup(op->getName().getStringRef()))
    return builder;
  return isa<linalg::LinalgOp>(op) ? buildStructuredOp : nullptr;
}

int32_t CodeBuilder::newScalar(Slot value) {
  function.scalars.push_back(value);
  return static_cast<int32_t>(function.scalars.size() - 1);
}

int32_t CodeBuilder::newTensor(Array value) {
  function.tensors.push_back(std::move(value));
  return static_cast<int32_t>(function.tensors.size() - 1);
}

bool CodeBuilder::define(Value value, Register &result) {
  Type type = value.getType();
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!isKnownElementType(tensor ? tensor.getElementType() : type)) {
    std::string text;
    llvm::raw_string_ostream(text) << type;
    Operation *op = value.getDefiningOp();
    return unsupported(op ? op : value.getParentBlock()->getParentOp(),
                       "expected scalars and ranked tensors of f64, f32, f16, "
                       "bf16, index or integers of at most 64 bits, but got " +
                           text);
  }
  result = tensor && !onElements ? Register{newTensor(), true}
                                 : Register{newScalar(), false};
  registers[value] = result;
  return true;
}

bool CodeBuilder::define(ValueRange values,
                         SmallVectorImpl<Register> *results) {
  for (Value value : values) {
    Register result;
    if (!define(value, result))
      return false;
    if (results)
      results->push_back(result);
  }
  return true;
}

Operand CodeBuilder::operand(OpFoldResult value) const {
  if (auto constant = getConstantIntValue(value))
    return {*constant, -1};
  return {0, scalar(cast<Value>(value))};
}

SmallVector<Operand>
CodeBuilder::operands(ArrayRef<OpFoldResult> values) const {
  return llvm::map_to_vector(
      values, [&](OpFoldResult value) { return operand(value); });
}

SmallVector<Register> CodeBuilder::get(ValueRange values) const {
  return llvm::map_to_vector(values, [&](Value value) { return get(value); });
}

Inst &CodeBuilder::emit(Handler run, Operation *op) {
  Inst &inst = code->insts.emplace_back();
  inst.run = run;
  inst.op = op;
  return inst;
}

bool CodeBuilder::emitOp(Handler run, Operation *op, int64_t imm) {
  Register result;
  if (!define(op->getResult(0), result))
    return false;
  Inst &inst = emit(run, op);
  inst.dst = result.number;
  inst.imm = imm;
  int32_t *numbers[] = {&inst.a, &inst.b, &inst.c};
  for (auto [value, number] : llvm::zip(op->getOperands(), numbers))
    *number = scalar(value);
  return true;
}

namespace {
struct Moves : Details {
  SmallVector<Register> from, to;
};
} // namespace

static bool runMoves(Machine &m, const Inst &inst) {
  const Moves &moves = inst.as<Moves>();
  // All are read before one is written; a tensor that is moved twice is shared.
  SmallVector<Slot> scalars;
  SmallVector<Array> tensors;
  for (Register from : moves.from) {
    if (from.isTensor)
      tensors.push_back(m.tensors[from.number]);
    else
      scalars.push_back(m.scalars[from.number]);
  }
  for (int32_t number : inst.dying)
    m.tensors[number] = Array();
  size_t scalar = 0, tensor = 0;
  for (Register to : moves.to) {
    if (to.isTensor)
      m.tensors[to.number] = std::move(tensors[tensor++]);
    else
      m.scalars[to.number] = scalars[scalar++];
  }
  return true;
}

void CodeBuilder::emitMoves(ValueRange from, ArrayRef<Register> to,
                            Operation *op) {
  Inst &inst = emit(runMoves, op);
  auto &moves = addDetails<Moves>(inst);
  moves.from = get(from);
  moves.to.assign(to.begin(), to.end());
  SmallVector<int32_t> ended;
  llvm::erase_if(pending, [&](Value value) {
    const bool ends = llvm::is_contained(from, value) &&
                      llvm::all_of(value.getUsers(), [&](Operation *user) {
                        return user == op || !op->isProperAncestor(user);
                      });
    const Register ending = get(value);
    // A register in `to` is overwritten, and lives after the move.
    if (ends && llvm::none_of(to, [&](Register other) {
          return other.isTensor && other.number == ending.number;
        }))
      ended.push_back(ending.number);
    return ends;
  });
  inst.dying = keepList(std::move(ended));
}

ArrayRef<int32_t> CodeBuilder::keepList(SmallVector<int32_t> numbers) {
  if (numbers.empty())
    return {};
  function.dyingLists.push_back(
      std::make_unique<SmallVector<int32_t>>(std::move(numbers)));
  return *function.dyingLists.back();
}

FloatKind CodeBuilder::kindOf(Type type) const {
  Type element = getElementTypeOrSelf(type);
  if (isExact() || element.isF64())
    return FloatKind::F64;
  if (machine.options.precision == Precision::AsWritten)
    return element.isF32()   ? FloatKind::F32
           : element.isF16() ? FloatKind::F16
                             : FloatKind::BF16;
  return element.isF32()   ? FloatKind::RandomF32
         : element.isF16() ? FloatKind::RandomF16
                           : FloatKind::RandomBF16;
}

/// Finds for each tensor that `block` defines the op of the block that reads it
/// last, itself or in a region.
void CodeBuilder::listLastReads(Block &block) {
  auto list = [&](Value value) {
    if (!isa<RankedTensorType>(value.getType()) || kept.contains(value))
      return;
    Operation *last = value.getDefiningOp();
    // Constants are set once for all runs of the block.
    if (last && last->hasTrait<OpTrait::ConstantLike>())
      return;
    for (Operation *user : value.getUsers()) {
      Operation *here = block.findAncestorOpInBlock(*user);
      if (!last || last->isBeforeInBlock(here))
        last = here;
    }
    if (last)
      lastReads[last].push_back(value);
  };
  for (Value argument : block.getArguments())
    list(argument);
  for (Operation &op : block)
    for (Value result : op.getResults())
      list(result);
}

static bool doNothing(Machine &, const Inst &) { return true; }

bool CodeBuilder::buildBlock(Block &block, Code &into,
                             llvm::function_ref<bool(Operation *)> terminate) {
  Code *outer = code;
  SmallVector<Value> outerPending = std::move(pending);
  code = &into;
  listLastReads(block);
  bool built = true;
  for (Operation &op : block) {
    pending = lastReads.lookup(&op);
    const bool isLast = &op == block.getTerminator();
    built = isLast ? terminate(&op) : buildOp(op);
    if (!built)
      break;
    if (pending.empty())
      continue;
    if (code->insts.empty() || code->insts.back().op != &op ||
        !code->insts.back().dying.empty())
      emit(doNothing, &op);
    code->insts.back().dying = keepList(llvm::map_to_vector(
        pending, [&](Value value) { return get(value).number; }));
  }
  code = outer;
  pending = std::move(outerPending);
  return built;
}

bool CodeBuilder::buildOp(Operation &op) {
  BuildOp builder = findBuilder(&op);
  if (!builder)
    return unsupported(&op, "expected an op that the interpreter knows, but "
                            "got '" +
                                op.getName().getStringRef() + "'");
  auto isTensor = llvm::IsaPred<RankedTensorType>;
  auto select = dyn_cast<arith::SelectOp>(op);
  const bool isElementwise =
      OpTrait::hasElementwiseMappableTraits(&op) &&
      llvm::any_of(op.getOperandTypes(), isTensor) &&
      (!select || isTensor(select.getCondition().getType()));
  return isElementwise ? buildOnTensors(op) : builder(*this, &op);
}

namespace {
/// An elementwise op on tensors: a body on one element, and what it reads.
struct OnTensors : Details {
  Code body;
  struct Tensor {
    int32_t tensor, scalar;
  };
  SmallVector<Tensor> operands, results;
  SmallVector<Type> resultTypes;
};
} // namespace

static bool runOnTensors(Machine &m, const Inst &inst) {
  const auto &details = inst.as<OnTensors>();
  const Array &first = m.tensors[details.operands.front().tensor];
  SmallVector<const Slot *> from;
  for (auto operand : details.operands) {
    const Array &array = m.tensors[operand.tensor];
    if (array.getShape() != first.getShape())
      return m.fail(inst, "expected operands of one shape, but got " +
                              describeShape(first.getShape()) + " and " +
                              describeShape(array.getShape()));
    from.push_back(array.begin());
  }
  const int64_t count = first.getNumElements();
  if (!m.count(stepsOf(details.body, count), inst.op))
    return false;
  SmallVector<Array> results;
  SmallVector<Slot *> to;
  for (Type type : details.resultTypes) {
    results.push_back(m.create(inst, type, first.getShape()));
    if (!results.back())
      return false;
    to.push_back(results.back().begin());
  }
  for (int64_t i = 0; i < count; ++i) {
    for (auto [operand, slots] : llvm::zip_equal(details.operands, from))
      m.scalars[operand.scalar] = slots[i];
    if (!m.runCounted(details.body))
      return false;
    for (auto [result, slots] : llvm::zip_equal(details.results, to))
      slots[i] = m.scalars[result.scalar];
  }
  for (auto [result, array] : llvm::zip_equal(details.results, results))
    m.tensors[result.tensor] = std::move(array);
  return true;
}

/// Builds an elementwise op for one element: its tensors have scalar registers
/// meanwhile.
bool CodeBuilder::buildOnTensors(Operation &op) {
  Code *outer = code;
  auto details = std::make_unique<OnTensors>();
  llvm::SmallMapVector<Value, Register, 4> kept;
  for (Value operand : op.getOperands()) {
    Register before = get(operand);
    if (!before.isTensor || !kept.insert({operand, before}).second)
      continue;
    Register inside{newScalar(), false};
    details->operands.push_back({before.number, inside.number});
    registers[operand] = inside;
  }
  code = &details->body;
  onElements = true;
  bool built = findBuilder(&op)(*this, &op);
  code = outer;
  onElements = false;
  for (auto [value, before] : kept)
    registers[value] = before;
  for (Value result : op.getResults()) {
    const int32_t inside = scalar(result);
    Register register_;
    built = built && define(result, register_);
    details->results.push_back({register_.number, inside});
    details->resultTypes.push_back(getElementTypeOrSelf(result.getType()));
  }
  Inst &inst = emit(runOnTensors, &op);
  keepDetails(inst, std::move(details));
  return built;
}

bool CodeBuilder::buildFunction(Operation *op) {
  auto func = cast<func::FuncOp>(op);
  if (func.isDeclaration())
    return unsupported(op, "expected a function with a body, but '" +
                               func.getName() + "' is declared alone");
  if (!func.getBody().hasOneBlock())
    return unsupported(op, "expected functions of one block, but '" +
                               func.getName() + "' has branches");
  Block &entry = func.getBody().front();
  SmallVector<Register> arguments;
  const bool built =
      define(entry.getArguments(), &arguments) &&
      buildBlock(entry, function.body, [&](Operation *terminator) {
        if (!isa<func::ReturnOp>(terminator))
          return unsupported(terminator, "expected func.return at the end "
                                         "of a function");
        for (Type type : terminator->getOperandTypes())
          function.results.push_back(isa<RankedTensorType>(type)
                                         ? Register{newTensor(), true}
                                         : Register{newScalar(), false});
        emitMoves(terminator->getOperands(), function.results, terminator);
        return true;
      });
  function.arguments.assign(arguments.begin(), arguments.end());
  return built;
}

std::unique_ptr<FunctionCode>
mlir::diffattn::interpreter::buildFunction(Operation *function,
                                           Machine &machine) {
  auto code = std::make_unique<FunctionCode>();
  if (!CodeBuilder(*code, machine).buildFunction(function))
    return nullptr;
  return code;
}
