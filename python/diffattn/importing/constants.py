"""Which constants of a graph are weights."""

from __future__ import annotations

import numpy as np

#: Numbers of elements: larger floats are weights, if they are no masks; what has more is a weight in any case, but for truth values.
SMALLEST_WEIGHT, LARGEST_CONSTANT = 16, 1 << 20


def is_weight(array: np.ndarray) -> bool:
    """Whether an array is bound to compiled code as a weight. Others are constants of the graph: small ones, which may decide sizes,
    and masks and positions, which raising reads."""
    if array.dtype.kind in "iub":
        return array.dtype.kind != "b" and array.size > LARGEST_CONSTANT
    return array.size > SMALLEST_WEIGHT and not (array.size <= LARGEST_CONSTANT and array.ndim > 1 and _is_mask(array))


def _is_mask(array: np.ndarray) -> bool:
    """Whether it is what is added to scores, 0 and one number that hides, or what is multiplied with them, 0 and 1."""
    values = array.astype(np.float64, copy=False)
    least, most = values.min(), values.max()
    return (most == 0 and least <= -1e4 or least == 0 and most == 1) and bool(np.all((values == least) | (values == most)))
