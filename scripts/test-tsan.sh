#!/usr/bin/env bash
# Runs the unit tests of bundles in several threads under ThreadSanitizer, with the runtime and the loader of bundles instrumented, in
# build-tsan/. The compiler's layers are as they are elsewhere, and so is code that is compiled at run time.
set -euo pipefail
export DIFFATTN_BUILD_DIR=${DIFFATTN_BUILD_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-tsan}
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_test_packages
clang_runtime tsan-x86_64.a >/dev/null
# oneDNN has threads of its own, which are not instrumented: products are the runtime's.
configure DIFFATTN_TSAN=ON DIFFATTN_ONEDNN=OFF DIFFATTN_TESTS=ON
build_targets BundleCallTests

export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
exec "$build/unittests/BundleCallTests" --gtest_brief=1 --gtest_filter=-'Soak.*'
