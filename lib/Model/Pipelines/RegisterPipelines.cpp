//===- RegisterPipelines.cpp - pipelines by their names -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Pipelines/Pipelines.h"
#include "DiffAttn/Pipelines/AttentionPipeline.h"

#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/WithColor.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
using ErrorHandler = function_ref<LogicalResult(const Twine &)>;

/// Options as text that every pipeline of models has.
struct GraphTextOptions : public RaisingOptions {
  Option<bool> unchecked{
      *this, "unchecked",
      llvm::cl::desc("do not check indices and slices that are data"),
      llvm::cl::init(false)};
};

/// Options as text of what is made for a GPU.
struct ChipTextOptions : public virtual mlir::detail::PassOptions {
  Option<std::string> chip{
      *this, "chip", llvm::cl::init("sm_80"),
      llvm::cl::desc("chip: sm_80, sm_86, sm_89, sm_90, sm_90a or newer")};
  Option<std::string> file{
      *this, "file", llvm::cl::init(""),
      llvm::cl::desc("write what stages ptx and cubin make to files with this "
                     "stem; empty: keep text and binary as attributes")};
};

/// Options as text of the pipelines that reach the LLVM dialect.
struct CommonTextOptions : public GraphTextOptions, public CPUCodeOptions {
  Option<Stage> until{*this, "until",
                      llvm::cl::desc("stop after this stage, as bufferized"),
                      llvm::cl::init(Stage::LLVM)};
  Option<bool> trace{
      *this, "trace",
      llvm::cl::desc("code for a CPU that says when its products and "
                     "attentions begin and end"),
      llvm::cl::init(false)};

  PipelineOptions read(Target target) const {
    PipelineOptions options;
    options.target = std::move(target);
    options.raise = raise;
    options.unchecked = unchecked;
    options.trace = trace;
    options.prefetchBytes = prefetchBytes;
    options.threads = threads;
    return options;
  }
};

struct CPUTextOptions : public PassPipelineOptions<CPUTextOptions>,
                        public CommonTextOptions {
  Option<BatchInvariance> batchInvariance{
      *this, "batch-invariant",
      llvm::cl::desc("whether a row of a product must not depend on the "
                     "others: true: of any product, false: of none, auto: of "
                     "products with weights, where it is as fast"),
      llvm::cl::init(BatchInvariance::Auto)};
  Option<std::string> gpuChip{
      *this, "gpu-chip",
      llvm::cl::desc("former spelling of diffattn-cuda-pipeline's chip"),
      llvm::cl::init("")};
};

struct CUDATextOptions : public PassPipelineOptions<CUDATextOptions>,
                         public CommonTextOptions,
                         public ChipTextOptions {};

/// Options of diffattn-gpu-pipeline.
struct FormerGpuTextOptions : public PassPipelineOptions<FormerGpuTextOptions>,
                              public GraphTextOptions,
                              public ChipTextOptions {
  Option<bool> assemble{
      *this, "assemble", llvm::cl::init(true),
      llvm::cl::desc("run ptxas; else the pipeline ends with PTX")};
};
} // namespace

static void warnOfFormerName(const Twine &former, const Twine &now) {
  llvm::WithColor::warning()
      << "expected " << now << " in the place of " << former
      << ", which is its former spelling and will go\n";
}

/// Adds the passes up to `until`; an error where the target has no such stage.
static LogicalResult build(OpPassManager &pm, const PipelineOptions &options,
                           Stage until, ErrorHandler error) {
  std::vector<Stage> stages = getPipelineStages(options.target.kind);
  if (!llvm::is_contained(stages, until))
    return error("expected until to be a stage of " +
                 llvm::join(llvm::map_range(stages, stringifyStage), ", ") +
                 ", but got '" + stringifyStage(until) + "'");
  buildPipeline(pm, options, until);
  return success();
}

static LogicalResult buildCPU(OpPassManager &pm, const CPUTextOptions &text,
                              ErrorHandler error) {
  Target target = Target::cpu(text.isa);
  if (!text.gpuChip.empty()) {
    warnOfFormerName("diffattn-cpu-pipeline{gpu-chip=" + text.gpuChip + "}",
                     "diffattn-cuda-pipeline{chip=" + text.gpuChip + "}");
    target = Target::cuda(text.gpuChip, text.isa);
  }
  PipelineOptions options = text.read(target);
  options.batchInvariance = text.batchInvariance;
  return build(pm, options, text.until, error);
}

static LogicalResult buildCUDA(OpPassManager &pm, const CUDATextOptions &text,
                               ErrorHandler error) {
  PipelineOptions options = text.read(Target::cuda(text.chip, text.isa));
  options.file = text.file;
  return build(pm, options, text.until, error);
}

static LogicalResult buildFormerGpu(OpPassManager &pm,
                                    const FormerGpuTextOptions &text,
                                    ErrorHandler error) {
  const Stage until = text.assemble ? Stage::Cubin : Stage::PTX;
  warnOfFormerName("diffattn-gpu-pipeline", "diffattn-cuda-pipeline{until=" +
                                                stringifyStage(until) + "}");
  PipelineOptions options;
  options.target = Target::cuda(text.chip);
  options.raise = text.raise;
  options.unchecked = text.unchecked;
  options.file = text.file;
  return build(pm, options, until, error);
}

/// Registers a pipeline as upstream's PassPipelineRegistration does, for a
/// builder that may fail.
template <typename TextOptions>
static void registerPipeline(StringRef name, StringRef description,
                             LogicalResult (*builder)(OpPassManager &,
                                                      const TextOptions &,
                                                      ErrorHandler)) {
  registerPassPipeline(
      name, description,
      [builder](OpPassManager &pm, StringRef text, ErrorHandler error) {
        TextOptions options;
        if (failed(options.parseFromString(text)))
          return failure();
        return builder(pm, options, error);
      },
      [](function_ref<void(const mlir::detail::PassOptions &)> describe) {
        TextOptions options;
        describe(options);
      });
}

void mlir::diffattn::registerModelPipelines() {
  // Upstream takes no pipeline twice.
  [[maybe_unused]] static const bool once = [] {
    registerPipeline("diffattn-cpu-pipeline",
                     "Compile a module of tensor IR to the LLVM dialect for "
                     "the CPU",
                     buildCPU);
    registerPipeline("diffattn-cuda-pipeline",
                     "Compile a module of tensor IR to GPU kernels, and to "
                     "host functions in the LLVM dialect that launch them",
                     buildCUDA);
    registerPipeline("diffattn-gpu-pipeline",
                     "Former name of diffattn-cuda-pipeline{until=cubin}",
                     buildFormerGpu);
    return true;
  }();
}
