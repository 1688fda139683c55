"""Where the project and its tools lie."""
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Where clang and the tools of LLVM and MLIR lie.
LLVM = pathlib.Path(os.environ.get("LLVM_TOOLS_DIR", "/usr/lib/llvm-22/bin"))
