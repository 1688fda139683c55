//===- Explanation.cpp - what became of a module's ops --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Explanation.h"

#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Runtime/Support/Printable.h"

#include "mlir/Bytecode/BytecodeReader.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/MemoryBufferRef.h"
#include "llvm/Support/Regex.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <map>

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
namespace json = llvm::json;

/// The parts of a program that runs partly elsewhere are joined by this: lines
/// are counted in each of them.
static constexpr llvm::StringLiteral kNextPart = "// -----";
static constexpr llvm::StringLiteral kAttention = "diffattn.attention";

namespace {
/// Sums over the spans of one op.
struct SpanSum {
  int64_t calls = 0;
  double us = 0;
  int64_t flops = 0, bytes = 0;
};

/// An op of spans.
struct SpanKey {
  std::string category, name, place, function;

  bool operator<(const SpanKey &other) const {
    return std::tie(category, name, place, function) <
           std::tie(other.category, other.name, other.place, other.function);
  }
};

/// Lines of a module, and where its functions begin.
class ModuleLines {
public:
  explicit ModuleLines(StringRef text) {
    if (text.empty() || text.contains(kNextPart) ||
        mlir::isBytecode(llvm::MemoryBufferRef(text, "")))
      return;
    text.split(lines, '\n');
    const llvm::Regex function("func\\.func (private |public )?@"
                               "(\"([^\"]+)\"|([A-Za-z0-9_$.-]+))");
    for (auto [i, line] : llvm::enumerate(lines)) {
      llvm::SmallVector<StringRef> groups;
      if (line.contains("func.func") && function.match(line, &groups))
        functions.push_back(
            {i + 1, (groups[3].empty() ? groups[4] : groups[3]).str()});
    }
  }

  bool isKnown() const { return !lines.empty(); }
  StringRef getLine(size_t number) const {
    return number > 0 && number <= lines.size() ? lines[number - 1] : "";
  }
  /// The last function that begins at or before a line; empty: none does.
  std::string getFunction(size_t number) const {
    std::string name;
    for (const auto &[begin, function] : functions)
      if (begin <= number)
        name = function;
    return name;
  }

private:
  llvm::SmallVector<StringRef> lines;
  std::vector<std::pair<size_t, std::string>> functions;
};
} // namespace

/// The line and the column of a place; zeros if it has none.
static std::pair<size_t, size_t> getNumbers(StringRef place) {
  std::pair<size_t, size_t> numbers;
  auto [before, column] = place.rsplit(':');
  if (column.getAsInteger(10, numbers.second) ||
      before.rsplit(':').second.getAsInteger(10, numbers.first))
    return {};
  return numbers;
}

/// A schedule as MLIR prints it, in `#diffattn.when<... : schedule>` or alone.
static ExplainedKernel parseKernel(StringRef text) {
  ExplainedKernel kernel;
  if (text.consume_front("#diffattn.when<")) {
    text.consume_back(">");
    StringRef when;
    std::tie(when, text) = text.split(" : ");
    kernel.when = when.str();
  }
  text.consume_front("#diffattn.");
  auto [name, options] = text.split('<');
  options.consume_back(">");
  kernel.name = name.str();
  kernel.options = options.str();
  return kernel;
}

/// The schedules of a remark, as MLIR prints a list of attributes.
static std::vector<ExplainedKernel> parseKernels(StringRef message) {
  std::vector<ExplainedKernel> kernels;
  auto [before, listed] = message.split("is one kernel: [");
  listed = listed.rsplit(']').first;
  // Commas that no bracket holds part them.
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= listed.size(); ++i) {
    if (i < listed.size()) {
      depth += StringRef("<[(").contains(listed[i]) ? 1 : 0;
      depth -= StringRef(">])").contains(listed[i]) ? 1 : 0;
      if (listed[i] != ',' || depth != 0)
        continue;
    }
    StringRef part = listed.slice(begin, i).trim();
    if (!part.empty())
      kernels.push_back(parseKernel(part));
    begin = i + 1;
  }
  return kernels;
}

static std::map<SpanKey, SpanSum> sumSpans(const json::Array &events) {
  std::map<SpanKey, SpanSum> sums;
  for (const json::Value &value : events) {
    const json::Object *event = value.getAsObject();
    StringRef category = event->getString("cat").value_or("");
    if (category != "function" && category != "attention" &&
        category != "product")
      continue;
    SpanKey key{category.str(), event->getString("name").value_or("").str(), "",
                ""};
    const json::Object *arguments = event->getObject("args");
    if (arguments) {
      key.place = arguments->getString("place").value_or("").str();
      key.function = arguments->getString("function").value_or("").str();
    }
    SpanSum &sum = sums[key];
    ++sum.calls;
    sum.us += event->getNumber("dur").value_or(0);
    if (arguments) {
      sum.flops += arguments->getInteger("flops").value_or(0);
      sum.bytes += arguments->getInteger("bytes").value_or(0);
    }
  }
  return sums;
}

static ExplainedTimes getTimes(const SpanSum &sum, StringRef element,
                               const Roof &roof) {
  ExplainedTimes times;
  times.calls = sum.calls;
  times.ms = sum.us / 1e3;
  if (sum.flops <= 0 || sum.us <= 0)
    return times;
  times.gflops = static_cast<double>(sum.flops) / sum.us / 1e3;
  times.gbs = static_cast<double>(sum.bytes) / sum.us / 1e3;
  const std::optional<double> peak = element == "bf16"  ? roof.bf16Gflops
                                     : element == "f64" ? roof.gflops / 2
                                                        : roof.gflops;
  if (!peak)
    return times;
  const double compute = *times.gflops / *peak, memory = *times.gbs / roof.gbs;
  times.share = std::max(compute, memory);
  times.bound = compute > memory ? "compute" : "memory";
  return times;
}

/// Joins the rows of an attention whose raising and whose kernels have two
/// places: the second is the next row of its function.
static std::vector<ExplainedRow> joinRaised(std::vector<ExplainedRow> rows) {
  std::vector<ExplainedRow> joined;
  for (ExplainedRow &row : rows) {
    ExplainedRow *before = joined.empty() ? nullptr : &joined.back();
    if (!before || before->function.empty() ||
        before->function != row.function || !before->isRaised ||
        !row.isRaised || !before->kernels.empty() || row.kernels.empty()) {
      joined.push_back(std::move(row));
      continue;
    }
    before->kernels = std::move(row.kernels);
    before->sizes = std::move(row.sizes);
    before->time = std::move(row.time);
    llvm::append_range(before->messages, row.messages);
  }
  return joined;
}

template <typename T>
static void addOnce(std::vector<T> &list, const T &value) {
  if (!llvm::is_contained(list, value))
    list.push_back(value);
}

/// Returns the sums of each op in the run in which it took the least time.
static std::map<SpanKey, SpanSum>
getLeastSums(llvm::ArrayRef<SpansOfRun> runs) {
  std::map<SpanKey, SpanSum> least;
  for (const SpansOfRun &run : runs)
    for (const auto &[key, sum] : sumSpans(run.events))
      if (auto [at, isNew] = least.try_emplace(key, sum);
          !isNew && sum.us < at->second.us)
        at->second = sum;
  return least;
}

/// Adds spans of other code for the same op. Operations count only if those of
/// both are known.
static void addSum(SpanSum &all, const SpanSum &sum) {
  const bool isCounted = all.flops > 0 && sum.flops > 0;
  all = {all.calls + sum.calls, all.us + sum.us,
         isCounted ? all.flops + sum.flops : 0,
         isCounted ? all.bytes + sum.bytes : 0};
}

/// The type of elements in the name of an op of spans: "... f32".
static StringRef getElement(StringRef sizes) {
  return sizes.rsplit(' ').second;
}

static ExplainedRow
makeAttentionRow(StringRef place,
                 llvm::ArrayRef<const PlacedDiagnostic *> diagnostics,
                 const ModuleLines &module) {
  ExplainedRow row;
  row.place = place.str();
  const size_t line = getNumbers(place).first;
  row.function = module.getFunction(line);
  for (const PlacedDiagnostic *one : diagnostics) {
    const bool isPassed = one->kind == DiagnosticKind::Passed;
    row.isRaised |= one->name == "Raised";
    if (isPassed && one->name == "SelectSchedule")
      for (const ExplainedKernel &kernel : parseKernels(one->message))
        addOnce(row.kernels, kernel);
    else if (!isPassed || one->name != "Raised")
      addOnce(row.messages, one->message);
  }
  // An attention that was raised has the place of what it took the place of,
  // or of an op that then was joined with it.
  row.isRaised |= !row.kernels.empty() && module.isKnown() &&
                  !module.getLine(line).contains(kAttention);
  return row;
}

Explanation mlir::diffattn::explain(const ExplanationFacts &facts) {
  const ModuleLines module(facts.module);
  const Roof roof = facts.roof.value_or(Roof());
  llvm::MapVector<StringRef, std::vector<const PlacedDiagnostic *>> places;
  for (const PlacedDiagnostic &one : facts.diagnostics)
    if (one.category != "diffattn-cache")
      places[one.place].push_back(&one);
  std::vector<ExplainedRow> rows;
  auto add = [&](ExplainedRow row) {
    auto isBefore = [](const ExplainedRow &a, const ExplainedRow &b) {
      return getNumbers(a.place) < getNumbers(b.place);
    };
    rows.insert(llvm::upper_bound(rows, row, isBefore), std::move(row));
  };
  // Sizes of the first code at a place, and sums over all code there.
  std::map<std::string, std::pair<std::string, SpanSum>> attentions;
  double whole = 0, ops = 0;
  for (const auto &[key, sum] : getLeastSums(facts.runs)) {
    if (key.category == "function") {
      whole += sum.us;
      continue;
    }
    ops += sum.us;
    // The module's own file is not named in its spans.
    const bool isOwn = StringRef(key.place).count(':') == 1;
    const std::string place = isOwn ? facts.name + ":" + key.place : key.place;
    if (key.category == "product") {
      ExplainedRow row;
      row.place = place;
      row.function = key.function;
      row.op = "product";
      row.sizes = key.name;
      row.time = getTimes(sum, getElement(key.name), roof);
      add(std::move(row));
    } else if (auto [at, isNew] = attentions.try_emplace(place, key.name, sum);
               isNew) {
      places[at->first];
    } else {
      addSum(at->second.second, sum);
    }
  }
  for (const auto &[place, diagnostics] : places) {
    ExplainedRow row = makeAttentionRow(place, diagnostics, module);
    if (auto at = attentions.find(row.place); at != attentions.end()) {
      row.sizes = at->second.first;
      row.time = getTimes(at->second.second, getElement(row.sizes), roof);
    }
    add(std::move(row));
  }
  Explanation explanation{joinRaised(std::move(rows)), facts.roof};
  if (!facts.runs.empty()) {
    ExplainedRow other;
    other.op = "other";
    other.sizes = "all else";
    other.time.emplace();
    other.time->calls = 1;
    other.time->ms = std::max(whole - ops, 0.0) / 1e3;
    explanation.rows.push_back(std::move(other));
  }
  return explanation;
}

std::vector<PlacedDiagnostic>
mlir::diffattn::getPlacedDiagnostics(const CompileDiagnostics &diagnostics) {
  std::vector<PlacedDiagnostic> placed;
  for (const CompileDiagnostic &one : diagnostics)
    placed.push_back(
        {one.kind, one.category, one.name, one.message, one.getLocation()});
  return placed;
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

static std::string printNumber(const char *format, double number) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format(format, number);
  return text;
}

static std::string printRate(std::optional<double> rate) {
  return rate ? printNumber("%.1f", *rate) : "";
}

/// Returns the texts of a row in the columns of times.
static std::vector<std::string> getTimeWords(const ExplainedRow &row) {
  const std::string op = row.sizes.empty() ? row.op : row.sizes;
  if (!row.time)
    return {op, "", "", "", "", ""};
  const ExplainedTimes &time = *row.time;
  return {op,
          std::to_string(time.calls),
          printNumber("%.3f", time.ms),
          printRate(time.gflops),
          printRate(time.gbs),
          time.share
              ? printNumber("%.0f", *time.share * 100) + "% of " + time.bound
              : ""};
}

static std::vector<std::string> getKernelWords(const ExplainedRow &row) {
  if (row.op != "attention")
    return {"", ""};
  std::string kernels;
  for (const ExplainedKernel &kernel : row.kernels)
    kernels += (kernels.empty() ? "" : "; ") + kernel.name +
               (kernel.when.empty() ? "" : " (" + kernel.when + ")");
  return {row.isRaised          ? "raised"
          : row.kernels.empty() ? "not fused"
                                : "written",
          kernels.empty() ? "none" : kernels};
}

/// Characters of a text in UTF-8.
static size_t countCharacters(StringRef text) {
  return llvm::count_if(text, [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  });
}

std::string Explanation::getTable() const {
  if (rows.empty())
    return "no attention was found\n";
  std::vector<std::vector<std::string>> lines{{"place", "function"}};
  if (roof)
    llvm::append_range(lines[0],
                       std::initializer_list<std::string>{
                           "op", "calls", "ms", "GFLOP/s", "GB/s", "of roof"});
  llvm::append_range(
      lines[0], std::initializer_list<std::string>{"attention", "kernels"});
  for (const ExplainedRow &row : rows) {
    const char *unknown = row.op == "other" ? "" : "?";
    std::vector<std::string> &line = lines.emplace_back();
    line = {printable(row.place.empty() ? unknown : row.place),
            printable(row.function)};
    if (roof)
      llvm::append_range(line, getTimeWords(row));
    llvm::append_range(line, getKernelWords(row));
  }
  std::vector<size_t> widths(lines[0].size());
  for (const std::vector<std::string> &line : lines)
    for (auto [width, word] : llvm::zip_equal(widths, line))
      width = std::max(width, countCharacters(word));
  std::string text;
  for (auto [i, line] : llvm::enumerate(lines)) {
    std::string printed;
    for (auto [width, word] : llvm::zip_equal(widths, line))
      printed += word + std::string(width - countCharacters(word) + 2, ' ');
    text += StringRef(printed).rtrim().str() + "\n";
    if (i > 0)
      for (const std::string &message : rows[i - 1].messages)
        text += "    " + printable(message) + "\n";
  }
  if (roof)
    text += "roof of " + std::to_string(roof->threads) + " thread" +
            (roof->threads > 1 ? "s" : "") + ": " + printRate(roof->gflops) +
            " GFLOP/s of f32, " + printRate(roof->gbs) + " GB/s of memory\n";
  return text;
}

//===----------------------------------------------------------------------===//
// JSON
//===----------------------------------------------------------------------===//

template <typename T>
static json::Value orNull(const std::optional<T> &value) {
  return value ? json::Value(*value) : json::Value(nullptr);
}

namespace mlir::diffattn {

json::Value toJSON(const ExplainedKernel &kernel) {
  return json::Object{{"name", json::fixUTF8(kernel.name)},
                      {"when", json::fixUTF8(kernel.when)},
                      {"options", json::fixUTF8(kernel.options)}};
}

json::Value toJSON(const ExplainedTimes &times) {
  return json::Object{
      {"calls", times.calls},           {"ms", times.ms},
      {"gflops", orNull(times.gflops)}, {"gbs", orNull(times.gbs)},
      {"share", orNull(times.share)},   {"bound", times.bound}};
}

json::Value toJSON(const ExplainedRow &row) {
  json::Array messages;
  for (const std::string &one : row.messages)
    messages.push_back(json::fixUTF8(one));
  return json::Object{{"place", json::fixUTF8(row.place)},
                      {"function", json::fixUTF8(row.function)},
                      {"is_raised", row.isRaised},
                      {"kernels", json::Array(row.kernels)},
                      {"messages", std::move(messages)},
                      {"op", row.op},
                      {"sizes", json::fixUTF8(row.sizes)},
                      {"time", orNull(row.time)}};
}

// Found by llvm::json, which has other names.
// NOLINTBEGIN(readability-identifier-naming)
static bool fromJSON(const json::Value &value, DiagnosticKind &kind,
                     json::Path path) {
  for (DiagnosticKind known :
       {DiagnosticKind::Note, DiagnosticKind::Warning, DiagnosticKind::Missed,
        DiagnosticKind::Analysis, DiagnosticKind::Passed})
    if (value.getAsString() == stringifyDiagnosticKind(known)) {
      kind = known;
      return true;
    }
  path.report("expected a kind of diagnostics");
  return false;
}

static bool fromJSON(const json::Value &value, SpansOfRun &run,
                     json::Path path) {
  const json::Array *events = value.getAsArray();
  if (!events || !llvm::all_of(*events, [](const json::Value &one) {
        return one.getAsObject() != nullptr;
      })) {
    path.report("expected a list of events");
    return false;
  }
  run.events = *events;
  return true;
}

static bool fromJSON(const json::Value &value, Roof &roof, json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("threads", roof.threads) &&
         map.map("gflops", roof.gflops) &&
         map.map("bf16_gflops", roof.bf16Gflops) && map.map("gbs", roof.gbs);
}

static bool fromJSON(const json::Value &value, PlacedDiagnostic &diagnostic,
                     json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("kind", diagnostic.kind) &&
         map.map("category", diagnostic.category) &&
         map.map("name", diagnostic.name) &&
         map.map("message", diagnostic.message) &&
         map.map("place", diagnostic.place);
}

static bool fromJSON(const json::Value &value, ExplanationFacts &facts,
                     json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("name", facts.name) &&
         map.map("module", facts.module) &&
         map.map("diagnostics", facts.diagnostics) &&
         map.map("runs", facts.runs) && map.map("roof", facts.roof);
}

static bool fromJSON(const json::Value &value, ExplainedKernel &kernel,
                     json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("name", kernel.name) && map.map("when", kernel.when) &&
         map.map("options", kernel.options);
}

static bool fromJSON(const json::Value &value, ExplainedTimes &times,
                     json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("calls", times.calls) && map.map("ms", times.ms) &&
         map.map("gflops", times.gflops) && map.map("gbs", times.gbs) &&
         map.map("share", times.share) && map.map("bound", times.bound);
}

static bool fromJSON(const json::Value &value, ExplainedRow &row,
                     json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("place", row.place) &&
         map.map("function", row.function) &&
         map.map("is_raised", row.isRaised) &&
         map.map("kernels", row.kernels) && map.map("messages", row.messages) &&
         map.map("op", row.op) && map.map("sizes", row.sizes) &&
         map.map("time", row.time);
}

static bool fromJSON(const json::Value &value, Explanation &explanation,
                     json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("rows", explanation.rows) &&
         map.map("roof", explanation.roof);
}
// NOLINTEND(readability-identifier-naming)

} // namespace mlir::diffattn

template <typename T>
static llvm::Expected<T> readJSON(StringRef text, const char *what) {
  auto parsed = json::parse<T>(text, what);
  if (!parsed)
    return makeError(ErrorClass::Usage,
                     llvm::Twine(what) +
                         ": expected JSON as docs/c-api.md has it, but got " +
                         llvm::toString(parsed.takeError()));
  return parsed;
}

llvm::Expected<ExplanationFacts>
mlir::diffattn::readExplanationFacts(StringRef text) {
  return readJSON<ExplanationFacts>(text, "facts");
}

llvm::Expected<Explanation> mlir::diffattn::readExplanation(StringRef text) {
  return readJSON<Explanation>(text, "explanation");
}
