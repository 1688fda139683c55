"""Calls of torch.ops.diffattn.attention with each of its options, for its tests and for those of graphs that have it."""
import torch


def operands(dtype=torch.float32, batch=2, queries=5, keys=7):
    make = torch.Generator().manual_seed(3)
    shapes = (4, queries, 16), (2, keys, 16), (4, queries, 16), (2, keys, 16), (2, keys, 32)
    return [torch.randn((batch, *shape), generator=make).to(dtype) for shape in shapes] + [torch.rand(4, generator=make)]


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


OPTIONS = {
    "plain": {},
    "causal-window": dict(is_causal=True, window=[3, -1]),
    "scale-softcap": dict(scale=0.3, softcap=2.0),
    "mask": dict(attn_mask=draw(2, 1, 5, 7) > -1),
    "bias": dict(attn_mask=draw(5, 7)),
    "norm": dict(norm="rms", norm_weight=draw(32), norm_eps=1e-3, norm_eps_mode="outside", out_scale=0.7),
    "gate": dict(gate=draw(2, 4, 5, 32)),
    "lengths": dict(kv_len=torch.tensor([3, 7]), q_offset=torch.tensor(1), is_causal=True),
    "segments": dict(q_segments=torch.arange(5).expand(2, 5) // 3, kv_segments=torch.arange(7).expand(2, 7) // 4),
    "lambda": dict(lam_activation="sigmoid", lam=draw(2, 5, 4)),
    "packed": dict(q1=draw(1, 4, 5, 16), k1=draw(1, 2, 7, 16), q2=draw(1, 4, 5, 16), k2=draw(1, 2, 7, 16), v=draw(1, 2, 7, 32),
                   cu_seqlens_q=torch.tensor([0, 2, 5]), cu_seqlens_k=torch.tensor([0, 4, 7], dtype=torch.int32), is_causal=True),
    "paged": dict(k1=draw(6, 2, 3, 16), k2=draw(6, 2, 3, 16), v=draw(6, 2, 3, 32), kv_len=torch.tensor([7, 4]),
                  block_table=torch.tensor([[5, 0, 2], [1, 4, -1]], dtype=torch.int32)),
    "integral": dict(integral=True),
    "target": dict(target="cpu:generic"),
}


def split(options):
    """The positional arguments and the options of a row of OPTIONS."""
    options = dict(options)
    tensors = [options.pop(name, tensor) for name, tensor in zip(("q1", "k1", "q2", "k2", "v", "lam"), operands())]
    return tensors, options
