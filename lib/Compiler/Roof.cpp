//===- Roof.cpp - what this machine reaches -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Roof.h"

#include "DiffAttn/Compiler/CompiledProgram.h"
#include "DiffAttn/Compiler/Error.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/TargetParser/Host.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

using namespace mlir::diffattn;
using namespace diffattn_rt;

/// Sums that are kept at once, more than the latency of any CPU's FMA needs,
/// and vectors that are read at once.
static constexpr int kSums = 16, kLoads = 8;
/// Rounds of multiply-adds in a call: they take some milliseconds, beside which
/// the call is nothing.
static constexpr int64_t kRounds = 2000000;

/// A loop over `count` sums of vectors, whose total is returned so that none of
/// them can be left out; `setup` and `step` make `%s<i>` and `%b<i>`.
static std::string printLoop(llvm::StringRef arguments, llvm::StringRef setup,
                             llvm::StringRef index, int count, int lanes,
                             llvm::function_ref<std::string(int)> start,
                             llvm::function_ref<std::string(int)> step) {
  const std::string vector = llvm::formatv("vector<{0}xf32>", lanes);
  std::string starts, iterated, types, steps, yielded, total;
  for (int i = 0; i < count; ++i) {
    const char *comma = i ? ", " : "";
    starts += start(i);
    iterated += llvm::formatv("{0}%a{1} = %s{1}", comma, i).str();
    types += comma + vector;
    steps += step(i);
    yielded += llvm::formatv("{0}%b{1}", comma, i).str();
    if (i > 0)
      total += llvm::formatv("  %t{0} = arith.addf {1}, %sums#{0} : {2}\n", i,
                             i > 1 ? "%t" + std::to_string(i - 1) : "%sums#0",
                             vector);
  }
  return llvm::formatv(
      "func.func @main({0}) -> f32 {{\n"
      "{1}{2}"
      "  %sums:{3} = scf.for %i = %c0 to %end step %step\n"
      "      iter_args({4}) -> ({5}){6} {{\n"
      "{7}"
      "    scf.yield {8} : {5}\n"
      "  }\n"
      "{9}"
      "  %sum = vector.reduction <add>, %t{10} : {11} into f32\n"
      "  return %sum : f32\n"
      "}\n",
      arguments, setup, starts, count, iterated, types, index, steps, yielded,
      total, count - 1, vector);
}

/// @main(rounds: i64, x: f32, y: f32): so many rounds of `s = s * x + y` on all
/// lanes of the sums, which begin at 0.5, 1.5, ...; gives their total.
static std::string printMultiplyAdds(int lanes) {
  const std::string vector = llvm::formatv("vector<{0}xf32>", lanes);
  return printLoop(
      "%end: i64, %x: f32, %y: f32",
      "  %c0 = arith.constant 0 : i64\n"
      "  %step = arith.constant 1 : i64\n"
      "  %v = vector.broadcast %x : f32 to " +
          vector + "\n  %w = vector.broadcast %y : f32 to " + vector + "\n",
      " : i64", kSums, lanes,
      [&](int i) -> std::string {
        return llvm::formatv("  %n{0} = arith.constant {0}.5 : f32\n"
                             "  %s{0} = vector.broadcast %n{0} : f32 to {1}\n",
                             i, vector);
      },
      [&](int i) -> std::string {
        return llvm::formatv("    %b{0} = vector.fma %a{0}, %v, %w : {1}\n", i,
                             vector);
      });
}

/// @main(memref<?xf32>): the sum of its elements, whose number is a multiple of
/// kLoads * lanes.
static std::string printReads(int lanes) {
  const std::string vector = llvm::formatv("vector<{0}xf32>", lanes);
  return printLoop(
      "%m: memref<?xf32>",
      llvm::formatv("  %c0 = arith.constant 0 : index\n"
                    "  %step = arith.constant {0} : index\n"
                    "  %end = memref.dim %m, %c0 : memref<?xf32>\n"
                    "  %zero = arith.constant 0.0 : f32\n",
                    kLoads * lanes)
          .str(),
      "", kLoads, lanes,
      [&](int i) -> std::string {
        return llvm::formatv("  %s{0} = vector.broadcast %zero : f32 to {1}\n",
                             i, vector);
      },
      [&](int i) -> std::string {
        return llvm::formatv(
            "    %o{0} = arith.constant {1} : index\n"
            "    %at{0} = arith.addi %i, %o{0} : index\n"
            "    %l{0} = vector.load %m[%at{0}] : memref<?xf32>, {2}\n"
            "    %b{0} = arith.addf %a{0}, %l{0} : {2}\n",
            i, i * lanes, vector);
      });
}

static ArrayView viewOf(void *data, DType dtype, SizeList sizes = {}) {
  return {data, dtype, sizes, {}, false};
}

/// The code of a module for each thread, since a program is one thread's at a
/// time.
static llvm::Expected<std::vector<std::unique_ptr<CompiledProgram>>>
makePrograms(const std::string &text, int64_t threads) {
  CompileOptions options;
  options.threads = 1;
  std::vector<std::unique_ptr<CompiledProgram>> programs;
  for (int64_t i = 0; i < threads; ++i) {
    auto module = compileModule(text, options);
    if (!module)
      return module.takeError();
    auto program = CompiledProgram::load(std::move(*module), options.target);
    if (!program)
      return program.takeError();
    programs.push_back(std::move(*program));
  }
  return programs;
}

/// Calls a second of all threads together: the sum of each one's quickest,
/// which what else runs can only slow down.
static llvm::Expected<double>
measureRate(const std::vector<std::unique_ptr<CompiledProgram>> &programs,
            double seconds,
            llvm::function_ref<std::vector<ArrayView>(size_t)> arguments) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> best(programs.size(), 0.0);
  std::vector<Failure> failures(programs.size());
  std::atomic<size_t> ready{0};
  auto run = [&](size_t number) {
    const std::vector<ArrayView> views = arguments(number);
    std::vector<CallResult> results;
    auto call = [&] {
      failures[number] = programs[number]->call("main", views, 1, results);
      return !failures[number];
    };
    // The first one finds code and pages cold.
    const bool isGood = call();
    ++ready;
    while (ready.load() < programs.size())
      std::this_thread::yield();
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (isGood) {
      const auto begin = Clock::now();
      if (begin >= end || !call())
        break;
      const std::chrono::duration<double> taken = Clock::now() - begin;
      best[number] = std::max(best[number], 1 / taken.count());
    }
  };
  std::vector<std::thread> others;
  for (size_t number = 1; number < programs.size(); ++number)
    others.emplace_back(run, number);
  run(0);
  for (std::thread &other : others)
    other.join();
  double sum = 0;
  for (auto [rate, failure] : llvm::zip_equal(best, failures)) {
    if (failure)
      return toError(failure);
    sum += rate;
  }
  return sum;
}

llvm::Expected<Roof> mlir::diffattn::measureRoof(int64_t threads,
                                                 const RoofProbes &probes) {
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  const int lanes = features.lookup("avx512f") ? 16
                    : features.lookup("fma")   ? 8
                                               : 4;
  auto multiplying = makePrograms(printMultiplyAdds(lanes), threads);
  if (!multiplying)
    return multiplying.takeError();
  int64_t rounds = kRounds;
  float x = 0.5f, y = 0.1f;
  auto multiplyRate = measureRate(*multiplying, probes.seconds, [&](size_t) {
    return std::vector<ArrayView>{viewOf(&rounds, DIFFATTN_I64),
                                  viewOf(&x, DIFFATTN_F32),
                                  viewOf(&y, DIFFATTN_F32)};
  });
  if (!multiplyRate)
    return multiplyRate.takeError();
  auto reading = makePrograms(printReads(lanes), threads);
  if (!reading)
    return reading.takeError();
  const int64_t unit = kLoads * lanes;
  const int64_t numbers =
      std::max<int64_t>(probes.bytes / 4 / threads / unit, 1) * unit;
  std::vector<std::vector<float>> memory;
  for (int64_t i = 0; i < threads; ++i)
    memory.emplace_back(numbers, 1.0f);
  auto readRate = measureRate(*reading, probes.seconds, [&](size_t number) {
    return std::vector<ArrayView>{
        viewOf(memory[number].data(), DIFFATTN_F32, SizeList(&numbers, 1))};
  });
  if (!readRate)
    return readRate.takeError();
  Roof roof;
  roof.threads = threads;
  roof.gflops =
      *multiplyRate * static_cast<double>(kRounds * kSums * lanes * 2) / 1e9;
  roof.gbs = *readRate * static_cast<double>(numbers * 4) / 1e9;
  if (!features.lookup("amx-bf16"))
    roof.bf16Gflops = roof.gflops * (features.lookup("avx512bf16") ? 2 : 1);
  return roof;
}
