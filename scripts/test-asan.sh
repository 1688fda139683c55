#!/usr/bin/env bash
# Builds our own code with AddressSanitizer and UBSan into build-asan/ and runs on it: lit, GoogleTest with ten times the damaged
# inputs, and the pytest files that call our libraries. Left out are the tests of documents, of the tree and of the benchmark of two
# trees, which run build/, and the wheel's, those that need PyTorch as the oracle, and the one of the time of compiling. Code that is
# compiled at run time is not instrumented.
set -euo pipefail
export DIFFATTN_BUILD_DIR=${DIFFATTN_BUILD_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-asan}
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_test_packages
library=$(clang_runtime asan-x86_64.so)
setup_python "$root/python/requirements.txt" "$root/python/requirements-test.txt"
configure DIFFATTN_SANITIZE=ON DIFFATTN_TESTS=ON
build_targets

# libMLIR, LLVM and Python are not instrumented. So: what they keep at exit is no leak; a container that crosses over is marked
# by one side only; LLVM's allocators, inlined into our code, poison memory that libMLIR then uses; the layers are linked into the
# tools, the plugin and the C library alike; and the simulator's fibers leave the frames behind that a stack's reuse is found by.
export ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0:allow_user_poisoning=0:detect_odr_violation=0
ASAN_OPTIONS+=:detect_stack_use_after_return=0
# LLVM gives threads a stack for signals of its own, which the runtime would unmap as if it were the one that it gave.
ASAN_OPTIONS+=:use_sigaltstack=0
# Tests ask for more memory than a machine has, and want to be told.
ASAN_OPTIONS+=:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
ASAN_SYMBOLIZER_PATH=$(llvm_bin)/llvm-symbolizer
export ASAN_SYMBOLIZER_PATH
failed=()

# Python and stock MLIR tools load our libraries, and the sanitizer's runtime must come first in a process. Not in lit's own, which
# was seen to hang in it after a fork.
say "lit"
DIFFATTN_PRELOAD=$library "$venv/bin/python" "$(llvm_bin)/lit" -s -v "$build/test" || failed+=(lit)

say "GoogleTest"
DIFFATTN_FUZZ_CASES=${DIFFATTN_FUZZ_CASES:-15000} run_unit_tests

say "pytest"
(cd "$root" && LD_PRELOAD=$library "$venv/bin/python" -m pytest -q --capture=sys -m "not oracle" test/python --ignore=test/python/tools/test_docs.py \
  --ignore=test/python/tools/test_source_rules.py --ignore=test/python/tools/test_wheel_binary.py --ignore=test/python/tools/test_step_benchmark.py \
  --deselect test/python/runtime/test_runtime.py::test_a_whole_model_compiles_and_loads_fast) || failed+=(pytest)

if [ ${#failed[@]} -gt 0 ]; then
  die "failed: ${failed[*]}"
fi
