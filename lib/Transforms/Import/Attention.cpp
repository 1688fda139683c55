//===- Attention.cpp - differential attention as an opaque op -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BuiltinCall.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::import;

/// Names that the option `operands` may list, in the order of the op's
/// definition.
static constexpr StringRef kOperands[] = {
    "q1",          "k1",         "q2",          "k2",           "v",
    "lambda",      "bias",       "norm_weight", "gate",         "kv_len",
    "q_offset",    "q_segments", "kv_segments", "cu_seqlens_q", "cu_seqlens_k",
    "block_table", "sink",       "sink2"};
/// Attributes of the op that are there or not.
static constexpr StringRef kFlags[] = {"is_causal", "integral"};
/// Number of operands without that option: the first ones of the list.
static constexpr size_t kDefault = 6;
/// Attributes of the op that are choices of its own, which no front door makes.
static constexpr StringRef kOwn[] = {"operandSegmentSizes", "schedules",
                                     "size_bounds"};

/// The operands by their places in the op's definition; null ones are absent.
static FailureOr<SmallVector<Value>> nameOperands(BuiltinCall call) {
  SmallVector<Value> operands(std::size(kOperands));
  if (!call.getOption("operands")) {
    if (call.getOperands().size() != kDefault)
      return call.emitFault() << "expected " << kDefault << " operands without "
                              << "operands that names them, but got "
                              << call.getOperands().size();
    llvm::copy(call.getOperands(), operands.begin());
    return operands;
  }
  // import_c9
  auto names = dyn_cast<ArrayAttr>(call.getOption("operands"));
  if (!names || names.size() != call.getOperands().size())
    return call.emitFault()
           << "expected operands to list the names of "
           << call.getOperands().size() << " operands, but got "
           << call.getOption("operands");
  for (auto [name, value] : llvm::zip_equal(names, call.getOperands())) {
    auto text = dyn_cast<StringAttr>(name);
    const auto *it =
        text ? llvm::find(kOperands, text.getValue()) : std::end(kOperands);
    const size_t place = it - std::begin(kOperands);
    if (place == operands.size() || operands[place])
      return call.emitFault()
             << "expected each operand once, of "
             << llvm::join(ArrayRef(kOperands), ", ") << ", but got " << name;
    operands[place] = value;
  }
  return operands;
}

template <typename AttrT, typename EnumT>
static Attribute makeChoice(MLIRContext *context, std::optional<EnumT> value) {
  return value ? AttrT::get(context, *value) : Attribute();
}

/// An enumeration of the op by its word; null: it has no such attribute or
/// word.
static Attribute parseChoice(StringRef name, StringAttr word) {
  MLIRContext *context = word.getContext();
  const StringRef text = word.getValue();
  if (name.ends_with("_layout"))
    return makeChoice<LayoutAttr>(context, symbolizeLayout(text));
  if (name == "lambda_act")
    return makeChoice<ActivationAttr>(context, symbolizeActivation(text));
  if (name == "norm")
    return makeChoice<NormAttr>(context, symbolizeNorm(text));
  if (name == "norm_eps_mode")
    return makeChoice<EpsModeAttr>(context, symbolizeEpsMode(text));
  return {};
}

/// The sizes of a window, in one of the forms that importers have for lists of
/// numbers; null: it is none.
static Attribute parseWindow(Attribute value) {
  SmallVector<int64_t> sizes;
  if (auto list = dyn_cast<ArrayAttr>(value)) {
    for (Attribute size : list)
      if (auto number = dyn_cast<IntegerAttr>(size);
          number && number.getType().isInteger(64))
        sizes.push_back(number.getValue().getSExtValue());
    if (sizes.size() != list.size())
      return {};
  } else if (auto elements = dyn_cast<DenseIntElementsAttr>(value)) {
    for (const APInt &size : elements.getValues<APInt>())
      sizes.push_back(size.getSExtValue());
  } else {
    return value;
  }
  return DenseI64ArrayAttr::get(value.getContext(), sizes);
}

/// An option as the op's attribute; null: it has no such value.
static Attribute convertOption(StringRef name, Attribute value) {
  if (auto word = dyn_cast<StringAttr>(value))
    return parseChoice(name, word);
  if (name == "window")
    return parseWindow(value);
  // Python's numbers have 64 bits.
  if (auto number = dyn_cast<FloatAttr>(value))
    return FloatAttr::get(Float32Type::get(value.getContext()),
                          number.getValueAsDouble());
  return value;
}

/// Options are the op's own attributes, with words in the place of its
/// enumerations.
static LogicalResult addAttributes(OperationState &state, BuiltinCall call) {
  for (NamedAttribute option : call.getOptions()) {
    const StringRef name = option.getName();
    if (name == "operands")
      continue;
    if (!llvm::is_contained(state.name.getAttributeNames(), option.getName()) ||
        llvm::is_contained(kOwn, name))
      return call.emitFault()
             << "expected options that diffattn.attention has, but got '"
             << name << "'";
    if (llvm::is_contained(kFlags, name)) {
      FailureOr<bool> isSet = call.getFlag(name);
      if (failed(isSet))
        return failure();
      if (*isSet)
        state.addAttribute(name, UnitAttr::get(state.getContext()));
      continue;
    }
    Attribute value = convertOption(name, option.getValue());
    if (!value)
      return call.emitFault() << "expected another value as " << name
                              << ", but got " << option.getValue();
    state.addAttribute(name, value);
  }
  // import_c10: an attribute of another type would be dropped in silence.
  return state.name.verifyInherentAttrs(state.attributes,
                                        [&] { return call.emitFault(); });
}

/// One number for each sequence: as i64, from importers that have no integers
/// of 64 bits.
static void widenPositions(TensorLoopBuilder &b, Value &positions) {
  auto type =
      positions ? dyn_cast<RankedTensorType>(positions.getType()) : nullptr;
  if (type && type.getElementType().isInteger(32))
    positions =
        arith::ExtSIOp::create(b, type.clone(b.getI64Type()), positions);
}

static Layout getLayout(BuiltinCall call, StringRef name) {
  auto word = dyn_cast_if_present<StringAttr>(call.getOption(name));
  return symbolizeLayout(word ? word.getValue() : "").value_or(Layout::BHTD);
}

/// The result's destination: as many batches, heads and queries as `q1` has.
static Value emitInit(TensorLoopBuilder &b, BuiltinCall call, Value q1,
                      Value v) {
  const Layout from = getLayout(call, "q_layout"),
               to = getLayout(call, "o_layout");
  const RankedTensorType type = call.getResultType();
  SmallVector<Value> sizes;
  for (int64_t axis = 0; axis < 4; ++axis) {
    if (!type.isDynamicDim(axis))
      continue;
    int64_t same = axis;
    if (axis == AttentionOp::headAxis(to))
      same = AttentionOp::headAxis(from);
    else if (axis == AttentionOp::lengthAxis(to))
      same = AttentionOp::lengthAxis(from);
    sizes.push_back(axis == 3 ? b.size(v, 3) : b.size(q1, same));
  }
  return tensor::EmptyOp::create(b, type, sizes);
}

/// Ends a call with a negative length: code reads lengths as numbers of keys.
static void emitLengthCheck(TensorLoopBuilder &b, Value lengths) {
  const Type i64 = b.getI64Type();
  Value zero = arith::ConstantOp::create(b, b.getI64IntegerAttr(0));
  Value empty = tensor::EmptyOp::create(b, ArrayRef<int64_t>{}, i64);
  Value none = linalg::FillOp::create(b, zero, empty).getResult(0);
  const AffineMap each = b.getMultiDimIdentityMap(1),
                  once = AffineMap::get(1, 0, b.getContext());
  auto count = linalg::GenericOp::create(
      b, none.getType(), lengths, none, ArrayRef<AffineMap>{each, once},
      utils::IteratorType::reduction,
      [&](OpBuilder &nested, Location loc, ValueRange args) {
        Value isNegative = arith::CmpIOp::create(
            nested, loc, arith::CmpIPredicate::slt, args[0], zero);
        Value one = arith::ExtUIOp::create(nested, loc, i64, isNegative);
        Value sum = arith::AddIOp::create(nested, loc, args[1], one);
        linalg::YieldOp::create(nested, loc, sum);
      });
  Value negative = b.extract(count.getResult(0), {});
  Value fits =
      arith::CmpIOp::create(b, arith::CmpIPredicate::eq, negative, zero);
  cf::AssertOp::create(b, fits,
                       "kv_len: expected 0 to 9223372036854775807, but got a "
                       "negative number");
}

FailureOr<Value> mlir::diffattn::import::emitAttention(TensorLoopBuilder &b,
                                                       BuiltinCall call) {
  FailureOr<SmallVector<Value>> operands = nameOperands(call);
  if (failed(operands))
    return failure();
  Value q1 = (*operands)[0], v = (*operands)[4];
  Value &lengths = (*operands)[9], &offsets = (*operands)[10];
  if (!q1 || !v || !hasRank(q1.getType(), 4) || !hasRank(v.getType(), 4) ||
      call.getResultTypes().size() != 1 ||
      !hasRank(call.getResultTypes()[0], 4))
    return call.emitFault()
           << "expected q1, v and one result of rank 4, but got types "
           << call.getOperands().getTypes() << " and " << call.getResultTypes();
  OperationState state(b.getLoc(), AttentionOp::getOperationName());
  if (failed(addAttributes(state, call)))
    return failure();
  widenPositions(b, lengths);
  widenPositions(b, offsets);
  if (lengths && hasRank(lengths.getType(), 1) &&
      getElementTypeOrSelf(lengths).isInteger(64))
    emitLengthCheck(b, lengths);
  addOperandSegments(b, state, *operands, ValueRange(emitInit(b, call, q1, v)),
                     {/*x=*/Value(), /*lse1=*/Value(), /*lse2=*/Value(),
                      /*o2=*/Value()});
  state.addTypes(call.getResultType());
  Operation *attention = b.create(state);
  // The op's own verifier checks operands and attributes.
  if (failed(mlir::verify(attention)))
    return failure();
  return attention->getResult(0);
}
