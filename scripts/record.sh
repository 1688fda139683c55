#!/usr/bin/env bash
# Writes README's figures from the newest readings of benchmarks/results; --check only says whether they are those.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/record.py" "$@"
