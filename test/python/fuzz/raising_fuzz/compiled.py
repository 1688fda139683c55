"""Compiles the graph of a case for the CPU and compares what it computes with what the interpreter did.

The comparing program left arguments, results and limits in files: `PREFIX-in0`, `-out0` (what the graph computes), `-raised0` (what the raised
module does), `-written0` (what the graph computes in the types written), and `-limit0`, how far a result may be off for a relative error of 1e-6.
"""
import ml_dtypes
import numpy as np
from diffattn.errors import DiffAttnError
from diffattn.runtime import Executable

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64, "i32": np.int32, "i8": np.int8, "i1": np.bool_}
#: The gates of docs/numerics.md on |error| / M.
GATES = {"f32": 5e-5, "f16": 1.5e-3, "bf16": 1.2e-2}


def arguments(one, prefix):
    arrays = []
    for number, text in enumerate(one.inputs):
        *sizes, dtype = text.split("@")[1].split("x")
        shape = tuple(int(size) for size in sizes)
        arrays.append(np.fromfile(f"{prefix}-in{number}", TYPES[dtype], int(np.prod(shape, dtype=np.int64))).reshape(shape))
    return arrays


def read(prefix, name, number, result):
    """An array in f64, as the program wrote it in the type of the result."""
    return np.fromfile(f"{prefix}-{name}{number}", result.dtype, result.size).astype(np.float64)


def check(one, prefix):
    """The first fault of compiled code; empty if there is none."""
    try:
        got = Executable(one.text, cache=False).call("main", *arguments(one, prefix))
    except DiffAttnError as error:
        return f"{type(error).__name__}: {error}"
    for number, result in enumerate(got):
        result = np.ascontiguousarray(result)
        gate = max(GATES[kind] for kind in GATES if f"x{kind}>" in one.text)
        limits = np.fromfile(f"{prefix}-limit{number}", np.float64, result.size) * gate / 1e-6
        have, near = result.astype(np.float64).ravel(), False
        with np.errstate(invalid="ignore"):
            # Scores beside a fill of -1e4 lose digits in f32, in the graph too.
            own = np.abs(read(prefix, "written", number, result) - read(prefix, "out", number, result))
            limits += 4 * np.where(np.isfinite(own), own, 0)
            for name in ("out", "raised"):
                want = read(prefix, name, number, result)
                near |= (np.abs(have - want) <= limits) | (have == want) | (np.isnan(have) & np.isnan(want))
        if not np.all(near):
            at = int(np.argmin(near))
            return f"element {at} of result {number} is {have[at]}, the graph has {want[at]}, allowed {limits[at]}"
    return ""
