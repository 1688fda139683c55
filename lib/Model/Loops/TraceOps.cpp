//===- TraceOps.cpp - say when products and attentions begin and end ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_TRACEOPSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Counts of operations and bytes as code that computes them before the op.
class CountBuilder : public ImplicitLocOpBuilder {
public:
  using ImplicitLocOpBuilder::ImplicitLocOpBuilder;

  Value number(int64_t value) {
    return arith::ConstantOp::create(*this, getI64IntegerAttr(value));
  }
  Value add(Value a, Value b) { return arith::AddIOp::create(*this, a, b); }
  Value sub(Value a, Value b) { return arith::SubIOp::create(*this, a, b); }
  Value mul(Value a, Value b) { return arith::MulIOp::create(*this, a, b); }
  Value mul(Value a, int64_t b) { return mul(a, number(b)); }
  Value min(Value a, Value b) { return arith::MinSIOp::create(*this, a, b); }
  Value max(Value a, Value b) { return arith::MaxSIOp::create(*this, a, b); }
  Value dim(Value buffer, int64_t axis) {
    return arith::IndexCastOp::create(
        *this, getI64Type(), memref::DimOp::create(*this, buffer, axis));
  }
  /// Elements of a buffer.
  Value count(Value buffer) {
    Value elements = number(1);
    const int64_t rank = cast<MemRefType>(buffer.getType()).getRank();
    for (int64_t axis = 0; axis < rank; ++axis)
      elements = mul(elements, dim(buffer, axis));
    return elements;
  }
  Value bytes(Value buffer) { return mul(count(buffer), elementBytes(buffer)); }
  /// Bytes of all operands of an op.
  Value bytes(ValueRange buffers) {
    Value sum = number(0);
    for (Value buffer : buffers)
      if (isa<MemRefType>(buffer.getType()))
        sum = add(sum, bytes(buffer));
    return sum;
  }
  /// Bytes of an element in memory; an i1 takes one.
  static int64_t elementBytes(Value buffer) {
    Type type = getElementTypeOrSelf(buffer);
    return type.isIndex() ? 8
                          : llvm::divideCeil(type.getIntOrFloatBitWidth(), 8);
  }
  /// Element `i` of a buffer of i32 or i64.
  Value load(Value buffer, Value i) {
    Value element = memref::LoadOp::create(*this, buffer, i);
    return element.getType().isInteger(64)
               ? element
               : arith::ExtSIOp::create(*this, getI64Type(), element);
  }
  /// The length of sequence `i` by the bounds of packed ones.
  Value packedLength(Value bounds, Value i) {
    Value next = arith::AddIOp::create(
        *this, i, arith::ConstantIndexOp::create(*this, 1));
    return sub(load(bounds, next), load(bounds, i));
  }
};

/// Operations and bytes of an op. Null: it is not counted.
struct Work {
  Value flops, bytes;
};
} // namespace

namespace {
/// Pairs of query and key that masks leave, and keys, of all sequences.
struct VisiblePairs {
  Value pairs, keys;
};
} // namespace

/// The pairs and keys of one sequence, of which the last query stands at the
/// last key.
static VisiblePairs countPairs(CountBuilder &b, DifferentialMapsOpInterface op,
                               Value queries, Value keys) {
  Value pairs = b.mul(queries, keys);
  if (op.getIsCausal()) {
    // The last of them see all keys, all but one, and so on.
    Value seeing = b.min(queries, keys);
    Value behind = arith::ShRSIOp::create(
        b, b.mul(seeing, b.sub(seeing, b.number(1))), b.number(1));
    pairs = b.sub(b.mul(seeing, keys), behind);
  }
  if (auto window = op.getWindow(); window && (*window)[0] >= 0) {
    const int64_t right = op.getIsCausal() ? 0 : (*window)[1];
    if (right >= 0)
      pairs = b.min(pairs, b.mul(queries, (*window)[0] + 1 + right));
  }
  return {pairs, keys};
}

/// The pairs that masks of lengths and order leave. Boolean arrays, segments
/// and given offsets are not looked at.
static VisiblePairs countPairs(CountBuilder &b,
                               DifferentialMapsOpInterface op) {
  const int64_t keyAxis = op.lengthAxis(op.getKLayout());
  Value batch = b.dim(op.getQ1(), 0),
        queries = b.dim(op.getQ1(), op.lengthAxis(op.getQLayout())),
        keys = b.dim(op.getK1(), keyAxis), lengths = op.getKvLen(),
        queryBounds = op.getCuSeqlensQ(), keyBounds = op.getCuSeqlensK();
  if (op.isPaged())
    keys = b.mul(keys, b.dim(op.getBlockTable(), 1));
  if (!lengths && !queryBounds) {
    auto [pairs, seen] = countPairs(b, op, queries, keys);
    return {b.mul(batch, pairs), b.mul(batch, seen)};
  }
  Value first = arith::ConstantIndexOp::create(b, 0),
        one = arith::ConstantIndexOp::create(b, 1),
        count = lengths ? Value(memref::DimOp::create(b, lengths, 0))
                        : arith::SubIOp::create(
                              b, memref::DimOp::create(b, queryBounds, 0), one),
        zero = b.number(0);
  auto loop = scf::ForOp::create(
      b, first, count, one, ValueRange{zero, zero},
      [&](OpBuilder &builder, Location loc, Value i, ValueRange sums) {
        CountBuilder body(loc, builder);
        Value ownQueries =
                  queryBounds ? body.packedLength(queryBounds, i) : queries,
              ownKeys = keyBounds ? body.packedLength(keyBounds, i) : keys;
        if (lengths)
          ownKeys = body.min(body.load(lengths, i), ownKeys);
        auto [pairs, seen] = countPairs(body, op, ownQueries, ownKeys);
        scf::YieldOp::create(body, ValueRange{body.add(sums[0], pairs),
                                              body.add(sums[1], seen)});
      });
  return {loop.getResult(0), loop.getResult(1)};
}

/// Bytes of all operands of an op with maps: of keys and values, and of their
/// gradients, what `keys` of them take.
static Value countBytes(CountBuilder &b, DifferentialMapsOpInterface op,
                        Value keys) {
  auto backward = dyn_cast<AttentionBackwardOp>(op.getOperation());
  Value bytes = b.number(0);
  for (Value operand : op->getOperands()) {
    if (!isa<MemRefType>(operand.getType()))
      continue;
    const bool isKey = operand == op.getK1() || operand == op.getK2() ||
                       (backward && (operand == backward.getDK1() ||
                                     operand == backward.getDK2()));
    const bool isValue =
        operand == op.getV() || (backward && operand == backward.getDV());
    if (!isKey && !isValue) {
      bytes = b.add(bytes, b.bytes(operand));
      continue;
    }
    const int64_t heads =
        op.headAxis(isKey ? op.getKLayout() : op.getVLayout());
    bytes = b.add(bytes, b.mul(b.mul(keys, b.dim(operand, heads)),
                               b.mul(b.dim(operand, 3),
                                     CountBuilder::elementBytes(operand))));
  }
  return bytes;
}

/// For each pair, sums' products of scores of both maps, of values by the
/// difference of the maps, and for gradients those that their formulas have.
static Work countMaps(CountBuilder &b, DifferentialMapsOpInterface op) {
  const int64_t headAxis = op.headAxis(op.getQLayout());
  Value heads = b.dim(op.getQ1(), headAxis), headDim = b.dim(op.getQ1(), 3),
        scores1 = b.mul(heads, headDim), scores2 = b.number(0),
        values = b.mul(heads, b.dim(op.getV(), 3));
  if (op.hasSecondMap())
    scores2 = b.mul(b.dim(op.getQ2(), headAxis), headDim);
  Value perPair = b.add(scores1, scores2);
  if (auto backward = dyn_cast<AttentionBackwardOp>(op.getOperation())) {
    const bool isOneKey = op.getK1() == op.getK2();
    auto add = [&](Value destination, Value products) {
      if (destination)
        perPair = b.add(perPair, products);
    };
    add(backward.getDQ1(), scores1);
    add(backward.getDK1(), scores1);
    add(backward.getDQ2(), scores2);
    add(isOneKey ? backward.getDK1() : backward.getDK2(), scores2);
    add(backward.getDV(), values);
    // Gradients of the maps' weights, which those of scores and lambda go
    // through.
    if (llvm::any_of(ArrayRef<Value>{backward.getDQ1(), backward.getDK1(),
                                     backward.getDQ2(), backward.getDK2(),
                                     backward.getDLambda(),
                                     backward.getDBias()},
                     [](Value destination) { return bool(destination); }))
      perPair = b.add(perPair, values);
  } else {
    perPair = b.add(perPair, values);
  }
  auto [pairs, keys] = countPairs(b, op);
  return {b.mul(b.mul(pairs, perPair), 2), countBytes(b, op, keys)};
}

static Work countProduct(CountBuilder &b, Value a, Value c, int64_t products,
                         ValueRange operands) {
  Value depth = b.dim(a, cast<MemRefType>(a.getType()).getRank() - 1);
  return {b.mul(b.mul(b.count(c), depth), 2 * products), b.bytes(operands)};
}

static Work count(CountBuilder &b, Operation *op) {
  return llvm::TypeSwitch<Operation *, Work>(op)
      .Case<AttentionOp, AttentionBackwardOp>([&](auto maps) {
        return countMaps(b, cast<DifferentialMapsOpInterface>(op));
      })
      .Case<GemmOp, QuantizedGemmOp>([&](auto product) {
        return countProduct(b, product.getA(), product.getC(), 1,
                            op->getOperands());
      })
      .Case([&](GatedGemmOp product) {
        return countProduct(b, product.getA(), product.getC(), 2,
                            op->getOperands());
      })
      .Default([](Operation *) { return Work{}; });
}

static std::string printSizes(Type type) {
  std::string text;
  for (int64_t size : cast<ShapedType>(type).getShape())
    text += (text.empty() ? "" : "x") +
            (ShapedType::isDynamic(size) ? "?" : std::to_string(size));
  return text;
}

/// The op's name with the sizes of queries, or of both matrices.
static std::string describe(Operation *op) {
  std::string text = (op->getName().stripDialect() + " " +
                      printSizes(op->getOperand(0).getType()))
                         .str();
  if (!isa<DifferentialMapsOpInterface>(op))
    text += " by " + printSizes(op->getOperand(1).getType());
  llvm::raw_string_ostream(text)
      << " " << getElementTypeOrSelf(op->getOperand(0));
  return text;
}

/// "line:column" of `location`, with the file before it if it is not that of
/// `module`; empty if it is in no file. Code is cached for modules of any name,
/// so the module's own name is left out.
static std::string describePlace(Location location, Location module) {
  FileLineColLoc file;
  location->walk([&](Location part) {
    if ((file = dyn_cast<FileLineColLoc>(part)))
      return WalkResult::interrupt();
    return WalkResult::advance();
  });
  if (!file)
    return "";
  std::string place =
      std::to_string(file.getLine()) + ":" + std::to_string(file.getColumn());
  auto own = dyn_cast<FileLineColLoc>(module);
  if (own && own.getFilename() == file.getFilename())
    return place;
  return (file.getFilename().getValue() + ":" + place).str();
}

namespace {
struct TraceOpsPass final : diffattn::impl::TraceOpsPassBase<TraceOpsPass> {
  void runOnOperation() override {
    SmallVector<Operation *> ops;
    getOperation().walk([&](Operation *op) {
      if (isa<GemmOp, QuantizedGemmOp, GatedGemmOp>(op) ||
          (isa<DifferentialMapsOpInterface>(op) && op->getNumResults() == 0))
        ops.push_back(op);
    });
    for (auto [number, op] : llvm::enumerate(ops))
      if (failed(trace(op, number)))
        return signalPassFailure();
  }

private:
  LogicalResult trace(Operation *op, size_t number) {
    CountBuilder b(op->getLoc(), op);
    auto begin = getOrDeclareRuntimeFunction(b, getOperation(),
                                             RuntimeFunction::trace_begin);
    auto end = getOrDeclareRuntimeFunction(b, getOperation(),
                                           RuntimeFunction::trace_end);
    if (failed(begin) || failed(end))
      return failure();
    Work work = count(b, op);
    Value zero = b.number(0);
    LLVM::CallOp::create(b, *begin,
                         ValueRange{getText(b, op, number),
                                    work.flops ? work.flops : zero,
                                    work.bytes ? work.bytes : zero});
    b.setInsertionPointAfter(op);
    LLVM::CallOp::create(b, *end, ValueRange{});
    return success();
  }

  /// Address of the op's text for the runtime's trace.
  Value getText(CountBuilder &b, Operation *op, size_t number) {
    auto function = op->getParentOfType<func::FuncOp>();
    const std::string text =
        std::string(isa<DifferentialMapsOpInterface>(op) ? "attention"
                                                         : "product") +
        "\n" + describe(op) + "\n" +
        describePlace(op->getLoc(), getOperation().getLoc()) + "\n" +
        (function ? function.getName().str() : "");
    std::string name = "diffattn_span_" + std::to_string(number);
    while (getOperation().lookupSymbol(name))
      name += '_';
    return LLVM::createGlobalString(op->getLoc(), b, name,
                                    StringRef(text.c_str(), text.size() + 1),
                                    LLVM::Linkage::Internal);
  }
};
} // namespace
