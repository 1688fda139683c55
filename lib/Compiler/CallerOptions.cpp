//===- CallerOptions.cpp - options by name and text -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/CallerOptions.h"

#include "DiffAttn/Compiler/Bundle.h"
#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Runtime/Program/Call.h"
#include "DiffAttn/Target/HostFacts.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::ArrayRef;
using llvm::StringLiteral;
using llvm::StringRef;

/// 1 TiB.
static constexpr int64_t kMaxCacheMiB = 1 << 20;

/// Several chips are for bundles; what compiles for one refuses them later.
static llvm::Error checkTarget(StringRef text) {
  if (text.contains(',')) {
    auto targets = getBundleTargets(text);
    return targets ? llvm::Error::success() : targets.takeError();
  }
  auto target = parseTarget(text);
  return target ? llvm::Error::success() : target.takeError();
}

/// The stages that a module can come in.
static ArrayRef<StringRef> getSourceStages() {
  static const StringRef words[] = {stringifyStage(Stage::Input),
                                    stringifyStage(Stage::GPU)};
  return words;
}

using Options = CallerOptions;

static const OptionRow kOptions[] = {
    {"target",
     TextOption{[](Options &o) -> std::string & { return o.compile.target; },
                checkTarget},
     /*isKeyed=*/true,
     "cpu, cpu:<isa>; cuda-sim:<chip>: GPU kernels, simulated; cuda, "
     "cuda:<chip>, cuda:<chip>@<n>: GPU number n"},
    {"threads",
     NumberOption{[](Options &o) -> int64_t & { return o.compile.threads; }, 0,
                  kMaxThreads},
     /*isKeyed=*/true,
     "Threads that compiled code may use; 0: OMP_NUM_THREADS, or as many as "
     "are worth it, up to one a processor"},
    {"prefetch_bytes",
     NumberOption{
         [](Options &o) -> int64_t & { return o.compile.prefetchBytes; }, -1,
         kMaxPrefetchBytes, "bytes"},
     /*isKeyed=*/true,
     "How far ahead of weights, keys and values lines are asked for; 0: not at "
     "all; -1: as the CPU was measured to gain from it"},
    {"raise", TruthOption{[](Options &o) -> bool & { return o.compile.raise; }},
     /*isKeyed=*/true, "Look for attention in unfused graphs"},
    {"batch_invariant",
     ChoiceOption{getEnumWords<BatchInvariance>,
                  [](Options &o) {
                    return stringifyBatchInvariance(o.compile.batchInvariance);
                  },
                  [](Options &o, StringRef word) {
                    o.compile.batchInvariance = *symbolizeBatchInvariance(word);
                  }},
     /*isKeyed=*/true,
     "A row of a product does not depend on the others; auto: products with "
     "weights, where that is as fast"},
    {"unchecked",
     TruthOption{[](Options &o) -> bool & { return o.compile.unchecked; }},
     /*isKeyed=*/true, "Take indices that are data without a check"},
    {"trace", TruthOption{[](Options &o) -> bool & { return o.compile.trace; }},
     /*isKeyed=*/true,
     "Code that says when its products and attentions begin and end"},
    {"quick_code",
     TruthOption{[](Options &o) -> bool & { return o.compile.quickCode; }},
     /*isKeyed=*/true,
     "Machine code that is made in less time and takes more to run"},
    {"reference",
     TruthOption{[](Options &o) -> bool & { return o.compile.reference; }},
     /*isKeyed=*/true, "The plain path, nothing fused"},
    {"from",
     ChoiceOption{getSourceStages,
                  [](Options &o) { return stringifyStage(o.compile.from); },
                  [](Options &o, StringRef word) {
                    o.compile.from = *symbolizeStage(word);
                  }},
     /*isKeyed=*/true, "Stage that the module is in"},
    {"name", TextOption{[](Options &o) -> std::string & {
       return o.compile.inputName;
     }},
     /*isKeyed=*/false, "What messages call the module"},
    {"reproducer", TextOption{[](Options &o) -> std::string & {
       return o.compile.reproducer;
     }},
     /*isKeyed=*/false, "File that a failing pipeline leaves; empty: none"},
    {"ptxas", TextOption{[](Options &o) -> std::string & {
       return o.compile.ptxas.program;
     }},
     /*isKeyed=*/false,
     "Assembler of kernels: a path, or a name to look for in PATH"},
    {"ptxas_folders",
     ListOption{[](Options &o) -> std::vector<std::string> & {
                  return o.compile.ptxas.folders;
                },
                ListOption::SplitInto},
     /*isKeyed=*/false, "Where else to look for it, separated by colons"},
    {"cuda_driver",
     TextOption{[](Options &o) -> std::string & { return o.libraries.driver; }},
     /*isKeyed=*/false, "libcuda.so.1, where the loader finds none"},
    {"cublaslt", TextOption{[](Options &o) -> std::string & {
       return o.libraries.cublasLt;
     }},
     /*isKeyed=*/false,
     "libcublasLt.so.13 or .12, where the loader finds none"},
    {"package_folders",
     ListOption{[](Options &o) -> std::vector<std::string> & {
                  return o.libraries.packageFolders;
                },
                ListOption::SplitInto},
     /*isKeyed=*/false,
     "Folders of Python packages, in which cuBLASLt may lie, separated by "
     "colons"},
    {"weights",
     ListOption{
         [](Options &o) -> std::vector<std::string> & { return o.weights; },
         ListOption::AppendTo},
     /*isKeyed=*/false,
     "A file or folder of weights, set once for each, which the module is "
     "checked against before it is compiled"},
    {"cache", TextOption{[](Options &o) -> std::string & { return o.cache; }},
     /*isKeyed=*/false,
     "Folder of compiled code, which nobody but this user can write; empty: "
     "none"},
    {"cache_limit",
     NumberOption{[](Options &o) -> int64_t & { return o.cacheMiB; }, 0,
                  kMaxCacheMiB, "MiB"},
     /*isKeyed=*/false, "MiB of compiled code to keep"},
};

ArrayRef<OptionRow> mlir::diffattn::getOptionTable() { return kOptions; }

const OptionRow *mlir::diffattn::findOption(StringRef name) {
  const OptionRow *row = llvm::find_if(
      kOptions, [&](const OptionRow &r) { return r.name == name; });
  return row == std::end(kOptions) ? nullptr : row;
}

namespace {
/// Calls the one of several functions that takes the kind of an option.
template <typename... Functions>
struct OfKind : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
OfKind(Functions...) -> OfKind<Functions...>;
} // namespace

static std::string joinWords(ArrayRef<StringRef> words, StringRef separator,
                             StringRef last) {
  std::string text;
  for (auto [i, word] : llvm::enumerate(words)) {
    if (i)
      text += i + 1 == words.size() ? last : separator;
    text += word;
  }
  return text;
}

std::string OptionRow::getExpected() const {
  return std::visit(
      OfKind{[](const TextOption &) -> std::string { return "a text"; },
             [](const ListOption &) -> std::string { return "a text"; },
             [](const NumberOption &number) {
               return (number.unit.empty()
                           ? "a number from "
                           : "a number of " + number.unit + " from ")
                          .str() +
                      std::to_string(number.least) + " to " +
                      std::to_string(number.most);
             },
             [](const TruthOption &) -> std::string { return "true or false"; },
             [](const ChoiceOption &choice) {
               return joinWords(choice.words(), ", ", " or ");
             }},
      kind);
}

/// False: `text` is no value of the option.
static bool assign(CallerOptions &options, const OptionRow &row,
                   StringRef text) {
  return std::visit(OfKind{[&](const TextOption &option) {
                             option.member(options) = text.str();
                             return true;
                           },
                           [&](const NumberOption &option) {
                             int64_t value;
                             if (text.getAsInteger(10, value) ||
                                 value < option.least || value > option.most)
                               return false;
                             option.member(options) = value;
                             return true;
                           },
                           [&](const TruthOption &option) {
                             const bool isTrue = text == "true" || text == "1";
                             if (!isTrue && text != "false" && text != "0")
                               return false;
                             option.member(options) = isTrue;
                             return true;
                           },
                           [&](const ListOption &option) {
                             std::vector<std::string> &list =
                                 option.member(options);
                             if (option.form == ListOption::AppendTo) {
                               list.push_back(text.str());
                               return true;
                             }
                             llvm::SmallVector<StringRef> parts;
                             text.split(parts, ':', -1, /*KeepEmpty=*/false);
                             list.assign(parts.begin(), parts.end());
                             return true;
                           },
                           [&](const ChoiceOption &option) {
                             if (!llvm::is_contained(option.words(), text))
                               return false;
                             option.set(options, text);
                             return true;
                           }},
                    row.kind);
}

llvm::Error mlir::diffattn::setOption(CallerOptions &options, StringRef name,
                                      StringRef text, StringRef label) {
  const OptionRow *row = findOption(name);
  if (!row)
    return makeError(ErrorClass::Usage,
                     "expected an option of " +
                         llvm::join(llvm::map_range(kOptions,
                                                    [](const OptionRow &known) {
                                                      return known.name.str();
                                                    }),
                                    ", ") +
                         ", but got '" + name + "'");
  if (const auto *option = std::get_if<TextOption>(&row->kind))
    if (option->check)
      if (llvm::Error error = option->check(text))
        return error;
  if (assign(options, *row, text))
    return llvm::Error::success();
  const std::string what =
      label.empty() ? ("option " + name).str() : label.str();
  return makeError(ErrorClass::Usage, what + ": expected " +
                                          row->getExpected() + ", but got '" +
                                          text + "'");
}

static std::string getText(CallerOptions &options, const OptionRow &row) {
  return std::visit(
      OfKind{[&](const TextOption &option) { return option.member(options); },
             [&](const NumberOption &option) {
               return std::to_string(option.member(options));
             },
             [&](const TruthOption &option) -> std::string {
               return option.member(options) ? "true" : "false";
             },
             [&](const ListOption &option) {
               return llvm::join(option.member(options), ":");
             },
             [&](const ChoiceOption &option) {
               return option.get(options).str();
             }},
      row.kind);
}

std::string mlir::diffattn::getKeyOfOptions(const CompileOptions &options) {
  CallerOptions all;
  all.compile = options;
  std::string key;
  for (const OptionRow &row : kOptions)
    if (row.isKeyed && row.name != "target")
      key += (row.name + " " + getText(all, row) + "; ").str();
  return key;
}

std::string mlir::diffattn::describeOptions() {
  std::string text;
  for (const OptionRow &row : kOptions) {
    auto [type, limits] = std::visit(
        OfKind{[](const TextOption &) {
                 return std::pair<StringRef, std::string>("text", "");
               },
               [](const ListOption &) {
                 return std::pair<StringRef, std::string>("list", "");
               },
               [](const NumberOption &number) {
                 return std::pair<StringRef, std::string>(
                     "number", std::to_string(number.least) + ".." +
                                   std::to_string(number.most));
               },
               [](const TruthOption &) {
                 return std::pair<StringRef, std::string>("truth", "");
               },
               [](const ChoiceOption &choice) {
                 return std::pair<StringRef, std::string>(
                     "choice", joinWords(choice.words(), "|", "|"));
               }},
        row.kind);
    text += (row.name + "\t" + type + "\t" + limits + "\t" +
             (row.isKeyed ? "key" : "-") + "\t" + row.help + "\n")
                .str();
  }
  return text;
}
