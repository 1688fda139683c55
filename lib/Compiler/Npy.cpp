//===- Npy.cpp - arrays in .npy files -------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The header of a .npy file is written as a Python dictionary. Only its one
// legal shape is read here: three known keys, each once, with a string, a truth
// value and a tuple of sizes.
//
#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Compiler/InputFile.h"
#include "DiffAttn/Compiler/WriteFile.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;

namespace {

struct Descr {
  StringRef name;
  DType dtype;
};

/// Reads the dictionary; `rest` shrinks as it goes.
struct HeaderReader {
  StringRef rest;

  bool eat(StringRef token) {
    rest = rest.ltrim(" \n");
    return rest.consume_front(token);
  }
  bool string(StringRef &value) {
    rest = rest.ltrim(" \n");
    if (rest.empty() || (rest[0] != '\'' && rest[0] != '"'))
      return false;
    size_t end = rest.find(rest[0], 1);
    if (end == StringRef::npos)
      return false;
    value = rest.slice(1, end);
    rest = rest.drop_front(end + 1);
    return !value.contains('\\');
  }
  bool sizes(std::vector<int64_t> &shape) {
    if (!eat("("))
      return false;
    while (!eat(")")) {
      StringRef digits = rest.take_while(llvm::isDigit);
      uint64_t size;
      if (digits.empty() || digits.getAsInteger(10, size) || size > INT64_MAX ||
          shape.size() == 32)
        return false;
      shape.push_back(static_cast<int64_t>(size));
      rest = rest.drop_front(digits.size());
      if (!eat(",")) {
        // (3) is no tuple: one size needs its comma.
        return shape.size() > 1 && eat(")");
      }
    }
    return true;
  }
};

} // namespace

static constexpr Descr kDescrs[] = {
    {"<f4", DIFFATTN_F32},  {"<f2", DIFFATTN_F16},       {"<V2", DIFFATTN_BF16},
    {"|V2", DIFFATTN_BF16}, {"bfloat16", DIFFATTN_BF16}, {"<f8", DIFFATTN_F64},
    {"<i8", DIFFATTN_I64},  {"<i4", DIFFATTN_I32},       {"|b1", DIFFATTN_BOOL},
    {"|i1", DIFFATTN_I8},   {"|u1", DIFFATTN_U8},        {"<i2", DIFFATTN_I16},
};

static llvm::Error parseHeader(StringRef header, HostArray &array) {
  HeaderReader reader{header};
  bool haveDescr = false, haveOrder = false, haveShape = false;
  auto malformed = [&] {
    return makeError(ErrorClass::Input,
                     "expected a header with 'descr', 'fortran_order' and "
                     "'shape', but got " +
                         header.take_front(120).rtrim());
  };
  if (!reader.eat("{"))
    return malformed();
  while (!reader.eat("}")) {
    StringRef key;
    if (!reader.string(key) || !reader.eat(":"))
      return malformed();
    if (key == "descr" && !haveDescr) {
      StringRef descr;
      if (!reader.string(descr))
        return makeError(ErrorClass::Input,
                         "expected a plain element type in the header, but got "
                         "a structured one");
      const Descr *type = llvm::find_if(
          kDescrs, [&](const Descr &known) { return known.name == descr; });
      if (type == std::end(kDescrs))
        return makeError(ErrorClass::Input,
                         "expected a little-endian element type f16, bf16, "
                         "f32, f64, i8, u8, i16, i32, i64 or bool, but got '" +
                             descr + "'");
      array.dtype = type->dtype;
      haveDescr = true;
    } else if (key == "fortran_order" && !haveOrder) {
      if (reader.eat("True"))
        return makeError(ErrorClass::Input,
                         "expected C order, but got Fortran order (convert "
                         "with numpy.ascontiguousarray)");
      if (!reader.eat("False"))
        return malformed();
      haveOrder = true;
    } else if (key == "shape" && !haveShape) {
      if (!reader.sizes(array.shape))
        return malformed();
      haveShape = true;
    } else {
      return malformed();
    }
    if (!reader.eat(",")) {
      if (!reader.eat("}"))
        return malformed();
      break;
    }
  }
  if (!haveDescr || !haveOrder || !haveShape || !reader.rest.trim().empty())
    return malformed();
  return llvm::Error::success();
}

static llvm::Expected<HostArray> parseNpy(StringRef bytes) {
  auto fail = [](const Twine &message) {
    return makeError(ErrorClass::Input, message);
  };
  if (!bytes.consume_front("\x93NUMPY"))
    return fail("expected a .npy file, but its first bytes are not \\x93NUMPY");
  if (bytes.size() < 4)
    return fail("expected a header, but the file ends after its first bytes");
  unsigned major = static_cast<unsigned char>(bytes[0]);
  unsigned minor = static_cast<unsigned char>(bytes[1]);
  if (major < 1 || major > 3 || minor != 0)
    return fail("expected version 1.0, 2.0 or 3.0 of the format, but got " +
                Twine(major) + "." + Twine(minor));
  size_t lengthBytes = major == 1 ? 2 : 4;
  bytes = bytes.drop_front(2);
  if (bytes.size() < lengthBytes)
    return fail("expected a header, but the file ends after its first bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < lengthBytes; ++i)
    length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i]))
              << (8 * i);
  bytes = bytes.drop_front(lengthBytes);
  if (length > bytes.size())
    return fail("expected a header of " + Twine(length) +
                " bytes, but the file has " + Twine(bytes.size()) + " more");
  HostArray header;
  if (llvm::Error error = parseHeader(bytes.take_front(length), header))
    return error;
  bytes = bytes.drop_front(length);
  std::optional<int64_t> size = getByteSize(header.shape, header.dtype);
  if (!size || static_cast<uint64_t>(*size) != bytes.size())
    return fail(
        "expected " + (size ? Twine(*size).str() : std::string("countless")) +
        " bytes of data for " + describeType(header.shape, header.dtype) +
        ", but got " + Twine(bytes.size()));
  llvm::Expected<HostArray> array = createArray(header.dtype, header.shape);
  if (!array)
    return array.takeError();
  memcpy(array->data.get(), bytes.data(), bytes.size());
  if (array->dtype == DIFFATTN_BOOL)
    for (char &byte : llvm::MutableArrayRef<char>(array->data.get(), *size))
      byte = byte != 0; // compiled code reads one bit of it
  return array;
}

llvm::Expected<HostArray> mlir::diffattn::createArray(DType dtype,
                                                      SizeList shape) {
  HostArray array;
  if (Failure failure = array.allocate(dtype, shape))
    return toError(failure);
  return array;
}

llvm::Expected<HostArray> mlir::diffattn::readNpy(StringRef path) {
  // Its size is not limited: the header must account for every byte.
  auto buffer = readRegularFile(path, INT64_MAX, ErrorClass::Input);
  if (!buffer)
    return buffer.takeError();
  llvm::Expected<HostArray> array = parseNpy((*buffer)->getBuffer());
  if (!array) {
    auto [errorClass, message] = describeError(array.takeError());
    return makeError(errorClass, path + ": " + message);
  }
  return array;
}

llvm::Error mlir::diffattn::writeNpy(StringRef path, const void *data,
                                     DType dtype, SizeList shape) {
  std::string dictionary;
  llvm::raw_string_ostream os(dictionary);
  const Descr *descr = llvm::find_if(
      kDescrs, [&](const Descr &known) { return known.dtype == dtype; });
  os << "{'descr': '" << descr->name << "', 'fortran_order': False, 'shape': (";
  llvm::interleave(shape, os, ", ");
  os << (shape.size() == 1 ? ",), }" : "), }");
  // Data starts at a multiple of 64: magic, version and length take 10.
  dictionary.append(63 - (10 + dictionary.size()) % 64, ' ');
  dictionary += '\n';
  std::string start("\x93NUMPY\x01\x00", 8);
  start += static_cast<char>(dictionary.size() & 0xff);
  start += static_cast<char>(dictionary.size() >> 8);
  int64_t bytes = *getByteSize(shape, dtype);
  return writeFile(path, {start, dictionary,
                          StringRef(static_cast<const char *>(data), bytes)});
}
