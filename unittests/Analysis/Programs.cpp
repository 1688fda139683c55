//===- Programs.cpp - programs drawn from a seed --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Programs.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;

namespace plain {

MLIRContext &Program::context() {
  static MLIRContext *context = [] {
    auto *made = new MLIRContext(MLIRContext::Threading::DISABLED);
    made->loadDialect<
        affine::AffineDialect, arith::ArithDialect, cf::ControlFlowDialect,
        func::FuncDialect, linalg::LinalgDialect, math::MathDialect,
        memref::MemRefDialect, scf::SCFDialect, tensor::TensorDialect>();
    return made;
  }();
  return *context;
}

Program::Program(ArrayRef<Type> arguments)
    : loc(UnknownLoc::get(&context())), module(ModuleOp::create(loc)),
      builder(&context()) {
  builder.setInsertionPointToEnd(module->getBody());
  function = func::FuncOp::create(builder, loc, "main",
                                  builder.getFunctionType(arguments, {}));
  builder.setInsertionPointToEnd(function.addEntryBlock());
}

Value Program::add(StringRef name, ValueRange operands, Type result,
                   ArrayRef<NamedAttribute> attributes) {
  OperationState state(loc, name, operands, result, attributes);
  return builder.create(state)->getResult(0);
}

Value Program::integer(int64_t number, Type type) {
  return arith::ConstantOp::create(
      builder, loc,
      cast<TypedAttr>(Attribute(IntegerAttr::get(
          type, APInt(widthOf(type), static_cast<uint64_t>(number),
                      /*isSigned=*/true,
                      /*implicitTrunc=*/true)))));
}

Value Program::real(double number, Type type) {
  return arith::ConstantOp::create(builder, loc,
                                   builder.getFloatAttr(type, number));
}

Value Program::compare(arith::CmpIPredicate predicate, Value a, Value b) {
  return arith::CmpIOp::create(builder, loc, predicate, a, b);
}

void Program::finish() {
  builder.setInsertionPointToEnd(&function.getBody().front());
  func::ReturnOp::create(builder, loc);
  ASSERT_TRUE(succeeded(verify(*module))) << text();
}

std::string Program::text() {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module->print(stream);
  return text;
}

OwningOpRef<ModuleOp> parseProgram(StringRef text) {
  return parseSourceString<ModuleOp>(text, &Program::context());
}

std::vector<int64_t> edgesOf(Type type, Draw &draw) {
  unsigned width = widthOf(type);
  std::vector<int64_t> edges = {0, 1};
  if (width == 1)
    return edges;
  auto add = [&](int64_t number) {
    number = wrap(number, type);
    if (!llvm::is_contained(edges, number))
      edges.push_back(number);
  };
  int64_t least = wrap(static_cast<__int128>(1) << (width - 1), type);
  for (int64_t number : {int64_t(-1), least, least + 1, int64_t(2)})
    add(number);
  add(wrap(static_cast<__int128>(least) - 1, type)); // the greatest
  for (unsigned power : {2u, 7u, 8u, 15u, 16u, 30u, 31u, 32u, 62u})
    if (power < width)
      for (int64_t beside : {-1, 0, 1}) {
        add((int64_t(1) << power) + beside);
        add(-(int64_t(1) << power) + beside);
      }
  for (int k = 0; k < 6; ++k)
    add(static_cast<int64_t>(draw.bits() >> draw.below(64)));
  add(width - 1);
  add(width);
  return edges;
}

std::vector<double> realEdgesOf(Type type, Draw &draw) {
  const llvm::fltSemantics &format = cast<FloatType>(type).getFloatSemantics();
  double largest = APFloat::getLargest(format).convertToDouble(),
         smallest = APFloat::getSmallest(format).convertToDouble(),
         normal = APFloat::getSmallestNormalized(format).convertToDouble();
  std::vector<double> edges;
  for (double number : {0.0,
                        1.0,
                        2.0,
                        0.5,
                        1.5,
                        2.5,
                        3.0,
                        127.0,
                        128.0,
                        255.5,
                        256.0,
                        32768.0,
                        65504.0,
                        2147483648.0,
                        4294967296.0,
                        9.2233720368547758e18,
                        1.8446744073709552e19,
                        largest,
                        largest / 2,
                        smallest,
                        3 * smallest,
                        normal,
                        0.1,
                        1.0 / 3,
                        2.718281828459045,
                        1e-4,
                        1e4,
                        static_cast<double>(INFINITY)})
    for (double sign : {1.0, -1.0})
      edges.push_back(nearest(sign * number, type));
  edges.push_back(NAN);
  for (int k = 0; k < 10; ++k)
    edges.push_back(
        nearest(std::ldexp(static_cast<double>(draw.from(-4096, 4096)),
                           static_cast<int>(draw.from(-20, 8))),
                type));
  return edges;
}

ArrayRef<StringRef> binaryIntegerOps() {
  static const StringRef names[] = {
      "addi",      "subi",  "muli",  "andi",       "ori",
      "xori",      "divsi", "divui", "floordivsi", "ceildivsi",
      "ceildivui", "remsi", "remui", "shli",       "shrsi",
      "shrui",     "maxsi", "minsi", "maxui",      "minui"};
  return names;
}

/// The op that casts an integer of one type to another, or none.
static std::string castOf(Draw &draw, Type from, Type to) {
  if (from.isIndex() != to.isIndex())
    return draw.chance(2) ? "arith.index_cast" : "arith.index_castui";
  if (from == to)
    return "";
  if (widthOf(from) > widthOf(to))
    return "arith.trunci";
  return draw.chance(2) ? "arith.extsi" : "arith.extui";
}

void growIntegers(Program &program, Draw &draw, std::vector<Value> &pool,
                  unsigned count, ArrayRef<Type> types) {
  auto ofType = [&](Type type) {
    std::vector<Value> members;
    for (Value value : pool)
      if (value.getType() == type)
        members.push_back(value);
    // Or a number.
    if (members.empty() || draw.chance(3)) {
      std::vector<int64_t> edges = edgesOf(type, draw);
      int64_t number = draw.chance(2) ? draw.from(-3, 9) : draw.one(edges);
      members = {program.integer(number, type)};
    }
    return draw.one(members);
  };
  for (unsigned k = 0; k < count; ++k) {
    // Mostly on what was made last, so that programs are deep.
    Value first = draw.chance(2) ? pool.back() : draw.one(pool);
    Type type = first.getType();
    bool swap = draw.chance(4);
    Value second = ofType(type);
    if (swap)
      std::swap(first, second);
    switch (draw.below(10)) {
    case 0: {
      Type to = draw.one(types);
      std::string name = castOf(draw, first.getType(), to);
      if (!name.empty())
        pool.push_back(program.add(name, first, to));
      break;
    }
    case 1:
    case 2: {
      auto predicate = static_cast<arith::CmpIPredicate>(draw.below(10));
      pool.push_back(program.compare(predicate, first, second));
      break;
    }
    case 3:
      pool.push_back(program.add(
          "arith.select", {ofType(program.type(1)), first, second}, type));
      break;
    case 4:
      if (!type.isInteger(1))
        pool.push_back(program.add(draw.chance(4) ? "math.ctpop" : "math.absi",
                                   first, type));
      break;
    default: {
      std::string name = ("arith." + draw.one(binaryIntegerOps())).str();
      SmallVector<NamedAttribute> flags;
      if ((name == "arith.addi" || name == "arith.subi" ||
           name == "arith.muli") &&
          draw.chance(4))
        flags.push_back(program.builder.getNamedAttr(
            "overflowFlags",
            arith::IntegerOverflowFlagsAttr::get(
                &Program::context(), draw.chance(2)
                                         ? arith::IntegerOverflowFlags::nsw
                                         : arith::IntegerOverflowFlags::nuw)));
      pool.push_back(program.add(name, {first, second}, type, flags));
    }
    }
  }
}

} // namespace plain
