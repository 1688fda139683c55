#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy over every source file of lib, tools and unittests, or over the files given.
# Fails if there is a finding. DIFFATTN_TIDY_JOBS: processes at a time, all cores by default.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# A build folder of its own, whose list of commands has each file alone.
build=$build/tidy
mkdir -p "$build"
setup_test_packages run-clang-tidy-22:clang-tidy-22
configure DIFFATTN_TESTS=ON CMAKE_UNITY_BUILD=OFF
# Generated headers and the list of commands must be there.
build_targets DiffAttnHeaders
commands=$build/commands
mkdir -p "$commands"
# A precompiled header is the compiler's own, and clang-tidy reads the headers as they stand.
python3 - "$build/compile_commands.json" "$commands/compile_commands.json" "$root" "$@" <<'PYTHON' || die "the list of commands could not be made"
import json
import os
import re
import sys

source, target, root, *files = sys.argv[1:]
layers = tuple(os.path.realpath(os.path.join(root, layer)) + os.sep for layer in ("lib", "tools", "unittests"))
entries = {}
for entry in json.load(open(source)):
    path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    if path.startswith(layers):
        command = re.sub(r"-Xclang -include(-pch)? -Xclang \S+|-Winvalid-pch|-fpch-\S+|-Xclang -fno-pch-timestamp", "", entry["command"])
        entries[path] = {**entry, "command": command}
wanted = [os.path.realpath(file) for file in files] or sorted(entries)
for path in wanted:
    if path not in entries:
        sys.exit(f"error: expected a source file that the build compiles, but got {path}")
with open(target, "w") as out:
    json.dump([entries[path] for path in wanted], out, indent=1)
PYTHON
say "clang-tidy over $(grep -c '"file"' "$commands/compile_commands.json") files"
run-clang-tidy-22 -quiet -p "$commands" -j "${DIFFATTN_TIDY_JOBS:-$jobs}" >"$commands/findings" 2>"$commands/log" || {
  grep -E '(warning|error): ' -A4 "$commands/findings" | head -200 || true
  die "clang-tidy has findings; all of its words are in ${commands#"$root"/}/findings and log"
}
say "no findings"
