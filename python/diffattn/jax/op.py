"""`diffattn.jax.attention`: a custom call of StableHLO, which XLA runs (xla.py) and `compile` reads (builtins.py), and its gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .. import checks
from ..array_facts import IN_ELEMENTS, ArrayType
from ..attention_module import options_of
from ..attention_operands import BACKWARD_NAMES, DIFFERENTIABLE, F32, NAMES, OPERAND, OPTIONAL, POSITIONS, REQUIRED, SINKS, WITHOUT_GRADIENTS
from ..attention_plan import check_arguments
from ..errors import InputError, UsageError
from ..sequence_tables import check_positions
from .xla import BACKWARD, FORWARD, SAVING

_NAME = "diffattn.jax.attention"
#: Advice for a function traced by JAX that has an argument without gradients.
_HINT = "jax.lax.stop_gradient of the arguments asks for none"


def attention(q1, k1, q2, k2, v, lam, *, scale=None, is_causal=False, window=None, softcap=None, lam_activation=None, norm=None, norm_eps=1e-5,
              norm_eps_mode="inside", out_scale=1.0, integral=False, **optional):
    """As `diffattn.jax.attention`, with two segments in the place of segment_ids."""
    choices = options_of(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale, integral)
    is_shared = k2 is k1
    given = {**dict(zip((operand.name for operand in REQUIRED), (q1, k1, q2, k2, v, lam))),
             **{operand.name: optional[operand.argument] for operand in OPTIONAL if optional.get(operand.argument) is not None}}
    operands = {name: _array(name, value) for name, value in given.items()}
    operands["lambda"] = _lambda(operands["lambda"])
    _check(operands, choices)
    if "bias" in operands:
        mask = operands["bias"]
        operands["bias"] = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    options = {"scale": float(1 / math.sqrt(operands["q1"].shape[-1]) if scale is None else scale), "is_causal": bool(is_causal),
               "integral": bool(integral), "softcap": softcap and float(softcap), "lambda_act": lam_activation, "norm": norm,
               "norm_eps": norm and float(norm_eps), "norm_eps_mode": norm and norm_eps_mode, "out_scale": float(out_scale),
               "window": window and tuple(-1 if side is None else int(side) for side in window)}
    if is_shared:
        del operands["k2"]
    try:
        return _attention(tuple((name, value) for name, value in options.items() if value is not None), operands)
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise UsageError(f"{_NAME}: expected reverse mode, as of jax.grad and jax.vjp, because it has no forward-mode derivative (jvp)") from None


def _array(name: str, value):
    if isinstance(value, jax.Array):
        return value
    try:
        return jax.numpy.asarray(value)
    except Exception as error:  # NumPy and JAX raise several classes
        raise InputError(f"{OPERAND[name].display_name}: expected an array, but got {checks.shown(value)}: {error}") from None


def _lambda(lam):
    if not jax.numpy.issubdtype(lam.dtype, np.floating) and not (lam.shape == () and jax.numpy.issubdtype(lam.dtype, np.integer)):
        raise InputError(f"lam: expected floats, but got {lam.dtype}")
    return jax.numpy.asarray(lam, np.float32)


def _check(operands: dict[str, Any], choices: Sequence[str | None]) -> None:
    """Raises as `diffattn.attention` does for types and shapes, and gives numbers of positions an axis, in place."""
    for name, array in operands.items():
        if not isinstance(array.dtype, np.dtype):  # keys of random numbers
            raise InputError(f"{OPERAND[name].display_name}: expected an array of numbers, but got {array.dtype}")
    types = {name: ArrayType((array.dtype, array.shape, (0,) * array.ndim, IN_ELEMENTS)) for name, array in operands.items()
             if name not in POSITIONS}
    sizes = check_arguments(types, tuple(choices), "kv_len" in operands)
    for name in POSITIONS:
        if name in operands:
            array = operands[name]
            check_positions(name, array.dtype, array.shape, sizes["N"])
            if not array.shape:
                operands[name] = jax.numpy.broadcast_to(array, (sizes["N"],))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: tuple, operands: dict[str, Any]):
    """`options`: the op's attributes as pairs. Without k2 it is k1."""
    return _call(FORWARD, _result(operands), options, operands)


def _save(options, primals):
    """The result, and what the backward call reads: which gradients are wanted, the operands, and with a norm or a gate that is trained the
    output before these, x."""
    operands = {name: primal.value for name, primal in primals.items()}
    wanted = tuple(name for name in DIFFERENTIABLE if name in primals and primals[name].perturbed
                   and jax.numpy.issubdtype(operands[name].dtype, np.floating))
    asked = wanted or [name for name in SINKS if name in primals and primals[name].perturbed]
    for name, why in WITHOUT_GRADIENTS.items():
        if asked and (name in operands or dict(options).get(name)):
            raise UsageError(f"{name}: expected none in a call that needs gradients, because {why}; {_HINT}")
    result, x = _result(operands), None
    if wanted and ("norm" in dict(options) or "gate" in wanted):
        out, x = _once(SAVING, (result, jax.ShapeDtypeStruct(result.shape, F32)), options, operands)
    else:
        out = _once(FORWARD, result, options, operands)
    return out, (dict.fromkeys(wanted), operands, x)


def _differentiate(options, saved, d_out):
    wanted, operands, x = saved
    none = dict.fromkeys(operands)
    if isinstance(d_out, SymbolicZero) or not wanted:
        return none,
    results = tuple(jax.ShapeDtypeStruct(operands[name].shape, operands[name].dtype) for name in wanted)
    given = {"d_out": d_out, **operands, **({} if x is None else {"x": x})}
    gradients = _once(BACKWARD, results, (*options, ("gradients", " ".join(wanted))), given)
    return {**none, **dict(zip(wanted, gradients))},


_attention.defvjp(_save, _differentiate, symbolic_zeros=True)


def _result(operands) -> jax.ShapeDtypeStruct:
    q1 = operands["q1"]
    return jax.ShapeDtypeStruct((*q1.shape[:3], operands["v"].shape[3]), q1.dtype)


def _call(target: str, results, options: tuple, operands: dict[str, Any]):
    """A custom call of operands by the op's names, where k1 is k2 too unless there is one or the call is one of gradients."""
    if target != BACKWARD:
        operands = {"k2": operands["k1"], **operands}
    names = [name for name in (BACKWARD_NAMES if target == BACKWARD else NAMES) if name in operands]
    # XLA takes texts and arrays of numbers, and no lists of texts.
    attributes = {name: np.array(value, np.int64) if name == "window" else value for name, value in options}
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential")
    return call(*[operands[name] for name in names], operands=" ".join(names), **attributes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _once(target, results, options, operands):
    """`_call` within the computation of a derivative, which has no derivative itself."""
    return _call(target, results, options, operands)


def _refuse_second(*_):
    raise UsageError(f"{_NAME}: expected one derivative, because gradients of its gradients are not computed, but got a second one")


_once.defvjp(_refuse_second, _refuse_second)
