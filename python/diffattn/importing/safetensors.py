"""Weights as a safetensors file, piece by piece: what is mapped is not read into memory as a whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import BFLOAT16

_NAMES = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", BFLOAT16: "BF16", np.dtype(np.int64): "I64",
          np.dtype(np.int32): "I32", np.dtype(np.int16): "I16", np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8", np.dtype(np.bool_): "BOOL"}
_PIECE = 1 << 24


@dataclass
class Part:
    """A tensor of a file: `data` gives its bytes, when it is its turn."""

    name: str
    dtype: np.dtype
    shape: Sequence[int]
    data: Iterable[bytes]


def parts_of_file(parts: Sequence[Part]) -> Iterator[bytes]:
    """The bytes of a file that holds these tensors, in this order."""
    header, end = {}, 0
    for part in parts:
        begin, end = end, end + math.prod(part.shape) * part.dtype.itemsize
        header[part.name] = {"dtype": _NAMES[part.dtype], "shape": list(part.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for part in parts:
        yield from part.data


def bytes_of(array: np.ndarray) -> Iterator[bytes]:
    """The bytes of an array, some at a time."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for begin in range(0, data.size, _PIECE):
        yield data[begin: begin + _PIECE].tobytes()


def pieces(weights: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a file that holds these arrays: wider elements first, so that all lie at multiples of their size."""
    order = sorted(weights, key=lambda name: -weights[name].dtype.itemsize)
    return parts_of_file([Part(name, weights[name].dtype, weights[name].shape, bytes_of(weights[name])) for name in order])
