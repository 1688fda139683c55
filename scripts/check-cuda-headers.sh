#!/usr/bin/env bash
# Compares what lib/Runtime declares of the CUDA driver and of cuBLASLt with NVIDIA's own headers: the type of every function, every
# number, the layout of every struct. Nothing else needs those headers. They come in the packages nvidia-cuda-runtime,
# nvidia-cuda-crt and nvidia-cublas of PyPI, among others.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -gt 0 ] && [ "$1" != --help ] || {
  echo "usage: scripts/check-cuda-headers.sh FOLDER...   folders with cuda.h, cublasLt.h and crt/host_defines.h" >&2
  exit 2
}
stubs=$(mktemp -d)
trap 'rm -rf "$stubs"' EXIT
# Their bodies are of no interest, and want the headers of more packages.
echo 'struct __half;' > "$stubs/cuda_fp16.h"
echo 'struct __nv_bfloat16;' > "$stubs/cuda_bf16.h"
includes=()
for folder in "$@"; do includes+=(-isystem "$folder"); done
# CUDA's header then declares functions by the names that the library exports.
"${CXX:-clang++-22}" -std=c++17 -D__CUDA_API_VERSION_INTERNAL -isystem "$stubs" "${includes[@]}" -I"$root/lib/Runtime/Device" -I"$root/include" \
  "$root/scripts/cuda_headers.cpp" -o "$stubs/check"
"$stubs/check"
