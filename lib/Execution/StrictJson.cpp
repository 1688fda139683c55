//===- StrictJson.cpp - JSON as weight files may use it -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "StrictJson.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/ConvertUTF.h"

using namespace mlir::diffattn;
using llvm::StringRef;

static constexpr int kMostDepth = 64;

bool StrictJson::fail(const llvm::Twine &message) {
  if (error.empty())
    error = (message + " at byte " + llvm::Twine(size - rest.size())).str();
  return false;
}

bool StrictJson::isNext(char c) {
  skipSpace();
  return !rest.empty() && rest[0] == c;
}

bool StrictJson::eat(char c) {
  if (!isNext(c))
    return false;
  rest = rest.drop_front();
  return true;
}

bool StrictJson::object(llvm::function_ref<bool(StringRef)> member) {
  if (!eat('{'))
    return fail("expected '{'");
  if (++depth > kMostDepth)
    return fail("expected less nesting");
  llvm::StringSet<> keys;
  if (!eat('}')) {
    do {
      std::string key;
      if (!string(key))
        return false;
      if (!keys.insert(key).second)
        return fail("expected each name once, but got '" + key + "' twice");
      if (!eat(':'))
        return fail("expected ':'");
      if (!member(key))
        return fail("expected a value");
    } while (eat(','));
    if (!eat('}'))
      return fail("expected ',' or '}'");
  }
  --depth;
  return true;
}

bool StrictJson::array(llvm::function_ref<bool()> element) {
  if (!eat('['))
    return fail("expected '['");
  if (++depth > kMostDepth)
    return fail("expected less nesting");
  if (!eat(']')) {
    do {
      if (!element())
        return fail("expected a value");
    } while (eat(','));
    if (!eat(']'))
      return fail("expected ',' or ']'");
  }
  --depth;
  return true;
}

bool StrictJson::hexQuad(unsigned &value) {
  StringRef digits = rest.take_front(4);
  if (digits.size() != 4 || !llvm::all_of(digits, llvm::isHexDigit))
    return fail("expected four hexadecimal digits");
  digits.getAsInteger(16, value);
  rest = rest.drop_front(4);
  return true;
}

static void appendUTF8(unsigned codePoint, std::string &to) {
  char buffer[UNI_MAX_UTF8_BYTES_PER_CODE_POINT];
  char *end = buffer;
  llvm::ConvertCodePointToUTF8(codePoint, end);
  to.append(buffer, end);
}

bool StrictJson::string(std::string &value) {
  if (!eat('"'))
    return fail("expected a string");
  value.clear();
  while (!rest.empty()) {
    char c = rest[0];
    rest = rest.drop_front();
    if (c == '"')
      return true;
    if (static_cast<unsigned char>(c) < 0x20)
      return fail("expected no control character in a string");
    if (c != '\\') {
      value += c;
      continue;
    }
    if (rest.empty())
      break;
    char escape = rest[0];
    rest = rest.drop_front();
    static constexpr StringRef from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (size_t i = from.find(escape); i != StringRef::npos) {
      value += to[i];
      continue;
    }
    unsigned unit, low;
    if (escape != 'u')
      return fail("expected a known escape");
    if (!hexQuad(unit))
      return false;
    if (unit >= 0xd800 && unit < 0xdc00) {
      if (!rest.consume_front("\\u") || !hexQuad(low) || low < 0xdc00 ||
          low > 0xdfff)
        return fail("expected the second half of a surrogate pair");
      unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    } else if (unit >= 0xdc00 && unit < 0xe000) {
      return fail("expected the first half of a surrogate pair");
    }
    appendUTF8(unit, value);
  }
  return fail("expected the string to end");
}

bool StrictJson::integer(uint64_t &value) {
  skipSpace();
  StringRef digits = rest.take_while(llvm::isDigit);
  StringRef after = rest.drop_front(digits.size());
  bool plain = after.empty() || !StringRef(".eE+-").contains(after[0]);
  if (digits.empty() || !plain || (digits.size() > 1 && digits[0] == '0'))
    return fail("expected a plain non-negative integer");
  if (digits.getAsInteger(10, value) || value > INT64_MAX)
    return fail("expected an integer below 2^63");
  rest = after;
  return true;
}

bool StrictJson::skip() {
  std::string ignored;
  if (isNext('{'))
    return object([&](StringRef) { return skip(); });
  if (isNext('['))
    return array([&] { return skip(); });
  if (isNext('"'))
    return string(ignored);
  StringRef word = rest.take_while([](char c) {
    return llvm::isAlnum(c) || c == '+' || c == '-' || c == '.';
  });
  double number;
  bool known = word == "true" || word == "false" || word == "null";
  if (word.empty() || (!known && word.getAsDouble(number)))
    return fail("expected a value");
  rest = rest.drop_front(word.size());
  return true;
}

bool StrictJson::end() {
  skipSpace();
  return rest.empty() || fail("expected nothing more");
}
