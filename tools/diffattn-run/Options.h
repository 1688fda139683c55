//===- Options.h - the command line of diffattn-run -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_DIFFATTN_RUN_OPTIONS_H
#define DIFFATTN_TOOLS_DIFFATTN_RUN_OPTIONS_H

#include "Explain.h"

#include "DiffAttn/Compiler/CallerOptions.h"

#include "llvm/Support/Error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mlir::diffattn {

/// Which remarks of the compiler are printed; warnings and notes always are.
enum class RemarkChoice { None, Missed, All };

struct Options {
  std::vector<std::string> positional;
  std::string entry;
  std::vector<std::string> inputs, weightPaths;
  uint64_t seed = 0;
  /// Options of the table, parsed, and as they were given: a name and a text.
  CallerOptions caller;
  std::vector<std::pair<std::string, std::string>> given;
  std::string emit, emitFile;
  bool noCache = false, copyWeights = false;
  std::string linker;
  RemarkChoice remarks = RemarkChoice::Missed;
  std::string cacheDir;
  std::vector<std::string> outputs, expected;
  std::optional<double> rtol, atol; // none: by element type
  std::string check;
  int64_t bench = 0;
  bool quiet = false, info = false;
  ExplainFormat explain = ExplainFormat::None;
  /// File for a trace of the run; empty: none.
  std::string trace;
  /// diffattn-opt as the user can call it: in the folder that this tool was
  /// called from.
  std::string optTool;
};

/// The options; nothing if the command line is wrong, with the error on stderr.
/// --help and --version end the process.
std::optional<Options> parseOptions(int argc, char **argv);

/// Sets `options.caller` by what was given. An error names the flag.
llvm::Error applyGiven(Options &options);

/// Whether the table's option `name` was given.
bool wasGiven(const Options &options, llvm::StringRef name);

/// Fails if values are out of range, or do not go together.
llvm::Error checkOptions(const Options &options);

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_DIFFATTN_RUN_OPTIONS_H
