//===- Diagnostics.h - messages beside errors -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_DIAGNOSTICS_H
#define DIFFATTN_COMPILER_DIAGNOSTICS_H

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llvm::json {
class Value;
} // namespace llvm::json

namespace mlir {
class Diagnostic;
class MLIRContext;
} // namespace mlir

namespace mlir::diffattn {

/// Numbers of the C API.
enum class DiagnosticKind : int32_t {
  Note = 0,
  Warning = 1,
  /// An optimization that was not applied, and why.
  Missed = 2,
  /// How one was applied that could be better.
  Analysis = 3,
  /// One that was applied.
  Passed = 4,
};

llvm::StringRef stringifyDiagnosticKind(DiagnosticKind kind);

/// One message of the compiler about a module that it compiles.
struct CompileDiagnostic {
  DiagnosticKind kind = DiagnosticKind::Note;
  /// Source of the message: "diffattn-fuse" (raising), "diffattn-schedule",
  /// "diffattn-gpu", "diffattn-cache"; "mlir" for messages without a category.
  std::string category;
  /// Kind of message within the category, e.g. "NotRaised"; may be empty.
  std::string name;
  std::string message;
  /// The place in the module, or the name that its location has; empty and 0 if
  /// unknown.
  std::string file;
  unsigned line = 0, column = 0;

  /// "model.mlir:3:8"; empty if unknown.
  std::string getLocation() const;
  /// One line: "model.mlir:3:8: remark: the message [diffattn-fuse]".
  std::string getText() const;
};

using CompileDiagnostics = std::vector<CompileDiagnostic>;

/// The lines of all but those that say what was applied.
std::string printDiagnostics(const CompileDiagnostics &diagnostics);

/// Has `context` add every remark of ours to `diagnostics`, which must outlive
/// it.
void collectRemarks(MLIRContext &context, CompileDiagnostics &diagnostics);

/// A warning, remark or note of MLIR's own kind.
CompileDiagnostic describeDiagnostic(const Diagnostic &diagnostic);

llvm::json::Value toJSON(const CompileDiagnostic &diagnostic);
/// The diagnostic of which toJSON makes `value`; nothing if there is none.
std::optional<CompileDiagnostic>
diagnosticFromJSON(const llvm::json::Value &value);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_DIAGNOSTICS_H
