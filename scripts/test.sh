#!/usr/bin/env bash
# Sets up, builds and runs every test: lit, GoogleTest, pytest. Each runner ends with its own summary. Or, with --newest, the tests of
# what comes from other frameworks, against their newest releases.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

full=0 newest=0 build_options=()
for arg in "$@"; do
  case $arg in
    --full) full=1 ;;
    --newest) newest=1 ;;
    --assertions)
      # A build of its own, also for the scripts and tests that are called from here.
      build_options=(CMAKE_CXX_FLAGS_RELEASE=-O2)
      export DIFFATTN_BUILD_DIR=${DIFFATTN_BUILD_DIR:-$root/build-assertions}
      build=$DIFFATTN_BUILD_DIR
      ;;
    *)
      echo "usage: scripts/test.sh [--full] [--newest] [--assertions]"
      echo "  --full        more random configurations and the long tests"
      echo "  --newest      only the tests of other frameworks' models, with the releases of python/requirements-newest.txt (7 GB in .venv-newest)"
      echo "  --assertions  with the assertions of our own code, in build-assertions"
      [ "$arg" = --help ] && exit 0 || exit 2
      ;;
  esac
done

requirements=("$root/python/requirements.txt" "$root/python/requirements-test.txt")
if [ $newest = 1 ]; then
  venv=${DIFFATTN_NEWEST_VENV:-$root/.venv-newest} requirements=("$root/python/requirements-newest.txt")
fi
# The wheel's packages, options and targets come with the others: each further call of apt-get, cmake and ninja takes seconds.
with_wheel=0 packages=(clang-format-22:clang-format-22) targets=(all)
if [ $newest = 0 ] && [ -z "${MLIR_DIR:-}" ]; then
  with_wheel=1 packages+=("${wheel_packages[@]}") build_options+=(DIFFATTN_WHEEL=ON) targets+=(DiffAttnWheel)
fi
setup_test_packages "${packages[@]}"
# Beside the build, since pip waits and works on one core. It ends with this script, however that ends.
setup_python "${requirements[@]}" &
python_setup=$!
trap wait EXIT
configure DIFFATTN_TESTS=ON "${build_options[@]}"
build_targets "${targets[@]}"
wait $python_setup || exit 1
failed=() options=()
[ $full = 0 ] || options+=(--full)
if [ $newest = 1 ]; then
  say "pytest, with $(cd "$root" && grep -Eo '^(torch|transformers|timm|torch-mlir|onnx|jax)==[^ ]+' "${requirements[0]}" | tr '\n' ' ')"
  cd "$root"
  run_pytest "${options[@]}" test/python/models test/python/import/{torch,onnx,jax} test/python/import/graphs/test_import.py
  [ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
  exit 0
fi
if [ $with_wheel = 1 ]; then
  # Beside lit, since what packs works on one core, and before pytest, whose processes use what is built.
  rm -rf "$build/wheel/tested"
  { "$root/scripts/build-wheel.sh" -o "$build/wheel/tested" && setup_wheelhouse; } &
  wheel=$!
else
  say "without the wheel and its tests: it is made of Debian's MLIR, not of $MLIR_DIR"
  options+=(--ignore=test/python/tools/test_wheel_binary.py)
fi

say "lit"
"$venv/bin/python" "$(llvm_bin)/lit" -s -v "$build/test" || failed+=(lit)
if [ $with_wheel = 1 ]; then
  wait $wheel || failed+=(wheel)
  DIFFATTN_WHEEL_FILE=$(echo "$build"/wheel/tested/*.whl)
  export DIFFATTN_WHEEL_FILE
fi

say "GoogleTest"
run_unit_tests

say "pytest"
run_pytest "${options[@]}" test/python

if [ ${#failed[@]} -gt 0 ]; then
  die "failed: ${failed[*]}"
fi
