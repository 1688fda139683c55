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
    A kind of mask: which keys a query sees. A key is visible if all masks of the
    op say so. Back ends know no kind by name: they ask for ranges of keys and
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
      Whether the keys that a query sees are all of its visible range: whoever
      keeps to the ranges needs no predicate.
    }], "bool", "isInterval", (ins), [{}], [{
      return false;
    }]>,
    InterfaceMethod<[{
      The keys that a tile of queries may see, and those that all of it sees.
    }], "::mlir::diffattn::VisibleRange", "getVisibleRange",
      (ins "::mlir::diffattn::MaskBuilder &":$b, "const ::mlir::diffattn::MaskTile &":$tile)>,
    InterfaceMethod<[{
      Whether the mask can tell, without a look at each pair, how a tile of keys
      stands to a tile of queries.
    }], "bool", "hasTileRelation", (ins), [{}], [{
      return false;
    }]>,
    InterfaceMethod<[{
      How the tile of keys stands to the tile of queries, where `hasTileRelation`:
      both conditions are given, and where neither holds `isVisible` decides.
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
      Whether the mask also has a number for each score.
    }], "bool", "hasScoreTerm", (ins), [{}], [{
      return false;
    }]>,
    InterfaceMethod<[{
      What is added to the score, where `hasScoreTerm`; else null.
    }], "::mlir::diffattn::MaskValue", "getScoreTerm",
      (ins "::mlir::diffattn::MaskBuilder &":$b, "const ::mlir::diffattn::MaskPoint &":$point),
      [{}], [{
      return {};
    }]>
  ];
}

#endif // DIFFATTN_IR_MASKINTERFACE_TD
