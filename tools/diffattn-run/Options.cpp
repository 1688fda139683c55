//===- Options.cpp - the command line of diffattn-run ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Options.h"

#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Compiler/Versions.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <deque>
#include <memory>

using namespace mlir::diffattn;
using namespace diffattn_rt;
namespace cl = llvm::cl;

static constexpr const char *kExamples = R"(
EXAMPLES:
  diffattn-run model.mlir --entry=forward --weights=model.safetensors \
               --input=1x4xi64=1,2,3,4 --output=logits.npy
  diffattn-run attention.mlir --input=random:1x8x512x64xf32 ... \
               --check=unfused --bench=20
  diffattn-run model.mlir --input=... --explain
  diffattn-run model.mlir --input=... --trace=trace.json
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

namespace {
/// A flag of one of the compiler's options (getOptionTable).
struct TableFlag {
  /// The option's name, the name of its value, and help after the option's own:
  /// where a flag does more or has another default.
  llvm::StringLiteral option, valueName, more;
};
} // namespace

static constexpr TableFlag kTableFlags[] = {
    {"target", "target",
     "; --info lists ISAs; chips: sm_80, sm_86, sm_89, sm_90, sm_90a; to emit, "
     "no GPU is needed (default sm_80); for bundles "
     "cuda:<chip>,<chip>/<isa of the host>"},
    {"threads", "n", " (default 0)"},
    {"prefetch_bytes", "n", " (default -1)"},
    {"raise", "bool", " (default true)"},
    {"batch_invariant", "bool", "; or auto (the default)"},
    {"unchecked", "bool", " (default false)"},
    {"from", "stage", ": input (the default) or gpu"},
    {"ptxas", "path",
     ", $CUDA_HOME/bin, /usr/local/cuda/bin or $DIFFATTN_VENV, else .venv "
     "beside build (default ptxas)"},
    {"cuda_driver", "path", ""},
    {"cublaslt", "path",
     " (default: the process's, the loader's, /usr/local/cuda/lib64's, or that "
     "of Python packages in $DIFFATTN_VENV or .venv)"},
    {"cache_limit", "MiB", " (default $DIFFATTN_CACHE_LIMIT, else 1024)"},
    {"reproducer", "file", " (default diffattn-reproducer.mlir)"},
};

/// Name of the option's flag, without dashes before it.
static std::string flagName(llvm::StringRef option) {
  std::string name = option.str();
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// `text` in lines that fit beside the flags.
static std::string wrap(llvm::StringRef text) {
  constexpr size_t kColumns = 46;
  std::string lines;
  size_t used = 0;
  llvm::SmallVector<llvm::StringRef> words;
  text.split(words, ' ', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef word : words) {
    const bool fits = used + word.size() + (used ? 1 : 0) <= kColumns;
    if (used)
      lines += fits ? " " : "\n";
    used = fits ? used + word.size() + (used ? 1 : 0) : word.size();
    lines += word;
  }
  return lines;
}

namespace {
/// Flags that take texts, for the table to read.
class TableFlags {
public:
  explicit TableFlags(cl::OptionCategory &category) {
    for (const TableFlag &flag : kTableFlags) {
      const OptionRow &row = *findOption(flag.option);
      texts.push_back(
          {flagName(flag.option), wrap((row.help + flag.more).str())});
      const bool isTruth = std::holds_alternative<TruthOption>(row.kind) ||
                           row.name == "batch_invariant";
      flags.push_back(std::make_unique<cl::opt<std::string>>(
          llvm::StringRef(texts.back().first), cl::desc(texts.back().second),
          cl::value_desc(flag.valueName), cl::cat(category),
          isTruth ? cl::ValueOptional : cl::ValueRequired));
    }
  }

  /// Names and texts of those that were given; `--unchecked` alone is true.
  std::vector<std::pair<std::string, std::string>> getGiven() const {
    std::vector<std::pair<std::string, std::string>> given;
    for (auto [flag, option] : llvm::zip_equal(kTableFlags, flags))
      if (option->getNumOccurrences()) {
        const bool isAlone =
            option->getValue().empty() &&
            option->getValueExpectedFlag() == cl::ValueOptional;
        given.push_back(
            {flag.option.str(), isAlone ? "true" : option->getValue()});
      }
    return given;
  }

private:
  // Names and helps, which flags point at.
  std::deque<std::pair<std::string, std::string>> texts;
  std::vector<std::unique_ptr<cl::opt<std::string>>> flags;
};
} // namespace

llvm::Error mlir::diffattn::applyGiven(Options &options) {
  for (const auto &[name, text] : options.given) {
    if (llvm::Error error =
            setOption(options.caller, name, text, "--" + flagName(name)))
      return error;
  }
  return llvm::Error::success();
}

bool mlir::diffattn::wasGiven(const Options &options, llvm::StringRef name) {
  return llvm::any_of(options.given,
                      [&](const auto &one) { return one.first == name; });
}

std::optional<Options> mlir::diffattn::parseOptions(int argc, char **argv) {
  // LLVM's libraries register hundreds of options, some under our names.
  cl::ResetCommandLineParser();
  cl::OptionCategory call("1. Call", "What to call, and with what");
  cl::OptionCategory compile("2. Compile", "How to compile");
  cl::OptionCategory results("3. Results", "What to do with the results");
  cl::OptionCategory about("4. About", "This tool and this machine");

  cl::list<std::string> positional(cl::Positional, cl::desc("<model.mlir>"));
  cl::opt<std::string> entry(
      "entry",
      cl::desc("Function to call (default: the only one, or\n"
               "forward)"),
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

  const TableFlags flags(compile);
  const std::string stages =
      wrap("Print the module after a stage, and stop: " +
           llvm::join(getEnumWords<Stage>(), ", ") +
           "; bundle: a folder that runs without a compiler");
  cl::opt<std::string> emit("emit", cl::desc(stages), cl::value_desc("stage"),
                            cl::cat(compile));
  cl::opt<std::string> emitFile(
      "o", cl::desc("File for --emit (default -), or folder"), cl::init("-"),
      cl::value_desc("file"), cl::cat(compile));
  cl::opt<bool> copyWeights(
      "copy-weights",
      cl::desc("With --emit=bundle: copy the weight files into the\n"
               "bundle (default: it points at them)"),
      cl::cat(compile));
  cl::opt<std::string> linker(
      "lld",
      cl::desc("With --emit=bundle: LLVM's linker, a path or a\n"
               "name to look for in PATH and LLVM's folder\n"
               "(default: that of a wheel, else ld.lld)"),
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
      cl::desc("unfused: compare with the plain path, nothing\n"
               "fused; oracle: with the module as given,\n"
               "interpreted in f64, by docs/numerics.md's bounds"),
      cl::value_desc("what"), cl::cat(results));
  cl::opt<int64_t> bench("bench", cl::desc("Time n calls, after a warm-up"),
                         cl::init(0), cl::value_desc("n"), cl::cat(results));
  cl::opt<std::string> trace(
      "trace",
      cl::desc("Chrome's trace JSON of this run: passes, functions,\n"
               "products and attentions, by thread"),
      cl::value_desc("file"), cl::cat(results));
  cl::opt<ExplainFormat> explain(
      "explain", cl::ValueOptional,
      cl::desc("Instead of the results: a row for each product and\n"
               "attention, what became of it and its time:"),
      cl::values(clEnumValN(ExplainFormat::Text, "text", "A table (default)"),
                 clEnumValN(ExplainFormat::Text, "", ""),
                 clEnumValN(ExplainFormat::JSON, "json", "A list of objects")),
      cl::init(ExplainFormat::None), cl::cat(results));
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
  options.emit = emit;
  options.given = flags.getGiven();
  options.emitFile = emitFile;
  options.noCache = noCache;
  options.copyWeights = copyWeights;
  options.linker = linker;
  options.remarks = remarks;
  options.cacheDir = cacheDir;
  options.caller.compile.reproducer = "diffattn-reproducer.mlir";
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
  options.trace = trace;
  options.explain = explain;
  llvm::SmallString<128> optTool(llvm::sys::path::parent_path(argv[0]));
  llvm::sys::path::append(optTool, "diffattn-opt");
  options.caller.compile.optTool = optTool.str().str();
  options.info = info;
  return options;
}

llvm::Error mlir::diffattn::checkOptions(const Options &options) {
  if (!options.check.empty() && options.check != "unfused" &&
      options.check != "oracle")
    return makeError(ErrorClass::Usage,
                     "--check: expected unfused or oracle, but got '" +
                         options.check + "'");
  if (options.check == "oracle" && options.caller.compile.from != Stage::Input)
    return makeError(ErrorClass::Usage,
                     "--check=oracle: expected a module in stage input, which "
                     "can be interpreted, but got stage " +
                         stringifyStage(options.caller.compile.from));
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
          std::pair(options.bench > 0, "--bench"),
          std::pair(options.explain != ExplainFormat::None, "--explain")})
      if (given)
        return makeError(ErrorClass::Usage, llvm::Twine(what) +
                                                ": expected none with --emit, "
                                                "which calls no function");
  if (options.explain != ExplainFormat::None &&
      !llvm::StringRef(options.caller.compile.target).starts_with("cpu"))
    return makeError(ErrorClass::Usage,
                     "--explain: expected a target of CPUs, whose code records "
                     "its times, but got " +
                         options.caller.compile.target);
  if (options.explain != ExplainFormat::None && !options.trace.empty())
    return makeError(ErrorClass::Usage,
                     "--explain: expected no --trace, because one recording "
                     "is made at a time");
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
