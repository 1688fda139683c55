#!/usr/bin/env bash
# Builds lib/ with Clang's counters of regions into build-coverage/, runs lit, GoogleTest and the pytest files that load our
# libraries, and prints the lines and branches of lib/ and include/ that ran, by folder. Kernels that are compiled at run time have no
# counters, and assertions are compiled out.
set -euo pipefail
export DIFFATTN_BUILD_DIR=${DIFFATTN_BUILD_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-coverage}
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

all=(lit unit attention cpu gpu runtime import models tools fuzz)
usage() {
  echo "usage: scripts/coverage.sh [--report] [PART...]"
  echo "  --report  runs nothing; reads the counters of all runs so far"
  echo "  PART      one of ${all[*]}, of which those behind unit are rooms of test/python; without one lit unit attention cpu gpu runtime"
  echo "Counters add up in build-coverage/profiles until that folder is removed. build-coverage/uncovered.txt gets the lines that did not run."
}
report=0 parts=()
for arg in "$@"; do
  case $arg in
    --help) usage; exit 0 ;;
    --report) report=1 ;;
    *)
      [[ " ${all[*]} " == *" $arg "* ]] || die "expected a part of ${all[*]}, but got '$arg'"
      parts+=("$arg")
      ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(lit unit attention cpu gpu runtime)
failed=() rooms=()

# Counters lie in a file for each library and program, which all processes share and map: those of a process that is killed count too.
mkdir -p "$build/profiles"
export LLVM_PROFILE_FILE=$build/profiles/%m%c.profraw
if [ $report = 0 ]; then
  setup_test_packages
  clang_runtime profile-x86_64.a >/dev/null
  setup_python "$root/python/requirements.txt" "$root/python/requirements-test.txt"
  # Most of the optimizer takes as long as all the rest, and changes no count.
  configure DIFFATTN_COVERAGE=ON DIFFATTN_TESTS=ON "CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
  build_targets
  for part in "${parts[@]}"; do
    case $part in
      lit)
        say "lit"
        "$venv/bin/python" "$(llvm_bin)/lit" -s -v "$build/test" || failed+=(lit)
        ;;
      unit)
        say "GoogleTest"
        run_unit_tests
        ;;
      *) rooms+=("$root/test/python/$part") ;;
    esac
  done
  if [ ${#rooms[@]} -gt 0 ]; then
    say "pytest"
    run_pytest -m "not oracle" "${rooms[@]}"
  fi
fi

say "report"
objects=()
for file in "$build"/bin/* "$build"/lib/*.so "$build"/unittests/*; do
  # The driver's stand-ins and logs lie in folders there.
  if [ -x "$file" ] && [ -f "$file" ]; then objects+=(${objects:+-object} "$file"); fi
done
"$(llvm_bin)/llvm-profdata" merge -o "$build/coverage.profdata" "$build"/profiles/*.profraw
"$(llvm_bin)/llvm-cov" export "${objects[@]}" -instr-profile "$build/coverage.profdata" -skip-expansions -skip-functions \
  "$root/lib" "$root/include" >"$build/coverage.json" 2>"$build/coverage.log" || { tail "$build/coverage.log" >&2; die "llvm-cov failed"; }
"$venv/bin/python" "$root/scripts/coverage_table.py" "$build/coverage.json" --lines "$build/uncovered.txt"
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
