"""Compiled models without their compiler: a bundle that diffattn-run or `diffattn bundle` has written.

    model = diffattn.bundle.load("tiny.bundle")
    logits, = model.call("forward", ids)
    for piece in model.generate("In the beginning"): ...

Needs libDiffAttnBundle.so with libDiffAttnRuntime.so beside it, Python 3.9 or newer and NumPy; text needs `tokenizers`,
bfloat16 arrays are `ml_dtypes.bfloat16` where that is installed. Neither MLIR nor LLVM is loaded. See docs/bundles.md.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from . import arguments, checks, files
from .arguments import ArrayLike, FilePath
from .arrays import BFLOAT16
from .calls import CLibrary, CompiledCode, GoOn, Progress, ProgressCallback, load_runtime
from .checkpoint import has_weights, is_bundle, kind_of_file, read_config
from .errors import BundleError
from .generation import CompiledModel
from .library import library_folder

API_MAJOR = 1
FLOATS = {np.dtype(np.float32): "f32", BFLOAT16: "bf16", np.dtype(np.float16): "f16"}


class _Options(ctypes.Structure):
    """diffattn_bundle_options of Bundle.h."""
    _fields_ = [("struct_bytes", ctypes.c_int32), ("gpu", ctypes.c_int32), ("weights", ctypes.c_char_p),
                ("cuda_driver", ctypes.c_char_p), ("cublaslt", ctypes.c_char_p), ("package_folders", ctypes.c_char_p),
                ("device", ctypes.c_void_p), ("progress", Progress), ("progress_data", ctypes.c_void_p),
                ("read_only", ctypes.c_int32), ("go_on", GoOn)]


class _Library(CLibrary):
    """The loader of bundles, loaded at its first use."""

    def __init__(self):
        folder = library_folder("libDiffAttnBundle.so")
        self.runtime = load_runtime(folder)
        super().__init__(folder / "libDiffAttnBundle.so", "diffattn_bundle_")
        self.require(API_MAJOR, "libDiffAttnBundle.so")
        bundle = ctypes.c_void_p
        self.declare([
            ("open_with", ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(bundle)]),
            ("close", None, [bundle]),
            ("has_device", ctypes.c_int32, [bundle]),
        ])


_loaded: _Library | None = None


def library() -> _Library:
    global _loaded
    if _loaded is None:
        _loaded = _Library()
    return _loaded


class BundledCode(CompiledCode):
    """The functions of a bundle: `entries`, `signature(entry)` and `call(entry, *arrays)` as `runtime.Executable` has them.
    The arguments are those of `load`. With `read_only` the manifest is read and the bundle's own files are checked, on any
    machine: there are signatures and no calls."""

    def __init__(self, directory: FilePath, *, weights: FilePath | None = None, threads: int | None = None, gpu: int = 0,
                 cuda_driver: FilePath | None = None, cublaslt: FilePath | None = None, device: int | None = None,
                 progress: arguments.Progress | None = None, read_only: bool = False) -> None:
        named = {"weights": weights, "cuda_driver": cuda_driver, "cublaslt": cublaslt,
                 "package_folders": sysconfig.get_paths()["purelib"]}
        paths = [None if path is None else os.fsencode(checks.path(name, path)) for name, path in named.items()]
        directory, threads = os.fsencode(checks.path("directory", directory)), checks.threads(threads)
        gpu = checks.integer("gpu", gpu, 0, checks.MOST_INT32)
        device = None if device is None else checks.integer("device", device, 1, (1 << 64) - 1)
        read_only = checks.flag("read_only", read_only)
        callback = ProgressCallback(progress)
        options = _Options(ctypes.sizeof(_Options), gpu, *paths, device, Progress(), None, read_only, callback.c)
        lib, handle = library(), ctypes.c_void_p()
        with callback:
            status = lib.open_with(directory, ctypes.byref(options), ctypes.byref(handle))
        callback.check(lib, status)
        self._finalizer = weakref.finalize(self, lib.close, handle)
        super().__init__(lib, handle, threads)
        self.ordinal = gpu if lib.has_device(handle) else None


class BundledModel(CompiledModel):
    """A bundle's functions by `call`; if it was made from a model's folder, also what `diffattn.load` gives: `forward`,
    `generate`, `bits_per_character`, `timing`."""

    @property
    def dtype(self) -> str:
        """The element type of a decoder's caches and matrices: f32, bf16 or f16."""
        return FLOATS[self.new_caches(1, 0)[0].dtype]

    def call(self, entry: str, *arrays: ArrayLike, stream: Any = None) -> list[Any]:
        return self.executable.call(entry, *arrays, stream=stream)


def load(directory: FilePath, *, weights: FilePath | None = None, threads: int | None = None, gpu: int = 0,
         cuda_driver: FilePath | None = None, cublaslt: FilePath | None = None, device: int | None = None,
         progress: arguments.Progress | None = None) -> BundledModel:
    """Opens a bundle, and so runs its code: open only what you trust (docs/security.md). `weights` is a folder to take its weight files from, by their names, if they are not where the bundle
    says; `threads` are for each call (None: the runtime's default). A bundle with kernels runs on GPU number `gpu`;
    `cuda_driver` and `cublaslt` are libcuda.so.1 and libcublasLt.so.13, where the system's loader finds none. `device` is the
    address of a diffattn_device (DiffAttn/Runtime/ABI/Device.h) to run on in place of that GPU, which must outlive the model.
    `progress(done, total)` is called between weights, with the bytes that have been bound or copied to the GPU, and those of
    all; what it raises ends the loading and is raised by it."""
    directory = Path(checks.path("directory", directory))
    if not is_bundle(directory) and has_weights(directory):
        raise BundleError(f"{directory}: expected a bundle, but got a checkpoint; diffattn.load compiles it")
    if os.path.isfile(directory):
        raise BundleError(f"{directory}: expected the folder of a bundle, but got {kind_of_file(directory)}")
    code = BundledCode(directory, weights=weights, threads=threads, gpu=gpu, cuda_driver=cuda_driver, cublaslt=cublaslt,
                       device=device, progress=progress)
    config = read_config(directory) if files.exists(directory / "config.json") else {}
    return BundledModel(code, directory, config, str(config.get("model_type", config.get("architecture", "a bundle"))))
