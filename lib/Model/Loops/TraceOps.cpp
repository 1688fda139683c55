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
  /// The sum of the elements of a buffer of rank 1, each at most `most`.
  Value sumOfMost(Value buffer, Value most) {
    Value zero = arith::ConstantIndexOp::create(*this, 0),
          one = arith::ConstantIndexOp::create(*this, 1),
          size = memref::DimOp::create(*this, buffer, 0);
    auto loop = scf::ForOp::create(
        *this, zero, size, one, number(0),
        [&](OpBuilder &b, Location loc, Value i, ValueRange sum) {
          Value element = memref::LoadOp::create(b, loc, buffer, i);
          Value least = arith::MinSIOp::create(b, loc, element, most);
          Value next = arith::AddIOp::create(b, loc, sum[0], least);
          scf::YieldOp::create(b, loc, next);
        });
    return loop.getResult(0);
  }
};

/// Operations and bytes of an op. Null: it is not counted.
struct Work {
  Value flops, bytes;
};
} // namespace

/// Counts the pairs of query and key that masks of lengths and order leave.
/// Boolean arrays, segments and given offsets are not looked at: the last query
/// is taken to stand at the last key.
static Work countAttention(CountBuilder &b, AttentionOp op) {
  auto maps = cast<DifferentialMapsOpInterface>(op.getOperation());
  // Their keys are counted by no operand's shape.
  if (maps.isPacked() || maps.isPaged())
    return {};
  const int64_t queryAxis = maps.lengthAxis(op.getQLayout()),
                queryHeads = maps.headAxis(op.getQLayout()),
                keyAxis = maps.lengthAxis(op.getKLayout()),
                keyHeads = maps.headAxis(op.getKLayout()),
                valueHeads = maps.headAxis(op.getVLayout());
  Value batch = b.dim(op.getQ1(), 0), queries = b.dim(op.getQ1(), queryAxis),
        allKeys = b.dim(op.getK1(), keyAxis), headDim = b.dim(op.getQ1(), 3),
        valueDim = b.dim(op.getV(), 3);
  Value keys = op.getKvLen() ? b.sumOfMost(op.getKvLen(), allKeys)
                             : b.mul(batch, allKeys);
  Value pairs = b.mul(queries, keys);
  if (op.getIsCausal()) {
    Value hiddenPairs = arith::ShRSIOp::create(
        b, b.mul(queries, b.sub(queries, b.number(1))), b.number(1));
    pairs = b.max(b.sub(pairs, b.mul(batch, hiddenPairs)), b.number(0));
  }
  if (auto window = op.getWindow(); window && (*window)[0] >= 0) {
    const int64_t right = op.getIsCausal() ? 0 : (*window)[1];
    if (right >= 0)
      pairs =
          b.min(pairs, b.mul(b.mul(batch, queries), (*window)[0] + 1 + right));
  }
  // Each map's scores, and the difference of the maps times the values, once.
  Value heads = b.dim(op.getQ1(), queryHeads), mapHeads = heads;
  if (op.getQ2())
    mapHeads = b.add(heads, b.dim(op.getQ2(), queryHeads));
  Value perPair = b.add(b.mul(mapHeads, headDim), b.mul(heads, valueDim));
  Value bytes = b.number(0);
  for (Value operand : op->getOperands()) {
    const bool isKey = operand == op.getK1() || operand == op.getK2();
    if (isKey || operand == op.getV())
      bytes = b.add(
          bytes,
          b.mul(b.mul(keys, b.dim(operand, isKey ? keyHeads : valueHeads)),
                b.mul(b.dim(operand, 3), CountBuilder::elementBytes(operand))));
    else if (isa<MemRefType>(operand.getType()))
      bytes = b.add(bytes, b.bytes(operand));
  }
  return {b.mul(b.mul(pairs, perPair), 2), bytes};
}

static Work countProduct(CountBuilder &b, Value a, Value c, int64_t products,
                         ValueRange operands) {
  Value depth = b.dim(a, cast<MemRefType>(a.getType()).getRank() - 1);
  return {b.mul(b.mul(b.count(c), depth), 2 * products), b.bytes(operands)};
}

static Work count(CountBuilder &b, Operation *op) {
  return llvm::TypeSwitch<Operation *, Work>(op)
      .Case([&](AttentionOp attention) { return countAttention(b, attention); })
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
