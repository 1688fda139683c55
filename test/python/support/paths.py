"""Where the project, its tests and its tools lie."""
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
TESTS = ROOT / "test" / "python"
#: Folders whose modules tests import from: what several rooms share, and rooms, since tests take cases of other rooms' tests. The folder `import`
#: is none: its own folders are named as packages are.
MODULES = [TESTS / name for name in ("support", "attention", "cpu", "gpu", "runtime", "import/torch", "models")]
#: Where clang and the tools of LLVM and MLIR lie.
LLVM = pathlib.Path(os.environ.get("LLVM_TOOLS_DIR", "/usr/lib/llvm-22/bin"))
