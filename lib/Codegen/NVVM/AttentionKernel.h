//===- AttentionKernel.h - common parts of all kernels ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_ATTENTIONKERNEL_H
#define DIFFATTN_LIB_CODEGEN_NVVM_ATTENTIONKERNEL_H

#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "GpuMasks.h"
#include "PageTable.h"
#include "TileLoader.h"

#include "DiffAttn/Schedule/GpuSharedLayout.h"

namespace mlir::diffattn::gpucode {

std::string typeName(Type type);

/// The queries of a block: [firstRow, firstRow + rows) of a head.
struct QueryBlock {
  Value batch, head, noiseHead, firstRow;
  /// The first row of the cluster, whose blocks have the same tiles, and the
  /// number of the block in it.
  Value clusterRow, rank;
  /// Index of the lengths, offsets and pages: the batch, or one of the
  /// sequences that lie in it.
  Value sequence;
};

/// A kernel under construction: its builder, arguments and the values that all
/// phases use.
struct AttentionKernel {
  AttentionKernel(GpuBuilder &b, const GpuKernelSpec &spec);

  /// The argument that is `param`, which the table must give to this kernel.
  Value param(GpuParam param);
  /// Strides of the tensor `tensor` along its length and its width; the latter
  /// is null where the kernel does not read by element, and it is 1.
  Value rowStride(GpuParam tensor) { return param(getGpuStride(tensor, 2)); }
  Value columnStride(GpuParam tensor) {
    return spec.elementwise || spec.isPlain() ? param(getGpuStride(tensor, 3))
                                              : Value();
  }
  /// The noise head of signal head `head`: without a second map, that head.
  Value noiseHeadOf(Value head) {
    return spec.maps == 2 ? b.divU(head, param(GpuParam::SignalPerNoise))
                          : head;
  }
  /// Pointer to (batch, head) of the tensor `tensor`; of packed sequences, to
  /// its first row there. Kernels of gradients, whose sums leave no registers
  /// for such pointers, get that of all sequences, and read rows `queryAt` and
  /// `keyAt`.
  Value headBase(GpuParam tensor, Value batch, Value head);
  Value stridePointer(Type type, Value pointer, Value index, Value stride);
  /// Runs `body` for the queries of this block, where blocks are (rows, heads,
  /// batches) or, of packed sequences, (parts, heads), of which those without
  /// queries run nothing.
  void forQueries(function_ref<void(const QueryBlock &)> body);
  /// A part of a packed sequence: at most `rows` queries, of GradientKeys keys.
  /// Sequence n begins with part cu_seqlens_q[n] / rows + n, so that there are
  /// parts enough for it before the next one begins, and their number does not
  /// depend on the bounds: queries / rows + sequences.
  struct Part {
    Value sequence, firstRow;
  };
  /// Sets the queries and keys of the sequence of `part`; parts that have none
  /// begin behind the last query, or key.
  Part enterPart(Value part, Value rows);
  /// The rows of the block `block` of a head, which has no clusters: a part,
  /// which is entered, or those of a batch, and `sequence` is null.
  Part locateRows(Value block) {
    if (spec.isPacked())
      return enterPart(block, b.i32(spec.getRows()));
    return {Value(), b.mul(block, spec.getRows())};
  }
  /// The queries of the tile `cluster` (of a cluster's rows) of a head; with
  /// packed sequences the tile is a part, which is entered, and may be empty.
  QueryBlock locate(Value cluster, Value head, Value batch);
  /// Runs `body` unless the block is a part without rows: `firstRow` is the
  /// first row of its cluster.
  void unlessEmpty(Value firstRow, function_ref<void()> body);
  /// The batch of a block of the grid, where it is one of a batch: packed
  /// sequences lie in one.
  Value batchOfBlock() { return spec.isPacked() ? b.i32(0) : b.blockId(2); }
  /// The state that `enterPart` sets for packed sequences: the first query and
  /// the number of queries, and both of packed keys. Other threads may set it
  /// from this, with any values behind it.
  GpuBuilder::Values getSequenceBounds() const;
  void setSequenceBounds(ValueRange bounds);
  /// Queries of the block's sequence, and its keys in memory.
  Value queries() { return queryCount ? queryCount : param(GpuParam::Queries); }
  Value keys() { return keyCount ? keyCount : param(GpuParam::Keys); }
  /// The row `row` of the sequence in the tensors of queries.
  Value queryAt(Value row) { return firstQuery ? b.add(row, firstQuery) : row; }
  /// The row of key `row` of the sequence in the tensors of keys and values.
  Value keyAt(Value row) { return firstKey ? b.add(row, firstKey) : row; }
  /// Reads lengths, positions and pages of `sequence`.
  void enterSequence(Value sequence);
  /// The first tile of `keys` keys that some row of the block may see, and the
  /// end of these tiles; `enterSequence` has been called.
  std::pair<Value, Value> findTiles(const QueryBlock &queries, int64_t keys);
  /// Whether some of `rows` queries from `row` on does not see some of `keys`
  /// keys from `key` on, by the masks that are intervals.
  Value isSeenInPart(Value row, int64_t rows, Value key, int64_t keys);
  /// The factor from the unit in which maxima are kept to powers of two, f32.
  Value getLog2Scale();
  /// lambda of signal head `head` at row `row`, after its activation.
  Value loadLambda(Value batch, Value row, Value head) {
    return activateLambda(
        b.loadConstant(b.f32(), locateLambda(batch, row, head)));
  }
  /// The two halves of that: its address, and the activation.
  Value locateLambda(Value batch, Value row, Value head);
  Value activateLambda(Value lambda);
  /// Whether the launch has `flag`, i1.
  Value isSet(GpuFlag flag);
  /// The inverse of the root of the mean of squares of a row, with its epsilon,
  /// from the sum of these: infinite where there is nothing to divide by.
  Value getInverseRms(Value squares);
  /// The factor of the norm for a row with this sum of squares; 1 without a
  /// norm.
  Value getRowFactor(Value squares);
  /// Sets the number of the thread, and values that follow from it.
  void setThread(Value number);

  GpuBuilder &b;
  const GpuKernelSpec &spec;
  GpuSharedLayout layout;
  Type element;
  Value thread, lane, warp;
  /// Lane / 4 and lane % 4: row and pair of columns of a fragment.
  Value laneRow, laneColumn;
  Value shared; // !llvm.ptr<3>
  /// Null where nothing comes into shared memory.
  std::unique_ptr<TileLoader> loader;
  /// Masks of the block's sequence; null before `enterSequence`.
  std::unique_ptr<GpuMasks> masks;
  /// Pages of the block's sequence; null where keys do not lie in pages.
  std::unique_ptr<PageTable> pages;

private:
  /// Completes `place`, of which the cluster's first row and the head are set.
  void locateBlock(QueryBlock &place);
  /// The sequence that holds `part`, whose parts begin with its number of
  /// `bounds` / rows + its own.
  Value findSequence(GpuParam bounds, Value part, Value rows);
  /// The bound `number` of packed queries or keys, brought into [0, all].
  Value loadBound(GpuParam bounds, Value number);

  /// Queries and keys of a packed sequence, and the rows where they begin;
  /// null: the numbers in the arguments, and 0.
  Value queryCount, keyCount, firstQuery, firstKey;
  /// The arguments, indexed by parameter; null where the kernel has none.
  std::array<Value, static_cast<size_t>(GpuParam::Count)> arguments;
};

/// Running maximum and (this lane's part of the) sum of two rows, g and g + 8;
/// of the first alone where a lane has one (GpuKernelSpec::getLaneRows).
struct RowState {
  std::array<Value, 2> max, sum;
};

/// Turns scores into probabilities. Where a lane has one row, values of row
/// g + 8 are not used: they are null, or 0 in an operand.
class OnlineSoftmax {
public:
  OnlineSoftmax(AttentionKernel &kernel);

  struct Step {
    RowState state;
    /// P in f32, as scores lie, and as operands of the second product, one a
    /// step of 16 keys.
    SmallVector<Fragment> powers, probabilities;
    /// 2^(old maximum - new maximum) of both rows, and whether it is not 1 for
    /// any row of the warp.
    std::array<Value, 2> alpha;
    Value rescale;
  };
  /// Applies scale, softcap and the masks of elements; scores then are in the
  /// unit in which the maximum is taken. `rows` are the queries of rows g and
  /// g + 8, `key` the first key of the tile.
  void transform(MutableArrayRef<Fragment> scores, Value noiseHead,
                 std::array<Value, 2> rows, Value key);
  /// Sets scores of keys that row g or g + 8 does not see to minus infinity: by
  /// the masks that are intervals, and by those that are decided for tiles.
  SmallVector<Fragment> mask(ArrayRef<Fragment> scores,
                             std::array<Value, 2> rows, Value key);
  SmallVector<Fragment> maskPartialTile(ArrayRef<Fragment> scores,
                                        std::array<Value, 2> rows, Value key);
  /// Replaces `scores` by the result of `masked` where `condition` holds.
  void replaceIf(Value condition, MutableArrayRef<Fragment> scores,
                 function_ref<SmallVector<Fragment>()> masked);
  /// The step of one tile. If the maximum grew by no more than the margin, the
  /// old one is kept, and nothing is rescaled.
  Step step(ArrayRef<Fragment> scores, const RowState &state);
  /// As `step`, without `probabilities`: their registers may still be read by a
  /// running product, and `pack` makes them of `powers` later.
  Step exponentiate(ArrayRef<Fragment> scores, const RowState &state);
  SmallVector<Fragment> pack(ArrayRef<Fragment> powers);
  /// Sums of the row tiles of `steps`, in their order, as fragments: multiplied
  /// by alpha if any row of the warp needs it.
  GpuBuilder::Values rescale(ArrayRef<Value> sums, ArrayRef<Step> steps);
  /// Sum over the four lanes of a row.
  Value reduceQuad(Value x);

private:
  SmallVector<Fragment> maskElements(ArrayRef<Fragment> scores, Value noiseHead,
                                     std::array<Value, 2> rows, Value key,
                                     ScoreLanes lanes);
  /// The numbers of a lane, and back.
  GpuBuilder::Values flatten(ArrayRef<Fragment> fragments) const;
  void unflatten(ValueRange values, MutableArrayRef<Fragment> fragments) const;

  AttentionKernel &kernel;
  GpuBuilder &b;
  /// Rows of a lane, and its numbers of a fragment.
  const int64_t laneRows, numbers;
};

/// The columns of a row that the four lanes of a quad hold: tile n of 8 columns
/// begins at `start` + offset(n), and lane t has its columns 2t and 2t + 1.
struct QuadColumns {
  Value start; // i32, up to `maxStart`
  int64_t maxStart = 0;
  /// Whether two warps have every other 16 columns, so that both use the same
  /// chunks of a swizzle.
  bool alternating = false;
  int64_t offset(int64_t n) const {
    return alternating ? 32 * (n / 2) + 8 * (n % 2) : 8 * n;
  }
};

/// Norm, weight, scale, gate, rounding and the store of rows of one head whose
/// columns are spread over lanes; or, of X and O2, rounding and the store
/// alone.
class Epilogue {
public:
  /// `output`: O, X or O2.
  Epilogue(AttentionKernel &kernel, Value batch, Value head,
           GpuParam output = GpuParam::O);
  /// A row of a map that has seen every key.
  struct RowSum {
    /// The map: `map`, or, where warps have one map each, the second one if
    /// `isSecond`, an i1.
    int64_t map = 0;
    Value isSecond;
    /// The maximum that the sum is relative to, in the kernel's unit, and the
    /// sum of exponentials, f32; both complete in every thread.
    Value max, sum;
    /// The number of the query, i32, and whether this thread stores the
    /// logarithm: one of the threads with the row, and none if the query does
    /// not exist. Only if sums end with more than a division.
    Value query, isStored;
  };
  /// weight / (sum + sink), relative to the maximum of the row: the factor of
  /// its accumulators; 0 for a row without keys, whatever the weight is. NaN
  /// stays NaN. Stores the logarithm of the sum, where the kernel does. Sets
  /// `inverseSum`, if given, to the factor for a weight of 1.
  Value divideBySum(Value weight, const RowSum &row,
                    Value *inverseSum = nullptr);
  Value rowFactor(Value squares) { return kernel.getRowFactor(squares); }
  /// Finishes and stores the row of query `query`, of which this lane has a
  /// pair in each tile of 8 columns; nothing beyond the last query or the
  /// width. All lanes of the warp call it together: quads exchange pairs, so
  /// that a lane stores 16 bytes of 16-bit elements.
  void storeRow(ArrayRef<std::array<Value, 2>> pairs, Value factor, Value query,
                const QuadColumns &columns);
  /// Finishes and stores one column of each 32 for this lane, from column
  /// `lane` on, of a query that exists.
  void storeColumns(ArrayRef<Value> x, Value factor, Value query);
  /// Finishes and stores column `column` of a query that exists, for threads
  /// with columns up to `maxColumn`; nothing beyond the width.
  void storeColumn(Value x, Value factor, Value query, Value column,
                   int64_t maxColumn) {
    storeOne(x, factor, locate(query), column, maxColumn);
  }

  /// Addresses of a query's row of the result and of the gate.
  struct Row {
    Value out, gate;
  };
  Row locate(Value query);
  /// Finishes and rounds this lane's pair of tile `tile` of 8 columns; zeros
  /// beyond the width.
  Value finishPair(const std::array<Value, 2> &pair, Value factor,
                   const Row &row, const QuadColumns &columns, int64_t tile);

private:
  /// The sink of the row's head of map 0 or 1 in units of log2; -inf without
  /// one.
  Value loadSink(int64_t map);
  void storeLogarithm(int64_t map, Value logarithm, Value query);
  /// `gate`: that of the column, if it is loaded already.
  Value finish(Value x, Value factor, const Row &row, Value column,
               Value gate = Value());
  /// Finishes columns `column` and `column` + 1, where columns lie side by
  /// side.
  std::array<Value, 2> finishBoth(const std::array<Value, 2> &pair,
                                  Value factor, const Row &row, Value column);
  void storeOne(Value x, Value factor, const Row &row, Value column,
                int64_t maxColumn);
  /// Finishes and stores pairs as they lie, each element alone or 8 bytes of
  /// f32 at once.
  void storePairs(ArrayRef<std::array<Value, 2>> pairs, Value factor,
                  const Row &row, const QuadColumns &columns);
  /// Word j of lane t of each quad becomes word t of lane j.
  void transposeQuads(std::array<Value, 4> &words);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const Value batch, head;
  const GpuParam output;
  /// Types of the elements that are stored, and of the gate, if it has a part
  /// in them.
  const Type type, gateType;
  Value outBase, gateBase;
};

void emitForwardKernel(AttentionKernel &kernel);
void emitWgmmaKernel(AttentionKernel &kernel);
void emitPlainKernel(AttentionKernel &kernel);
void emitDecodeKernel(AttentionKernel &kernel);
void emitMergeKernel(AttentionKernel &kernel);
void emitGradientKeysKernel(AttentionKernel &kernel);
void emitGradientQueriesKernel(AttentionKernel &kernel);
void emitPlainGradientsKernel(AttentionKernel &kernel);
/// A kernel of kind GradientRows, WeightSums or LambdaSums.
void emitGradientRowsKernel(AttentionKernel &kernel);

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_ATTENTIONKERNEL_H
