//===- FindWeights.cpp - weights by name, checked and bound ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/CompiledProgram.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/ConvertWeight.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::Twine;

static llvm::Error weightError(const FileTensor *tensor, const Twine &name,
                               const Twine &message) {
  return makeError(ErrorClass::Weights,
                   (tensor ? tensor->file + ": " : std::string()) + "weight '" +
                       name + "': " + message);
}

/// Finds the tensor of slot `i` of a declaration and checks that it fits.
static llvm::Expected<const FileTensor *>
findTensor(const WeightDeclaration &declared, int64_t i,
           const WeightFiles &files) {
  std::string name = declared.getFileName(i);
  const FileTensor *tensor = files.find(name);
  if (!tensor) {
    std::string near = files.suggest(name);
    return weightError(nullptr, name,
                       "expected it in the weight files, but they lack it" +
                           (near.empty()
                                ? Twine("")
                                : " (the nearest name is '" + near + "')"));
  }
  std::vector<int64_t> shape(declared.shape);
  if (declared.transpose)
    std::swap(shape[0], shape[1]);
  if (SizeList(shape) != SizeList(tensor->shape))
    return weightError(
        tensor, name,
        "expected shape [" +
            llvm::join(llvm::map_range(
                           shape, [](int64_t s) { return std::to_string(s); }),
                       ", ") +
            "], but got [" +
            llvm::join(
                llvm::map_range(tensor->shape,
                                [](int64_t s) { return std::to_string(s); }),
                ", ") +
            "]");
  if (!tensor->dtype || !canConvertWeight(*tensor->dtype, declared.dtype))
    return weightError(
        tensor, name,
        "expected element type " + stringifyDType(declared.dtype) +
            (isFloatDType(declared.dtype) ? " or another float" : "") +
            ", but got " + tensor->dtypeName);
  return tensor;
}

Failure mlir::diffattn::missWeightFiles(const Signature &signature) {
  return {ErrorClass::Weights, "expected weight files, because the module "
                               "declares weights (the first is '" +
                                   signature.weights[0].name + "')"};
}

llvm::Expected<std::vector<const FileTensor *>>
mlir::diffattn::findWeights(const Signature &signature,
                            const WeightFiles &files) {
  if (!signature.weights.empty() && files.empty())
    return toError(missWeightFiles(signature));
  std::vector<const FileTensor *> tensors;
  for (const WeightDeclaration &declared : signature.weights)
    for (int64_t i = 0; i < declared.getNumSlots(); ++i) {
      auto tensor = findTensor(declared, i, files);
      if (!tensor)
        return tensor.takeError();
      tensors.push_back(*tensor);
    }
  return tensors;
}

llvm::Error mlir::diffattn::bindWeightSlots(
    const Signature &signature, const WeightFiles &files,
    const CompiledProgram::Progress &progress,
    std::vector<diffattn_weight> &slots, std::vector<HostArray> &owned) {
  // Everything is found and checked before anything is converted.
  auto tensors = findWeights(signature, files);
  if (!tensors)
    return tensors.takeError();
  int64_t total = 0, done = 0;
  for (const FileTensor *tensor : *tensors)
    total += tensor->bytes;
  slots.resize(tensors->size());
  size_t slot = 0;
  for (const WeightDeclaration &declared : signature.weights)
    for (int64_t i = 0; i < declared.getNumSlots(); ++i, ++slot) {
      const FileTensor &tensor = *(*tensors)[slot];
      if (Failure failure = convertWeight(
              declared, {tensor.data, *tensor.dtype, declared.getFileName(i)},
              slots[slot], owned))
        return makeError(failure.getClass(),
                         tensor.file + ": " + failure.getMessage());
      done += tensor.bytes;
      if (progress && !progress(done, total))
        return toError(stoppedAfter(done, total));
    }
  return llvm::Error::success();
}
