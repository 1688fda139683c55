//===- ImportBuiltins.cpp - diffattn-import-builtins ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"
#include "Contract.h"

#include "DiffAttn/Transforms/Passes.h"

#include "mlir/IR/BuiltinDialect.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_IMPORTBUILTINSPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::import;

namespace {
struct Builtin {
  StringRef name;
  EmitBuiltin emit;
};
} // namespace

/// Operands and results of each: docs/spec.md.
static constexpr Builtin kBuiltins[] = {
    {"argsort", emitArgsort},
    {"attention", emitAttention},
    {"grouped_gemm", emitGroupedGemm},
    {"write_rows", emitWriteRows},
};

static FailureOr<Builtin> findBuiltin(func::FuncOp function) {
  Attribute given = function->getAttr(kBuiltin);
  auto name = dyn_cast<StringAttr>(given);
  for (const Builtin &builtin : kBuiltins)
    if (name && name.getValue() == builtin.name)
      return builtin;
  // import_c6
  auto names =
      llvm::map_range(kBuiltins, [](const Builtin &one) { return one.name; });
  return function.emitError("expected ")
         << kBuiltin << " to be one of " << llvm::join(names, ", ")
         << ", but got " << given;
}

/// Options are attributes that every MLIR reads, and private functions
/// (import_c7).
static LogicalResult verifyOptions(func::FuncOp function, ModuleOp module) {
  Attribute given = function->getAttr(kOptions);
  if (!given)
    return success();
  auto options = dyn_cast<DictionaryAttr>(given);
  if (!options)
    return function.emitError("expected ")
           << kOptions << " to be a dictionary, but got " << given;
  WalkResult walked = options.walk([&](Attribute part) {
    if (auto symbol = dyn_cast<SymbolRefAttr>(part)) {
      auto known =
          SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(module, symbol);
      if (known && known.isPrivate())
        return WalkResult::advance();
    } else if (isa<BuiltinDialect>(part.getDialect())) {
      return WalkResult::advance();
    }
    function.emitError("expected options of MLIR's own attributes and private "
                       "functions, but got ")
        << part;
    return WalkResult::interrupt();
  });
  return failure(walked.wasInterrupted());
}

static LogicalResult replaceCall(const Builtin &builtin, func::CallOp call,
                                 func::FuncOp callee) {
  TensorLoopBuilder b(call.getLoc(), call);
  FailureOr<Value> made = builtin.emit(b, BuiltinCall(call, callee));
  if (failed(made))
    return failure();
  assert(made->getType() == call.getResult(0).getType() &&
         "expected a result of the type that the declaration has");
  call.getResult(0).replaceAllUsesWith(*made);
  call.erase();
  return success();
}

/// Replaces the calls of `function`, and removes it.
static LogicalResult importBuiltin(func::FuncOp function, ModuleOp module) {
  FailureOr<Builtin> builtin = findBuiltin(function);
  if (failed(builtin) || failed(verifyOptions(function, module)))
    return failure();
  if (!function.isPrivate() || !function.isExternal())
    return function.emitError("expected a private function without a body as "
                              "builtin '")
           << builtin->name << "', but got '" << function.getSymName() << "'";
  // Collected first: an emitter may write calls of its own.
  SmallVector<func::CallOp> calls;
  std::optional<SymbolTable::UseRange> uses =
      SymbolTable::getSymbolUses(function, module);
  for (SymbolTable::SymbolUse use : uses.value_or(SymbolTable::UseRange({}))) {
    auto call = dyn_cast<func::CallOp>(use.getUser());
    if (!call)
      return use.getUser()->emitError("expected builtin '")
             << builtin->name << "' to be called, but got it in '"
             << use.getUser()->getName() << "'";
    calls.push_back(call);
  }
  for (func::CallOp call : calls)
    if (failed(replaceCall(*builtin, call, function)))
      return failure();
  function.erase();
  return success();
}

namespace {
struct ImportBuiltinsPass final
    : diffattn::impl::ImportBuiltinsPassBase<ImportBuiltinsPass> {
  void runOnOperation() override {
    for (auto function :
         llvm::make_early_inc_range(getOperation().getOps<func::FuncOp>()))
      if (function->hasAttr(kBuiltin) &&
          failed(importBuiltin(function, getOperation())))
        return signalPassFailure();
  }
};
} // namespace
