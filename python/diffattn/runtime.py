"""Compiled modules on arrays: the C API of libDiffAttnC through ctypes.

    executable = Executable(mlir_text, weights=["model.safetensors"])
    logits, = executable.call("forward", ids)

Arrays are NumPy's (bfloat16 as `ml_dtypes.bfloat16`) or anything with `__dlpack__`. They are used where they lie: strided
views are copied only where the function takes dense tensors. An argument that a function updates (a cache) is changed in
place and returned as the same object.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import sysconfig
import threading
import weakref

import ml_dtypes
import numpy as np

API_MAJOR = 1
MOST_RANK = 16

#: In the order of diffattn_dtype.
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int64, np.int32, np.bool_,
                                np.int8, np.uint8, np.int16)]
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_KINDS = ("tensor", "memref", "scalar", "unsupported")


class DiffAttnError(RuntimeError):
    """A failure of the compiler or of compiled code; the subclasses say whose hands can put it right."""

    code = 0


class UsageError(DiffAttnError, ValueError):
    """Options, names of entries, numbers of arguments."""

    code = 2


class IRError(DiffAttnError):
    """The module does not parse or verify."""

    code = 3


class CompileError(DiffAttnError):
    """A sound module that the passes could not lower."""

    code = 4


class WeightsError(DiffAttnError):
    """Weight files: form, names, types, shapes."""

    code = 5


class InputError(DiffAttnError, ValueError):
    """Types and shapes of arguments."""

    code = 6


class RunError(DiffAttnError):
    """A check of the compiled code failed, or memory ran out."""

    code = 7


class OutputError(DiffAttnError, OSError):
    """Results could not be written."""

    code = 8


_ERRORS = {e.code: e for e in (UsageError, IRError, CompileError, WeightsError, InputError, RunError, OutputError)}


class _Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))]


class _Result(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("argument", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("shape", ctypes.c_int64 * MOST_RANK)]


class _Type(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("in_place", ctypes.c_int32), ("shape", ctypes.c_int64 * MOST_RANK)]


class Counters(ctypes.Structure):
    """What compiled code asked of the runtime since `reset_counters`."""

    _fields_ = [(name, ctypes.c_int64) for name in
                ("gemm_calls", "parallel_calls", "arena_grows", "arena_bytes_peak", "packs")]


def _library_folder() -> pathlib.Path:
    here = pathlib.Path(__file__).resolve().parent
    build = os.environ.get("DIFFATTN_BUILD_DIR")
    folders = [pathlib.Path(build).resolve() / "lib"] if build else []
    folders += [here / "lib", here.parents[1] / "build" / "lib"]
    for folder in folders:
        if (folder / "libDiffAttnC.so").exists():
            return folder
    raise DiffAttnError("expected libDiffAttnC.so in " + " or ".join(map(str, folders)) +
                        "; build it (scripts/demo.sh), or name the build folder in DIFFATTN_BUILD_DIR")


class _Library:
    """The C API, loaded at its first use."""

    def __init__(self):
        folder = _library_folder()
        # Compiled code must find the very runtime that the C API uses, so it is loaded first and by its path.
        self.runtime = ctypes.CDLL(str(folder / "libDiffAttnRuntime.so"))
        self.c = c = ctypes.CDLL(str(folder / "libDiffAttnC.so"))
        program, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
        size, out = ctypes.c_size_t, ctypes.POINTER
        for name, result, arguments in [
            ("diffattn_api_version", number, []),
            ("diffattn_version_text", text, []),
            ("diffattn_last_error", text, []),
            ("diffattn_options_create", ctypes.c_void_p, []),
            ("diffattn_options_destroy", None, [ctypes.c_void_p]),
            ("diffattn_options_set", number, [ctypes.c_void_p, text, text]),
            ("diffattn_compile", number, [text, size, ctypes.c_void_p, out(program)]),
            ("diffattn_program_destroy", None, [program]),
            ("diffattn_program_diagnostics", text, [program]),
            ("diffattn_program_from_cache", number, [program]),
            ("diffattn_bind_weights", number, [program, out(text), number]),
            ("diffattn_num_entries", number, [program]),
            ("diffattn_entry_name", text, [program, number]),
            ("diffattn_num_arguments", number, [program, text, out(number)]),
            ("diffattn_num_results", number, [program, text, out(number)]),
            ("diffattn_argument_type", number, [program, text, number, out(_Type)]),
            ("diffattn_result_type", number, [program, text, number, out(_Type)]),
            ("diffattn_num_weights", number, [program]),
            ("diffattn_weight_name", text, [program, number]),
            ("diffattn_call", number, [program, text, out(_Array), number, number, out(_Result), number]),
            ("diffattn_free", None, [ctypes.c_void_p]),
            ("diffattn_emit", number, [text, size, ctypes.c_void_p, text, out(ctypes.c_void_p), out(size)]),
        ]:
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        version = c.diffattn_api_version()
        if version // 1000 != API_MAJOR:
            raise DiffAttnError(f"expected version {API_MAJOR}.x of the C API, but libDiffAttnC.so has "
                                f"{version // 1000}.{version % 1000}; build it again")

    def check(self, status: int) -> None:
        if status:
            raise _ERRORS.get(status, DiffAttnError)(self.c.diffattn_last_error().decode())


_loaded: _Library | None = None


def library() -> _Library:
    global _loaded
    if _loaded is None:
        _loaded = _Library()
    return _loaded


def versions() -> str:
    """Versions of the project, MLIR and the GEMM library."""
    return library().c.diffattn_version_text().decode()


def counters() -> Counters:
    result = Counters()
    library().runtime.diffattn_rt_counters(ctypes.byref(result))
    return result


def reset_counters() -> None:
    library().runtime.diffattn_rt_counters_reset()


def cache_folder() -> str:
    """Where compiled code is kept: DIFFATTN_CACHE_DIR, else diffattn in the user's cache folder."""
    own = os.environ.get("DIFFATTN_CACHE_DIR")
    if own:
        return own
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "diffattn")


def as_array(value) -> np.ndarray:
    """`value` as a NumPy array without a copy: an array, a scalar, or anything with `__dlpack__`."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    return np.asarray(value)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_DL_DTYPES = {(2, 32): np.float32, (2, 16): np.float16, (4, 16): ml_dtypes.bfloat16, (2, 64): np.float64,
              (0, 64): np.int64, (0, 32): np.int32, (6, 8): np.bool_, (0, 8): np.int8, (1, 8): np.uint8, (0, 16): np.int16}


def _from_dlpack(value) -> np.ndarray:
    # numpy.from_dlpack refuses bfloat16, so the capsule is read here. It stays alive as long as the array does.
    if hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) != 1:
        raise InputError("expected an array in host memory, but got one on a device; copy it to the CPU first")
    try:
        capsule = value.__dlpack__()
    except (RuntimeError, BufferError, TypeError) as error:
        raise InputError(f"expected an array that can be exported by DLPack, but got: {error}") from error
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
    dtype = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise InputError(f"expected elements of {_names()}, but got DLPack type code {tensor.code} with {tensor.bits} bits")
    dtype = np.dtype(dtype)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    steps = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _dense(shape)
    # From the lowest to the highest byte that the view reaches.
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, steps))
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, steps)) + 1
    address = tensor.data + tensor.byte_offset + low * dtype.itemsize
    memory = (ctypes.c_char * ((high - low) * dtype.itemsize)).from_address(address)
    memory.owner = (capsule, value)
    return np.ndarray(shape, dtype, memory, -low * dtype.itemsize, tuple(s * dtype.itemsize for s in steps))


def _dense(shape):
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def _names() -> str:
    return ", ".join(str(d) for d in DTYPES)


def _owned(result: _Result) -> np.ndarray:
    """A result's memory as an array that frees it."""
    dtype = DTYPES[result.dtype]
    shape = tuple(result.shape[: result.rank])
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_char * max(count, 1)).from_address(result.data)
    weakref.finalize(memory, library().c.diffattn_free, ctypes.c_void_p(result.data))
    return np.frombuffer(memory, dtype, count=count // dtype.itemsize).reshape(shape)


class ValueType:
    """The type of an argument or result: `dtype` (NumPy), `shape` (None: any size), `kind`, `in_place`."""

    def __init__(self, raw: _Type):
        self.kind = _KINDS[raw.kind]
        self.dtype = DTYPES[raw.dtype]
        self.shape = tuple(None if n < 0 else n for n in raw.shape[: raw.rank])
        self.in_place = bool(raw.in_place)

    def __repr__(self):
        sizes = "".join(f"{'?' if n is None else n}x" for n in self.shape)
        return f"{self.kind}<{sizes}{self.dtype}>"


class Executable:
    """A compiled module. `mlir` is text (str) or bytecode (bytes).

    target    "cpu", or "cpu:" and an instruction set: native, avx512bf16, avx512, avx2, generic; or "cuda-sim:" and a chip
              (sm_80, sm_86, sm_89, sm_90): attention is GPU kernels, simulated
    weights   paths: safetensors files, indices of sharded checkpoints, folders
    threads   threads for each call; None: the runtime's default
    cache     True: compiled code is kept in `cache_folder()`; False: not; or a folder
    raise_attention, reference   see docs/knobs.md
    """

    def __init__(self, mlir, *, target="cpu", weights=(), threads=None, cache=True, name="module", raise_attention=True,
                 reference=False):
        lib = library()
        self._lib, self._threads = lib, int(threads or 0)
        self._one_call = threading.Lock()  # a program serves one thread at a time
        options = _options(lib, target=target, name=name, raise_attention=raise_attention, reference=reference,
                           cache=cache_folder() if cache is True else (cache or ""))
        try:
            ir = mlir.encode() if isinstance(mlir, str) else bytes(mlir)
            program = ctypes.c_void_p()
            lib.check(lib.c.diffattn_compile(ir, len(ir), options, ctypes.byref(program)))
        finally:
            lib.c.diffattn_options_destroy(options)
        self._program = program
        self._finalizer = weakref.finalize(self, lib.c.diffattn_program_destroy, program)
        self.diagnostics = lib.c.diffattn_program_diagnostics(program).decode()
        self.from_cache = bool(lib.c.diffattn_program_from_cache(program))
        self.entries = [lib.c.diffattn_entry_name(program, i).decode() for i in range(lib.c.diffattn_num_entries(program))]
        self._signatures: dict[str, tuple[list[ValueType], list[ValueType]]] = {}
        if weights:
            self.bind_weights(weights)

    @property
    def weight_names(self) -> list[str]:
        """Names of the declared weights; `{}` stands for the layer."""
        c = self._lib.c
        return [c.diffattn_weight_name(self._program, i).decode() for i in range(c.diffattn_num_weights(self._program))]

    def bind_weights(self, paths) -> None:
        paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        array = (ctypes.c_char_p * len(paths))(*[os.fsencode(p) for p in paths])
        self._lib.check(self._lib.c.diffattn_bind_weights(self._program, array, len(paths)))

    def signature(self, entry: str) -> tuple[list[ValueType], list[ValueType]]:
        """Types of the arguments and of the results of a function."""
        if entry not in self._signatures:
            c, key, count, lists = self._lib.c, entry.encode(), ctypes.c_int32(), []
            for number, describe in [(c.diffattn_num_arguments, c.diffattn_argument_type),
                                     (c.diffattn_num_results, c.diffattn_result_type)]:
                self._lib.check(number(self._program, key, ctypes.byref(count)))
                types = []
                for i in range(count.value):
                    raw = _Type()
                    self._lib.check(describe(self._program, key, i, ctypes.byref(raw)))
                    types.append(ValueType(raw))
                lists.append(types)
            self._signatures[entry] = (lists[0], lists[1])
        return self._signatures[entry]

    def call(self, entry: str, *arrays) -> list:
        """Calls a function and returns its results. A result that is an argument updated in place is that argument."""
        arguments, results = self.signature(entry)
        views = [self._view(entry, i, array, arguments) for i, array in enumerate(arrays)]
        keep, packed = [], (_Array * max(len(views), 1))()
        for slot, view in zip(packed, views):
            shape = (ctypes.c_int64 * view.ndim)(*view.shape)
            steps = (ctypes.c_int64 * view.ndim)(*[s // view.itemsize for s in view.strides])
            keep += [shape, steps]
            slot.data, slot.dtype, slot.rank = view.ctypes.data, _CODES[view.dtype], view.ndim
            slot.shape, slot.strides = shape, steps
        out = (_Result * max(len(results), 1))()
        with self._one_call:
            self._lib.check(self._lib.c.diffattn_call(self._program, entry.encode(), packed, len(views), self._threads, out,
                                                      len(results)))
        return [_owned(r) if r.argument < 0 else arrays[r.argument] for r in out[: len(results)]]

    @staticmethod
    def _view(entry, i, array, arguments) -> np.ndarray:
        view = as_array(array)
        expected = arguments[i] if i < len(arguments) else None
        if expected is not None and not isinstance(array, np.ndarray) and view.ndim == 0:
            view = view.astype(expected.dtype)  # a Python number has no type of its own
        if view.dtype not in _CODES:
            raise InputError(f"argument {i} of '{entry}': expected elements of {_names()}, but got {view.dtype}")
        if any(s % view.itemsize for s in view.strides):
            raise InputError(f"argument {i} of '{entry}': expected strides of whole elements, but got {view.strides} bytes")
        if expected is not None and expected.in_place and expected.kind == "tensor" and not view.flags.writeable:
            raise InputError(f"argument {i} of '{entry}': expected a writable array, because it is updated in place")
        return view


def _ptxas_folders() -> str:
    """Where else than in PATH an assembler may lie: the CUDA Toolkit, and the package nvidia-cuda-nvcc of this environment."""
    toolkit = os.environ.get("CUDA_HOME")
    return ":".join([f"{toolkit}/bin"] * bool(toolkit) + ["/usr/local/cuda/bin",
                                                         f"{sysconfig.get_paths()['purelib']}/nvidia/cu13/bin"])


def _options(lib, *, target, name, raise_attention, reference, cache, **more):
    options = lib.c.diffattn_options_create()
    try:
        for key, value in [("target", target), ("name", name), ("raise", "true" if raise_attention else "false"),
                           ("reference", "true" if reference else "false"), ("cache", str(cache)), *more.items()]:
            lib.check(lib.c.diffattn_options_set(options, key.encode(), value.encode()))
    except BaseException:
        lib.c.diffattn_options_destroy(options)
        raise
    return options


def emit(mlir, stage: str, *, target="cpu", raise_attention=True, reference=False, ptxas="ptxas") -> bytes:
    """The module after a stage of the pipeline: input, raised, scheduled, bufferized, gpu, ptx, cubin, loops, llvm, llvm-ir,
    assembly, object. ptx and cubin need a target "cuda:<chip>" and no GPU; cubin needs the assembler `ptxas`, a path or a
    name."""
    lib = library()
    options = _options(lib, target=target, name="module", raise_attention=raise_attention, reference=reference, cache="",
                       ptxas=str(ptxas), ptxas_folders=_ptxas_folders())
    try:
        ir = mlir.encode() if isinstance(mlir, str) else bytes(mlir)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        lib.check(lib.c.diffattn_emit(ir, len(ir), options, stage.encode(), ctypes.byref(text), ctypes.byref(size)))
    finally:
        lib.c.diffattn_options_destroy(options)
    try:
        return ctypes.string_at(text, size.value)
    finally:
        lib.c.diffattn_free(text)
