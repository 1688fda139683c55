//===- Printable.h - text from files, for terminals -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_SUPPORT_PRINTABLE_H
#define DIFFATTN_RUNTIME_SUPPORT_PRINTABLE_H

#include <string>
#include <string_view>

namespace diffattn_rt {

/// Whether line breaks are part of a text or of a name in it.
enum class Lines { Keep, Escape };

/// `text` with characters that control a terminal written as escapes: control
/// characters (but tabs) and bytes that are no UTF-8 as \x1b, invisible marks
/// that reorder text as \u202e. For names from files before they are shown.
/// Text that needs no escapes is returned as it is, so that applying this twice
/// changes nothing more.
std::string printable(std::string_view text, Lines lines = Lines::Escape);

/// `word` quoted as one word of a command that can be pasted into a shell.
std::string quoteForShell(std::string_view word);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_SUPPORT_PRINTABLE_H
