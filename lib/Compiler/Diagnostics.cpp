//===- Diagnostics.cpp - messages beside errors ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Diagnostics.h"
#include "DiffAttn/Runtime/Support/Printable.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Location.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Remarks.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
namespace json = llvm::json;

static constexpr StringRef kKinds[] = {"note", "warning", "missed", "analysis",
                                       "passed"};

StringRef mlir::diffattn::stringifyDiagnosticKind(DiagnosticKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

std::string CompileDiagnostic::getLocation() const {
  const std::string name = printable(file);
  if (line == 0)
    return name;
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::string CompileDiagnostic::getText() const {
  const bool plain =
      kind == DiagnosticKind::Note || kind == DiagnosticKind::Warning;
  std::string text = getLocation();
  if (!text.empty())
    text += ": ";
  text += plain ? stringifyDiagnosticKind(kind).str() : "remark";
  return text + ": " + message + " [" + category + "]";
}

std::string
mlir::diffattn::printDiagnostics(const CompileDiagnostics &diagnostics) {
  std::string text;
  for (const CompileDiagnostic &diagnostic : diagnostics)
    if (diagnostic.kind != DiagnosticKind::Passed)
      text += diagnostic.getText() + "\n";
  return text;
}

static void setLocation(CompileDiagnostic &diagnostic, Location location) {
  if (auto place = location->findInstanceOf<FileLineColLoc>()) {
    diagnostic.file = place.getFilename().str();
    diagnostic.line = place.getLine();
    diagnostic.column = place.getColumn();
  } else if (auto name = location->findInstanceOf<NameLoc>()) {
    diagnostic.file = name.getName().str();
  }
}

/// Names in a module may hold anything; a message is one line without controls.
static std::string joinLines(std::string text) {
  for (char &c : text)
    if (c == '\n' || c == '\r')
      c = ' ';
  return printable(text);
}

static DiagnosticKind getKind(const remark::detail::Remark &remark) {
  switch (remark.getRemarkType()) {
  case llvm::remarks::Type::Passed:
    return DiagnosticKind::Passed;
  case llvm::remarks::Type::Missed:
  case llvm::remarks::Type::Failure:
    return DiagnosticKind::Missed;
  default:
    return DiagnosticKind::Analysis;
  }
}

/// "Summary: Reason; the rest".
static std::string getMessage(const remark::detail::Remark &remark) {
  std::string summary, reason, rest;
  for (const remark::detail::Remark::Arg &arg : remark.getArgs()) {
    std::string &part = arg.key == "Summary"  ? summary
                        : arg.key == "Reason" ? reason
                                              : rest;
    part += (part.empty() ? "" : ", ") + arg.val;
  }
  std::string message = std::move(summary);
  for (auto [separator, part] :
       {std::pair(": ", &reason),
        std::pair(reason.empty() ? ": " : "; ", &rest)})
    if (!part->empty())
      message += (message.empty() ? "" : separator) + *part;
  return joinLines(std::move(message));
}

namespace {
class RemarkCollector final : public remark::detail::MLIRRemarkStreamerBase {
public:
  explicit RemarkCollector(CompileDiagnostics &diagnostics)
      : diagnostics(diagnostics) {}

  void streamOptimizationRemark(const remark::detail::Remark &remark) override {
    CompileDiagnostic diagnostic;
    diagnostic.kind = getKind(remark);
    diagnostic.category = remark.getCategoryName().str();
    diagnostic.name = remark.getRemarkName().str();
    diagnostic.message = getMessage(remark);
    setLocation(diagnostic, remark.getLocation());
    diagnostics.push_back(std::move(diagnostic));
  }

private:
  CompileDiagnostics &diagnostics;
};
} // namespace

void mlir::diffattn::collectRemarks(MLIRContext &context,
                                    CompileDiagnostics &diagnostics) {
  remark::RemarkCategories categories;
  // Fails only for a second engine of one context.
  categories.passed = categories.missed = categories.analysis =
      categories.failed = "diffattn-.*";
  (void)remark::enableOptimizationRemarks(
      context, std::make_unique<RemarkCollector>(diagnostics),
      std::make_unique<remark::RemarkEmittingPolicyAll>(), categories);
}

CompileDiagnostic
mlir::diffattn::describeDiagnostic(const Diagnostic &diagnostic) {
  CompileDiagnostic result;
  result.kind = diagnostic.getSeverity() == DiagnosticSeverity::Warning
                    ? DiagnosticKind::Warning
                    : DiagnosticKind::Note;
  result.category = "mlir";
  result.message = diagnostic.str();
  for (const Diagnostic &note : diagnostic.getNotes())
    result.message += "; " + note.str();
  result.message = joinLines(std::move(result.message));
  setLocation(result, diagnostic.getLocation());
  return result;
}

json::Value mlir::diffattn::toJSON(const CompileDiagnostic &diagnostic) {
  return json::Object{{"kind", stringifyDiagnosticKind(diagnostic.kind)},
                      {"category", json::fixUTF8(diagnostic.category)},
                      {"name", json::fixUTF8(diagnostic.name)},
                      {"message", json::fixUTF8(diagnostic.message)},
                      {"file", json::fixUTF8(diagnostic.file)},
                      {"line", static_cast<int64_t>(diagnostic.line)},
                      {"column", static_cast<int64_t>(diagnostic.column)}};
}

std::optional<CompileDiagnostic>
mlir::diffattn::diagnosticFromJSON(const json::Value &value) {
  const json::Object *object = value.getAsObject();
  if (!object)
    return std::nullopt;
  CompileDiagnostic diagnostic;
  std::optional<StringRef> kind = object->getString("kind");
  const auto *known = llvm::find(kKinds, kind.value_or(""));
  if (known == std::end(kKinds))
    return std::nullopt;
  diagnostic.kind = static_cast<DiagnosticKind>(known - std::begin(kKinds));
  for (auto [key, into] : {std::pair("category", &diagnostic.category),
                           std::pair("name", &diagnostic.name),
                           std::pair("message", &diagnostic.message),
                           std::pair("file", &diagnostic.file)}) {
    std::optional<StringRef> text = object->getString(key);
    if (!text)
      return std::nullopt;
    *into = text->str();
  }
  for (auto [key, into] : {std::pair("line", &diagnostic.line),
                           std::pair("column", &diagnostic.column)}) {
    std::optional<int64_t> number = object->getInteger(key);
    if (!number || *number < 0 || *number > UINT32_MAX)
      return std::nullopt;
    *into = static_cast<unsigned>(*number);
  }
  return diagnostic;
}
