"""Types of arguments that several functions take, for annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Union

#: NumPy's arrays, anything with `__dlpack__`, a number or lists of them: libraries that may be missing are not named.
ArrayLike = Any
FilePath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
FilePaths = Union[FilePath, Iterable[FilePath], None]
#: Text of MLIR, or bytecode.
ModuleText = Union[str, bytes, bytearray, memoryview]
#: Called with bytes done and bytes in all.
Progress = Callable[[int, int], object]
