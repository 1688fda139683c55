//===- ImportSizes.cpp - diffattn-import-sizes ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Contract.h"

#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_IMPORTSIZESPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::import;

namespace {
/// An axis of an argument, or without an axis an argument that is a size
/// itself.
struct SizePlace {
  BlockArgument argument;
  std::optional<int64_t> axis;

  /// How errors of calls name it: by the numbers that the importer gave.
  std::string getName() const {
    std::string input =
        "input " + std::to_string(argument.getArgNumber()) + " of the graph";
    return axis ? "axis " + std::to_string(*axis) + " of " + input : input;
  }
  /// The size that the type has; none: calls decide.
  std::optional<int64_t> getStaticSize() const {
    if (!axis)
      return std::nullopt;
    auto type = cast<RankedTensorType>(argument.getType());
    if (type.isDynamicDim(*axis))
      return std::nullopt;
    return type.getDimSize(*axis);
  }
  Value emitSize(ImplicitLocOpBuilder &b) const {
    if (axis)
      return tensor::DimOp::create(b, argument, *axis);
    if (argument.getType().isIndex())
      return argument;
    return arith::IndexCastOp::create(b, b.getIndexType(), argument);
  }
};

/// Asserts at the beginning of one function what its arguments state.
class SizeImporter {
public:
  explicit SizeImporter(func::FuncOp function)
      : function(function), builder(ImplicitLocOpBuilder::atBlockBegin(
                                function.getLoc(), &function.front())) {}

  LogicalResult importSizes(BlockArgument argument, Attribute sizes);

private:
  LogicalResult importSize(const SizePlace &place, Attribute size);
  LogicalResult assertKnown(const SizePlace &place, int64_t size);
  /// Asserts that two places of one name have one size.
  LogicalResult assertEqual(const SizePlace &first, const SizePlace &place);
  InFlightDiagnostic emitFault(BlockArgument argument) {
    return function.emitError("argument ") << argument.getArgNumber() << " of '"
                                           << function.getSymName() << "': ";
  }

  func::FuncOp function;
  ImplicitLocOpBuilder builder;
  /// The first place of each name.
  llvm::StringMap<SizePlace> known;
};
} // namespace

LogicalResult SizeImporter::assertKnown(const SizePlace &place, int64_t size) {
  if (std::optional<int64_t> known = place.getStaticSize()) {
    if (*known == size) // import_c5
      return success();
    return emitFault(place.argument)
           << "expected size " << size << " on axis " << *place.axis << ", as "
           << kSize << " has it, but got " << place.argument.getType();
  }
  Value got = place.emitSize(builder);
  Value expected = arith::ConstantIndexOp::create(builder, size);
  Value holds =
      arith::CmpIOp::create(builder, arith::CmpIPredicate::eq, got, expected);
  cf::AssertOp::create(builder, holds,
                       "expected size " + std::to_string(size) + " on " +
                           place.getName() + ", but got {0}");
  return success();
}

LogicalResult SizeImporter::assertEqual(const SizePlace &first,
                                        const SizePlace &place) {
  // A side that is known is no part of the comparison that messages read.
  if (std::optional<int64_t> size = first.getStaticSize())
    return assertKnown(place, *size);
  if (std::optional<int64_t> size = place.getStaticSize())
    return assertKnown(first, *size);
  Value expected = first.emitSize(builder), got = place.emitSize(builder);
  Value holds =
      arith::CmpIOp::create(builder, arith::CmpIPredicate::eq, expected, got);
  cf::AssertOp::create(builder, holds,
                       "expected size {0} on " + place.getName() + ", as on " +
                           first.getName() + ", but got {1}");
  return success();
}

LogicalResult SizeImporter::importSize(const SizePlace &place, Attribute size) {
  if (auto number = dyn_cast<IntegerAttr>(size))
    return assertKnown(place, number.getInt());
  auto name = dyn_cast<StringAttr>(size);
  if (!name && !isa<UnitAttr>(size)) // import_c4
    return emitFault(place.argument)
           << "expected a name, a number or unit as a size of " << kSize
           << ", but got " << size;
  if (!name)
    return success();
  auto [first, isNew] = known.try_emplace(name.getValue(), place);
  return isNew ? success() : assertEqual(first->second, place);
}

LogicalResult SizeImporter::importSizes(BlockArgument argument,
                                        Attribute sizes) {
  auto type = dyn_cast<RankedTensorType>(argument.getType());
  if (!type) {
    if (!argument.getType().isSignlessIntOrIndex() || !isa<StringAttr>(sizes))
      return emitFault(argument)
             << "expected " << kSize << " as a name, on an integer, or as a "
             << "list of sizes, on a tensor, but got " << sizes << " on "
             << argument.getType();
    return importSize({argument, std::nullopt}, sizes);
  }
  auto list = dyn_cast<ArrayAttr>(sizes);
  if (!list || static_cast<int64_t>(list.size()) != type.getRank())
    return emitFault(argument)
           << "expected " << type.getRank() << " sizes in " << kSize
           << ", one for each axis, but got " << sizes;
  for (auto [axis, size] : llvm::enumerate(list))
    if (failed(importSize({argument, static_cast<int64_t>(axis)}, size)))
      return failure();
  return success();
}

namespace {
struct ImportSizesPass final
    : diffattn::impl::ImportSizesPassBase<ImportSizesPass> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    if (function.isExternal())
      return;
    SizeImporter importer(function);
    for (BlockArgument argument : function.getArguments())
      if (Attribute sizes =
              function.removeArgAttr(argument.getArgNumber(), kSize))
        if (failed(importer.importSizes(argument, sizes)))
          return signalPassFailure();
  }
};
} // namespace
