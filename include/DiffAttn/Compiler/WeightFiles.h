//===- WeightFiles.h - tensors in safetensors files -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_WEIGHTFILES_H
#define DIFFATTN_COMPILER_WEIGHTFILES_H

#include "DiffAttn/Compiler/Npy.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FileSystem.h"

#include <memory>
#include <vector>

namespace mlir::diffattn {

/// A tensor as it lies in a mapped file, or in memory of the caller's. Its data
/// has no alignment.
struct FileTensor {
  std::string dtypeName; // as the file spells it
  std::optional<diffattn_rt::DType> dtype;
  llvm::SmallVector<int64_t> shape;
  const char *data = nullptr;
  int64_t offset = 0; // of the data in the file
  int64_t bytes = 0;
  std::string file;
};

/// The tensors of one or more safetensors files. Files are mapped and never
/// changed. A file is taken only if every byte of it is accounted for: see
/// docs/runner.md for what is refused.
class WeightFiles {
public:
  /// Adds a .safetensors file, a sharded checkpoint by its index
  /// (*.index.json), or a folder that holds one of the two under the name
  /// model.safetensors[.index.json]. After an error it holds the files that
  /// were whole, and nothing of the one that was not.
  llvm::Error add(llvm::StringRef path);

  /// Adds a dense, row-major tensor in memory of the caller's, which must stay
  /// as it is as long as a file would.
  llvm::Error addArray(llvm::StringRef name, diffattn_rt::DType dtype,
                       llvm::ArrayRef<int64_t> shape, const char *data);

  /// Whether nothing was added.
  bool empty() const { return mappings.empty() && names.empty(); }
  const FileTensor *find(llvm::StringRef name) const;
  /// Names of all tensors, in the order of the files.
  const std::vector<std::string> &getNames() const { return names; }
  /// The name nearest to `name`, for messages; empty if none is near.
  std::string suggest(llvm::StringRef name) const;

private:
  llvm::Error addFile(llvm::StringRef path,
                      std::vector<std::string> *added = nullptr);
  llvm::Error addIndex(llvm::StringRef path);

  std::vector<llvm::sys::fs::mapped_file_region> mappings;
  llvm::StringMap<FileTensor> tensors;
  std::vector<std::string> names;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_WEIGHTFILES_H
