#!/usr/bin/env bash
# Assembles every shipped GPU kernel with ptxas and prints registers, spills, shared memory and occupancy. No GPU is needed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

chips=sm_80,sm_90,sm_90a
more=()
for arg in "$@"; do
  case $arg in
    --full) chips=sm_80,sm_86,sm_89,sm_90,sm_90a more=(--every) ;;
    *)
      echo "usage: scripts/ptxas-report.sh [--full]"
      echo "  --full  all chips: sm_80, sm_86, sm_89, sm_90, sm_90a, without it sm_80, sm_90, sm_90a; and all kernels that the table of"
      echo "          schedules can choose, without it those of known models"
      [ "$arg" = --help ] && exit 0 || exit 2
      ;;
  esac
done

# The CUDA Toolkit's assembler where there is one, else the one that the Python packages of the tests bring.
for folder in /usr/local/cuda/bin "$venv"/lib/python3*/site-packages/nvidia/cu13/bin; do
  [ -x "$folder/ptxas" ] && PATH=$PATH:$folder
done
command -v ptxas >/dev/null || die "expected ptxas of the CUDA Toolkit or of the package nvidia-cuda-nvcc, but found none"
exec python3 "$root/tools/gpu-check" ptxas --opt "$build/bin/diffattn-opt" --chips "$chips" "${more[@]}"
