#!/usr/bin/env bash
# Runs the tests of the plugin for vLLM (test/vllm), in an environment of their own that scripts/setup-vllm.sh makes; scripts/test.sh does
# not run them. Arguments are pytest's, as in `scripts/test-vllm.sh test/vllm/test_diffllama.py`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_packages
if [ -f "$build/build.ninja" ]; then configure; else configure DIFFATTN_TESTS=OFF; fi
build_targets
"$root/scripts/setup-vllm.sh"
cd "$root"
# One thread for each of vLLM's ranks, and one engine at a time: each takes gigabytes.
OMP_NUM_THREADS=1 DIFFATTN_BUILD_DIR=$build "${DIFFATTN_VLLM_VENV:-$root/.venv-vllm}/bin/python" -m pytest -q --durations=10 --disable-warnings "${@:-test/vllm}"
