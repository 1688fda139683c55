//===- WeightOps.cpp - constants and weights of a module ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"
#include "Constants.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/MLProgram/IR/MLProgram.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;
namespace diffattn = mlir::diffattn;

namespace {
struct Weight : Details {
  std::string name;
  RankedTensorType type;
  int64_t layers = 0;
};
} // namespace

/// The weight of a layer, or without one.
static bool loadWeight(Machine &m, const Inst &inst, int64_t layer) {
  const auto &details = inst.as<Weight>();
  auto array = m.options.weight(details.name, layer, details.type);
  if (!array)
    return m.fail(inst.op, array.takeError());
  if (!*array || array->getElementType() != details.type.getElementType() ||
      array->getShape() != details.type.getShape())
    return m.fail(InterpreterError::Kind::Input, inst.op,
                  "expected a weight @" + details.name + " of " +
                      describeShape(details.type.getShape()) + ", but got " +
                      describe(*array));
  m.tensors[inst.dst] = std::move(*array);
  return true;
}

static bool runWeight(Machine &m, const Inst &inst) {
  return loadWeight(m, inst, -1);
}
static bool runLayerWeight(Machine &m, const Inst &inst) {
  const int64_t layer = m.scalars[inst.a].i, layers = inst.as<Weight>().layers;
  if (layer < 0 || layer >= layers)
    return m.fail(inst, "expected a layer from 0 and below " + Twine(layers) +
                            ", but got " + Twine(layer));
  return loadWeight(m, inst, layer);
}

/// Loads the extern global `global` by `run`.
static bool buildWeight(CodeBuilder &b, Operation *op,
                        ml_program::GlobalOp global, Handler run) {
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  if (!type || !type.hasStaticShape() ||
      !isa_and_nonnull<ml_program::ExternAttr>(global.getValueAttr()))
    return b.unsupported(op, "expected a global of static shape with an extern "
                             "value");
  auto weight = diffattn::WeightAttr::ofGlobal(
      global, [&] { return global.emitOpError(); });
  if (failed(weight))
    return b.unsupported(op, "expected a global that declares a weight");
  if (!b.machine.options.weight)
    return b.machine.fail(InterpreterError::Kind::Input, op,
                          "expected weights for @" + global.getSymName() +
                              ", but got none");
  if (!b.emitOp(run, op))
    return false;
  auto &details = b.addDetails<Weight>(b.code->insts.back());
  details.name = global.getSymName().str();
  details.type = type;
  details.layers = weight->getLayers();
  return true;
}

static ml_program::GlobalOp findGlobal(Operation *op, SymbolRefAttr symbol) {
  return SymbolTable::lookupNearestSymbolFrom<ml_program::GlobalOp>(op, symbol);
}

static bool runNothing(Machine &, const Inst &) { return true; }

static bool buildLoad(CodeBuilder &b, Operation *op) {
  ml_program::GlobalOp global =
      findGlobal(op, op->getAttrOfType<SymbolRefAttr>("global"));
  if (!global || global.getIsMutable())
    return b.unsupported(op, "expected a global of the module that is not "
                             "mutable");
  if (isa_and_nonnull<ml_program::ExternAttr>(global.getValueAttr()))
    return buildWeight(b, op, global, runWeight);
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  if (!type)
    return b.unsupported(op, "expected a global that is a tensor");
  auto array = readConstant(global.getValueAttr(), b.machine.budget);
  if (!array)
    return b.machine.fail(op, array.takeError());
  b.keepAlive(op->getResults());
  if (!b.emitOp(runNothing, op))
    return false;
  b.function.tensors[b.get(op->getResult(0)).number] = std::move(*array);
  return true;
}

static bool buildLayerWeight(CodeBuilder &b, Operation *op) {
  auto load = cast<diffattn::LayerWeightOp>(op);
  ml_program::GlobalOp global = findGlobal(op, load.getPatternAttr());
  if (!global)
    return b.unsupported(op, "expected a global '" + load.getPattern() +
                                 "' in the module");
  return buildWeight(b, op, global, runLayerWeight);
}

void mlir::diffattn::interpreter::addWeightOps(OpTable &table) {
  table["ml_program.global_load"] = buildLoad;
  table["ml_program.global_load_const"] = buildLoad;
  table["diffattn.layer_weight"] = buildLayerWeight;
}
