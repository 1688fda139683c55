//===- BundleLibrary.cpp - compiled code as a shared object ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BundleLibrary.h"
#include "Codegen.h"
#include "SelfContained.h"
#include "SystemSymbols.h"

#include "DiffAttn/Compiler/WriteFile.h"
#include "DiffAttn/Runtime/ABI/Table.h"
#include "DiffAttn/Runtime/Bundle/BundleFormat.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Object/ObjectFile.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/SHA256.h"

#include <dlfcn.h>
#include <map>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;

std::string mlir::diffattn::sha256Text(StringRef bytes) {
  return llvm::toHex(llvm::SHA256::hash(llvm::arrayRefFromStringRef(bytes)),
                     /*LowerCase=*/true);
}

static llvm::Error linkError(const Twine &message) {
  return makeError(ErrorClass::Compile, message);
}

/// The linker that a wheel brings, beside the library that this code lies in;
/// empty if there is none.
static std::string getOwnLinker() {
  Dl_info self;
  if (!dladdr(reinterpret_cast<void *>(&getOwnLinker), &self) ||
      !self.dli_fname)
    return "";
  llvm::SmallString<128> path(llvm::sys::path::parent_path(self.dli_fname));
  llvm::sys::path::append(path, "..", "bin", "diffattn-ld");
  return llvm::sys::fs::can_execute(path) ? path.str().str() : "";
}

LinkerSearch LinkerSearch::getDefault() {
  LinkerSearch search;
  search.folders = {DIFFATTN_LLVM_TOOLS};
  if (std::string own = getOwnLinker(); !own.empty())
    search.program = own;
  return search;
}

static llvm::Expected<std::string> findLinker(const LinkerSearch &search) {
  auto path = llvm::sys::findProgramByName(search.program);
  llvm::SmallVector<StringRef> folders(search.folders.begin(),
                                       search.folders.end());
  if (!path && !folders.empty())
    path = llvm::sys::findProgramByName(search.program, folders);
  if (path)
    return *path;
  return linkError("expected LLVM's linker as '" + search.program +
                   "', in PATH or in " + llvm::join(folders, ", ") +
                   ", but found none (Debian: lld-22)");
}

namespace {

/// Symbols that an object needs from elsewhere.
struct Needs {
  std::map<std::string, size_t> table; // symbol -> place in the runtime's table
  std::vector<SystemSymbol> system;
};

} // namespace

/// Offset in the runtime's table of the function that is `symbol` in compiled
/// code.
static std::optional<size_t> findInTable(StringRef symbol) {
  static const std::map<std::string, size_t> places = [] {
    std::map<std::string, size_t> result;
#define DIFFATTN_PLACE(name)                                                   \
  result["diffattn_rt_" #name] = offsetof(diffattn_rt_table, name);
    DIFFATTN_RT_TABLE(DIFFATTN_PLACE)
    DIFFATTN_RT_LATER_TABLE(DIFFATTN_PLACE)
#undef DIFFATTN_PLACE
#define DIFFATTN_PLACE(name)                                                   \
  result["diffattn_rt_device_" #name] =                                        \
      offsetof(diffattn_rt_table, device_##name);
    DIFFATTN_RT_DEVICE_TABLE(DIFFATTN_PLACE)
#undef DIFFATTN_PLACE
    diffattn_named_function conversions[DIFFATTN_RT_CONVERSIONS];
    diffattn_rt_float_conversions(conversions);
    for (size_t i = 0; i < DIFFATTN_RT_CONVERSIONS; ++i)
      result[conversions[i].name] =
          offsetof(diffattn_rt_table, conversions) + i * sizeof(void *);
    return result;
  }();
  auto it = places.find(symbol.str());
  if (it == places.end())
    return std::nullopt;
  return it->second;
}

static llvm::Expected<Needs> readNeeds(StringRef objectBytes) {
  auto object = llvm::object::ObjectFile::createObjectFile(
      llvm::MemoryBufferRef(objectBytes, "object"));
  if (!object)
    return object.takeError();
  Needs needs;
  for (const llvm::object::SymbolRef &symbol : (*object)->symbols()) {
    auto flags = symbol.getFlags();
    if (!flags)
      return flags.takeError();
    auto name = symbol.getName();
    if (!name)
      return name.takeError();
    if (!(*flags & llvm::object::SymbolRef::SF_Undefined) || name->empty() ||
        *name == bundle::kWeightsSymbol)
      continue;
    if (std::optional<size_t> place = findInTable(*name))
      needs.table[name->str()] = *place;
    else if (std::optional<SystemSymbol> system = findSystemSymbol(*name))
      needs.system.push_back(*system);
    else
      return linkError("expected code that calls the runtime, libc and libm "
                       "alone, but it needs '" +
                       *name + "'");
  }
  return needs;
}

/// The functions of the runtime that the object calls, as jumps through the
/// table, with what the loader looks for. They have no types: a jump leaves all
/// arguments where they are, and r11 is free between a caller and a callee.
static std::string makeGlue(const Needs &needs, const CompiledModule &module) {
  std::string text;
  llvm::raw_string_ostream os(text);
  size_t bytes = offsetof(diffattn_rt_table, parallel_for);
  os << "  .text\n";
  for (const auto &[symbol, place] : needs.table) {
    os << "  .globl " << symbol << "\n  .hidden " << symbol << "\n  .type "
       << symbol << ", @function\n"
       << symbol << ":\n  movq diffattn_bundle_table(%rip), %r11\n  jmpq *"
       << place << "(%r11)\n";
    bytes = std::max(bytes, place + sizeof(void *));
  }
  auto define = [&](StringRef symbol, StringRef type, size_t size) {
    os << "  .globl " << symbol << "\n  .type " << symbol << ", @" << type
       << "\n  .size " << symbol << ", " << size << "\n"
       << symbol << ":\n";
  };
  os << "  .globl " << bundle::kInitSymbol << "\n  .type "
     << bundle::kInitSymbol << ", @function\n"
     << bundle::kInitSymbol
     << ":\n  movq %rdi, diffattn_bundle_table(%rip)\n  retq\n";
  os << "  .section .rodata\n  .balign 8\n";
  define(bundle::kNeedsSymbol, "object", sizeof(diffattn_rt_needs));
  os << "  .long " << DIFFATTN_RT_TABLE_VERSION << "\n  .long " << bytes
     << "\n";
  std::string terms = getContractText(module.signature);
  if (module.device)
    terms += getContractText(*module.device);
  std::string contract = sha256Text(terms);
  define(bundle::kContractSymbol, "object", contract.size());
  os << "  .ascii \"" << contract << "\"\n";
  os << "  .bss\n  .balign 64\ndiffattn_bundle_table:\n  .zero 64\n";
  // One slot more than none, so that it has an address.
  size_t slots = module.signature.getNumWeightSlots() + 1;
  if (module.device)
    slots += module.device->constants.size();
  size_t table = slots * sizeof(diffattn_weight);
  define(bundle::kWeightsSymbol, "object", table);
  os << "  .zero " << table << "\n"
     << "  .section .note.GNU-stack,\"\",@progbits\n";
  return text;
}

/// A shared object with nothing but the symbols of `library`, in the versions
/// wanted: what it is linked against, on any machine, gives the same result.
static std::string makeStub(const Needs &needs, StringRef library) {
  std::string text = "  .text\n";
  for (const SystemSymbol &symbol : needs.system)
    if (symbol.library == library)
      text += ("  .globl " + symbol.name + "\n  .type " + symbol.name +
               ", @function\n" + symbol.name + ":\n  retq\n")
                  .str();
  return text + "  .section .note.GNU-stack,\"\",@progbits\n";
}

static std::string makeVersionScript(const Needs &needs, StringRef library) {
  std::map<StringRef, std::string> nodes;
  for (const SystemSymbol &symbol : needs.system)
    if (symbol.library == library)
      nodes[symbol.version] += (symbol.name + ";").str();
  std::string script;
  for (const auto &[version, names] : nodes)
    script += (version + " { global: " + names + " };\n").str();
  return script;
}

static llvm::Expected<std::string> assemble(const std::string &text) {
  llvm::LLVMContext context;
  llvm::Module module("bundle", context);
  module.setModuleInlineAsm(text);
  return generateCode(module, "generic", CodegenOutput::Object,
                      /*quick=*/false);
}

namespace {

/// A folder of its own for the linker's files, removed in the end.
class LinkFolder {
public:
  ~LinkFolder() {
    if (!path.empty())
      llvm::sys::fs::remove_directories(path);
  }
  llvm::Error create() {
    if (std::error_code ec =
            llvm::sys::fs::createUniqueDirectory("diffattn-link", path))
      return makeError(ErrorClass::Output,
                       "expected a temporary folder for the linker, but got: " +
                           ec.message());
    return llvm::Error::success();
  }
  std::string file(StringRef name) const {
    llvm::SmallString<128> result = path;
    llvm::sys::path::append(result, name);
    return result.str().str();
  }
  llvm::Error write(StringRef name, StringRef contents) const {
    return writeFile(file(name), {contents});
  }

private:
  llvm::SmallString<128> path;
};

} // namespace

static llvm::Error runLinker(StringRef linker, const LinkFolder &folder,
                             llvm::ArrayRef<std::string> arguments) {
  llvm::SmallVector<StringRef> all = {
      linker,        "-shared",         "-z", "defs", "-z", "now", "-z",
      "noexecstack", "--hash-style=gnu"};
  all.append(arguments.begin(), arguments.end());
  std::string log = folder.file("log"), message;
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(log),
                                          StringRef(log)};
  int status = llvm::sys::ExecuteAndWait(linker, all, std::nullopt, redirects,
                                         /*SecondsToWait=*/600,
                                         /*MemoryLimit=*/0, &message);
  if (status == 0)
    return llvm::Error::success();
  if (auto output = llvm::MemoryBuffer::getFile(log))
    message += (*output)->getBuffer();
  return linkError("expected " + linker +
                   " to link the code, but got: " + StringRef(message).rtrim());
}

llvm::Expected<std::string>
mlir::diffattn::linkBundleLibrary(const CompiledModule &module,
                                  const LinkerSearch &search) {
  auto linker = findLinker(search);
  if (!linker)
    return linker.takeError();
  auto needs = readNeeds(module.object);
  if (!needs)
    return needs.takeError();
  LinkFolder folder;
  if (llvm::Error error = folder.create())
    return error;
  std::vector<std::string> stubs;
  for (StringRef library : {"libc.so.6", "libm.so.6"}) {
    std::string script = makeVersionScript(*needs, library);
    if (script.empty())
      continue;
    auto stub = assemble(makeStub(*needs, library));
    if (!stub)
      return stub.takeError();
    std::string object = (library + ".o").str(), map = (library + ".map").str();
    if (llvm::Error error = folder.write(object, *stub))
      return error;
    if (llvm::Error error = folder.write(map, script))
      return error;
    stubs.push_back(folder.file(library));
    if (llvm::Error error = runLinker(
            *linker, folder,
            {"-soname", library.str(), "-o", stubs.back(),
             "--version-script=" + folder.file(map), folder.file(object)}))
      return error;
  }
  auto glue = assemble(makeGlue(*needs, module));
  if (!glue)
    return glue.takeError();
  // A pattern may match nothing: not all code has every symbol.
  std::string exports =
      (Twine("{ global: ") + bundle::kNeedsSymbol + "; " + bundle::kInitSymbol +
       "; " + bundle::kWeightsSymbol + "; " + bundle::kContractSymbol + "; " +
       bundle::kReleaseSymbol + "*; " + getEntryPointName("*") +
       "; local: *; };")
          .str();
  for (auto [name, contents] :
       {std::pair<StringRef, StringRef>("model.o", module.object),
        {"glue.o", *glue},
        {"exports.map", exports}})
    if (llvm::Error error = folder.write(name, contents))
      return error;
  std::vector<std::string> arguments = {"-soname",
                                        bundle::kLibrary,
                                        "-o",
                                        folder.file(bundle::kLibrary),
                                        "--version-script=" +
                                            folder.file("exports.map"),
                                        "--build-id=sha1",
                                        folder.file("model.o"),
                                        folder.file("glue.o")};
  arguments.insert(arguments.end(), stubs.begin(), stubs.end());
  if (llvm::Error error = runLinker(*linker, folder, arguments))
    return error;
  auto linked = llvm::MemoryBuffer::getFile(folder.file(bundle::kLibrary));
  if (!linked)
    return linkError("expected the linker to write a file, but got: " +
                     linked.getError().message());
  std::string library = (*linked)->getBuffer().str();
  if (llvm::Error error = checkSelfContained(library))
    return error;
  return library;
}
