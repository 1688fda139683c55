//===- diffattn-run.cpp - compile a module, bind its weights, run it ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Compare.h"
#include "Inputs.h"
#include "SlowNotice.h"

#include "DiffAttn/Execution/Program.h"
#include "DiffAttn/Execution/Versions.h"
#include "DiffAttn/Runtime/Runtime.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <unistd.h>

using namespace mlir::diffattn;
namespace cl = llvm::cl;

static cl::OptionCategory callGroup("Call", "What to call, and with what");
static cl::OptionCategory compileGroup("Compile", "How to compile");
static cl::OptionCategory resultGroup("Results", "What to do with the results");
static cl::OptionCategory aboutGroup("About", "This tool and this machine");

static cl::list<std::string> positional(cl::Positional,
                                        cl::desc("<model.mlir>"));

static cl::opt<std::string>
    entry("entry",
          cl::desc("Function to call (default: the only one, or forward)"),
          cl::value_desc("name"), cl::cat(callGroup));
static cl::list<std::string>
    inputs("input",
           cl::desc("An argument, in order: x.npy, 2x5xi64=1,2,..., f32=0.5,\n"
                    "random:2x3xf32, random:2x3xi64:0:99"),
           cl::value_desc("what"), cl::cat(callGroup));
static cl::list<std::string> weightPaths(
    "weights",
    cl::desc("Weights: .safetensors, an index of shards, or a folder"),
    cl::value_desc("path"), cl::cat(callGroup));
static cl::opt<uint64_t> seed("seed", cl::desc("Seed of random arguments"),
                              cl::init(0), cl::cat(callGroup));

static cl::opt<std::string>
    target("target",
           cl::desc("cpu, or cpu:<isa>: native, avx512bf16, avx512, avx2,\n"
                    "generic"),
           cl::init("cpu"), cl::value_desc("target"), cl::cat(compileGroup));
static cl::opt<int64_t> threads("threads",
                                cl::desc("Threads (default 0: OpenMP's)"),
                                cl::init(0), cl::cat(compileGroup));
static cl::opt<bool>
    raise("raise", cl::desc("Look for attention in unfused graphs (default)"),
          cl::init(true), cl::cat(compileGroup));
static cl::opt<std::string>
    emit("emit",
         cl::desc("Print the module after a stage and stop: input, raised,\n"
                  "scheduled, bufferized, loops, llvm, llvm-ir, assembly,\n"
                  "object"),
         cl::value_desc("stage"), cl::cat(compileGroup));
static cl::opt<std::string> emitFile("o",
                                     cl::desc("File for --emit (default -)"),
                                     cl::init("-"), cl::value_desc("file"),
                                     cl::cat(compileGroup));
static cl::opt<bool> noCache("no-cache", cl::desc("Compile in any case"),
                             cl::cat(compileGroup));
static cl::opt<std::string>
    cacheDir("cache-dir",
             cl::desc("Compiled code (default $DIFFATTN_CACHE_DIR, else\n"
                      "~/.cache/diffattn)"),
             cl::value_desc("folder"), cl::cat(compileGroup));
static cl::opt<std::string>
    reproducer("reproducer",
               cl::desc("What a failing pipeline leaves (empty: nothing)"),
               cl::init("diffattn-reproducer.mlir"), cl::value_desc("file"),
               cl::cat(compileGroup));

static cl::list<std::string>
    outputs("output", cl::desc("A .npy file for a result, in order"),
            cl::value_desc("file"), cl::cat(resultGroup));
static cl::list<std::string>
    expected("expected",
             cl::desc("A .npy file that a result must match, in order"),
             cl::value_desc("file"), cl::cat(resultGroup));
static cl::opt<double> rtol("rtol",
                            cl::desc("Relative tolerance (default by type)"),
                            cl::init(-1), cl::cat(resultGroup));
static cl::opt<double> atol_("atol",
                             cl::desc("Absolute tolerance (default by type)"),
                             cl::init(-1), cl::cat(resultGroup));
static cl::opt<std::string>
    check("check",
          cl::desc("reference: compare with the plain path, nothing fused"),
          cl::value_desc("what"), cl::cat(resultGroup));
static cl::opt<int64_t> bench("bench",
                              cl::desc("Time that many calls after a warm-up"),
                              cl::init(0), cl::value_desc("n"),
                              cl::cat(resultGroup));
static cl::opt<bool> quiet("quiet", cl::desc("Do not print the results"),
                           cl::cat(resultGroup));

static cl::opt<bool> info("info",
                          cl::desc("Versions, machine, cache; of a model, its\n"
                                   "functions and weights"),
                          cl::cat(aboutGroup));

static cl::extrahelp examples(R"(
EXAMPLES:
  diffattn-run model.mlir --entry=forward --weights=model.safetensors \
               --input=1x4xi64=1,2,3,4 --output=logits.npy
  diffattn-run attention.mlir --input=random:1x8x512x64xf32 ... \
               --check=reference --bench=20
  diffattn-run model.mlir --emit=scheduled -o -
  diffattn-run cache ls            diffattn-run cache clear

EXIT CODES:
  1 results differ   2 usage   3 IR   4 compiler   5 weights   6 inputs
  7 run time         8 output
)");

/// A dense row-major argument or result.
static DenseView viewOf(const HostArray &array) {
  return {array.data.get(), array.dtype, array.shape};
}

static std::string getCacheFolder() {
  if (!cacheDir.empty())
    return cacheDir;
  if (const char *own = std::getenv("DIFFATTN_CACHE_DIR"); own && *own)
    return own;
  llvm::SmallString<128> path;
  const char *base = std::getenv("XDG_CACHE_HOME");
  if (base && *base)
    path = base;
  else if (llvm::sys::path::home_directory(path))
    llvm::sys::path::append(path, ".cache");
  llvm::sys::path::append(path, "diffattn");
  return path.str().str();
}

static llvm::Error runCacheCommand() {
  ObjectCache cache(getCacheFolder());
  if (positional.size() != 2 ||
      (positional[1] != "ls" && positional[1] != "clear"))
    return makeError(ErrorClass::Usage, "expected cache ls or cache clear");
  if (positional[1] == "clear") {
    auto count = cache.clear();
    if (!count)
      return count.takeError();
    llvm::outs() << "removed " << *count << " from " << getCacheFolder()
                 << "\n";
    return llvm::Error::success();
  }
  auto entries = cache.list();
  if (!entries)
    return entries.takeError();
  int64_t total = 0;
  for (const ObjectCache::Entry &found : *entries) {
    llvm::outs() << llvm::StringRef(found.key).take_front(12) << "  "
                 << llvm::format("%8.1f KiB  %6ld min  ",
                                 static_cast<double>(found.bytes) / 1024,
                                 static_cast<long>(found.secondsOld / 60))
                 << found.description << "\n";
    total += found.bytes;
  }
  llvm::outs() << entries->size() << " in " << getCacheFolder() << ", "
               << llvm::format("%.1f MiB",
                               static_cast<double>(total) / (1 << 20))
               << "\n";
  return llvm::Error::success();
}

static llvm::Expected<std::string> readModel(llvm::StringRef path) {
  auto buffer = llvm::MemoryBuffer::getFileOrSTDIN(path);
  if (!buffer)
    return makeError(ErrorClass::Usage, path +
                                            ": expected a readable file, "
                                            "but got: " +
                                            buffer.getError().message());
  return (*buffer)->getBuffer().str();
}

static CompileOptions getCompileOptions(llvm::StringRef name) {
  CompileOptions options;
  options.target = target;
  options.threads = threads;
  options.raise = raise;
  options.inputName = name.str();
  options.reproducer = reproducer;
  return options;
}

static llvm::Expected<std::unique_ptr<Program>>
makeProgram(llvm::StringRef ir, const CompileOptions &options,
            const WeightFiles &files) {
  llvm::Expected<CompiledModule> module = [&] {
    SlowNotice notice(options.reference ? "compiling the reference"
                                        : "compiling");
    return noCache ? compileModule(ir, options)
                   : ObjectCache(getCacheFolder()).compile(ir, options);
  }();
  if (!module)
    return module.takeError();
  llvm::errs() << module->diagnostics;
  auto program = Program::load(std::move(*module), options.target);
  if (!program || weightPaths.empty())
    return program;
  SlowNotice notice("binding weights");
  int64_t shown = 0;
  auto progress = [&](int64_t done, int64_t total) {
    // A line for every tenth of a gigabyte or more.
    if (total < (int64_t(1) << 30) || (done - shown) * 10 < total)
      return;
    shown = done;
    llvm::errs() << "weights: " << (done >> 20) << " of " << (total >> 20)
                 << " MiB\n";
  };
  if (llvm::Error error = (*program)->bindWeights(files, progress))
    return error;
  return program;
}

static std::string printType(const ValueType &type) {
  return type.text + (type.inPlace && type.kind == ValueType::Tensor
                          ? " (updated in place)"
                          : "");
}

static void printSignature(const Signature &signature) {
  for (const FunctionSignature &function : signature.functions) {
    llvm::outs() << "function " << function.name << "\n";
    for (auto [i, type] : llvm::enumerate(function.arguments))
      llvm::outs() << "  argument " << i << ": " << printType(type) << "\n";
    for (auto [i, type] : llvm::enumerate(function.results))
      llvm::outs() << "  result   " << i << ": " << type.text << "\n";
  }
  for (const WeightDeclaration &weight : signature.weights) {
    llvm::outs() << "weight " << weight.name << ": "
                 << describeType(weight.shape, weight.dtype);
    if (weight.layers)
      llvm::outs() << ", layers " << weight.firstLayer << " to "
                   << weight.firstLayer + weight.layers - 1;
    llvm::outs() << "\n";
  }
}

static llvm::Expected<std::string> chooseEntry(const Signature &signature) {
  if (!entry.empty())
    return entry.getValue();
  if (signature.functions.size() == 1)
    return signature.functions[0].name;
  if (signature.find("forward"))
    return std::string("forward");
  auto found = signature.get("");
  std::string message = describeError(found.takeError()).second;
  return makeError(ErrorClass::Usage, "--entry: " + message);
}

static llvm::Expected<std::vector<HostArray>>
makeArguments(const FunctionSignature &function) {
  std::vector<HostArray> arguments;
  if (inputs.empty()) {
    for (auto [i, type] : llvm::enumerate(function.arguments)) {
      bool isStatic =
          type.kind != ValueType::Unsupported &&
          llvm::none_of(type.shape, [](int64_t s) { return s < 0; });
      if (!isStatic)
        return makeError(ErrorClass::Usage,
                         "expected --input for each of the " +
                             llvm::Twine(function.arguments.size()) +
                             " arguments of '" + function.name +
                             "', because argument " + llvm::Twine(i) + " is " +
                             type.text);
      auto array = makeDefaultInput(type, i, seed);
      if (!array)
        return array.takeError();
      arguments.push_back(std::move(*array));
    }
    return arguments;
  }
  for (auto [i, text] : llvm::enumerate(inputs)) {
    auto array = makeInput(text, i, seed);
    if (!array)
      return array.takeError();
    arguments.push_back(std::move(*array));
  }
  return arguments;
}

static std::vector<ArrayView> viewsOf(std::vector<HostArray> &arrays) {
  std::vector<ArrayView> views;
  for (HostArray &array : arrays) {
    ArrayView view;
    view.data = array.data.get();
    view.dtype = array.dtype;
    view.shape = array.shape;
    views.push_back(view);
  }
  return views;
}

static llvm::Expected<std::vector<HostArray>>
copyArrays(const std::vector<HostArray> &arrays) {
  std::vector<HostArray> copies;
  for (const HostArray &array : arrays) {
    auto copy = HostArray::create(array.dtype, array.shape);
    if (!copy)
      return copy.takeError();
    memcpy(copy->data.get(), array.data.get(), array.getNumBytes());
    copies.push_back(std::move(*copy));
  }
  return copies;
}

static llvm::Error timeCalls(Program &program, llvm::StringRef name,
                             llvm::ArrayRef<ArrayView> views) {
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i)
    if (auto warm = program.call(name, views, threads); !warm)
      return warm.takeError();
  diffattn_rt_counters_reset();
  std::vector<double> times;
  for (int64_t i = 0; i < bench; ++i) {
    auto start = std::chrono::steady_clock::now();
    auto called = program.call(name, views, threads);
    auto end = std::chrono::steady_clock::now();
    if (!called)
      return called.takeError();
    times.push_back(
        std::chrono::duration<double, std::milli>(end - start).count());
  }
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
                               static_cast<long>(bench))
               << "a call: " << counters.gemm_calls / bench
               << " matrix products, " << counters.parallel_calls / bench
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

/// Compares and prints; false if something differs.
static llvm::Expected<bool> compareAll(const Results &results,
                                       llvm::ArrayRef<DenseView> wanted,
                                       llvm::StringRef with) {
  bool all = true;
  for (auto [i, view] : llvm::enumerate(wanted)) {
    auto comparison = compareArrays("result " + std::to_string(i) + with.str(),
                                    results.views[i], view, {rtol, atol_});
    if (!comparison)
      return comparison.takeError();
    llvm::outs() << comparison->text << "\n";
    all &= comparison->matches;
  }
  return all;
}

static llvm::Error checkCounts(const FunctionSignature &function) {
  for (auto [count, what] : {std::pair(outputs.size(), "--output"),
                             std::pair(expected.size(), "--expected")})
    if (count > function.results.size())
      return makeError(ErrorClass::Usage,
                       llvm::Twine("expected at most ") +
                           llvm::Twine(function.results.size()) + " " + what +
                           ", one for each result of '" + function.name +
                           "', but got " + llvm::Twine(count));
  return llvm::Error::success();
}

/// Returns false if results differ from what was expected of them.
static llvm::Expected<bool> runModel(llvm::StringRef path) {
  auto ir = readModel(path);
  if (!ir)
    return ir.takeError();
  CompileOptions options = getCompileOptions(path == "-" ? "stdin" : path);
  if (!emit.empty()) {
    auto text = emitStage(*ir, options, emit);
    if (!text)
      return text.takeError();
    if (llvm::Error error = writeFileWhole(emitFile, {*text}))
      return error;
    return true;
  }
  WeightFiles files;
  for (const std::string &weights : weightPaths)
    if (llvm::Error error = files.add(weights))
      return error;
  auto program = makeProgram(*ir, options, files);
  if (!program)
    return program.takeError();
  const Signature &signature = (*program)->getSignature();
  if (info) {
    printSignature(signature);
    return true;
  }
  auto name = chooseEntry(signature);
  if (!name)
    return name.takeError();
  auto function = signature.get(*name);
  if (!function)
    return function.takeError();
  if (llvm::Error error = checkCounts(**function))
    return error;
  std::vector<HostArray> wanted;
  for (const std::string &file : expected) {
    auto array = readNpy(file);
    if (!array)
      return array.takeError();
    wanted.push_back(std::move(*array));
  }
  auto arguments = makeArguments(**function);
  if (!arguments)
    return arguments.takeError();
  auto original = copyArrays(*arguments); // a call may update some
  if (!original)
    return original.takeError();
  auto called = (*program)->call(*name, viewsOf(*arguments), threads);
  if (!called)
    return called.takeError();
  Results results(std::move(*called), *arguments);
  for (auto [i, file] : llvm::enumerate(outputs))
    if (llvm::Error error =
            writeNpy(file, results.views[i].data, results.views[i].dtype,
                     results.views[i].shape))
      return error;
  if (!quiet)
    for (auto [i, view] : llvm::enumerate(results.views))
      llvm::outs() << "result " << i << ": " << summarizeArray(view) << "\n";
  std::vector<DenseView> wantedViews;
  for (const HostArray &array : wanted)
    wantedViews.push_back(viewOf(array));
  auto matches = compareAll(results, wantedViews, "");
  if (!matches)
    return matches;
  if (!check.empty()) {
    options.reference = true;
    auto plain = makeProgram(*ir, options, files);
    if (!plain)
      return plain.takeError();
    auto again = (*plain)->call(*name, viewsOf(*original), threads);
    if (!again)
      return again.takeError();
    Results reference(std::move(*again), *original);
    auto same = compareAll(results, reference.views, " and the reference");
    if (!same)
      return same;
    *matches &= *same;
  }
  if (bench > 0)
    if (llvm::Error error = timeCalls(**program, *name, viewsOf(*arguments)))
      return error;
  return matches;
}

static llvm::Error checkOptions() {
  if (!check.empty() && check != "reference")
    return makeError(ErrorClass::Usage,
                     "--check: expected reference, but got '" + check + "'");
  if (threads < 0 || threads > 4096)
    return makeError(ErrorClass::Usage,
                     "--threads: expected 0 to 4096, but got " +
                         llvm::Twine(threads));
  if (bench < 0)
    return makeError(ErrorClass::Usage, "--bench: expected a number of calls, "
                                        "but got " +
                                            llvm::Twine(bench));
  if (positional.size() != 1)
    return makeError(ErrorClass::Usage, "expected one model file, but got " +
                                            llvm::Twine(positional.size()) +
                                            " (see diffattn-run --help)");
  return llvm::Error::success();
}

static llvm::Expected<bool> run() {
  if (!positional.empty() && positional[0] == "cache") {
    if (llvm::Error error = runCacheCommand())
      return error;
    return true;
  }
  if (info && positional.empty()) {
    llvm::outs() << getVersionText() << getMachineText() << "cache    "
                 << getCacheFolder() << "\n";
    return true;
  }
  if (llvm::Error error = checkOptions())
    return error;
  return runModel(positional[0]);
}

int main(int argc, char **argv) {
  cl::HideUnrelatedOptions(
      {&callGroup, &compileGroup, &resultGroup, &aboutGroup});
  cl::SetVersionPrinter([](llvm::raw_ostream &os) { os << getVersionText(); });
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "compile a module for the CPU, bind its weights, run it\n",
          &llvm::errs()))
    return static_cast<int>(ErrorClass::Usage);
  llvm::Expected<bool> matches = run();
  int code = 0;
  if (!matches) {
    auto [errorClass, message] = describeError(matches.takeError());
    llvm::errs() << "error (" << stringifyErrorClass(errorClass)
                 << "): " << message << "\n";
    code = static_cast<int>(errorClass);
  } else if (!*matches) {
    code = static_cast<int>(ErrorClass::Mismatch);
  }
  llvm::outs().flush();
  if (llvm::outs().has_error()) {
    llvm::outs().clear_error();
    llvm::errs() << "error (output): expected to write to standard output\n";
    code = static_cast<int>(ErrorClass::Output);
  }
  return code;
}
