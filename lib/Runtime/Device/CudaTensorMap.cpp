//===- CudaTensorMap.cpp - tensors as the copy engine sees them -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"

#include "DiffAttn/Runtime/ABI/ElementType.h"

#include <cstring>

using namespace diffattn_rt;
using namespace diffattn_rt::cuda;

static_assert(sizeof(TensorMap) == DIFFATTN_TENSOR_MAP_BYTES);

int32_t CudaDevice::encode(const diffattn_tensor &tensor, void *map) {
  const bool isBfloat = tensor.dtype == DIFFATTN_BF16;
  if (!isBfloat && tensor.dtype != DIFFATTN_F16)
    return fail(DIFFATTN_DEVICE_INVALID,
                "expected a tensor of f16 or bf16, but got element type " +
                    std::to_string(tensor.dtype));
  uint64_t sizes[4], strides[3];
  for (int i = 0; i < 4; ++i)
    sizes[i] = static_cast<uint64_t>(tensor.sizes[i]);
  for (int i = 0; i < 3; ++i)
    strides[i] = static_cast<uint64_t>(tensor.strides[i]);
  const uint32_t box[4] = {static_cast<uint32_t>(tensor.box_columns),
                           static_cast<uint32_t>(tensor.box_rows), 1, 1},
                 steps[4] = {1, 1, 1, 1};
  TensorMap encoded;
  Current current(*this);
  Result result = current.result;
  if (result == kSuccess)
    result = driver.cuTensorMapEncodeTiled(
        &encoded, isBfloat ? kTensorBfloat16 : kTensorFloat16, 4,
        reinterpret_cast<void *>(tensor.base), sizes, strides, box, steps,
        kInterleaveNone, kSwizzle128B, kPromotion128B, kFillZeros);
  if (result == kSuccess) {
    memcpy(map, &encoded, sizeof encoded);
    return DIFFATTN_DEVICE_OK;
  }
  std::string text = "a tensor map of";
  for (int i = 3; i >= 0; --i)
    text += (i < 3 ? " x " : " ") + std::to_string(tensor.sizes[i]);
  text += " elements, strides of";
  for (int i = 2; i >= 0; --i)
    text += (i < 2 ? ", " : " ") + std::to_string(tensor.strides[i]);
  return failed(text + " bytes and boxes of " + std::to_string(box[1]) + " x " +
                    std::to_string(box[0]),
                result);
}
