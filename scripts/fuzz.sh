#!/usr/bin/env bash
# Runs the fuzz targets, those of C++ under libFuzzer with AddressSanitizer and UBSan, those of Python under atheris, one after the
# other. CONTRIBUTING.md says how to add one, docs/security.md what each reads.
set -euo pipefail
export DIFFATTN_BUILD_DIR=${DIFFATTN_BUILD_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-fuzz}
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cpp=(json safetensors weight-index npy signature manifest cache-record options bundle calls module passes schedules compile simulator)
python=(config generation-config weight-header tokenizer requests chat-template onnx stablehlo saved-program)
usage() {
  echo "usage: scripts/fuzz.sh [--seconds N] [--executions N] [--counts] [TARGET...]"
  echo "  --seconds N     of all targets together; 60 without it, with --executions those of all runs of a target, 7200 without it"
  echo "  --executions N  each target until its runs have so many, or took --seconds; a later run goes on where this one was stopped"
  echo "  --counts        runs nothing; prints the executions and seconds of all runs so far as a table"
  echo "  TARGET          one of ${cpp[*]} ${python[*]}; all without one"
  echo "Inputs that lead on are kept in build-fuzz/corpus, findings in build-fuzz/found, counts in build-fuzz/counts.tsv."
}

seconds= executions= counts=0 targets=()
number() { [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "$1: expected a number from 1, but got '${2:-}'"; }
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --seconds) number "$@"; seconds=$2; shift ;;
    --executions) number "$@"; executions=$2; shift ;;
    --counts) counts=1 ;;
    *)
      [[ " ${cpp[*]} ${python[*]} " == *" $1 "* ]] || die "expected a target of ${cpp[*]} ${python[*]}, but got '$1'"
      targets+=("$1")
      ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || targets=("${cpp[@]}" "${python[@]}")
if [ -n "$executions" ]; then
  share=${seconds:-7200}
else
  share=$((${seconds:-60} / ${#targets[@]}))
fi
[ $share -gt 0 ] || die "--seconds: expected at least one for each of ${#targets[@]} targets, but got $seconds"

# sum TARGET: executions and seconds of its runs, a line of counts.tsv each.
sum() { awk -F '\t' -v target="$1" '$1 == target { n += $2; s += $3 } END { print n + 0, s + 0 }' "$build/counts.tsv"; }
mkdir -p "$build"
touch "$build/counts.tsv"
if [ $counts = 1 ]; then
  printf '| target | executions | time |\n|---|---|---|\n'
  for target in "${targets[@]}"; do
    read -r n s < <(sum "$target")
    printf '| `%s` | %d | %d s |\n' "$target" "$n" "$s"
  done | sed -E ':again; s/([0-9])([0-9]{3})($|[^0-9])/\1,\2\3/; t again'
  exit 0
fi

is_python() { [[ " ${python[*]} " == *" $1 "* ]]; }
any() { local test=$1 target; shift; for target in "$@"; do if "$test" "$target"; then return 0; fi; done; return 1; }
is_cpp() { ! is_python "$1"; }
if any is_cpp "${targets[@]}"; then
  setup_packages
  clang_runtime fuzzer-x86_64.a >/dev/null
  configure DIFFATTN_FUZZERS=ON DIFFATTN_TESTS=OFF
  build_targets diffattn-fuzz
fi
if any is_python "${targets[@]}"; then
  setup_python "$root/python/requirements.txt" "$root/python/requirements-test.txt"
  # Beside the environment, which the tests use as it is.
  cmp -s "$root/python/requirements-fuzz.txt" "$venv/fuzz/requirements.txt" || {
    rm -rf "$venv/fuzz"
    pip_install --no-deps --target "$venv/fuzz" -r "$root/python/requirements-fuzz.txt" || die "pip could not install python/requirements-fuzz.txt"
    cp "$root/python/requirements-fuzz.txt" "$venv/fuzz/requirements.txt"
  }
fi

# As in test-asan.sh: MLIR, LLVM and most layers are not instrumented.
export ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0:allow_user_poisoning=0:detect_odr_violation=0
ASAN_OPTIONS+=:detect_stack_use_after_return=0:allocator_may_return_null=1
# Stacks of allocations take a fifth of the time; a finding is run again for them, without this.
ASAN_OPTIONS+=:malloc_context_size=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
ASAN_SYMBOLIZER_PATH=$(llvm_bin)/llvm-symbolizer
export ASAN_SYMBOLIZER_PATH OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Targets that read folders write each input to a file.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm

# run TARGET SECONDS [OPTION...]: its words, and the ends of numbers, are put into inputs as they are.
run() {
  local seeds=$root/fuzz/corpus/$1 words=$build/words/$1 log=$build/logs/$1.log begin=$SECONDS status=0 program
  mkdir -p "$build/corpus/$1" "$build/found/$1" "$build/words" "$build/logs"
  { grep -ohaE '[A-Za-z_.#!%]{3,}' -r "$seeds" | sort -u; printf '%s\n' -1 1e999 9223372036854775808 18446744073709551616 null '[]' '{}'; } |
    sed 's/.*/"&"/' >"$words"
  if is_python "$1"; then
    program=(env "PYTHONPATH=$venv/fuzz:$root/python" "$venv/bin/python" "$root/fuzz/python")
  else
    program=("$build/fuzz/diffattn-fuzz")
  fi
  "${program[@]}" --target="$1" -dict="$words" -max_len=4096 -timeout=30 -rss_limit_mb=6000 -detect_leaks=0 -print_final_stats=1 \
    -max_total_time="$2" -artifact_prefix="$build/found/$1/" "${@:3}" "$build/corpus/$1" "$seeds" >"$log" 2>&1 || status=$?
  # Also of a run that ends at a finding. One that is interrupted may have no number in its last lines, but has them on the way.
  printf '%s\t%s\t%s\n' "$1" "$(sed -nE 's/^stat::number_of_executed_units: *//p; s/^#([0-9]+)\t.*/\1/p' "$log" | tail -1)" \
    $((SECONDS - begin)) >>"$build/counts.tsv"
  return $status
}

failed=()
for target in "${targets[@]}"; do
  options=("$share")
  if [ -n "$executions" ]; then
    read -r n s < <(sum "$target")
    [ "$n" -lt "$executions" ] && [ "$s" -lt "$share" ] || continue
    options=($((share - s)) -runs=$((executions - n)))
  fi
  if run "$target" "${options[@]}"; then
    echo "$target: $(tail -1 "$build/counts.tsv" | awk -F '\t' '{ print $2 " executions in " $3 " s" }')"
  else
    failed+=("$target")
    echo "$target: a finding in ${build#"$root"/}/found/$target"
    grep -aE -A12 '^finding:|ERROR:|runtime error:|Error: |Exception' "$build/logs/$target.log" | head -40
  fi
done
[ ${#failed[@]} -eq 0 ] || die "findings: ${failed[*]}; the logs are in ${build#"$root"/}/logs"
