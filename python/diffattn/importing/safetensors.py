"""Weights as a safetensors file, piece by piece: what is mapped is not read into memory as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np

from ..arrays import BFLOAT16

_NAMES = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", BFLOAT16: "BF16", np.dtype(np.int64): "I64",
          np.dtype(np.int32): "I32", np.dtype(np.int16): "I16", np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8", np.dtype(np.bool_): "BOOL"}
_PIECE = 1 << 24


def pieces(weights: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a file that holds these arrays: wider elements first, so that all lie at multiples of their size."""
    order = sorted(weights, key=lambda name: -weights[name].dtype.itemsize)
    header, end = {}, 0
    for name in order:
        array = weights[name]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        data = np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8)
        for begin in range(0, data.size, _PIECE):
            yield data[begin: begin + _PIECE].tobytes()
