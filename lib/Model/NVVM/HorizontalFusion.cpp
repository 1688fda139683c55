//===- HorizontalFusion.cpp - several kernels in one launch ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HorizontalFusion.h"
#include "DeviceValues.h"
#include "KernelKinds.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

// Each one is copied into the kernel that has all.
static constexpr size_t kMaxMembers = 8;

gpu::LaunchFuncOp LaunchSequence::Step::getLaunch() const {
  if (auto choice = dyn_cast<scf::IfOp>(op))
    return *choice.thenBlock()->getOps<gpu::LaunchFuncOp>().begin();
  return cast<gpu::LaunchFuncOp>(op);
}

Value LaunchSequence::Step::getCondition() const {
  auto choice = dyn_cast<scf::IfOp>(op);
  return choice ? choice.getCondition() : Value();
}

LLVM::LLVMFuncOp LaunchSequence::Step::getKernel() const {
  return SymbolTable::lookupNearestSymbolFrom<LLVM::LLVMFuncOp>(
      op->getParentOfType<ModuleOp>(), getLaunch().getKernel());
}

bool LaunchSequence::Step::conflictsWith(const Step &other) const {
  auto meet = [](ArrayRef<Value> some, ArrayRef<Value> others) {
    return llvm::any_of(some, [&](Value a) {
      return llvm::any_of(others, [&](Value b) {
        return a == b || (mayAlias(a, b) && !areSeparateArguments(a, b));
      });
    });
  };
  return meet(writes, other.writes) || meet(writes, other.reads) ||
         meet(reads, other.writes);
}

void LaunchSequence::note(Operation *launched, ArrayRef<Phase> phases,
                          Value status) {
  Step step{launched, {}, {}};
  for (const Phase &phase : phases) {
    for (const Access &access : phase.getAccesses())
      (access.isWrite ? step.writes : step.reads)
          .push_back(rootOf(access.memref));
    if (!status)
      continue;
    if (isa<cf::AssertOp>(phase.getOp()))
      step.writes.push_back(status);
    else if (needsStatus(phase))
      step.reads.push_back(status);
  }
  steps.push_back(std::move(step));
}

/// Whether `op` may stand between two launches that become one.
static bool mayPass(Operation *op) {
  if (isPure(op) || isa<memref::AllocOp, memref::LoadOp, cf::AssertOp>(op))
    return true;
  return isa<scf::ForOp, scf::IfOp>(op) &&
         llvm::all_of(op->getRegions(), [](Region &region) {
           return llvm::all_of(region.getOps(), [](Operation &inner) {
             return inner.hasTrait<OpTrait::IsTerminator>() || mayPass(&inner);
           });
         });
}

static int64_t threadsOf(LLVM::LLVMFuncOp kernel) {
  return kernel
      ->getAttrOfType<DenseI32ArrayAttr>(
          NVVM::NVVMDialect::getReqntidAttrName())
      .asArrayRef()
      .front();
}

static bool hasBarrier(LLVM::LLVMFuncOp kernel) {
  return kernel.walk([](NVVM::Barrier0Op) { return WalkResult::interrupt(); })
      .wasInterrupted();
}

bool LaunchSequence::canJoin(ArrayRef<Step *> group, const Step &step) const {
  if (group.size() == kMaxMembers || llvm::any_of(group, [&](Step *member) {
        return member->conflictsWith(step);
      }))
    return false;
  for (Operation *op = group.back()->op->getNextNode(); op != step.op;
       op = op->getNextNode())
    if (!mayPass(op))
      return false;
  // A barrier is one of all threads of a block.
  SmallVector<LLVM::LLVMFuncOp> members = {step.getKernel()};
  for (Step *member : group)
    members.push_back(member->getKernel());
  int64_t most = 0;
  for (LLVM::LLVMFuncOp kernel : members)
    most = std::max(most, threadsOf(kernel));
  return llvm::all_of(members, [&](LLVM::LLVMFuncOp kernel) {
    return kernel.getBody().hasOneBlock() &&
           (threadsOf(kernel) == most || !hasBarrier(kernel));
  });
}

void LaunchSequence::fuse() {
  llvm::MapVector<Block *, SmallVector<Step *>> blocks;
  for (Step &step : steps)
    blocks[step.op->getBlock()].push_back(&step);
  for (auto &[block, all] : blocks) {
    llvm::sort(all, [](const Step *a, const Step *b) {
      return a->op->isBeforeInBlock(b->op);
    });
    SmallVector<Step *> group;
    for (Step *step : all) {
      if (!group.empty() && !canJoin(group, *step)) {
        fuse(group);
        group.clear();
      }
      group.push_back(step);
    }
    fuse(group);
  }
  steps.clear();
}

/// The block index or the number of blocks that `op`, of a member of a kernel,
/// stands for; null for other ops. A member has a share of the grid.
static Value ownShare(Operation *op, Value block, Value blocks) {
  return isa<NVVM::BlockIdXOp>(op)   ? block
         : isa<NVVM::GridDimXOp>(op) ? blocks
                                     : Value();
}

/// Copies what `member` computes to where `b` is, for block `block` of `blocks`
/// of its own.
static void copyBody(gpucode::GpuBuilder &b, LLVM::LLVMFuncOp member,
                     ValueRange arguments, Value block, Value blocks) {
  IRMapping mapping;
  mapping.map(member.getArguments(), arguments);
  for (Operation &op : member.getBody().front().without_terminator()) {
    if (Value own = ownShare(&op, block, blocks)) {
      mapping.map(op.getResult(0), own);
      continue;
    }
    b.clone(op, mapping)->walk([&](Operation *inner) {
      if (Value own = ownShare(inner, block, blocks))
        inner->getResult(0).replaceAllUsesWith(own);
    });
  }
}

LLVM::LLVMFuncOp LaunchSequence::writeKernel(ArrayRef<Step *> group) {
  int64_t threads = 0;
  for (Step *step : group)
    threads = std::max(threads, threadsOf(step->getKernel()));
  LLVM::LLVMFuncOp kernel =
      kernels.create(group.front()->op->getLoc(), threads);
  gpucode::GpuBuilder b(kernel.getLoc(), kernel);
  Block &entry = kernel.getBody().front();
  Value thread = b.threadId(), block = b.blockId(0);
  {
    OpBuilder::InsertionGuard end(b);
    for (auto [number, step] : llvm::enumerate(group)) {
      LLVM::LLVMFuncOp member = step->getKernel();
      Value blocks = entry.addArgument(b.i32Type(), b.getLoc());
      SmallVector<Value> arguments;
      for (Type type : member.getArgumentTypes())
        arguments.push_back(entry.addArgument(type, b.getLoc()));
      Block *others = nullptr;
      Value ofOthers;
      // The last one has the blocks that are left.
      if (number + 1 < group.size()) {
        ofOthers = b.sub(block, blocks);
        auto choice = scf::IfOp::create(
            b, b.compare(LLVM::ICmpPredicate::ult, block, blocks),
            /*withElseRegion=*/true);
        others = choice.elseBlock();
        b.setInsertionPointToStart(choice.thenBlock());
      }
      if (const int64_t own = threadsOf(member); own < threads) {
        auto choice = scf::IfOp::create(
            b, b.compare(LLVM::ICmpPredicate::ult, thread, b.i32(own)),
            /*withElseRegion=*/false);
        b.setInsertionPointToStart(choice.thenBlock());
      }
      copyBody(b, member, arguments, block, blocks);
      if (others) {
        b.setInsertionPointToStart(others);
        block = ofOthers;
      }
    }
  }
  b.finish();
  return kernels.intern(kernel, "horizontal");
}

void LaunchSequence::fuse(ArrayRef<Step *> group) {
  if (group.size() < 2)
    return;
  Operation *last = group.back()->op;
  ImplicitLocOpBuilder host(last->getLoc(), last);
  Launch all{writeKernel(group), {}, {}, 0};
  all.threads = threadsOf(all.kernel);
  Value condition;
  for (Step *step : group) {
    gpu::LaunchFuncOp launch = step->getLaunch();
    Value blocks = launch.getGridSizeX();
    all.blocks =
        all.blocks ? arith::AddIOp::create(host, all.blocks, blocks).getResult()
                   : blocks;
    all.arguments.push_back(
        arith::IndexCastOp::create(host, host.getI32Type(), blocks));
    llvm::append_range(all.arguments, launch.getKernelOperands());
    if (Value own = step->getCondition())
      condition = condition
                      ? arith::AndIOp::create(host, condition, own).getResult()
                      : own;
  }
  if (!condition) {
    all.emit(host);
    for (Step *step : group)
      step->op->erase();
    return;
  }
  auto choice = scf::IfOp::create(host, condition, /*withElseRegion=*/true);
  Operation *end = choice.elseBlock()->getTerminator();
  for (Step *step : group) {
    step->op->moveBefore(end);
    // A condition that stands alone is known not to hold here.
    if (step->getCondition() != condition)
      continue;
    auto own = cast<scf::IfOp>(step->op);
    for (Operation &op :
         llvm::make_early_inc_range(own.elseBlock()->without_terminator()))
      op.moveBefore(end);
    own.erase();
  }
  host.setInsertionPointToStart(choice.thenBlock());
  all.emit(host);
}
