//===- Attention.h - the meaning of attention, in f64 -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The oracle that every lowering is compared with: docs/spec.md, computed on
// the host in f64, one element after another. It knows no MLIR types. Tests of
// parts of kernels take parts of it: which pairs are visible, a row of a map,
// lambda, and the end of a row.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_REFERENCE_ATTENTION_H
#define DIFFATTN_TESTING_REFERENCE_ATTENTION_H

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace mlir::diffattn::reference {

enum class Element { F64, F32, F16, BF16, I64, Bool };

/// Bytes of one element.
int64_t byteSize(Element element);
/// The value of the element at `data`; a Bool is 0 or 1.
double load(Element element, const void *data);
/// The nearest value of the type, ties to even, stored at `data`. Floats only.
void store(Element element, void *data, double value);

/// Memory seen as an array; strides count elements. A view without data stands
/// for an absent operand.
struct View {
  const void *data = nullptr;
  Element element = Element::F64;
  std::vector<int64_t> sizes, strides;

  View() = default;
  /// A dense view in row-major order.
  View(const void *data, Element element, std::vector<int64_t> sizes);

  explicit operator bool() const { return data != nullptr || isEmpty(); }
  bool isEmpty() const;
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  double at(const std::vector<int64_t> &index) const;
  /// The element of an I64 view, exactly.
  int64_t integerAt(const std::vector<int64_t> &index) const;

  /// Views of the same memory: two axes exchanged; every `step`-th of `count`
  /// elements from `offset` on along one axis; one axis cut in two.
  View transposed(int64_t axis0, int64_t axis1) const;
  View sliced(int64_t axis, int64_t offset, int64_t count,
              int64_t step = 1) const;
  View split(int64_t axis, int64_t inner) const;
};

/// The operands and attributes of `diffattn.attention`. All views have the axes
/// of layout `bhtd`; another layout is a matter of strides. With one map q2, k2
/// and lambda are absent.
struct AttentionArguments {
  View q1, k1, q2, k2,
      v; ///< [B,Hs,Tq,d] [B,Hk1,Tk,d] [B,Hn,Tq,d] [B,Hk2,Tk,d] [B,Hv,Tk,dv]
  View lambda;                ///< [], [Hs], [B,Tq,Hs] or [B,Tq,Hn]
  View bias;                  ///< [1|B,1|Hn,1|Tq,Tk], Bool or float
  View sink, sink2;           ///< [Hs] and [Hn]: a score more in each sum
  View normWeight;            ///< [dv]
  View gate;                  ///< [B,Hs,Tq,dv]
  View kvLen, qOffset;        ///< [B], I64
  View qSegments, kvSegments; ///< [B,Tq] and [B,Tk], I64; both or none
  /// Packed sequences: [N+1], I64. q1, q2, lambda and gate have one batch, k1,
  /// k2 and v too if there is cuSeqlensK; kvLen and qOffset are [N].
  View cuSeqlensQ, cuSeqlensK;
  /// [B,M] or [N,M], I64: k1, k2 and v are [P,Hk1,S,d], [P,Hk2,S,d],
  /// [P,Hv,S,dv].
  View blockTable;

  /// The position of the first key, where the keys are a part of all.
  int64_t keyOffset = 0;

  double scale = 1.0;
  bool isCausal = false;
  int64_t left = -1, right = -1;
  std::optional<double> softcap;
  bool lambdaSigmoid = false;
  /// DINT: each row also takes lambda times the mean over queries of A1 v.
  bool integral = false;
  bool rmsNorm = false;
  double normEps = 1e-5;
  bool epsOutside = false;
  double outScale = 1.0;

  bool hasSecondMap() const { return static_cast<bool>(q2); }
  int64_t noiseHeads() const {
    return hasSecondMap() ? q2.sizes[1] : q1.sizes[1];
  }
};

struct AttentionResult {
  /// [B,Hs,Tq,dv], dense.
  std::vector<double> output;
  /// Magnitude that an error of each element of the output is relative to:
  /// sum_j (A1 + |lambda| A2) |v|, carried through norm, scale and gate. The
  /// two maps cancel, so the output itself may be far smaller.
  std::vector<double> magnitude;
  /// Magnitude if every visible key had the largest weight of its map,
  /// sum_j (max A1 + |lambda| max A2) |v|: for errors of weights that do not
  /// shrink with the weight.
  std::vector<double> flatMagnitude;
  /// The output before norm and gate, and both magnitudes of it.
  std::vector<double> x, xMagnitude, xFlatMagnitude;
  /// Map 2 times the values, before lambda, and both magnitudes of it: the sums
  /// of A2 |v| and of max A2 |v|. Empty with one map.
  std::vector<double> o2, o2Magnitude, o2FlatMagnitude;
  /// [B,Hs,Tq] and [B,Hn,Tq]: the logarithm of the sum of exponentials of each
  /// row of map 1 and of map 2, minus infinity without keys.
  std::vector<double> lse1, lse2;
  /// [B,Hs,Tq]: the largest bias of the keys that the row sees; minus infinity
  /// if it sees none, 0 without a bias.
  std::vector<double> largestBias;
  /// max over all scores of |scale| * sum |q| |k|.
  double scoreMagnitude = 0.0;
};

/// The first error in the shapes of `arguments`, or in the contents of tables
/// of sequences and pages; empty if there is none.
std::string check(const AttentionArguments &arguments);

/// Whether query `i` of batch `b` sees key `j`; `group` is the noise head, and
/// `bias` becomes what is added to the score.
bool isVisible(const AttentionArguments &arguments, int64_t b, int64_t group,
               int64_t i, int64_t j, double &bias);

/// The row of a map that belongs to one query; an element for each key.
struct MapRow {
  std::vector<double> weights; ///< the softmax; 0 where the key is hidden
  std::vector<double> scores;  ///< after softcap, before the bias
  std::vector<double> logits;  ///< with the bias; minus infinity where hidden
  /// max over scores of |scale| * sum |q| |k|.
  double scoreMagnitude = 0.0;
  /// The logarithm of the sum of exponentials; minus infinity without keys.
  double lse = -std::numeric_limits<double>::infinity();
};

/// The row of query `i` in batch `b` of map `map`, 0 or 1; `head` is a signal
/// head of map 0 and a noise head of map 1. Keys outside [firstKey, endKey) are
/// hidden. There must be neither packed sequences nor pages.
MapRow mapRow(const AttentionArguments &arguments, int map, int64_t b,
              int64_t head, int64_t i, int64_t firstKey = 0,
              int64_t endKey = std::numeric_limits<int64_t>::max());

/// act(lambda) of query `i` and signal head `s`, whose noise head is `group`;
/// of q1 the number of heads is read.
double lambdaAt(const AttentionArguments &arguments, int64_t b, int64_t s,
                int64_t group, int64_t i);

/// The root that the norm divides the row `x` by; 1 without a norm.
double normRoot(const AttentionArguments &arguments,
                const std::vector<double> &x);

/// The row of the output of which `x` is the difference of the maps times the
/// values: by norm, norm weight, scale and gate. Operands of the maps are not
/// read.
std::vector<double> finishRow(const AttentionArguments &arguments, int64_t b,
                              int64_t s, int64_t i,
                              const std::vector<double> &x);

/// Computes attention; `check` must have found nothing.
AttentionResult attention(const AttentionArguments &arguments);

/// The part of the bound of docs/numerics.md that shrinks with the result:
/// |error| / magnitude for operands of `element` with sums of `headDim`
/// products and `keys` keys, accumulated in f32.
double errorBound(Element element, int64_t headDim, int64_t keys,
                  double scoreMagnitude);

/// The part that does not: half of the least number above 0 of `element`, a
/// float. Rounding moves a result below the normal range of its type by up to
/// it, and weights that are rounded to the operands' type by it times
/// flatMagnitude.
double subnormalError(Element element);

} // namespace mlir::diffattn::reference

#endif // DIFFATTN_TESTING_REFERENCE_ATTENTION_H
