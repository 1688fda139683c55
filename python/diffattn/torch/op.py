"""`torch.ops.diffattn.attention`: `diffattn.attention` as an operator of PyTorch (docs/custom-op.md).

It has the names and meanings of `diffattn.attention` where operators can; what differs:

- `lam` is a tensor, and so are kv_len and q_offset;
- segment_ids are two arguments, q_segments and kv_segments;
- `target` is None for the tensors' device: "cpu", or "cuda" on the current stream. There is no `out`, no `stream` and no `threads`.

Raises what `diffattn.attention` raises.
"""

from __future__ import annotations

import re

try:
    import torch
except ImportError as error:
    from ..errors import LibraryError

    raise LibraryError(f"expected the package torch, but importing it gave: {error}; pip install 'diffattn[torch]'") from None

from .._attention import attention
from ..attention_operands import OPTIONAL
from ..errors import InputError, LibraryError

#: The oldest version whose operators have all that is used here.
OLDEST = (2, 10)

SCHEMA = """attention(Tensor q1, Tensor k1, Tensor q2, Tensor k2, Tensor v, Tensor lam, *, float? scale=None, bool is_causal=False,
SymInt[]? window=None, float? softcap=None, str? lam_activation=None, str? norm=None, float norm_eps=1e-05,
str norm_eps_mode="inside", float out_scale=1.0, OPTIONAL, bool integral=False, str? target=None) -> Tensor"""
SCHEMA = SCHEMA.replace("OPTIONAL", ", ".join(f"Tensor? {operand.argument}=None" for operand in OPTIONAL))

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _run(q1, k1, q2, k2, v, lam, *, window=None, q_segments=None, kv_segments=None, target=None, **options):
    """On tensors of one kind of device. The result is a new dense tensor."""
    segment_ids = None if q_segments is None and kv_segments is None else (q_segments, kv_segments)
    if target is None:
        target = "cpu" if q1.device.type == "cpu" else f"cuda@{q1.device.index or 0}"
    return attention(q1, k1, q2, k2, v, lam, window=window and tuple(window), segment_ids=segment_ids, target=target, **options)


def _fake(q1, k1, q2, k2, v, lam, **_):
    """The result of `_run` without its values. Sizes may be symbols, so they are checked by calls alone."""
    for name, tensor in (("q1", q1), ("k1", k1), ("q2", q2), ("k2", k2), ("v", v)):
        if tensor.dim() != 4:
            raise InputError(f"{name}: expected rank 4, [batch, heads, length, width], but got shape {list(tensor.shape)}")
        if tensor.dtype not in _FLOATS or tensor.dtype != q1.dtype:
            raise InputError(f"{name}: expected float32, float16 or bfloat16 as all of q1, k1, q2, k2 and v, but got {tensor.dtype}")
    return q1.new_empty((*q1.shape[:3], v.shape[3]))


def _refuse_gradient(keys, *operands, **options):
    """Before the kernel, for tensors that autograd knows."""
    if torch.is_grad_enabled():
        tensors = dict(zip(("q1", "k1", "q2", "k2", "v", "lam"), operands), **options)
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                raise InputError(f"{name}: expected a tensor without gradient, because torch.ops.diffattn.attention has no backward; "
                                 "call under torch.no_grad(), or give tensor.detach()")
    below = keys & torch._C._after_autograd_keyset
    return torch.ops.diffattn.attention.default.redispatch(below, *operands, **options)


def _register() -> torch.library.Library:
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is None or tuple(map(int, version.groups())) < OLDEST:
        raise LibraryError(f"expected torch {'.'.join(map(str, OLDEST))} or later, but got {torch.__version__}")
    library = torch.library.Library("diffattn", "FRAGMENT")
    # Any strides are taken, so compilers need not copy for them.
    library.define(" ".join(SCHEMA.split()), tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
    library.impl("attention", _run, "CPU")
    library.impl("attention", _run, "CUDA")
    library.impl("attention", _refuse_gradient, "Autograd", with_keyset=True)
    torch.library.register_fake("diffattn::attention", _fake, lib=library)
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
