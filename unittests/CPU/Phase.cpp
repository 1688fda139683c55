//===- Phase.cpp - a phase of a CPU kernel, compiled and run --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/TargetSelect.h"

using namespace mlir;
using namespace mlir::diffattn;

static void addLowering(PassManager &pm) {
  EmulateAmxPassOptions tiles;
  tiles.missingOnly = true;
  pm.addPass(createEmulateAmxPass(tiles));
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createConvertIndexToLLVMPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createUBToLLVMConversionPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
}

Phase::Phase(CpuCase &c, Body body)
    : c(c), memory(kScratchBytes + 4 * kGuardBytes), exposed(kMaxExposed) {
  scratch = memory.data() + kGuardBytes;
  scratch += llvm::offsetToAlignedAddr(scratch, llvm::Align(kGuardBytes));
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  MLIRContext *context = c.q[0].element.getContext();
  Location loc = UnknownLoc::get(context);
  module = ModuleOp::create(loc);
  KernelBuilder b(loc, c.target, c.spec.prefill.getLanes());
  auto phaseOp = b.getOrEmitFunction(
      *module, "phase", {b.pointer, b.i64, b.pointer, b.pointer},
      [&](ValueRange args) {
        PhaseBuilder phase{b, *module, args[0], args[1], args[2], args[3]};
        body(phase);
      });
  phaseOp.setLinkage(LLVM::Linkage::External);
  PassManager pm(context);
  addLowering(pm);
  if (failed(pm.run(*module)))
    llvm::report_fatal_error("a phase was not lowered");
  engine = llvm::cantFail(ExecutionEngine::create(*module));
  function = reinterpret_cast<decltype(function)>(
      llvm::cantFail(engine->lookup("phase")));
}

void Phase::run(int64_t index, ArrayRef<int64_t> inputs) {
  std::fill(memory.begin(), memory.end(), '\xff');
  std::fill(exposed.begin(), exposed.end(), 0);
  llvm::copy(inputs, exposed.begin() + PhaseBuilder::kInputs);
  // The slot behind the last one has the memory of the call.
  std::vector<int64_t> context = c.context;
  context.push_back(reinterpret_cast<int64_t>(callMemory));
  function(context.data(), index, scratch, exposed.data());
  auto isGuard = [](char byte) { return byte == '\xff'; };
  EXPECT_TRUE(std::all_of(memory.data(), scratch, isGuard));
  EXPECT_TRUE(std::all_of(scratch + kScratchBytes,
                          memory.data() + memory.size(), isGuard));
}

static ScoringLayout layOutScoring(KernelBuilder &b, const AttentionSpec &spec,
                                   Value scratch, const ScoringSizes &sizes) {
  ScratchParts parts(b, scratch);
  LaneParts lanes = takeLaneParts(parts, spec, sizes.headDim);
  KeyParts keys = takeKeyParts(parts, spec, sizes.headDim);
  return {lanes, keys, takeScoreParts(parts, spec, sizes.keys)};
}

ScoringBuilder::ScoringBuilder(const PhaseBuilder &phase,
                               const AttentionSpec &spec)
    : PhaseBuilder(phase), spec(spec), v(b, spec, context),
      sizes{v.size(spec.headDim), v.size(spec.keys)},
      item(locateItem(v, sizes, index)), masks(v, item.batch),
      s(layOutScoring(b, spec, scratch, sizes)), heads(findKeyHeads(v, item)),
      scoring(v, module, masks) {}

static PrefillLayout layOut(KernelBuilder &b, const AttentionSpec &spec,
                            Value scratch, const ScoringSizes &sizes,
                            Value valueDim) {
  ScratchParts parts(b, scratch);
  return layOutPrefill(parts, spec, sizes, valueDim);
}

ValuesBuilder::ValuesBuilder(const PhaseBuilder &phase,
                             const AttentionSpec &spec)
    : PhaseBuilder(phase), spec(spec), v(b, spec, context),
      sizes{v.size(spec.headDim), v.size(spec.keys)},
      item(locateItem(v, sizes, index)), masks(v, item.batch),
      s(layOut(b, spec, scratch, sizes, v.size(spec.valueDim))),
      keyHeads(findKeyHeads(v, item)),
      valueHead(findValueHead(v, item, v.size(spec.valueDim))),
      scoring(v, module, masks), values(scoring, context) {}

KeyPartition mlir::diffattn::emitBegin(PrefillScoring &scoring,
                                       const PrefillItem &item,
                                       const ScoringLayout &s) {
  scoring.packQueries(item, s);
  scoring.packLambda(item, s);
  scoring.clear(item, s);
  KeyPartition keys = scoring.cutKeys(item, s);
  scoring.relateKvBlocks(item, s, keys);
  return keys;
}
