//===- EmulateAmx.cpp - diffattn-emulate-amx ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Intel's manual, volume 2 (TDPBF16PS), says that products are rounded to
// nearest with subnormal numbers taken and given as 0. The order of the sums is
// not written there: two chains of multiply-adds, whose sum is added to C. It
// was compared with the instruction bit for bit.
//
//===----------------------------------------------------------------------===//
#include "KernelBuilder.h"

#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/AMX/AMXDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/SCF/Transforms/Patterns.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Transforms/DialectConversion.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_EMULATEAMXPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

static VectorType toVector(amx::TileType tile) {
  return VectorType::get(tile.getShape(), tile.getElementType());
}

static VectorType getRowType(VectorType tile) {
  return VectorType::get(tile.getDimSize(1), tile.getElementType());
}

/// The indices of row `row` of a tile in memory: `stride` elements apart in the
/// last axis, or the rows of the second-last one.
static SmallVector<Value> getRowIndices(ImplicitLocOpBuilder &b,
                                        ValueRange indices, Value stride,
                                        int64_t row) {
  SmallVector<Value> result(indices);
  Value &moved = stride ? result.back() : result[result.size() - 2];
  Value offset = arith::ConstantIndexOp::create(b, row);
  if (stride)
    offset = arith::MulIOp::create(b, offset, stride);
  moved = arith::AddIOp::create(b, moved, offset);
  return result;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// Subnormal lanes become 0 with their sign.
static Value flush(KernelBuilder &b, Value x) {
  Type integers = x.getType();
  integers = cast<VectorType>(integers).clone(b.i32);
  auto constant = [&](uint32_t bits) -> Value {
    return arith::ConstantOp::create(
        b, DenseElementsAttr::get(cast<VectorType>(integers),
                                  llvm::APInt(32, bits)));
  };
  Value bits = arith::BitcastOp::create(b, integers, x);
  Value exponent = arith::AndIOp::create(b, bits, constant(0x7f800000));
  Value sign = arith::AndIOp::create(b, bits, constant(0x80000000));
  Value isSmall =
      arith::CmpIOp::create(b, arith::CmpIPredicate::eq, exponent, constant(0));
  bits = arith::SelectOp::create(b, isSmall, sign, bits);
  return arith::BitcastOp::create(b, x.getType(), bits);
}

namespace {
/// Element types of a product, and whether integers of A and B have no sign.
struct TileProduct {
  amx::TileType a, b, c;
  bool isZextA = false, isZextB = false;

  /// Numbers of A that meet one lane of B in one step: 32 bits.
  int64_t pack() const { return isFloat() ? 2 : 4; }
  bool isFloat() const { return a.getElementType().isBF16(); }
  std::string name() const {
    std::string text = isFloat() ? "tdpbf16ps"
                                 : std::string("tdpb") + (isZextA ? "u" : "s") +
                                       (isZextB ? "u" : "s") + "d";
    return text + "_" + std::to_string(c.getDimSize(0)) + "x" +
           std::to_string(c.getDimSize(1)) + "x" +
           std::to_string(a.getDimSize(1));
  }
};
} // namespace

/// The `pack` rows of numbers that row `row` of B holds side by side, widened.
static SmallVector<Value> loadPacked(KernelBuilder &b,
                                     const TileProduct &product, Value base,
                                     Value row) {
  int64_t columns = product.c.getDimSize(1), pack = product.pack();
  Type element = product.b.getElementType();
  VectorType whole = VectorType::get({columns * pack}, element),
             wide = VectorType::get({columns}, product.c.getElementType());
  Value loaded = b.load(whole, base, element, b.mul(row, columns * pack));
  SmallVector<Value> rows;
  for (int64_t part = 0; part < pack; ++part) {
    SmallVector<int64_t> order;
    for (int64_t c = 0; c < columns; ++c)
      order.push_back(c * pack + part);
    Value row = vector::ShuffleOp::create(b, loaded, loaded, order);
    if (product.isFloat())
      row = flush(b, arith::ExtFOp::create(b, wide, row));
    else if (product.isZextB)
      row = arith::ExtUIOp::create(b, wide, row);
    else
      row = arith::ExtSIOp::create(b, wide, row);
    rows.push_back(row);
  }
  return rows;
}

/// The number of A at `index`, widened, in every lane.
static Value loadFactor(KernelBuilder &b, const TileProduct &product,
                        Value base, Value index) {
  Type element = product.a.getElementType(), wide = product.c.getElementType();
  VectorType lanes = VectorType::get({product.c.getDimSize(1)}, wide);
  Value number = b.load(element, base, element, index);
  if (product.isFloat())
    number = arith::ExtFOp::create(b, wide, number);
  else if (product.isZextA)
    number = arith::ExtUIOp::create(b, wide, number);
  else
    number = arith::ExtSIOp::create(b, wide, number);
  Value result = vector::BroadcastOp::create(b, lanes, number);
  return product.isFloat() ? flush(b, result) : result;
}

/// (c: ptr, a: ptr, b: ptr), each the rows of a tile one after the other:
/// c += a * b.
static LLVM::LLVMFuncOp getProduct(KernelBuilder &b, ModuleOp module,
                                   const TileProduct &product) {
  int64_t rows = product.c.getDimSize(0), columns = product.c.getDimSize(1),
          depth = product.a.getDimSize(1), pack = product.pack();
  Type element = product.c.getElementType(), p = b.pointer;
  VectorType lanes = VectorType::get({columns}, element);
  return b.getOrEmitFunction(
      module, b.kernelName("emulated_" + product.name()), {p, p, p},
      [&](ValueRange args) {
        Value zero = arith::ConstantOp::create(b, b.getZeroAttr(lanes));
        b.loop(b.index(rows), [&](Value row) {
          Value at = b.mul(row, columns);
          Value sum = b.load(lanes, args[0], element, at);
          // Floats have a chain for each number of a pack, integers any order.
          SmallVector<Value> chains(product.isFloat() ? pack : 1, zero);
          chains =
              b.loop(b.index(0), b.index(depth / pack), 1, chains,
                     [&](Value k, ValueRange carried) {
                       SmallVector<Value> next(carried);
                       SmallVector<Value> y =
                           loadPacked(b, product, args[2], k);
                       for (int64_t i = 0; i < pack; ++i) {
                         Value index =
                             b.add(b.mul(row, depth), b.add(b.mul(k, pack), i));
                         Value x = loadFactor(b, product, args[1], index);
                         if (product.isFloat()) {
                           // Rounded once on every CPU, which vector.fma does
                           // not promise.
                           Value sum = math::FmaOp::create(b, x, y[i], next[i]);
                           next[i] = flush(b, sum);
                           continue;
                         }
                         Value term = arith::MulIOp::create(b, x, y[i]);
                         next[0] = arith::AddIOp::create(b, next[0], term);
                       }
                       return next;
                     });
          if (product.isFloat()) {
            Value total = flush(b, b.addf(chains[0], chains[1]));
            sum = flush(b, b.addf(flush(b, sum), total));
          } else {
            sum = arith::AddIOp::create(b, sum, chains[0]);
          }
          b.store(sum, args[0], element, at);
        });
      });
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

namespace {
struct ZeroPattern final : OpConversionPattern<amx::TileZeroOp> {
  using OpConversionPattern::OpConversionPattern;
  LogicalResult
  matchAndRewrite(amx::TileZeroOp op, OpAdaptor,
                  ConversionPatternRewriter &rewriter) const override {
    rewriter.replaceOpWithNewOp<arith::ConstantOp>(
        op, rewriter.getZeroAttr(toVector(op.getTileType())));
    return success();
  }
};

struct LoadPattern final : OpConversionPattern<amx::TileLoadOp> {
  using OpConversionPattern::OpConversionPattern;
  LogicalResult
  matchAndRewrite(amx::TileLoadOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    VectorType type = toVector(op.getTileType());
    Value tile = arith::ConstantOp::create(b, b.getZeroAttr(type));
    for (int64_t row = 0; row < type.getDimSize(0); ++row) {
      Value loaded = vector::LoadOp::create(
          b, getRowType(type), adaptor.getBase(),
          getRowIndices(b, adaptor.getIndices(), adaptor.getStride(), row));
      tile = vector::InsertOp::create(b, loaded, tile, row);
    }
    rewriter.replaceOp(op, tile);
    return success();
  }
};

struct StorePattern final : OpConversionPattern<amx::TileStoreOp> {
  using OpConversionPattern::OpConversionPattern;
  LogicalResult
  matchAndRewrite(amx::TileStoreOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    for (int64_t row = 0; row < op.getTileType().getDimSize(0); ++row)
      vector::StoreOp::create(
          b, vector::ExtractOp::create(b, adaptor.getVal(), row),
          adaptor.getBase(),
          getRowIndices(b, adaptor.getIndices(), adaptor.getStride(), row));
    rewriter.eraseOp(op);
    return success();
  }
};

template <typename Op>
struct ProductPattern final : OpConversionPattern<Op> {
  using OpConversionPattern<Op>::OpConversionPattern;

  static TileProduct getTileProduct(amx::TileMulFOp op) {
    return {op.getLhsTileType(), op.getRhsTileType(), op.getTileType()};
  }
  static TileProduct getTileProduct(amx::TileMulIOp op) {
    return {op.getLhsTileType(), op.getRhsTileType(), op.getTileType(),
            op.getIsZextLhs(), op.getIsZextRhs()};
  }

  LogicalResult
  matchAndRewrite(Op op, typename Op::Adaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    TileProduct product = getTileProduct(op);
    auto function = op->template getParentOfType<FunctionOpInterface>();
    // The product is compiled for the CPU that its caller is compiled for.
    auto features = function->template getAttrOfType<LLVM::TargetFeaturesAttr>(
        "target_features");
    bool hasVectors =
        features && features.contains(StringAttr::get(op.getContext(), "+fma"));
    KernelBuilder b(op.getLoc(), *getCpuTarget(hasVectors ? "avx2" : "generic"),
                    product.c.getDimSize(1));
    b.setListener(rewriter.getListener());
    LLVM::LLVMFuncOp callee =
        getProduct(b, op->template getParentOfType<ModuleOp>(), product);
    // In the frame of the function, so that a loop takes its memory once.
    b.setInsertionPointToStart(&function.getFunctionBody().front());
    SmallVector<Value> slots;
    for (amx::TileType tile : {product.c, product.a, product.b}) {
      auto array = LLVM::LLVMArrayType::get(tile.getElementType(),
                                            tile.getNumElements());
      slots.push_back(LLVM::AllocaOp::create(b, b.pointer, array, b.index(1),
                                             /*alignment=*/64));
    }
    b.setInsertionPoint(op);
    auto forRows = [&](Value tile, auto body) {
      auto type = cast<VectorType>(tile.getType());
      for (int64_t row = 0; row < type.getDimSize(0); ++row)
        body(row, getRowType(type), b.index(row * type.getDimSize(1)));
    };
    Value tiles[] = {adaptor.getAcc(), adaptor.getLhs(), adaptor.getRhs()};
    for (size_t number = 0; number < std::size(tiles); ++number)
      forRows(tiles[number], [&](int64_t row, VectorType type, Value at) {
        // Volatile, so that LLVM does not look through all stores of a kernel
        // for some to merge, in time that grows with the square of their
        // number.
        Type element = type.getElementType();
        Value stored = vector::ExtractOp::create(b, tiles[number], row);
        // As bits: of a short vector of bf16 LLVM would store each number
        // alone, rounded by a call.
        if (element.isBF16())
          stored =
              arith::BitcastOp::create(b, type.clone(b.getI16Type()), stored);
        LLVM::StoreOp::create(b, stored, b.at(slots[number], element, at),
                              element.getIntOrFloatBitWidth() / 8,
                              /*isVolatile=*/true);
      });
    LLVM::CallOp::create(b, callee, ValueRange(slots));
    Value result = adaptor.getAcc();
    forRows(result, [&](int64_t row, VectorType type, Value at) {
      Value loaded = b.load(type, slots[0], type.getElementType(), at);
      result = vector::InsertOp::create(b, loaded, result, row);
    });
    rewriter.replaceOp(op, result);
    return success();
  }
};

struct EmulateAmxPass final
    : diffattn::impl::EmulateAmxPassBase<EmulateAmxPass> {
  using EmulateAmxPassBase::EmulateAmxPassBase;

  bool keeps(Operation *op) const {
    if (!missingOnly)
      return false;
    auto function = op->getParentOfType<FunctionOpInterface>();
    auto features = function
                        ? function->getAttrOfType<LLVM::TargetFeaturesAttr>(
                              "target_features")
                        : LLVM::TargetFeaturesAttr();
    return features &&
           features.contains(StringAttr::get(op->getContext(), "+amx-tile"));
  }

  void runOnOperation() override {
    bool found = false;
    WalkResult walked = getOperation()->walk([&](Operation *op) {
      if (!isa_and_nonnull<amx::AMXDialect>(op->getDialect()) || keeps(op))
        return WalkResult::advance();
      found = true;
      if (auto product = dyn_cast<amx::TileMulFOp>(op);
          product && !product.getLhsTileType().getElementType().isBF16())
        return op->emitOpError("expected tiles of bf16, but got ")
                   << product.getLhsTileType().getElementType(),
               WalkResult::interrupt();
      return WalkResult::advance();
    });
    if (walked.wasInterrupted())
      return signalPassFailure();
    if (!found)
      return;
    MLIRContext *context = &getContext();
    TypeConverter types;
    types.addConversion([](Type type) { return type; });
    types.addConversion([](amx::TileType type) { return toVector(type); });
    RewritePatternSet patterns(context);
    patterns
        .add<ZeroPattern, LoadPattern, StorePattern,
             ProductPattern<amx::TileMulFOp>, ProductPattern<amx::TileMulIOp>>(
            types, context);
    ConversionTarget target(*context);
    scf::populateSCFStructuralTypeConversionsAndLegality(types, patterns,
                                                         target);
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    target.addDynamicallyLegalDialect<amx::AMXDialect>(
        [&](Operation *op) { return keeps(op); });
    auto hasTiles = [&](Operation *op) {
      return !keeps(op) && !types.isLegal(op);
    };
    target.addDynamicallyLegalOp<scf::ForOp, scf::IfOp, scf::WhileOp,
                                 scf::YieldOp, scf::ConditionOp>(
        [&](Operation *op) { return !hasTiles(op); });
    if (failed(applyPartialConversion(getOperation(), target,
                                      std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace
