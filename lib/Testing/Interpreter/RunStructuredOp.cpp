//===- RunStructuredOp.cpp - runs a nest of loops over tensors ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AffineValue.h"
#include "ElementBody.h"
#include "Strided.h"
#include "StructuredOp.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

Product mlir::diffattn::interpreter::findProduct(linalg::LinalgOp op,
                                                 const StructuredOp &details,
                                                 const CodeBuilder &b) {
  Block &body = *op.getBlock();
  if (op->getNumOperands() != 3 || op->getNumResults() != 1 ||
      body.getNumArguments() != 3 || body.getOperations().size() != 3 ||
      !llvm::all_of(details.operands, [](const StructuredOperand &operand) {
        return operand.isTensor && operand.isLinear;
      }))
    return Product::No;
  auto mul = dyn_cast<arith::MulFOp>(body.front());
  auto add = dyn_cast<arith::AddFOp>(*std::next(body.begin()));
  if (!mul || !add || mul.getLhs() != body.getArgument(0) ||
      mul.getRhs() != body.getArgument(1) ||
      body.getTerminator()->getOperand(0) != add.getResult())
    return Product::No;
  const bool isSum =
      (add.getLhs() == body.getArgument(2) &&
       add.getRhs() == mul.getResult()) ||
      (add.getRhs() == body.getArgument(2) && add.getLhs() == mul.getResult());
  const FloatKind kind = b.kindOf(add.getType());
  if (!isSum)
    return Product::No;
  return kind == FloatKind::F64         ? Product::F64
         : kind == FloatKind::F32       ? Product::F32
         : kind == FloatKind::RandomF32 ? Product::RandomF32
                                        : Product::No;
}

namespace {
/// An operand while the nest runs.
struct Cursor {
  const StructuredOperand *operand = nullptr;
  Slot *slots = nullptr;
  int64_t offset = 0;
  ArrayRef<int64_t> shape;
  SmallVector<int64_t> strides; ///< one for each loop; none: evaluate the map
  bool loads = false;
};

/// The nest of one run.
class Nest {
public:
  Nest(Machine &m, const Inst &inst)
      : m(m), inst(inst), details(inst.as<StructuredOp>()) {}

  bool run();

private:
  bool findSizes();
  bool checkOperand(size_t number, ArrayRef<int64_t> shape);
  bool makeResults();
  void placeCursors();
  bool findPlace(Cursor &cursor, int64_t &place);
  bool runElements();
  bool runElement();
  template <FloatKind kind>
  void runProduct();

  Machine &m;
  const Inst &inst;
  const StructuredOp &details;
  SmallVector<int64_t> sizes;
  int64_t count = 1;
  /// Keeps inputs alive that are also results.
  SmallVector<Array> inputs, results;
  SmallVector<Cursor> cursors;
  SmallVector<int64_t> index;
};
} // namespace

bool Nest::findSizes() {
  for (const LoopSize &size : details.loopSizes)
    sizes.push_back(
        m.tensors[details.operands[size.operand].number].getShape()[size.axis]);
  for (int64_t size : sizes)
    // Beside a size of 0 the product is 0, whatever the others are.
    if (__builtin_mul_overflow(count, size, &count))
      count = INT64_MAX;
  if (llvm::is_contained(sizes, 0))
    count = 0;
  for (auto [number, operand] : llvm::enumerate(details.operands))
    if (operand.isTensor &&
        !checkOperand(number, m.tensors[operand.number].getShape()))
      return false;
  return m.count(stepsOf(details.body, count), inst.op);
}

/// An axis that is a loop alone has its size; of others every place must exist.
bool Nest::checkOperand(size_t number, ArrayRef<int64_t> shape) {
  const StructuredOperand &operand = details.operands[number];
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t size = shape[axis];
    AffineExpr expr = operand.map.getResult(axis);
    auto fail = [&](const Twine &expected) {
      return m.fail(inst, "expected " + expected + " on axis " + Twine(axis) +
                              " of operand " + Twine(number) + ", but got " +
                              Twine(size));
    };
    if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
      if (size != sizes[dim.getPosition()])
        return fail("size " + Twine(sizes[dim.getPosition()]));
      continue;
    }
    if (count == 0 || !operand.isLinear)
      continue; // nothing is read, or each place is checked
    const LinearExpr &linear = operand.linear[axis];
    __int128 least = linear.constant, most = least;
    for (auto [factor, loop] : llvm::zip_equal(linear.factors, sizes))
      (factor < 0 ? least : most) += __int128(factor) * (loop - 1);
    if (least < 0 || most >= size)
      return fail("a size above " +
                  Twine(static_cast<int64_t>(std::min<__int128>(
                      std::max<__int128>(most, -1), INT64_MAX))));
  }
  return true;
}

bool Nest::makeResults() {
  // Inputs and other inits may be the same array, which is then copied.
  SmallVector<Array> before;
  for (size_t i = 0; i < details.results.size(); ++i)
    before.push_back(m.tensors[details.operands[details.numInputs + i].number]);
  for (int32_t number : inst.dying)
    if (llvm::is_contained(details.released, number))
      m.tensors[number] = Array();
  for (size_t i = 0; i < details.results.size(); ++i) {
    Array array =
        details.isOverwritten[i]
            ? m.create(inst, before[i].getElementType(), before[i].getShape())
            : m.makeWritable(inst, std::move(before[i]));
    if (!array)
      return false;
    results.push_back(std::move(array));
  }
  return true;
}

void Nest::placeCursors() {
  for (auto [number, operand] : llvm::enumerate(details.operands)) {
    Cursor cursor;
    cursor.operand = &operand;
    cursor.loads = operand.isRead;
    if (!operand.isTensor) {
      // A scalar is the same for all elements.
      if (operand.isRead)
        m.scalars[operand.inside] = m.scalars[operand.number];
      continue;
    }
    const bool isInput = static_cast<int64_t>(number) < details.numInputs;
    if (isInput && !operand.isRead)
      continue;
    Array &array =
        isInput ? inputs[number] : results[number - details.numInputs];
    cursor.slots = array.begin();
    cursor.shape = array.getShape();
    if (operand.isLinear) {
      cursor.strides.assign(sizes.size(), 0);
      SmallVector<int64_t> axisStrides = stridesOf(cursor.shape);
      for (auto [linear, stride] :
           llvm::zip_equal(operand.linear, axisStrides)) {
        cursor.offset += linear.constant * stride;
        for (auto [factor, total] :
             llvm::zip_equal(linear.factors, cursor.strides))
          total += factor * stride;
      }
    }
    cursors.push_back(std::move(cursor));
  }
}

bool Nest::findPlace(Cursor &cursor, int64_t &place) {
  if (!cursor.strides.empty() || cursor.operand->isLinear) {
    place = cursor.offset;
    return true;
  }
  place = 0;
  for (auto [axis, size] : llvm::enumerate(cursor.shape)) {
    int64_t at;
    if (!evaluate(cursor.operand->map.getResult(axis), index, {}, at))
      return m.fail(inst, "expected a divisor of at least 1 in the map");
    if (at < 0 || at >= size)
      return m.fail(inst, "expected an index from 0 and below " + Twine(size) +
                              " on axis " + Twine(axis) + ", but got " +
                              Twine(at));
    place = place * size + at;
  }
  return true;
}

bool Nest::runElement() {
  int64_t place;
  for (Cursor &cursor : cursors) {
    if (!cursor.loads)
      continue;
    if (!findPlace(cursor, place))
      return false;
    m.scalars[cursor.operand->inside] = cursor.slots[place];
  }
  if (!m.runCounted(details.body))
    return false;
  Cursor *outputs = cursors.end() - details.results.size();
  for (auto [i, number] : llvm::enumerate(details.yielded)) {
    if (!findPlace(outputs[i], place))
      return false;
    outputs[i].slots[place] = m.scalars[number];
  }
  return true;
}

bool Nest::runElements() {
  const size_t loops = sizes.size();
  for (;;) {
    for (size_t loop = 0; loop < loops; ++loop)
      if (details.indices[loop] >= 0)
        m.scalars[details.indices[loop]].i = index[loop];
    if (!runElement())
      return false;
    size_t loop = loops;
    while (loop-- > 0) {
      const bool goesOn = ++index[loop] < sizes[loop];
      const int64_t moves = goesOn ? 1 : 1 - sizes[loop];
      for (Cursor &cursor : cursors)
        if (!cursor.strides.empty())
          cursor.offset += moves * cursor.strides[loop];
      if (goesOn)
        break;
      index[loop] = 0;
    }
    if (loop == size_t(-1))
      return true;
  }
}

/// Runs all elements of acc + a * b, with the loop over the elements of a sum
/// or row innermost.
template <FloatKind kind>
void Nest::runProduct() {
  const size_t last = sizes.size() - 1;
  Cursor &a = cursors[0], &b = cursors[1], &c = cursors[2];
  const int64_t stepA = a.strides[last], stepB = b.strides[last],
                stepC = c.strides[last];
  auto add = [&](double x, double y) { return roundTo<kind>(x + y, m.random); };
  auto multiply = [&](double x, double y) {
    return roundTo<kind>(x * y, m.random);
  };
  for (;;) {
    const Slot *fromA = a.slots + a.offset, *fromB = b.slots + b.offset;
    Slot *to = c.slots + c.offset;
    if (stepC == 0) {
      double sum = to->f;
      for (int64_t i = 0; i < sizes[last]; ++i)
        sum = add(sum, multiply(fromA[i * stepA].f, fromB[i * stepB].f));
      to->f = sum;
    } else {
      for (int64_t i = 0; i < sizes[last]; ++i)
        to[i * stepC].f = add(to[i * stepC].f,
                              multiply(fromA[i * stepA].f, fromB[i * stepB].f));
    }
    size_t loop = last;
    while (loop-- > 0) {
      const bool goesOn = ++index[loop] < sizes[loop];
      const int64_t moves = goesOn ? 1 : 1 - sizes[loop];
      for (Cursor &cursor : cursors)
        cursor.offset += moves * cursor.strides[loop];
      if (goesOn)
        break;
      index[loop] = 0;
    }
    if (loop == size_t(-1))
      return;
  }
}

bool Nest::run() {
  if (!findSizes())
    return false;
  for (int64_t i = 0; i < details.numInputs; ++i)
    inputs.push_back(details.operands[i].isTensor
                         ? m.tensors[details.operands[i].number]
                         : Array());
  if (!makeResults())
    return false;
  if (count) {
    placeCursors();
    index.assign(sizes.size(), 0);
    if (details.product == Product::F64 && !sizes.empty())
      runProduct<FloatKind::F64>();
    else if (details.product == Product::F32 && !sizes.empty())
      runProduct<FloatKind::F32>();
    else if (details.product == Product::RandomF32 && !sizes.empty())
      runProduct<FloatKind::RandomF32>();
    else if (!runElements())
      return false;
  }
  for (auto [number, array] : llvm::zip_equal(details.results, results))
    m.tensors[number] = std::move(array);
  return true;
}

bool mlir::diffattn::interpreter::runStructuredOp(Machine &m,
                                                  const Inst &inst) {
  return Nest(m, inst).run();
}
