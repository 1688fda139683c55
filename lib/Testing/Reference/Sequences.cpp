//===- Sequences.cpp - packed sequences and pages of keys -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Sequences.h"

#include "Rows.h"

#include <algorithm>

using namespace mlir::diffattn::reference;

bool mlir::diffattn::reference::isPacked(const AttentionArguments &a) {
  return a.cuSeqlensQ.rank() != 0;
}
static bool isPaged(const AttentionArguments &a) {
  return a.blockTable.rank() != 0;
}

bool mlir::diffattn::reference::hasTables(const AttentionArguments &a) {
  return isPacked(a) || a.cuSeqlensK.rank() || isPaged(a);
}

static std::string expected(const std::string &what, int64_t got) {
  return "expected " + what + ", but got " + std::to_string(got);
}

/// [N+1] numbers from 0 to `rows` that do not fall.
static std::string checkBounds(const std::string &name, const View &bounds,
                               int64_t rows) {
  if (bounds.rank() != 1 || bounds.sizes[0] < 1)
    return "expected " + name + " of shape [N+1]";
  const int64_t last = bounds.sizes[0] - 1;
  if (bounds.integerAt({0}) != 0)
    return expected(name + " to begin with 0", bounds.integerAt({0}));
  for (int64_t n = 1; n <= last; ++n)
    if (bounds.integerAt({n}) < bounds.integerAt({n - 1}))
      return expected(name + " not to fall below " +
                          std::to_string(bounds.integerAt({n - 1})),
                      bounds.integerAt({n}));
  if (bounds.integerAt({last}) != rows)
    return expected(name + " to end with " + std::to_string(rows),
                    bounds.integerAt({last}));
  return "";
}

/// The keys of sequence `b` that are in its pages.
static int64_t pagedKeys(const AttentionArguments &a, int64_t b) {
  const int64_t capacity = a.blockTable.sizes[1] * a.k1.sizes[2];
  return std::clamp<int64_t>(a.kvLen.integerAt({b}), 0, capacity);
}

/// The pages that lengths count, and their number.
static std::string checkPages(const AttentionArguments &a, int64_t sequences) {
  if (a.blockTable.rank() != 2 || a.blockTable.sizes[0] != sequences)
    return "expected block_table of shape [" + std::to_string(sequences) +
           ",M]";
  if (!a.kvLen || a.kvLen.sizes != std::vector<int64_t>{sequences})
    return "expected kv_len of shape [" + std::to_string(sequences) + "]";
  const int64_t pages = a.k1.sizes[0], rows = a.k1.sizes[2];
  if (pages < 1)
    return expected("at least one page", pages);
  if (rows < 1)
    return expected("at least one key in a page", rows);
  if (a.hasSecondMap() && a.k2.sizes[0] != pages)
    return expected("k2 of " + std::to_string(pages) + " pages", a.k2.sizes[0]);
  if (a.v.sizes[0] != pages)
    return expected("v of " + std::to_string(pages) + " pages", a.v.sizes[0]);
  for (int64_t b = 0; b < sequences; ++b)
    for (int64_t m = 0; m * rows < pagedKeys(a, b); ++m) {
      const int64_t page = a.blockTable.integerAt({b, m});
      if (page < 0 || page >= pages)
        return expected("pages from 0 and below " + std::to_string(pages) +
                            " in block_table",
                        page);
    }
  return "";
}

/// The arguments without cu_seqlens and block_table.
static AttentionArguments withoutTables(AttentionArguments a) {
  a.cuSeqlensQ = a.cuSeqlensK = a.blockTable = View();
  return a;
}

std::string
mlir::diffattn::reference::checkWithTables(const AttentionArguments &a) {
  for (const View *view : operandsOfMaps(a))
    if (view->rank() != 4)
      return "expected q1, k1, q2, k2 and v of rank 4";
  if (a.bias.rank() || a.qSegments.rank() || a.kvSegments.rank() || a.integral)
    return "expected no bias, segments and integral with cu_seqlens_q and "
           "block_table";
  if (isPacked(a) ? isPaged(a) == (a.cuSeqlensK.rank() != 0)
                  : a.cuSeqlensK.rank() != 0)
    return "expected cu_seqlens_q with either cu_seqlens_k or block_table";
  if (a.cuSeqlensK.rank() && a.kvLen.rank())
    return "expected no kv_len with cu_seqlens_k";
  int64_t sequences = a.q1.sizes[0];
  AttentionArguments whole = withoutTables(a);
  if (isPacked(a)) {
    if (sequences != 1)
      return expected("one batch of packed sequences", sequences);
    std::string wrong =
        checkBounds("cu_seqlens_q", a.cuSeqlensQ, a.q1.sizes[2]);
    if (wrong.empty() && a.cuSeqlensK.rank())
      wrong = checkBounds("cu_seqlens_k", a.cuSeqlensK, a.k1.sizes[2]);
    if (!wrong.empty())
      return wrong;
    sequences = a.cuSeqlensQ.sizes[0] - 1;
    if (a.cuSeqlensK.rank() && a.cuSeqlensK.sizes[0] != sequences + 1)
      return expected("cu_seqlens_k of length " + std::to_string(sequences + 1),
                      a.cuSeqlensK.sizes[0]);
    if (a.qOffset.rank() && a.qOffset.sizes != std::vector<int64_t>{sequences})
      return "expected q_offset of shape [" + std::to_string(sequences) + "]";
    whole.qOffset = whole.kvLen = View();
  }
  if (isPaged(a)) {
    if (std::string wrong = checkPages(a, sequences); !wrong.empty())
      return wrong;
    // As many batches as queries have; lengths are checked.
    for (View *view : {&whole.k1, &whole.k2, &whole.v})
      if (*view)
        view->sizes[0] = whole.q1.sizes[0];
  }
  return check(whole);
}

namespace {
/// Keys or values of one sequence, copied from pages.
struct DenseRows {
  std::vector<double> data;

  /// The rows of batch `b`; an absent view for absent pages.
  View copy(const AttentionArguments &a, const View &pages, int64_t b) {
    if (!pages)
      return View();
    const int64_t heads = pages.sizes[1], rows = pages.sizes[2],
                  width = pages.sizes[3],
                  capacity = a.blockTable.sizes[1] * rows;
    // Rows beyond the sequence's length stay 0; an array that is empty has an
    // address too.
    data.assign(std::max<int64_t>(heads * capacity * width, 1), 0.0);
    for (int64_t j = 0; j < pagedKeys(a, b); ++j) {
      const int64_t page = a.blockTable.integerAt({b, j / rows});
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t c = 0; c < width; ++c)
          data[(h * capacity + j) * width + c] =
              pages.at({page, h, j % rows, c});
    }
    return View(data.data(), Element::F64, {1, heads, capacity, width});
  }
};
} // namespace

static SequenceRows rowsOf(const View &bounds, int64_t n) {
  const int64_t first = bounds.integerAt({n});
  return {first, bounds.integerAt({n + 1}) - first};
}

int64_t mlir::diffattn::reference::countSequences(const AttentionArguments &a) {
  return isPacked(a) ? a.cuSeqlensQ.sizes[0] - 1 : a.q1.sizes[0];
}

/// The arguments of sequence `n`, with keys and values left as they were.
static AttentionArguments cutQueries(const AttentionArguments &a, int64_t n,
                                     const SequenceRows &rows) {
  AttentionArguments one = withoutTables(a);
  // Queries of packed sequences are rows of one batch.
  const SequenceRows number{n, 1}, ofBatch{isPacked(a) ? 0 : n, 1};
  for (View *view : {&one.q1, &one.q2, &one.gate})
    *view = rows.of(ofBatch.of(*view, 0), 2);
  if (one.lambda.rank() == 3)
    one.lambda = rows.of(ofBatch.of(one.lambda, 0), 1);
  one.kvLen = number.of(a.kvLen, 0);
  one.qOffset = number.of(a.qOffset, 0);
  return one;
}

PackedSequence
mlir::diffattn::reference::getPackedSequence(const AttentionArguments &a,
                                             int64_t n) {
  const SequenceRows queries = rowsOf(a.cuSeqlensQ, n),
                     keys = rowsOf(a.cuSeqlensK, n);
  AttentionArguments one = cutQueries(a, n, queries);
  for (View *view : {&one.k1, &one.k2, &one.v})
    *view = keys.of(*view, 2);
  return {one, queries, keys};
}

AttentionResult
mlir::diffattn::reference::attentionWithTables(const AttentionArguments &a) {
  const int64_t hs = a.q1.sizes[1], tq = a.q1.sizes[2], dv = a.v.sizes[3],
                batches = a.q1.sizes[0];
  AttentionResult result;
  result.output.assign(batches * hs * tq * dv, 0.0);
  result.magnitude = result.flatMagnitude = result.output;
  result.x = result.xMagnitude = result.xFlatMagnitude = result.output;
  result.largestBias.assign(batches * hs * tq, 0.0);
  result.lse1 = result.largestBias;
  if (a.hasSecondMap())
    result.lse2.assign(batches * a.noiseHeads() * tq, 0.0);
  DenseRows k1, k2, v;
  for (int64_t n = 0; n < countSequences(a); ++n) {
    const SequenceRows rows =
        isPacked(a) ? rowsOf(a.cuSeqlensQ, n) : SequenceRows{0, tq};
    const int64_t batch = isPacked(a) ? 0 : n;
    AttentionArguments one;
    if (isPaged(a)) {
      one = cutQueries(a, n, rows);
      one.k1 = k1.copy(a, a.k1, n);
      one.k2 = k2.copy(a, a.k2, n);
      one.v = v.copy(a, a.v, n);
    } else {
      one = getPackedSequence(a, n).arguments;
    }
    AttentionResult part = attention(one);
    result.scoreMagnitude =
        std::max(result.scoreMagnitude, part.scoreMagnitude);
    auto copy = [&](const std::vector<double> &source,
                    std::vector<double> &target, int64_t heads, int64_t width) {
      for (int64_t head = 0; head < heads; ++head)
        std::copy_n(source.begin() + head * rows.count * width,
                    rows.count * width,
                    target.begin() +
                        ((batch * heads + head) * tq + rows.first) * width);
    };
    copy(part.output, result.output, hs, dv);
    copy(part.magnitude, result.magnitude, hs, dv);
    copy(part.flatMagnitude, result.flatMagnitude, hs, dv);
    copy(part.x, result.x, hs, dv);
    copy(part.xMagnitude, result.xMagnitude, hs, dv);
    copy(part.xFlatMagnitude, result.xFlatMagnitude, hs, dv);
    copy(part.largestBias, result.largestBias, hs, 1);
    copy(part.lse1, result.lse1, hs, 1);
    if (a.hasSecondMap())
      copy(part.lse2, result.lse2, a.noiseHeads(), 1);
  }
  return result;
}
