#!/usr/bin/env bash
# Makes the environment of the tests with vLLM (scripts/test-vllm.sh): the releases of python/requirements-vllm.txt and our own package,
# in .venv-vllm or where DIFFATTN_VLLM_VENV says; about 3 GB. pip has to find the build of PyTorch for CPUs, whose version ends in
# "+cpu": PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS tell it where.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

venv=${DIFFATTN_VLLM_VENV:-$root/.venv-vllm}
setup_pinned "$root/python/requirements-vllm.txt"
# The entry point by which vLLM finds the plugin is a part of the installed package.
setup_package
