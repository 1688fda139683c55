#!/usr/bin/env bash
# Installs every Debian package that the scripts and tests want: what they would install themselves, all at once, and a browser for the
# tests of reports. For images of containers, in which the scripts then need no rights.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ $# = 0 ] || { echo "usage: scripts/setup-packages.sh"; [ "$1" = --help ] && exit 0 || exit 2; }

setup_test_packages clang-format-22:clang-format-22 clang-tidy-22:clang-tidy-22 run-clang-tidy-22:clang-tidy-22 chromium:chromium \
  /usr/lib/llvm-22/lib/clang/22/lib/linux/libclang_rt.asan-x86_64.so:libclang-rt-22-dev python3:python3 /usr/share/doc/python3-venv:python3-venv
setup_wheel_packages
