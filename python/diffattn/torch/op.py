"""`torch.ops.diffattn.attention`: `diffattn.attention` as an operator of PyTorch (docs/custom-op.md), and `attention_backward`, its gradients.

It has the names and meanings of `diffattn.attention` where operators can; what differs:

- `lam` is a tensor, and so are kv_len and q_offset;
- segment_ids are two arguments, q_segments and kv_segments;
- q2, k2 and lam may be None, all three: that is `diffattn.plain_attention` of q1, k1 and v;
- `target` is None for the tensors' device: "cpu", or "cuda" on the current stream. There is no `out`, no `stream` and no `threads`.

`attention_and_x` is `attention` with norm or gate, and gives the output before these too, in float32: what a call saves that is recorded
for autograd. `attention_and_rows` is the same on a GPU: its results are that of `attention`, lse1, with two maps lse2 and o2, and x with a
norm or a gate, both of q1's type.

`attention_backward` has the operands and options of `attention` behind the gradient of its result, but beside q2 k2 is None where it is
k1; and x, lse1, lse2 and o2, what these gave, or None; and `output_mask`, which says for q1, k1, q2, k2, v, lam, attn_mask, norm_weight and gate whether
the gradient is wanted. It returns those.

Raises what `diffattn.attention` raises.
"""

from __future__ import annotations

import functools
import re

try:
    import torch
except ImportError as error:
    from ..errors import LibraryError

    raise LibraryError(f"expected the package torch, but importing it gave: {error}; pip install 'diffattn[torch]'") from None

from ..attention_operands import OPTIONAL, REQUIRED
from ..errors import InputError, LibraryError
from . import gradient

#: The oldest version whose operators have all that is used here.
OLDEST = (2, 10)

_OPTIONS = """float? scale=None, bool is_causal=False, SymInt[]? window=None, float? softcap=None, str? lam_activation=None,
str? norm=None, float norm_eps=1e-05, str norm_eps_mode="inside", float out_scale=1.0, OPTIONAL, bool integral=False, str? target=None"""
_OPTIONS = _OPTIONS.replace("OPTIONAL", ", ".join(f"Tensor? {operand.argument}=None" for operand in OPTIONAL))
_ARGUMENTS = f"(Tensor q1, Tensor k1, Tensor? q2, Tensor? k2, Tensor v, Tensor? lam, *, {_OPTIONS})"
SCHEMA = f"attention{_ARGUMENTS} -> Tensor"
SAVING_SCHEMA = f"attention_and_x{_ARGUMENTS} -> (Tensor, Tensor)"
ROWS_SCHEMA = f"attention_and_rows{_ARGUMENTS} -> Tensor[]"
BACKWARD_SCHEMA = f"""attention_backward(Tensor d_out, Tensor q1, Tensor k1, Tensor? q2, Tensor? k2, Tensor v, Tensor? lam, *, bool[] output_mask,
Tensor? x=None, Tensor? lse1=None, Tensor? lse2=None, Tensor? o2=None, {_OPTIONS}) -> Tensor[]"""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _run(*operands, window=None, saves=False, **options):
    """Computes attention on tensors of one kind of device. Results are new dense tensors."""
    results = gradient.compute_attention(*operands, window=window and tuple(window), keeps=("x",) * saves, **options)
    return results if saves else results[0]


def _run_rows(q1, k1, q2, k2, v, lam, *, window=None, **options):
    """`_run`, with the tensors that the kernels of gradients read on a GPU as further results."""
    keeps = gradient.kept_of(dict(q2=q2, **options))
    return list(gradient.compute_rows(q1, k1, q2, k2, v, lam, window=window and tuple(window), keeps=keeps, **options))


def _fake(q1, k1, q2, k2, v, lam, **options):
    """The result of `_run` without its values. Sizes may be symbols, so they are checked by calls alone."""
    gradient.has_second_map(q2, k2, lam, **options)
    _check_fakes(dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v), dict(lam=lam, **options))
    return q1.new_empty((*q1.shape[:3], v.shape[3]))


def _fake_saving(*operands, **options):
    result = _fake(*operands, **options)
    return result, torch.empty_like(result, dtype=torch.float32)


def _fake_rows(q1, k1, q2, k2, v, lam, **options):
    result = _fake(q1, k1, q2, k2, v, lam, **options)
    of_second = [] if q2 is None else [q2.new_empty(q2.shape[:3], dtype=torch.float32), torch.empty_like(result)]
    has_end = options.get("norm") is not None or options.get("gate") is not None
    logs, rows = [q1.new_empty(q1.shape[:3], dtype=torch.float32), *of_second[:1]], [*of_second[1:], *([torch.empty_like(result)] if has_end else [])]
    return [result, *logs, *rows]


def _fake_backward(d_out, q1, k1, q2, k2, v, lam, *, output_mask, **options):
    """The results of `compute_gradients` without their values."""
    operands = dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v, lam=lam)
    gradient.has_second_map(q2, q2 if k2 is None else k2, lam, **options)
    gradient.check_differentiable({**operands, **options, "d_out": d_out})
    wanted = gradient.wanted_of(output_mask, {**operands, **options})
    _check_fakes({name: tensor for name, tensor in operands.items() if name != "lam"}, dict(d_out=d_out, lam=lam, **options))
    if d_out.dim() != 4:
        raise InputError(f"d_out: expected rank 4, [batch, heads, length, width], but got shape {list(d_out.shape)}")
    if d_out.dtype not in (q1.dtype, torch.float32):
        types = " or ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in (q1.dtype, torch.float32)))
        raise InputError(f"d_out: expected {types}, but got {d_out.dtype}")
    return [torch.empty_like(tensor) for tensor in wanted.values()]


def _check_fakes(maps, others) -> None:
    maps = {name: tensor for name, tensor in maps.items() if tensor is not None}
    q1 = maps["q1"]
    for name, tensor in maps.items():
        if tensor.dim() != 4:
            raise InputError(f"{name}: expected rank 4, [batch, heads, length, width], but got shape {list(tensor.shape)}")
        if tensor.dtype not in _FLOATS or tensor.dtype != q1.dtype:
            raise InputError(f"{name}: expected float32, float16 or bfloat16 as all of q1, k1, q2, k2 and v, but got {tensor.dtype}")
    # Where one tensor is on the device "meta", PyTorch computes no values of any.
    for name, tensor in (maps | others).items():
        if isinstance(tensor, torch.Tensor) and (tensor.device.type == "meta") != (q1.device.type == "meta"):
            raise InputError(f"{name}: expected a tensor on {q1.device} as q1, but got one on {tensor.device}")


def _refuse_layout(*operands, **options):
    """The kernel for tensors without strides."""
    names = [argument.name for argument in (_backward if len(operands) > len(REQUIRED) else _forward)._schema.arguments]
    for name, tensor in (dict(zip(names, operands)) | options).items():
        if isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided:
            raise InputError(f"{name}: expected a tensor with strides, but got one of layout {tensor.layout}; call to_dense() first")


def _autograd(keys, *operands, **options):
    """Before the kernel of `attention`, for tensors that autograd knows."""
    given = dict(zip(gradient.ARGUMENTS, operands), **options)
    gradient.refuse_transforms(given)
    keys &= torch._C._after_autograd_keyset
    if not _requires_gradient(given):
        return _forward.redispatch(keys, *operands, **options)
    if gradient.runs_on_gpu(given):
        return gradient.differentiable(functools.partial(_rows.redispatch, keys), _backward, given, gradient.kept_of(given))[0]
    if gradient.saves_x(given):
        return gradient.differentiable(functools.partial(_saving.redispatch, keys), _backward, given, ("x",))[0]
    return gradient.differentiable(lambda **call: (_forward.redispatch(keys, **call),), _backward, given, ())[0]


def _autograd_saving(keys, *operands, **options):
    """Before the kernel of `attention_and_x`, whose x has no gradient."""
    given = dict(zip(gradient.ARGUMENTS, operands), **options)
    gradient.refuse_transforms(given)
    below = functools.partial(_saving.redispatch, keys & torch._C._after_autograd_keyset)
    if _requires_gradient(given):
        return gradient.differentiable(below, _backward, given, ("x",))
    return below(*operands, **options)


def _autograd_rows(keys, *operands, **options):
    """Before the kernel of `attention_and_rows`, of which the first result alone has a gradient."""
    given = dict(zip(gradient.ARGUMENTS, operands), **options)
    gradient.refuse_transforms(given)
    below = functools.partial(_rows.redispatch, keys & torch._C._after_autograd_keyset)
    if _requires_gradient(given):
        return list(gradient.differentiable(below, _backward, given, gradient.kept_of(given)))
    return below(*operands, **options)


def _autograd_backward(keys, d_out, *operands, **options):
    """Before the kernel of `attention_backward`."""
    given = dict(zip(gradient.ARGUMENTS, operands), d_out=d_out, **options)
    gradient.refuse_transforms(given)
    below = functools.partial(_backward.redispatch, keys & torch._C._after_autograd_keyset)
    if _requires_gradient(given):
        return gradient.once(below, given)
    return below(d_out, *operands, **options)


def _requires_gradient(given) -> bool:
    return torch.is_grad_enabled() and any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in given.values())


def _register() -> torch.library.Library:
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is None or tuple(map(int, version.groups())) < OLDEST:
        raise LibraryError(f"expected torch {'.'.join(map(str, OLDEST))} or later, but got {torch.__version__}")
    library = torch.library.Library("diffattn", "FRAGMENT")
    for schema, run, autograd, fake in ((SCHEMA, _run, _autograd, _fake),
                                        (SAVING_SCHEMA, functools.partial(_run, saves=True), _autograd_saving, _fake_saving),
                                        (ROWS_SCHEMA, _run_rows, _autograd_rows, _fake_rows),
                                        (BACKWARD_SCHEMA, gradient.compute_gradients, _autograd_backward, _fake_backward)):
        name = schema.partition("(")[0]
        # Any strides are taken, so compilers need not copy for them.
        library.define(" ".join(schema.split()), tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
        for key in ("CPU", "CUDA"):
            library.impl(name, run, key)
        for key in ("SparseCPU", "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA"):
            library.impl(name, _refuse_layout, key)
        library.impl(name, autograd, "Autograd", with_keyset=True)
        library.impl(name, gradient.refuse_vmap, "FuncTorchBatched")
        torch.library.register_fake(f"diffattn::{name}", fake, lib=library)
    return library


def add_operator(schema: str, fake, run=None) -> None:
    """Another operator of the namespace `diffattn`, for graphs. `run` computes it in PyTorch, where it is in no part that is compiled; None:
    it always is."""
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
    name = schema.partition("(")[0]
    if run is not None:
        _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"diffattn::{name}", fake, lib=_library)


#: It takes the operators with it when it goes.
_library = _register()
_forward, _saving, _rows, _backward = (getattr(torch.ops.diffattn, name).default
                                       for name in ("attention", "attention_and_x", "attention_and_rows", "attention_backward"))
