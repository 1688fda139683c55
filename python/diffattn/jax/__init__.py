"""Functions of JAX, and StableHLO, compiled: docs/jax.md. The package jax is imported when one is."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import checks
from ..importing import requirements
from ..importing.options import CodeOptions

if TYPE_CHECKING:
    from .function import CompiledFunction

__all__ = ["attention", "compile", "load"]

#: Prefixes of the versions that are tested, as in docs/jax.md.
TRIED = {"jax": ("0.10.",), "jaxlib": ("0.10.",)}


@functools.lru_cache(maxsize=None)
def require() -> None:
    """Raises LibraryError if jax cannot be imported, and warns once of versions that were not tried."""
    requirements.require("jax", TRIED)


def compile(fn: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any] | None = None, target: str = "cpu",
            threads: int | None = None, cache: bool | str | os.PathLike[str] = True, batch_invariant: bool | None = None) -> CompiledFunction:
    """A function that computes what `fn` does, without gradients: neither it nor what it computes has any.

    fn             a function that jax.jit takes, or that it gave
    args, kwargs   example arguments: arrays, numbers, jax.ShapeDtypeStruct, and pytrees of them. Calls must have the same structure,
                   types and sizes. Sizes of a ShapeDtypeStruct may be symbols (`jax.export.symbolic_shape`): calls may differ in
                   them, and the first with each set of sizes compiles
    target         as of `diffattn.runtime.Executable`; arguments lie in memory of the host all the same
    threads        for each call; None: the runtime's default
    cache          whether compiled code is kept on disk, or a folder for it
    batch_invariant as of `diffattn.runtime.Executable`: False lets products go to the library, where that is faster

    The function takes and gives arrays of JAX in memory of the host, in pytrees. Arrays that `fn` closes over are weights.

    Raises CompileError for a function that JAX does not trace or that cannot be lowered, and LibraryError if jax is missing. Calls
    raise InputError for arguments of another structure, type or size, and RunError for indices that are outside.
    """
    if not callable(fn):
        raise checks.wrong("fn", "a function", fn)
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise checks.wrong("kwargs", "a dict of example arguments, or None", kwargs)
    options = CodeOptions(target=target, threads=threads, cache=cache, batch_invariant=batch_invariant)
    require()
    from .function import CompiledFunction
    from .sources import Traced

    return CompiledFunction(Traced(fn, args, dict(kwargs or {})), options)


def attention(q1: Any, k1: Any, q2: Any, k2: Any, v: Any, lam: Any, *, scale: float | None = None, is_causal: bool = False,
              window: tuple[int | None, int | None] | None = None, attn_mask: Any = None, softcap: float | None = None,
              lam_activation: str | None = None, norm: str | None = None, norm_weight: Any = None, norm_eps: float = 1e-5,
              norm_eps_mode: str = "inside", out_scale: float = 1.0, gate: Any = None, kv_len: Any = None, q_offset: Any = None,
              segment_ids: tuple[Any, Any] | None = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, block_table: Any = None,
              integral: bool = False, sink: Any = None, sink2: Any = None) -> Any:
    """Differential attention as one op, which JAX runs on CPUs, and which `compile` takes: an array [B, Hs, Tq, dv] of q1's type.

    The arguments are those of `diffattn.attention`, as arrays of JAX. kv_len, q_offset and segment_ids may be int32, which is what JAX
    has with its 64-bit types switched off. The op is a custom call of StableHLO, `diffattn.attention`. With `jax.grad` and others of
    reverse mode it has first derivatives by q1, k1, q2, k2, v, lam, an additive attn_mask, norm_weight and gate; k2 that is k1, the
    same object, is read once. `jax.vmap` makes one call of each in its batch.

    Raises UsageError or InputError, when it is traced, for options, types and shapes that do not fit together; UsageError for
    derivatives that it does not have: second ones, forward mode, and those with block_table, integral, sink or sink2. `compile` raises
    CompileError for gradients. A call whose contents do not fit, as those of cu_seqlens_q, ends with an error of JAX that says what
    was expected.
    """
    require()
    from .op import attention as call

    q_segments, kv_segments = segment_ids or (None, None)
    return call(q1, k1, q2, k2, v, lam, scale=scale, is_causal=is_causal, window=window, attn_mask=attn_mask, softcap=softcap,
                lam_activation=lam_activation, norm=norm, norm_weight=norm_weight, norm_eps=norm_eps, norm_eps_mode=norm_eps_mode,
                out_scale=out_scale, gate=gate, kv_len=kv_len, q_offset=q_offset, q_segments=q_segments, kv_segments=kv_segments,
                cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, block_table=block_table, integral=integral, sink=sink, sink2=sink2)


def load(path: str | os.PathLike[str], *, target: str = "cpu", threads: int | None = None,
         cache: bool | str | os.PathLike[str] = True, batch_invariant: bool | None = None) -> CompiledFunction:
    """A function that computes what the StableHLO in the file `path` does: text or bytecode of a module, or what `jax.export` has
    serialized.

    target, threads, cache   as of `compile`

    It takes arrays: JAX's, NumPy's, PyTorch's tensors, or anything with DLPack; of an export in the structure that was exported. It
    gives arrays of JAX if an argument is one, tensors if one is a tensor, else NumPy's; several results of a module are a tuple.

    Raises InputError for a file that cannot be read, IRError for one that holds no sound StableHLO, CompileError for what cannot be
    lowered, as custom calls of others, and LibraryError if jax is missing.
    """
    place, options = checks.path("path", path), CodeOptions(target=target, threads=threads, cache=cache, batch_invariant=batch_invariant)
    require()
    from .function import CompiledFunction
    from .sources import read

    return CompiledFunction(read(place), options)
