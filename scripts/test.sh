#!/usr/bin/env bash
# Sets up, builds and runs every test: lit, GoogleTest, pytest. Each runner ends with its own summary.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

full=0
for arg in "$@"; do
  case $arg in
    --full) full=1 ;;
    *)
      echo "usage: scripts/test.sh [--full]"
      echo "  --full  more random configurations and the long tests"
      [ "$arg" = --help ] && exit 0 || exit 2
      ;;
  esac
done

setup_test_packages clang-format-22:clang-format-22
# Beside the build, since pip waits and works on one core. It ends with this script, however that ends.
setup_python "$root/python/requirements.txt" "$root/python/requirements-test.txt" &
python_setup=$!
trap wait EXIT
configure DIFFATTN_TESTS=ON
build_targets
wait $python_setup || exit 1
failed=() options=()
if [ -z "${MLIR_DIR:-}" ]; then
  # Before pytest, whose processes use what is built.
  rm -rf "$build/wheel/tested"
  "$root/scripts/build-wheel.sh" -o "$build/wheel/tested" || failed+=(wheel)
  setup_wheelhouse
  DIFFATTN_WHEEL_FILE=$(echo "$build"/wheel/tested/*.whl)
  export DIFFATTN_WHEEL_FILE
else
  say "without the wheel and its tests: it is made of Debian's MLIR, not of $MLIR_DIR"
  options+=(--ignore=test/python/test_wheel_binary.py)
fi

say "lit"
"$venv/bin/python" "$(llvm_bin)/lit" -s -v "$build/test" || failed+=(lit)

say "GoogleTest"
run_unit_tests

say "pytest"
[ $full = 1 ] && options+=(--full)
# Each process runs whole files, in the order of conftest.py. Threads that wait do not spin, as in run_unit_tests; those of NumPy's
# OpenBLAS would all the same, so it has one.
# A process that crashes is not started anew: with whole files pytest-xdist then waits for ever.
(cd "$root" && OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -n "$processes" --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=25 --durations-min=5 \
  "${options[@]}" test/python) ||
  failed+=(pytest)

if [ ${#failed[@]} -gt 0 ]; then
  die "failed: ${failed[*]}"
fi
