//===- LaunchBuilder.h - host code around launches --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_LAUNCHBUILDER_H
#define DIFFATTN_LIB_CODEGEN_NVVM_LAUNCHBUILDER_H

#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/Runtime/ABI/Device.h"
#include "DiffAttn/Semantics/AttentionRules.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {

/// Builds the arguments of kernels from the operands of an op on memrefs, and
/// the launches, at the builder's insertion point.
class LaunchBuilder {
public:
  /// A builder of launches; kernels are made in `module` when they are
  /// launched, unless it is null.
  LaunchBuilder(OpBuilder &builder, Location loc,
                const AttentionOperands &operands, gpu::GPUModuleOp module = {})
      : b(loc, builder), operands(operands), module(module),
        arguments(static_cast<size_t>(GpuParam::Count)) {}

  /// Arguments for kernels that make scores; `scaled`: in the unit of the op
  /// (GpuKernelSpec::scaledScores).
  void fillScores(const ScoreRules &scores, bool scaled);
  /// Arguments for kernels that end with the epilogue. Noise heads are those of
  /// which `signalPerNoise` signal heads share one; null without a second map.
  void fillEpilogue(const EpilogueRules &epilogue, Value signalHeads,
                    Value signalPerNoise);
  /// Bits of GpuFlag; `epilogue`: of kernels that end with it.
  void fillFlags(std::optional<EpilogueRules> epilogue);

  void launch(const GpuKernelSpec &spec, std::array<Value, 3> blocks);
  /// Device memory of this launch alone, 4 bytes that are 0 when it starts:
  /// also when a captured graph is launched again, or after a launch that
  /// failed.
  Value allocateCounter();
  /// The number of signal heads, of `all`, whose keys and values take at most
  /// kGpuSectionBytes: whole groups that share values, at least one.
  Value countSectionHeads(const GpuKernelSpec &spec, Value all);
  Value &argument(GpuParam param) {
    return arguments[static_cast<size_t>(param)];
  }
  void setPointer(GpuParam param, Value memref);
  /// The pointer of `view`, and its strides along `roles` as the parameters
  /// that follow; null where the op has no such operand.
  void setOperand(GpuParam pointer, const OperandView &view,
                  ArrayRef<OperandView::Role> roles);
  /// Sets a tensor of the table, as Q, the result or a gradient, if the op has
  /// it.
  void setTensor(GpuParam pointer, const OperandView &view);

  using Emit = function_ref<void()>;
  /// scf.if; without it where `condition` is a constant.
  void choose(Value condition, Emit then, Emit otherwise = nullptr);
  /// Whether rows of all operands that there are, the gate's too, are aligned
  /// to 16 bytes, and their columns lie side by side.
  Value canCopyChunks();
  /// Whether all of `views` can be copied in chunks; null ones are left out.
  Value canCopyChunks(ArrayRef<const OperandView *> views);
  /// Whether, beside that, tensor maps can describe Q, K and V, and with
  /// `storesResult` the result.
  Value canUseMaps(bool storesResult);
  /// Whether tensor maps can describe `views`, null ones aside, where `copied`
  /// says that 16 bytes of them can be copied.
  Value canUseMaps(Value copied, ArrayRef<const OperandView *> views);
  /// Makes the tensor maps of a kernel that reads by them, at the insertion
  /// point: only calls that take the kernel make them. `dX`: the operand of a
  /// kernel of gradients.
  void fillMaps(const GpuKernelSpec &spec, const OperandView &dX = {});

  Value index(int64_t value) {
    return arith::ConstantIndexOp::create(b, value);
  }
  template <typename Op>
  Value compute(Value x, Value y) {
    return b.createOrFold<Op>(x, y);
  }
  Value compare(arith::CmpIPredicate predicate, Value x, int64_t y) {
    return b.createOrFold<arith::CmpIOp>(predicate, x, index(y));
  }
  Value i64(Value value) {
    return arith::IndexCastOp::create(b, b.getI64Type(), value);
  }
  Value i32(Value value) {
    return arith::IndexCastOp::create(b, b.getI32Type(), value);
  }
  Value i32(int64_t value) {
    return arith::ConstantIntOp::create(b, value, 32);
  }
  /// The nearest finite number.
  Value f32(double value);
  Value size(Value memref, int64_t axis);
  Value size(const OperandView &view, OperandView::Role role) {
    return size(view.value, view.axes[role]);
  }
  /// The number of keys of a batch, or of all packed sequences; with pages, the
  /// capacity of a row of the table.
  Value keyCount();
  /// The number of packed sequences.
  Value sequenceCount() {
    return compute<arith::SubIOp>(size(operands.queryBounds, OperandView::Row),
                                  index(1));
  }
  /// The number of parts of at most `rows` rows that hold the packed sequences
  /// of `all` queries, or keys (AttentionKernel::enterPart).
  Value countParts(Value all, Value rows) {
    return compute<arith::AddIOp>(compute<arith::DivUIOp>(all, rows),
                                  sequenceCount());
  }
  /// Whether there is something to compute.
  Value hasRows(Value batches, Value queries);
  /// Whether a call has at most `most` queries; of packed sequences, on
  /// average.
  Value hasAtMost(Value queries, int64_t most);
  Value ceilDiv(Value a, int64_t by) {
    return compute<arith::DivUIOp>(compute<arith::AddIOp>(a, index(by - 1)),
                                   index(by));
  }
  /// The number of heads of `many` that share one of `few`.
  Value sharing(const OperandView &many, const OperandView &few) {
    return compute<arith::DivUIOp>(size(many, OperandView::Head),
                                   size(few, OperandView::Head));
  }

  ImplicitLocOpBuilder b;
  const AttentionOperands operands;

private:
  /// A stride, or the offset, as a constant if the type has it. An operand that
  /// does not vary with `role` has stride 0.
  Value stride(const OperandView &view, OperandView::Role role);
  /// As `stride`, but 0 for an axis that is broadcast at run time.
  Value usedStride(const OperandView &view, OperandView::Role role);
  Value offset(Value memref);
  /// Address of the first element, as an index.
  Value address(Value memref);
  /// Whether the keys of a page are a multiple of `rows`.
  Value isPageMultiple(int64_t rows) {
    return compare(arith::CmpIPredicate::eq,
                   compute<arith::RemUIOp>(size(operands.v, OperandView::Row),
                                           index(rows)),
                   0);
  }
  /// Sets the arguments of packed sequences and of pages.
  void fillSequences();
  /// The map of `view` with boxes of `rows` rows of 64 columns.
  void setMap(GpuParam param, const OperandView &view, Value rows,
              diffattn_tensor_operand operand);
  /// Bytes of an element in memory; an i1 takes a byte.
  static int64_t elementBytes(Value memref);
  /// Whether neighbours along the keys can be read in pairs.
  Value biasInPairs();
  /// The arguments that the table of parameters gives the kernel, in order.
  SmallVector<Value> argumentsOf(const GpuKernelSpec &spec);

  gpu::GPUModuleOp module;
  /// The arguments, indexed by parameter; null where no kernel of the op reads
  /// it.
  SmallVector<Value> arguments;
  DenseMap<Value, memref::ExtractStridedMetadataOp> metadata;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_NVVM_LAUNCHBUILDER_H
