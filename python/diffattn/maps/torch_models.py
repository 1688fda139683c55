"""Maps of models of PyTorch whose attention is `torch.ops.diffattn.attention`, as `diffattn.patch` makes it (docs/custom-op.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import InputError, UsageError
from ..torch import op as _op  # noqa: F401  registers the operator
from .attention import Attention, Norm
from .collection import Maps

_ATTENTIONS = (torch.ops.diffattn.attention.default, torch.ops.diffattn.attention_and_x.default)
#: Options that maps are made with.
_KNOWN = {"scale", "attn_mask", "is_causal", "window", "q_offset", "lam_activation", "norm", "norm_weight", "norm_eps", "out_scale", "target"}
_ELEMS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def record(model: torch.nn.Module, *inputs: Any, tokens: Sequence[str] | None = None, grid: tuple[int, int] | None = None,
           image: np.ndarray | None = None, **keywords: Any) -> Maps:
    """The maps of one call, `model(*inputs, **keywords)`, of one text or image, without gradients.

    tokens   a text for each token; by default its number or, of the last ones with a `grid` of patches, its place
    image    `[h,w,3]` uint8 that a report shows below the patches

    Raises UsageError where no attention is the op's, or where one has what no map is made with; InputError for a batch of several.
    """
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        model(*inputs, **keywords)
    if not recorder.calls:
        raise UsageError(f"model: expected attention by torch.ops.diffattn.attention, as diffattn.patch makes it, but {type(model).__name__} "
                         "has called none")
    attentions = [_attention(layer, *call) for layer, call in enumerate(recorder.calls)]
    count = attentions[0].keys
    if tokens is None:
        tokens = [f"token {i}" for i in range(count)] if grid is None else _places(count, grid)
    if len(tokens) != count:
        raise UsageError(f"tokens: expected {count} texts, one for each token, but got {len(tokens)}")
    if image is not None and (image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3):
        raise InputError(f"image: expected an array [h,w,3] of uint8, but got {list(image.shape)} of {image.dtype}")
    maps = Maps(type(model).__name__, list(tokens), attentions, grid=grid, image=image)
    maps.check()
    return maps


def _places(count: int, grid: tuple[int, int]) -> list[str]:
    down, across = grid
    if down * across > count:
        raise UsageError(f"grid: expected at most {count} patches, as there are tokens, but got {down} x {across}")
    first = count - down * across
    return [f"register {i}" for i in range(first)] + [f"patch {i // across}, {i % across}" for i in range(down * across)]


class _Recorder(TorchDispatchMode):
    """Keeps operands, options and results of the op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[tuple, dict, torch.Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in _ATTENTIONS:
            self.calls.append((args, kwargs or {}, result if isinstance(result, torch.Tensor) else result[0]))
        return result


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).numpy()


def _attention(layer: int, operands: tuple, options: dict, result: torch.Tensor) -> Attention:
    q1, k1, q2, k2, v, lam = operands
    where = f"the attention of call {layer}"
    if q2 is None:
        raise UsageError(f"model: expected two maps, but {where} has one")
    defaults = {argument.name: argument.default_value for argument in _ATTENTIONS[0]._schema.arguments}
    for name, value in options.items():
        if name not in _KNOWN and value is not None and value != defaults[name]:
            raise UsageError(f"{name}: expected none, because no map is made with it, but {where} has one")
    if q1.shape[0] != 1:
        raise InputError(f"inputs: expected one text or image, but got a batch of {q1.shape[0]}")
    (_, heads, queries, width), keys = q1.shape, k1.shape[2]
    causal, window, offset = options.get("is_causal", False), options.get("window"), options.get("q_offset")
    if queries != keys or (offset is not None and bool((offset != 0).any())):
        raise InputError(f"inputs: expected as many queries as keys, from position 0 on, but {where} has {queries} and {keys}")
    mask = _mask(options.get("attn_mask"), window, queries)
    scale = options.get("scale")
    out_scale = options.get("out_scale", 1.0)
    norm = None
    out = _array(result[0])
    if options.get("norm") not in (None, "none"):
        weight = options.get("norm_weight")
        norm = Norm(None if weight is None else _array(weight), options.get("norm_eps", 1e-5), out_scale)
    elif out_scale != 1:
        out = out / np.float32(out_scale)
    q1, k1, q2, k2, v = (_array(tensor[0]) for tensor in (q1, k1, q2, k2, v))
    return Attention(q1, k1, q2, k2, v, _lambda(lam, heads, options.get("lam_activation")), width**-0.5 if scale is None else scale, layer,
                     causal, mask=mask, out=out, norm=norm, elem=_ELEMS[result.dtype])


def _lambda(lam: torch.Tensor, heads: int, activation: str | None) -> np.ndarray:
    """`[H]` or `[H,T]`, behind its activation."""
    lam = lam.detach().to("cpu", torch.float32)
    values = (lam.sigmoid() if activation == "sigmoid" else lam).numpy()
    if values.ndim == 3:
        values = values[0].T
        return np.repeat(values, heads // values.shape[0], axis=0)
    return np.broadcast_to(values, (heads,))


def _mask(mask: torch.Tensor | None, window: Sequence[int] | None, count: int) -> np.ndarray | None:
    """`[1 or heads, T, K]`, added to scores; None: nothing is."""
    bias = None
    if mask is not None:
        mask = mask.detach().cpu()
        added = torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask.float()
        added = added.reshape((1,) * (4 - added.dim()) + added.shape)[0]
        bias = added.expand(added.shape[0], count, count).numpy()
    if window is not None:
        ahead = np.arange(count) - np.arange(count)[:, None]
        left, right = window
        hidden = ((left >= 0) & (-ahead > left)) | ((right >= 0) & (ahead > right))
        bias = np.where(hidden, -np.inf, 0.0 if bias is None else bias).astype(np.float32)
        bias = bias.reshape(-1, count, count)
    return bias
