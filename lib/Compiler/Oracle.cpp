//===- Oracle.cpp - results judged by the interpreter ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Oracle.h"
#include "SourceModule.h"

#include "DiffAttn/Compiler/CompiledProgram.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Pipelines/Pipelines.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Testing/Interpreter/Interpreter.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/InitAllDialects.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using interpreter::Array;

namespace {
/// One result of all runs.
struct Expectation {
  Array exact;
  std::vector<Array> random;
  /// The error that is allowed of each element; empty for integers.
  std::vector<double> allowed;
};
} // namespace

struct Oracle::Impl {
  // Types of arrays live in its context.
  std::unique_ptr<SourceModule> source;
  std::vector<Expectation> results;
  std::string undefined;
};

Oracle::Oracle(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}
Oracle::Oracle(Oracle &&) noexcept = default;
Oracle::~Oracle() = default;
size_t Oracle::getNumResults() const { return impl->results.size(); }

/// The interpreter's error as one of the runner's classes.
static llvm::Error convertError(llvm::Error error) {
  using Kind = interpreter::InterpreterError::Kind;
  llvm::Error converted = llvm::Error::success();
  llvm::handleAllErrors(
      std::move(error),
      [&](const interpreter::InterpreterError &known) {
        llvm::consumeError(std::move(converted));
        const ErrorClass errorClass =
            known.getKind() == Kind::Input         ? ErrorClass::Input
            : known.getKind() == Kind::Unsupported ? ErrorClass::IR
                                                   : ErrorClass::Run;
        converted = makeError(errorClass, "oracle: " + known.getMessage());
      },
      [&](const llvm::ErrorInfoBase &other) {
        llvm::consumeError(std::move(converted));
        converted = makeError(ErrorClass::Run, "oracle: " + other.message());
      });
  return converted;
}

// --- weights

namespace {
/// The weights of a module, bound as compiled code has them.
class BoundWeights {
public:
  llvm::Error bind(ModuleOp module, const WeightFiles &files) {
    auto read = readSignature(module);
    if (!read)
      return read.takeError();
    signature = std::move(*read);
    if (signature.weights.empty() || files.getNames().empty())
      return llvm::Error::success();
    if (llvm::Error error =
            bindWeightSlots(signature, files, nullptr, slots, owned))
      return error;
    int64_t first = 0;
    for (const WeightDeclaration &weight : signature.weights) {
      firstSlots[weight.name] = first;
      first += weight.getNumSlots();
    }
    return llvm::Error::success();
  }

  llvm::Expected<Array> read(llvm::StringRef name, int64_t layer,
                             RankedTensorType type) const {
    auto it = firstSlots.find(name);
    if (it == firstSlots.end())
      return makeError(ErrorClass::Weights, "expected weight files with '" +
                                                name + "', but got none");
    const int64_t slot = it->second + std::max<int64_t>(layer, 0);
    return Array::read(type.getElementType(), type.getShape(),
                       slots[slot].data);
  }

private:
  Signature signature;
  std::vector<diffattn_weight> slots;
  std::vector<HostArray> owned;
  llvm::StringMap<int64_t> firstSlots;
};
} // namespace

// --- runs

/// How elements of a type lie in memory; nothing for those that do not.
static std::optional<DType> toDType(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return parseDType(type.isIndex() ? "i64" : text);
}

static llvm::Expected<std::vector<Array>>
readArguments(func::FuncOp function, llvm::ArrayRef<HostArray> arguments) {
  if (function.getNumArguments() != arguments.size())
    return makeError(ErrorClass::Usage,
                     "expected " + llvm::Twine(function.getNumArguments()) +
                         " arguments, but got " +
                         llvm::Twine(arguments.size()));
  std::vector<Array> arrays;
  for (auto [i, argument] : llvm::enumerate(arguments)) {
    Type type = function.getArgumentTypes()[i];
    Type element = getElementTypeOrSelf(type);
    if (toDType(element) != argument.dtype) {
      std::string text;
      llvm::raw_string_ostream(text) << type;
      return makeError(ErrorClass::Input,
                       "oracle: argument " + llvm::Twine(i) + " of '" +
                           function.getName() + "': expected " + text +
                           ", but got " +
                           describeType(argument.shape, argument.dtype));
    }
    auto array = Array::read(element, argument.shape, argument.data.get());
    if (!array)
      return convertError(array.takeError());
    arrays.push_back(std::move(*array));
  }
  return arrays;
}

static double getUnitRoundoff(Type type) {
  if (type.isF32())
    return std::ldexp(1.0, -24);
  if (type.isF16())
    return std::ldexp(1.0, -11);
  if (type.isBF16())
    return std::ldexp(1.0, -8);
  return std::ldexp(1.0, -53);
}

/// The least number of a type above 0: roundings of what is below its normal
/// range.
static double getLeastNumber(Type type) {
  const auto &semantics = cast<FloatType>(type).getFloatSemantics();
  return llvm::APFloat::getSmallest(semantics).convertToDouble();
}

/// Elements that are judged together: those of as many of the last axes as hold
/// so many. Fewer would often be right by chance.
static int64_t getBlockSize(llvm::ArrayRef<int64_t> shape) {
  constexpr int64_t kMinElements = 32;
  int64_t size = 1;
  for (int64_t axis : llvm::reverse(shape)) {
    if (size >= kMinElements)
      break;
    size *= axis;
  }
  return size;
}

/// Relative error of roundings of kernels in f32 where the program has none:
/// the weight of a row's only key is 1 for the program, and for a kernel a
/// power times a reciprocal, in each map.
static constexpr double kKernelRoundings = 8 * 0x1p-24;

/// A result may be off by kRandomRoundingsToBound times what random roundings
/// moved any element of its block by, by its own rounding, and by
/// kKernelRoundings.
static void findAllowed(Expectation &result) {
  const Array &exact = result.exact;
  if (!exact.isFloat())
    return;
  Type type = exact.getElementType();
  const double least = getLeastNumber(type);
  const double share =
      2 * getUnitRoundoff(type) + (type.isF64() ? 0.0 : kKernelRoundings);
  const int64_t count = exact.getNumElements(),
                block = std::max<int64_t>(getBlockSize(exact.getShape()), 1);
  result.allowed.resize(count);
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t end = std::min(begin + block, count);
    double moved = 0;
    for (int64_t i = begin; i < end; ++i) {
      const double value = exact.getFloat(i);
      for (const Array &random : result.random)
        if (double off = std::fabs(random.getFloat(i) - value);
            std::isfinite(off))
          moved = std::max(moved, off);
      // An f64 is rounded nowhere: other orders of its sums.
      if (type.isF64() && std::isfinite(value))
        moved = std::max(moved, 1e-11 * std::fabs(value));
    }
    for (int64_t i = begin; i < end; ++i) {
      const double value = std::fabs(exact.getFloat(i));
      result.allowed[i] = interpreter::kRandomRoundingsToBound * moved +
                          (std::isfinite(value) ? share * value : 0) + least;
    }
  }
}

/// Lowers an imported module to ops that the interpreter supports.
static llvm::Error import(SourceModule &source, const std::string &name) {
  return source.guarded(ErrorClass::Compile,
                        name + ": expected a module that can be imported", [&] {
                          PassManager manager(&source.getContext(),
                                              ModuleOp::getOperationName());
                          buildImportPasses(manager, PipelineOptions());
                          return manager.run(*source.getModule());
                        });
}

llvm::Expected<Oracle> Oracle::create(llvm::StringRef ir, llvm::StringRef entry,
                                      llvm::ArrayRef<HostArray> arguments,
                                      const WeightFiles &files,
                                      const OracleOptions &options) {
  auto impl = std::make_unique<Impl>();
  DialectRegistry registry;
  mlir::registerAllDialects(registry);
  registry.insert<DiffAttnDialect>();
  NoForks noForks;
  impl->source =
      std::make_unique<SourceModule>(registry, ir, options.inputName);
  if (llvm::Error error = impl->source->parse(noForks))
    return std::move(error);
  if (llvm::Error error = import(*impl->source, options.inputName))
    return std::move(error);
  ModuleOp module = *impl->source->getModule();
  auto function = module.lookupSymbol<func::FuncOp>(entry);
  if (!function)
    return makeError(ErrorClass::Usage, "expected a function '" + entry +
                                            "', but the module has none");
  auto arrays = readArguments(function, arguments);
  if (!arrays)
    return arrays.takeError();
  BoundWeights weights;
  if (llvm::Error error = weights.bind(module, files))
    return std::move(error);
  interpreter::Options run;
  run.maxSteps = options.maxSteps;
  run.maxBytes = options.maxBytes;
  run.weight = [&](llvm::StringRef name, int64_t layer, RankedTensorType type) {
    return weights.read(name, layer, type);
  };
  for (int64_t number = 0; number <= options.randomRuns; ++number) {
    run.precision = number ? interpreter::Precision::RandomlyRounded
                           : interpreter::Precision::Exact;
    run.seed = number;
    auto outcome = interpreter::interpret(function, *arrays, run);
    if (!outcome)
      return convertError(outcome.takeError());
    impl->results.resize(outcome->results.size());
    for (auto [result, array] :
         llvm::zip_equal(impl->results, outcome->results)) {
      if (number)
        result.random.push_back(std::move(array));
      else
        result.exact = std::move(array);
    }
    if (impl->undefined.empty())
      impl->undefined = outcome->undefined;
  }
  for (Expectation &result : impl->results)
    findAllowed(result);
  return Oracle(std::move(impl));
}

// --- judging

std::string mlir::diffattn::formatIndex(int64_t i,
                                        llvm::ArrayRef<int64_t> shape) {
  llvm::SmallVector<std::string> parts(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; i /= shape[axis])
    parts[axis] = std::to_string(i % shape[axis]);
  return "[" + llvm::join(parts, ", ") + "]";
}

/// Whether a and b are the same number, infinity or NaN.
static bool isSame(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

llvm::Expected<Judgement> Oracle::judge(size_t number, llvm::StringRef name,
                                        const void *data, DType dtype,
                                        llvm::ArrayRef<int64_t> shape) const {
  const Expectation &result = impl->results[number];
  Type type = result.exact.getElementType();
  // Types and shapes first: nothing is read of another.
  if (toDType(type) != dtype || shape != result.exact.getShape()) {
    return makeError(
        ErrorClass::Input,
        name + ": expected " + interpreter::describe(result.exact) +
            " as the oracle computes, but got " + describeType(shape, dtype));
  }
  auto got = Array::read(type, shape, data);
  if (!got)
    return convertError(got.takeError());
  const int64_t count = got->getNumElements();
  int64_t wrong = 0, worst = -1;
  double largest = 0, worstShare = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = got->getNumber(i), exact = result.exact.getNumber(i);
    double share = 0;
    if (!isSame(value, exact)) {
      const double error = std::fabs(value - exact);
      const bool isRounded =
          llvm::any_of(result.random, [&](const Array &random) {
            return isSame(value, random.getNumber(i));
          });
      // Integers, and what is not finite, are those of some run.
      share = std::isfinite(error) && got->isFloat()
                  ? error / result.allowed[i]
                  : std::numeric_limits<double>::infinity();
      if (isRounded)
        share = std::min(share, 1.0);
      if (std::isfinite(error))
        largest = std::max(largest, error);
    }
    if (share > 1)
      ++wrong;
    if (share > worstShare) {
      worstShare = share;
      worst = i;
    }
  }
  Judgement judgement;
  judgement.matches = wrong == 0;
  llvm::raw_string_ostream os(judgement.text);
  os << name << ": ";
  if (judgement.matches) {
    os << "matches, largest error " << llvm::format("%.3g", largest) << ", "
       << llvm::format("%.2g", worstShare) << " of what is allowed";
    return judgement;
  }
  os << wrong << " of " << count << " elements differ; at "
     << formatIndex(worst, shape) << " expected "
     << llvm::format("%.9g", result.exact.getNumber(worst));
  if (got->isFloat())
    os << " to " << llvm::format("%.3g", result.allowed[worst]);
  os << ", but got " << llvm::format("%.9g", got->getNumber(worst));
  if (!impl->undefined.empty())
    os << " (" << impl->undefined << ")";
  return judgement;
}

llvm::Expected<Judgement> mlir::diffattn::judgeCall(
    llvm::StringRef ir, llvm::StringRef entry,
    llvm::ArrayRef<HostArray> arguments, llvm::ArrayRef<ArrayView> results,
    const WeightFiles &files, const OracleOptions &options) {
  auto oracle = Oracle::create(ir, entry, arguments, files, options);
  if (!oracle)
    return oracle.takeError();
  if (results.size() != oracle->getNumResults())
    return makeError(ErrorClass::Usage,
                     "expected " + llvm::Twine(oracle->getNumResults()) +
                         " results, but got " + llvm::Twine(results.size()));
  Judgement all;
  for (auto [i, array] : llvm::enumerate(results)) {
    auto judgement = oracle->judge(
        i, "result " + std::to_string(i) + " and the oracle", array.data,
        array.dtype, llvm::ArrayRef(array.shape.begin(), array.shape.size()));
    if (!judgement)
      return judgement.takeError();
    all.matches &= judgement->matches;
    all.text += (i ? "\n" : "") + judgement->text;
  }
  return all;
}
