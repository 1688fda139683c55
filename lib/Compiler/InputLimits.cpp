//===- InputLimits.cpp - limits on modules that are read ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "InputLimits.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/AttrTypeSubElements.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/SymbolTable.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MathExtras.h"

#include <utility>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::StringRef;
using llvm::Twine;

static constexpr int64_t kMaxNesting = 256;
static constexpr int64_t kMaxAliasParts = 1'000'000;
static constexpr unsigned kMaxIntegerBits = 128;
static constexpr int64_t kMaxVectorElements = 65536;
/// An object's data and code must lie within 2 GiB of each other.
static constexpr int64_t kMaxConstantBytes = int64_t(1) << 30;

namespace {

/// Goes over MLIR text once and follows brackets, minus signs, the aliases
/// `#name = ...` and `!name = ...`, and properties of linalg's ops. It need not
/// understand the rest: where it counts too much, it is by the few brackets of
/// one line.
class TextScan {
public:
  explicit TextScan(StringRef text) : text(text) {}

  std::string run() {
    while (at < text.size() && fault.empty())
      step();
    return std::move(fault);
  }

private:
  /// An alias: levels that its value nests, and parts that printing it whole
  /// would write.
  struct Alias {
    int64_t levels = 0, parts = 1;
  };

  void step() {
    char c = text[at];
    if (llvm::isSpace(c)) {
      lineStarts |= c == '\n' || c == '\r';
      ++at;
      return;
    }
    if (text.substr(at).starts_with("//")) {
      // As for MLIR's lexer, either character ends a line.
      at = std::min(text.find_first_of("\n\r", at), text.size());
      return;
    }
    // An op starts a line, and so ends the value of the alias above it; what
    // follows a colon or the like is still that value.
    if (lineStarts && depth == 0 && !StringRef(":=,").contains(last) &&
        (isNamePart(c) || StringRef("%\"^").contains(c)))
      current = nullptr;
    lineStarts = false;
    const bool ofLinalg = std::exchange(followsLinalg, false);
    if (std::exchange(beginsProperties, ofLinalg && c == '<') && c != '{') {
      fault = ("expected properties of an op of linalg in braces, but got "
               "others at byte " +
               Twine(at))
                  .str();
      return;
    }
    last = text.substr(at).starts_with("->") ? ':' : c;
    if (c == '"') {
      skipString();
    } else if ((c == '#' || c == '!') && at + 1 < text.size() &&
               isNamePart(text[at + 1])) {
      readAlias();
    } else if (isNamePart(c)) {
      const size_t begin = at;
      at = std::min(text.find_if_not(isNamePart, at), text.size());
      // A number may stand before it.
      followsLinalg = text.slice(begin, at).contains("linalg.");
    } else if (c == '-' && !text.substr(at).starts_with("->")) {
      ++at;
      ++minuses;
      reach(depth + minuses, "minus signs");
      return; // further ones add to it
    } else {
      readPunctuation(c);
    }
    minuses = 0;
  }

  void readPunctuation(char c) {
    // Neither arrows nor comparisons open or close.
    for (StringRef sign : {"->", ">=", "<=", "=>"})
      if (text.substr(at).starts_with(sign)) {
        at += 2;
        return;
      }
    ++at;
    if (StringRef("([{<").contains(c)) {
      ++depth;
      reach(depth, "brackets");
    } else if (StringRef(")]}>").contains(c)) {
      depth = std::max<int64_t>(0, depth - 1);
    }
  }

  void readAlias() {
    size_t end = std::min(text.find_if_not(isNamePart, at + 1), text.size());
    StringRef name = text.slice(at, end);
    at = end;
    StringRef after = text.substr(at).ltrim();
    if (depth == 0 && after.starts_with("=")) {
      current = &aliases[name];
      *current = Alias();
      at += text.substr(at).find('=') + 1;
      last = '=';
      return;
    }
    auto it = aliases.find(name);
    if (it == aliases.end())
      return;
    const Alias used = it->second;
    reach(depth + used.levels + 1, "aliases");
    if (!current)
      return;
    current->parts += used.parts;
    if (current->parts > kMaxAliasParts)
      fault =
          ("expected aliases that stand for at most " + Twine(kMaxAliasParts) +
           " parts, but got one for more at byte " + Twine(at))
              .str();
  }

  void skipString() {
    // A string ends with its line at the latest.
    for (++at; at < text.size(); ++at) {
      if (text[at] == '\\')
        ++at;
      else if (text[at] == '"' || text[at] == '\n')
        break;
    }
    at = std::min(at + 1, text.size());
  }

  /// Notes that something `levels` deep is here.
  void reach(int64_t levels, StringRef what) {
    if (current)
      current->levels = std::max(current->levels, levels);
    if (levels > kMaxNesting)
      fault = ("expected at most " + Twine(kMaxNesting) + " levels of " + what +
               ", but got more at byte " + Twine(at))
                  .str();
  }

  static bool isNamePart(char c) {
    return llvm::isAlnum(c) || c == '_' || c == '$' || c == '.';
  }

  StringRef text;
  size_t at = 0;
  /// The first character of the token before, an arrow's as a colon.
  char last = '\n';
  bool lineStarts = true;
  /// Whether the token before is an op of linalg, or the `<` behind one. Its
  /// parser takes what follows for a dictionary, whatever it is.
  bool followsLinalg = false, beginsProperties = false;
  int64_t depth = 0, minuses = 0;
  llvm::StringMap<Alias> aliases;
  /// The alias whose value is being read.
  Alias *current = nullptr;
  std::string fault;
};

/// Says what is beyond the limits in types and attributes; each is looked at
/// once.
class SizeCheck {
public:
  SizeCheck() {
    walker.addWalk([this](IntegerType type) { return checkInteger(type); });
    walker.addWalk([this](ShapedType type) { return checkShape(type); });
    // The walk does not enter the type of such a constant.
    walker.addWalk([this](DenseElementsAttr attr) {
      ShapedType type = attr.getType();
      if (auto integer = dyn_cast<IntegerType>(type.getElementType()))
        if (checkInteger(integer).wasInterrupted())
          return WalkResult::interrupt();
      if (checkShape(type).wasInterrupted())
        return WalkResult::interrupt();
      // A splat is short in the text and long in the object.
      if (*countBits(type) / 8 > kMaxConstantBytes)
        return stop("constants of at most " + Twine(kMaxConstantBytes) +
                        " bytes",
                    type);
      return WalkResult::advance();
    });
  }

  LogicalResult check(Operation *op) {
    auto walkAll = [&](TypeRange types) {
      for (Type type : types)
        if (walker.walk(type).wasInterrupted())
          return true;
      return false;
    };
    bool isBeyond = walker.walk(op->getAttrDictionary()).wasInterrupted() ||
                    walkAll(op->getResultTypes());
    for (Region &region : op->getRegions())
      for (Block &block : region)
        isBeyond = isBeyond || walkAll(block.getArgumentTypes());
    if (isBeyond)
      return op->emitError(fault);
    return success();
  }

private:
  WalkResult checkInteger(IntegerType type) {
    if (type.getWidth() > kMaxIntegerBits)
      return stop("integers of at most " + Twine(kMaxIntegerBits) + " bits",
                  type);
    return WalkResult::advance();
  }

  WalkResult checkShape(ShapedType type) {
    if (!countBits(type))
      return stop("a type whose size in bits is below 2^63", type);
    if (isa<VectorType>(type) && type.getNumElements() > kMaxVectorElements)
      return stop("vectors of at most " + Twine(kMaxVectorElements) +
                      " elements",
                  type);
    return WalkResult::advance();
  }

  /// Bits of all elements; nothing if an i64 cannot count them. A dynamic size
  /// counts as one element.
  static std::optional<int64_t> countBits(ShapedType type) {
    int64_t bits = 64;
    if (type.getElementType().isIntOrFloat())
      bits = type.getElementTypeBitWidth();
    if (!type.hasRank())
      return bits;
    // A size of zero must not hide an overflow that strides would meet.
    for (int64_t size : type.getShape())
      if (!ShapedType::isDynamic(size) && size != 0 &&
          llvm::MulOverflow(bits, size, bits))
        return std::nullopt;
    return bits;
  }

  WalkResult stop(const Twine &expected, Type got) {
    std::string text;
    llvm::raw_string_ostream(text) << got;
    fault = ("expected " + expected + ", but got " + text).str();
    return WalkResult::interrupt();
  }

  AttrTypeWalker walker;
  std::string fault;
};

} // namespace

std::string mlir::diffattn::findTextBeyondLimits(StringRef text) {
  return TextScan(text).run();
}

LogicalResult mlir::diffattn::checkSizeLimits(ModuleOp module) {
  SizeCheck sizes;
  WalkResult walked = module->walk<WalkOrder::PreOrder>([&](Operation *op) {
    return failed(sizes.check(op)) ? WalkResult::interrupt()
                                   : WalkResult::advance();
  });
  return failure(walked.wasInterrupted());
}

LogicalResult mlir::diffattn::checkCalls(ModuleOp module) {
  // Each function once, after those that it calls; without recursion of our
  // own, for chains of calls may be long.
  enum class State { Open, Done };
  struct Frame {
    func::FuncOp function;
    SmallVector<func::CallOp> calls;
  };
  SymbolTable symbols(module);
  llvm::DenseMap<Operation *, State> states;
  for (auto start : module.getOps<func::FuncOp>()) {
    SmallVector<Frame> path;
    auto enter = [&](func::FuncOp function) {
      states[function] = State::Open;
      Frame frame{function, {}};
      function.walk([&](func::CallOp call) { frame.calls.push_back(call); });
      path.push_back(std::move(frame));
    };
    if (!states.contains(start))
      enter(start);
    while (!path.empty()) {
      if (path.back().calls.empty()) {
        states[path.pop_back_val().function] = State::Done;
        continue;
      }
      func::CallOp call = path.back().calls.pop_back_val();
      auto callee = symbols.lookup<func::FuncOp>(call.getCallee());
      if (!callee)
        continue;
      auto known = states.find(callee);
      if (known == states.end())
        enter(callee);
      else if (known->second == State::Open)
        return call.emitError("expected functions that do not call themselves, "
                              "but '")
               << call.getCallee() << "' does";
    }
  }
  return success();
}
