//===- Inputs.cpp - arguments from the command line -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Inputs.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/Elements.h"

#include "llvm/ADT/StringExtras.h"

#include <limits>
#include <random>

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;

static llvm::Error inputError(StringRef text, const Twine &message) {
  std::string shown =
      text.size() > 80 ? text.take_front(77).str() + "..." : text.str();
  return makeError(ErrorClass::Usage, "--input=" + shown + ": " + message);
}

namespace {
struct ShapedName {
  llvm::SmallVector<int64_t> shape;
  DType dtype = 0;
};
} // namespace

/// "2x3xf32" or "f32".
static llvm::Expected<ShapedName> parseType(StringRef text, StringRef type) {
  ShapedName result;
  llvm::SmallVector<StringRef> parts;
  type.split(parts, 'x');
  // The last part is the element type: 'x' separates sizes, and no type has
  // one.
  std::optional<DType> dtype = parseDType(parts.back());
  if (!dtype)
    return inputError(text, "expected sizes and an element type as in 2x3xf32, "
                            "but got '" +
                                type + "'");
  result.dtype = *dtype;
  for (StringRef part : llvm::drop_end(parts)) {
    int64_t size;
    if (part.getAsInteger(10, size) || size < 0)
      return inputError(text, "expected a size from 0, but got '" + part + "'");
    result.shape.push_back(size);
  }
  if (result.shape.size() > 16)
    return inputError(text, "expected at most 16 sizes, but got " +
                                Twine(result.shape.size()));
  return result;
}

static bool fitsInteger(DType dtype, int64_t value) {
  switch (dtype) {
  case DIFFATTN_BOOL:
    return value == 0 || value == 1;
  case DIFFATTN_U8:
    return value >= 0 && value <= 255;
  case DIFFATTN_I8:
    return value >= -128 && value <= 127;
  case DIFFATTN_I16:
    return value >= -32768 && value <= 32767;
  case DIFFATTN_I32:
    return value >= INT32_MIN && value <= INT32_MAX;
  default:
    return true;
  }
}

/// Whether `value` is in the type's range but for rounding; only an `infinite`
/// one may become infinite.
static bool fitsFloat(DType dtype, double value, bool infinite = false) {
  char stored[8] = {};
  writeElement(stored, dtype, 0, value);
  return infinite == std::isinf(readElement(stored, dtype, 0));
}

/// Writes `element` to place `i`; false if it is no value of the type.
static bool parseElement(StringRef element, HostArray &array, int64_t i) {
  element = element.trim();
  if (isFloatDType(array.dtype)) {
    double value;
    if (element.getAsDouble(value, /*AllowInexact=*/true) ||
        !fitsFloat(array.dtype, value, element.contains_insensitive("inf")))
      return false;
    writeElement(array.data.get(), array.dtype, i, value);
    return true;
  }
  int64_t value;
  if (array.dtype == DIFFATTN_BOOL && (element == "true" || element == "false"))
    value = element == "true";
  else if (element.getAsInteger(10, value) || !fitsInteger(array.dtype, value))
    return false;
  if (array.dtype == DIFFATTN_I64) // f64 does not hold them all
    memcpy(array.data.get() + i * 8, &value, 8);
  else
    writeElement(array.data.get(), array.dtype, i, static_cast<double>(value));
  return true;
}

static llvm::Expected<HostArray> parseElements(StringRef text, StringRef type,
                                               StringRef values) {
  auto parsed = parseType(text, type);
  if (!parsed)
    return parsed.takeError();
  auto array = createArray(parsed->dtype, parsed->shape);
  if (!array)
    return array;
  llvm::SmallVector<StringRef> elements;
  if (!values.trim().empty())
    values.split(elements, ',');
  int64_t count = array->getNumElements(),
          given = static_cast<int64_t>(elements.size());
  const bool oneForAll = given == 1 && count > 0;
  if (given != count && !oneForAll)
    return inputError(text,
                      "expected " +
                          (count ? Twine(count) + " elements, or one for all"
                                 : Twine("no elements")) +
                          ", but got " + Twine(given));
  for (int64_t i = 0; i < count; ++i) {
    StringRef element = elements[given == 1 ? 0 : i];
    if (!parseElement(element, *array, i))
      return inputError(text, "expected a value of " +
                                  stringifyDType(array->dtype) + ", but got '" +
                                  element + "'");
  }
  return array;
}

static llvm::Expected<HostArray> makeRandom(DType dtype,
                                            llvm::ArrayRef<int64_t> shape,
                                            double low, double high,
                                            size_t number, uint64_t seed) {
  auto array = createArray(dtype, shape);
  if (!array)
    return array;
  std::seed_seq sequence{static_cast<uint32_t>(seed),
                         static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(number)};
  std::mt19937_64 random(sequence);
  double width = high - low;
  if (!isFloatDType(dtype))
    width += 1;
  for (int64_t i = 0, e = array->getNumElements(); i < e; ++i) {
    // 53 bits: the same numbers with every standard library.
    double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    double value = low + unit * width;
    writeElement(array->data.get(), dtype, i,
                 isFloatDType(dtype) ? value : std::floor(value));
  }
  return array;
}

/// A random array for an argument whose sizes are all static.
static llvm::Expected<HostArray>
makeDefaultInput(const ValueType &type, size_t number, uint64_t seed) {
  double low = isFloatDType(type.dtype) ? -1 : 0;
  double high = isFloatDType(type.dtype)      ? 1
                : type.dtype == DIFFATTN_BOOL ? 1
                                              : 9;
  return makeRandom(type.dtype, type.shape, low, high, number, seed);
}

static llvm::Expected<HostArray> parseRandom(StringRef text, StringRef rest,
                                             size_t number, uint64_t seed) {
  llvm::SmallVector<StringRef> parts;
  rest.split(parts, ':');
  auto parsed = parseType(text, parts[0]);
  if (!parsed)
    return parsed.takeError();
  ValueType type;
  type.dtype = parsed->dtype;
  type.shape.assign(parsed->shape.begin(), parsed->shape.end());
  if (parts.size() == 1)
    return makeDefaultInput(type, number, seed);
  double low, high;
  if (parts.size() != 3 || parts[1].getAsDouble(low) ||
      parts[2].getAsDouble(high) || !(low <= high) ||
      !std::isfinite(high - low))
    return inputError(text, "expected random:<type> or "
                            "random:<type>:<least>:<most>");
  if (!isFloatDType(type.dtype) &&
      (std::fabs(low) > 0x1p52 || std::fabs(high) > 0x1p52 ||
       !fitsInteger(type.dtype, static_cast<int64_t>(low)) ||
       !fitsInteger(type.dtype, static_cast<int64_t>(high))))
    return inputError(text, "expected bounds that " +
                                stringifyDType(type.dtype) +
                                " holds, of at most 2^52 in magnitude");
  if (isFloatDType(type.dtype) &&
      !(fitsFloat(type.dtype, low) && fitsFloat(type.dtype, high)))
    return inputError(text, "expected bounds that " +
                                stringifyDType(type.dtype) + " holds");
  return makeRandom(type.dtype, type.shape, low, high, number, seed);
}

/// Makes argument `number` of a function.
static llvm::Expected<HostArray> makeInput(StringRef text, size_t number,
                                           uint64_t seed) {
  StringRef rest = text;
  if (rest.consume_front("random:"))
    return parseRandom(text, rest, number, seed);
  if (text.ends_with(".npy"))
    return readNpy(text);
  size_t equals = text.find('=');
  if (equals != StringRef::npos)
    return parseElements(text, text.take_front(equals),
                         text.drop_front(equals + 1));
  return inputError(text, "expected a .npy file, <type>=<elements> or "
                          "random:<type>");
}

/// Says which argument of `entry` an error is about.
static llvm::Error onArgument(StringRef entry, size_t number,
                              llvm::Error error) {
  auto [errorClass, message] = describeError(std::move(error));
  return makeError(errorClass, "argument " + Twine(number) + " of '" + entry +
                                   "': " + message);
}

/// Options that make arguments of these types, if there are any. Sizes that are
/// left open are all the same, as some of them must be equal.
static std::string suggestInputs(llvm::ArrayRef<ValueType> types) {
  constexpr int64_t kOpenSize = 4;
  std::string text = "; for example";
  for (const ValueType &type : types) {
    if (type.kind == ValueType::Unsupported)
      return "";
    std::vector<int64_t> shape(type.shape.begin(), type.shape.end());
    std::replace_if(
        shape.begin(), shape.end(), [](int64_t size) { return size < 0; },
        kOpenSize);
    // Ids, lengths and positions of models take a 1.
    const std::string name = describeType(shape, type.dtype);
    text += isFloatDType(type.dtype) ? " --input=random:" + name
                                     : " --input=" + name + "=1";
  }
  return text;
}

llvm::Expected<std::vector<HostArray>>
mlir::diffattn::makeArguments(const FunctionSignature &function,
                              llvm::ArrayRef<std::string> inputs,
                              uint64_t seed) {
  std::vector<HostArray> arguments;
  if (inputs.empty()) {
    for (auto [i, type] : llvm::enumerate(function.arguments)) {
      bool isStatic =
          type.kind != ValueType::Unsupported &&
          llvm::none_of(type.shape, [](int64_t s) { return s < 0; });
      if (!isStatic)
        return makeError(ErrorClass::Usage,
                         "expected --input for each of the " +
                             Twine(function.arguments.size()) +
                             " arguments of '" + function.name +
                             "', because argument " + Twine(i) + " is " +
                             type.text + suggestInputs(function.arguments));
      auto array = makeDefaultInput(type, i, seed);
      if (!array)
        return onArgument(function.name, i, array.takeError());
      arguments.push_back(std::move(*array));
    }
    return arguments;
  }
  for (auto [i, text] : llvm::enumerate(inputs)) {
    auto array = makeInput(text, i, seed);
    if (!array)
      return onArgument(function.name, i, array.takeError());
    arguments.push_back(std::move(*array));
  }
  if (inputs.size() != function.arguments.size())
    return makeError(ErrorClass::Usage, "'" + function.name + "': expected " +
                                            Twine(function.arguments.size()) +
                                            " arguments, but got " +
                                            Twine(inputs.size()) +
                                            suggestInputs(function.arguments));
  return arguments;
}
