//===- WriteBundle.cpp - writes compiled models for other machines --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BundleLibrary.h"
#include "Codegen.h"
#include "WriteSignature.h"

#include "DiffAttn/Compiler/Bundle.h"
#include "DiffAttn/Compiler/CompiledProgram.h"
#include "DiffAttn/Compiler/ExecutionTarget.h"
#include "DiffAttn/Compiler/InputFile.h"
#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Compiler/UnfinishedFiles.h"
#include "DiffAttn/Compiler/WriteFile.h"
#include "DiffAttn/Runtime/Bundle/BundleFormat.h"
#include "DiffAttn/Target/CpuTarget.h"
#include "DiffAttn/Target/GpuTarget.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/TargetParser/X86TargetParser.h"

#include <deque>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;
namespace fs = llvm::sys::fs;
namespace path = llvm::sys::path;
namespace json = llvm::json;

static llvm::Error outputError(const Twine &where, std::error_code ec) {
  return makeError(ErrorClass::Output,
                   where + ": expected to write it, but got: " + ec.message());
}

static std::string pathTo(StringRef folder, StringRef name) {
  llvm::SmallString<128> result = folder;
  path::append(result, name);
  return result.str().str();
}

llvm::Expected<std::vector<std::string>>
mlir::diffattn::getBundleTargets(StringRef text) {
  if (text.contains('@'))
    return makeError(ErrorClass::Usage,
                     "expected a target without the number of a GPU, which is "
                     "said when the bundle is opened, but got '" +
                         text + "'");
  auto [device, detail] = text.split(':');
  auto [chips, isa] = detail.split('/');
  llvm::SmallVector<StringRef> names; // one, if there are none
  chips.split(names, ',');
  std::vector<std::string> targets;
  for (StringRef chip : names) {
    std::string one =
        detail.empty() ? device.str() : (device + ":" + chip).str();
    if (chips.size() != detail.size())
      one += ("/" + isa).str();
    llvm::Expected<ExecutionTarget> target = parseTarget(one);
    if (!target)
      return target.takeError();
    // "native" code would need every feature of this one CPU.
    StringRef named = getCpuTarget(target->isa)->name;
    if (target->device == ExecutionDevice::Cpu) {
      one = ("cpu:" + named).str();
    } else {
      // The chip has no letter after its number where the code uses no feature
      // of that letter.
      std::string error;
      const std::string chip = getGpuTarget(target->chip, error)->binaryChip;
      one = (device + ":" + chip + "/" + named).str();
    }
    if (llvm::is_contained(targets, one) ||
        (!targets.empty() && target->device == ExecutionDevice::Cpu))
      return makeError(ErrorClass::Usage,
                       "expected each chip once, but got '" + text + "'");
    targets.push_back(std::move(one));
  }
  return targets;
}

/// Features of the instruction set beyond those of any x86-64.
static std::vector<std::string> getNeededFeatures(StringRef isa) {
  llvm::SmallVector<StringRef> base, all;
  llvm::X86::getFeaturesForCPU("x86-64", base);
  llvm::X86::getFeaturesForCPU(getCodegenCpu(isa).cpu, all);
  const CpuTarget target = *getCpuTarget(isa);
  for (StringRef feature : target.features)
    all.push_back(feature.drop_front()); // a plus sign
  std::vector<std::string> needed;
  for (StringRef feature : all)
    if (!llvm::is_contained(base, feature))
      needed.push_back(feature.str());
  llvm::sort(needed);
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  return needed;
}

namespace {

struct OwnFile {
  std::string path;
  uint64_t bytes;
  std::string sha256;
};

struct UsedWeightFile {
  size_t number;
  std::string path; // as the manifest has it
  uint64_t bytes, headerBytes;
  std::string headerSha256;
};

/// A bundle on its way to the disk: a folder beside its place, or in it if that
/// is an empty folder, removed if it does not get there.
class BundleWriter {
public:
  BundleWriter(llvm::ArrayRef<CompiledModule> modules,
               llvm::ArrayRef<ExecutionTarget> targets,
               const WeightFiles &files, const BundleOptions &options,
               StringRef directory)
      : modules(modules), targets(targets), files(files), options(options),
        directory(directory) {
    while (this->directory.size() > 1 && this->directory.back() == '/')
      this->directory.pop_back();
    // A link to an empty folder stays, and the bundle lies where it leads.
    llvm::SmallString<128> real;
    if (fs::is_symlink_file(this->directory) &&
        !fs::real_path(this->directory, real))
      this->directory = real.str().str();
  }
  ~BundleWriter() {
    if (!part.empty())
      fs::remove_directories(part);
  }

  llvm::Error write();

private:
  llvm::Error makeFolder();
  llvm::Error takePlace();
  llvm::Error addFile(StringRef name, StringRef contents);
  llvm::Error addCode(const CompiledModule &module,
                      const ExecutionTarget &target);
  llvm::Error addModelFiles();
  llvm::Error addWeightFiles();
  llvm::Error addWeightFile(const FileTensor &tensor);
  std::string makeManifest() const;
  void writeWeights(json::OStream &out) const;
  void writeDevice(json::OStream &out, const DeviceCode &code,
                   StringRef chip) const;
  /// Chips differ in their code, not in what it is called with.
  const Signature &signature() const { return modules.front().signature; }

  llvm::ArrayRef<CompiledModule> modules;
  llvm::ArrayRef<ExecutionTarget> targets;
  const WeightFiles &files;
  const BundleOptions &options;
  std::string directory;
  /// Whether the place is a folder already, which stays the same one.
  bool fillsFolder = false;
  std::string part;
  /// The folder of the bundle, those in it and their files.
  std::deque<UnfinishedFile> unfinished;
  std::vector<OwnFile> own;
  std::vector<const FileTensor *> tensors;
  llvm::MapVector<StringRef, UsedWeightFile> weightFiles; // by tensor's file
};

} // namespace

llvm::Error BundleWriter::makeFolder() {
  if (directory.empty() || directory == "-")
    return makeError(ErrorClass::Usage,
                     "expected -o with a folder for the bundle");
  std::error_code ec;
  bool isEmpty =
      fs::is_directory(directory) &&
      fs::directory_iterator(directory, ec) == fs::directory_iterator() && !ec;
  if (fs::exists(directory) && !isEmpty)
    return makeError(ErrorClass::Output,
                     directory + ": expected a folder that is not there yet, "
                                 "or an empty one");
  fillsFolder = isEmpty;
  StringRef parent =
      fillsFolder ? StringRef(directory) : path::parent_path(directory);
  const std::string unique =
      pathTo(parent, makeUniqueName("." + path::filename(directory) + ".", ""));
  unfinished.emplace_back(unique);
  if ((ec = fs::create_directory(unique, /*IgnoreExisting=*/false,
                                 fs::perms::all_all)))
    return outputError(directory, ec);
  part = unique;
  return llvm::Error::success();
}

llvm::Error BundleWriter::takePlace() {
  auto rename = [&](const llvm::Twine &from, const llvm::Twine &to) {
    std::error_code ec = fs::rename(from, to);
    return ec ? outputError(directory, ec) : llvm::Error::success();
  };
  if (!fillsFolder) {
    if (llvm::Error error = rename(part, directory))
      return error;
    part.clear();
    return llvm::Error::success();
  }
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator it(part, ec), end; it != end && !ec;
       it.increment(ec))
    names.push_back(path::filename(it->path()).str());
  if (ec)
    return outputError(directory, ec);
  // It is a bundle once it has a manifest.
  llvm::sort(names, [](const std::string &a, const std::string &b) {
    return std::pair(a == bundle::kManifest, a) <
           std::pair(b == bundle::kManifest, b);
  });
  for (const std::string &name : names)
    if (llvm::Error error = rename(pathTo(part, name), pathTo(directory, name)))
      return error;
  return llvm::Error::success();
}

llvm::Error BundleWriter::addFile(StringRef name, StringRef contents) {
  own.push_back({name.str(), contents.size(), sha256Text(contents)});
  unfinished.emplace_back(pathTo(part, name));
  return writeFile(pathTo(part, name), {contents});
}

llvm::Error BundleWriter::addCode(const CompiledModule &module,
                                  const ExecutionTarget &target) {
  // Code for the CPU alone lies at the top.
  StringRef folder = module.device ? StringRef(target.chip) : "";
  if (!folder.empty()) {
    unfinished.emplace_back(pathTo(part, folder));
    if (std::error_code ec = fs::create_directory(pathTo(part, folder)))
      return outputError(pathTo(directory, folder), ec);
  }
  auto library = linkBundleLibrary(module, options.linker);
  if (!library)
    return library.takeError();
  if (llvm::Error error = addFile(pathTo(folder, bundle::kLibrary), *library))
    return error;
  if (!module.device)
    return llvm::Error::success();
  if (module.device->hostAccess)
    return makeError(ErrorClass::Compile,
                     "expected a module of which nothing but control flow is "
                     "left for the host, to make a bundle for a GPU");
  for (const DeviceCode::Image &image : module.device->images)
    if (llvm::Error error =
            addFile(pathTo(folder, bundle::kImages[image.format]), image.data))
      return error;
  if (module.device->constants.empty())
    return llvm::Error::success();
  return addFile(pathTo(folder, bundle::kConstants),
                 llvm::join(module.device->constants, ""));
}

llvm::Error BundleWriter::addModelFiles() {
  if (options.modelFolder.empty())
    return llvm::Error::success();
  for (StringRef name :
       {"config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja"}) {
    std::string from = pathTo(options.modelFolder, name);
    if (!fs::exists(from))
      continue;
    auto contents =
        readRegularFile(from, kMaxModelFileBytes, ErrorClass::Weights);
    if (!contents)
      return contents.takeError();
    if (llvm::Error error = addFile(name, (*contents)->getBuffer()))
      return error;
  }
  return llvm::Error::success();
}

/// The path of `file` as seen from `folder`; both are absolute and real.
static std::string relativeTo(StringRef file, StringRef folder) {
  auto a = path::begin(file), aEnd = path::end(file);
  auto b = path::begin(folder), bEnd = path::end(folder);
  while (a != aEnd && b != bEnd && *a == *b) {
    ++a;
    ++b;
  }
  llvm::SmallString<128> result;
  for (; b != bEnd; ++b)
    path::append(result, "..");
  for (; a != aEnd; ++a)
    path::append(result, *a);
  return result.str().str();
}

/// `file` with the links of its folder followed, so that ".." leads back.
static std::error_code realFolder(StringRef file, std::string &result) {
  StringRef parent = path::parent_path(file);
  llvm::SmallString<128> real;
  if (std::error_code ec = fs::real_path(parent.empty() ? "." : parent, real))
    return ec;
  path::append(real, path::filename(file));
  result = real.str().str();
  return {};
}

llvm::Error BundleWriter::addWeightFile(const FileTensor &tensor) {
  UsedWeightFile used;
  used.number = weightFiles.size();
  // The mapping starts with the length of the header.
  const char *start = tensor.data - tensor.offset;
  used.headerBytes = 8 + llvm::support::endian::read64le(start);
  used.headerSha256 = sha256Text(StringRef(start, used.headerBytes));
  if (std::error_code ec = fs::file_size(tensor.file, used.bytes))
    return outputError(tensor.file, ec);
  std::string name = path::filename(tensor.file).str();
  for (const auto &[file, other] : weightFiles)
    if (path::filename(file) == name)
      return makeError(ErrorClass::Weights,
                       "expected weight files of different names for a "
                       "bundle, but got " +
                           file + " and " + tensor.file);
  if (!options.copyWeights) {
    std::string from, to;
    std::error_code ec = realFolder(directory, from);
    if (!ec)
      ec = realFolder(tensor.file, to);
    if (ec)
      return outputError(tensor.file, ec);
    used.path = relativeTo(to, from);
  } else {
    std::string folder = pathTo(part, bundle::kWeightsFolder);
    used.path = pathTo(bundle::kWeightsFolder, name);
    unfinished.emplace_back(folder);
    unfinished.emplace_back(pathTo(folder, name));
    std::error_code ec = fs::create_directory(folder, /*IgnoreExisting=*/true,
                                              fs::perms::all_all);
    if (!ec)
      ec = fs::copy_file(tensor.file, pathTo(folder, name));
    if (ec)
      return outputError(pathTo(directory, used.path), ec);
  }
  weightFiles[tensor.file] = std::move(used);
  return llvm::Error::success();
}

llvm::Error BundleWriter::addWeightFiles() {
  auto weights = findWeights(signature(), files);
  if (!weights)
    return weights.takeError();
  tensors = std::move(*weights);
  for (const FileTensor *tensor : tensors)
    if (!weightFiles.count(tensor->file))
      if (llvm::Error error = addWeightFile(*tensor))
        return error;
  return llvm::Error::success();
}

void BundleWriter::writeWeights(json::OStream &out) const {
  out.attributeArray("weight_files", [&] {
    for (const auto &[file, used] : weightFiles) {
      const UsedWeightFile &weights = used;
      out.object([&] {
        out.attribute("path", weights.path);
        out.attribute("bytes", static_cast<int64_t>(weights.bytes));
        out.attribute("header_bytes",
                      static_cast<int64_t>(weights.headerBytes));
        out.attribute("header_sha256", weights.headerSha256);
      });
    }
  });
  out.attributeArray("weights", [&] {
    size_t slot = 0;
    for (const WeightDeclaration &declared : signature().weights)
      out.object([&] {
        writeWeight(out, declared);
        out.attributeArray("tensors", [&] {
          for (int64_t i = 0; i < declared.getNumSlots(); ++i, ++slot)
            out.object([&] {
              const FileTensor &tensor = *tensors[slot];
              out.attribute("name", declared.getFileName(i));
              out.attribute("file",
                            static_cast<int64_t>(
                                weightFiles.find(tensor.file)->second.number));
              out.attribute("offset", tensor.offset);
              out.attribute("dtype", stringifyDType(*tensor.dtype));
            });
        });
      });
  });
}

void BundleWriter::writeDevice(json::OStream &out, const DeviceCode &code,
                               StringRef chip) const {
  out.object([&] {
    out.attribute("chip", chip);
    out.attribute("library", pathTo(chip, bundle::kLibrary));
    out.attributeArray("images", [&] {
      for (const DeviceCode::Image &image : code.images)
        out.object([&] {
          out.attribute("format", bundle::kImageFormats[image.format]);
          out.attribute("path", pathTo(chip, bundle::kImages[image.format]));
          out.attribute("driver", image.driver);
        });
    });
    out.attributeArray("kernels", [&] {
      for (const DeviceCode::Kernel &kernel : code.kernels)
        out.object([&] {
          out.attribute("name", kernel.name);
          out.attribute("hash", kernel.hash);
          out.attribute("parameters", kernel.parameters);
          if (kernel.startsEarly)
            out.attribute("starts_early", true);
        });
    });
    if (!code.constants.empty())
      out.attribute("constants", pathTo(chip, bundle::kConstants));
    out.attributeArray("constant_bytes", [&] {
      for (const std::string &constant : code.constants)
        out.value(static_cast<int64_t>(constant.size()));
    });
  });
}

std::string BundleWriter::makeManifest() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  json::OStream out(os, /*IndentSize=*/1);
  out.object([&] {
    out.attribute("format", bundle::kFormat);
    out.attribute("version", bundle::kVersion);
    out.attribute("tool",
                  "diffattn " DIFFATTN_VERSION ", LLVM " LLVM_VERSION_STRING);
    out.attributeObject("cpu", [&] {
      out.attribute("architecture", bundle::kArchitecture);
      out.attribute("isa", targets.front().isa);
      out.attributeArray("features", [&] {
        for (const std::string &feature :
             getNeededFeatures(targets.front().isa))
          out.value(feature);
      });
    });
    out.attribute("batch_invariant",
                  stringifyBatchInvariance(options.batchInvariance));
    out.attributeArray("devices", [&] {
      for (auto [module, target] : llvm::zip(modules, targets))
        if (module.device)
          writeDevice(out, *module.device, target.chip);
    });
    out.attributeArray("files", [&] {
      for (const OwnFile &file : own)
        out.object([&] {
          out.attribute("path", file.path);
          out.attribute("bytes", static_cast<int64_t>(file.bytes));
          out.attribute("sha256", file.sha256);
        });
    });
    writeFunctions(out, signature());
    writeWeights(out);
  });
  os << '\n';
  return text;
}

llvm::Error BundleWriter::write() {
  WriteErrorsScope scope;
  if (llvm::Error error = makeFolder())
    return error;
  for (auto [module, target] : llvm::zip(modules, targets)) {
    // The manifest has the layout of weights once for all chips.
    if (getContractText(module.signature) != getContractText(signature()))
      return makeError(ErrorClass::Compile,
                       "expected code for " + Twine(target.chip) +
                           " that lays its weights out as that for " +
                           targets.front().chip +
                           " does; write a bundle for each");
    if (llvm::Error error = addCode(module, target))
      return error;
  }
  if (llvm::Error error = addModelFiles())
    return error;
  if (llvm::Error error = addWeightFiles())
    return error;
  unfinished.emplace_back(pathTo(part, bundle::kManifest));
  if (llvm::Error error =
          writeFile(pathTo(part, bundle::kManifest), {makeManifest()}))
    return error;
  return takePlace();
}

llvm::Error mlir::diffattn::writeBundle(llvm::ArrayRef<CompiledModule> modules,
                                        llvm::ArrayRef<std::string> targets,
                                        const WeightFiles &files,
                                        const BundleOptions &options,
                                        StringRef directory) {
  std::vector<ExecutionTarget> parsed;
  for (const std::string &target : targets) {
    auto one = parseTarget(target);
    if (!one)
      return one.takeError();
    parsed.push_back(std::move(*one));
  }
  return BundleWriter(modules, parsed, files, options, directory).write();
}
