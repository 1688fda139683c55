//===- ScheduleInterface.td - the interface of schedules ---*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_SCHEDULEINTERFACE_TD
#define DIFFATTN_IR_SCHEDULEINTERFACE_TD

include "mlir/IR/Interfaces.td"

def DiffAttn_ScheduleAttrInterface : AttrInterface<"ScheduleAttrInterface"> {
  let cppNamespace = "::mlir::diffattn";
  let description = [{
    The kernel of one attention op. Each family of kernels has an attribute of its own, with all
    sizes that its code depends on. Only the emitter of a family uses that attribute by name.
  }];
  let methods = [
    InterfaceMethod<[{
      The kind of target that the code is for. `Any`: the op is left to linalg, wherever it runs.
    }], "::mlir::diffattn::ScheduleTarget", "getTarget">,
    InterfaceMethod<[{
      The name of the family, as the IR spells it.
    }], "::llvm::StringRef", "getFamily", (ins), [{}], [{
      return ConcreteAttr::getMnemonic();
    }]>,
    InterfaceMethod<[{
      The most queries that a kernel of the family computes, if there is such a limit.
    }], "::std::optional<int64_t>", "getMaxQueries", (ins), [{}], [{
      return std::nullopt;
    }]>,
    InterfaceMethod<[{
      Whether the family computes gradients, those of `attention_backward`.
    }], "bool", "computesGradients", (ins), [{}], [{
      return false;
    }]>
  ];
}

#endif // DIFFATTN_IR_SCHEDULEINTERFACE_TD
