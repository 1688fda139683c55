#!/usr/bin/env bash
# Makes the environment of the tests with vLLM (scripts/test-vllm.sh): the releases of python/requirements-vllm.txt and our own package,
# in .venv-vllm or where DIFFATTN_VLLM_VENV says; about 3 GB. pip has to find the build of PyTorch for CPUs, whose version ends in
# "+cpu": PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS tell it where.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

venv=${DIFFATTN_VLLM_VENV:-$root/.venv-vllm}
requirements=$root/python/requirements-vllm.txt
if [ ! -x "$venv/bin/python" ]; then
  say "making a Python environment in ${venv#"$root"/}"
  python3 -m venv "$venv" || die "python3 -m venv failed"
fi
stamp=$venv/.installed-requirements-vllm.txt
if ! cmp -s "$requirements" "$stamp"; then
  say "installing Python packages of ${requirements#"$root"/}"
  # The file names every package, so that none comes without its hash.
  pip_install --require-hashes --no-deps --only-binary :all: -r "$requirements" || die "pip could not install $requirements; a network is needed the first time"
  cp "$requirements" "$stamp"
fi
# The entry point by which vLLM finds the plugin is a part of the installed package.
setup_package
