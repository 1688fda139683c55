"""The matrices of Fourier transforms. While a graph is made each is an op, since torch.export takes no tensor that comes up in a
decomposition; when it is done each is a constant."""

from __future__ import annotations

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .op import add_operator
from .source import refusal

#: Along one axis: matrices hold four times the square of it.
MOST_ELEMENTS = 2048
#: By the number that PyTorch's ops call a norm by, what each of n elements counts.
_SCALES = (lambda n: 1.0, lambda n: n**-0.5, lambda n: 1.0 / n)
#: [row, part, column, part] with rows and parts as one axis, and columns and parts: what `takes` parts (1: the real one) of the element
#: `row` add to `gives` parts of the element `column` of `size`, in the type of `like`.
SCHEMA = "_fourier_matrix(Tensor like, int size, int rows, int columns, int sign, int norm, int takes, int gives) -> Tensor"


def _fake(like, size, rows, columns, sign, norm, takes, gives):
    return like.new_empty((rows * takes, columns * gives))


def _run(like, *numbers):
    return torch.from_numpy(matrix(*numbers)).to(like.dtype)


add_operator(SCHEMA, _fake, _run)


def make_matrices(graph: torch.fx.Graph, add_constant) -> None:
    """Replaces, in place, each such op by a constant. `add_constant(node, value)` gives a new input of the graph that is always `value`."""
    made: dict = {}
    for node in [node for node in graph.nodes if node.target is torch.ops.diffattn._fourier_matrix.default]:
        numbers, dtype = node.args[1:], node.meta["val"].dtype
        *sizes, sign, norm, takes, gives = numbers
        # Files may hold such an op, too.
        if not (all(0 < size <= MOST_ELEMENTS for size in sizes) and abs(sign) == 1 and norm in range(3) and {takes, gives} <= {1, 2}):
            raise refusal(node, f"expected a matrix of a Fourier transform of 1 to {MOST_ELEMENTS} elements, but got {numbers}")
        if (numbers, dtype) not in made:
            with unset_fake_temporarily():
                made[numbers, dtype] = add_constant(node, torch.from_numpy(matrix(*numbers)).to(dtype))
        node.replace_all_uses_with(made[numbers, dtype])
        graph.erase_node(node)


def matrix(size, rows, columns, sign, norm, takes, gives) -> np.ndarray:
    # The angle of a whole product of places would lose digits.
    angles = sign * 2 * np.pi / size * (np.arange(rows)[:, None] * np.arange(columns) % size)
    re, im = np.cos(angles) * _SCALES[norm](size), np.sin(angles) * _SCALES[norm](size)
    result = np.stack([np.stack([re, im], -1), np.stack([-im, re], -1)], 1)[:, :takes, :, :gives].copy()
    if gives == 1:
        # Of a real result the elements behind the middle are left out, conjugates of those before it; the first and the middle have none.
        result[1:(size + 1) // 2] *= 2
        result[[0, *([size // 2] if size % 2 == 0 else [])], 1] = 0
    return result.reshape(rows * takes, columns * gives)
