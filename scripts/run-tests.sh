#!/usr/bin/env bash
# Runs a part of the tests on what is built, as the targets check-diffattn-* do: `unit` (GoogleTest), `python` (the tests in Python that are
# quick) or `integration` (the others: whole models, commands of documents, installing, benchmarks).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

failed=()
case ${1:-} in
  unit) run_unit_tests ;;
  python | integration)
    [ -x "$venv/bin/python" ] || die "expected Python with the packages of the tests in $venv, which scripts/test.sh makes, but it is not there"
    export DIFFATTN_BUILD_DIR=$build
    # Tests of the wheel, which they build if there is none, install it without a network.
    if [ "$1" = integration ]; then marked=integration && setup_wheelhouse; else marked="not integration"; fi
    run_pytest -m "$marked" "${@:2}" test/python
    ;;
  *)
    echo "usage: scripts/run-tests.sh unit|python|integration [arguments of pytest]"
    [ "${1:-}" = --help ] && exit 0 || exit 2
    ;;
esac
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
