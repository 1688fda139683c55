"""Differential attention in functions of JAX: a call of the op, which StableHLO carries as a custom call, as a call of the builtin."""

from __future__ import annotations

import math

import jax
import numpy as np
from jaxlib.mlir import ir

from ..attention_module import options_of
from ..attention_operands import OPTIONAL
from ..importing.contract import call_builtin, declare_builtin

#: How the targets of custom calls begin that are builtins.
PREFIX = "diffattn."


def attention(q1, k1, q2, k2, v, lam, *, scale=None, is_causal=False, window=None, softcap=None, lam_activation=None, norm=None, norm_eps=1e-5,
              norm_eps_mode="inside", out_scale=1.0, integral=False, **optional):
    """As `diffattn.jax.attention`."""
    given = {operand.name: optional.get(operand.argument) for operand in OPTIONAL}
    options_of(scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale, integral)
    operands = {"q1": q1, "k1": k1, "q2": q2, "k2": k2, "v": v, "lambda": jax.numpy.asarray(lam, np.float32),
                **{name: value for name, value in given.items() if value is not None}}
    if "bias" in operands:
        mask = operands["bias"]
        operands["bias"] = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    options = {"operands": tuple(operands), "scale": float(1 / math.sqrt(q1.shape[-1]) if scale is None else scale), "is_causal": is_causal,
               "integral": integral, "softcap": softcap and float(softcap), "lambda_act": lam_activation, "norm": norm,
               "norm_eps": norm and float(norm_eps), "norm_eps_mode": norm and norm_eps_mode, "out_scale": float(out_scale),
               "window": window and np.array([-1 if side is None else side for side in window], np.int64)}
    result = jax.ShapeDtypeStruct((*q1.shape[:3], v.shape[3]), q1.dtype)
    call = jax.ffi.ffi_call(f"{PREFIX}attention", result)
    return call(*operands.values(), **{name: value for name, value in options.items() if value is not None})


def make_call(module: ir.Module, op: ir.Operation, target: str) -> None:
    """Replaces a custom call, whose configuration is the builtin's options, in place."""
    given = [op.attributes[name] for name in ("mhlo.backend_config", "backend_config") if name in op.attributes]
    # JAX writes an empty text beside the dictionary; a text that says something is handed on, and refused.
    options = next((one for one in given if one != ir.StringAttr.get("")), ir.DictAttr.get({}))
    operands, results = list(op.operands), [value.type for value in op.results]
    with ir.InsertionPoint(op), op.location:
        declared = declare_builtin(ir, module, target.removeprefix(PREFIX), options, [value.type for value in operands], results)
        made = call_builtin(ir, declared, operands, results)
    for old, new in zip(list(op.results), list(made.results)):
        old.replace_all_uses_with(new)
    op.erase()
