//===- PrepareHost.cpp - host code before its kernels are made -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrepareHost.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Dialect/Linalg/Utils/Utils.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

LogicalResult linalggpu::generalize(func::FuncOp function,
                                    RewriterBase &rewriter) {
  SmallVector<Operation *> ops;
  function.walk([&](Operation *op) {
    if (isa<linalg::LinalgOp, memref::CopyOp>(op) &&
        !isa<linalg::GenericOp>(op))
      ops.push_back(op);
  });
  for (Operation *op : ops) {
    rewriter.setInsertionPoint(op);
    if (auto copy = dyn_cast<memref::CopyOp>(op)) {
      if (copy.getSource() != copy.getTarget()) {
        if (!isa<MemRefType>(copy.getSource().getType()) ||
            !isa<MemRefType>(copy.getTarget().getType()))
          return copy.emitOpError("expected memrefs of a known rank");
        linalg::makeMemRefCopyOp(rewriter, copy.getLoc(), copy.getSource(),
                                 copy.getTarget());
      }
      rewriter.eraseOp(copy);
      continue;
    }
    if (failed(linalg::generalizeNamedOp(rewriter, cast<linalg::LinalgOp>(op))))
      return op->emitOpError("expected an op that can be a linalg.generic");
  }
  return success();
}

void linalggpu::hoistSizes(func::FuncOp function) {
  function.walk([](linalg::GenericOp generic) {
    generic->walk([&](memref::DimOp size) {
      if (llvm::all_of(size->getOperands(), [&](Value operand) {
            return operand.getParentRegion()->isProperAncestor(
                &generic.getRegion());
          }))
        size->moveBefore(generic);
    });
  });
}

/// A fresh buffer of the shape of `buffer`.
static Value allocateLike(OpBuilder &b, Location loc, Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<Value> sizes;
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (type.isDynamicDim(i))
      sizes.push_back(memref::DimOp::create(b, loc, buffer, i));
  auto plain = MemRefType::get(type.getShape(), type.getElementType());
  return memref::AllocOp::create(b, loc, plain, sizes, b.getI64IntegerAttr(64));
}

/// Whether elements lie side by side along the axis `fromLast` from the end.
static bool isAdjacent(Value buffer, int64_t fromLast) {
  auto type = cast<MemRefType>(buffer.getType());
  int64_t axis = type.getRank() - 1 - fromLast;
  return type.getStridesAndOffset().first[axis] == 1 ||
         (fromLast == 0 && type.getDimSize(axis) == 1);
}

/// Whether the caller chooses the strides of `buffer`. Its rows may then run
/// backwards or all be one, and cuBLASLt needs each after the last.
static bool hasRowsOfTheCaller(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewLikeOpInterface>())
    buffer = view.getViewSource();
  auto type = cast<MemRefType>(buffer.getType());
  return isa<BlockArgument>(buffer) && !type.getLayout().isIdentity() &&
         llvm::any_of(type.getStridesAndOffset().first, [](int64_t stride) {
           return ShapedType::isDynamic(stride) || stride <= 0;
         });
}

void linalggpu::copyOddMatrices(func::FuncOp function) {
  SmallVector<GemmOp> products;
  function.walk([&](GemmOp op) {
    if (isa<MemRefType>(op.getC().getType()))
      products.push_back(op);
  });
  for (GemmOp op : products) {
    Value result = op.getC();
    for (OpOperand &operand : op->getOpOperands()) {
      Value matrix = operand.get();
      bool isB = matrix == op.getB(), isC = matrix == result;
      if (!isa<MemRefType>(matrix.getType()) ||
          ((isAdjacent(matrix, 0) || (isB && !isC && isAdjacent(matrix, 1))) &&
           !hasRowsOfTheCaller(matrix)))
        continue;
      OpBuilder b(op);
      Value plain = allocateLike(b, op.getLoc(), matrix);
      if (!isC || op.getAccumulate())
        linalg::makeMemRefCopyOp(b, op.getLoc(), matrix, plain);
      operand.set(plain);
      b.setInsertionPointAfter(op);
      if (isC)
        linalg::makeMemRefCopyOp(b, op.getLoc(), plain, matrix);
    }
  }
}

/// Whether `op` reads nothing that may change, and writes one whole buffer.
static bool isFill(linalg::GenericOp op) {
  if (op.getNumDpsInits() != 1 ||
      op.payloadUsesValueFromOperand(op.getDpsInitOperand(0)))
    return false;
  auto alloc = op.getDpsInits()[0].getDefiningOp<memref::AllocOp>();
  if (!alloc || alloc->getBlock() != op->getBlock())
    return false;
  bool onlyConstants = llvm::all_of(op.getDpsInputs(), [](Value input) {
    return !isa<MemRefType>(input.getType()) || constantOf(input);
  });
  const bool loads =
      op.getBody()
          ->walk([](memref::LoadOp) { return WalkResult::interrupt(); })
          .wasInterrupted();
  return onlyConstants && !loads;
}

void linalggpu::sinkFills(func::FuncOp function) {
  SmallVector<linalg::GenericOp> fills;
  function.walk([&](linalg::GenericOp op) {
    if (isFill(op))
      fills.push_back(op);
  });
  for (linalg::GenericOp fill : fills) {
    Value buffer = fill.getDpsInits()[0];
    Operation *next = nullptr;
    bool first = true;
    for (Operation *user : buffer.getUsers()) {
      Operation *at = fill->getBlock()->findAncestorOpInBlock(*user);
      if (user == fill)
        continue;
      if (!at || at->isBeforeInBlock(fill)) {
        first = false;
        break;
      }
      if (!next || at->isBeforeInBlock(next))
        next = at;
    }
    if (first && next)
      fill->moveBefore(next);
  }
}

/// Whether `op` may write to what `memref` is a view of.
static bool mayWrite(Operation *op, Value memref) {
  if (isa<memref::AllocOp, memref::DeallocOp>(op) || isPure(op))
    return false;
  if (auto generic = dyn_cast<linalg::GenericOp>(op))
    return llvm::any_of(generic.getDpsInits(),
                        [&](Value init) { return mayAlias(init, memref); });
  if (auto store = dyn_cast<memref::StoreOp>(op))
    return mayAlias(store.getMemRef(), memref);
  if (isa<memref::LoadOp, cf::AssertOp, func::ReturnOp>(op) ||
      op->hasTrait<OpTrait::IsTerminator>())
    return false;
  if (op->hasTrait<OpTrait::HasRecursiveMemoryEffects>())
    return false; // what is inside counts by itself
  if (auto interface = dyn_cast<MemoryEffectOpInterface>(op)) {
    SmallVector<MemoryEffects::EffectInstance> effects;
    interface.getEffects(effects);
    return llvm::any_of(effects, [&](const auto &effect) {
      return isa<MemoryEffects::Write>(effect.getEffect()) &&
             (!effect.getValue() || mayAlias(effect.getValue(), memref));
    });
  }
  return llvm::any_of(op->getOperands(), [&](Value operand) {
    return isa<BaseMemRefType>(operand.getType()) && mayAlias(operand, memref);
  });
}

void linalggpu::keepOverwrittenScalars(func::FuncOp function) {
  SmallVector<memref::LoadOp> loads;
  function.walk([&](memref::LoadOp load) {
    if (!load->getParentOfType<linalg::LinalgOp>() &&
        !constantOf(load.getMemRef()))
      loads.push_back(load);
  });
  for (memref::LoadOp load : loads) {
    Block *block = load->getBlock();
    WalkResult written = function.walk([&](Operation *op) {
      if (op->getParentOfType<linalg::LinalgOp>() ||
          !mayWrite(op, load.getMemRef()))
        return WalkResult::advance();
      // Before the load, in this turn of its loop: that is what is read.
      Operation *at = block->findAncestorOpInBlock(*op);
      bool before = at ? at->isBeforeInBlock(load)
                       : op->getBlock()->findAncestorOpInBlock(*load) &&
                             op->isBeforeInBlock(
                                 op->getBlock()->findAncestorOpInBlock(*load));
      return before ? WalkResult::advance() : WalkResult::interrupt();
    });
    if (!written.wasInterrupted())
      continue;
    OpBuilder b(load);
    auto type = MemRefType::get({}, load.getType());
    Value own = memref::AllocOp::create(b, load.getLoc(), type, ValueRange(),
                                        b.getI64IntegerAttr(64));
    b.setInsertionPointAfter(load);
    auto store =
        memref::StoreOp::create(b, load.getLoc(), load, own, ValueRange());
    Value again = memref::LoadOp::create(b, load.getLoc(), own, ValueRange());
    load.getResult().replaceAllUsesExcept(again, store);
  }
}

/// Whether a kernel of this pass is all that reads `value`, seen through views.
static bool isReadByKernelsAlone(Value value) {
  return llvm::all_of(value.getUsers(), [](Operation *user) {
    if (isa<linalg::GenericOp, memref::LoadOp, memref::DimOp>(user) ||
        user->getParentOfType<linalg::GenericOp>())
      return true;
    if (isa<memref::SubViewOp, memref::CastOp, memref::ExpandShapeOp,
            memref::CollapseShapeOp>(user))
      return isReadByKernelsAlone(user->getResult(0));
    return false;
  });
}

void linalggpu::copyConstants(func::FuncOp function) {
  SmallVector<memref::GetGlobalOp> constants;
  function.walk([&](memref::GetGlobalOp get) {
    if (constantOf(get.getResult()) && !isReadByKernelsAlone(get.getResult()))
      constants.push_back(get);
  });
  for (memref::GetGlobalOp get : constants) {
    OpBuilder b(get->getContext());
    b.setInsertionPointAfter(get);
    Value copy = memref::AllocOp::create(b, get.getLoc(), get.getType(),
                                         ValueRange(), b.getI64IntegerAttr(64));
    get.getResult().replaceAllUsesWith(copy);
    linalg::makeMemRefCopyOp(b, get.getLoc(), get.getResult(), copy);
  }
}
