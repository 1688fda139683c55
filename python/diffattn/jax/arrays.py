"""Results as arrays of JAX."""

from __future__ import annotations

import jax
import numpy as np


def of_array(array: np.ndarray):
    """An array of JAX; 64-bit elements stay NumPy's where JAX has them switched off, since it would cut them."""
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return array
    return jax.device_put(array, jax.devices("cpu")[0])
