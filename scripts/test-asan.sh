#!/usr/bin/env bash
# Builds our own code with AddressSanitizer and UBSan into build-asan/ and runs lit and GoogleTest on it.
# LLVM's own libraries are not instrumented, so checks of containers that cross into them are off.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
build=${DIFFATTN_BUILD_DIR:-$root/build-asan}
setup_packages /usr/include/gtest/gtest.h:libgtest-dev
setup_python "$root/python/requirements.txt" "$root/python/requirements-test.txt"
[ -f "$build/build.ninja" ] || cmake -G Ninja -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DDIFFATTN_SANITIZE=ON \
  ${MLIR_DIR:+-DMLIR_DIR="$MLIR_DIR"}
build_targets
runtime=$("$(llvm_bin)/clang" -print-file-name=libclang_rt.asan-x86_64.so)
export ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0:detect_odr_violation=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export LD_PRELOAD=$runtime DIFFATTN_BUILD_DIR=$build
failed=()
"$venv/bin/python" "$(llvm_bin)/lit" -s -v "$build/test" || failed+=(lit)
for binary in "$build"/unittests/*; do
  [ -x "$binary" ] && [ -f "$binary" ] && { "$binary" --gtest_brief=1 || failed+=("$(basename "$binary")"); }
done
(cd "$root" && "$venv/bin/python" -m pytest -q test/python -m "not oracle") || failed+=(pytest)
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
