//===- diffattn-run.cpp - compile a module, bind its weights, run it ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "../EntryPoints.h"
#include "../StandardStreams.h"
#include "CacheCommand.h"
#include "Compare.h"
#include "Explain.h"
#include "Inputs.h"
#include "Interrupts.h"
#include "Options.h"
#include "Progress.h"
#include "PtxasFolders.h"
#include "RequestedCall.h"
#include "Trace.h"

#include "DiffAttn/Compiler/Bundle.h"
#include "DiffAttn/Compiler/CompiledProgram.h"
#include "DiffAttn/Compiler/InputFile.h"
#include "DiffAttn/Compiler/Oracle.h"
#include "DiffAttn/Compiler/Versions.h"
#include "DiffAttn/Compiler/WriteFile.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Support/Printable.h"
#include "DiffAttn/Runtime/Support/TraceSpan.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>

using namespace mlir::diffattn;
using namespace diffattn_rt;

static Options options;

/// A dense row-major argument or result.
static DenseView viewOf(const HostArray &array) {
  return {array.data.get(), array.dtype, array.shape};
}

static llvm::Expected<std::string> readModel(llvm::StringRef path) {
  const TraceSpan span("run", "read the module");
  auto buffer = readModuleFile(path);
  if (!buffer)
    return buffer.takeError();
  return (*buffer)->getBuffer().str();
}

static CompileOptions getCompileOptions(llvm::StringRef name) {
  CompileOptions compile = options.caller.compile;
  compile.inputName = name.str();
  compile.ptxas.folders = getPtxasFolders();
  // Emitted code is the same with and without --trace.
  compile.trace =
      (!options.trace.empty() || options.explain != ExplainFormat::None) &&
      options.emit.empty();
  return compile;
}

static void report(const CompileDiagnostics &diagnostics) {
  for (const CompileDiagnostic &diagnostic : diagnostics) {
    // Once, also where several modules are compiled.
    static llvm::StringSet<> reported;
    if (diagnostic.category == "diffattn-cache" &&
        !reported.insert(diagnostic.message).second)
      continue;
    const bool always = diagnostic.kind == DiagnosticKind::Note ||
                        diagnostic.kind == DiagnosticKind::Warning;
    const RemarkChoice least = diagnostic.kind == DiagnosticKind::Passed
                                   ? RemarkChoice::All
                                   : RemarkChoice::Missed;
    if (always || options.remarks >= least)
      llvm::errs() << diagnostic.getText() << "\n";
  }
}

/// None with --no-cache, and where no folder is known.
static std::optional<ObjectCache> getCache(int64_t maxBytes) {
  std::string folder = options.noCache ? "" : getCacheFolder(options);
  if (folder.empty())
    return std::nullopt;
  return ObjectCache(std::move(folder), maxBytes);
}

/// Measures native as the cache does, so that it is the same for emitted code
/// and code that runs.
static llvm::Error recallHost() {
  auto limit = getCacheLimit(options);
  if (!limit)
    return limit.takeError();
  if (std::optional<ObjectCache> cache = getCache(*limit))
    cache->recallHost(options.caller.compile.target);
  return llvm::Error::success();
}

static llvm::Expected<CompiledModule>
compileOrTake(llvm::StringRef ir, const CompileOptions &compile) {
  const TraceSpan span("run", "compile, or take from the cache");
  std::optional<Progress> progress(
      std::in_place,
      compile.reference ? "compiling the unfused path" : "compiling");
  auto limit = getCacheLimit(options);
  if (!limit)
    return limit.takeError();
  std::optional<ObjectCache> cache = getCache(*limit);
  auto module =
      cache ? cache->compile(ir, compile) : compileModule(ir, compile);
  progress.reset(); // before anything is said
  if (module && !cache && !options.noCache)
    module->diagnostics.push_back(
        {DiagnosticKind::Warning, "diffattn-cache", "NotKept",
         ("compiled code is not kept: " + kNoCacheFolder).str(), /*file=*/""});
  if (module)
    report(module->diagnostics);
  return module;
}

static llvm::Error emitBundle(llvm::StringRef ir, CompileOptions compile,
                              const WeightFiles &files) {
  if (llvm::Error error = recallHost())
    return error;
  auto targets = getBundleTargets(compile.target);
  if (!targets)
    return targets.takeError();
  std::vector<CompiledModule> modules;
  compile.checkSignature = [&](const Signature &signature) {
    return findWeights(signature, files).takeError();
  };
  for (const std::string &target : *targets) {
    compile.target = target;
    auto module = compileOrTake(ir, compile);
    if (!module)
      return module.takeError();
    modules.push_back(std::move(*module));
  }
  BundleOptions bundle;
  if (!options.linker.empty())
    bundle.linker.program = options.linker;
  bundle.copyWeights = options.copyWeights;
  bundle.batchInvariance = options.caller.compile.batchInvariance;
  // The first folder of weights is the model's.
  if (!options.weightPaths.empty()) {
    llvm::StringRef first = options.weightPaths[0];
    bundle.modelFolder = llvm::sys::fs::is_directory(first)
                             ? first.str()
                             : llvm::sys::path::parent_path(first).str();
    if (bundle.modelFolder.empty())
      bundle.modelFolder = ".";
  }
  if (llvm::Error error =
          writeBundle(modules, *targets, files, bundle, options.emitFile))
    return error;
  llvm::errs() << "wrote " << printable(options.emitFile) << " for "
               << llvm::join(*targets, ", ") << "\n";
  return llvm::Error::success();
}

static llvm::Expected<std::unique_ptr<CompiledProgram>>
makeProgram(llvm::StringRef ir, CompileOptions compile,
            const WeightFiles &files,
            llvm::function_ref<llvm::Error(const Signature &)> check,
            CompileDiagnostics *diagnostics = nullptr) {
  CudaLibraries libraries{options.caller.libraries.driver,
                          options.caller.libraries.cublasLt,
                          getPackageFolders()};
  auto target = resolveTarget(compile.target, libraries);
  if (!target)
    return target.takeError();
  compile.target = *target;
  compile.checkSignature = [&](const Signature &signature) {
    if (!options.weightPaths.empty())
      if (auto weights = findWeights(signature, files); !weights)
        return weights.takeError();
    return check(signature);
  };
  llvm::Expected<CompiledModule> module = compileOrTake(ir, compile);
  if (!module)
    return module.takeError();
  if (diagnostics)
    *diagnostics = module->diagnostics;
  auto program =
      CompiledProgram::load(std::move(*module), compile.target, libraries);
  if (!program || options.weightPaths.empty())
    return program;
  Progress progress("binding weights");
  auto advance = [&](int64_t done, int64_t total) {
    progress.advance(done, total);
    return true;
  };
  if (llvm::Error error = (*program)->bindWeights(files, advance))
    return error;
  return program;
}

static std::string printType(const ValueType &type) {
  return printable(type.text) + (type.inPlace && type.kind == ValueType::Tensor
                                     ? " (updated in place)"
                                     : "");
}

static void printSignature(const Signature &signature) {
  for (const FunctionSignature &function : signature.functions) {
    llvm::outs() << "function " << printable(function.name) << "\n";
    for (auto [i, type] : llvm::enumerate(function.arguments))
      llvm::outs() << "  argument " << i << ": " << printType(type) << "\n";
    for (auto [i, type] : llvm::enumerate(function.results))
      llvm::outs() << "  result   " << i << ": " << printable(type.text)
                   << "\n";
  }
  for (const WeightDeclaration &weight : signature.weights) {
    llvm::outs() << "weight " << printable(weight.name) << ": "
                 << describeType(weight.shape, weight.dtype);
    if (weight.layers)
      llvm::outs() << ", layers " << weight.firstLayer << " to "
                   << weight.firstLayer +
                          (weight.layers - 1) * weight.layerStep;
    if (weight.layers > 1 && weight.layerStep != 1)
      llvm::outs() << ", every " << weight.layerStep;
    llvm::outs() << "\n";
  }
}

static llvm::Expected<std::vector<HostArray>>
copyArrays(const std::vector<HostArray> &arrays) {
  const TraceSpan span("run", "copy arguments");
  std::vector<HostArray> copies;
  for (const HostArray &array : arrays) {
    auto copy = createArray(array.dtype, array.shape);
    if (!copy)
      return copy.takeError();
    memcpy(copy->data.get(), array.data.get(), array.getNumBytes());
    copies.push_back(std::move(*copy));
  }
  return copies;
}

static llvm::Error timeCalls(Program &program, llvm::StringRef name,
                             llvm::ArrayRef<ArrayView> views) {
  const TraceSpan span("run", "time calls");
  std::optional<Progress> progress(std::in_place, "timing calls");
  constexpr int kWarmUp = 3;
  std::vector<CallResult> results;
  for (int i = 0; i < kWarmUp; ++i)
    if (Failure failure = program.call(name.str(), views,
                                       options.caller.compile.threads, results))
      return toError(failure);
  diffattn_rt_counters_reset();
  std::vector<double> times;
  for (int64_t i = 0; i < options.bench; ++i) {
    auto start = std::chrono::steady_clock::now();
    Failure failure = program.call(name.str(), views,
                                   options.caller.compile.threads, results);
    auto end = std::chrono::steady_clock::now();
    if (failure)
      return toError(failure);
    times.push_back(
        std::chrono::duration<double, std::milli>(end - start).count());
  }
  progress.reset();
  diffattn_counters counters;
  diffattn_rt_counters(&counters);
  std::sort(times.begin(), times.end());
  auto at = [&](double part) {
    return times[static_cast<size_t>(
        part * static_cast<double>(times.size() - 1) + 0.5)];
  };
  llvm::outs() << llvm::format("time: median %.4f ms, p10 %.4f, p90 %.4f, "
                               "least %.4f, %ld calls\n",
                               at(0.5), at(0.1), at(0.9), times.front(),
                               static_cast<long>(options.bench))
               << "a call: " << counters.gemm_calls / options.bench
               << " matrix products, "
               << counters.parallel_calls / options.bench
               << " parallel loops; workspace "
               << llvm::format("%.2f MiB, grown %ld times\n",
                               static_cast<double>(counters.arena_bytes_peak) /
                                   (1 << 20),
                               static_cast<long>(counters.arena_grows));
  return llvm::Error::success();
}

namespace {
/// Results of a call as views, whoever owns them.
struct Results {
  std::vector<CallResult> called;
  std::vector<DenseView> views;

  Results(std::vector<CallResult> results, const std::vector<HostArray> &args)
      : called(std::move(results)) {
    for (const CallResult &result : called)
      views.push_back(
          viewOf(result.argument ? args[*result.argument] : result.array));
  }
};
} // namespace

/// Tolerance of the options for results that are computed from `arguments`.
static Tolerance getTolerance(llvm::ArrayRef<HostArray> arguments) {
  llvm::SmallVector<DType> types;
  for (const HostArray &array : arguments)
    types.push_back(array.dtype);
  return {options.rtol.value_or(-1), options.atol.value_or(-1),
          getCoarsestType(types)};
}

/// Compares and prints; false if something differs.
static llvm::Expected<bool> compareAll(llvm::ArrayRef<DenseView> got,
                                       llvm::ArrayRef<DenseView> expected,
                                       llvm::StringRef with,
                                       Tolerance tolerance) {
  bool all = true;
  for (auto [i, view] : llvm::enumerate(expected)) {
    auto comparison = compareArrays("result " + std::to_string(i) + with.str(),
                                    got[i], view, tolerance);
    if (!comparison)
      return comparison.takeError();
    llvm::outs() << comparison->text << "\n";
    all &= comparison->matches;
  }
  return all;
}

static bool areSame(const HostArray &a, const HostArray &b) {
  return memcmp(a.data.get(), b.data.get(), a.getNumBytes()) == 0;
}

/// Runs the module once more, by the plain path, on `arguments`, and compares
/// the results and what either call changed of its arguments, which were
/// `before`; false if something differs.
static llvm::Expected<bool> checkUnfused(Program &plain, llvm::StringRef name,
                                         std::vector<HostArray> arguments,
                                         llvm::ArrayRef<HostArray> before,
                                         const Results &results,
                                         llvm::ArrayRef<HostArray> updated) {
  std::vector<CallResult> called;
  if (Failure failure = plain.call(name.str(), viewsOf(arguments),
                                   options.caller.compile.threads, called))
    return toError(failure);
  Results reference(std::move(called), arguments);
  const Tolerance tolerance = getTolerance(before);
  constexpr llvm::StringLiteral kWith = " and the reference";
  auto same = compareAll(results.views, reference.views, kWith, tolerance);
  if (!same)
    return same;
  bool isNothing = reference.views.empty();
  for (int i = 0, count = static_cast<int>(before.size()); i < count; ++i) {
    const HostArray &was = before[i];
    const bool isResult =
        llvm::any_of(results.called, [&](const CallResult &result) {
          return result.argument == i;
        });
    if (isResult || (areSame(was, updated[i]) && areSame(was, arguments[i])))
      continue;
    auto comparison =
        compareArrays("argument " + std::to_string(i) + kWith.str(),
                      viewOf(updated[i]), viewOf(arguments[i]), tolerance);
    if (!comparison)
      return comparison.takeError();
    llvm::outs() << comparison->text << "\n";
    *same &= comparison->matches;
    isNothing = false;
  }
  if (isNothing)
    llvm::errs() << "warning: nothing was compared: the function has no "
                    "results, and no argument was changed\n";
  return same;
}

/// Judges results by the module as given, interpreted on `arguments`; false if
/// one is too far off.
static llvm::Expected<bool>
judgeAll(llvm::StringRef ir, const CompileOptions &compile,
         llvm::StringRef entry, llvm::ArrayRef<HostArray> arguments,
         const WeightFiles &files, const Results &results) {
  std::optional<Progress> progress(std::in_place, "interpreting the module");
  OracleOptions oracleOptions;
  oracleOptions.inputName = compile.inputName;
  std::vector<ArrayView> views;
  for (const DenseView &view : results.views)
    views.push_back({const_cast<void *>(view.data),
                     view.dtype,
                     SizeList(view.shape.data(), view.shape.size()),
                     {},
                     false});
  auto judged = judgeCall(ir, entry, arguments, views, files, oracleOptions);
  progress.reset();
  if (!judged)
    return judged.takeError();
  llvm::outs() << judged->text << "\n";
  return judged->matches;
}

/// Returns false if results differ from what was expected of them.
static llvm::Expected<bool> runModel(llvm::StringRef path) {
  auto ir = readModel(path);
  if (!ir)
    return ir.takeError();
  CompileOptions compile = getCompileOptions(path == "-" ? "stdin" : path);
  if (!options.emit.empty() && options.emit != "bundle") {
    if (llvm::Error error = recallHost())
      return error;
    const TraceSpan span("run", "emit " + options.emit);
    CompileDiagnostics diagnostics;
    auto text = emitStage(*ir, compile, options.emit, &diagnostics);
    if (!text)
      return text.takeError();
    report(diagnostics);
    if (llvm::Error error = writeFile(options.emitFile, {*text}))
      return error;
    return true;
  }
  WeightFiles files;
  for (const std::string &weights : options.weightPaths)
    if (llvm::Error error = files.add(weights))
      return error;
  if (options.emit == "bundle") {
    if (llvm::Error error = emitBundle(*ir, compile, files))
      return error;
    return true;
  }
  std::optional<RequestedCall> call;
  auto prepare = [&](const Signature &signature) -> llvm::Error {
    if (options.info || call)
      return llvm::Error::success();
    const TraceSpan span("run", "make arguments");
    auto prepared = prepareCall(signature, options);
    if (!prepared)
      return prepared.takeError();
    call = std::move(*prepared);
    return llvm::Error::success();
  };
  CompileDiagnostics diagnostics;
  auto program = makeProgram(*ir, compile, files, prepare, &diagnostics);
  if (!program)
    return program.takeError();
  if (options.info) {
    printSignature((*program)->getSignature());
    return true;
  }
  // A program from the cache was not compiled, so no call was prepared yet.
  if (llvm::Error error = prepare((*program)->getSignature()))
    return error;
  auto &[name, expected, arguments] = *call;
  auto original = copyArrays(arguments); // a call may update some
  if (!original)
    return original.takeError();
  std::vector<CallResult> called;
  if (Failure failure = (*program)->call(
          name, viewsOf(arguments), options.caller.compile.threads, called))
    return toError(failure);
  Results results(std::move(called), arguments);
  const TraceSpan ending("run", "write and check results");
  for (auto [i, file] : llvm::enumerate(options.outputs))
    if (llvm::Error error =
            writeNpy(file, results.views[i].data, results.views[i].dtype,
                     results.views[i].shape))
      return error;
  if (!options.quiet && options.explain == ExplainFormat::None)
    for (auto [i, view] : llvm::enumerate(results.views))
      llvm::outs() << "result " << i << ": " << summarizeArray(view) << "\n";
  std::vector<DenseView> expectedViews;
  for (const HostArray &array : expected)
    expectedViews.push_back(viewOf(array));
  auto matches =
      compareAll(results.views, expectedViews, "", getTolerance(*original));
  if (!matches)
    return matches;
  if (options.check == "oracle") {
    auto judged = judgeAll(*ir, compile, name, *original, files, results);
    if (!judged)
      return judged.takeError();
    *matches &= *judged;
  } else if (!options.check.empty()) {
    compile.reference = true;
    auto plain = makeProgram(*ir, compile, files, prepare);
    if (!plain)
      return plain.takeError();
    auto copies = copyArrays(*original);
    if (!copies)
      return copies.takeError();
    auto same = checkUnfused(**plain, name, std::move(*copies), *original,
                             results, arguments);
    if (!same)
      return same;
    *matches &= *same;
  }
  if (options.bench > 0)
    if (llvm::Error error = timeCalls(**program, name, viewsOf(arguments)))
      return error;
  if (options.explain != ExplainFormat::None) {
    const int64_t threads = options.caller.compile.threads;
    const std::vector<ArrayView> views = viewsOf(arguments);
    auto again = [&, &entry = name] {
      std::vector<CallResult> ignored;
      return toError((*program)->call(entry, views, threads, ignored));
    };
    ExplanationFacts facts;
    facts.name = compile.inputName;
    facts.module = *ir;
    facts.diagnostics = getPlacedDiagnostics(diagnostics);
    if (llvm::Error error = explainCalls(
            again, std::move(facts), threads ? threads : diffattn_rt_threads(),
            options.explain))
      return error;
  }
  return matches;
}

static llvm::Expected<bool> run() {
  if (llvm::Error error = applyGiven(options))
    return error;
  if (!options.positional.empty() && options.positional[0] == "cache") {
    if (llvm::Error error = runCacheCommand(options))
      return error;
    return true;
  }
  if (options.info && options.positional.empty()) {
    PtxasSearch search;
    search.program = options.caller.compile.ptxas.program;
    search.folders = getPtxasFolders();
    std::string error;
    const std::string folder = getCacheFolder(options);
    llvm::outs() << getVersionText() << getMachineText() << "ptxas    "
                 << findPtxas(search, error).value_or("none") << "\ncache    "
                 << (folder.empty() ? "none" : printable(folder)) << "\n";
    return true;
  }
  if (llvm::Error error = checkOptions(options))
    return error;
  return runModel(options.positional[0]);
}

int diffattn_run_main(int argc, char **argv) {
  guardStandardStreams(
      {"error (output): ", static_cast<int>(ErrorClass::Output)});
  // A pipe without a reader, and a limit of file sizes: writing fails with an
  // error, of the linker and the assembler too, and files are cleared away.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  removeUnfinishedOnInterrupt();
  std::optional<Options> parsed = parseOptions(argc, argv);
  if (!parsed)
    return static_cast<int>(ErrorClass::Usage);
  options = std::move(*parsed);
  // A number that the user gave OpenMP is taken as it is.
  if (const char *threads = std::getenv("OMP_NUM_THREADS"); threads && *threads)
    diffattn_rt_adapt_threads(0);
  llvm::Expected<bool> matches = runTraced(options.trace, run);
  int code = 0;
  if (!matches) {
    llvm::Error error = matches.takeError();
    const bool readerHasGone = error.isA<ReaderHasGoneError>();
    auto [errorClass, message] = describeError(std::move(error));
    if (readerHasGone)
      return kReaderHasGone;
    llvm::errs() << "error (" << stringifyErrorClass(errorClass)
                 << "): " << message << "\n";
    code = static_cast<int>(errorClass);
  } else if (!*matches) {
    code = static_cast<int>(ErrorClass::Mismatch);
  }
  return code;
}
