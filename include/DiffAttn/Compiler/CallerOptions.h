//===- CallerOptions.h - options by name and text ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One table of the options that callers set by a name and a text, with their
// types, limits and help. The C API and Python set them, diffattn-run has flags
// for them, the key of the cache is made of those that change the code, and the
// tests compare docs/knobs.md and Python's limits with it.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_CALLEROPTIONS_H
#define DIFFATTN_COMPILER_CALLEROPTIONS_H

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Compiler/Device.h"

#include <variant>

namespace mlir::diffattn {

/// All that a caller can choose: of the code, and of what is opened and kept
/// around it.
struct CallerOptions {
  CompileOptions compile;
  /// CUDA's libraries, where the loader finds none.
  CudaLibraries libraries;
  /// Weights that a module is checked against before it is compiled.
  std::vector<std::string> weights;
  /// The folder of compiled code; empty: none. And how many MiB are kept there.
  std::string cache;
  int64_t cacheMiB = ObjectCache::kDefaultMaxBytes >> 20;
};

/// A member of `CallerOptions` by its type: a text, a number, a truth value, a
/// list of texts, to which a value is added (`AppendTo`) or which a value
/// separated by colons becomes (`SplitInto`), and one of several words.
struct TextOption {
  std::string &(*member)(CallerOptions &);
  /// Why a text cannot be taken; null: each can.
  llvm::Error (*check)(llvm::StringRef text) = nullptr;
};
struct NumberOption {
  int64_t &(*member)(CallerOptions &);
  int64_t least, most;
  llvm::StringLiteral unit = "";
};
struct TruthOption {
  bool &(*member)(CallerOptions &);
};
struct ListOption {
  std::vector<std::string> &(*member)(CallerOptions &);
  enum Form { AppendTo, SplitInto } form;
};
struct ChoiceOption {
  llvm::ArrayRef<llvm::StringRef> (*words)();
  llvm::StringRef (*get)(CallerOptions &);
  void (*set)(CallerOptions &, llvm::StringRef word);
};

struct OptionRow {
  /// Name in the C API; diffattn-run's flag has dashes for underscores.
  llvm::StringLiteral name;
  std::variant<TextOption, NumberOption, TruthOption, ListOption, ChoiceOption>
      kind;
  /// Whether it changes the code: it is part of the key of the cache then.
  bool isKeyed;
  llvm::StringLiteral help;

  /// Description of a valid value, for errors: "a number of MiB from 0 to
  /// 1048576".
  std::string getExpected() const;
};

/// The options in the order of docs/c-api.md.
llvm::ArrayRef<OptionRow> getOptionTable();

/// The row of that name; null: there is none.
const OptionRow *findOption(llvm::StringRef name);

/// Sets an option. On an error of class usage, which names the expected and the
/// given value for `label` (empty: "option NAME"), `options` is unchanged.
llvm::Error setOption(CallerOptions &options, llvm::StringRef name,
                      llvm::StringRef text, llvm::StringRef label = "");

/// The values of all options that change the code, but for the target, of which
/// the key has what it stands for.
std::string getKeyOfOptions(const CompileOptions &options);

/// The table as text, a line an option: name, type, limits, "key" or "-", and
/// help, separated by tabs. Types are text, number, truth, list and choice;
/// limits are `0..4096`, `auto|true|false` or empty.
std::string describeOptions();

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_CALLEROPTIONS_H
