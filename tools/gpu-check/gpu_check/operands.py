"""Random inputs of a case, in the layouts that choose among a case's kernels, and the poisoned output."""
import math

import torch

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# dense: [B,H,T,w]. bthd: [B,T,H,w] in memory, as a projection leaves it. odd: rows of w + 1 elements that begin at the second,
# which no copy of 16 bytes can read. shared: dense, and all batches have the keys and values of one, with a stride of 0, which no
# tensor map describes.
LAYOUTS = ("dense", "bthd", "odd", "shared")

#: What may be anything behind kv_len.
BEHIND = ("k1", "k2", "v")


def _place(batch, heads, length, width, layout, fill):
    """A tensor [batch, heads, length, width] in `layout`; `fill(*shape)` makes what it lies in."""
    if layout == "bthd":
        return fill(batch, length, heads, width).transpose(1, 2)
    if layout == "odd":
        return fill(batch, heads, length, width + 1)[..., 1:]
    return fill(batch, heads, length, width)


def without_hidden(tensors):
    """The same with zeros where make has put NaNs behind kv_len: for what multiplies hidden values by 0."""
    known = dict(tensors)
    if "kv_len" in tensors:
        known.update((name, tensors[name].nan_to_num(0.0)) for name in BEHIND)
    return known


def make(case, batch, tq, tk, layout="dense", seed=0, device="cpu"):
    """The operands by name, with `o` full of NaNs, and keys and values behind kv_len."""
    generator = torch.Generator(device=device).manual_seed(seed)
    element = TYPES[case.element]

    def normal(*shape, dtype=element):
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    def keys(heads, width):
        if layout == "shared":
            return _place(1, heads, tk, width, layout, normal).expand(batch, -1, -1, -1)
        return _place(batch, heads, tk, width, layout, normal)

    hs, hn, hk1, hk2, hv = case.heads
    tensors = {"q1": _place(batch, hs, tq, case.d, layout, normal), "k1": keys(hk1, case.d),
               "q2": _place(batch, hn, tq, case.d, layout, normal)}
    tensors["k2"] = tensors["k1"] if case.shared_keys else keys(hk2, case.d)
    tensors["v"] = keys(hv, case.dv)
    if case.sigmoid:
        tensors["lambda"] = normal(batch, tq, hs, dtype=torch.float32)
    elif "heads" in case.extra:
        tensors["lambda"] = 0.5 + 0.2 * normal(hs, dtype=torch.float32)
    else:
        tensors["lambda"] = torch.full((), 0.4, device=device)
    tensors["o"] = _place(batch, hs, tq, case.dv, layout, lambda *shape: torch.full(shape, math.nan, dtype=element, device=device))
    if "weight" in case.extra:
        tensors["weight"] = (1 + 0.1 * normal(case.dv, dtype=torch.float32)).to(element)
    if "bias" in case.extra:
        tensors["bias"] = normal(batch, 1, tq, tk)
    if "mask" in case.extra:
        tensors["mask"] = torch.rand((batch, 1, tq, tk), generator=generator, device=device) < 0.7
    if "gate" in case.extra:
        tensors["gate"] = _place(batch, hs, tq, case.dv, layout, normal)
    lengths = [max(0, tk - 3 - (tk // 3) * b) for b in range(batch)]
    if "kv_len" in case.extra:
        tensors["kv_len"] = torch.tensor(lengths, dtype=torch.int64, device=device)
        if layout != "shared":  # there the longest batch sees what others do not
            for batch_of, length in enumerate(lengths):
                for name in BEHIND:
                    tensors[name][batch_of, :, length:] = math.nan
    if "q_offset" in case.extra:
        tensors["q_offset"] = torch.tensor([max(0, n - tq - 2) for n in lengths], dtype=torch.int64, device=device)
    if case.segments:
        # Runs of many lengths; the last query stands beside the last key. Numbers beyond 32 bits where they fit.
        length, dtype = max(tq, tk), {"i32": torch.int32, "i64": torch.int64}[case.segments]
        begins = torch.rand((batch, length), generator=generator, device=device) < 1 / torch.tensor([7.0, 90.0, 700.0], device=device)[
            torch.arange(batch, device=device) % 3, None]
        ids = begins.cumsum(1) % 50 * (2**33 + 1 if dtype == torch.int64 else -3)
        tensors["q_segments"], tensors["kv_segments"] = (ids[:, length - n:].to(dtype).contiguous() for n in (tq, tk))
    return tensors


def stays_poisoned(o):
    """Whether what lies between the rows of the output is as it was."""
    whole = torch.empty(0, dtype=o.dtype, device=o.device).set_(o.untyped_storage())
    touched = torch.ones_like(whole, dtype=torch.bool)
    touched.as_strided(o.shape, o.stride(), o.storage_offset()).fill_(False)
    return bool(torch.isnan(whole[touched]).all())
