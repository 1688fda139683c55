//===- Comparison.cpp - a module before and after raising -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Comparison.h"

#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Testing/Interpreter/Interpreter.h"
#include "DiffAttn/Testing/Reference/Attention.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::fuzz;
using interpreter::Array;
using interpreter::Precision;

namespace {
using Arrays = std::vector<Array>;
using AttentionResult = reference::AttentionResult;
using Limits = std::vector<std::vector<double>>;
using Change = std::function<void(AttentionOp, AttentionResult &)>;

struct Run {
  Arrays results;
  std::string undefined, error;
  bool isUnsupported = false;
  bool ok() const { return error.empty(); }
};

Run run(ModuleOp module, const Arrays &arguments, Precision precision,
        Change change = nullptr) {
  interpreter::Options options;
  options.precision = precision;
  options.maxSteps = 100'000'000;
  options.onAttention = std::move(change);
  Run run;
  auto outcome = interpreter::interpret(module, "main", arguments, options);
  if (outcome) {
    run.results = std::move(outcome->results);
    run.undefined = outcome->undefined;
    return run;
  }
  llvm::handleAllErrors(
      outcome.takeError(), [&](const interpreter::InterpreterError &error) {
        run.error = error.getMessage();
        run.isUnsupported =
            error.getKind() != interpreter::InterpreterError::Kind::Fault;
      });
  return run;
}

/// The largest number that docs/raising.md takes for a fill that hides keys.
constexpr double kLargestFill = -1e4;

/// The number of the module nearest to zero that docs/raising.md may rest on
/// the rounding of f32 beside: a finite fill, or what a guard adds to a sum.
/// That of guards is infinite here.
std::optional<double> smallestFill(ModuleOp module) {
  std::optional<double> smallest;
  auto look = [&](const llvm::APFloat &value) {
    double number = std::fabs(value.convertToDouble());
    if (!std::isfinite(number) || number == 0 ||
        (number < -kLargestFill && number > 0x1p-24))
      return;
    number = number < 1 ? INFINITY : number;
    smallest = std::min(smallest.value_or(number), number);
  };
  module.walk([&](arith::ConstantOp constant) {
    if (auto number = dyn_cast<FloatAttr>(constant.getValue()))
      look(number.getValue());
    auto dense = dyn_cast<DenseElementsAttr>(constant.getValue());
    if (dense && isa<FloatType>(dense.getElementType()))
      llvm::for_each(dense.getValues<llvm::APFloat>(), look);
  });
  return smallest;
}

/// The gate of docs/numerics.md for the narrowest type of the function.
double gateOf(ModuleOp module) {
  double gate = 5e-5;
  module.walk([&](Operation *op) {
    for (Type type : op->getResultTypes()) {
      Type element = getElementTypeOrSelf(type);
      gate = std::max(gate, element.isF16() ? 1.5e-3 : 0);
      gate = std::max(gate, element.isBF16() ? 1.2e-2 : 0);
    }
  });
  return gate;
}

/// Adds `relative` · M to what attention computes; with a pattern, M's sign
/// changes from element to element.
Change offBy(double relative, unsigned pattern) {
  return [=](AttentionOp, AttentionResult &result) {
    for (size_t i = 0; i < result.output.size(); ++i) {
      bool negative = pattern && ((i * 2654435761u) >> pattern & 1);
      result.output[i] += (negative ? -1 : 1) * relative * result.magnitude[i];
    }
  };
}

/// Sets rows whose powers are all 0 to NaN, from 0 / 0 in a graph without a
/// guard. They are where the row sees no key; and where a graph sets powers to
/// 0 to hide keys, and all keys that it sees are under a finite fill, so that
/// the maximum, which is taken over hidden keys too, may be out of their reach
/// (docs/raising.md has both).
void rowsWithoutPowersAreNaN(AttentionOp op, AttentionResult &result) {
  int64_t width = cast<ShapedType>(op.getV().getType()).getShape().back();
  if (ShapedType::isDynamic(width) || width == 0)
    return;
  for (auto [row, bias] : llvm::enumerate(result.largestBias)) {
    auto sizes = ArrayRef(result.magnitude).slice(row * width, width);
    if (bias <= kLargestFill ||
        llvm::all_of(sizes, [](double m) { return m == 0; }))
      std::fill_n(result.output.begin() + row * width, width, std::nan(""));
  }
}

std::string digits(double value) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.9g", value);
  return text;
}

/// How the results of the raised module are compared with those of the graph.
class Judge {
public:
  /// Where a graph that was changed at random overflows or makes NaN, any
  /// number is right: a shift of the scores, for one, is not part of what is
  /// raised.
  bool mayOverflow = false;

  /// Results of the graph in another precision, if given: their deviation is
  /// allowed too.
  Arrays otherwise;

  /// `evaluated` is what is compared: `raised` itself, or the same in other
  /// ops.
  Judge(ModuleOp raised, ModuleOp evaluated, const Arrays &arguments,
        Precision precision, double relative)
      : raised(raised), evaluated(evaluated), arguments(arguments),
        precision(precision), relative(relative) {}

  /// The first difference; empty if there is none.
  std::string differs(const Arrays &expected) {
    largestScore = 0;
    Run plain = run(raised, arguments, precision,
                    [&](AttentionOp, AttentionResult &result) {
                      largestScore =
                          std::max(largestScore, result.scoreMagnitude);
                    });
    if (!plain.ok())
      return "the raised module fails: " + plain.error;
    const Arrays near = plain.results;
    got = near;
    if (evaluated != raised) {
      Run other = run(evaluated, arguments, precision);
      if (!other.ok())
        return "the raised module fails: " + other.error;
      got = other.results;
    }
    if (got.size() != expected.size())
      return "the number of results differs";
    // A number that two constants make is an f32 in the op: it is off by up to
    // 2^-24, and the scores with it.
    const double allowed = relative * std::max(1.0, largestScore / 8);
    Run off = run(raised, arguments, precision, offBy(allowed, 0));
    if (!off.ok())
      return "the raised module fails: " + off.error;
    limits.clear();
    std::string first;
    for (size_t r = 0; r < expected.size(); ++r) {
      limits.emplace_back(expected[r].getNumElements());
      for (int64_t i = 0; i < expected[r].getNumElements(); ++i)
        limits[r][i] =
            std::fabs(off.results[r].getNumber(i) - near[r].getNumber(i)) +
            allowed * std::fabs(got[r].getNumber(i)) + 1e-30;
      for (int64_t i = 0;
           !otherwise.empty() && i < expected[r].getNumElements(); ++i) {
        double own =
            std::fabs(otherwise[r].getNumber(i) - expected[r].getNumber(i));
        limits[r][i] += std::isfinite(own) ? own : 0;
      }
      if (got[r].getShape() != expected[r].getShape())
        return llvm::formatv("result {0} is {1}, not {2}", r,
                             interpreter::describe(got[r]),
                             interpreter::describe(expected[r]));
    }
    if (agree(expected).empty())
      return "";
    // Code after attention may add up elements, in which deviations of one sign
    // cancel: take the largest deviation of several patterns.
    for (unsigned pattern : {3u, 7u, 11u}) {
      off = run(raised, arguments, precision, offBy(allowed, pattern));
      for (size_t r = 0; off.ok() && r < expected.size(); ++r) {
        double most = 0;
        for (int64_t i = 0; i < expected[r].getNumElements(); ++i) {
          double by =
              std::fabs(off.results[r].getNumber(i) - near[r].getNumber(i));
          most = std::isfinite(by) ? std::max(most, by) : most;
        }
        for (double &limit : limits[r])
          limit = std::max(limit, most);
      }
    }
    std::string difference = agree(expected);
    if (difference.empty())
      return "";
    Run without = run(raised, arguments, precision, rowsWithoutPowersAreNaN);
    if (without.ok()) {
      alternative = without.results;
      difference = agree(expected);
    }
    return difference;
  }

  Arrays got;
  Limits limits;
  double largestScore = 0;

private:
  static bool isNear(double a, double b, double limit) {
    if (std::isnan(a) || std::isnan(b))
      return std::isnan(a) && std::isnan(b);
    return a == b || std::fabs(a - b) <= limit;
  }

  std::string agree(const Arrays &expected) const {
    for (size_t r = 0; r < expected.size(); ++r)
      for (int64_t i = 0; i < expected[r].getNumElements(); ++i) {
        double want = expected[r].getNumber(i), have = got[r].getNumber(i);
        if (isNear(want, have, limits[r][i]) ||
            (!alternative.empty() &&
             isNear(want, alternative[r].getNumber(i), limits[r][i])))
          continue;
        if (mayOverflow && !(std::isfinite(want) && std::isfinite(have)))
          continue;
        return llvm::formatv("element {0} of result {1}: the graph has {2}, "
                             "raised it is {3}, allowed {4}",
                             i, r, digits(want), digits(have),
                             digits(limits[r][i]));
      }
    return "";
  }

  ModuleOp raised, evaluated;
  const Arrays &arguments;
  Precision precision;
  double relative;
  Arrays alternative;
};

void writeFile(const llvm::Twine &path, ArrayRef<char> bytes) {
  std::error_code error;
  llvm::raw_fd_ostream file(path.str(), error);
  if (!error)
    file.write(bytes.data(), bytes.size());
}

void dumpArrays(const std::string &prefix, StringRef name,
                const Arrays &arrays) {
  for (auto [number, array] : llvm::enumerate(arrays)) {
    std::vector<char> bytes(array.getNumElements() * 8 + 8);
    array.write(bytes.data());
    writeFile(prefix + "-" + name + std::to_string(number), bytes);
  }
}
/// Writes the numbers that compiled code is compared with: results, and how far
/// they may be off for a relative error of 1e-6.
void dumpResults(const std::string &prefix, const Arrays &graph,
                 const Arrays &raised, const Limits &allowed) {
  dumpArrays(prefix, "out", graph);
  dumpArrays(prefix, "raised", raised);
  for (auto [number, limits] : llvm::enumerate(allowed))
    writeFile(prefix + "-limit" + std::to_string(number),
              ArrayRef(reinterpret_cast<const char *>(limits.data()),
                       limits.size() * sizeof(double)));
}

/// Writes results without attention, and so without M: the change by rounding
/// to the types written stands for it.
void dumpKept(const Case &given, ModuleOp graph, const Arrays &arguments,
              const Arrays &exact) {
  Run written = run(graph, arguments, Precision::AsWritten);
  if (!written.ok())
    return;
  Limits limits;
  for (auto [precise, rounded] : llvm::zip_equal(exact, written.results)) {
    double largest = 0, error = 0;
    for (int64_t i = 0; i < precise.getNumElements(); ++i) {
      double value = std::fabs(precise.getNumber(i));
      double off = std::fabs(precise.getNumber(i) - rounded.getNumber(i));
      largest = std::isfinite(value) ? std::max(largest, value) : largest;
      error = std::isfinite(off) ? std::max(error, off) : error;
    }
    limits.emplace_back(precise.getNumElements(), error + 1e-6 * largest);
  }
  dumpResults(given.dump, exact, written.results, limits);
  dumpArrays(given.dump, "written", written.results);
}
} // namespace

Verdict fuzz::compare(const Case &given, ModuleOp graph, ModuleOp raised) {
  int64_t count = 0;
  raised.walk([&](AttentionOp) { ++count; });
  auto inputs = drawInputs(given, graph.getContext());
  if (!inputs)
    return {"fault", llvm::toString(inputs.takeError())};
  const Arrays &arguments = *inputs;
  if (!given.dump.empty())
    dumpArrays(given.dump, "in", arguments);
  if (count == 0 && given.dump.empty())
    return {"kept", ""};
  Run before = run(graph, arguments, Precision::Exact);
  if (!before.ok())
    return {before.isUnsupported ? "unknown" : "undefined", before.error};
  if (!before.undefined.empty())
    return {"undefined", before.undefined};
  if (count == 0) {
    dumpKept(given, graph, arguments, before.results);
    return {"kept", ""};
  }
  Judge exact(raised, raised, arguments, Precision::Exact, 1e-6);
  std::string difference = exact.differs(before.results);
  if (!given.dump.empty()) {
    dumpResults(given.dump, before.results, exact.got, exact.limits);
    dumpArrays(given.dump, "written",
               run(graph, arguments, Precision::AsWritten).results);
  }
  if (difference.empty())
    return {"same", std::to_string(count)};
  if (given.isChanged) {
    exact.mayOverflow = true;
    if (exact.differs(before.results).empty())
      return {"same-overflow", std::to_string(count)};
  }
  std::optional<double> fill = smallestFill(graph);
  if (!fill)
    return {"fault", difference};
  const Arrays unrounded = before.results;
  before = run(graph, arguments, Precision::AsWritten);
  if (!given.dump.empty())
    dumpArrays(given.dump, "out", before.results);
  if (!before.ok())
    return {"fault", "the graph fails as written: " + before.error};
  // The op's meaning is exact; what it becomes rounds as f32 does.
  OwningOpRef<ModuleOp> decomposed(raised.clone());
  PassManager pm(raised.getContext());
  pm.addPass(createDecomposePass());
  if (failed(pm.run(*decomposed)))
    return {"fault", "attention is not decomposed"};
  Judge written(raised, *decomposed, arguments, Precision::AsWritten,
                gateOf(graph));
  written.mayOverflow = given.isChanged;
  // Numbers that no one would write may round a graph's own scores away.
  if (given.isChanged)
    written.otherwise = unrounded;
  std::string inTypes = written.differs(before.results);
  if (inTypes.empty())
    return {"same-f32", std::to_string(count)};
  // Beside a fill of -1e9 scores of up to 32 vanish, half of its last bit.
  if (*fill >= 1e8 && exact.largestScore >= *fill * 0x1p-25)
    return {"far-scores", inTypes};
  return {"fault", inTypes + " (in f64: " + difference + ")"};
}
