//===- BufferizableOpInterfaceImpl.cpp - bufferization of the ops ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h"
#include "mlir/Dialect/Bufferization/IR/DstBufferizableOpInterfaceImpl.h"

using namespace mlir;
using namespace mlir::bufferization;
using namespace mlir::diffattn;

namespace {
/// A destination-style op becomes itself on memrefs, without results.
/// `readsInits` holds where the op updates the contents of its destinations.
template <typename OpTy, bool readsInits>
struct DstOpInterface
    : DstBufferizableOpInterfaceExternalModel<DstOpInterface<OpTy, readsInits>,
                                              OpTy> {
  bool bufferizesToMemoryRead(Operation *op, OpOperand &operand,
                              const AnalysisState &) const {
    if (!cast<DestinationStyleOpInterface>(op).isDpsInit(&operand))
      return true;
    if constexpr (std::is_same_v<OpTy, GemmOp> ||
                  std::is_same_v<OpTy, QuantizedGemmOp>)
      return cast<OpTy>(op).getAccumulate();
    else
      return readsInits;
  }

  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    OpBuilder::InsertionGuard guard(rewriter);
    rewriter.setInsertionPoint(op);
    auto dstOp = cast<DestinationStyleOpInterface>(op);
    SmallVector<Value> operands, results;
    for (OpOperand &operand : op->getOpOperands()) {
      if (!isa<TensorType>(operand.get().getType())) {
        operands.push_back(operand.get());
        continue;
      }
      FailureOr<Value> buffer =
          getBuffer(rewriter, operand.get(), options, state);
      if (failed(buffer))
        return failure();
      operands.push_back(*buffer);
      if (dstOp.isDpsInit(&operand))
        results.push_back(*buffer);
    }
    OperationState newState(op->getLoc(), op->getName(), operands, TypeRange(),
                            op->getAttrs());
    newState.propertiesAttr = op->getPropertiesAsAttribute();
    rewriter.create(newState);
    replaceOpWithBufferizedValues(rewriter, op, results);
    return success();
  }
};
} // namespace

void mlir::diffattn::registerBufferizableOpInterfaceExternalModels(
    DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, DiffAttnDialect *) {
    AttentionOp::attachInterface<DstOpInterface<AttentionOp, false>>(*context);
    AttentionBackwardOp::attachInterface<
        DstOpInterface<AttentionBackwardOp, false>>(*context);
    FinalizeOp::attachInterface<DstOpInterface<FinalizeOp, false>>(*context);
    MergeOp::attachInterface<DstOpInterface<MergeOp, true>>(*context);
    OnlineAttentionOp::attachInterface<DstOpInterface<OnlineAttentionOp, true>>(
        *context);
    GatedGemmOp::attachInterface<DstOpInterface<GatedGemmOp, false>>(*context);
    GemmOp::attachInterface<DstOpInterface<GemmOp, false>>(*context);
    QuantizedGemmOp::attachInterface<DstOpInterface<QuantizedGemmOp, false>>(
        *context);
  });
}
