//===- CublasLt.cpp - Matrix products by cuBLASLt -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// cuBLASLt stores matrices by columns. C = A·op(B) by rows is C' = op(B)'·A' by
// columns, with the very same bytes: the operands change places, and B is
// transposed for the library exactly if it is for us.
//
//===----------------------------------------------------------------------===//

#include "CublasLt.h"
#include "../Support/Internal.h"
#include "CublasLtPlaces.h"
#include "CudaDevice.h"

#include <algorithm>

using namespace diffattn_rt;
using namespace diffattn_rt::cuda;
using namespace diffattn_rt::cuda::lt;

/// Plans that are kept. Prompts of every length make one each.
static constexpr size_t kMaxPlans = 4096;

struct CublasLt::Plan {
  explicit Plan(const CublasLt &library) : library(library) {}
  Plan(const Plan &) = delete;
  Plan &operator=(const Plan &) = delete;
  ~Plan() {
    for (Layout layout : {left, right, out})
      if (layout)
        library.cublasLtMatrixLayoutDestroy(layout);
    if (preference)
      library.cublasLtMatmulPreferenceDestroy(preference);
    if (operation)
      library.cublasLtMatmulDescDestroy(operation);
  }

  const CublasLt &library;
  MatmulDesc operation = nullptr;
  Layout left = nullptr, right = nullptr, out = nullptr;
  Preference preference = nullptr;
  HeuristicResult choice = {};
};

std::unique_ptr<CublasLt>
CublasLt::open(const std::string &path,
               const std::vector<std::string> &packageFolders,
               std::string &error) {
  std::unique_ptr<CublasLt> engine(new CublasLt());
  const std::vector<std::string> places = cublasLtPlaces(path, packageFolders);
  std::string tried;
  // One that is there already shares its kernels and its memory, as PyTorch's.
  if (!(path.empty() && engine->library.open(cublasLtSonames(), true, tried)) &&
      !engine->library.open(places, false, tried)) {
    error = "expected cuBLASLt for matrix products, but could open none of:" +
            tried;
    return nullptr;
  }
  std::string missing;
#define DIFFATTN_CUBLASLT_LOOKUP(function, ...)                                \
  engine->function = reinterpret_cast<decltype(engine->function)>(             \
      engine->library.find(#function));                                        \
  if (!engine->function)                                                       \
    missing += missing.empty() ? #function : ", " #function;
  DIFFATTN_CUBLASLT_FUNCTIONS(DIFFATTN_CUBLASLT_LOOKUP)
#undef DIFFATTN_CUBLASLT_LOOKUP
  if (!missing.empty()) {
    error = "expected cuBLASLt 12 or 13, but " + engine->library.getPath() +
            " lacks " + missing;
    return nullptr;
  }
  if (Status status = engine->cublasLtCreate(&engine->handle)) {
    error = "expected a handle of cuBLASLt, but " + engine->library.getPath() +
            " says: " + engine->cublasLtGetStatusString(status);
    engine->handle = nullptr;
    return nullptr;
  }
  engine->name = engine->library.getPath() + " " +
                 std::to_string(engine->cublasLtGetVersion());
  return engine;
}

CublasLt::~CublasLt() {
  plans.clear();
  if (handle)
    cublasLtDestroy(handle);
}

static int dataType(int32_t dtype) {
  switch (dtype) {
  case DIFFATTN_F16:
    return kR16F;
  case DIFFATTN_BF16:
    return kR16BF;
  case DIFFATTN_F64:
    return kR64F;
  default:
    return kR32F;
  }
}

/// The power of two, up to 256, that an address is a multiple of.
static uint32_t alignmentOf(diffattn_address address) {
  return address ? static_cast<uint32_t>(
                       std::min<uint64_t>(256, address & -address))
                 : 256;
}

std::string CublasLt::describe(const diffattn_product &p, Status status) const {
  return "expected cuBLASLt to multiply " + std::to_string(p.m) + "x" +
         std::to_string(p.k) + " by " + std::to_string(p.k) + "x" +
         std::to_string(p.n) + " " + dtypeName(p.dtype_a) + ", " +
         std::to_string(p.batch) +
         " times, but it says: " + cublasLtGetStatusString(status);
}

Status CublasLt::chooseAlgorithm(const diffattn_product &p, Plan &plan,
                                 int &numAlgorithms) {
  const uint64_t workspaceBytes = kWorkspaceBytes;
  const uint32_t alignments[] = {alignmentOf(p.b), alignmentOf(p.a),
                                 alignmentOf(p.c)};
  auto set = [&](int attribute, const auto &value) {
    return cublasLtMatmulPreferenceSetAttribute(plan.preference, attribute,
                                                &value, sizeof value);
  };
  Status status = cublasLtMatmulPreferenceCreate(&plan.preference);
  if (!status)
    status = set(kMaxWorkspaceBytes, workspaceBytes);
  // Partial sums are never rounded to a 16-bit C.
  if (!status)
    status = set(kReductionSchemeMask, kReductionInComputeType);
  if (!status)
    status = set(kMinAlignmentA, alignments[0]);
  if (!status)
    status = set(kMinAlignmentB, alignments[1]);
  if (!status)
    status = set(kMinAlignmentC, alignments[2]);
  if (!status)
    status = set(kMinAlignmentD, alignments[2]);
  if (!status)
    status = cublasLtMatmulAlgoGetHeuristic(
        handle, plan.operation, plan.left, plan.right, plan.out, plan.out,
        plan.preference, 1, &plan.choice, &numAlgorithms);
  return status;
}

bool CublasLt::makePlan(const diffattn_product &p, Plan &plan,
                        std::string &error) {
  const bool wide = p.dtype_a == DIFFATTN_F64;
  const int32_t transposeLeft = p.transpose_b ? kOpTranspose : kOpNone;
  const int32_t transposeRight = kOpNone;
  Status status = cublasLtMatmulDescCreate(
      &plan.operation, wide ? kCompute64F : kCompute32F, wide ? kR64F : kR32F);
  if (!status)
    status = cublasLtMatmulDescSetAttribute(plan.operation, kTransA,
                                            &transposeLeft, sizeof(int32_t));
  if (!status)
    status = cublasLtMatmulDescSetAttribute(plan.operation, kTransB,
                                            &transposeRight, sizeof(int32_t));
  auto layout = [&](Layout &out, int32_t dtype, int64_t rows, int64_t columns,
                    int64_t leading, int64_t stride) {
    if (!status)
      status = cublasLtMatrixLayoutCreate(&out, dataType(dtype), rows, columns,
                                          leading);
    if (status || p.batch == 1)
      return;
    const int32_t count = static_cast<int32_t>(p.batch);
    status = cublasLtMatrixLayoutSetAttribute(out, kBatchCount, &count,
                                              sizeof count);
    if (!status)
      status = cublasLtMatrixLayoutSetAttribute(out, kStridedBatchOffset,
                                                &stride, sizeof stride);
  };
  if (p.transpose_b)
    layout(plan.left, p.dtype_b, p.k, p.n, p.ldb, p.stride_b);
  else
    layout(plan.left, p.dtype_b, p.n, p.k, p.ldb, p.stride_b);
  layout(plan.right, p.dtype_a, p.k, p.m, p.lda, p.stride_a);
  layout(plan.out, p.dtype_c, p.n, p.m, p.ldc, p.stride_c);
  int numAlgorithms = 0;
  if (!status)
    status = chooseAlgorithm(p, plan, numAlgorithms);
  if (!status && numAlgorithms > 0)
    return true;
  error = status ? describe(p, status)
                 : describe(p, status) + ", and offers no algorithm";
  return false;
}

CublasLt::Plan *CublasLt::getPlan(const diffattn_product &p,
                                  std::string &error) {
  const uint64_t alignments = uint64_t(alignmentOf(p.a)) << 32 |
                              uint64_t(alignmentOf(p.b)) << 16 |
                              alignmentOf(p.c);
  const Key key{p.dtype_a,  p.dtype_b,  p.dtype_c,   p.transpose_b,
                p.m,        p.n,        p.k,         p.lda,
                p.ldb,      p.ldc,      p.batch,     p.stride_a,
                p.stride_b, p.stride_c, p.beta != 0, alignments};
  auto at = plans.find(key);
  if (at != plans.end())
    return at->second.get();
  auto plan = std::make_unique<Plan>(*this);
  if (!makePlan(p, *plan, error))
    return nullptr;
  if (plans.size() >= kMaxPlans)
    plans.clear();
  return (plans[key] = std::move(plan)).get();
}

bool CublasLt::multiply(const diffattn_product &p, Stream stream,
                        uint64_t workspace, std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  Plan *plan = getPlan(p, error);
  if (!plan)
    return false;
  const float oneF = 1, betaF = p.beta;
  const double oneD = 1, betaD = p.beta;
  const bool wide = p.dtype_a == DIFFATTN_F64;
  auto pointer = [](uint64_t address) {
    return reinterpret_cast<void *>(address);
  };
  Status status = cublasLtMatmul(
      handle, plan->operation, wide ? static_cast<const void *>(&oneD) : &oneF,
      pointer(p.b), plan->left, pointer(p.a), plan->right,
      wide ? static_cast<const void *>(&betaD) : &betaF, pointer(p.c),
      plan->out, pointer(p.c), plan->out, &plan->choice.algo,
      pointer(workspace), kWorkspaceBytes, stream);
  if (!status)
    return true;
  error = describe(p, status);
  return false;
}

int32_t CudaDevice::multiply(StreamState &stream, const diffattn_product &p) {
  std::string error;
  if (diffattn_device_check_product(&p))
    return fail(DIFFATTN_DEVICE_UNSUPPORTED, diffattn_device_check_product(&p));
  if (p.m <= 0 || p.n <= 0 || p.batch <= 0)
    return DIFFATTN_DEVICE_OK;
  if (p.k <= 0) {
    // An empty sum: zeros, or C as it was.
    const int64_t size = static_cast<int64_t>(dtypeSize(p.dtype_c));
    for (int64_t b = 0; b < p.batch && p.beta == 0; ++b)
      for (int64_t row = 0; row < p.m; ++row)
        if (int32_t status = fill(
                this, reinterpret_cast<diffattn_stream *>(&stream),
                p.c + (b * p.stride_c + row * p.ldc) * size, 0, p.n * size))
          return status;
    return DIFFATTN_DEVICE_OK;
  }
  Current current(*this);
  if (current.result != kSuccess)
    return failed("the device's context", current.result);
  {
    std::lock_guard<std::mutex> lock(gemmMutex);
    if (!gemmEngine)
      gemmEngine = CublasLt::open(gemmLibrary, packageFolders, error);
    if (!gemmEngine)
      return fail(DIFFATTN_DEVICE_UNSUPPORTED, error);
  }
  if (!stream.workspace) {
    if (stream.capturing)
      return fail(DIFFATTN_DEVICE_INVALID,
                  "expected a product on the stream before it is captured, "
                  "because the first one allocates memory");
    if (int32_t status =
            allocate(this, CublasLt::kWorkspaceBytes, "products",
                     reinterpret_cast<diffattn_address *>(&stream.workspace)))
      return status;
  }
  if (gemmEngine->multiply(p, stream.native, stream.workspace, error))
    return DIFFATTN_DEVICE_OK;
  return fail(DIFFATTN_DEVICE_FAULT, error);
}
