//===- Compile.h - from IR to an object -------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_COMPILE_H
#define DIFFATTN_COMPILER_COMPILE_H

#include "DiffAttn/Codegen/NVVM/Ptxas.h"
#include "DiffAttn/Compiler/Diagnostics.h"
#include "DiffAttn/Compiler/ExecutionTarget.h"
#include "DiffAttn/Compiler/ReadSignature.h"
#include "DiffAttn/Model/Schedule/BatchInvariance.h"
#include "DiffAttn/Runtime/Program/DeviceCode.h"

#include <functional>
#include <optional>
#include <string>

namespace mlir::diffattn {

/// Options of a compilation. All but the last four change the code and are part
/// of the key of the cache.
struct CompileOptions {
  /// A target as `parseTarget` reads it.
  std::string target = "cpu";
  /// Threads that compiled code may use; 0 leaves it to the runtime.
  int64_t threads = 0;
  /// Prefetch distance in bytes for weights, keys and values that are read
  /// once: from 0, none, to kMaxPrefetchBytes; -1: the target's, which for
  /// `native` was measured.
  int64_t prefetchBytes = -1;
  /// Whether unfused graphs are searched for differential attention.
  bool raise = true;
  /// Whether a row of a product must not depend on the other rows; `Always` is
  /// for the CPU alone.
  BatchInvariance batchInvariance = BatchInvariance::Auto;
  /// Whether indices and slices that are data are taken without a check that
  /// they lie inside of their buffers.
  bool unchecked = false;
  /// Whether code for the CPU records spans of its products and attentions
  /// (ABI/Trace.h).
  bool trace = false;
  /// Machine code for the CPU with few of LLVM's optimizations: it is made in
  /// less time and takes more to run. Tests of results ask for it. Code for
  /// tiles of AMX and kernels of GPUs stay as they are.
  bool quickCode = false;
  /// The plain path: every op of ours decomposed to loops, nothing fused. Slow,
  /// and independent of the kernels: what --check=unfused runs.
  bool reference = false;
  /// The stage that the input is in: Input, or GPU for what emitStage wrote
  /// under that name.
  Stage from = Stage::Input;
  /// Name of the input in diagnostics.
  std::string inputName = "module";
  /// Where a failing pipeline leaves its reproducer; empty: nowhere.
  std::string reproducer;
  /// Name of diffattn-opt in the message of a failing pipeline.
  std::string optTool = "diffattn-opt";
  /// The assembler that stage cubin runs.
  PtxasSearch ptxas;
  /// Called before anything is compiled; an error that it returns ends the
  /// compilation. So weights that do not fit are reported without the wait.
  /// Null: not called.
  std::function<llvm::Error(const diffattn_rt::Signature &)> checkSignature;
};

struct CompiledModule {
  diffattn_rt::Signature signature;
  std::string object;                            // relocatable ELF
  std::optional<diffattn_rt::DeviceCode> device; // of targets with a GPU
  CompileDiagnostics diagnostics;                // the same from the cache
  bool fromCache = false;
  double seconds = 0; // taken to compile, or to read from the cache
};

/// Compiles MLIR, text or bytecode.
llvm::Expected<CompiledModule> compileModule(llvm::StringRef ir,
                                             const CompileOptions &options);

/// The module after a stage, named as in Passes.td (`Stage`): input, imported,
/// raised, scheduled, bufferized, loops and llvm are MLIR, llvm-ir and assembly
/// are text, object is ELF. For targets with a GPU there are also gpu (MLIR),
/// ptx (text: one module with all kernels) and cubin (ELF, made by ptxas).
/// Messages of the compiler beside errors go to `diagnostics`.
llvm::Expected<std::string>
emitStage(llvm::StringRef ir, const CompileOptions &options,
          llvm::StringRef word, CompileDiagnostics *diagnostics = nullptr);

/// Names what the code depends on beside the IR and the options: this build of
/// the compiler, LLVM's version, the CPU.
std::string getToolchainKey(llvm::StringRef isa);

/// Compiled modules on disk, one file each, and texts of modules that callers
/// derived. They are machine code, or become it: the folder and the files read
/// from it must belong to this user, and only this user may write them.
class ObjectCache {
public:
  static constexpr int64_t kDefaultMaxBytes = int64_t(1) << 30;

  /// At most `maxBytes` are kept. The modules that were not used for longest
  /// make room for new ones.
  explicit ObjectCache(std::string directory,
                       int64_t maxBytes = kDefaultMaxBytes)
      : directory(std::move(directory)), maxBytes(maxBytes) {}

  /// The module from the cache, or compiled now and added. A cache that cannot
  /// be used is a warning in `diagnostics`, never a failure.
  llvm::Expected<CompiledModule> compile(llvm::StringRef ir,
                                         const CompileOptions &options);

  /// For a native `target`: reads the measurements of the CPU from the folder,
  /// or measures now and keeps them there. `compile` calls it; callers that
  /// make code for native without the cache, or name what native is, call it
  /// first.
  void recallHost(llvm::StringRef target) const;

  /// The text that was kept under `key`, which is any string; null if there is
  /// none. Texts that another build kept are not found.
  std::optional<std::string> readText(llvm::StringRef key) const;
  /// Keeps a text that follows from `key`; `list` shows `description`. An error
  /// of class output if the cache cannot be used.
  llvm::Error keepText(llvm::StringRef key, llvm::StringRef description,
                       llvm::StringRef text);

  struct Entry {
    std::string key, description;
    int64_t bytes = 0;
    /// Since it was last used.
    int64_t secondsOld = 0;
  };
  /// All entries, the last used first.
  llvm::Expected<std::vector<Entry>> list() const;
  /// Removes all entries and returns how many there were.
  llvm::Expected<int64_t> clear();

  /// The key under which `ir` with `options` is kept.
  static llvm::Expected<std::string> getKey(llvm::StringRef ir,
                                            const CompileOptions &options);

private:
  /// Keeps a record, and no more than `maxBytes` of all.
  llvm::Error keep(llvm::StringRef key, llvm::StringRef record);

  std::string directory;
  int64_t maxBytes;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_COMPILE_H
