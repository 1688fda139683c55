//===- HopperText.cpp - pieces of kernels for sm_90 -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperText.h"
#include "Numerics.h"

#include <random>

namespace mlir::diffattn::sim {

std::string beginKernel(unsigned maps, const std::string &parameters,
                        unsigned threads) {
  std::string text = "@smem = external addrspace(3) global [0 x i8], align "
                     "1024\ndefine ptx_kernel void @k(";
  for (unsigned i = 0; i < maps; ++i)
    text += "ptr byval([128 x i8]) align 64 \"nvvm.grid_constant\" %m" +
            std::to_string(i) + ", ";
  return text + parameters + ") \"nvvm.reqntid\"=\"" + std::to_string(threads) +
         ",1,1\" {\nentry:\n"
         "  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"
         "  %isfirst = icmp eq i32 %tid, 0\n";
}

std::string descriptor(const std::string &name, const std::string &pointer,
                       unsigned leadingBytes, unsigned strideBytes) {
  const uint64_t high = uint64_t(leadingBytes >> 4) << 16 |
                        uint64_t(strideBytes >> 4) << 32 | uint64_t(1) << 62;
  const std::string v = "  %" + name;
  return v + ".a = ptrtoint ptr addrspace(3) %" + pointer + " to i64\n" + v +
         ".b = and i64 %" + name + ".a, 262143\n" + v + ".c = lshr i64 %" +
         name + ".b, 4\n" + v + " = or i64 %" + name + ".c, " +
         std::to_string(int64_t(high)) + "\n";
}

std::string waitFor(const std::string &label, const std::string &bar,
                    const std::string &parity) {
  return "  br label %" + label + "ask\n" + label + "ask:\n  %" + label +
         "came = " +
         nvvm("mbarrier.try.wait.parity.scope.cta.space.cta",
              "ptr addrspace(3) %" + bar + ", i32 " + parity, "i1") +
         "  br i1 %" + label + "came, label %" + label + "done, label %" +
         label + "ask\n" + label + "done:\n";
}

static std::string coordinates(const std::vector<std::string> &at) {
  std::string text;
  for (const std::string &each : at)
    text += "i32 " + each + ", ";
  return text;
}

std::string loadBox(const std::string &map, const std::string &to,
                    const std::string &bar,
                    const std::vector<std::string> &at) {
  static unsigned number = 0;
  const std::string cast = "%cluster" + std::to_string(number++);
  return "  " + cast + " = addrspacecast ptr addrspace(3) %" + to +
         " to ptr addrspace(7)\n  " +
         nvvm("cp.async.bulk.tensor.g2s.tile." + std::to_string(at.size()) +
                  "d",
              "ptr addrspace(7) " + cast + ", ptr addrspace(3) %" + bar +
                  ", ptr %" + map + ", " + coordinates(at) +
                  "i16 0, i64 0, i1 false, i1 false, i32 0");
}

std::string storeBox(const std::string &map, const std::string &from,
                     const std::vector<std::string> &at) {
  return "  " + nvvm("cp.async.bulk.tensor.s2g.tile." +
                         std::to_string(at.size()) + "d",
                     "ptr addrspace(3) %" + from + ", ptr %" + map + ", " +
                         coordinates(at) + "i64 0, i1 false");
}

std::string Registers::arguments() const {
  std::string text;
  for (unsigned i = 0; i < count; ++i)
    text += (i ? ", " : "") + type + " " +
            (prefix.empty() ? "0.0" : "%" + prefix + std::to_string(i));
  return text;
}

/// %RESULT0, ... = the results of an assembly.
static std::string callAsm(const std::string &result, const AsmText &assembly,
                           const std::string &arguments, unsigned count) {
  std::string type = "{";
  for (unsigned i = 0; i < count; ++i)
    type += i ? ", float" : "float";
  type += "}";
  std::string text = "  %" + result + " = call " + type + " asm sideeffect \"" +
                     assembly.text + "\", \"" + assembly.constraints + "\"(" +
                     arguments + ")\n";
  for (unsigned i = 0; i < count; ++i)
    text += "  %" + result + std::to_string(i) + " = extractvalue " + type +
            " %" + result + ", " + std::to_string(i) + "\n";
  return text;
}

std::string multiply(const std::string &result, const Wgmma &wgmma,
                     const std::string &sums, const std::string &a,
                     const std::string &b, int scale) {
  return callAsm(result, getPtxAsm(wgmma),
                 Registers{sums, wgmma.n / 2}.arguments() + ", " + a +
                     ", i64 %" + b + ", i32 " + std::to_string(scale),
                 wgmma.n / 2);
}

std::string waitMatrices(const std::string &result, unsigned pending,
                         const std::string &registers, unsigned count) {
  return callAsm(result, getPtxAsm(WgmmaWait{pending, count, 0}),
                 Registers{registers, count}.arguments(), count);
}

std::string tie(const std::string &result, const std::string &registers,
                unsigned count) {
  return callAsm(result, getPtxAsm(RegisterTie{count, 0}),
                 Registers{registers, count}.arguments(), count);
}

std::string storeSums(const std::string &registers, unsigned n,
                      const std::string &firstRow) {
  std::string text = R"(
  %lane = and i32 %tid, 31
  %warp0 = lshr i32 %tid, 5
  %warp = and i32 %warp0, 3
  %inwarp = lshr i32 %lane, 2
  %warprow = shl i32 %warp, 4
  %row0 = add i32 %warprow, %inwarp
  %row = add i32 %row0, )" +
                     firstRow +
                     R"(
  %pair0 = and i32 %lane, 3
  %pair = shl i32 %pair0, 1
  %rowstart = mul i32 %row, )" +
                     std::to_string(n) +
                     "\n  %origin = add i32 %rowstart, %pair\n";
  for (unsigned i = 0; i < n / 2; ++i) {
    const std::string s = std::to_string(i);
    const unsigned offset = 8 * (i / 4) + 8 * n * (i / 2 % 2) + i % 2;
    text += "  %at" + s + " = add i32 %origin, " + std::to_string(offset) +
            "\n  %to" + s +
            " = getelementptr float, ptr addrspace(1) %d, i32 %at" + s +
            "\n  store float %" + registers + s + ", ptr addrspace(1) %to" + s +
            ", align 4\n";
  }
  return text;
}

Matrix Matrix::random(unsigned rows, unsigned columns, bool bfloat,
                      unsigned seed) {
  Matrix matrix{rows, columns, {}, {}};
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> numbers(-2, 2);
  for (unsigned i = 0; i < rows * columns; ++i) {
    const float number = numbers(generator);
    matrix.bits.push_back(bfloat ? floatToBfloat(number) : floatToHalf(number));
    matrix.values.push_back(bfloat ? bfloatToFloat(matrix.bits.back())
                                   : halfToFloat(matrix.bits.back()));
  }
  return matrix;
}

TensorMap Matrix::map(uint64_t device, unsigned boxRows) const {
  TensorMap map;
  map.base = device;
  map.rank = 2;
  map.sizes = {columns, rows, 1, 1, 1};
  map.strides = {columns * 2, 0, 0, 0};
  map.box = {64, boxRows, 1, 1, 1};
  map.swizzle128 = true;
  return map;
}

std::vector<float> product(const Matrix &a, const Matrix &b, bool transposed) {
  const unsigned columns = transposed ? b.rows : b.columns;
  std::vector<float> result(a.rows * columns, 0.0f);
  for (unsigned row = 0; row < a.rows; ++row)
    for (unsigned column = 0; column < columns; ++column) {
      float sum = 0;
      for (unsigned k = 0; k < a.columns; k += 16) {
        double part = sum;
        for (unsigned i = k; i < k + 16; ++i)
          part += double(a.at(row, i)) *
                  (transposed ? b.at(column, i) : b.at(i, column));
        sum = static_cast<float>(part);
      }
      result[row * columns + column] = sum;
    }
  return result;
}

} // namespace mlir::diffattn::sim
