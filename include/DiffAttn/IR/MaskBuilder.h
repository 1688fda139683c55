//===- MaskBuilder.h - the language of masks --------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kind of mask is an attribute with MaskAttrInterface (MaskInterface.td). It
// says once, in calls of a MaskBuilder, which keys a tile of queries may see
// and whether one query sees one key. Each code generator has a builder of its
// own: scalars of a linalg body, lanes of vectors, registers of a GPU thread;
// the unit tests have one that computes with numbers.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_MASKBUILDER_H
#define DIFFATTN_IR_MASKBUILDER_H

#include "mlir/Support/LLVM.h"

#include <cstdint>
#include <optional>

namespace mlir::diffattn {

/// An integer, a float or a condition of a MaskBuilder, or none. Each builder
/// defines the bits: the number, or the address of a value that the emitted
/// code will compute.
class MaskValue {
public:
  MaskValue() = default;
  explicit MaskValue(uint64_t bits) : bits(bits), present(true) {}
  explicit operator bool() const { return present; }
  uint64_t getBits() const { return bits; }
  bool operator==(const MaskValue &other) const {
    return present == other.present && bits == other.bits;
  }

private:
  uint64_t bits = 0;
  bool present = false;
};

/// The operands of masks: the rows of MaskOperands.def, which has their
/// meanings.
enum class MaskOperand {
#define MASK_POSITION(Name, text, axes) Name,
#define MASK_ELEMENTS(Name, text, axes, mayBroadcast) Name,
#include "DiffAttn/IR/MaskOperands.def"
};
constexpr MaskOperand kMaskOperands[] = {
#define MASK_POSITION(Name, text, axes) MaskOperand::Name,
#define MASK_ELEMENTS(Name, text, axes, mayBroadcast) MaskOperand::Name,
#include "DiffAttn/IR/MaskOperands.def"
};

/// Numbers of keys before and after its own position that a query sees; none:
/// no limit.
struct KeyReach {
  std::optional<int64_t> left, right;
  explicit operator bool() const { return left || right; }
};

/// A query and a key, counted from the first ones of the sequence.
struct MaskPoint {
  MaskValue query, key;
};

/// Queries or keys from `first` to `last`, both included.
struct MaskTile {
  MaskValue first, last;
};

/// The keys that a tile of queries may see. A null bound is no bound.
struct VisibleRange {
  /// No query of the tile sees a key outside of [begin, end).
  MaskValue begin, end;
  /// All queries of the tile see all keys of [wholeBegin, wholeEnd), if
  /// `knowsWhole`.
  MaskValue wholeBegin, wholeEnd;
  bool knowsWhole = true;
};

/// The relation of a tile of keys to a tile of queries, as conditions.
struct TileRelation {
  /// No query of the tile sees a key of the other; all of them see all of it.
  MaskValue none, all;
};

/// Builds the expressions of masks, at one batch and one noise head. No sum of
/// positions wraps: numbers beyond the builder's range are clamped to it.
class MaskBuilder {
public:
  virtual ~MaskBuilder();

  // Integers.
  virtual MaskValue min(MaskValue a, MaskValue b) = 0;
  virtual MaskValue max(MaskValue a, MaskValue b) = 0;

  // Conditions.
  virtual MaskValue less(MaskValue a, MaskValue b) = 0;
  virtual MaskValue equal(MaskValue a, MaskValue b) = 0;
  virtual MaskValue both(MaskValue a, MaskValue b) = 0;
  virtual MaskValue either(MaskValue a, MaskValue b) = 0;

  // Operands.
  /// The element of `operand` for `point`: an integer, a float, or of a boolean
  /// operand a condition.
  virtual MaskValue load(MaskOperand operand, const MaskPoint &point) = 0;
  /// The lowest and the highest integer of `operand`, which has one for each
  /// query or for each key, over a tile of these. Only builders of kernels that
  /// use the relation of tiles have them.
  virtual MaskValue lowest(MaskOperand operand, const MaskTile &tile);
  virtual MaskValue highest(MaskOperand operand, const MaskTile &tile);
  /// Whether a float is another one than minus infinity.
  virtual MaskValue isNotMinusInfinity(MaskValue element) = 0;

  // Positions. Query i is at position i + q_offset.
  /// The number of valid keys: kv_len, or all.
  virtual MaskValue length() = 0;
  /// The key `left` before the position of `query`.
  virtual MaskValue keyBefore(MaskValue query, int64_t left) = 0;
  /// The key that follows the one `right` after the position of `query`.
  virtual MaskValue endAfter(MaskValue query, int64_t right) = 0;
  /// Whether a key lies at most `left` before the position of the query, or at
  /// most `right` after it.
  virtual MaskValue isWithinLeft(const MaskPoint &point, int64_t left) = 0;
  virtual MaskValue isWithinRight(const MaskPoint &point, int64_t right) = 0;

  /// Conditions and extrema of two values, or the other one if one is null.
  MaskValue bothIfAny(MaskValue a, MaskValue b);
  MaskValue eitherIfAny(MaskValue a, MaskValue b);
  MaskValue minIfAny(MaskValue a, MaskValue b);
  MaskValue maxIfAny(MaskValue a, MaskValue b);
};

/// The keys that a tile may see by a limit on both sides of its positions.
VisibleRange getRangeOfReach(MaskBuilder &b, const KeyReach &reach,
                             const MaskTile &tile);

/// The keys that a tile may see by two masks.
VisibleRange intersect(MaskBuilder &b, const VisibleRange &x,
                       const VisibleRange &y);

} // namespace mlir::diffattn

#endif // DIFFATTN_IR_MASKBUILDER_H
