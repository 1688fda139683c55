#!/usr/bin/env bash
# Checks and times the kernels that scripts/gpu-pack.sh packed. Needs Python 3.10 with PyTorch, no build and no network; see docs/gpu-check.md.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
case " $* " in
  *" --help "* | *" -h "*) ;; # wants nothing but the standard library
  *)
    "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || {
      echo "error: expected a Python with PyTorch: $python has none; name another with PYTHON=" >&2
      exit 1
    }
    ;;
esac
exec "$python" "$root/tools/gpu-check" check "$@"
