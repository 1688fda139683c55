"""Custom calls that JAX runs on CPUs: what XLA hands to a call's code, read by the structures of its FFI, and our functions behind it.

XLA gives addresses of dense arrays, in row-major order, of operands and of results. No array is copied, and none but the results is
written. A call is made by a thread of XLA, or by the one that called JAX, which does not hold Python's lock while it waits; compiled code
does not hold it either, so that calls of one function may run at the same time.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable

import jax
import numpy as np

from .._attention import attention, attention_backward
from ..arrays import BFLOAT16
from ..attention_operands import OPERAND
from ..errors import DiffAttnError

#: The version of XLA's FFI that these structures are of (xla/ffi/api/c_api.h). XLA asks for it when a call is registered, and refuses one
#: that it does not have.
_VERSION = 0, 3
_METADATA = 1
_CANCELLED, _INVALID_ARGUMENT, _UNIMPLEMENTED, _INTERNAL = 1, 3, 12, 13
_ARRAY, _SCALAR, _STRING = 1, 3, 4
_DTYPES = {1: np.dtype(np.bool_), 2: np.dtype(np.int8), 4: np.dtype(np.int32), 5: np.dtype(np.int64), 10: np.dtype(np.float16),
           11: np.dtype(np.float32), 12: np.dtype(np.float64), 16: BFLOAT16}


class _Version(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p), ("metadata", ctypes.POINTER(_Metadata))]


class _Span(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("data", ctypes.c_void_p)]


class _Numbers(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("size", ctypes.c_size_t), ("data", ctypes.c_void_p)]


class _Buffer(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("dtype", ctypes.c_int), ("data", ctypes.c_void_p),
                ("rank", ctypes.c_int64), ("shape", ctypes.POINTER(ctypes.c_int64))]


class _Buffers(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("size", ctypes.c_int64),
                ("types", ctypes.POINTER(ctypes.c_int)), ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer)))]


class _Attributes(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("size", ctypes.c_int64),
                ("types", ctypes.POINTER(ctypes.c_int)), ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
                ("values", ctypes.POINTER(ctypes.c_void_p))]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


class _Api(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("version", _Version), ("internal", ctypes.c_void_p),
                ("make_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments)))]


class _Frame(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.POINTER(_Extension)), ("api", ctypes.POINTER(_Api)),
                ("context", ctypes.c_void_p), ("stage", ctypes.c_int), ("operands", _Buffers), ("results", _Buffers),
                ("attributes", _Attributes)]


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))


def _arrays(buffers: _Buffers) -> list[np.ndarray]:
    return [_array(buffers.buffers[number].contents) for number in range(buffers.size)]


def _array(buffer: _Buffer) -> np.ndarray:
    dtype, shape = _DTYPES[buffer.dtype], tuple(buffer.shape[: buffer.rank])
    if 0 in shape:
        return np.empty(shape, dtype)
    return _view(buffer.data, dtype, shape)


def _view(address: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(address))


def _attributes(attributes: _Attributes) -> dict:
    """Words, numbers, and tuples of numbers by their names."""
    values = {}
    for number in range(attributes.size):
        name, address = _text(attributes.names[number].contents), attributes.values[number]
        kind = attributes.types[number]
        if kind == _STRING:
            values[name] = _text(_Span.from_address(address))
        elif kind == _SCALAR:
            scalar = _Scalar.from_address(address)
            values[name] = _view(scalar.data, _DTYPES[scalar.dtype], ()).item()
        elif kind == _ARRAY:
            numbers = _Numbers.from_address(address)
            values[name] = tuple(_view(numbers.data, _DTYPES[numbers.dtype], (numbers.size,)).tolist())
        else:
            raise TypeError(f"{name}: expected a word, a number or numbers, but got XLA's kind {kind}")
    return values


def _text(span: _Span) -> str:
    return ctypes.string_at(span.data, span.size).decode()


def _arguments(operands: dict[str, np.ndarray]) -> dict:
    """Operands by the op's names as arguments of `diffattn.attention`."""
    given = {OPERAND[name].argument: array for name, array in operands.items()}
    if "q_segments" in given:
        given["segment_ids"] = given.pop("q_segments"), given.pop("kv_segments")
    return given


#: The op's names for options that `diffattn.attention` calls otherwise.
_OPTIONS = {"lambda_act": "lam_activation"}


def _run_forward(operands, results, names, options) -> None:
    """The result, and the output before norm and gate if that is a second one."""
    attention(**_arguments(dict(zip(names, operands))), **options, out=results[0], x=results[1] if len(results) > 1 else None)


def _run_backward(operands, results, names, options) -> None:
    given = dict(zip(names, operands))
    wanted = options.pop("gradients").split()
    gradients = {OPERAND[name].argument: result for name, result in zip(wanted, results)}
    d_out, x = given.pop("d_out"), given.pop("x", None)
    attention_backward(d_out, gradients=gradients, x=x, **{"k2": None, **_arguments(given)}, **options)


def _refuse(*_) -> None:
    raise NotImplementedError("diffattn.jax.attention: expected a computation on a CPU, but got one on a GPU; jax.default_device, or arrays of "
                              "jax.devices('cpu'), put it there")


class _Running:
    """Calls that run now. JAX does not wait for its computations when a process ends, and these need Python and compiled code."""

    #: Between two calls of one computation lies less, as a rule; JAX does not say which computations there are.
    QUIET = 0.1

    def __init__(self) -> None:
        self._changed, self._count, self._last, self._is_over = threading.Condition(), 0, 0.0, False

    def enter(self) -> bool:
        """Whether the call may run; if so, `leave` follows."""
        with self._changed:
            self._count += not self._is_over
            return not self._is_over

    def leave(self) -> None:
        with self._changed:
            self._count, self._last = self._count - 1, time.monotonic()
            self._changed.notify_all()

    def end(self) -> None:
        """Waits for results that someone refers to, and for calls of others; those that come later are refused."""
        for array in jax.live_arrays("cpu"):
            try:
                array.block_until_ready()
            except Exception:  # the computation failed, or an array's memory was given away
                continue
        with self._changed:
            while self._count or time.monotonic() - self._last < self.QUIET:
                self._changed.wait(self.QUIET)
            self._is_over = True


_running = _Running()


def _handler(run: Callable[..., None]):
    """`run` as the code of a custom call."""

    def handle(pointer):
        frame = pointer.contents
        if frame.extension and frame.extension.contents.type == _METADATA:
            version = frame.extension.contents.metadata.contents.version
            version.major, version.minor = _VERSION
            return None
        if not _running.enter():
            return _error(frame, "diffattn.jax.attention: expected a process that goes on, but it is about to end", _CANCELLED)
        try:
            options = {_OPTIONS.get(name, name): value for name, value in _attributes(frame.attributes).items()}
            run(_arrays(frame.operands), _arrays(frame.results), options.pop("operands").split(), options)
            return None
        except NotImplementedError as error:
            return _error(frame, str(error), _UNIMPLEMENTED)
        except DiffAttnError as error:
            return _error(frame, str(error), _INVALID_ARGUMENT)
        except BaseException as error:  # nothing may go up into XLA
            return _error(frame, f"{type(error).__name__}: {error}", _INTERNAL)
        finally:
            _running.leave()

    return _Handler(handle)


def _error(frame: _Frame, message: str, code: int) -> int:
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(errors="replace"), code)
    return frame.api.contents.make_error(ctypes.byref(arguments))


#: The targets of custom calls, and what runs them.
FORWARD, SAVING, BACKWARD = "diffattn.attention", "diffattn.attention_and_x", "diffattn.attention_backward"
_HANDLERS = {FORWARD: _handler(_run_forward), SAVING: _handler(_run_forward), BACKWARD: _handler(_run_backward)}
_REFUSING = _handler(_refuse)
for _target, _code in _HANDLERS.items():
    jax.ffi.register_ffi_target(_target, jax.ffi.pycapsule(_code), platform="cpu")
    for _platform in ("CUDA", "ROCM"):
        jax.ffi.register_ffi_target(_target, jax.ffi.pycapsule(_REFUSING), platform=_platform)

# Before compiled code is freed, for which `weakref` registers itself with the first object that it looks after.
weakref.finalize(_running, lambda: None)
atexit.register(_running.end)
os.register_at_fork(after_in_child=_running.__init__)  # the threads of calls are not there
