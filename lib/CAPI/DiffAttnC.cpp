//===- DiffAttnC.cpp - C API of diffattn ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
// First: the C API's header has the element types only where this has not.
#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "diffattn-c/DiffAttn.h"

#include "DiffAttn/Compiler/Bundle.h"
#include "DiffAttn/Compiler/CallerOptions.h"
#include "DiffAttn/Compiler/CompiledProgram.h"
#include "DiffAttn/Compiler/Device.h"
#include "DiffAttn/Compiler/Explanation.h"
#include "DiffAttn/Compiler/Oracle.h"
#include "DiffAttn/Compiler/Versions.h"
#include "DiffAttn/Runtime/Program/CInterface.h"
#include "DiffAttn/Runtime/Program/Call.h"
#include "DiffAttn/Schedule/CpuSchedule.h"
#include "DiffAttn/Target/HostFacts.h"

#include <cstring>
#include <new>

using namespace mlir::diffattn;
using namespace diffattn_rt;

struct diffattn_options : CallerOptions {};

namespace {
/// Messages of the compiler, with the texts that the C API points at.
class DiagnosticList {
public:
  DiagnosticList() = default;
  explicit DiagnosticList(const CompileDiagnostics &diagnostics)
      : lines(printDiagnostics(diagnostics)) {
    for (const CompileDiagnostic &diagnostic : diagnostics)
      entries.push_back(
          {diagnostic, diagnostic.getLocation(), diagnostic.getText()});
  }

  const std::string &getLines() const { return lines; }
  size_t size() const { return entries.size(); }
  diffattn_diagnostic operator[](size_t i) const {
    const Entry &entry = entries[i];
    return {static_cast<int32_t>(entry.diagnostic.kind),
            entry.diagnostic.category.c_str(),
            entry.diagnostic.name.c_str(),
            entry.diagnostic.message.c_str(),
            entry.location.c_str(),
            entry.text.c_str()};
  }

private:
  struct Entry {
    CompileDiagnostic diagnostic;
    std::string location, text;
  };
  std::vector<Entry> entries;
  std::string lines;
};
} // namespace

struct diffattn_program {
  std::unique_ptr<CompiledProgram> program;
  DiagnosticList diagnostics;
  bool fromCache;
  // One for each call of bind_weights; the program reads from their mappings.
  std::vector<std::unique_ptr<WeightFiles>> files;
};

static thread_local LastError lastError;
/// Diagnostics of the last call that compiled and gave no program.
static thread_local DiagnosticList lastDiagnostics;

static int32_t fail(ErrorClass errorClass, const llvm::Twine &message) {
  return lastError.keep({errorClass, message.str()});
}

static int32_t fail(llvm::Error error) {
  auto [errorClass, message] = describeError(std::move(error));
  return fail(errorClass, message);
}

static int32_t fail(const Failure &failure) { return lastError.keep(failure); }

static Program &programOf(const diffattn_program *program) {
  return *program->program;
}

#define DIFFATTN_HANDLE diffattn_program
#define DIFFATTN_NAME(name) diffattn_##name
#define DIFFATTN_NOUN "program"
#include "DiffAttn/Runtime/Program/CFunctions.inc"

int32_t diffattn_api_version(void) {
  return DIFFATTN_API_MAJOR * 1000 + DIFFATTN_API_MINOR;
}

const char *diffattn_version_text(void) {
  static const std::string text = getVersionText();
  return text.c_str();
}

const char *diffattn_last_error(void) { return lastError.get(); }

diffattn_options *diffattn_options_create(void) {
  return new diffattn_options();
}

void diffattn_options_destroy(diffattn_options *options) { delete options; }

int32_t diffattn_options_set(diffattn_options *options, const char *name,
                             const char *value) {
  if (Failure failure = checkPointers(
          {{"options", options}, {"name", name}, {"value", value}}))
    return fail(failure);
  if (llvm::Error error = setOption(*options, name, value))
    return fail(std::move(error));
  return DIFFATTN_OK;
}

const char *diffattn_call_size_bounds(int64_t queries, int64_t keys) {
  static thread_local std::string text;
  text = getCallSizeBounds(queries, keys);
  return text.c_str();
}

const char *diffattn_options_describe(void) {
  static const std::string text = describeOptions();
  return text.c_str();
}

/// Fails where a module of `bytes` bytes, or one of `others`, is a null
/// pointer.
static Failure checkModule(const char *ir, size_t bytes,
                           std::initializer_list<NamedPointer> others) {
  if (bytes > 0)
    if (Failure failure = checkPointers({{"ir", ir}}))
      return failure;
  return checkPointers(others);
}

/// The cache that options name; null: none.
static std::optional<ObjectCache> getCache(const diffattn_options &options) {
  if (options.cache.empty())
    return std::nullopt;
  return ObjectCache(options.cache, options.cacheMiB << 20);
}

/// Measures native as the cache does, so that it is the same without the cache.
static void recallHost(const diffattn_options &options) {
  if (std::optional<ObjectCache> cache = getCache(options))
    cache->recallHost(options.compile.target);
}

/// Compiles, or takes from the cache that `options` name.
static llvm::Expected<CompiledModule> compile(llvm::StringRef ir,
                                              const CompileOptions &compile,
                                              const diffattn_options &options) {
  std::optional<ObjectCache> cache = getCache(options);
  return cache ? cache->compile(ir, compile) : compileModule(ir, compile);
}

int32_t diffattn_compile(const char *ir, size_t ir_bytes,
                         const diffattn_options *options,
                         diffattn_program **program) {
  if (Failure failure = checkModule(ir, ir_bytes, {{"program", program}}))
    return fail(failure);
  diffattn_options defaults;
  if (!options)
    options = &defaults;
  llvm::StringRef text(ir, ir_bytes);
  CompileOptions chosen = options->compile;
  auto target = resolveTarget(chosen.target, options->libraries);
  if (!target)
    return fail(target.takeError());
  chosen.target = *target;
  WeightFiles files;
  for (const std::string &path : options->weights)
    if (llvm::Error error = files.add(path))
      return fail(std::move(error));
  if (!options->weights.empty())
    chosen.checkSignature = [&](const Signature &signature) {
      return findWeights(signature, files).takeError();
    };
  llvm::Expected<CompiledModule> module = compile(text, chosen, *options);
  if (!module)
    return fail(module.takeError());
  auto result = std::make_unique<diffattn_program>();
  result->diagnostics = DiagnosticList(module->diagnostics);
  result->fromCache = module->fromCache;
  auto loaded = CompiledProgram::load(std::move(*module), chosen.target,
                                      options->libraries);
  if (!loaded)
    return fail(loaded.takeError());
  result->program = std::move(*loaded);
  *program = result.release();
  return DIFFATTN_OK;
}

void diffattn_program_destroy(diffattn_program *program) { delete program; }

const char *diffattn_program_diagnostics(const diffattn_program *program) {
  if (!isGiven(program))
    return "";
  return program->diagnostics.getLines().c_str();
}

static const DiagnosticList &getDiagnostics(const diffattn_program *program) {
  return program ? program->diagnostics : lastDiagnostics;
}

int32_t diffattn_num_diagnostics(const diffattn_program *program) {
  return static_cast<int32_t>(getDiagnostics(program).size());
}

int32_t diffattn_get_diagnostic(const diffattn_program *program, int32_t i,
                                diffattn_diagnostic *diagnostic) {
  if (Failure failure = checkPointers({{"diagnostic", diagnostic}}))
    return fail(failure);
  const DiagnosticList &list = getDiagnostics(program);
  if (i < 0 || static_cast<size_t>(i) >= list.size())
    return fail(ErrorClass::Usage,
                "expected the number of a diagnostic below " +
                    llvm::Twine(list.size()) + ", but got " + llvm::Twine(i));
  *diagnostic = list[static_cast<size_t>(i)];
  return DIFFATTN_OK;
}

int32_t diffattn_program_from_cache(const diffattn_program *program) {
  return isGiven(program) && program->fromCache;
}

static int32_t bindWeights(diffattn_program *program, const char *const *paths,
                           int32_t count,
                           const CompiledProgram::Progress &progress) {
  Failure failure = checkPointers({{"program", program}});
  if (!failure)
    failure = checkTexts("paths", paths, count);
  if (failure)
    return fail(failure);
  auto files = std::make_unique<WeightFiles>();
  for (int32_t i = 0; i < count; ++i)
    if (llvm::Error error = files->add(paths[i]))
      return fail(std::move(error));
  if (llvm::Error error = program->program->bindWeights(*files, progress))
    return fail(std::move(error));
  program->files.push_back(std::move(files));
  return DIFFATTN_OK;
}

int32_t diffattn_bind_weights(diffattn_program *program,
                              const char *const *paths, int32_t count) {
  return diffattn_bind_weights_telling(program, paths, count, nullptr, nullptr);
}

int32_t diffattn_bind_weights_telling(
    diffattn_program *program, const char *const *paths, int32_t count,
    void (*progress)(void *progress_data, int64_t done, int64_t total),
    void *progress_data) {
  CompiledProgram::Progress report;
  if (progress)
    report = [&](int64_t done, int64_t total) {
      progress(progress_data, done, total);
      return true;
    };
  return bindWeights(program, paths, count, report);
}

int32_t diffattn_bind_weights_while(
    diffattn_program *program, const char *const *paths, int32_t count,
    int32_t (*go_on)(void *data, int64_t done, int64_t total), void *data) {
  CompiledProgram::Progress report;
  if (go_on)
    report = [&](int64_t done, int64_t total) {
      return go_on(data, done, total) != 0;
    };
  return bindWeights(program, paths, count, report);
}

int32_t diffattn_bind_weight_arrays(diffattn_program *program,
                                    const char *const *names,
                                    const diffattn_array *arrays,
                                    int32_t count) {
  Failure failure = checkPointers({{"program", program}});
  if (!failure)
    failure = checkTexts("names", names, count);
  if (!failure && count > 0)
    failure = checkPointers({{"arrays", arrays}});
  if (failure)
    return fail(failure);
  // Arrays are looked at as the arguments of a function that takes them.
  const std::string taker = "weights";
  const Signature taking{
      {{taker, std::vector<ValueType>(static_cast<size_t>(count)), {}}}, {}};
  std::vector<ArrayView> views;
  failure = viewArguments(taking, taker.c_str(), arrays, count, views);
  if (failure)
    return fail(failure);
  auto files = std::make_unique<WeightFiles>();
  for (int32_t i = 0; i < count; ++i) {
    const ArrayView &view = views[static_cast<size_t>(i)];
    if (view.onDevice || !isDense(view))
      return fail(ErrorClass::Input,
                  "weight '" + llvm::Twine(names[i]) +
                      "': expected a dense array in memory of the host, but "
                      "got one " +
                      (view.onDevice ? "on a device" : "with strides"));
    if (llvm::Error error = files->addArray(names[i], view.dtype, view.shape,
                                            static_cast<char *>(view.data)))
      return fail(std::move(error));
  }
  if (llvm::Error error = program->program->bindWeights(*files, nullptr))
    return fail(std::move(error));
  // Nothing reads the files that were bound before.
  program->files.clear();
  program->files.push_back(std::move(files));
  return DIFFATTN_OK;
}

/// A copy that the caller frees.
static int32_t copyText(const std::string &text, char **out) {
  auto *copy = static_cast<char *>(std::malloc(text.size() + 1));
  if (!copy)
    return fail(ErrorClass::Run, "expected memory for the text");
  memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return DIFFATTN_OK;
}

int32_t diffattn_emit(const char *ir, size_t ir_bytes,
                      const diffattn_options *options, const char *stage,
                      char **out, size_t *out_bytes) {
  if (Failure failure = checkModule(
          ir, ir_bytes,
          {{"stage", stage}, {"out", out}, {"out_bytes", out_bytes}}))
    return fail(failure);
  diffattn_options defaults;
  if (!options)
    options = &defaults;
  recallHost(*options);
  CompileDiagnostics diagnostics;
  llvm::Expected<std::string> text = emitStage(
      llvm::StringRef(ir, ir_bytes), options->compile, stage, &diagnostics);
  lastDiagnostics = DiagnosticList(diagnostics);
  if (!text)
    return fail(text.takeError());
  *out_bytes = text->size();
  return copyText(*text, out);
}

int32_t diffattn_cache_read(const diffattn_options *options, const char *key,
                            char **out, size_t *out_bytes) {
  if (Failure failure = checkPointers({{"options", options},
                                       {"key", key},
                                       {"out", out},
                                       {"out_bytes", out_bytes}}))
    return fail(failure);
  *out = nullptr;
  *out_bytes = 0;
  if (std::optional<ObjectCache> cache = getCache(*options))
    if (std::optional<std::string> text = cache->readText(key)) {
      *out_bytes = text->size();
      return copyText(*text, out);
    }
  return DIFFATTN_OK;
}

int32_t diffattn_cache_write(const diffattn_options *options, const char *key,
                             const char *description, const char *text,
                             size_t text_bytes) {
  if (Failure failure = checkPointers({{"options", options},
                                       {"key", key},
                                       {"description", description},
                                       {"text", text}}))
    return fail(failure);
  if (std::optional<ObjectCache> cache = getCache(*options))
    if (llvm::Error error = cache->keepText(key, description,
                                            llvm::StringRef(text, text_bytes)))
      return fail(std::move(error));
  return DIFFATTN_OK;
}

int32_t diffattn_measure_roof(int32_t threads, int64_t bytes, double seconds,
                              diffattn_roof *roof) {
  if (Failure failure = checkPointers({{"roof", roof}}))
    return fail(failure);
  if (threads < 1 || threads > kMaxThreads)
    return fail(ErrorClass::Usage, "threads: expected a number from 1 to " +
                                       llvm::Twine(kMaxThreads) + ", but got " +
                                       llvm::Twine(threads));
  if (bytes < 1)
    return fail(ErrorClass::Usage, "bytes: expected a number of at least 1, "
                                   "but got " +
                                       llvm::Twine(bytes));
  if (!(seconds > 0))
    return fail(ErrorClass::Usage,
                "seconds: expected a number above 0, but got " +
                    llvm::Twine(llvm::formatv("{0}", seconds).str()));
  auto measured = measureRoof(threads, {bytes, seconds});
  if (!measured)
    return fail(measured.takeError());
  *roof = {measured->gflops, measured->bf16Gflops.value_or(0), measured->gbs};
  return DIFFATTN_OK;
}

int32_t diffattn_explain(const char *facts, size_t facts_bytes, char **rows) {
  if (Failure failure = checkPointers({{"facts", facts}, {"rows", rows}}))
    return fail(failure);
  auto read = readExplanationFacts({facts, facts_bytes});
  if (!read)
    return fail(read.takeError());
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::json::Value(llvm::json::Array(explain(*read).rows));
  return copyText(text, rows);
}

int32_t diffattn_explanation_table(const char *explanation,
                                   size_t explanation_bytes, char **table) {
  if (Failure failure =
          checkPointers({{"explanation", explanation}, {"table", table}}))
    return fail(failure);
  auto read = readExplanation({explanation, explanation_bytes});
  if (!read)
    return fail(read.takeError());
  return copyText(read->getTable(), table);
}

int32_t diffattn_judge(const diffattn_program *program, const char *ir,
                       size_t ir_bytes, const diffattn_options *options,
                       const char *entry, const diffattn_array *arguments,
                       int32_t num_arguments, const diffattn_array *results,
                       int32_t num_results, int32_t *matches, char **report) {
  Failure failure = checkModule(ir, ir_bytes,
                                {{"program", program},
                                 {"entry", entry},
                                 {"matches", matches},
                                 {"report", report}});
  const FunctionSignature *function;
  if (!failure)
    failure = program->program->getSignature().get(entry, function);
  if (failure)
    return fail(failure);
  // Results are checked as the arguments of a function that takes them.
  const std::string taker = "results of " + std::string(entry);
  const Signature taking{{{taker, function->results, {}}}, {}};
  std::vector<HostArray> given, got;
  failure = copyArguments(program->program->getSignature(), entry, arguments,
                          num_arguments, given);
  if (!failure)
    failure = copyArguments(taking, taker.c_str(), results, num_results, got);
  if (failure)
    return fail(failure);
  const diffattn_options defaults;
  if (!options)
    options = &defaults;
  WeightFiles files;
  for (const std::string &path : options->weights)
    if (llvm::Error error = files.add(path))
      return fail(std::move(error));
  llvm::StringRef text(ir, ir_bytes);
  // A module that does not compile is refused with the compiler's own error.
  if (auto input = emitStage(text, options->compile, "input", nullptr); !input)
    return fail(input.takeError());
  OracleOptions oracleOptions;
  oracleOptions.inputName = options->compile.inputName;
  std::vector<ArrayView> views;
  for (const HostArray &array : got)
    views.push_back({array.data.get(), array.dtype, array.shape, {}, false});
  auto judged = judgeCall(text, entry, given, views, files, oracleOptions);
  if (!judged)
    return fail(judged.takeError());
  *matches = judged->matches;
  return copyText(judged->text, report);
}

int32_t diffattn_write_bundle(const char *ir, size_t ir_bytes,
                              const diffattn_options *options,
                              const char *const *weights, int32_t num_weights,
                              const char *model_folder, int32_t copy_weights,
                              const char *directory) {
  Failure failure = checkModule(ir, ir_bytes, {{"directory", directory}});
  if (!failure)
    failure = checkTexts("weights", weights, num_weights);
  if (failure)
    return fail(failure);
  diffattn_options defaults;
  if (!options)
    options = &defaults;
  CompileOptions compileOptions = options->compile;
  recallHost(*options);
  auto targets = getBundleTargets(compileOptions.target);
  if (!targets)
    return fail(targets.takeError());
  WeightFiles files;
  for (int32_t i = 0; i < num_weights; ++i)
    if (llvm::Error error = files.add(weights[i]))
      return fail(std::move(error));
  std::vector<CompiledModule> modules;
  CompileDiagnostics diagnostics;
  compileOptions.checkSignature = [&](const Signature &signature) {
    return findWeights(signature, files).takeError();
  };
  for (const std::string &target : *targets) {
    compileOptions.target = target;
    auto module =
        compile(llvm::StringRef(ir, ir_bytes), compileOptions, *options);
    if (!module)
      return fail(module.takeError());
    llvm::append_range(diagnostics, module->diagnostics);
    modules.push_back(std::move(*module));
  }
  lastDiagnostics = DiagnosticList(diagnostics);
  BundleOptions bundle;
  bundle.copyWeights = copy_weights != 0;
  bundle.batchInvariance = compileOptions.batchInvariance;
  bundle.modelFolder = model_folder ? model_folder : "";
  if (llvm::Error error =
          writeBundle(modules, *targets, files, bundle, directory))
    return fail(std::move(error));
  return DIFFATTN_OK;
}

/// DLPack's DLTensor.
namespace {
struct DLTensor {
  void *data;
  int32_t deviceType, deviceNumber;
  int32_t rank;
  uint8_t typeCode, typeBits;
  uint16_t typeLanes;
  const int64_t *shape, *strides;
  uint64_t byteOffset;
};
} // namespace

static int32_t failView(int32_t object) {
  return fail(ErrorClass::Input,
              "object " + llvm::Twine(object) +
                  ": expected an array that DLPack describes, but got another");
}

int32_t diffattn_describe_arrays(const diffattn_object_reader *reader,
                                 void *tuple, const int32_t *dtypes,
                                 int32_t count, diffattn_array *arrays) {
  if (Failure failure = checkPointers({{"reader", reader},
                                       {"tuple", tuple},
                                       {"dtypes", dtypes},
                                       {"arrays", arrays}}))
    return fail(failure);
  for (int32_t i = 0; i < count; ++i) {
    if (dtypes[i] < 0)
      continue;
    void *object = reader->item(tuple, i);
    if (!object)
      return fail(ErrorClass::Input,
                  "item " + llvm::Twine(i) +
                      ": expected one of the tuple, but it has none");
    DLTensor tensor;
    if (reader->view(object, &tensor))
      return failView(i);
    arrays[i] = {static_cast<char *>(tensor.data) + tensor.byteOffset,
                 dtypes[i], tensor.rank, tensor.shape, tensor.strides};
  }
  return DIFFATTN_OK;
}

/// Calls `add` with each fact of an array.
template <typename Add>
static int32_t readFacts(const diffattn_object_reader &reader, void *object,
                         int32_t number, int32_t asked, Add add) {
  DLTensor tensor;
  if (reader.view(object, &tensor))
    return failView(number);
  add(static_cast<int64_t>(reinterpret_cast<uint64_t>(tensor.data) +
                           tensor.byteOffset));
  add(int64_t(tensor.deviceType) << 32 | uint32_t(tensor.deviceNumber));
  add(int64_t(tensor.typeCode) << 32 | int64_t(tensor.typeBits) << 16 |
      tensor.typeLanes);
  add(int64_t(tensor.rank) << 1 | (tensor.strides != nullptr));
  for (int32_t axis = 0; axis < tensor.rank; ++axis)
    add(tensor.shape[axis]);
  for (int32_t axis = 0; tensor.strides && axis < tensor.rank; ++axis)
    add(tensor.strides[axis]);
  auto failAnswer = [&] {
    return fail(ErrorClass::Input,
                "object " + llvm::Twine(number) +
                    ": expected one that answers, but it gave nothing");
  };
  if (asked & DIFFATTN_ASK_ATTRIBUTE) {
    void *value = reader.get(reader.attribute, object, nullptr);
    if (!value)
      return failAnswer();
    add(reader.to_int64(value));
    reader.release(value);
  }
  if (asked & DIFFATTN_ASK_FUNCTION) {
    void *value = reader.call(reader.function, object);
    if (!value)
      return failAnswer();
    add(static_cast<int64_t>(reinterpret_cast<uint64_t>(value)));
    reader.release(value);
  }
  return DIFFATTN_OK;
}

int32_t diffattn_object_facts(const diffattn_object_reader *reader,
                              void *const *objects, const int32_t *asked,
                              int32_t count, int64_t *facts, int64_t room,
                              int64_t *size) {
  if (Failure failure = checkPointers({{"reader", reader},
                                       {"objects", objects},
                                       {"asked", asked},
                                       {"facts", facts},
                                       {"size", size}}))
    return fail(failure);
  int64_t at = 0;
  auto add = [&](int64_t fact) {
    if (at < room)
      facts[at] = fact;
    ++at;
  };
  for (int32_t i = 0; i < count; ++i)
    if (int32_t status = readFacts(*reader, objects[i], i, asked[i], add))
      return status;
  *size = at;
  return DIFFATTN_OK;
}

int32_t diffattn_object_facts_hold(const diffattn_object_reader *reader,
                                   void *tuple, void *const *objects,
                                   const int32_t *asked, int32_t count,
                                   const int64_t *facts, int64_t size) {
  if (Failure failure = checkPointers({{"reader", reader},
                                       {"tuple", tuple},
                                       {"objects", objects},
                                       {"asked", asked},
                                       {"facts", facts}})) {
    fail(failure);
    return 0;
  }
  int64_t at = 0;
  bool hold = true;
  auto compare = [&](int64_t fact) {
    hold = hold && at < size && facts[at] == fact;
    ++at;
  };
  // All of one object at once: it is in the caches then.
  for (int32_t i = 0; i < count; ++i)
    if (reader->item(tuple, i) != objects[i] ||
        readFacts(*reader, objects[i], i, asked[i], compare) || !hold)
      return 0;
  return at == size;
}

int32_t diffattn_open_simulated_device(const char *chip,
                                       diffattn_device **out) {
  if (Failure failure = checkPointers({{"chip", chip}, {"out", out}}))
    return fail(failure);
  llvm::Expected<diffattn_device *> device = makeSimulatedDevice(chip);
  if (!device)
    return fail(device.takeError());
  *out = *device;
  return DIFFATTN_OK;
}
