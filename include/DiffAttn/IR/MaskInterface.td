//===- MaskInterface.td - the interface of masks -----------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_MASKINTERFACE_TD
#define DIFFATTN_IR_MASKINTERFACE_TD

include "mlir/IR/Interfaces.td"

def DiffAttn_MaskAttrInterface : AttrInterface<"MaskAttrInterface"> {
  let cppNamespace = "::mlir::diffattn";
  let description = [{
    A kind of mask: the keys that a query sees. A key is visible if it is by all masks
    of the op. Back ends use no kind by name: they ask for ranges of keys and
    predicates, with a MaskBuilder of their own (MaskBuilder.h).
  }];
  let methods = [
    InterfaceMethod<[{
      The operands that the mask reads where the op has them.
    }], "::llvm::SmallVector<::mlir::diffattn::MaskOperand>", "getMaskOperands">,
    InterfaceMethod<[{
      How far a query sees on both sides of its position, if the mask limits that.
    }], "::mlir::diffattn::KeyReach", "getReach", (ins), [{}], [{
      return {};
    }]>,
    InterfaceMethod<[{
      Whether a query sees all keys of its visible range: code that keeps to the
      ranges needs no predicate then.
    }], "bool", "isInterval", (ins), [{}], [{
      return false;
    }]>,
    InterfaceMethod<[{
      The keys that a tile of queries may see, and those that all of it sees.
    }], "::mlir::diffattn::VisibleRange", "getVisibleRange",
      (ins "::mlir::diffattn::MaskBuilder &":$b, "const ::mlir::diffattn::MaskTile &":$tile)>,
    InterfaceMethod<[{
      Whether the relation of a tile of keys to a tile of queries can be computed
      without looking at each pair.
    }], "bool", "hasTileRelation", (ins), [{}], [{
      return false;
    }]>,
    InterfaceMethod<[{
      The relation of the tile of keys to the tile of queries, if `hasTileRelation`.
      Both conditions are set; where neither holds, `isVisible` decides.
    }], "::mlir::diffattn::TileRelation", "getTileRelation",
      (ins "::mlir::diffattn::MaskBuilder &":$b, "const ::mlir::diffattn::MaskTile &":$queries,
           "const ::mlir::diffattn::MaskTile &":$keys),
      [{}], [{
      return {};
    }]>,
    InterfaceMethod<[{
      Whether a query sees a key; null: always.
    }], "::mlir::diffattn::MaskValue", "isVisible",
      (ins "::mlir::diffattn::MaskBuilder &":$b, "const ::mlir::diffattn::MaskPoint &":$point)>,
    InterfaceMethod<[{
      Whether the mask also adds a term to each score.
    }], "bool", "hasScoreTerm", (ins), [{}], [{
      return false;
    }]>,
    InterfaceMethod<[{
      The term that is added to the score, if `hasScoreTerm`; else null.
    }], "::mlir::diffattn::MaskValue", "getScoreTerm",
      (ins "::mlir::diffattn::MaskBuilder &":$b, "const ::mlir::diffattn::MaskPoint &":$point),
      [{}], [{
      return {};
    }]>
  ];
}

#endif // DIFFATTN_IR_MASKINTERFACE_TD
