"""Judge of attacked calls: each must give the right result, or refuse with an error of ours. All else is a fault."""
import collections
import math

import numpy as np

from attention_reference import attention as reference
from diffattn.errors import DiffAttnError

#: Gates of docs/numerics.md on |error| / M for inputs of unit size, unit roundoffs, and half the distance of subnormal numbers.
GATES = {"float32": 5e-5, "float16": 1.5e-3, "bfloat16": 1.2e-2}
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
HALF_STEP = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}
LARGEST = {"float32": 3.4e38, "float16": 65504.0, "bfloat16": 3.38e38}


class Fault(AssertionError):
    """A wrong result, a refusal of what is right, or bad input that was taken."""


class Tally(collections.Counter):
    """How many calls were right, refused, or taken without a judgement (their exact result is beyond the type)."""

    def attempt(self, run, judge, *, must=None, what=""):
        """Calls `run()`. must="refuse": it must raise an error of ours; "take": it must not; None: either. What it returns goes to
        `judge`, which raises AssertionError if it is wrong, and returns False where nothing can be said."""
        try:
            got = run()
        except DiffAttnError as error:
            if must == "take":
                raise Fault(f"refused: {type(error).__name__}: {error}; {what}") from error
            if not str(error).strip():
                raise Fault(f"{type(error).__name__} without a message; {what}") from error
            self["refused"] += 1
            return
        except (TypeError, ValueError) as error:
            raise Fault(f"{type(error).__name__}, expected an error of the package: {error}; {what}") from error
        if must == "refuse":
            raise Fault(f"taken, expected an error; {what}")
        try:
            judged = judge(got)
        except AssertionError as error:
            raise Fault(f"{error}; {what}") from error
        self["right" if judged is not False else "unjudged"] += 1


def exact_visible(queries, keys, causal, window, kv_len, q_offset):
    """Which keys each query sees, [Tq, Tk], in integers without bounds but for positions, which end at those of i64."""
    valid = keys if kv_len is None else kv_len
    offset = valid - queries if q_offset is None else q_offset
    left, right = window or (-1, -1)
    seen = np.zeros((queries, keys), bool)
    for i in range(queries):
        p = min(max(i + offset, -(2**63)), 2**63 - 1)
        for j in range(min(keys, max(valid, 0))):
            seen[i, j] = not (causal and j > p or left >= 0 and p - j > left or right >= 0 and j - p > right)
    return seen


def attention_error(got, operands, visible, *, scale, softcap=None, bias=None, norm=None, norm_eps=1e-5, **options):
    """Compares the result of one attention with f64, by the bound of docs/numerics.md for the largest score that could have been.
    `visible` [B, Tq, Tk]. Returns False where the exact numbers leave f32 or the norm divides by nothing."""
    q1, k1, q2, k2, v, lam = operands
    bias = np.ones((1, 1, 1, visible.shape[2]), bool) if bias is None else bias
    batch, queries, keys = visible.shape
    shape = (batch, bias.shape[1], queries, keys)
    hidden = ~np.broadcast_to(visible[:, None], shape)
    if bias.dtype == np.bool_:
        bias = np.broadcast_to(bias, shape) & ~hidden
    else:
        bias = np.where(hidden, -np.inf, np.broadcast_to(bias, shape).astype(np.float64))
    name = got.dtype.name
    wide = [np.asarray(x).astype(np.float64) for x in (q1, k1, q2, k2)]
    reach = lambda q, k: np.abs(q).sum(-1).max(initial=0) * np.abs(k).max(initial=0)
    largest = abs(scale) * max(reach(wide[0], wide[1]), reach(wide[2], wide[3]))
    if abs(scale) * 1.4427 * largest > 1e37 or largest > 1e37:
        return False
    with np.errstate(all="ignore"):
        expected, size = reference(q1, k1, q2, k2, v, lam, scale=scale, softcap=softcap, bias=bias, norm=norm,
                                   norm_eps=norm_eps, **options)
        # Below about -87 the sigmoid of a gate is some number up to 2^-125.
        gate = options.pop("gate", None)
        ungated = size if gate is None else reference(q1, k1, q2, k2, v, lam, scale=scale, softcap=softcap, bias=bias, norm=norm,
                                                     norm_eps=norm_eps, **options)[1]
    score_error = 2.0**-24 * 4 * math.sqrt(q1.shape[3]) * max(largest, 1)
    if softcap is not None:
        score_error = min(score_error, 2 * softcap) + 2.0**-22 * min(largest, softcap)
    relative = 2 * ROUNDOFF[name] + math.expm1(min(score_error, 50)) + 2.0**-24 * (2 * math.sqrt(keys) + 16)
    relative = max(relative, GATES[name])
    result = got.astype(np.float64)
    judged = np.isfinite(expected) & np.isfinite(size) & (ungated < LARGEST["float32"] / 8) & (np.abs(expected) + relative * size < LARGEST[name])
    if norm is not None:
        # Squares of rows below 2^-63 are subnormal: the fewer digits they have, the fewer has the row's root. Where the maps
        # cancel wholly, nothing but rounding is left to be divided by its own size.
        with np.errstate(all="ignore"):
            row, row_size = reference(q1, k1, q2, k2, v, lam, scale=scale, softcap=softcap, bias=bias, lam_sigmoid=options.get("lam_sigmoid", False))
        judged &= (np.sqrt(np.square(row).mean(-1, keepdims=True)) > 2.0**-55) | (row_size == 0).all(-1, keepdims=True)
    empty = ~(bias if bias.dtype == np.bool_ else ~np.isneginf(bias)).any(-1)
    empty = np.repeat(empty, q1.shape[1] // q2.shape[1] if empty.shape[1] > 1 else q1.shape[1], axis=1)
    assert (result[empty] == 0).all(), f"a row without keys is not 0 but {result[empty].ravel()[:4]}"
    # Error of a number too small for f32, times the factors behind the norm.
    lost = 2.0**-125 * abs(options.get("out_scale", 1.0)) * np.abs(1.0 if options.get("norm_weight") is None else options["norm_weight"].astype(float))
    with np.errstate(all="ignore"):
        wrong = judged & ~(np.abs(result - expected) <= relative * (size + np.abs(expected)) + 2.0**-125 * (0.0 if gate is None else ungated)
                           + lost + HALF_STEP[name] + 1e-30)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(f"{wrong.sum()} of {wrong.size} wrong, the first at {at}: got {result[at]}, expected {expected[at]}, M {size[at]}, "
                             f"relative bound {relative}")
    return bool(judged.any()) or not judged.size
