"""PyTorch's tensors as compiled code takes them, and its results as tensors, without copies."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..arrays import BFLOAT16, DTYPES, Array, owned
from ..errors import InputError

#: In the order of `DTYPES`, which is that of diffattn_dtype.
TORCH_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool, torch.int8,
                torch.uint8, torch.int16)
CODE_OF = {dtype: code for code, dtype in enumerate(TORCH_DTYPES)}


def check(name: str, tensor, dtype: torch.dtype, sizes) -> None:
    """Raises InputError for what is no tensor of `dtype` in memory of the host with these sizes. None: of any size, or of any shape."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name}: expected a tensor, but got a {type(tensor).__name__}")
    _check_dense(name, tensor)
    check_memory(name, tensor, tensor.is_neg() and not tensor.is_complex())
    if isinstance(tensor, FakeTensor):
        raise InputError(f"{name}: expected a tensor in memory of the host, but got a FakeTensor, which has no elements")
    if tensor.dtype != dtype:
        raise InputError(f"{name}: expected elements of {dtype}, but got {tensor.dtype}")
    if sizes is not None and (len(tensor.shape) != len(sizes) or any(want is not None and want != got for want, got in zip(sizes, tensor.shape))):
        shape = ", ".join("any" if size is None else str(size) for size in sizes)
        raise InputError(f"{name}: expected shape [{shape}], but got {list(tensor.shape)}")


def check_memory(name: str, tensor: torch.Tensor, is_lazy: bool, error=InputError) -> None:
    """Raises `error` for a tensor whose elements are not in memory of the host, or, where it `is_lazy`, not those that this holds."""
    if tensor.device.type != "cpu":
        hint = "it has no elements" if tensor.device.type == "meta" else "copy it there, with cpu(), and move the module too"
        raise error(f"{name}: expected a tensor in memory of the host, but got one on {tensor.device}; {hint}")
    if is_lazy:
        raise error(f"{name}: expected a tensor whose memory holds its values, but got a lazy view; call resolve_neg() or resolve_conj() first")


def _check_dense(name: str, tensor: torch.Tensor) -> None:
    """Raises InputError for a tensor whose elements do not lie in memory, at known places."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise InputError(f"{name}: expected a tensor, but got one inside of torch.vmap or another transform, which cannot see into compiled "
                         "code; compile a module that calls it")
    what = ("a nested one; to_padded_tensor() makes one" if tensor.is_nested else "a quantized one; dequantize() makes one" if tensor.is_quantized
            else f"one with layout {tensor.layout}; to_dense() makes one" if tensor.layout != torch.strided else "")
    if what:
        raise InputError(f"{name}: expected a dense tensor, but got {what}")


def fill(slot: Array, tensor: torch.Tensor, code: int) -> None:
    """Describes a tensor, which must stay alive, to the C interface as one of elements `code`."""
    rank = tensor.dim()
    slot.data, slot.dtype, slot.rank = tensor.data_ptr(), code, rank
    if rank:
        kind = ctypes.c_int64 * rank
        # ctypes keeps what a field is given alive with the struct.
        slot.shape, slot.strides = kind(*tensor.shape), kind(*tensor.stride())


def fill_number(slot: Array, number, code: int):
    """Describes a number; returns what must stay alive."""
    memory = (ctypes.c_char * 8).from_buffer_copy(DTYPES[code].type(number).tobytes().ljust(8, b"\0"))
    slot.data, slot.dtype, slot.rank = ctypes.addressof(memory), code, 0
    return memory


def taken(result, free, dtype: torch.dtype) -> torch.Tensor:
    """A result as a tensor that frees its memory in the end."""
    tensor = of_array(owned(result, free))
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def of_array(array: np.ndarray) -> torch.Tensor:
    """A writable array as a tensor in the same memory."""
    if array.dtype == BFLOAT16:  # NumPy's type of bfloat16 is not known to PyTorch
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
