"""`diffattn.attention`: one differential attention on arrays, and its gradients; `diffattn.plain_attention`: one of a single map.

The arguments are named as in PyTorch's `scaled_dot_product_attention` and mean what docs/spec.md says. A call with new
types, head counts, widths or options compiles; other batches, lengths and strides of the same kind do not.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import checks
from .arguments import ArrayLike
from .array_facts import IN_BYTES, ON_DEVICE, facts_for, facts_of, is_tensor
from .arrays import OnDevice, as_array, device_of
from .attention_module import float32_bits, options_of
from .attention_operands import DIFFERENTIABLE, FLOATS, NAMES, OF_ONE_MAP, OPERAND, OPERANDS, REQUIRED, SAVED
from .attention_plan import BLOCK_TABLE, CU_SEQLENS_K, CU_SEQLENS_Q, INIT, KV_LEN, LSE1, LSE2, O2, Q_OFFSET, X, BackwardPlan, Plan
from .device import choose_stream, ordinal_of
from .runtime import Executable, InputError, UsageError
from .sequence_tables import HIGHEST, PageTable, check_bounds, check_pages, positions

#: How many kinds of calls are kept compiled in this process; the one that was not used for longest makes room.
MOST_COMPILED = 256
_compiled: dict[tuple[str, str], Executable] = {}  # by target and module; those used last at the end
#: Plans by the facts that they follow from; the oldest makes room.
MOST_PLANS = 1024
_plans: dict[tuple, Plan | BackwardPlan] = {}
_lock = threading.Lock()


def _forget_lock() -> None:
    """Makes a new lock in a child of fork(), where the thread that may hold the old one does not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def attention(q1: ArrayLike, k1: ArrayLike, q2: ArrayLike, k2: ArrayLike, v: ArrayLike, lam: ArrayLike, *, scale: float | None = None,
              is_causal: bool = False, window: tuple[int | None, int | None] | None = None, attn_mask: ArrayLike = None,
              softcap: float | None = None, lam_activation: str | None = None, norm: str | None = None, norm_weight: ArrayLike = None,
              norm_eps: float = 1e-5, norm_eps_mode: str = "inside", out_scale: float = 1.0, gate: ArrayLike = None,
              kv_len: ArrayLike = None, q_offset: ArrayLike = None, segment_ids: tuple[ArrayLike, ArrayLike] | None = None,
              cu_seqlens_q: ArrayLike = None, cu_seqlens_k: ArrayLike = None, block_table: ArrayLike = None, integral: bool = False,
              target: str = "cpu", threads: int | None = None, out: ArrayLike = None, stream: Any = None, x: ArrayLike = None,
              sink: ArrayLike = None, sink2: ArrayLike = None, return_lse: bool = False, o2: ArrayLike = None) -> Any:
    """(softmax(scale q1 k1^T) - lam softmax(scale q2 k2^T)) v for each head, as an array [B, Hs, Tq, dv].

    q1 [B, Hs, Tq, d], q2 [B, Hn, Tq, d], k1 [B, Hk1, Tk, d], k2 [B, Hk2, Tk, d], v [B, Hv, Tk, dv]: all float32, float16 or
    bfloat16 (`ml_dtypes.bfloat16`, `torch.bfloat16`), NumPy or DLPack, with any strides. A noise head serves Hs/Hn signal heads, a
    key or value head that many query heads. k2 given as the buffer and strides of k1 is read once. The result is a tensor of
    PyTorch if q1 is one, else NumPy's. Where it is PyTorch's, gradients flow to tensors that require them (docs/training.md).

    lam             a number, [Hs], [B, Tq, Hs] or [B, Tq, Hn]; with lam_activation="sigmoid" these are logits
    scale           1/sqrt(d) by default; at most 2^64 in magnitude
    is_causal       query i sees key j if j <= i + q_offset. The last query sees the last key: bottom-right, where
                    PyTorch's is_causal is top-left if Tq differs from Tk
    window          (left, right): also -right <= i + q_offset - j <= left; None or -1: no limit on that side
    attn_mask       boolean (True: visible) or additive, broadcast to [B, Hn, Tq, Tk]; one for both maps
    softcap         scores become softcap tanh(scores / softcap), before mask and bias
    norm            "rms": each head's output is divided by its root mean square, then times norm_weight [dv] if given;
                    norm_eps is added inside or outside of the root
    out_scale       multiplies the output (1 - lambda_init in most models)
    gate            logits [B, Hs, Tq, dv]: the output times their sigmoid
    kv_len          [B] or a number: keys that exist; q_offset [B] or a number: the first query's position, by default
                    (kv_len or Tk) - Tq; kv_len may exceed Tk, and positions may be negative
    segment_ids     (q_segments [B, Tq], kv_segments [B, Tk]), both int32 or both int64: a query sees only keys of its own
                    number. Positions do not begin anew with a segment
    cu_seqlens_q, cu_seqlens_k
                    [N+1] int32 or int64: sequences of different lengths follow one another, without padding, in one batch: sequence
                    n has queries cu_seqlens_q[n] to cu_seqlens_q[n+1] - 1 and keys likewise, and is computed as if it were alone,
                    with positions from 0. q_offset is [N]. Both begin with 0, do not fall, and end with Tq and Tk
    block_table     [N, M] int32 or int64: keys and values lie in pages, k1 [P, Hk1, S, d], k2 [P, Hk2, S, d], v [P, Hv, S, dv]: key
                    j of sequence n is row j % S of page block_table[n, j // S]. With kv_len, and instead of cu_seqlens_k. Entries
                    behind the last key may be any. Both without attn_mask, segment_ids and integral. Or a `diffattn.PageTable`, which has
                    kv_len and cu_seqlens_q too, checked once for several calls
    integral        DINT (arXiv 2501.17486): each row also takes lam times the mean over all queries of softmax(scale q1 k1^T) v.
                    Without is_causal, window and segment_ids. No kernel computes it: slow, with a warning that says so
    target          "cpu", "cpu:<isa>", "cuda[:<chip>][@<n>]": a GPU, or "cuda-sim:<chip>": GPU kernels on a simulator, slow and
                    with every access checked
    threads         on a CPU: how many to use, at most 4096; None or 0: the default (docs/threads.md). The result does not depend on it
    out             where the result is written, and what is returned: [B, Hs, Tq, dv] with any strides, sharing no element with
                    another argument. Of q1's type, or float32: then the result of 16-bit operands is not rounded
    stream          with arrays on a device: the CUDA stream to launch on, a number or an object with `cuda_stream`; by default
                    PyTorch's current one for its tensors, the device's default stream for others
    x               with norm or gate: where the output before these is written, as `out`; `attention_backward` takes it, and
                    need not compute it again. Without block_table and integral
    sink, sink2     [Hs] and [Hn], of q1's type or float32: exp(sink) is one term more in the sum that each row of map 1 is divided by,
                    exp(sink2) in those of map 2, as of a key with that score and no value. Neither scale nor softcap change them; -inf
                    changes nothing. Without integral
    return_lse      gives (result, lse1, lse2): also the natural logarithms of the sums of exponentials of each row of map 1 [B, Hs, Tq]
                    and of map 2 [B, Hn, Tq], with the sinks in them, as float32, -inf for a row without keys. Without integral
    o2              where softmax(scale q2 k2^T) v is written, before lam, as `out`: what a GPU's gradients need of map 2. Kernels of
                    GPUs write it; on CPUs none does, so that the call is slow there, with a warning. Without block_table and integral

    With target cuda, DLPack arrays on the GPU are used where they lie. If q1 is one, the result lies there too: in `out`, or in
    a new tensor if q1 is PyTorch's. kv_len, q_offset, cu_seqlens_q, cu_seqlens_k and block_table may lie there beside it, kv_len and
    q_offset as int64 [B] or [N]: nothing of them is checked then but types and sizes. In memory of the host they are checked before
    anything is written.
    """
    maps = dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v, lam=lam)
    if is_tensor(q1) and _needs_gradient(**maps, attn_mask=attn_mask, norm_weight=norm_weight, gate=gate, sink=sink, sink2=sink2):
        from .torch.gradient import attention_with_gradient

        return attention_with_gradient(
            q1, k1, q2, k2, v, lam, scale=scale, is_causal=is_causal, window=window, attn_mask=attn_mask, softcap=softcap,
            lam_activation=lam_activation, norm=norm, norm_weight=norm_weight, norm_eps=norm_eps, norm_eps_mode=norm_eps_mode,
            out_scale=out_scale, gate=gate, kv_len=kv_len, q_offset=q_offset, segment_ids=segment_ids, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k, block_table=block_table, integral=integral, target=target, threads=threads, out=out, stream=stream, x=x,
            sink=sink, sink2=sink2, return_lse=return_lse, o2=o2)
    return _attend(maps, (scale, is_causal, window, softcap, lam_activation, norm, norm_eps, norm_eps_mode, out_scale, integral), attn_mask,
                   norm_weight, gate, kv_len, q_offset, segment_ids, cu_seqlens_q, cu_seqlens_k, block_table, target, threads, out, stream,
                   x, sink, sink2, return_lse, o2)


def plain_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, scale: float | None = None, is_causal: bool = False,
                    window: tuple[int | None, int | None] | None = None, attn_mask: ArrayLike = None, softcap: float | None = None,
                    norm: str | None = None, norm_weight: ArrayLike = None, norm_eps: float = 1e-5, norm_eps_mode: str = "inside",
                    out_scale: float = 1.0, gate: ArrayLike = None, kv_len: ArrayLike = None, q_offset: ArrayLike = None,
                    segment_ids: tuple[ArrayLike, ArrayLike] | None = None, cu_seqlens_q: ArrayLike = None, cu_seqlens_k: ArrayLike = None,
                    block_table: ArrayLike = None, target: str = "cpu", threads: int | None = None, out: ArrayLike = None,
                    stream: Any = None, x: ArrayLike = None, sink: ArrayLike = None, return_lse: bool = False) -> Any:
    """softmax(scale q k^T) v for each head, as an array [B, H, Tq, dv]: `attention` of a single map.

    q [B, H, Tq, d], k [B, Hk, Tk, d], v [B, Hv, Tk, dv], of the types that `attention` takes, with any strides. A key head serves H/Hk
    query heads, a value head H/Hv. The other arguments are those of `attention`, with H in the place of its Hs and Hn: attn_mask
    broadcasts to [B, H, Tq, Tk], sink is [H]. There are no lam, lam_activation, sink2 and integral, and return_lse gives (result, lse).

    Raises InputError or UsageError before anything is written if arguments do not fit together.
    """
    maps = dict(q=q, k=k, v=v)
    if is_tensor(q) and _needs_gradient(**maps, attn_mask=attn_mask, norm_weight=norm_weight, gate=gate, sink=sink):
        from .torch.gradient import attention_with_gradient

        return attention_with_gradient(
            q, k, None, None, v, None, scale=scale, is_causal=is_causal, window=window, attn_mask=attn_mask, softcap=softcap, norm=norm,
            norm_weight=norm_weight, norm_eps=norm_eps, norm_eps_mode=norm_eps_mode, out_scale=out_scale, gate=gate, kv_len=kv_len,
            q_offset=q_offset, segment_ids=segment_ids, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, block_table=block_table,
            target=target, threads=threads, out=out, stream=stream, x=x, sink=sink, return_lse=return_lse)
    return _attend(maps, (scale, is_causal, window, softcap, None, norm, norm_eps, norm_eps_mode, out_scale), attn_mask, norm_weight, gate,
                   kv_len, q_offset, segment_ids, cu_seqlens_q, cu_seqlens_k, block_table, target, threads, out, stream, x, sink=sink,
                   return_lse=return_lse)


def _attend(maps: dict[str, Any], choices: tuple, attn_mask, norm_weight, gate, kv_len, q_offset, segment_ids, cu_seqlens_q, cu_seqlens_k,
            block_table, target, threads, out, stream, x=None, sink=None, sink2=None, return_lse=False, o2=None) -> Any:
    """`maps`: q1, k1, q2, k2, v and lam, or q, k and v of one map; `choices`: the arguments of `options_of`."""
    ordinal = ordinal_of(target)
    q_segments, kv_segments = split_segments(segment_ids)
    native, checked = None, block_table if type(block_table) is PageTable else None
    if checked is not None:
        for name, value in (("kv_len", kv_len), ("cu_seqlens_q", cu_seqlens_q)):
            if value is not None:
                raise UsageError(f"{name}: expected none with a PageTable, which has its own")
        block_table, kv_len, cu_seqlens_q = checked.block_table, checked.kv_len, checked.cu_seqlens_q
    if ordinal is not None or stream is not None:
        native = choose_stream(dict(maps, attn_mask=attn_mask, norm_weight=norm_weight, gate=gate, out=out, q_segments=q_segments,
                                    kv_segments=kv_segments, kv_len=kv_len, q_offset=q_offset, cu_seqlens_q=cu_seqlens_q,
                                    cu_seqlens_k=cu_seqlens_k, block_table=block_table, sink=sink, sink2=sink2, x=x, o2=o2), stream,
                               ordinal)
    # Before anything is read or converted.
    count = checks.threads(threads)
    options = options_of(*choices)
    wants_lse = checks.flag("return_lse", return_lse)
    for name, array in (("out", out), ("x", x), ("o2", o2)):
        if array is not None and not isinstance(array, (np.ndarray, OnDevice)) and not hasattr(array, "__dlpack__"):
            raise checks.wrong(name, "an array to write into", array)
    for name, array in (("x", x), ("o2", o2)):
        if array is not None and "integral" in options:
            raise UsageError(f"{name}: expected none with integral, because no kernel of it writes {name}")
    # Positions of the host wait until the number of sequences is known.
    there = [value if native is not None and device_of(value) is not None else None for value in (kv_len, q_offset)]
    facts = _facts(maps, (attn_mask, norm_weight, gate, *there, q_segments, kv_segments, cu_seqlens_q, cu_seqlens_k, block_table, sink,
                          sink2, out, x, None, None, o2), ordinal, native)
    q1 = next(iter(maps.values()))
    lses = _new_logarithms(facts, q1, ordinal, native) if wants_lse else ()
    given = kv_len is not None, q_offset is not None, facts[1][:2] == facts[3][:2]
    plan = _plan(Plan, facts, *given, options, target)
    if checked is not None:
        checked.check_sizes(plan.pages, plan.keys, plan.queries)
        facts[KV_LEN] = facts_of(kv_len, "kv_len")
    _add_positions(facts, plan, None if checked or there[0] is not None else kv_len, None if there[1] is not None else q_offset)
    if plan.has_tables and checked is None:
        _check_tables(plan, facts)
    if out is None:
        out = _new_result(plan, q1)
        facts[INIT] = facts_for(out, "out", ordinal, native)
        if plan.q1_on_device:  # another library chose the strides
            plan = _plan(Plan, facts, *given, options, target)
    else:
        _check_result(plan, facts, INIT)
    if x is not None:
        _check_result(plan, facts, X)
    if o2 is not None:
        _check_result(plan, facts, O2)
    result = (out, *lses) if wants_lse else out
    if plan.is_empty:
        if any(0 not in lse.shape for lse in lses):
            raise UsageError("return_lse: expected values of a width of at least 1 with it, but got 0")
        _check_target(target)
        return result
    executable = executable_of(plan.target, plan.module, plan.entry, frames=3)
    if plan.any_on_device:
        executable.check_device([facts[slot][2] for slot in plan.slots], "attention")
    executable.call_packed("attention", plan.packed([facts[slot][1] for slot in plan.slots]), len(plan.slots), 0, native, count)
    return result


def attention_backward(d_out: ArrayLike, q1: ArrayLike, k1: ArrayLike, q2: ArrayLike | None, k2: ArrayLike | None, v: ArrayLike,
                       lam: ArrayLike | None, gradients: Mapping[str, ArrayLike], *, attn_mask: ArrayLike = None, norm_weight: ArrayLike = None,
                       gate: ArrayLike = None, kv_len: ArrayLike = None, q_offset: ArrayLike = None,
                       segment_ids: tuple[ArrayLike, ArrayLike] | None = None, cu_seqlens_q: ArrayLike = None,
                       cu_seqlens_k: ArrayLike = None, x: ArrayLike = None, lse1: ArrayLike = None, lse2: ArrayLike = None,
                       o2: ArrayLike = None, target: str = "cpu", threads: int | None = None, stream: Any = None, **options: Any) -> None:
    """Writes gradients of a result of `attention` with the same operands and options; without q2, k2 and lam of one of `plain_attention`.
    Nothing else of the forward call is read but what it saved, if that is given: maps are computed again.

    d_out           [B, Hs, Tq, dv], of q1's type or float32, with any strides
    k2              None beside q2: k1, which is then read once, and whose gradient is that of both
    x               what `attention` wrote to its own, or its result where there is no norm, gate and out_scale; None: it is computed
                    again, if norm or gate need it
    lse1, lse2, o2  what `attention` gave with return_lse, of two maps both, and wrote to its own; read on GPUs alone
    target          as of `attention`. On a GPU kernels give the gradients of all but attn_mask, from x, lse1, lse2 and o2, all of which
                    must be given; others come from loops over both maps, slowly, with a warning, and of packed sequences not at all
    stream          as of `attention`
    gradients       where they are written: by the argument's name, as "q1", "lam" or "attn_mask", an array of its shape, and of its type
                    or float32 (that of lam: float32), with any strides, that shares no element with another argument
    options         those of `attention` that are no arrays, but for integral, which has no gradients

    Raises InputError or UsageError before anything is written if arguments do not fit together.
    """
    q_segments, kv_segments = split_segments(segment_ids)
    saved = dict(lse1=lse1, lse2=lse2, x=x, o2=o2)
    ordinal, native = ordinal_of(target), None
    if ordinal is not None or stream is not None:
        written = {f"gradient of {name}": array for name, array in gradients.items()}
        native = choose_stream(dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v, lam=lam, d_out=d_out, attn_mask=attn_mask, norm_weight=norm_weight,
                                    gate=gate, q_segments=q_segments, kv_segments=kv_segments, cu_seqlens_q=cu_seqlens_q,
                                    cu_seqlens_k=cu_seqlens_k, **saved, **written), stream, ordinal)
    count = checks.threads(threads)
    attributes = options_of(**options)
    if "integral" in attributes:
        raise UsageError("integral: expected False, because it has no gradients")
    if q2 is None:
        for name, array in (("k2", k2), ("lam", lam)):
            if array is not None:
                raise UsageError(f"{name}: expected none without q2, because there is one map")
        maps = dict(q=q1, k=k1, v=v)
    else:
        maps = dict(q1=q1, k1=k1, q2=q2, k2=k1 if k2 is None else k2, v=v, lam=lam)
    facts = _facts(maps, (attn_mask, norm_weight, gate, None, None, q_segments, kv_segments, cu_seqlens_q, cu_seqlens_k, None), ordinal,
                   native)
    facts.append(facts_for(d_out, "d_out", ordinal, native))
    facts += [_ABSENT if saved[name] is None else facts_for(saved[name], name, ordinal, native) for name in SAVED]
    for name in DIFFERENTIABLE:
        gradient = gradients.get(OPERAND[name].argument)
        facts.append(_ABSENT if gradient is None else facts_for(gradient, f"gradient of {OPERAND[name].argument}", ordinal, native))
    plan = _plan(BackwardPlan, facts, kv_len is not None, q_offset is not None, k2 is None and q2 is not None, attributes, target)
    _add_positions(facts, plan, kv_len, q_offset)
    if plan.has_tables:
        _check_tables(plan, facts)
    if plan.is_empty:
        _check_target(target)
        for name, gradient in gradients.items():
            if is_tensor(gradient):
                gradient.zero_()
            else:
                as_array(gradient, f"gradient of {name}")[...] = 0
    else:
        packed = plan.packed([facts[slot][1] for slot in plan.slots])
        executable = executable_of(plan.target, plan.module, plan.entry, frames=2)
        if plan.any_on_device:
            executable.check_device([facts[slot][2] for slot in plan.slots], plan.entry)
        executable.call_packed(plan.entry, packed, len(plan.slots), 0, native, count)


def _needs_gradient(**given) -> bool:
    """Whether PyTorch would record a gradient of one of these arguments, those that may have gradients and of which some are tensors.
    Raises UsageError for what it differentiates in another way."""
    torch = sys.modules["torch"]
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        from .torch.gradient import refuse_transforms

        refuse_transforms(given)
    return torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in given.values())


def _facts(maps: dict[str, Any], others, ordinal: int | None, native: int | None) -> list[tuple]:
    """Facts of q1, k1, q2, k2, v and lam, of one map of q, k and v, and of the operands of _OPTIONAL_NAMES, without kv_len and q_offset."""
    if "lam" in maps:
        facts = [facts_for(maps[name], name, ordinal, native) for name in NAMES[:5]]
        facts.append(_lambda(maps["lam"], ordinal, native))
    else:
        names = [OF_ONE_MAP.get(operand.name, operand.name) for operand in REQUIRED]
        facts = [facts_for(maps[name], name, ordinal, native) if name in maps else _ABSENT for name in names]
    facts += [_ABSENT if value is None else facts_for(value, name, ordinal, native) for name, value in zip(_OPTIONAL_NAMES, others)]
    return facts


def _add_positions(facts, plan: Plan | BackwardPlan, kv_len, q_offset) -> None:
    if kv_len is not None:
        facts[KV_LEN] = _positions("kv_len", kv_len, plan.batch, 0)
    if q_offset is not None:
        facts[Q_OFFSET] = _positions("q_offset", q_offset, plan.batch, -HIGHEST - 1)


#: Names in errors of the arguments behind lam. Of these, kv_len and q_offset are read when the number of sequences is known.
_OPTIONAL_NAMES = tuple(operand.display_name for operand in OPERANDS[len(REQUIRED):])
#: Facts of an argument that was not given, and the spec of a number.
_ABSENT = (None, 0, None)
_NUMBER = (np.dtype(np.float32), (), (), IN_BYTES)


def _plan(kind, facts, has_lengths: bool, has_offsets: bool, shared: bool, options, target: str):
    key = (*[one[0] for one in facts], has_lengths, has_offsets, shared, options, target)
    plan = _plans.get(key)
    if plan is None:
        plan = kind(key[: len(facts)], has_lengths, has_offsets, shared, options, target)
        with _lock:
            _plans[key] = plan
            if len(_plans) > MOST_PLANS:
                del _plans[next(iter(_plans))]
    return plan


def executable_of(target: str, module: str, entry: str, frames: int) -> Executable:
    """The code of a module, whose function is called `entry`, compiled where none of the calls before needed it. `frames`: how many calls above
    this one the caller of the library is."""
    kind = target, module
    with _lock:
        executable = _compiled.pop(kind, None)
        if executable is None:
            executable = Executable(module, target=target, name=entry)
            for diagnostic in executable.diagnostics:
                if diagnostic.kind == "missed":
                    warnings.warn(f"{diagnostic.message} ({diagnostic.category})", RuntimeWarning, stacklevel=frames + 1)
        _compiled[kind] = executable
        if len(_compiled) > MOST_COMPILED:
            del _compiled[next(iter(_compiled))]
        return executable


def _new_result(plan: Plan, q1):
    if plan.q1_on_device:
        new_result = getattr(q1, "new_empty", None)
        if new_result is None:
            raise UsageError("out: expected an array on the device for the result, because q1 lies there and is not PyTorch's")
        return new_result(plan.shape)
    return q1.new_empty(plan.shape) if is_tensor(q1) else np.empty(plan.shape, plan.dtype)


def _new_logarithms(facts, q1, ordinal: int | None, native: int | None) -> tuple:
    """New arrays for lse1 and, of two maps, lse2, whose facts become those of the call; none where queries have too few axes, which the plan
    refuses."""
    made = []
    for queries, slot in ((NAMES.index("q1"), LSE1), (NAMES.index("q2"), LSE2)):
        spec = facts[queries][0]
        if spec is None or len(spec[1]) != 4:
            continue
        if spec[3] == ON_DEVICE and not is_tensor(q1):
            raise UsageError("return_lse: expected False, because q1 lies on a device and is not PyTorch's, but got True")
        made.append(q1.new_empty(spec[1][:3], dtype=sys.modules["torch"].float32) if is_tensor(q1) else np.empty(spec[1][:3], np.float32))
        facts[slot] = facts_for(made[-1], OPERANDS[slot].display_name, ordinal, native)
    return tuple(made)


@functools.lru_cache(maxsize=None)
def _check_target(target) -> None:
    """Refuses for an empty result what any other result would be refused for."""
    Executable("module {}", target=target, name="attention")


def _check_result(plan: Plan, facts, result: int) -> None:
    """Checks the result in the slot `result` for conditions that depend on addresses: it is writable and overlaps no result before it."""
    spec, address, out = facts[result]
    if plan.is_empty or spec[3] == ON_DEVICE:
        return
    display_name = OPERANDS[result].display_name
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InputError(f"{display_name}: expected a writable array")
    low, high = plan.arrays[plan.slots.index(result)].span()
    # A result is checked against those before it.
    for slot, array in zip(plan.slots[: plan.slots.index(result)], plan.arrays):
        _, other_address, other = facts[slot]
        other_low, other_high = array.span()
        if (not array.on_device and address + low < other_address + other_high and other_address + other_low < address + high
                and _share(as_array(out, display_name), as_array(other, NAMES[slot]))):
            raise InputError(f"{display_name}: expected an array that shares no element with {plan.name_of(slot)}")


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=1_000_000)
    except RuntimeError:  # too hard to tell within that work
        return True


def _lambda(lam, ordinal, native) -> tuple:
    """Facts of lambda as float32; its shape is the plan's to check."""
    if isinstance(lam, (bool, int, float, np.generic)):
        number = ctypes.c_float.from_buffer_copy(float32_bits("lam", lam))
        return _NUMBER, ctypes.addressof(number), number
    facts = facts_for(lam, "lam", ordinal, native)
    dtype, shape, _, kind = facts[0]
    if dtype == np.float32:
        return facts
    if dtype not in [*FLOATS, np.dtype(np.float64)] and not (shape == () and dtype.kind in "iu"):
        raise InputError(f"lam: expected floats, but got {dtype}")
    if kind == ON_DEVICE:
        return facts  # the plan refuses it
    array = as_array(facts[2], "lam")
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float32)
    if dtype == np.float64 and not np.array_equal(np.isfinite(rounded), np.isfinite(array)):
        raise InputError("lam: expected numbers that float32 holds, but got larger ones")
    return facts_of(rounded, "lam")


def split_segments(segment_ids) -> tuple:
    """The two parts of segment_ids, or None for each."""
    if segment_ids is None:
        return None, None
    if not isinstance(segment_ids, (tuple, list)) or len(segment_ids) != 2 or any(ids is None for ids in segment_ids):
        raise checks.wrong("segment_ids", "(q_segments, kv_segments)", segment_ids)
    return tuple(segment_ids)


def _check_tables(plan: Plan, facts) -> None:
    """Checks the tables in memory of the host; for other tables the kernels do what docs/spec.md says."""
    for slot, rows, what in ((CU_SEQLENS_Q, plan.queries, "queries"), (CU_SEQLENS_K, plan.keys, "keys")):
        if facts[slot] is not _ABSENT and facts[slot][0][3] != ON_DEVICE:
            check_bounds(NAMES[slot], facts[slot][2], rows, what)
    if facts[BLOCK_TABLE] is not _ABSENT and ON_DEVICE not in (facts[BLOCK_TABLE][0][3], facts[KV_LEN][0][3]):
        check_pages(facts[BLOCK_TABLE][2], facts[KV_LEN][2], plan.pages, plan.keys)


def _positions(name, value, batch, low) -> tuple:
    """Facts of int64 positions, one for each sequence of the batch."""
    if device_of(value) is not None:
        raise InputError(f"{name}: expected a number or an array in memory of the host, as q1, but got an array on a device")
    return facts_of(positions(name, value, batch, low), name)
