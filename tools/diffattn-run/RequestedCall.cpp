//===- RequestedCall.cpp - the call that a command line asks for ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RequestedCall.h"

#include "Inputs.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

static llvm::Expected<std::string> chooseEntry(const Signature &signature,
                                               const Options &options) {
  if (!options.entry.empty())
    return options.entry;
  if (signature.functions.size() == 1)
    return signature.functions[0].name;
  if (signature.find("forward"))
    return std::string("forward");
  auto missing = getFunction(signature, "");
  std::string message = describeError(missing.takeError()).second;
  return makeError(ErrorClass::Usage, "--entry: " + message);
}

static llvm::Error checkCounts(const FunctionSignature &function,
                               const Options &options) {
  for (auto [count, what] : {std::pair(options.outputs.size(), "--output"),
                             std::pair(options.expected.size(), "--expected")})
    if (count > function.results.size())
      return makeError(ErrorClass::Usage,
                       llvm::Twine("expected at most ") +
                           llvm::Twine(function.results.size()) + " " + what +
                           ", one for each result of '" + function.name +
                           "', but got " + llvm::Twine(count));
  return llvm::Error::success();
}

std::vector<ArrayView> diffattn::viewsOf(std::vector<HostArray> &arrays) {
  std::vector<ArrayView> views;
  for (HostArray &array : arrays) {
    ArrayView view;
    view.data = array.data.get();
    view.dtype = array.dtype;
    view.shape = array.shape;
    views.push_back(view);
  }
  return views;
}

llvm::Expected<RequestedCall> diffattn::prepareCall(const Signature &signature,
                                                    const Options &options) {
  RequestedCall call;
  auto name = chooseEntry(signature, options);
  if (!name)
    return name.takeError();
  call.entry = *name;
  auto function = getFunction(signature, call.entry);
  if (!function)
    return function.takeError();
  if (llvm::Error error = checkCounts(**function, options))
    return error;
  for (const std::string &file : options.expected) {
    auto array = readNpy(file);
    if (!array)
      return array.takeError();
    call.expected.push_back(std::move(*array));
  }
  auto arguments = makeArguments(**function, options.inputs, options.seed);
  if (!arguments)
    return arguments.takeError();
  call.arguments = std::move(*arguments);
  if (Failure failure =
          checkArguments(signature, call.entry, viewsOf(call.arguments)))
    return toError(failure);
  return std::move(call);
}
