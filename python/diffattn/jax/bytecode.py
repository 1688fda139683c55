"""Bytecode of StableHLO as text, by another process: MLIR's reader of bytecode does not stand damaged files.

Run as a program, it reads standard input and writes standard output.
"""

from __future__ import annotations

import os
import subprocess
import sys

from ..errors import IRError
from ..text import shown

_MARK = "diffattn: "


def to_text(data: bytes) -> str:
    """Raises IRError for what cannot be read, also if the reader crashes."""
    done = subprocess.run([sys.executable, "-m", __name__], input=data, capture_output=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"})
    if not done.returncode:
        return done.stdout.decode()
    message = done.stderr.decode(errors="replace")
    reason = message[message.rindex(_MARK) + len(_MARK):].strip() if _MARK in message else shown("its reader crashed")
    raise IRError(f"expected a module of StableHLO that jaxlib reads, but got: {reason}")


def _main() -> None:
    from ..errors import DiffAttnError
    from .stablehlo import make_context, parse

    try:
        text = str(parse(make_context(), sys.stdin.buffer.read()))
    except DiffAttnError as error:
        sys.exit(_MARK + str(error).rpartition("but got: ")[2])
    sys.stdout.buffer.write(text.encode())


if __name__ == "__main__":
    _main()
