//===- ForeignInput.cpp - input of other tools, and the way here ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ForeignInput.h"

#include "DiffAttn/Runtime/Bundle/BundleFormat.h"
#include "DiffAttn/Runtime/Support/Printable.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;

namespace {
enum class Format {
  Unknown,
  Onnx,
  Zip,
  Pickle,
  Hdf5,
  Gguf,
  Safetensors,
  Elf,
  Bitcode,
  Npy,
  Gzip,
  Json
};

struct DialectAdvice {
  StringRef dialect, advice;
  /// MLIR's own: it is read, and found where nothing lowers it.
  bool isUpstream = false;
};
} // namespace

static constexpr StringRef kConvertWeights =
    "; write its tensors with safetensors.torch.save_file(...), or with "
    "save_pretrained of its library";
static constexpr StringRef kImportOnnx =
    "import the model with diffattn import MODEL.onnx -o model.mlir "
    "--weights=model.safetensors";
static constexpr StringRef kLowerTorch =
    "lower it with torch-mlir-opt "
    "--torchdynamo-export-to-torch-backend-pipeline "
    "--torch-backend-to-linalg-on-tensors-backend-pipeline, or import with "
    "output_type=\"linalg-on-tensors\"";
static constexpr StringRef kImportStableHlo =
    "import it with diffattn import FILE -o model.mlir "
    "--weights=model.safetensors";

static constexpr DialectAdvice kDialects[] = {
    {"torch", kLowerTorch},
    {"torch_c", kLowerTorch},
    {"stablehlo", kImportStableHlo},
    {"chlo", kImportStableHlo},
    {"vhlo", kImportStableHlo},
    {"mhlo", "convert it with mlir-hlo-opt --hlo-legalize-to-stablehlo, then "
             "import it with diffattn import"},
    {"onnx", kImportOnnx},
    {"tm_tensor",
     "torch-mlir makes it of cumsum, sort, scatter and the like; export the "
     "model with what it computes by them (positions, masks) as arguments, or "
     "with a decomposition_table for them (docs/pipelines.md)"},
    {"tosa",
     "lower it with diffattn-opt --tosa-to-linalg-pipeline --tosa-to-tensor "
     "--tosa-to-arith --tosa-to-scf --canonicalize",
     /*isUpstream=*/true},
};

static constexpr StringRef kOpenBundle =
    "if it is a bundle's, look at the bundle with: diffattn info --bundle "
    "FOLDER";

static Format recognize(StringRef bytes) {
  // The length of a header below 4 GB, and the header. First, since the length
  // may have the bytes that others start with.
  if (bytes.size() > 8 && bytes[8] == '{' &&
      bytes.substr(4, 4) == StringRef("\0\0\0\0", 4))
    return Format::Safetensors;
  if (bytes.starts_with("PK\x03\x04"))
    return Format::Zip;
  // The version of the protocol, and an opcode.
  if (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 &&
      bytes[1] <= 5 && bytes[2] != 0)
    return Format::Pickle;
  if (bytes.starts_with("\x89HDF\r\n"))
    return Format::Hdf5;
  if (bytes.starts_with("GGUF"))
    return Format::Gguf;
  // ModelProto: field 1 is the version, then any field of 2 to 8, 14 and 20.
  if (bytes.size() > 2 && bytes[0] == '\x08' && bytes[1] > 0 && bytes[1] < 32 &&
      StringRef("\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2").contains(bytes[2]))
    return Format::Onnx;
  if (bytes.starts_with("\x7f"
                        "ELF"))
    return Format::Elf;
  if (bytes.starts_with("BC\xc0\xde"))
    return Format::Bitcode;
  if (bytes.starts_with("\x93NUMPY"))
    return Format::Npy;
  if (bytes.starts_with("\x1f\x8b"))
    return Format::Gzip;
  // A module may start with a brace too, of `{-#`.
  StringRef text = bytes.ltrim();
  if (text.consume_front("{") && text.ltrim().starts_with("\""))
    return Format::Json;
  return Format::Unknown;
}

static bool hasFile(StringRef folder, StringRef name) {
  llvm::SmallString<128> file = folder;
  llvm::sys::path::append(file, name);
  return llvm::sys::fs::exists(file);
}

std::string mlir::diffattn::adviseOnModuleFile(StringRef bytes) {
  switch (recognize(bytes)) {
  case Format::Unknown:
    return {};
  case Format::Onnx:
    return ("an ONNX model; " + kImportOnnx).str();
  case Format::Zip:
  case Format::Pickle:
    return ("a PyTorch archive; save the model with torch.export.save and "
            "import it with diffattn import MODEL.pt2 -o model.mlir "
            "--weights=model.safetensors");
  case Format::Hdf5:
    return "an HDF5 file; a module is MLIR text or bytecode";
  case Format::Gguf:
    return "a GGUF file; a module is MLIR text or bytecode";
  case Format::Safetensors:
    return "a safetensors file; weights are named by --weights";
  case Format::Elf:
    return ("compiled code (ELF); " + kOpenBundle).str();
  case Format::Bitcode:
    return "bitcode of LLVM; a module is MLIR text or bytecode of MLIR";
  case Format::Npy:
    return "an array of NumPy; arguments are named by --input";
  case Format::Gzip:
    return "a file that gzip has packed; unpack it first";
  case Format::Json:
    return "a JSON file; of a model's folder, write the graph with: diffattn "
           "build FOLDER -o model.mlir";
  }
  llvm_unreachable("unknown format");
}

std::string mlir::diffattn::adviseOnModuleFolder(StringRef path) {
  if (!llvm::sys::fs::is_directory(path))
    return {};
  const std::string name = quoteForShell(path.str());
  if (hasFile(path, bundle::kManifest))
    return "a bundle, which is code; look at it with: diffattn info --bundle " +
           name;
  if (hasFile(path, "config.json"))
    return "a model's folder; write its graph with: diffattn build " + name +
           " -o model.mlir";
  return "a folder";
}

/// Whether the first bytes are ASCII text. As the length of a header they would
/// be beyond all limits.
static bool startsWithText(StringRef bytes) {
  return llvm::all_of(bytes.take_front(8), [](char c) {
    return llvm::isPrint(c) || llvm::isSpace(c);
  });
}

std::string mlir::diffattn::adviseOnWeightFile(StringRef bytes) {
  switch (recognize(bytes)) {
  case Format::Unknown:
    return startsWithText(bytes) ? "text" : "";
  case Format::Safetensors:
    return {};
  case Format::Onnx:
    return ("an ONNX model" + kConvertWeights).str();
  case Format::Zip:
  case Format::Pickle:
    return ("a PyTorch archive" + kConvertWeights).str();
  case Format::Hdf5:
    return ("an HDF5 file" + kConvertWeights).str();
  case Format::Gguf:
    return ("a GGUF file" + kConvertWeights).str();
  case Format::Elf:
    return ("compiled code (ELF); " + kOpenBundle).str();
  case Format::Bitcode:
    return "bitcode of LLVM";
  case Format::Npy:
    return "an array of NumPy; write it with safetensors.numpy.save_file(...)";
  case Format::Gzip:
    return "a file that gzip has packed; unpack it first";
  case Format::Json:
    return "a JSON file";
  }
  llvm_unreachable("unknown format");
}

std::string mlir::diffattn::adviseOnWeightFolder(StringRef folder) {
  for (StringRef name : {"pytorch_model.bin", "pytorch_model.bin.index.json",
                         "model.onnx", "tf_model.h5", "flax_model.msgpack"})
    if (hasFile(folder, name))
      return (name + kConvertWeights).str();
  if (hasFile(folder, bundle::kManifest))
    return "a bundle; name the folder of the model that it was made from";
  return {};
}

std::string mlir::diffattn::adviseOnDialects(StringRef messages, bool wasRead) {
  // Names of ops, types and dialects as messages and quoted lines have them:
  // `torch', 'torch', "torch.aten.mm", !torch.vtensor.
  auto isPart = [](char c) { return llvm::isAlnum(c) || c == '_'; };
  llvm::StringSet<> names;
  for (size_t at = 0; at < messages.size();) {
    size_t end = std::min(messages.find_if_not(isPart, at), messages.size());
    if (end > at && end < messages.size() &&
        StringRef(".'\"").contains(messages[end]))
      names.insert(messages.slice(at, end));
    // A name after a dot is no dialect.
    if (end < messages.size() && messages[end] == '.')
      end = std::min(messages.find_if_not(
                         [&](char c) { return isPart(c) || c == '.'; }, end),
                     messages.size());
    at = end + 1;
  }
  for (const DialectAdvice &entry : kDialects)
    if (entry.isUpstream == wasRead && names.contains(entry.dialect))
      return ("the module holds " + entry.dialect + ": " + entry.advice).str();
  return {};
}
