"""Gradients of `diffattn::attention`: autograd's side of it, and what `diffattn::attention_backward` computes (docs/training.md).

Of a forward call its operands are kept and, with a norm or a gate, its result before these, x, in float32: the backward call computes both
maps again. On a GPU rows are kept that kernels read there (`kept_of`). Only gradients that are wanted are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from .. import checks
from .._attention import attention, attention_backward, plain_attention, split_segments
from ..arrays import as_array
from ..attention_operands import DIFFERENTIABLE, OPERAND, OPTIONAL, REQUIRED, SAVED, WITHOUT_GRADIENTS
from ..errors import InputError, UsageError

#: The arguments of `attention` that are arrays, in the order of the ops, and those that have gradients.
ARGUMENTS = tuple(operand.argument for operand in (*REQUIRED, *OPTIONAL))
GRADIENTS = tuple(OPERAND[name].argument for name in DIFFERENTIABLE)

_NAME = "torch.ops.diffattn.attention"

#: PyTorch's ops whose results are elements of their argument where they lie, as autograd names them.
_VIEWS = frozenset(f"{name}Backward0" for name in (
    "Alias", "AsStrided", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "T", "Transpose",
    "Unbind", "Unsqueeze", "View")) | {"SqueezeBackward1", "SqueezeBackward2"}


class _Attention(torch.autograd.Function):
    """A forward call that is recorded, with its result and what it keeps beside its operands, by the names `kept`, of which "x" may be the
    result itself: `names` are those of `tensors`, `others` all other arguments. Where neither has k2 it is k1."""

    @staticmethod
    def forward(forward, backward, kept, names, others, *tensors):
        given = {**others, **dict(zip(names, tensors))}
        given.setdefault("k2", given["k1"])
        return tuple(forward(**given))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.call, ctx.kept, ctx.names, ctx.others, *tensors = inputs
        result, *saved = output
        ctx.save_for_backward(*tensors, *saved, *([result] if len(saved) < len(ctx.kept) else []))
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, d_out, *_):
        wanted = [name for name, is_wanted in zip(ctx.names, ctx.needs_input_grad[5:]) if is_wanted]
        if d_out is None or not wanted:
            return (None,) * (5 + len(ctx.names))
        given = {"k2": None, **ctx.others, **dict(zip((*ctx.names, *ctx.kept), ctx.saved_tensors))}
        gradients = dict(zip(wanted, ctx.call(d_out=d_out, output_mask=[name in wanted for name in GRADIENTS], **given)))
        return (None,) * 5 + tuple(map(gradients.get, ctx.names))


class _Gradients(torch.autograd.Function):
    """A backward call that is recorded, so that its derivative raises an error with the reason why there is none."""

    @staticmethod
    def forward(call, names, others, *tensors):
        return tuple(call(**others, **dict(zip(names, tensors))))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *_):
        raise UsageError(f"{_NAME}: expected one derivative, because gradients of its gradients are not computed, but got create_graph=True "
                         "and a second one")


def differentiable(forward: Callable[..., Sequence[torch.Tensor]], backward: Callable[..., Sequence[torch.Tensor]],
                   given: dict[str, Any], kept: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    """`forward(**given)` on the arguments of the op: its result, which alone is recorded for autograd, and what is `kept`, in that order;
    one less than these: the last one is the result itself. `backward` is called as `torch.ops.diffattn.attention_backward`, with them.

    Raises UsageError or InputError for arguments with which there are no gradients.
    """
    check_differentiable(given)
    tensors, others = _tensors_of(given)
    if "k1" in tensors and "k2" in tensors and _is_one_key(tensors["k1"], tensors["k2"]):
        del tensors["k2"]  # what flows to k1 is the gradient of both
    return _Attention.apply(forward, backward, kept, tuple(tensors), others, *tensors.values())


def runs_on_gpu(given: dict[str, Any]) -> bool:
    """Whether the kernels of a GPU compute a call, also in the simulator."""
    target = given.get("target")
    if target is None:
        return getattr(getattr(given["q1"], "device", None), "type", None) == "cuda"
    return str(target).startswith("cuda")


def kept_of(given: dict[str, Any]) -> tuple[str, ...]:
    """Names of the tensors that a call on a GPU keeps beside its operands, in the order of the results of `attention_and_rows`. The backward
    call's kernels make D1 and D2 of them. The last one, x, is the result where nothing follows it; where a factor alone does, there is none."""
    second = given.get("q2") is not None
    ends = given.get("norm") is not None or given.get("gate") is not None
    return ("lse1", *(("lse2", "o2") if second else ()), *(("x",) if ends or given.get("out_scale", 1.0) == 1.0 else ()))


def saves_x(given: dict[str, Any]) -> bool:
    """Whether the backward call reads the output before norm and gate. Both calls multiply numbers of one type alike, so that it would not
    make a more exact one again."""
    gate = given.get("gate")
    return given.get("norm") is not None or (isinstance(gate, torch.Tensor) and gate.requires_grad)


def once(call: Callable[..., Sequence[torch.Tensor]], given: dict[str, Any]) -> list[torch.Tensor]:
    """`call(**given)`, gradients, which have none themselves: what takes the derivative of one raises UsageError."""
    tensors, others = _tensors_of(given, "d_out", *SAVED)
    return list(_Gradients.apply(call, tuple(tensors), others, *tensors.values()))


def _tensors_of(given, *more) -> tuple[dict, dict]:
    tensors = {name: given[name] for name in (*more, *ARGUMENTS) if isinstance(given.get(name), torch.Tensor)}
    return tensors, {name: value for name, value in given.items() if name not in tensors}


def check_differentiable(given: dict[str, Any]) -> None:
    """Raises UsageError or InputError, with the argument's name, for what has no gradients."""
    for name, why in WITHOUT_GRADIENTS.items():
        if given.get(name) is not None and given[name] is not False:
            raise UsageError(f"{name}: expected none in a call that needs gradients, because {why}; call under torch.no_grad()")
    for name, tensor in given.items():
        if isinstance(tensor, torch.Tensor) and tensor.device.type not in ("cpu", "cuda", "meta"):
            raise InputError(f"{name}: expected a tensor in memory of the host or of a CUDA device in a call that needs gradients, but got one "
                             f"on {tensor.device}; call under torch.no_grad()")
    if not runs_on_gpu(given):
        return
    if given.get("cu_seqlens_q") is not None and "x" not in kept_of(given):
        raise UsageError("out_scale: expected 1 without norm and gate in a call of packed sequences that needs gradients on a GPU, because its "
                         "kernels read the result before it, which is not kept")
    mask = given.get("attn_mask")
    if isinstance(mask, torch.Tensor) and mask.requires_grad and torch.is_grad_enabled():
        raise UsageError("attn_mask: expected one that requires no gradient on a GPU, because no kernel computes it; detach it")


def refuse_transforms(given: dict[str, Any]) -> None:
    """Raises UsageError for tensors of torch.func's transforms and of forward-mode differentiation, whose derivatives would be lost."""
    if torch._C._are_functorch_transforms_active():
        for name, tensor in given.items():
            if isinstance(tensor, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                raise _transformed(name)
    if forward_ad._current_level >= 0:
        for name, tensor in given.items():
            if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
                raise UsageError(f"{name}: expected a tensor without tangent, because {_NAME} has no forward-mode derivative (jvp)")


def refuse_vmap(*operands, **_):
    """The ops' rule of batching."""
    raise _transformed("q1" if len(operands) == len(REQUIRED) else "d_out")


def _transformed(name: str) -> UsageError:
    return UsageError(f"{name}: expected a tensor outside of torch.func's transforms (vmap, grad, jvp, ...), because {_NAME} has no rules "
                      "for them; give batches as its first axis, and take gradients by backward() or torch.autograd.grad")


def _is_one_key(k1: torch.Tensor, k2: torch.Tensor) -> bool:
    """Whether both are the same elements of the same tensor by autograd's graph, so that one gradient, of both, may flow to k1 alone.

    Equal addresses are not enough: k2 may be k1.detach(), or come from an op that changes gradients.
    """
    if k1 is k2:
        return True
    plain = (torch.Tensor, torch.nn.Parameter)
    if type(k1) not in plain or type(k2) not in plain or k1.requires_grad != k2.requires_grad:
        return False
    if k1.shape != k2.shape or k1.dtype != k2.dtype or k1.stride() != k2.stride():
        return False
    try:
        if k1.data_ptr() != k2.data_ptr():
            return False
    except RuntimeError:  # tensors that transforms of functions trace with have no address
        return False
    if not k1.requires_grad:
        return True
    # Hooks and retained gradients are of one of them.
    return not any(k._backward_hooks or k.retains_grad for k in (k1, k2)) and _origin(k1) == _origin(k2)


def _origin(tensor: torch.Tensor) -> tuple:
    """The tensor that `tensor` is a view of by PyTorch's own ops, as autograd's node and the number of its result."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    node, number = edge.node, edge.output_nr
    while node.name() in _VIEWS:
        node, number = node.next_functions[0]
    return node, number


def compute_gradients(d_out, q1, k1, q2, k2, v, lam, *, output_mask, x=None, lse1=None, lse2=None, o2=None, q_segments=None, kv_segments=None,
                      target=None, threads=None, **options) -> list[torch.Tensor]:
    """The gradients that `output_mask` asks for, in the order of GRADIENTS, each of its argument's shape, type and, where that is dense,
    strides. k2: None beside q2 for k1, whose gradient then is that of both. x, lse1, lse2, o2: what the forward call saved."""
    operands, saved = dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v, lam=lam), dict(x=x, lse1=lse1, lse2=lse2, o2=o2)
    has_second_map(q2, q2 if k2 is None else k2, lam, **options)
    check_differentiable({**operands, **options, **saved, "d_out": d_out, "target": target})
    wanted = wanted_of(output_mask, {**operands, **options})
    if "attn_mask" in wanted and runs_on_gpu({**operands, "target": target}):
        raise UsageError("output_mask: expected False for attn_mask on a GPU, because no kernel computes its gradient, but got True")
    results = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}
    # Gradients of any type but q1's and float32 are rounded from float32.
    exact = {name: result if result.dtype == q1.dtype and name != "lam" else torch.empty_like(result, dtype=torch.float32)
             for name, result in results.items()}
    segment_ids = None if q_segments is None and kv_segments is None else (q_segments, kv_segments)
    for name in WITHOUT_GRADIENTS:
        options.pop(name, None)
    attention_backward(d_out, *operands.values(), exact, segment_ids=segment_ids, **saved, target=_target_of(q1, target), threads=threads,
                       **options)
    return [result if result is exact[name] else result.copy_(exact[name]) for name, result in results.items()]


def wanted_of(output_mask: Sequence[bool], given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The operands whose gradients are asked for, by name. Raises UsageError if there are none, and for one that has no gradient."""
    if len(output_mask) != len(GRADIENTS):
        raise UsageError(f"output_mask: expected {len(GRADIENTS)} truth values, for {', '.join(GRADIENTS)}, but got {len(output_mask)}")
    wanted = {name: given.get(name) for name, is_wanted in zip(GRADIENTS, output_mask) if is_wanted}
    if not wanted:
        raise UsageError("output_mask: expected True for at least one gradient, but got False for all")
    for name, tensor in wanted.items():
        if tensor is None:
            raise UsageError(f"output_mask: expected False for {name}, because it was not given, but got True")
        if not tensor.is_floating_point():
            raise UsageError(f"output_mask: expected False for {name}, because {tensor.dtype} has no gradient, but got True")
    return wanted


def attention_with_gradient(*operands, out=None, stream=None, x=None, o2=None, return_lse=False, threads=None, segment_ids=None, window=None,
                            target="cpu", **options) -> torch.Tensor:
    """`diffattn.attention`, or, where q2, k2 and lam are None, `plain_attention`, where an argument requires a gradient."""
    checks.flag("return_lse", return_lse)
    for name, value in (("out", out), ("stream", stream), ("x", x), ("o2", o2), ("return_lse", return_lse or None)):
        if value is not None:
            raise UsageError(f"{name}: expected none in a call that needs gradients; call under torch.no_grad()")
    q_segments, kv_segments = split_segments(segment_ids)
    given = dict(zip(ARGUMENTS, operands), q_segments=q_segments, kv_segments=kv_segments, window=window, target=target, **options)
    given = {name: _kept(name, value) if name in ARGUMENTS else value for name, value in given.items()}
    compute = functools.partial(compute_gradients, threads=threads)
    is_on_gpu = isinstance(given["q1"], torch.Tensor) and runs_on_gpu(given)
    kept = kept_of(given) if is_on_gpu else ("x",) * saves_x(given)
    forward = functools.partial(compute_rows if is_on_gpu else compute_attention, keeps=kept, threads=threads)
    return differentiable(forward, lambda **call: once(compute, call), given, kept)[0]


def _target_of(q1: torch.Tensor, target: str | None) -> str:
    """target: None for the device of q1."""
    if target is not None:
        return target
    return "cpu" if q1.device.type == "cpu" else f"cuda@{q1.device.index or 0}"


def compute_attention(q1, k1, q2, k2, v, lam, *, keeps: tuple[str, ...] = (), q_segments=None, kv_segments=None, target=None,
                      **options) -> tuple[torch.Tensor, ...]:
    """The result, a new dense tensor, and x in float32 where the call `keeps` it. target: None for the device of q1."""
    segment_ids = None if q_segments is None and kv_segments is None else (q_segments, kv_segments)
    saved = {name: q1.new_empty((*q1.shape[:3], v.shape[3]), dtype=torch.float32) for name in keeps}
    options.update(segment_ids=segment_ids, target=_target_of(q1, target), x=saved.get("x"))
    return _attend(q1, k1, q2, k2, v, lam, options), *saved.values()


def compute_rows(q1, k1, q2, k2, v, lam, *, keeps: tuple[str, ...], q_segments=None, kv_segments=None, target=None,
                 **options) -> tuple[torch.Tensor, ...]:
    """The result and what `kept_of` names, without an x that is the result itself: logarithms of sums, and rows of q1's type."""
    segment_ids = None if q_segments is None and kv_segments is None else (q_segments, kv_segments)
    ends = options.get("norm") is not None or options.get("gate") is not None
    rows = {name: q1.new_empty((*q1.shape[:3], v.shape[3])) for name in keeps if name == "o2" or (name == "x" and ends)}
    options.update(segment_ids=segment_ids, target=_target_of(q1, target), return_lse=True, **rows)
    result, *logarithms = _attend(q1, k1, q2, k2, v, lam, options)
    return result, *logarithms, *rows.values()


def _attend(q1, k1, q2, k2, v, lam, options):
    if has_second_map(q2, k2, lam, **options):
        return attention(q1, k1, q2, k2, v, lam, **options)
    return plain_attention(q1, k1, v, **{name: value for name, value in options.items() if name not in _OF_TWO_MAPS})


#: Options that `plain_attention` does not have, and what they are without a second map.
_OF_TWO_MAPS = {"lam_activation": None, "integral": False, "sink2": None}


def has_second_map(q2, k2, lam, **options) -> bool:
    """Whether these three operands are given. Raises UsageError if one is without another, or an option is without them."""
    given = {"q2": q2, "k2": k2, "lam": lam}
    absent = [name for name, operand in given.items() if operand is None]
    if len(absent) in (1, 2):
        raise UsageError(f"{absent[0]}: expected q2, k2 and lam, or none of them, but got {', '.join(n for n in given if n not in absent)} alone")
    for name, default in _OF_TWO_MAPS.items():
        if absent and options.get(name, default) is not default:
            raise UsageError(f"{name}: expected {default} without q2, k2 and lam, but got {checks.shown(options[name])}")
    return not absent


def _kept(name: str, value):
    """An operand as the backward call may read it: tensors know when they were changed, other arrays are copied."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, np.generic)):
        return value
    return np.array(as_array(value, name))
