//===- Assemble.cpp - runs ptxas ------------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/Ptxas.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Object/ELF.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The number before `unit` in `line`.
static int64_t numberBefore(StringRef line, StringRef unit) {
  size_t end = line.find(unit);
  if (end == StringRef::npos)
    return 0;
  StringRef digits = line.take_front(end).rtrim();
  digits = digits.take_back(digits.size() -
                            (digits.find_last_not_of("0123456789") + 1));
  int64_t number = 0;
  return digits.getAsInteger(10, number) ? 0 : number;
}

static std::vector<std::string> findWarnings(StringRef text) {
  std::vector<std::string> warnings;
  for (StringRef line : llvm::split(text, '\n'))
    if (size_t at = line.find("(C75"); at != StringRef::npos)
      warnings.push_back(line.drop_front(at).str());
  return warnings;
}

static std::vector<PtxasKernel> parseReport(StringRef text) {
  std::vector<PtxasKernel> kernels;
  for (StringRef line : llvm::split(text, '\n')) {
    auto [before, name] = line.split("Compiling entry function '");
    if (!name.empty())
      kernels.push_back({name.split('\'').first.str()});
    if (kernels.empty())
      continue;
    PtxasKernel &kernel = kernels.back();
    if (line.contains("bytes spill stores")) {
      kernel.stackBytes = numberBefore(line, "bytes stack frame");
      kernel.spillStoreBytes = numberBefore(line, "bytes spill stores");
      kernel.spillLoadBytes = numberBefore(line, "bytes spill loads");
    }
    if (line.contains("registers"))
      kernel.registers = numberBefore(line, "registers");
  }
  return kernels;
}

std::optional<std::string> mlir::diffattn::findPtxas(const PtxasSearch &search,
                                                     std::string &error) {
  SmallVector<std::string> tried;
  auto isExecutable = [&](const Twine &path) {
    tried.push_back(path.str());
    return llvm::sys::fs::can_execute(path);
  };
  if (StringRef(search.program).contains('/')) {
    if (isExecutable(search.program))
      return search.program;
  } else {
    SmallVector<StringRef> folders;
    std::optional<std::string> path = llvm::sys::Process::GetEnv("PATH");
    if (path)
      StringRef(*path).split(folders, ':', -1, /*KeepEmpty=*/false);
    for (StringRef folder : folders)
      if (isExecutable(folder + "/" + search.program))
        return tried.back();
    for (const std::string &folder : search.folders)
      if (isExecutable(folder + "/" + search.program))
        return tried.back();
  }
  error = "expected ptxas of CUDA 12 or 13, but found none; tried " +
          llvm::join(tried, ", ") +
          ". It comes with the CUDA Toolkit and with the Python package "
          "nvidia-cuda-nvcc (scripts/test.sh installs 13.0.88); the option "
          "ptxas names one that lies elsewhere";
  return std::nullopt;
}

/// Whether `bytes` have the header of an object for NVIDIA's GPUs, and its
/// table of sections: an assembler that was killed leaves less.
static bool isCubin(StringRef bytes) {
  auto file = llvm::object::ELF64LEFile::create(bytes);
  if (!file) {
    llvm::consumeError(file.takeError());
    return false;
  }
  auto sections = file->sections();
  if (!sections) {
    llvm::consumeError(sections.takeError());
    return false;
  }
  return file->getHeader().e_machine == llvm::ELF::EM_CUDA &&
         !sections->empty();
}

std::optional<Cubin> mlir::diffattn::assemblePtx(StringRef ptx,
                                                 const GpuTarget &target,
                                                 const PtxasSearch &search,
                                                 std::string &error) {
  std::optional<std::string> program = findPtxas(search, error);
  if (!program)
    return std::nullopt;
  llvm::SmallString<128> input, output, log;
  std::error_code code =
      llvm::sys::fs::createTemporaryFile("diffattn", "ptx", input);
  if (!code)
    code = llvm::sys::fs::createTemporaryFile("diffattn", "cubin", output);
  if (!code)
    code = llvm::sys::fs::createTemporaryFile("diffattn", "log", log);
  llvm::FileRemover removeInput(input), removeOutput(output), removeLog(log);
  if (!code) {
    llvm::raw_fd_ostream stream(input, code);
    stream << ptx;
    stream.close();
    // An error that is left in it would end the process.
    if (!code)
      code = stream.error();
    stream.clear_error();
  }
  if (code) {
    error = "expected to write temporary files for ptxas, but got " +
            code.message();
    return std::nullopt;
  }
  std::string arch = "-arch=" + target.binaryChip;
  StringRef arguments[] = {*program, arch, "-O3", "-v", "-o", output, input};
  std::optional<StringRef> redirects[] = {std::nullopt, StringRef(log),
                                          StringRef(log)};
  int status = llvm::sys::ExecuteAndWait(
      *program, arguments, std::nullopt, redirects,
      /*SecondsToWait=*/600, /*MemoryLimit=*/0, &error);
  auto report = llvm::MemoryBuffer::getFile(log);
  StringRef text = report ? (*report)->getBuffer() : StringRef();
  if (status) {
    error += text.str();
    return std::nullopt;
  }
  auto cubin = llvm::MemoryBuffer::getFile(output);
  if (!cubin) {
    error = "expected a cubin of ptxas, but got " + cubin.getError().message();
    return std::nullopt;
  }
  if (!isCubin((*cubin)->getBuffer())) {
    error = "expected an object for NVIDIA's GPUs (ELF) of " + *program +
            ", but got " + std::to_string((*cubin)->getBufferSize()) +
            " bytes that are none";
    return std::nullopt;
  }
  return Cubin{(*cubin)->getBuffer().str(), parseReport(text),
               findWarnings(text)};
}
