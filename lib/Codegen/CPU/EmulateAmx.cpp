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
#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/AMX/AMXDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_EMULATEAMXPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// A row of a tile as it lies in memory of ours: numbers of 16 bits as
/// integers, since of a short vector of bf16 LLVM would store each number
/// alone, rounded by a call.
static VectorType getRowType(amx::TileType tile) {
  Type element = tile.getElementType();
  if (element.isBF16())
    element = IntegerType::get(tile.getContext(), 16);
  return VectorType::get(tile.getDimSize(1), element);
}

/// The indices of row `row` of a tile in a memref: `stride` elements apart in
/// the last axis, or the rows of the second-last one.
static SmallVector<Value> getRowIndices(ImplicitLocOpBuilder &b,
                                        ValueRange indices, Value stride,
                                        Value row) {
  SmallVector<Value> result(indices);
  Value &moved = stride ? result.back() : result[result.size() - 2];
  Value offset = arith::IndexCastOp::create(b, b.getIndexType(), row);
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

  /// Numbers of A that are multiplied with one lane of B, 32 bits, in a step.
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

/// (out: ptr, c: ptr, a: ptr, b: ptr), each the rows of a tile one after the
/// other: out = c + a * b, where `out` may be `c`.
static LLVM::LLVMFuncOp getProduct(KernelBuilder &b, ModuleOp module,
                                   const TileProduct &product) {
  int64_t rows = product.c.getDimSize(0), columns = product.c.getDimSize(1),
          depth = product.a.getDimSize(1), pack = product.pack();
  Type element = product.c.getElementType(), p = b.pointer;
  VectorType lanes = VectorType::get({columns}, element);
  return b.getOrEmitFunction(
      module, b.kernelName("emulated_" + product.name()), {p, p, p, p},
      [&](ValueRange args) {
        Value zero = arith::ConstantOp::create(b, b.getZeroAttr(lanes));
        b.loop(b.index(rows), [&](Value row) {
          Value at = b.mul(row, columns);
          Value sum = b.load(lanes, args[1], element, at);
          // Floats have a chain for each number of a pack, integers any order.
          SmallVector<Value> chains(product.isFloat() ? pack : 1, zero);
          chains =
              b.loop(b.index(0), b.index(depth / pack), 1, chains,
                     [&](Value k, ValueRange carried) {
                       SmallVector<Value> next(carried);
                       SmallVector<Value> y =
                           loadPacked(b, product, args[3], k);
                       for (int64_t i = 0; i < pack; ++i) {
                         Value index =
                             b.add(b.mul(row, depth), b.add(b.mul(k, pack), i));
                         Value x = loadFactor(b, product, args[2], index);
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
/// Turns the tiles of one function into memory in its frame, of which a value
/// is the address. Each op that makes a tile has its own, written when it runs.
/// A loop carries tiles in memory of its own too, because the op that made one
/// may run again while the last one is still to be read.
class TileMemory {
public:
  explicit TileMemory(FunctionOpInterface function)
      : function(function),
        b(function.getLoc(), getTarget(function), /*lanes=*/16) {}

  /// Fails with an error if another op takes or yields a tile.
  LogicalResult rewrite();

private:
  static CpuTarget getTarget(FunctionOpInterface function) {
    // Products are compiled for the CPU that their caller is compiled for.
    auto features =
        function->getAttrOfType<LLVM::TargetFeaturesAttr>("target_features");
    bool hasVectors =
        features &&
        features.contains(StringAttr::get(function.getContext(), "+fma"));
    return *getCpuTarget(hasVectors ? "avx2" : "generic");
  }

  LogicalResult passByAddress(Operation *op);
  Value makeSlot(amx::TileType type);
  void forRows(amx::TileType type,
               function_ref<void(Value row, Value at)> body);
  void copy(Value from, Value to);
  void carryTiles(Operation *terminator);
  void rewriteOp(amx::TileZeroOp op);
  void rewriteOp(amx::TileLoadOp op);
  void rewriteOp(amx::TileStoreOp op);
  template <typename Op>
  void rewriteProduct(Op op, bool isZextA, bool isZextB);
  void replace(Operation *op, Value slot) {
    op->getResult(0).replaceAllUsesWith(slot);
    op->erase();
  }

  FunctionOpInterface function;
  KernelBuilder b;
  /// Type of the tile that lies at each address.
  DenseMap<Value, amx::TileType> types;
  DenseSet<Value> slots;
};
} // namespace

/// Tiles that `op` takes, gives or has as arguments of its blocks become
/// addresses.
LogicalResult TileMemory::passByAddress(Operation *op) {
  auto retype = [&](Value value) {
    auto type = dyn_cast<amx::TileType>(value.getType());
    if (!type)
      return false;
    types[value] = type;
    value.setType(b.pointer);
    return true;
  };
  bool hasTiles =
      llvm::any_of(op->getOperandTypes(), llvm::IsaPred<amx::TileType>);
  for (Value result : op->getResults())
    hasTiles |= retype(result);
  for (Region &region : op->getRegions())
    for (Block &block : region)
      for (Value argument : block.getArguments())
        hasTiles |= retype(argument);
  if (hasTiles &&
      !isa<scf::ForOp, scf::IfOp, scf::WhileOp, scf::YieldOp, scf::ConditionOp>(
          op))
    return op->emitOpError("expected tiles to be handed on by scf.for, scf.if "
                           "and scf.while alone");
  return success();
}

Value TileMemory::makeSlot(amx::TileType type) {
  OpBuilder::InsertionGuard guard(b);
  // In the frame of the function, so that a loop takes its memory once.
  b.setInsertionPointToStart(&function.getFunctionBody().front());
  auto array = LLVM::LLVMArrayType::get(getRowType(type).getElementType(),
                                        type.getNumElements());
  Value slot = LLVM::AllocaOp::create(b, b.pointer, array, b.index(1),
                                      /*alignment=*/64);
  types[slot] = type;
  slots.insert(slot);
  return slot;
}

/// `at`: the first element of a row.
void TileMemory::forRows(amx::TileType type,
                         function_ref<void(Value row, Value at)> body) {
  b.loop(b.index(type.getDimSize(0)),
         [&](Value row) { body(row, b.mul(row, type.getDimSize(1))); });
}

void TileMemory::copy(Value from, Value to) {
  amx::TileType type = types.at(to);
  VectorType row = getRowType(type);
  Type element = row.getElementType();
  forRows(type, [&](Value, Value at) {
    b.store(b.load(row, from, element, at), to, element, at);
  });
}

/// Copies the tiles that `terminator` passes to the next round of its loop to
/// memory of the loop. A tile that came into the round as an argument, or by an
/// op between, may lie where another is to go, so it is copied aside first.
void TileMemory::carryTiles(Operation *terminator) {
  b.setInsertionPoint(terminator);
  b.setLoc(terminator->getLoc());
  SmallVector<std::pair<OpOperand *, Value>> moves;
  for (OpOperand &operand : terminator->getOpOperands()) {
    auto it = types.find(operand.get());
    if (it == types.end())
      continue;
    amx::TileType type = it->second;
    Value from = operand.get();
    if (!slots.contains(from)) {
      Value between = makeSlot(type);
      copy(from, between);
      from = between;
    }
    moves.push_back({&operand, from});
  }
  for (auto [operand, from] : moves) {
    Value to = makeSlot(types.at(from));
    copy(from, to);
    operand->set(to);
  }
}

void TileMemory::rewriteOp(amx::TileZeroOp op) {
  amx::TileType type = op.getTileType();
  VectorType row = getRowType(type);
  Value slot = makeSlot(type);
  Value zero = arith::ConstantOp::create(b, b.getZeroAttr(row));
  forRows(type, [&](Value, Value at) {
    b.store(zero, slot, row.getElementType(), at);
  });
  replace(op, slot);
}

void TileMemory::rewriteOp(amx::TileLoadOp op) {
  amx::TileType type = op.getTileType();
  VectorType row = getRowType(type);
  VectorType loaded = row.clone(type.getElementType());
  Value slot = makeSlot(type);
  forRows(type, [&](Value number, Value at) {
    Value numbers = vector::LoadOp::create(
        b, loaded, op.getBase(),
        getRowIndices(b, op.getIndices(), op.getStride(), number));
    if (loaded != row)
      numbers = arith::BitcastOp::create(b, row, numbers);
    b.store(numbers, slot, row.getElementType(), at);
  });
  replace(op, slot);
}

void TileMemory::rewriteOp(amx::TileStoreOp op) {
  amx::TileType type = types.at(op.getValMutable().get());
  VectorType row = getRowType(type);
  VectorType stored = row.clone(type.getElementType());
  forRows(type, [&](Value number, Value at) {
    Value numbers =
        b.load(row, op.getValMutable().get(), row.getElementType(), at);
    if (stored != row)
      numbers = arith::BitcastOp::create(b, stored, numbers);
    vector::StoreOp::create(
        b, numbers, op.getBase(),
        getRowIndices(b, op.getIndices(), op.getStride(), number));
  });
  op.erase();
}

template <typename Op>
void TileMemory::rewriteProduct(Op op, bool isZextA, bool isZextB) {
  // Addresses by now, which the accessors of tiles do not take.
  Value lhs = op.getLhsMutable().get(), rhs = op.getRhsMutable().get(),
        sum = op.getAccMutable().get();
  TileProduct product{types.at(lhs), types.at(rhs), op.getTileType(), isZextA,
                      isZextB};
  KernelBuilder callee(op.getLoc(), b.target, product.c.getDimSize(1));
  LLVM::LLVMFuncOp multiply =
      getProduct(callee, op->template getParentOfType<ModuleOp>(), product);
  Value slot = makeSlot(product.c);
  LLVM::CallOp::create(b, multiply, ValueRange{slot, sum, lhs, rhs});
  replace(op, slot);
}

LogicalResult TileMemory::rewrite() {
  SmallVector<Operation *> ops, terminators;
  WalkResult walked =
      function.walk<WalkOrder::PreOrder>([&](Operation *op) -> WalkResult {
        if (isa_and_nonnull<amx::AMXDialect>(op->getDialect())) {
          ops.push_back(op);
          return WalkResult::advance();
        }
        // Values that the second region of scf.while yields pass its condition
        // before an op runs again.
        if (isa<scf::ConditionOp>(op) ||
            (isa<scf::YieldOp>(op) && isa<scf::ForOp>(op->getParentOp())))
          terminators.push_back(op);
        return passByAddress(op);
      });
  if (walked.wasInterrupted())
    return failure();
  for (Operation *op : ops) {
    b.setInsertionPoint(op);
    b.setLoc(op->getLoc());
    if (auto zero = dyn_cast<amx::TileZeroOp>(op))
      rewriteOp(zero);
    else if (auto load = dyn_cast<amx::TileLoadOp>(op))
      rewriteOp(load);
    else if (auto store = dyn_cast<amx::TileStoreOp>(op))
      rewriteOp(store);
    else if (auto product = dyn_cast<amx::TileMulFOp>(op))
      rewriteProduct(product, false, false);
    else if (auto product = dyn_cast<amx::TileMulIOp>(op))
      rewriteProduct(product, product.getIsZextLhs(), product.getIsZextRhs());
    else
      return op->emitOpError("expected one of the ops tile_zero, tile_load, "
                             "tile_store, tile_mulf and tile_muli on tiles");
  }
  for (Operation *terminator : terminators)
    carryTiles(terminator);
  return success();
}

namespace {
struct EmulateAmxPass final
    : diffattn::impl::EmulateAmxPassBase<EmulateAmxPass> {
  using EmulateAmxPassBase::EmulateAmxPassBase;

  bool keeps(FunctionOpInterface function) {
    auto features =
        function->getAttrOfType<LLVM::TargetFeaturesAttr>("target_features");
    return missingOnly && features &&
           features.contains(StringAttr::get(&getContext(), "+amx-tile"));
  }

  void runOnOperation() override {
    // Functions of products are added while others are rewritten.
    SmallVector<FunctionOpInterface> functions;
    getOperation()->walk([&](FunctionOpInterface function) {
      if (!function.isExternal() && !keeps(function))
        functions.push_back(function);
    });
    for (FunctionOpInterface function : functions) {
      WalkResult walked = function->walk([&](amx::TileMulFOp product) {
        Type number = product.getLhsTileType().getElementType();
        if (number.isBF16())
          return WalkResult::advance();
        product.emitOpError("expected tiles of bf16, but got ") << number;
        return WalkResult::interrupt();
      });
      if (walked.wasInterrupted() || failed(TileMemory(function).rewrite()))
        return signalPassFailure();
    }
  }
};
} // namespace
