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
import pwd
import sysconfig
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from . import checks, tracing
from .arguments import ArrayLike, FilePath, FilePaths, ModuleText, Progress
from .arrays import CODES, DTYPES, MOST_RANK, Array, ValueType, as_array  # noqa: F401
from .calls import CLibrary, CompiledCode, GoOn, ProgressCallback, load_runtime
from .device import DeviceArray, Traffic, ordinal_of  # noqa: F401
from .errors import (BundleError, CompileError, DiffAttnError, InputError, IRError, LibraryError,  # noqa: F401
                     OutputError, RunError, UsageError, WeightsError)
from .library import library_folder

__all__ = ["BundleError", "CompileError", "CompiledCode", "Counters", "DeviceArray", "Diagnostic", "DiffAttnError", "Executable",
           "IRError", "InputError", "Judgement", "LibraryError", "OutputError", "RunError", "Traffic", "UsageError", "ValueType",
           "WeightsError", "cache_folder", "cache_limit", "counters", "emit", "library", "option_table", "reset_counters", "versions",
           "write_bundle"]

API_MAJOR = 1


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler about a module; `str()` is all of it as one line.

    kind       "missed": an optimization that was not applied, and why; "analysis": one that could be better; "passed": one that
               was applied; "warning", "note"
    category   "diffattn-fuse": raising; "diffattn-schedule", "diffattn-gpu": choice of kernels; "diffattn-cache"; "mlir"
    name       of the remark in its category: "NotRaised", "SelectSchedule", ...
    location   "model.mlir:3:8"; empty if it is not known
    """

    kind: str
    category: str
    name: str
    message: str
    location: str
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


class _Diagnostic(ctypes.Structure):
    """diffattn_diagnostic of DiffAttn.h."""

    _fields_ = [("kind", ctypes.c_int32), *((name, ctypes.c_char_p) for name in
                                            ("category", "name", "message", "location", "text"))]


class _Roof(ctypes.Structure):
    """diffattn_roof of DiffAttn.h."""

    _fields_ = [(name, ctypes.c_double) for name in ("gflops", "bf16_gflops", "gbs")]


#: diffattn_diagnostic_kind.
_KINDS = ("note", "warning", "missed", "analysis", "passed")


def _diagnostics(lib, program=None) -> list[Diagnostic]:
    """The diagnostics of a program; None: those of this thread's last call of `emit` or `write_bundle`."""
    result, raw = [], _Diagnostic()
    for i in range(lib.num_diagnostics(program)):
        lib.check(lib.get_diagnostic(program, i, ctypes.byref(raw)))
        texts = [getattr(raw, name).decode(errors="replace") for name, _ in _Diagnostic._fields_[1:]]
        result.append(Diagnostic(_KINDS[raw.kind], *texts))
    return result


class Counters(ctypes.Structure):
    """Counts of what compiled code asked of the runtime since `reset_counters`."""

    gemm_calls: int
    parallel_calls: int
    arena_grows: int
    arena_bytes_peak: int
    packs: int

    _fields_ = [(name, ctypes.c_int64) for name in
                ("gemm_calls", "parallel_calls", "arena_grows", "arena_bytes_peak", "packs")]


class _Library(CLibrary):
    """The C API, loaded at its first use."""

    def __init__(self):
        folder = library_folder("libDiffAttnC.so")
        # Compiled code must find the very runtime that the C API uses, so it is loaded first and by its path.
        self.runtime = load_runtime(folder)
        super().__init__(folder / "libDiffAttnC.so", "diffattn_")
        self.require(API_MAJOR, "libDiffAttnC.so")
        program, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
        options, size, out = ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER
        self.declare([
            ("version_text", text, []),
            ("options_create", options, []),
            ("options_destroy", None, [options]),
            ("options_set", number, [options, text, text]),
            ("options_describe", text, []),
            ("call_size_bounds", text, [ctypes.c_int64, ctypes.c_int64]),
            ("compile", number, [text, size, options, out(program)]),
            ("program_destroy", None, [program]),
            ("num_diagnostics", number, [program]),
            ("get_diagnostic", number, [program, number, out(_Diagnostic)]),
            ("program_from_cache", number, [program]),
            ("bind_weights_while", number, [program, out(text), number, GoOn, ctypes.c_void_p]),
            ("bind_weight_arrays", number, [program, out(text), out(Array), number]),
            ("emit", number, [text, size, options, text, out(ctypes.c_void_p), out(size)]),
            ("cache_read", number, [options, text, out(ctypes.c_void_p), out(size)]),
            ("cache_write", number, [options, text, text, text, size]),
            ("measure_roof", number, [number, ctypes.c_int64, ctypes.c_double, out(_Roof)]),
            ("explain", number, [text, size, out(ctypes.c_void_p)]),
            ("explanation_table", number, [text, size, out(ctypes.c_void_p)]),
            ("judge", number, [program, text, size, options, text, out(Array), number, out(Array), number, out(number),
                               out(ctypes.c_void_p)]),
            ("write_bundle", number, [text, size, options, out(text), number, text, number, text]),
        ])


_loaded: _Library | None = None


def library() -> _Library:
    global _loaded
    if _loaded is None:
        _loaded = _Library()
    return _loaded


def versions() -> str:
    """Versions of the project, MLIR and the GEMM library."""
    return library().version_text().decode()


class OptionRow(NamedTuple):
    """An option of the C API that is set by name and text.

    name     as `diffattn_options_set` takes it
    kind     "text", "number", "truth", "list" or "choice"
    limits   of numbers "0..4096", of choices "auto|true|false", else empty
    is_key   whether it changes the code, and so the key of the cache
    help     what it is for, in a line
    """

    name: str
    kind: str
    limits: str
    is_key: bool
    help: str


def option_table() -> list[OptionRow]:
    """The options of the C API, which this package sets and diffattn-run has flags for."""
    rows = [line.split("\t") for line in library().options_describe().decode().splitlines()]
    return [OptionRow(name, kind, limits, key == "key", text) for name, kind, limits, key, text in rows]


def counters() -> Counters:
    result = Counters()
    library().runtime.diffattn_rt_counters(ctypes.byref(result))
    return result


def threads_by_default() -> int:
    """Threads of a call that asks for none, at most."""
    threads = library().runtime.diffattn_rt_threads
    threads.restype = ctypes.c_int64
    return threads()


def reset_counters() -> None:
    library().runtime.diffattn_rt_counters_reset()


def cache_folder() -> str:
    """Where compiled code is kept: DIFFATTN_CACHE_DIR, else diffattn in the user's cache folder; empty if there is none.

    A relative XDG_CACHE_HOME or home is none: it would be another folder wherever a program is started, with code of whoever
    filled that place."""
    own = os.environ.get("DIFFATTN_CACHE_DIR")
    if own:
        return own
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = _home()
        if not home:
            return ""
        base = os.path.join(home, ".cache")
    return os.path.join(base, "diffattn")


def _home() -> str:
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a user without a name, as in some containers
            return ""
    return home if os.path.isabs(home) else ""


def cache_limit() -> str:
    """How many MiB are kept there: DIFFATTN_CACHE_LIMIT, else 1024."""
    return os.environ.get("DIFFATTN_CACHE_LIMIT") or "1024"


_NO_FOLDER = "compiled code is not kept: expected DIFFATTN_CACHE_DIR, cache=, or an absolute XDG_CACHE_HOME or home directory"
_reported: set[str] = set()


def tell_once(problem: str) -> bool:
    """Whether this problem of the cache was not reported yet: one that does not work costs time, nothing else."""
    is_new = problem not in _reported
    _reported.add(problem)
    return is_new


def _warn_of_cache(diagnostics: list[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        if diagnostic.category == "diffattn-cache" and tell_once(diagnostic.message):
            warnings.warn(diagnostic.message, stacklevel=3)


@dataclass(frozen=True)
class Judgement:
    """Whether results are right, and one line about each of them."""

    matches: bool
    lines: list[str]

    def __bool__(self) -> bool:
        return self.matches


class Executable(CompiledCode):
    """A compiled module. `mlir` is text (str) or bytecode (bytes).

    target    "cpu", or "cpu:" and an instruction set, as "cpu:avx512" (docs/knobs.md lists them); or "cuda-sim:" and a chip
              (sm_80, sm_86, sm_89, sm_90, sm_90a): attention is GPU kernels, simulated; or "cuda", "cuda:<chip>", "cuda:<chip>@<n>":
              on GPU number n
    weights   paths: safetensors files, indices of sharded checkpoints, folders
    threads   threads for each call, at most 4096; None or 0: the runtime's default
    cache     True: compiled code is kept in `cache_folder()`; False: not; or a folder
    batch_invariant   True: a row of every product is bitwise the same for every number of rows and threads; None: of products
              with weights, where that is as fast; False: of none (docs/numerics.md). True is for the CPU alone
    raise_attention, reference   see docs/knobs.md
    unchecked  True: indices and slices that are data are taken without a check; one outside reads or writes other memory
    trace     True: code for a CPU records when its products and attentions begin and end, where a trace is recorded
              (`diffattn.trace`); False: it does not; None: True within a trace, in which code that was made without is compiled once more
    prefetch_bytes   how far ahead of itself code that reads weights or keys once asks for lines, at most 65536; 0: not at all;
              None: what was measured of this machine, or where `target` names an instruction set, what that has
    progress   called with bytes done and bytes in all while `weights` are bound
    cuda_driver, cublaslt   libcuda.so.1 and libcublasLt.so.13 or .12, where the system's loader finds none
    from_stage   "input", or "gpu": `mlir` is what `emit` gave for that stage, perhaps changed

    `diagnostics` and `applied` then say what the compiler did with each attention, also if the code is from the cache.
    """

    def __init__(self, mlir: ModuleText, *, target: str = "cpu", weights: FilePaths = (), threads: int | None = None,
                 cache: bool | FilePath = True, name: str = "module", raise_attention: bool = True, reference: bool = False,
                 unchecked: bool = False, from_stage: str = "input", progress: Progress | None = None,
                 cuda_driver: FilePath | None = None, cublaslt: FilePath | None = None, batch_invariant: bool | None = None,
                 prefetch_bytes: int | None = None, trace: bool | None = None) -> None:
        #: The module, and what messages call it.
        self.text, self.name = mlir, name
        #: The arguments to compile it once more, with spans; None: it has them, or is to have none.
        self._again = None if trace is not None or tracing.is_on() else (mlir, {
            "target": target, "threads": threads, "cache": cache, "name": name, "raise_attention": raise_attention, "reference": reference,
            "unchecked": unchecked, "from_stage": from_stage, "batch_invariant": batch_invariant, "prefetch_bytes": prefetch_bytes})
        self._with_spans: Executable | None = None
        self._bind_again: Callable[[Executable], None] = lambda executable: None
        # Errors in arguments are raised before anything is compiled.
        ir, weights, threads = checks.module(mlir), checks.paths("weights", weights), checks.threads(threads)
        checks.callback("progress", progress)
        libraries = {key: checks.path(key, value) for key, value in [("cuda_driver", cuda_driver), ("cublaslt", cublaslt)]
                     if value is not None}
        lib = library()
        options = _options(lib, target=target, name=name, raise_attention=raise_attention, reference=reference,
                           cache=_cache(cache), ptxas_folders=_ptxas_folders(), batch_invariant=batch_invariant,
                           unchecked=unchecked, prefetch_bytes=prefetch_bytes, trace=trace,
                           package_folders=sysconfig.get_paths()["purelib"], from_stage=from_stage, **libraries)
        try:
            for file in weights:  # so that ones that do not fit are told before anything is compiled
                lib.check(lib.options_set(options, b"weights", os.fsencode(file)))
            program = ctypes.c_void_p()
            lib.check(lib.compile(ir, len(ir), options, ctypes.byref(program)))
        finally:
            lib.options_destroy(options)
        self._finalizer = weakref.finalize(self, lib.program_destroy, program)
        super().__init__(lib, program, threads)
        self.ordinal = ordinal_of(target)
        diagnostics = _diagnostics(lib, program)
        _warn_of_cache(diagnostics)
        #: Why attention was not fused or is no kernel, one `Diagnostic` each, warnings and notes; empty if all went well.
        self.diagnostics = [d for d in diagnostics if d.kind != "passed"]
        #: The attentions that were raised, and the kernel of each attention.
        self.applied = [d for d in diagnostics if d.kind == "passed"]
        self.from_cache = bool(lib.program_from_cache(program))
        if weights:
            self.bind_weights(weights, progress)

    def bind_weights(self, paths: FilePaths, progress: Progress | None = None) -> None:
        """Finds the weights by name and, for a device, copies them there. `progress(done, total)` is called between them;
        what it raises ends this and is raised by it."""
        array = _paths(paths)
        callback = ProgressCallback(progress)
        with callback:
            status = self._lib.bind_weights_while(self._handle, array, len(array), callback.c, None)
        callback.check(self._lib, status)
        self._bind_again, self._with_spans = lambda executable: executable.bind_weights(paths), None

    def bind_arrays(self, names: ctypes.Array[ctypes.c_char_p], arrays: ctypes.Array[Array]) -> None:
        """Binds weights that lie in memory: ctypes arrays of their names and of dense `Array`s, which the caller keeps as they are
        until weights are bound anew."""
        with self._one_call:
            self._lib.check(self._lib.bind_weight_arrays(self._handle, names, arrays, len(names)))
        self._bind_again, self._with_spans = lambda executable: executable.bind_arrays(names, arrays), None

    def _traced(self) -> ctypes.c_void_p:
        if self._again is None or not self._again[1]["target"].startswith("cpu"):
            return self._handle
        if self._with_spans is None:
            mlir, options = self._again
            with_spans = Executable(mlir, trace=True, **options)
            self._bind_again(with_spans)
            self._with_spans = with_spans
        return self._with_spans._handle

    def judge(self, mlir: ModuleText, entry: str, arguments: Sequence[ArrayLike], results: Sequence[ArrayLike], *,
              weights: FilePaths = ()) -> Judgement:
        """Whether `results` are what `entry` of `mlir`, the module that this was compiled from, gives for `arguments`: it is
        interpreted in f64, before any pass, and as written with random roundings (docs/numerics.md). All arrays lie in memory of
        the host; arguments that the call updated must be what they were before it.

        weights   paths, as for `Executable`, of a module that has weights

        Raises RunError for a module that takes more than 4e9 steps, and IRError for an op that the interpreter does not know.
        """
        ir, paths = checks.module(mlir), checks.paths("weights", weights)
        given, packed = self.pack(entry, arguments)
        got = [np.asarray(as_array(result, f"result {i}"), order="C") for i, result in enumerate(results)]
        judged = (Array * max(len(got), 1))()
        for i, (slot, array) in enumerate(zip(judged, got)):
            if array.dtype not in CODES:
                raise InputError(f"result {i}: expected elements of a type that calls give, but got {array.dtype}")
            slot.data, slot.dtype, slot.rank = array.ctypes.data, CODES[array.dtype], array.ndim
            slot.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        lib, matches, report = self._lib, ctypes.c_int32(), ctypes.c_void_p()
        options = _options(lib, target="cpu", name="module", raise_attention=True, reference=False, cache="")
        try:
            for file in paths:
                lib.check(lib.options_set(options, b"weights", os.fsencode(file)))
            lib.check(lib.judge(self._handle, ir, len(ir), options, entry.encode(), packed, len(given), judged, len(got),
                                ctypes.byref(matches), ctypes.byref(report)))
        finally:
            lib.options_destroy(options)
        try:
            return Judgement(bool(matches.value), ctypes.string_at(report.value).decode().splitlines())
        finally:
            lib.free(report)


def _cache(cache) -> str:
    """The folder of compiled code; empty: none."""
    if isinstance(cache, (str, os.PathLike)):
        return checks.path("cache", cache)
    if not isinstance(cache, bool):
        raise checks.wrong("cache", "True, False or a folder", cache)
    folder = cache_folder() if cache else ""
    if cache and not folder and tell_once(_NO_FOLDER):
        warnings.warn(_NO_FOLDER, stacklevel=4)
    return folder


def cache_options(cache: bool | FilePath) -> ctypes.c_void_p:
    """Options that name the cache alone; the caller destroys them."""
    return _options(library(), target="cpu", name="module", raise_attention=True, reference=False, cache=_cache(cache))


def _paths(paths) -> ctypes.Array:
    paths = checks.paths("weights", paths)
    return (ctypes.c_char_p * len(paths))(*[os.fsencode(p) for p in paths])


def _ptxas_folders() -> str:
    """Where else than in PATH an assembler may lie: the CUDA Toolkit, and the package nvidia-cuda-nvcc of this environment."""
    toolkit = os.environ.get("CUDA_HOME")
    return ":".join([f"{toolkit}/bin"] * bool(toolkit) + ["/usr/local/cuda/bin",
                                                         f"{sysconfig.get_paths()['purelib']}/nvidia/cu13/bin"])


def _choice(what: str, value: bool | None) -> str:
    """The text of an option that is on, off or left to the compiler."""
    return "auto" if value is None else "true" if checks.flag(what, value) else "false"


def _options(lib, *, target, name, raise_attention, reference, cache, from_stage="input", batch_invariant=None,
             unchecked=False, prefetch_bytes=None, trace=False, **more):
    values = {"target": checks.text("target", target, "the name of a target"), "name": checks.text("name", name),
              "raise": "true" if checks.flag("raise_attention", raise_attention) else "false",
              "reference": "true" if checks.flag("reference", reference) else "false", "cache": cache, "cache_limit": cache_limit(),
              "unchecked": "true" if checks.flag("unchecked", unchecked) else "false",
              "trace": "true" if (tracing.is_on() if trace is None else checks.flag("trace", trace)) else "false",
              "quick_code": "true" if os.environ.get("DIFFATTN_QUICK_CODE") == "1" else "false",
              "prefetch_bytes": ("-1" if prefetch_bytes is None
                                 else str(checks.integer("prefetch_bytes", prefetch_bytes, 0, checks.MOST_PREFETCH_BYTES))),
              "from": checks.choice("from_stage", from_stage, ("input", "gpu")),
              "batch_invariant": _choice("batch_invariant", batch_invariant), **more}
    options = lib.options_create()
    try:
        for key, value in values.items():
            # Texts are UTF-8 in every locale, paths are what the system calls them.
            encoded = value.encode() if key in ("target", "name") else os.fsencode(value)
            lib.check(lib.options_set(options, key.encode(), encoded))
    except BaseException:
        lib.options_destroy(options)
        raise
    return options


def measure_roof(threads: int, bytes_read: int, seconds: float) -> tuple[float, float | None, float]:
    """Rates that so many threads reach together: 10^9 operations a second of multiply-adds of f32, of products of bf16 (None: not known), and
    10^9 bytes a second read from memory, of `bytes_read` in all; `seconds` for each of the two."""
    lib, roof = library(), _Roof()
    lib.check(lib.measure_roof(threads, bytes_read, seconds, ctypes.byref(roof)))
    return roof.gflops, roof.bf16_gflops or None, roof.gbs


def explain(facts: str) -> str:
    """Rows of what became of each op, as JSON, of facts in JSON (docs/c-api.md)."""
    return _answer("explain", facts)


def explanation_table(explanation: str) -> str:
    """A table of text of rows and their roof in JSON."""
    return _answer("explanation_table", explanation)


def _answer(function: str, question: str) -> str:
    """The text that a function of the C API makes of a text."""
    lib, given, answer = library(), question.encode(), ctypes.c_void_p()
    lib.check(getattr(lib, function)(given, len(given), ctypes.byref(answer)))
    try:
        return ctypes.string_at(answer.value).decode()
    finally:
        lib.free(answer)


def emit(mlir: ModuleText, stage: str, *, target: str = "cpu", raise_attention: bool = True, reference: bool = False,
         unchecked: bool = False, from_stage: str = "input", ptxas: FilePath = "ptxas", diagnostics: list[Diagnostic] | None = None,
         batch_invariant: bool | None = None, prefetch_bytes: int | None = None) -> bytes:
    """The module after a stage of the pipeline: input, imported, raised, scheduled, bufferized, gpu, ptx, cubin, loops, llvm,
    llvm-ir, assembly, object. ptx and cubin need a target "cuda:<chip>" and no GPU; cubin needs the assembler `ptxas`, a path or a
    name. What the compiler says, `Diagnostic`s of every kind, is added to the list `diagnostics`."""
    ir, stage = checks.module(mlir), checks.text("stage", stage, "the name of a stage")
    if diagnostics is not None and not isinstance(diagnostics, list):
        raise checks.wrong("diagnostics", "a list or None", diagnostics)
    lib = library()
    options = _options(lib, target=target, name="module", raise_attention=raise_attention, reference=reference, cache=_cache(True),
                       ptxas=checks.path("ptxas", ptxas), ptxas_folders=_ptxas_folders(), from_stage=from_stage,
                       batch_invariant=batch_invariant, unchecked=unchecked, prefetch_bytes=prefetch_bytes)
    try:
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        lib.check(lib.emit(ir, len(ir), options, stage.encode(), ctypes.byref(text), ctypes.byref(size)))
        if diagnostics is not None:
            diagnostics += _diagnostics(lib)
    finally:
        lib.options_destroy(options)
    try:
        return ctypes.string_at(text, size.value)
    finally:
        lib.free(text)


def write_bundle(mlir: ModuleText, directory: FilePath, *, weights: FilePaths = (), target: str = "cpu",
                 model_folder: FilePath | None = None, copy_weights: bool = False, cache: bool | FilePath = True,
                 name: str = "module", batch_invariant: bool | None = None, unchecked: bool = False,
                 prefetch_bytes: int | None = None) -> list[Diagnostic]:
    """Compiles a module and writes it with its weights as a bundle, a folder that `diffattn.bundle.load` runs without the
    compiler (docs/bundles.md). `directory` must not be there yet, or be empty. Returns the compiler's diagnostics,
    without what went well.

    target         "cpu", "cpu:<isa>", or for GPUs "cuda:<chip>,<chip>/<isa>", the best instruction set by default
    weights        paths, as for `Executable`; with `copy_weights` the files are copied, else the bundle points at them
    model_folder   where config.json and tokenizer.json are taken from
    batch_invariant   as for `Executable`; the code of the bundle is made so
    unchecked, prefetch_bytes   as for `Executable`
    """
    ir, paths, copied = checks.module(mlir), _paths(weights), checks.flag("copy_weights", copy_weights)
    folder = None if model_folder is None else os.fsencode(checks.path("model_folder", model_folder))
    directory = checks.path("directory", directory)
    lib = library()
    options = _options(lib, target=target, name=name, raise_attention=True, reference=False, cache=_cache(cache),
                       ptxas_folders=_ptxas_folders(), batch_invariant=batch_invariant, unchecked=unchecked,
                       prefetch_bytes=prefetch_bytes)
    try:
        lib.check(lib.write_bundle(ir, len(ir), options, paths, len(paths), folder, int(copied), os.fsencode(directory)))
        diagnostics = _diagnostics(lib)
        _warn_of_cache(diagnostics)
        return [d for d in diagnostics if d.kind != "passed"]
    finally:
        lib.options_destroy(options)
