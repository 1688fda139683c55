//===- Options.cpp - the command line of diffattn-run ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Options.h"

#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Compiler/Versions.h"
#include "DiffAttn/Runtime/Program/Call.h"
#include "DiffAttn/Target/HostFacts.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;
namespace cl = llvm::cl;

static constexpr const char *kExamples = R"(
EXAMPLES:
  diffattn-run model.mlir --entry=forward --weights=model.safetensors \
               --input=1x4xi64=1,2,3,4 --output=logits.npy
  diffattn-run attention.mlir --input=random:1x8x512x64xf32 ... \
               --check=unfused --bench=20
  diffattn-run model.mlir --emit=scheduled
  diffattn-run model.mlir --target=cuda:sm_90 --emit=cubin -o model.cubin
  diffattn-run model.mlir --weights=folder --emit=bundle -o model.bundle
  diffattn-run cache ls
  diffattn-run cache clear

EXIT CODES:
  0 done          1 results differ   2 usage      3 IR        4 compiler
  5 weights       6 inputs           7 run time   8 output
  141 nobody reads the output any more
)";

std::optional<Options> mlir::diffattn::parseOptions(int argc, char **argv) {
  // LLVM's libraries register hundreds of options, some under our names.
  cl::ResetCommandLineParser();
  cl::OptionCategory call("1. Call", "What to call, and with what");
  cl::OptionCategory compile("2. Compile", "How to compile");
  cl::OptionCategory results("3. Results", "What to do with the results");
  cl::OptionCategory about("4. About", "This tool and this machine");

  cl::list<std::string> positional(cl::Positional, cl::desc("<model.mlir>"));
  cl::opt<std::string> entry(
      "entry", cl::desc("Function to call (default: the only one, or forward)"),
      cl::value_desc("name"), cl::cat(call));
  cl::list<std::string> inputs(
      "input",
      cl::desc("An argument, in order: x.npy, 2x5xi64=1,2,...,\n"
               "f32=0.5, random:2x3xf32, random:2x3xi64:0:99"),
      cl::value_desc("what"), cl::cat(call));
  cl::list<std::string> weights(
      "weights",
      cl::desc("Weights: .safetensors, an index of shards, a folder"),
      cl::value_desc("path"), cl::cat(call));
  cl::opt<uint64_t> seed("seed", cl::desc("Seed of random arguments"),
                         cl::init(0), cl::cat(call));

  cl::opt<std::string> target(
      "target",
      cl::desc("cpu, or cpu:<isa>, as cpu:avx512 (--info lists them);\n"
               "cuda-sim:<chip>: GPU kernels, simulated:\n"
               "sm_80, sm_86, sm_89, sm_90, sm_90a;\n"
               "cuda, cuda:<chip>, cuda:<chip>@<n>: GPU number n\n"
               "(to emit, no GPU is needed; default sm_80);\n"
               "for bundles cuda:<chip>,<chip>/<isa of the host>"),
      cl::init("cpu"), cl::value_desc("target"), cl::cat(compile));
  cl::opt<int64_t> threads(
      "threads",
      cl::desc("Threads (default 0: OMP_NUM_THREADS, or as\nmany as are worth "
               "it, up to one a processor)"),
      cl::init(0), cl::value_desc("n"), cl::cat(compile));
  cl::opt<int64_t> prefetchBytes(
      "prefetch-bytes",
      cl::desc("How far ahead of weights, keys and values lines\n"
               "are asked for (0: not at all; default: as the CPU\n"
               "was measured to gain from it)"),
      cl::init(-1), cl::value_desc("n"), cl::cat(compile));
  cl::opt<bool> raise(
      "raise", cl::desc("Look for attention in unfused graphs (default on)"),
      cl::init(true), cl::cat(compile));
  cl::opt<cl::boolOrDefault> batchInvariant(
      "batch-invariant",
      cl::desc("A row of a product does not depend on the others\n"
               "(default: products with weights, where that is\n"
               "as fast)"),
      cl::cat(compile));
  cl::opt<bool> unchecked(
      "unchecked", cl::desc("Take indices that are data without a check"),
      cl::init(false), cl::cat(compile));
  cl::opt<std::string> emit(
      "emit",
      cl::desc("Print the module after a stage, and stop: input,\n"
               "raised, scheduled, bufferized, gpu, ptx, cubin,\n"
               "loops, llvm, llvm-ir, assembly, object; bundle:\n"
               "a folder that runs without a compiler"),
      cl::value_desc("stage"), cl::cat(compile));
  cl::opt<std::string> from(
      "from", cl::desc("Stage that the module is in: input, or gpu"),
      cl::init("input"), cl::value_desc("stage"), cl::cat(compile));
  cl::opt<std::string> emitFile(
      "o", cl::desc("File for --emit (default -), or folder"), cl::init("-"),
      cl::value_desc("file"), cl::cat(compile));
  cl::opt<std::string> ptxas(
      "ptxas",
      cl::desc("Assembler of kernels: a path, or a name in\n"
               "PATH, $CUDA_HOME/bin, /usr/local/cuda/bin or\n"
               "$DIFFATTN_VENV, else .venv beside build"),
      cl::init("ptxas"), cl::value_desc("path"), cl::cat(compile));
  cl::opt<bool> copyWeights(
      "copy-weights",
      cl::desc("With --emit=bundle: copy the weight files into the\n"
               "bundle (default: it points at them)"),
      cl::cat(compile));
  cl::opt<std::string> linker(
      "lld",
      cl::desc("With --emit=bundle: LLVM's linker, a path or a name to\n"
               "look for in PATH and LLVM's folder (default: that of\n"
               "a wheel, else ld.lld)"),
      cl::value_desc("path"), cl::cat(compile));
  cl::opt<std::string> cudaDriver(
      "cuda-driver", cl::desc("libcuda.so.1, where the loader finds none"),
      cl::value_desc("path"), cl::cat(compile));
  cl::opt<std::string> cublasLt(
      "cublaslt",
      cl::desc("libcublasLt.so.13 or .12 (default: the process's,\n"
               "the loader's, /usr/local/cuda/lib64's, or that of\n"
               "Python packages in $DIFFATTN_VENV or .venv)"),
      cl::value_desc("path"), cl::cat(compile));
  cl::opt<bool> noCache("no-cache", cl::desc("Compile in any case"),
                        cl::cat(compile));
  cl::opt<std::string> cacheDir(
      "cache-dir",
      cl::desc("Compiled code (default $DIFFATTN_CACHE_DIR, else\n"
               "~/.cache/diffattn)"),
      cl::value_desc("folder"), cl::cat(compile));
  cl::opt<RemarkChoice> remarks(
      "remarks", cl::desc("What to say of each attention on stderr:"),
      cl::values(
          clEnumValN(RemarkChoice::None, "none", "Nothing"),
          clEnumValN(RemarkChoice::Missed, "missed",
                     "Why it was not fused, or is no kernel\n(default)"),
          clEnumValN(RemarkChoice::All, "all", "Also which kernel it became")),
      cl::init(RemarkChoice::Missed), cl::cat(compile));
  cl::opt<int64_t> cacheLimit("cache-limit",
                              cl::desc("MiB of compiled code to keep (default\n"
                                       "$DIFFATTN_CACHE_LIMIT, else 1024)"),
                              cl::init(-1), cl::value_desc("MiB"),
                              cl::cat(compile));
  cl::opt<std::string> reproducer(
      "reproducer", cl::desc("What a failing pipeline leaves (empty: nothing)"),
      cl::init("diffattn-reproducer.mlir"), cl::value_desc("file"),
      cl::cat(compile));

  cl::list<std::string> outputs("output",
                                cl::desc("A .npy file for a result, in order"),
                                cl::value_desc("file"), cl::cat(results));
  cl::list<std::string> expected(
      "expected", cl::desc("A .npy file that a result must match, in order"),
      cl::value_desc("file"), cl::cat(results));
  cl::opt<double> rtol("rtol", cl::desc("Relative tolerance (default by type)"),
                       cl::cat(results));
  cl::opt<double> atol("atol", cl::desc("Absolute tolerance (default by type)"),
                       cl::cat(results));
  cl::opt<std::string> check(
      "check",
      cl::desc("unfused: compare with the plain path, nothing fused;\n"
               "oracle: with the module as given, interpreted in\n"
               "f64, by docs/numerics.md's bounds"),
      cl::value_desc("what"), cl::cat(results));
  cl::opt<int64_t> bench("bench", cl::desc("Time n calls, after a warm-up"),
                         cl::init(0), cl::value_desc("n"), cl::cat(results));
  cl::opt<bool> quiet("quiet", cl::desc("Do not print the results"),
                      cl::cat(results));

  cl::opt<bool> info("info",
                     cl::desc("Versions, machine and cache; of a model, its\n"
                              "functions and weights"),
                     cl::cat(about));
  cl::extrahelp examples(kExamples);

  cl::HideUnrelatedOptions({&call, &compile, &results, &about});
  cl::SetVersionPrinter([](llvm::raw_ostream &os) { os << getVersionText(); });
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "Compile a module for the CPU, bind its weights, run it.\n",
          &llvm::errs()))
    return std::nullopt;

  Options options;
  options.positional =
      std::vector<std::string>(positional.begin(), positional.end());
  options.entry = entry;
  options.inputs = std::vector<std::string>(inputs.begin(), inputs.end());
  options.weightPaths =
      std::vector<std::string>(weights.begin(), weights.end());
  options.seed = seed;
  options.target = target;
  options.threads = threads;
  options.prefetchBytes = prefetchBytes;
  options.raise = raise;
  if (batchInvariant != cl::BOU_UNSET)
    options.batchInvariance = batchInvariant == cl::BOU_TRUE
                                  ? BatchInvariance::Always
                                  : BatchInvariance::Never;
  options.unchecked = unchecked;
  options.emit = emit;
  options.from = from;
  options.emitFile = emitFile;
  options.noCache = noCache;
  options.copyWeights = copyWeights;
  options.linker = linker;
  options.remarks = remarks;
  options.cacheDir = cacheDir;
  options.cacheMiB = cacheLimit;
  options.reproducer = reproducer;
  options.ptxas = ptxas;
  options.cudaDriver = cudaDriver;
  options.cublasLt = cublasLt;
  options.outputs = std::vector<std::string>(outputs.begin(), outputs.end());
  options.expected = std::vector<std::string>(expected.begin(), expected.end());
  if (rtol.getNumOccurrences())
    options.rtol = rtol;
  if (atol.getNumOccurrences())
    options.atol = atol;
  options.check = check;
  if (check == "reference") {
    llvm::errs() << "warning: --check=reference is called --check=unfused\n";
    options.check = "unfused";
  }
  options.bench = bench;
  options.quiet = quiet;
  llvm::SmallString<128> optTool(llvm::sys::path::parent_path(argv[0]));
  llvm::sys::path::append(optTool, "diffattn-opt");
  options.optTool = optTool.str().str();
  options.info = info;
  return options;
}

llvm::Error mlir::diffattn::checkOptions(const Options &options) {
  if (!options.check.empty() && options.check != "unfused" &&
      options.check != "oracle")
    return makeError(ErrorClass::Usage,
                     "--check: expected unfused or oracle, but got '" +
                         options.check + "'");
  if (options.check == "oracle" && options.from != "input")
    return makeError(ErrorClass::Usage,
                     "--check=oracle: expected a module in stage input, which "
                     "can be interpreted, but got stage " +
                         options.from);
  if (Failure failure = checkThreads(options.threads))
    return makeError(failure.getClass(), "--" + failure.getMessage());
  if (options.prefetchBytes < -1 || options.prefetchBytes > kMaxPrefetchBytes)
    return makeError(
        ErrorClass::Usage,
        "--prefetch-bytes: expected 0 to " + std::to_string(kMaxPrefetchBytes) +
            ", or -1, but got " + std::to_string(options.prefetchBytes));
  for (auto [tolerance, what] :
       {std::pair(options.rtol, "--rtol"), std::pair(options.atol, "--atol")})
    if (tolerance && !(*tolerance >= 0))
      return makeError(ErrorClass::Usage,
                       llvm::Twine(what) +
                           ": expected a number of at least 0, but got " +
                           llvm::formatv("{0}", *tolerance).str());
  if (!options.emit.empty())
    for (auto [given, what] :
         {std::pair(!options.inputs.empty(), "--input"),
          std::pair(!options.outputs.empty(), "--output"),
          std::pair(!options.expected.empty(), "--expected"),
          std::pair(!options.check.empty(), "--check"),
          std::pair(options.bench > 0, "--bench")})
      if (given)
        return makeError(ErrorClass::Usage, llvm::Twine(what) +
                                                ": expected none with --emit, "
                                                "which calls no function");
  if (options.emit.empty() && options.emitFile != "-")
    return makeError(ErrorClass::Usage,
                     "-o: expected it with --emit; results of a call are "
                     "written by --output");
  if ((options.emit == "object" || options.emit == "cubin") &&
      options.emitFile == "-" && llvm::outs().is_displayed())
    return makeError(ErrorClass::Usage,
                     "--emit=" + options.emit +
                         ": expected -o with a file, because it is no text "
                         "for a terminal");
  if (options.emit == "bundle" && options.emitFile == "-")
    return makeError(ErrorClass::Usage,
                     "--emit=bundle: expected -o with a folder for the bundle");
  if (options.emit != "bundle" && options.copyWeights)
    return makeError(ErrorClass::Usage,
                     "--copy-weights: expected it with --emit=bundle");
  if (options.bench < 0)
    return makeError(ErrorClass::Usage, "--bench: expected a number of calls, "
                                        "but got " +
                                            llvm::Twine(options.bench));
  if (options.positional.size() != 1)
    return makeError(ErrorClass::Usage,
                     "expected one model file, but got " +
                         llvm::Twine(options.positional.size()) +
                         " (see diffattn-run --help)");
  return llvm::Error::success();
}
