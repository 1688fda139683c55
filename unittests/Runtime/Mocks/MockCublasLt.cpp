//===- MockCublasLt.cpp - cuBLASLt without a GPU --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Keeps the attributes that it is given, by their documented numbers and sizes,
// and multiplies by a plain loop over columns, as cuBLASLt's layout has it. It
// refuses what the library would refuse: other types, no algorithm, a pointer
// less aligned than was promised.
//
//===----------------------------------------------------------------------===//

#include "MockMemory.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#define MOCK extern "C" __attribute__((visibility("default")))

namespace {

using Status = int;
constexpr Status kInvalidValue = 7, kNotSupported = 15;

struct Attributes {
  std::map<int, int64_t> values;

  Status set(int attribute, const void *value, size_t bytes, size_t expected) {
    if (bytes != expected)
      return kInvalidValue;
    int64_t number = 0;
    memcpy(&number, value, bytes);
    values[attribute] = number;
    return 0;
  }
  int64_t get(int attribute, int64_t otherwise = 0) const {
    auto at = values.find(attribute);
    return at == values.end() ? otherwise : at->second;
  }
};

struct Operation : Attributes {
  int compute, scale;
};
struct Layout : Attributes {
  int type;
  uint64_t rows, columns;
  int64_t leading;
};

struct Algo {
  uint64_t data[8];
};
struct Heuristic {
  Algo algo;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96, "as cublasLtMatmulHeuristicResult_t");

std::string log;
int heuristics = 0;
bool offersNothing = false;
long calls = 0, failingCall = 0, live = 0;

/// Counts a call. Fails the one that the test asked for by its number.
Status countCall() { return ++calls == failingCall ? kNotSupported : 0; }

double load(const void *base, int type, int64_t i) {
  if (type == 1)
    return static_cast<const double *>(base)[i];
  if (type == 0)
    return static_cast<const float *>(base)[i];
  if (type == 2)
    return static_cast<double>(static_cast<const _Float16 *>(base)[i]);
  uint32_t bits = uint32_t(static_cast<const uint16_t *>(base)[i]) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void store(void *base, int type, int64_t i, double value) {
  if (type == 1) {
    static_cast<double *>(base)[i] = value;
  } else if (type == 0) {
    static_cast<float *>(base)[i] = static_cast<float>(value);
  } else if (type == 2) {
    static_cast<_Float16 *>(base)[i] = static_cast<_Float16>(value);
  } else {
    auto single = static_cast<float>(value);
    uint32_t bits;
    memcpy(&bits, &single, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    static_cast<uint16_t *>(base)[i] = static_cast<uint16_t>(bits >> 16);
  }
}

} // namespace

MOCK const char *mock_lt_log() { return log.c_str(); }
MOCK int mock_lt_heuristics() { return heuristics; }
MOCK void mock_lt_reset(int noAlgorithm) {
  log.clear();
  heuristics = 0;
  offersNothing = noAlgorithm;
}

/// Call `number` from now on fails; 0: none.
MOCK void mock_lt_fail(long number) {
  calls = 0;
  failingCall = number;
}
/// How many calls could have failed since.
MOCK long mock_lt_calls() { return calls; }
/// Handles, layouts and the like that have not been destroyed.
MOCK long mock_lt_live() { return live; }

#define CHECKED                                                                \
  if (Status failed = countCall())                                             \
  return failed

MOCK size_t cublasLtGetVersion() { return 130000; }
MOCK const char *cublasLtGetStatusString(Status status) {
  return status == kInvalidValue   ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                   : "CUBLAS_STATUS_SUCCESS";
}
MOCK Status cublasLtCreate(void **handle) {
  CHECKED;
  *handle = &log;
  ++live;
  return 0;
}
MOCK Status cublasLtDestroy(void *) {
  --live;
  return 0;
}

MOCK Status cublasLtMatmulDescCreate(void **out, int compute, int scale) {
  CHECKED;
  auto *operation = new Operation();
  ++live;
  operation->compute = compute;
  operation->scale = scale;
  *out = operation;
  return 0;
}
MOCK Status cublasLtMatmulDescDestroy(void *operation) {
  delete static_cast<Operation *>(operation);
  --live;
  return 0;
}
MOCK Status cublasLtMatmulDescSetAttribute(void *operation, int attribute,
                                           const void *value, size_t bytes) {
  CHECKED;
  return static_cast<Operation *>(operation)->set(attribute, value, bytes, 4);
}
MOCK Status cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows,
                                       uint64_t columns, int64_t leading) {
  CHECKED;
  if (leading < static_cast<int64_t>(rows))
    return kInvalidValue;
  auto *layout = new Layout();
  ++live;
  layout->type = type;
  layout->rows = rows;
  layout->columns = columns;
  layout->leading = leading;
  *out = layout;
  return 0;
}
MOCK Status cublasLtMatrixLayoutDestroy(void *layout) {
  delete static_cast<Layout *>(layout);
  --live;
  return 0;
}
MOCK Status cublasLtMatrixLayoutSetAttribute(void *layout, int attribute,
                                             const void *value, size_t bytes) {
  CHECKED;
  return static_cast<Layout *>(layout)->set(attribute, value, bytes,
                                            attribute == 5 ? 4 : 8);
}
MOCK Status cublasLtMatmulPreferenceCreate(void **out) {
  CHECKED;
  *out = new Attributes();
  ++live;
  return 0;
}
MOCK Status cublasLtMatmulPreferenceDestroy(void *preference) {
  delete static_cast<Attributes *>(preference);
  --live;
  return 0;
}
MOCK Status cublasLtMatmulPreferenceSetAttribute(void *preference,
                                                 int attribute,
                                                 const void *value,
                                                 size_t bytes) {
  CHECKED;
  return static_cast<Attributes *>(preference)
      ->set(attribute, value, bytes, attribute == 1 ? 8 : 4);
}

MOCK Status cublasLtMatmulAlgoGetHeuristic(void *, void *operation, void *,
                                           void *, void *, void *,
                                           void *preference, int requested,
                                           Heuristic *results, int *returned) {
  CHECKED;
  ++heuristics;
  auto &op = *static_cast<Operation *>(operation);
  auto &prefer = *static_cast<Attributes *>(preference);
  log += "compute=" + std::to_string(op.compute) +
         " scale=" + std::to_string(op.scale) +
         " transA=" + std::to_string(op.get(3)) +
         " transB=" + std::to_string(op.get(4)) +
         " workspace=" + std::to_string(prefer.get(1)) +
         " reduction=" + std::to_string(prefer.get(3, 7)) + "\n";
  *returned = 0;
  if (requested < 1 || offersNothing)
    return 0;
  *results = {};
  // The algorithm carries the alignment that it needs of the pointers.
  results->algo.data[0] = 0xa190;
  for (int i = 0; i < 3; ++i)
    results->algo.data[1 + i] = prefer.get(5 + i, 256);
  *returned = 1;
  return 0;
}

MOCK Status cublasLtMatmul(void *, void *operation, const void *alpha,
                           const void *a, void *aLayout, const void *b,
                           void *bLayout, const void *beta, const void *c,
                           void *cLayout, void *d, void *dLayout,
                           const Algo *algo, void *workspace,
                           size_t workspaceBytes, void *) {
  CHECKED;
  auto &op = *static_cast<Operation *>(operation);
  auto &la = *static_cast<Layout *>(aLayout),
       &lb = *static_cast<Layout *>(bLayout),
       &ld = *static_cast<Layout *>(dLayout);
  const void *pointers[] = {a, b, d};
  for (int i = 0; i < 3; ++i)
    if (reinterpret_cast<uint64_t>(pointers[i]) % algo->data[1 + i])
      return kInvalidValue;
  if (algo->data[0] != 0xa190 || c != d || cLayout != dLayout || !workspace ||
      workspaceBytes < size_t(32) << 20)
    return kInvalidValue;
  const bool wide = la.type == 1;
  if (la.type != lb.type || op.compute != (wide ? 70 : 68) ||
      op.scale != (wide ? 1 : 0))
    return kNotSupported;
  const bool ta = op.get(3), tb = op.get(4);
  const int64_t m = ld.rows, n = ld.columns, k = ta ? la.rows : la.columns;
  const double factor = wide ? *static_cast<const double *>(alpha)
                             : *static_cast<const float *>(alpha),
               keep = wide ? *static_cast<const double *>(beta)
                           : *static_cast<const float *>(beta);
  auto host = [](const void *p) {
    return mock::hostOf(reinterpret_cast<uint64_t>(p));
  };
  for (int64_t batch = 0; batch < ld.get(5, 1); ++batch)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += load(host(a), la.type,
                      batch * la.get(6) +
                          (ta ? i * la.leading + l : l * la.leading + i)) *
                 load(host(b), lb.type,
                      batch * lb.get(6) +
                          (tb ? l * lb.leading + j : j * lb.leading + l));
        const int64_t at = batch * ld.get(6) + j * ld.leading + i;
        double old = keep == 0 ? 0 : keep * load(host(d), ld.type, at);
        store(host(d), ld.type, at, factor * sum + old);
      }
  return 0;
}
