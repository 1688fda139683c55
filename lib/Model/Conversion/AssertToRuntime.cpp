//===- AssertToRuntime.cpp - failed assertions as errors of the run -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/Model/AssertMessage.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTASSERTTORUNTIMEPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// The messages of one module: a constant for each text.
class MessageTable {
public:
  explicit MessageTable(ModuleOp module) : module(module) {}

  LLVM::GlobalOp getOrCreate(StringRef text) {
    LLVM::GlobalOp &message = messages[text];
    if (!message) {
      OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
      std::string zeroEnded = (text + Twine('\0')).str();
      auto type =
          LLVM::LLVMArrayType::get(builder.getI8Type(), zeroEnded.size());
      message = LLVM::GlobalOp::create(builder, module.getLoc(), type,
                                       /*isConstant=*/true,
                                       LLVM::Linkage::Internal, getFreeName(),
                                       builder.getStringAttr(zeroEnded));
    }
    return message;
  }

private:
  /// The module may have been converted before, and got more assertions since.
  std::string getFreeName() {
    std::string name;
    do
      name = "diffattn_message_" + std::to_string(nextNumber++);
    while (module.lookupSymbol(name));
    return name;
  }

  ModuleOp module;
  llvm::StringMap<LLVM::GlobalOp> messages;
  int64_t nextNumber = 0;
};

struct ConvertAssertToRuntimePass final
    : diffattn::impl::ConvertAssertToRuntimePassBase<
          ConvertAssertToRuntimePass> {
  void runOnOperation() override {
    SmallVector<cf::AssertOp> asserts;
    auto collect = [&](Operation *inner) {
      auto op = dyn_cast<cf::AssertOp>(inner);
      if (!op)
        return WalkResult::advance();
      if (!isa<func::FuncOp>(op->getParentOp())) {
        op.emitOpError(
            "expected to stand in the body of a function, but it is inside ")
            << op->getParentOp()->getName();
        return WalkResult::interrupt();
      }
      asserts.push_back(op);
      return WalkResult::advance();
    };
    if (walkOwnOps(getOperation(), collect).wasInterrupted())
      return signalPassFailure();
    if (asserts.empty())
      return;
    OpBuilder builder(&getContext());
    MessageTable messages(getOperation());
    for (cf::AssertOp op : asserts)
      if (failed(lower(builder, op, messages)))
        return signalPassFailure();
  }

private:
  /// The sides of the comparison that `condition` is, as i64, for the message.
  static std::optional<std::pair<Value, Value>> findSides(Value condition) {
    auto compare = condition.getDefiningOp<arith::CmpIOp>();
    if (!compare)
      return std::nullopt;
    Type type = compare.getLhs().getType();
    if (!type.isIndex() && !type.isSignlessInteger(64))
      return std::nullopt;
    // Constants go to the right, and predicates turn round with them: none of
    // ours is one of these from the beginning.
    using Predicate = arith::CmpIPredicate;
    Predicate predicate = compare.getPredicate();
    if (predicate == Predicate::ugt || predicate == Predicate::uge ||
        predicate == Predicate::sle)
      return std::pair(compare.getRhs(), compare.getLhs());
    return std::pair(compare.getLhs(), compare.getRhs());
  }

  /// ... assert(c); rest  ->  ... cond_br c, ^rest, ^fail
  LogicalResult lower(OpBuilder &builder, cf::AssertOp op,
                      MessageTable &messages) {
    Location loc = op.getLoc();
    auto sides = findSides(op.getArg());
    const bool hasSides =
        sides && (op.getMsg().contains("{0}") || op.getMsg().contains("{1}"));
    FailureOr<LLVM::LLVMFuncOp> fail = getOrDeclareRuntimeFunction(
        builder, getOperation(),
        hasSides ? RuntimeFunction::fail_with : RuntimeFunction::fail);
    if (mlir::failed(fail))
      return failure();
    Block *block = op->getBlock();
    Block *rest = block->splitBlock(op->getIterator());
    Block *failed =
        builder.createBlock(rest->getParent(), rest->getParent()->end());
    std::string message =
        hasSides ? op.getMsg().str() : withoutSides(op.getMsg());
    SmallVector<Value> arguments = {
        LLVM::AddressOfOp::create(builder, loc, messages.getOrCreate(message))};
    if (hasSides)
      for (Value side : {sides->first, sides->second})
        arguments.push_back(side.getType().isIndex()
                                ? arith::IndexCastOp::create(
                                      builder, loc, builder.getI64Type(), side)
                                      .getResult()
                                : side);
    LLVM::CallOp::create(builder, loc, *fail, arguments);
    LLVM::UnreachableOp::create(builder, loc);
    builder.setInsertionPointToEnd(block);
    cf::CondBranchOp::create(builder, loc, op.getArg(), rest, ValueRange(),
                             failed, ValueRange());
    op.erase();
    return success();
  }
};
} // namespace
