"""Recurrent ops of ONNX: what torch-mlir forgets of them is refused."""

from __future__ import annotations

import numpy as np

from .builder import Builder, Refused

_USUAL = {"GRU": [b"Sigmoid", b"Tanh"], "LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "RNN": [b"Tanh"]}


def recurrent(builder: Builder) -> bool:
    kind, options = builder.node.op_type, builder.options
    told, lengths, sizes = [], builder.input(4), builder.sizes(builder.input(0))
    if lengths:
        array, time = builder.array(lengths), sizes and sizes[1 if options.get("layout") else 0]
        if array is None or time is None or not np.all(array == time):
            told.append("lengths of sequences that differ")
    told += [name for name, default in (("clip", 0), ("input_forget", 0), ("layout", 0)) if options.get(name, default) != default]
    if kind == "LSTM" and builder.input(7):
        told.append("peepholes")
    usual = _USUAL[kind] * (2 if options.get("direction") == b"bidirectional" else 1)
    if [name.lower() for name in options.get("activations", usual)] != [name.lower() for name in usual]:
        told.append(f"activations {', '.join(name.decode() for name in options['activations'])}")
    if told:
        raise Refused(f"expected {kind} of whole sequences with its usual activations, but got {' and '.join(told)}")
    if lengths:
        return builder.finish_all(kind, *builder.node.input[:4], "", *builder.node.input[5:], **options)
    return False


RECURRENT = {kind: recurrent for kind in _USUAL}
