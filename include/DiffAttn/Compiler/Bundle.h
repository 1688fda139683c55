//===- Bundle.h - writes compiled models for other machines -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_BUNDLE_H
#define DIFFATTN_COMPILER_BUNDLE_H

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Compiler/WeightFiles.h"

#include <string>
#include <vector>

namespace mlir::diffattn {

/// Where to look for LLVM's linker.
struct LinkerSearch {
  /// A path, or a name to look for in PATH and then in `folders`.
  std::string program = "ld.lld";
  std::vector<std::string> folders;
  /// The linker of a wheel, in a wheel. Else with LLVM's own folder, where this
  /// was built.
  static LinkerSearch getDefault();
};

struct BundleOptions {
  LinkerSearch linker = LinkerSearch::getDefault();
  /// Copy the weight files into the bundle instead of pointing at them.
  bool copyWeights = false;
  /// Batch invariance that the modules were compiled with, for the manifest.
  BatchInvariance batchInvariance = BatchInvariance::Auto;
  /// Where configurations, the tokenizer and the chat template are taken from,
  /// if they are there; empty: nowhere.
  std::string modelFolder;
};

/// The targets whose code a bundle made with `target` holds: one for the CPU,
/// or one for each chip of "cuda:<chip>,<chip>". Each has an instruction set by
/// name for the host, the best that this machine runs if `target` names none,
/// so that the bundle can say what it needs. Errors are of class Usage.
llvm::Expected<std::vector<std::string>>
getBundleTargets(llvm::StringRef target);

/// Writes a module that was compiled for each of `targets` (of
/// `getBundleTargets`), with its weights from `files`, as a bundle:
/// docs/bundles.md. `directory` must not be there yet, or be an empty folder;
/// it appears whole or not at all.
llvm::Error writeBundle(llvm::ArrayRef<CompiledModule> modules,
                        llvm::ArrayRef<std::string> targets,
                        const WeightFiles &files, const BundleOptions &options,
                        llvm::StringRef directory);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_BUNDLE_H
