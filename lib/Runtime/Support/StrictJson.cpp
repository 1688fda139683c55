//===- StrictJson.cpp - JSON that is read without leniency ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Support/StrictJson.h"

#include <charconv>
#include <set>

using namespace diffattn_rt;

static constexpr int kMaxDepth = 64;

static bool isDigit(char c) { return c >= '0' && c <= '9'; }

static bool isWordCharacter(char c) {
  return isDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         c == '+' || c == '-' || c == '.';
}

/// The leading characters of `text` that `belongs` takes.
template <typename Predicate>
static std::string_view takeWhile(std::string_view text, Predicate belongs) {
  size_t count = 0;
  while (count < text.size() && belongs(text[count]))
    ++count;
  return text.substr(0, count);
}

bool StrictJson::fail(const std::string &message) {
  if (error.empty())
    error = message + " at byte " + std::to_string(size - rest.size());
  return false;
}

void StrictJson::skipSpace() {
  size_t start = rest.find_first_not_of(" \t\r\n");
  rest.remove_prefix(start == std::string_view::npos ? rest.size() : start);
}

bool StrictJson::isNext(char c) {
  skipSpace();
  return !rest.empty() && rest[0] == c;
}

bool StrictJson::eat(char c) {
  if (!isNext(c))
    return false;
  rest.remove_prefix(1);
  return true;
}

bool StrictJson::eatText(std::string_view text) {
  if (rest.substr(0, text.size()) != text)
    return false;
  rest.remove_prefix(text.size());
  return true;
}

std::string_view StrictJson::word() {
  skipSpace();
  return takeWhile(rest, isWordCharacter);
}

bool StrictJson::object(const std::function<bool(std::string_view)> &member) {
  if (!eat('{'))
    return fail("expected '{'");
  if (++depth > kMaxDepth)
    return fail("expected less nesting");
  std::set<std::string> keys;
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

bool StrictJson::array(const std::function<bool()> &element) {
  if (!eat('['))
    return fail("expected '['");
  if (++depth > kMaxDepth)
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
  std::string_view digits = rest.substr(0, 4);
  auto [end, status] = std::from_chars(
      digits.data(), digits.data() + digits.size(), value, /*base=*/16);
  if (digits.size() != 4 || status != std::errc() || end != digits.data() + 4)
    return fail("expected four hexadecimal digits");
  rest.remove_prefix(4);
  return true;
}

static void appendUTF8(unsigned codePoint, std::string &to) {
  auto byte = [&](unsigned bits) { to += static_cast<char>(bits); };
  if (codePoint < 0x80)
    return byte(codePoint);
  if (codePoint < 0x800) {
    byte(0xc0 | codePoint >> 6);
  } else {
    if (codePoint < 0x10000) {
      byte(0xe0 | codePoint >> 12);
    } else {
      byte(0xf0 | codePoint >> 18);
      byte(0x80 | (codePoint >> 12 & 0x3f));
    }
    byte(0x80 | (codePoint >> 6 & 0x3f));
  }
  byte(0x80 | (codePoint & 0x3f));
}

bool StrictJson::string(std::string &value) {
  if (!eat('"'))
    return fail("expected a string");
  value.clear();
  while (!rest.empty()) {
    char c = rest[0];
    rest.remove_prefix(1);
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
    rest.remove_prefix(1);
    static constexpr std::string_view from = "\"\\/bfnrt",
                                      to = "\"\\/\b\f\n\r\t";
    if (size_t i = from.find(escape); i != std::string_view::npos) {
      value += to[i];
      continue;
    }
    unsigned unit, low;
    if (escape != 'u')
      return fail("expected a known escape");
    if (!hexQuad(unit))
      return false;
    if (unit >= 0xd800 && unit < 0xdc00) {
      if (!eatText("\\u") || !hexQuad(low) || low < 0xdc00 || low > 0xdfff)
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
  std::string_view digits = takeWhile(rest, isDigit);
  std::string_view after = rest.substr(digits.size());
  bool plain =
      after.empty() || std::string_view(".eE+-").find(after[0]) == after.npos;
  if (digits.empty() || !plain || (digits.size() > 1 && digits[0] == '0'))
    return fail("expected a plain non-negative integer");
  auto [end, status] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (status != std::errc() || value > INT64_MAX)
    return fail("expected an integer below 2^63");
  rest = after;
  return true;
}

bool StrictJson::signedInteger(int64_t &value) {
  const bool isNegative = eat('-');
  uint64_t magnitude;
  if (isNegative && (rest.empty() || !isDigit(rest[0])))
    return fail("expected a plain integer");
  if (!integer(magnitude))
    return false;
  value = isNegative ? -static_cast<int64_t>(magnitude)
                     : static_cast<int64_t>(magnitude);
  return true;
}

bool StrictJson::boolean(bool &value) {
  value = word() == "true";
  if (!value && word() != "false")
    return fail("expected true or false");
  rest.remove_prefix(word().size());
  return true;
}

bool StrictJson::eatNull() {
  bool isNull = word() == "null";
  if (isNull)
    rest.remove_prefix(4);
  return isNull;
}

/// Whether `text` is a number as JSON writes it.
static bool isNumber(std::string_view text) {
  auto digits = [&] {
    size_t count = takeWhile(text, isDigit).size();
    text.remove_prefix(count);
    return count > 0;
  };
  auto eat = [&](std::string_view any) {
    bool isMatch = !text.empty() && any.find(text[0]) != any.npos;
    text.remove_prefix(isMatch);
    return isMatch;
  };
  eat("-");
  bool leadingZero = text.size() > 1 && text[0] == '0' && isDigit(text[1]);
  if (leadingZero || !digits() || (eat(".") && !digits()))
    return false;
  if (eat("eE")) {
    eat("+-");
    if (!digits())
      return false;
  }
  return text.empty();
}

bool StrictJson::skip() {
  std::string ignored;
  if (isNext('{'))
    return object([&](std::string_view) { return skip(); });
  if (isNext('['))
    return array([&] { return skip(); });
  if (isNext('"'))
    return string(ignored);
  std::string_view next = word();
  bool known = next == "true" || next == "false" || next == "null";
  if (!known && !isNumber(next))
    return fail("expected a value");
  rest.remove_prefix(next.size());
  return true;
}

bool StrictJson::end() {
  skipSpace();
  return rest.empty() || fail("expected nothing more");
}
