//===- PassEnums.h - enums of passes and pipelines --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Stage and BatchInvariance, which Passes.td defines with their words, as types
// of options.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PASSENUMS_H
#define DIFFATTN_MODEL_PASSENUMS_H

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"

#include "DiffAttn/Model/PassEnums.h.inc"

namespace mlir::diffattn {

/// The words of an enum in the order of its values.
template <typename Enum>
llvm::ArrayRef<llvm::StringRef> getEnumWords();
template <>
llvm::ArrayRef<llvm::StringRef> getEnumWords<Stage>();
template <>
llvm::ArrayRef<llvm::StringRef> getEnumWords<BatchInvariance>();

/// Reads an option's value by its word. Another word is an error that lists
/// them.
template <typename Enum>
class EnumParser : public llvm::cl::basic_parser<Enum> {
public:
  using llvm::cl::basic_parser<Enum>::basic_parser;

  bool parse(llvm::cl::Option &option, llvm::StringRef, llvm::StringRef word,
             Enum &value) {
    if (std::optional<Enum> symbol = symbolizeEnum<Enum>(word)) {
      value = *symbol;
      return false;
    }
    return option.error("expected one of " +
                        llvm::join(getEnumWords<Enum>(), ", ") + ", but got '" +
                        word + "'");
  }
  void printOptionDiff(const llvm::cl::Option &option, Enum value,
                       llvm::cl::OptionValue<Enum>, size_t width) const {
    this->printOptionName(option, width);
    llvm::outs() << "= " << stringifyEnum(value) << "\n";
  }
};

} // namespace mlir::diffattn

namespace llvm::cl {
template <>
class parser<mlir::diffattn::Stage> final
    : public mlir::diffattn::EnumParser<mlir::diffattn::Stage> {
public:
  using EnumParser::EnumParser;
};
template <>
class parser<mlir::diffattn::BatchInvariance> final
    : public mlir::diffattn::EnumParser<mlir::diffattn::BatchInvariance> {
public:
  using EnumParser::EnumParser;
};
} // namespace llvm::cl

#endif // DIFFATTN_MODEL_PASSENUMS_H
