//===- OpDefinitions.cpp - the generated half of the ops ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The inputs of one map or two: `q1, k1, v` or `q1, k1, q2, k2, v`, then a
/// colon and their types. An optional group could not parse an absent q2.
static ParseResult parseMaps(OpAsmParser &parser,
                             OpAsmParser::UnresolvedOperand &q1,
                             OpAsmParser::UnresolvedOperand &k1,
                             std::optional<OpAsmParser::UnresolvedOperand> &q2,
                             std::optional<OpAsmParser::UnresolvedOperand> &k2,
                             OpAsmParser::UnresolvedOperand &v, Type &q1Type,
                             Type &k1Type, Type &q2Type, Type &k2Type,
                             Type &vType) {
  SMLoc loc = parser.getCurrentLocation();
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SmallVector<Type> types;
  if (parser.parseOperandList(operands) || parser.parseColonTypeList(types))
    return failure();
  if (operands.size() != 3 && operands.size() != 5)
    return parser.emitError(loc)
           << "expected q1, k1, q2, k2 and v, or q1, k1 and v of one map, but "
              "got "
           << operands.size() << " operands";
  if (types.size() != operands.size())
    return parser.emitError(loc)
           << "expected " << operands.size()
           << " types, one of each operand, but got " << types.size();
  q1 = operands[0];
  k1 = operands[1];
  v = operands.back();
  q1Type = types[0];
  k1Type = types[1];
  vType = types.back();
  if (operands.size() == 5) {
    q2 = operands[2];
    k2 = operands[3];
    q2Type = types[2];
    k2Type = types[3];
  }
  return success();
}

static void printMaps(OpAsmPrinter &printer, Operation *, Value q1, Value k1,
                      Value q2, Value k2, Value v, Type, Type, Type, Type,
                      Type) {
  SmallVector<Value> operands = {q1, k1};
  // The verifier refuses one without the other, which may be printed all the
  // same.
  for (Value operand : {q2, k2})
    if (operand)
      operands.push_back(operand);
  operands.push_back(v);
  printer << operands << " : " << ValueRange(operands).getTypes();
}

#define GET_OP_CLASSES
#include "DiffAttn/IR/DiffAttnOps.cpp.inc"
