//===- ProductOps.cpp - matrix products -----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttnOps.h"
#include "ElementBody.h"

#include "mlir/IR/TypeUtilities.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn::interpreter;
namespace diffattn = mlir::diffattn;

namespace {
struct Gemm : Details {
  bool transposeB = false, accumulate = false;
  FloatKind sumKind = FloatKind::F64, kind = FloatKind::F64;
};
} // namespace

static bool runGemm(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Gemm>();
  const Array a = m.tensors[inst.a], b = m.tensors[inst.b];
  Array c = m.makeWritable(inst, m.take(inst, inst.c));
  if (!c)
    return false;
  const int64_t rank = c.getRank(), rows = c.getShape()[rank - 2],
                columns = c.getShape()[rank - 1],
                depth = a.getShape()[a.getRank() - 1];
  if (!m.count(stepsOf(depth, c.getNumElements()), inst.op))
    return false;
  const int64_t area = rows * columns;
  for (int64_t i = 0; i < c.getNumElements(); ++i) {
    const int64_t batch = i / area, row = i / columns % rows,
                  column = i % columns;
    const Slot *fromA =
        a.begin() + ((a.getRank() == 2 ? 0 : batch) * rows + row) * depth;
    const Slot *fromB = b.begin() +
                        (b.getRank() == 2 ? 0 : batch) * depth * columns +
                        (details.transposeB ? column * depth : column);
    const int64_t stepB = details.transposeB ? 1 : columns;
    double sum = details.accumulate ? c.begin()[i].f : 0.0;
    for (int64_t l = 0; l < depth; ++l)
      sum = roundTo(details.sumKind, sum + fromA[l].f * fromB[l * stepB].f,
                    m.random);
    c.begin()[i].f = roundTo(details.kind, sum, m.random);
  }
  m.tensors[inst.dst] = std::move(c);
  return true;
}

static bool buildGemm(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::GemmOp>(operation);
  if (!op.getResult())
    return b.unsupported(op, "expected operands that are tensors");
  emitSizeRules(b, op);
  if (!b.emitOp(runGemm, op))
    return false;
  auto &details = b.addDetails<Gemm>(b.code->insts.back());
  details.transposeB = op.getTransposeB();
  details.accumulate = op.getAccumulate();
  Type type = getElementTypeOrSelf(op.getResult().getType());
  details.kind = b.kindOf(type);
  // Sums are in f32, or in f64.
  details.sumKind =
      b.kindOf(type.isF64() ? type : Float32Type::get(op.getContext()));
  return true;
}

// --- of two weights, one of which gates the other

namespace {
struct GatedGemm : Details {
  bool transposeB = false;
  diffattn::GateRounding rounded = diffattn::GateRounding::None;
  FloatKind sumKind = FloatKind::F64, narrow = FloatKind::F64,
            kind = FloatKind::F64;
  int32_t init = -1;
};
} // namespace

/// The element of the result for the sums `g` and `u`.
static double gateSums(const GatedGemm &details, double g, double u,
                       Random &random) {
  using diffattn::GateRounding;
  auto round = [&](GateRounding step, double x) {
    x = roundTo(details.sumKind, x, random);
    return bitEnumContainsAny(details.rounded, step)
               ? roundTo(details.narrow, x, random)
               : x;
  };
  g = round(GateRounding::Sums, g);
  u = round(GateRounding::Sums, u);
  const double e = round(GateRounding::Exponential, std::exp(-g));
  const double denominator = round(GateRounding::Denominator, e + 1.0);
  const double sigmoid = round(GateRounding::Sigmoid, 1.0 / denominator);
  const double silu = round(GateRounding::Silu, g * sigmoid);
  return roundTo(details.kind, roundTo(details.sumKind, silu * u, random),
                 random);
}

static bool runGatedGemm(Machine &m, const Inst &inst) {
  const auto &details = inst.as<GatedGemm>();
  const Array a = m.tensors[inst.a], gate = m.tensors[inst.b],
              up = m.tensors[inst.c];
  Array c = m.makeWritable(inst, m.take(inst, details.init));
  if (!c)
    return false;
  const int64_t columns = c.getShape()[1], depth = a.getShape()[1];
  if (!m.count(stepsOf(2 * depth, c.getNumElements()), inst.op))
    return false;
  const int64_t step = details.transposeB ? 1 : columns;
  for (int64_t i = 0; i < c.getNumElements(); ++i) {
    const int64_t row = i / columns, column = i % columns,
                  start = details.transposeB ? column * depth : column;
    const Slot *fromA = a.begin() + row * depth;
    double sums[] = {0.0, 0.0};
    for (int64_t l = 0; l < depth; ++l)
      for (const auto &[weight, sum] :
           {std::pair(&gate, &sums[0]), std::pair(&up, &sums[1])})
        *sum = roundTo(details.sumKind,
                       *sum + fromA[l].f * weight->begin()[start + l * step].f,
                       m.random);
    c.begin()[i].f = gateSums(details, sums[0], sums[1], m.random);
  }
  m.tensors[inst.dst] = std::move(c);
  return true;
}

static bool buildGatedGemm(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::GatedGemmOp>(operation);
  if (!op.getResult())
    return b.unsupported(op, "expected operands that are tensors");
  emitSizeRules(b, op);
  if (!b.emitOp(runGatedGemm, op))
    return false;
  auto &details = b.addDetails<GatedGemm>(b.code->insts.back());
  details.transposeB = op.getTransposeB();
  details.rounded = op.getRounded();
  details.init = b.scalar(op.getC());
  details.narrow = b.kindOf(getElementTypeOrSelf(op.getA().getType()));
  details.kind = b.kindOf(getElementTypeOrSelf(op.getResult().getType()));
  details.sumKind = b.kindOf(Float32Type::get(op.getContext()));
  return true;
}

// --- of integers with scales

namespace {
struct QuantizedGemm : Details {
  int64_t bits = 8, group = 0;
  bool accumulate = false;
  FloatKind sumKind = FloatKind::F64, kind = FloatKind::F64;
  int32_t init = -1;
};
} // namespace

/// Number `l` of a row of bytes.
static double readInteger(const Slot *row, int64_t l, int64_t bits) {
  if (bits == 8)
    return static_cast<int8_t>(row[l].i);
  const int64_t nibble = row[l / 2].i >> 4 * (l % 2) & 15;
  return static_cast<double>(nibble < 8 ? nibble : nibble - 16);
}

static bool runQuantizedGemm(Machine &m, const Inst &inst) {
  const auto &details = inst.as<QuantizedGemm>();
  const Array a = m.tensors[inst.a], b = m.tensors[inst.b],
              scales = m.tensors[inst.c];
  Array c = m.makeWritable(inst, m.take(inst, details.init));
  if (!c)
    return false;
  const int64_t columns = c.getShape()[1], depth = a.getShape()[1],
                rowBytes = b.getShape()[1], groups = scales.getShape()[1];
  if (!m.count(stepsOf(depth, c.getNumElements()), inst.op))
    return false;
  for (int64_t i = 0; i < c.getNumElements(); ++i) {
    const int64_t row = i / columns, column = i % columns;
    const Slot *fromA = a.begin() + row * depth,
               *fromB = b.begin() + column * rowBytes,
               *scale = scales.begin() + column * groups;
    double sum = details.accumulate ? c.begin()[i].f : 0.0;
    for (int64_t l = 0; l < depth; ++l) {
      const double weight = roundTo(details.sumKind,
                                    scale[l / details.group].f *
                                        readInteger(fromB, l, details.bits),
                                    m.random);
      sum = roundTo(details.sumKind, sum + fromA[l].f * weight, m.random);
    }
    c.begin()[i].f = roundTo(details.kind, sum, m.random);
  }
  m.tensors[inst.dst] = std::move(c);
  return true;
}

static bool buildQuantizedGemm(CodeBuilder &b, Operation *operation) {
  auto op = cast<diffattn::QuantizedGemmOp>(operation);
  if (!op.getResult())
    return b.unsupported(op, "expected operands that are tensors");
  emitSizeRules(b, op);
  if (!b.emitOp(runQuantizedGemm, op))
    return false;
  auto &details = b.addDetails<QuantizedGemm>(b.code->insts.back());
  details.bits = static_cast<int64_t>(op.getBits());
  details.group = op.getGroup();
  details.accumulate = op.getAccumulate();
  details.init = b.scalar(op.getC());
  details.kind = b.kindOf(getElementTypeOrSelf(op.getResult().getType()));
  details.sumKind = b.kindOf(Float32Type::get(op.getContext()));
  return true;
}

void mlir::diffattn::interpreter::addProductOps(OpTable &table) {
  table["diffattn.gemm"] = buildGemm;
  table["diffattn.gated_gemm"] = buildGatedGemm;
  table["diffattn.quantized_gemm"] = buildQuantizedGemm;
}
