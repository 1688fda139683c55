"""Random inputs of a case, in the layouts that choose among a case's kernels, and the poisoned output."""
import math

import torch

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# dense: [B,H,T,w]. bthd: [B,T,H,w] in memory, as a projection leaves it. odd: rows of w + 1 elements that begin at the second,
# which no copy of 16 bytes can read. shared: dense, and all batches have the keys and values of one, of packed sequences and pages all
# heads, with a stride of 0, which no tensor map describes.
LAYOUTS = ("dense", "bthd", "odd", "shared")

#: Operands that may hold anything behind kv_len.
BEHIND = ("k1", "k2", "v")
#: Keys of a page.
PAGE = {"dense": 64, "bthd": 16, "odd": 48, "shared": 24}
#: In the place of pages that no key needs, and which are not read.
NO_PAGE = 1 << 30


def place(batch, heads, length, width, layout, fill):
    """A tensor [batch, heads, length, width] in `layout`; `fill(*shape)` makes what it lies in."""
    if layout == "bthd":
        return fill(batch, length, heads, width).transpose(1, 2)
    if layout == "odd":
        return fill(batch, heads, length, width + 1)[..., 1:]
    return fill(batch, heads, length, width)


def _apart(x, bounds, axis):
    """The sequences of a packed tensor, one a batch, with zeros behind the shorter ones."""
    parts = [x.narrow(axis, first, end - first) for first, end in zip(bounds, bounds[1:])]
    longest = max(part.shape[axis] for part in parts)
    whole = x.new_zeros([len(parts), *x.shape[1:axis], longest, *x.shape[axis + 1:]])
    for sequence, part in enumerate(parts):
        whole[sequence].narrow(axis - 1, 0, part.shape[axis]).copy_(part[0])
    return whole


def _behind(tensors):
    """Names of BEHIND that the call has; one map has no k2."""
    return [name for name in BEHIND if name in tensors]


def for_reference(case, tensors):
    """The operands as [B,H,T,w] tensors without tables: sequences apart, pages in the order of the keys. Where make has put NaNs
    behind kv_len, zeros, for what multiplies hidden values by 0."""
    known = dict(tensors)
    if case.paged:
        table = tensors["block_table"].long()
        table = torch.where(table < tensors["v"].shape[0], table, 0)
        for name in _behind(tensors):
            known[name] = tensors[name][table].transpose(1, 2).flatten(2, 3)
    if case.packed:
        bounds = tensors["cu_seqlens_q"].tolist()
        for name in {"q1", "q2", "o", "gate", "d_out"} & set(known):
            known[name] = _apart(tensors[name], bounds, 2)
        if case.sigmoid:
            known["lambda"] = _apart(tensors["lambda"], bounds, 1)
        if not case.paged:
            ends = tensors["cu_seqlens_k"]
            for name in _behind(tensors):
                known[name] = _apart(tensors[name], ends.tolist(), 2)
            known["kv_len"] = (ends[1:] - ends[:-1]).long()
        # The last query stands beside the last key.
        known["q_offset"] = known["kv_len"] - tensors["cu_seqlens_q"].diff().long()
    if "kv_len" in known:
        known.update((name, known[name].nan_to_num(0.0)) for name in _behind(tensors))
    return known


def together(x, bounds, axis=2):
    """The rows along `axis` of the sequences of `x`, one a batch, in the one batch of a packed tensor."""
    return torch.cat([x[sequence:sequence + 1].narrow(axis, 0, count) for sequence, count in enumerate(bounds.diff().tolist())], axis)


def like_result(case, tensors, x):
    """The rows of `x`, which is as for_reference has them, where the call's result has them."""
    return together(x, tensors["cu_seqlens_q"]) if case.packed else x


def _bounds(counts, device):
    return torch.tensor([0, *counts], dtype=torch.int32, device=device).cumsum(0).int()


def make(case, batch, tq, tk, layout="dense", seed=0, device="cpu"):
    """The operands by name, with `o` full of NaNs, and keys and values behind kv_len."""
    generator = torch.Generator(device=device).manual_seed(seed)
    element = TYPES[case.element]

    def normal(*shape, dtype=element):
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    lengths = [max(0, tk - 3 - (tk // 3) * b) if case.use == "check" else tk for b in range(batch)]
    sequences, page = batch, PAGE[layout]
    if case.packed:
        # One query stands in the last sequence, so that others have none.
        counts = [max(0, tq - (tq // 3) * b) for b in range(batch)] if tq > 1 else [0] * (batch - 1) + [1]
        batch, tq = 1, sum(counts)
    if case.paged:
        # Twice as many pages as are needed, in no order.
        most = -(-tk // page)
        order = torch.randperm(2 * most * sequences, generator=generator, device=device)
        table = order[:most * sequences].view(sequences, most).int()

    def keys(heads, width):
        if case.paged or case.packed:
            sizes = (len(order), page) if case.paged else (1, sum(lengths))
            placed = place(sizes[0], 1 if layout == "shared" else heads, sizes[1], width, layout, normal)
            return placed.expand(-1, heads, -1, -1)
        if layout == "shared":
            return place(1, heads, tk, width, layout, normal).expand(batch, -1, -1, -1)
        return place(batch, heads, tk, width, layout, normal)

    hs, hn, hk1, hk2, hv = case.heads
    tensors = {"q1": place(batch, hs, tq, case.d, layout, normal), "k1": keys(hk1, case.d)}
    if not case.one_map:
        tensors["q2"] = place(batch, hn, tq, case.d, layout, normal)
        tensors["k2"] = tensors["k1"] if case.shared_keys else keys(hk2, case.d)
    tensors["v"] = keys(hv, case.dv)
    if not case.one_map:
        tensors["lambda"] = (normal(batch, tq, hs, dtype=torch.float32) if case.sigmoid
                             else 0.5 + 0.2 * normal(hs, dtype=torch.float32) if "heads" in case.extra
                             else torch.full((), 0.4, device=device))
    result = TYPES["f32"] if "f32" in case.extra else element
    tensors["o"] = place(batch, hs, tq, case.dv, layout, lambda *shape: torch.full(shape, math.nan, dtype=result, device=device))
    for name in (name for name in ("x", "o2") if name in case.extra and not (case.one_map and name == "o2")):
        tensors[name] = place(batch, hs, tq, case.dv, layout, lambda *shape: torch.full(shape, math.nan, dtype=element, device=device))
    for name in case.sums:
        heads = hn if name.endswith("2") else hs
        # The first head's sink is above every score, the last one's is none.
        tensors[name] = (torch.full((batch, heads, tq), math.nan, device=device) if name.startswith("lse")
                         else torch.linspace(30, -5, heads, device=device).index_fill(0, torch.tensor([heads - 1], device=device), -math.inf))
    if "weight" in case.extra:
        tensors["weight"] = (1 + 0.1 * normal(case.dv, dtype=torch.float32)).to(element)
    if "bias" in case.extra:
        tensors["bias"] = normal(batch, 1, tq, tk)
    if "mask" in case.extra:
        tensors["mask"] = torch.rand((batch, 1, tq, tk), generator=generator, device=device) < 0.7
    if "gate" in case.extra:
        tensors["gate"] = place(batch, hs, tq, case.dv, layout, normal)
    if case.packed:
        tensors["cu_seqlens_q"] = _bounds(counts, device)
        if not case.paged:
            tensors["cu_seqlens_k"] = _bounds(lengths, device)
    if case.paged:
        needed = [-(-length // page) for length in lengths]
        memory = [tensors[name][:, :1] if layout == "shared" else tensors[name] for name in _behind(tensors)]
        for sequence, (length, pages) in enumerate(zip(lengths, needed)):
            table[sequence, pages:] = NO_PAGE
            if length % page:
                for pool in memory:
                    pool[table[sequence, pages - 1], :, length % page:] = math.nan
        used = torch.cat([table[sequence, :pages] for sequence, pages in enumerate(needed)]).long()
        unused = torch.ones(len(order), dtype=torch.bool, device=device)
        unused[used] = False
        for pool in memory:
            pool[unused] = math.nan
        tensors["block_table"], tensors["kv_len"] = table, torch.tensor(lengths, dtype=torch.int64, device=device)
    elif "kv_len" in case.extra:
        tensors["kv_len"] = torch.tensor(lengths, dtype=torch.int64, device=device)
        if layout != "shared":  # there the longest batch sees what others do not
            for batch_of, length in enumerate(lengths):
                for name in _behind(tensors):
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
