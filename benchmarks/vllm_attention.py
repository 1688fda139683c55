#!/usr/bin/env python3
"""Differential attention of a layer in vLLM's pages on a CPU: the plugin's backend, and vLLM's own attention called four times, once for
each map and each half of the values, with the maps subtracted and normed in PyTorch.

Both take turns, call by call, in one process on one thread, on the same keys and values, and their results are compared first; a decode step
also as packed sequences, as steps are that have prompts too, and as a call for each request. Runs in the environment of scripts/setup-vllm.sh:

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_attention.py
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_attention.py --dtype bfloat16 --seconds 20
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

#: Requests, keys of each, and its queries in the step.
STEPS = {"decode 16 x 1k": (16, 1024, 1), "prefill 512": (1, 512, 512), "prefill 2k": (1, 2048, 2048), "mixed 4 x 1k, 64 each": (4, 1024, 64)}
HEADS, KEY_HEADS, WIDTH, ROWS, EPS, SCALE_OUT, LAMBDA = 16, 8, 64, 128, 1e-5, 0.8, 0.3


class Step:
    """A step of one layer: queries and pages, and the same for both contestants."""

    def __init__(self, dtype, requests, keys, queries):
        self.dtype, tokens, pages = dtype, requests * queries, -(-keys // ROWS)
        generator = torch.Generator().manual_seed(0)
        make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
        self.q, self.k, self.v = make(tokens, HEADS, WIDTH), make(requests, keys, KEY_HEADS, WIDTH), make(requests, keys, KEY_HEADS // 2, 2 * WIDTH)
        self.table = torch.randperm(requests * pages, generator=generator).to(torch.int32).view(requests, pages)
        place = torch.arange(keys)
        self.slots = self.table.long()[:, place // ROWS] * ROWS + place % ROWS  # [requests, keys]
        self.new = self.slots[:, -queries:].flatten().contiguous()
        self.lengths = torch.full((requests,), keys, dtype=torch.int32)
        self.starts = (torch.arange(requests + 1) * queries).to(torch.int32)
        self.queries, self.pages = queries, requests * pages

    def ours(self):
        from vllm.v1.attention.backend import AttentionImplBase

        from diffattn.vllm.backend import Impl, Metadata

        def alone(cls, *_, **__):
            made = object.__new__(cls)
            made.dcp_world_size = made.pcp_world_size = 1
            return made

        AttentionImplBase.__new__ = alone  # without the groups of processes of an engine
        half = HEADS // 2
        layer = Impl(num_heads=KEY_HEADS, head_size=WIDTH, scale=WIDTH**-0.5, num_kv_heads=KEY_HEADS, signals=half, noises=half, shares_keys=False,
                     options={"norm": "rms", "norm_eps": EPS, "out_scale": SCALE_OUT})
        layer.lam = torch.tensor(LAMBDA)
        cache = torch.empty(self.pages, KEY_HEADS, ROWS, 2 * WIDTH, dtype=self.dtype)
        for view, values in zip(layer._pages(cache), (self.k, self.v)):
            view.transpose(1, 2)[self.slots // ROWS, self.slots % ROWS] = values
        new = self.new
        data = Metadata(len(new), new, self.queries == 1, self.starts, self.lengths, self.table)
        packed = Metadata(len(new), new, False, self.starts, self.lengths, self.table)
        query, key, value = (part.flatten(1) for part in (self.q, *(part[:, -self.queries:].flatten(0, 1) for part in (self.k, self.v))))
        output = torch.empty(len(new), half * 2 * WIDTH, dtype=self.dtype)

        def call(data, rows=slice(None)):
            return layer.forward(None, query[rows], key[rows], value[rows], cache, data, output[rows]).view(-1, half, 2 * WIDTH)

        requests = [slice(begin, begin + self.queries) for begin in range(0, len(new), self.queries)]
        alone = [(Metadata(self.queries, new[rows], self.queries == 1, self.starts[:2], self.lengths[number:number + 1], self.table[number:number + 1]), rows)
                 for number, rows in enumerate(requests)]
        return {"ours": lambda: call(data), "packed sequences": lambda: call(packed),
                "a call for each request": lambda: torch.cat([call(*request) for request in alone])}

    def theirs(self):
        from vllm import _custom_ops as ops
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        isa, half, key_half = _get_attn_isa(self.dtype, ROWS, WIDTH), HEADS // 2, KEY_HEADS // 2
        scales = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"}
        new, parts = self.new, []
        for first in (0, 1):
            for side in (0, 1):
                keys, values = self.k.chunk(2, 2)[first], self.v.chunk(2, 3)[side]
                cache = torch.empty(self.pages, key_half, 2 * ROWS, WIDTH, dtype=self.dtype).chunk(2, 2)
                ops.cpu_attn_reshape_and_cache(keys.flatten(0, 1).contiguous(), values.flatten(0, 1).contiguous(), *cache, self.slots.flatten(), isa, **scales)
                last = [part[:, -self.queries:].flatten(0, 1).contiguous() for part in (keys, values)]
                parts.append((self.q.chunk(2, 1)[first].contiguous(), last, cache, torch.empty(len(new), half, WIDTH, dtype=self.dtype)))
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(self.lengths), num_heads=half, num_kv_heads=key_half, head_dim=WIDTH, seq_lens=self.lengths, dtype=self.dtype,
            query_start_loc=self.starts, causal=True, sliding_window_size=-1, isa=isa, enable_kv_split=False, dynamic_causal=None, kv_cache_dtype="auto")

        def call():
            for query, last, cache, output in parts:
                ops.cpu_attn_reshape_and_cache(*last, *cache, new, isa, **scales)
                ops.cpu_attention_with_kv_cache(
                    query=query, key_cache=cache[0], value_cache=cache[1], output=output, query_start_loc=self.starts, seq_lens=self.lengths,
                    scale=WIDTH**-0.5, causal=True, alibi_slopes=None, sliding_window=-1, block_table=self.table, softcap=0.0,
                    scheduler_metadata=plan, s_aux=None, dynamic_causal=None, **scales)
            first, second = (torch.cat([parts[at][3], parts[at + 1][3]], -1) for at in (0, 2))
            mixed = (first - LAMBDA * second).float()
            return (mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + EPS) * SCALE_OUT).to(self.dtype)

        return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, default=5, help="for each step (5)")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    torch.set_num_threads(1)
    for name, sizes in STEPS.items():
        step = Step(dtype, *sizes)
        calls = {"theirs": step.theirs(), **step.ours()}
        if step.queries > 1 or len(step.lengths) == 1:  # `ours` is packed, or one request
            calls = {contestant: calls[contestant] for contestant in ("theirs", "ours")}
        times = {contestant: [] for contestant in calls}
        theirs, *others = (call().float() for call in calls.values())
        error = max(((other - theirs).abs().max() / theirs.abs().max()).item() for other in others)
        if not error < (1e-4 if dtype == torch.float32 else 6e-2):
            sys.exit(f"error: expected the same results of {name}, but they differ by {error:.1e} of the largest")
        end = time.perf_counter() + options.seconds
        while len(times["ours"]) < 5 or time.perf_counter() < end:
            for contestant, call in calls.items():
                begin = time.perf_counter()
                call()
                times[contestant].append(time.perf_counter() - begin)
        medians = {contestant: statistics.median(measured) * 1e3 for contestant, measured in times.items()}
        print(f"{name}: {medians['ours']:.2f} ms, vLLM's four times {medians['theirs']:.2f} ms: {medians['theirs'] / medians['ours']:.2f} times as fast, "
              f"results differ by {error:.1e}", flush=True)
        for contestant in list(calls)[2:]:
            print(f"{name}, {contestant}: {medians[contestant]:.2f} ms, {medians[contestant] / medians['ours']:.2f} times as long as one batch", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
