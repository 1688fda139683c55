//===- ConvertPass.cpp - everything but attention and large products ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "Grouping.h"
#include "HorizontalFusion.h"
#include "LowerKernels.h"
#include "PrepareHost.h"
#include "StatusWord.h"

#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/UB/IR/UBOps.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Iterators.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Interfaces/LoopLikeInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/LoopInvariantCodeMotionUtils.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTLINALGTOGPUPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

/// Merges loops that run through every operand one after another.
static linalg::GenericOp collapseLoops(RewriterBase &rewriter,
                                       linalg::GenericOp op) {
  // Other maps are outside of what the upstream functions below take.
  if (op.getNumLoops() != op.getNumParallelLoops() ||
      !llvm::all_of(op.getIndexingMapsArray(),
                    [](AffineMap map) { return map.isProjectedPermutation(); }))
    return op;
  llvm::SmallDenseSet<int64_t> numbered;
  op.getBody()->walk(
      [&](linalg::IndexOp index) { numbered.insert(index.getDim()); });
  auto joins = [&](int64_t first) {
    if (numbered.contains(first) || numbered.contains(first + 1))
      return false;
    for (OpOperand &operand : op->getOpOperands()) {
      AffineMap map = op.getMatchingIndexingMap(&operand);
      if (!linalg::isDimSequencePreserved(map, {first, first + 1}))
        return false;
      auto type = dyn_cast<MemRefType>(operand.get().getType());
      for (int64_t axis = 0; type && axis + 1 < map.getNumResults(); ++axis) {
        if (map.getResult(axis) != rewriter.getAffineDimExpr(first))
          continue;
        SmallVector<ReassociationIndices> groups;
        for (int64_t i = 0; i < type.getRank(); ++i)
          if (i == axis + 1)
            groups.back().push_back(i);
          else
            groups.push_back({i});
        if (!memref::CollapseShapeOp::isGuaranteedCollapsible(type, groups))
          return false;
      }
    }
    return true;
  };
  SmallVector<ReassociationIndices> groups;
  for (int64_t i = 0; i < op.getNumLoops(); ++i) {
    if (i > 0 && joins(i - 1))
      groups.back().push_back(i);
    else
      groups.push_back({i});
  }
  if (groups.size() == op.getNumLoops())
    return op;
  rewriter.setInsertionPoint(op);
  FailureOr<linalg::CollapseResult> collapsed =
      linalg::collapseOpIterationDims(op, groups, rewriter);
  if (failed(collapsed))
    return op;
  rewriter.eraseOp(op);
  return cast<linalg::GenericOp>(collapsed->collapsedOp.getOperation());
}

namespace {
class FunctionConverter {
public:
  FunctionConverter(func::FuncOp function, KernelModule &kernels, Value status)
      : function(function), kernels(kernels), status(status),
        rewriter(function.getContext()), launches(kernels) {}

  LogicalResult convert() {
    SmallVector<Block *> blocks;
    // Outer loops first: they may be loops of a kernel with all they hold.
    // Blocks in the body of an op are erased with it.
    function.walk<WalkOrder::PreOrder>([&](Block *block) {
      if (isa<linalg::LinalgOp>(block->getParentOp()))
        return WalkResult::skip();
      blocks.push_back(block);
      return WalkResult::advance();
    });
    for (Block *block : blocks)
      if (!erasedBlocks.contains(block) && failed(convertBlock(*block)))
        return failure();
    launches.fuse();
    eraseUnused();
    return checkRest();
  }

private:
  bool isPhase(Operation &op) {
    if (auto check = dyn_cast<cf::AssertOp>(op))
      return DeviceValues::contains(check.getArg());
    return isa<linalg::GenericOp, memref::StoreOp>(op);
  }

  LogicalResult convertBlock(Block &block) {
    SmallVector<Operation *> ops;
    for (Operation &op : block)
      ops.push_back(&op);
    SmallVector<Phase> run;
    for (Operation *op : ops) {
      if (isPhase(*op)) {
        Phase phase(op);
        std::string reason = findUnsupported(phase);
        if (!reason.empty())
          return op->emitOpError() << reason;
        run.push_back(std::move(phase));
        continue;
      }
      if (isPure(op) || isa<memref::LoadOp, memref::AllocOp>(op))
        continue;
      emitRun(run);
      if (auto product = dyn_cast<GemmOp>(op)) {
        ImplicitLocOpBuilder host(product.getLoc(), product);
        Emission emission{kernels, host, status};
        emitSmallGemm(emission, product);
        // The product is erased where it becomes a kernel.
        continue;
      }
      if (auto loop = dyn_cast<scf::ForOp>(op))
        if (isIndependent(loop))
          emitLoop(loop);
    }
    emitRun(run);
    return success();
  }

  void emitRun(SmallVector<Phase> &run) {
    for (RowGroup &group : groupPhases(run))
      emitGroup(group);
    run.clear();
  }

  void emitGroup(RowGroup &group) {
    Operation *last = group.phases.back().getOp();
    bool isRow = llvm::any_of(
        group.phases, [](const Phase &phase) { return isRowReduction(phase); });
    if (!isRow)
      return emitAlone(cast<linalg::GenericOp>(last));
    llvm::SmallPtrSet<Operation *, 8> inside, kept;
    for (const Phase &phase : group.phases)
      inside.insert(phase.getOp());
    for (const Phase &phase : group.phases)
      for (const Access &access : phase.getAccesses())
        if (auto alloc = access.memref.getDefiningOp<memref::AllocOp>();
            alloc && access.isWrite && isUsedInside(alloc, inside))
          kept.insert(alloc);
    ImplicitLocOpBuilder host(last->getLoc(), last);
    Emission emission{kernels, host, status};
    emitRowReduction(emission, group, kept);
    note(host, group.phases);
    for (const Phase &phase : llvm::reverse(group.phases))
      phase.getOp()->erase();
  }

  /// Notes what was emitted last, before the op of `host`.
  void note(ImplicitLocOpBuilder &host, ArrayRef<Phase> phases) {
    launches.note(&*std::prev(host.getInsertionPoint()), phases, status);
  }

  /// Whether nothing outside of `ops` sees what is in `value`.
  static bool isUsedInside(memref::AllocOp alloc,
                           const llvm::SmallPtrSetImpl<Operation *> &ops) {
    std::function<bool(Value)> isScalarInside = [&](Value scalar) {
      return llvm::all_of(scalar.getUsers(), [&](Operation *user) {
        if (ops.contains(user))
          return true;
        for (Operation *at = user; at; at = at->getParentOp())
          if (ops.contains(at))
            return true;
        // The end of another op's body is pure too, and hands the scalar on.
        return isPure(user) && !user->hasTrait<OpTrait::IsTerminator>() &&
               user->getNumRegions() == 0 &&
               llvm::all_of(user->getResults(), isScalarInside);
      });
    };
    return llvm::all_of(alloc->getUsers(), [&](Operation *user) {
      if (ops.contains(user) || isa<memref::DeallocOp>(user))
        return true;
      auto load = dyn_cast<memref::LoadOp>(user);
      return load && !load->getParentOfType<linalg::LinalgOp>() &&
             isScalarInside(load.getResult());
    });
  }

  void emitAlone(linalg::GenericOp op) {
    op = collapseLoops(rewriter, op);
    Phase phase(op);
    remarkOnForm(phase);
    ImplicitLocOpBuilder host(op.getLoc(), op);
    Emission emission{kernels, host, status};
    emitElementwise(emission, phase);
    note(host, phase);
    op.erase();
  }

  /// Makes kernels of `loop`. One kernel checks the assertions on data for all
  /// iterations before another writes. Assertions that the host checks stay in
  /// the loop, which then runs before the kernels.
  void emitLoop(scf::ForOp loop) {
    // Kernels stand outside of the loop, so that values which no iteration
    // changes can be their arguments.
    moveLoopInvariantCode(cast<LoopLikeOpInterface>(loop.getOperation()));
    Block &body = *loop.getBody();
    SmallVector<linalg::GenericOp> ops(body.getOps<linalg::GenericOp>());
    RowGroup checks;
    checks.rowLoops = 1;
    bool ofHost = false;
    for (auto check : body.getOps<cf::AssertOp>()) {
      if (DeviceValues::contains(check.getArg()))
        checks.phases.emplace_back(check, loop);
      else
        ofHost = true;
    }
    Operation *before = loop->getPrevNode();
    if (!checks.phases.empty()) {
      ImplicitLocOpBuilder host(loop.getLoc(), loop);
      Emission emission{kernels, host, status};
      emitRowReduction(emission, checks, llvm::SmallPtrSet<Operation *, 1>());
      note(host, checks.phases);
    }
    for (linalg::GenericOp op : ops) {
      op = collapseLoops(rewriter, op);
      ImplicitLocOpBuilder host(op.getLoc(), loop);
      Emission emission{kernels, host, status};
      Phase phase(op, loop);
      emitElementwise(emission, phase);
      note(host, phase);
      op.erase();
    }
    if (ofHost) {
      for (const Phase &phase : checks.phases)
        phase.getOp()->erase();
      if (before)
        loop->moveAfter(before);
      else
        loop->moveBefore(loop->getBlock(), loop->getBlock()->begin());
      return;
    }
    loop->walk([&](Block *block) { erasedBlocks.insert(block); });
    loop.erase();
  }

  static void remarkOnForm(const Phase &phase) {
    if (phase.isParallel())
      return;
    StringRef reason = "no input is contiguous along the reduction, or it is "
                       "none that threads can share";
    remark::missed(
        phase.getLoc(),
        remark::RemarkOpts::name("LinalgToGpu").category("diffattn-gpu"))
        << remark::reason("{0} gets one thread per output element: {1}",
                          phase.getOp()->getName().getStringRef(), reason);
  }

  /// Erases what computed scalars and buffers for kernels alone.
  void eraseUnused() {
    bool changed = true;
    while (changed) {
      changed = false;
      function.walk<WalkOrder::PostOrder, ReverseIterator>([&](Operation *op) {
        if (op != function && isOpTriviallyDead(op)) {
          op->erase();
          changed = true;
        }
      });
    }
  }

  /// Fails if the remaining code of the host touches memory or needs elements.
  LogicalResult checkRest() {
    WalkResult result = function.walk([&](Operation *op) {
      if (auto load = dyn_cast<memref::LoadOp>(op))
        return emitDataError(load);
      bool computes =
          isa<linalg::LinalgOp, memref::StoreOp, memref::CopyOp>(op);
      if (!computes)
        return WalkResult::advance();
      op->emitOpError("expected to become a kernel, but it stands in control "
                      "flow that only the host runs");
      return WalkResult::interrupt();
    });
    return failure(result.wasInterrupted());
  }

  /// Names what the host would need an element for.
  static WalkResult emitDataError(memref::LoadOp load) {
    Operation *user = load;
    while (isPure(user) || isa<memref::LoadOp>(user)) {
      if (user->use_empty())
        break;
      user = *user->getUsers().begin();
    }
    InFlightDiagnostic diagnostic =
        user->emitOpError("expected what the host knows, but got a value that "
                          "depends on data in device memory");
    diagnostic.attachNote(load.getLoc()) << "it is read here";
    return WalkResult::interrupt();
  }

  func::FuncOp function;
  KernelModule &kernels;
  Value status;
  IRRewriter rewriter;
  LaunchSequence launches;
  llvm::SmallPtrSet<Block *, 8> erasedBlocks;
};

struct ConvertLinalgToGpuPass final
    : diffattn::impl::ConvertLinalgToGpuPassBase<ConvertLinalgToGpuPass> {
  using ConvertLinalgToGpuPassBase::ConvertLinalgToGpuPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    std::string error;
    std::optional<GpuTarget> target = getGpuTarget(chip, error);
    if (!target) {
      module.emitError() << error;
      return signalPassFailure();
    }
    IRRewriter rewriter(&getContext());
    SmallVector<func::FuncOp> functions;
    for (auto function : module.getOps<func::FuncOp>())
      if (!function.isExternal())
        functions.push_back(function);
    for (func::FuncOp function : functions) {
      if (failed(checkInput(function)) ||
          failed(generalize(function, rewriter)))
        return signalPassFailure();
      hoistSizes(function);
      liftAssertions(function);
      copyOddMatrices(function);
    }
    auto words = addStatusWords(module);
    if (failed(words))
      return signalPassFailure();
    KernelModule kernels(getOrCreateKernelModule(module, *target));
    for (func::FuncOp function : functions) {
      copyConstants(function);
      keepOverwrittenScalars(function);
      sinkFills(function);
      FunctionConverter converter(function, kernels, words->lookup(function));
      if (failed(converter.convert()))
        return signalPassFailure();
    }
    kernels.eraseUnused(module);
    OpPassManager pm(gpu::GPUModuleOp::getOperationName());
    buildKernelLowering(pm);
    if (failed(runPipeline(pm, kernels.getModule())))
      return signalPassFailure();
    finishModule(module, kernels.getModule());
  }

  static LogicalResult checkInput(func::FuncOp function) {
    WalkResult result = function.walk([](linalg::LinalgOp op) {
      if (op.hasPureBufferSemantics())
        return WalkResult::advance();
      op.emitOpError() << "expected memrefs, but got tensors: bufferize first";
      return WalkResult::interrupt();
    });
    return failure(result.wasInterrupted());
  }

  /// Erases what nothing refers to any more.
  static void finishModule(ModuleOp module, gpu::GPUModuleOp kernels) {
    for (auto global :
         llvm::make_early_inc_range(module.getOps<memref::GlobalOp>()))
      if (global.isPrivate() && global.getConstant() &&
          SymbolTable::symbolKnownUseEmpty(global, module))
        global.erase();
    if (kernels.getBody()->empty()) {
      kernels.erase();
      module->removeAttr(gpu::GPUDialect::getContainerModuleAttrName());
    }
  }
};
} // namespace
