#!/usr/bin/env bash
# Packs every shipped GPU kernel, and models, for scripts/gpu-check.sh. Needs the build and ptxas, no GPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

output=$build/gpu-pack
options=()
while [ $# -gt 0 ]; do
  case $1 in
    -o) [ $# -gt 1 ] || die "expected a folder after -o"; output=$2; shift ;;
    --chips=* | --cases=* | --models=* | --device=* | --jobs=*) options+=("$1") ;;
    *)
      echo "usage: scripts/gpu-pack.sh [-o DIR] [--chips=sm_80,sm_90,sm_90a] [--cases=NAME,...] [--models=NAME,...] [--device=cuda|sim] [--jobs=N]"
      echo "  -o DIR    where to; by default build/gpu-pack"
      echo "  --chips   chips that get machine code; the first one's PTX serves all others"
      echo "  --cases   only these ops of tools/gpu-check/gpu_check/cases.py"
      echo "  --models  only these of tools/gpu-check/gpu_check/model_pack.py, or none; by default all, none with --cases"
      echo "  --device  cuda: cubins and PTX. sim: code for the simulator"
      [ "$1" = --help ] && exit 0 || exit 2
      ;;
  esac
  shift
done

[ -x "$build/bin/diffattn-opt" ] || die "expected $build/bin/diffattn-opt: build first"
# The CUDA Toolkit's assembler where there is one, else the one that the Python packages of the tests bring.
for folder in /usr/local/cuda/bin "$venv"/lib/python3*/site-packages/nvidia/cu13/bin; do
  [ -x "$folder/ptxas" ] && PATH=$PATH:$folder
done
# The models are compiled through the Python package.
python=$venv/bin/python
[ -x "$python" ] || die "expected $python: scripts/test.sh makes it"
exec "$python" "$root/tools/gpu-check" pack --build "$build" --output "$output" --llvm-as "$(llvm_bin)/llvm-as" "${options[@]}"
