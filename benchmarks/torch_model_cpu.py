#!/usr/bin/env python3
"""A DiffLlama of transformers, compiled by torch.compile(backend="diffattn"), against PyTorch's own eager one: prefill, and a step.

Random weights. PyTorch runs with `attn_implementation="sdpa"`, both on one thread and in turns, sample by sample, in one process.
A sample counts only if a product of PyTorch's, timed before and after it, came near the best one of its kind so far; medians, and
quartiles, of what counts.

    python benchmarks/torch_model_cpu.py
    python benchmarks/torch_model_cpu.py --layers 16 --samples 5 --output torch.json
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM
from transformers.cache_utils import StaticCache

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

import diffattn  # noqa: E402  the backend's entry point is the package's

#: How much slower than the best a probe may be.
GATE = 1.2


class Probe:
    """How fast the machine is at the moment: a product whose operands stay in the caches."""

    def __init__(self):
        self._operand, self.best = torch.randn(256, 256), float("inf")

    def __call__(self) -> float:
        self._operand @ self._operand  # brings it back into the caches
        begin = time.perf_counter()
        for _ in range(4):
            self._operand @ self._operand
        taken = time.perf_counter() - begin
        self.best = min(self.best, taken)
        return taken


def take_turns(calls, samples, probe, most):
    """Milliseconds of each call, of the samples that count; up to `most` turns."""
    for call in calls.values():
        call()
        call()
    times = {name: [] for name in calls}
    for _ in range(most):
        for name, call in calls.items():
            before, begin = probe(), time.perf_counter()
            call()
            taken, after = time.perf_counter() - begin, probe()
            if max(before, after) <= GATE * probe.best:
                times[name].append(taken * 1e3)
        if min(map(len, times.values())) >= samples:
            break
    return times


def steps(model, config, prompt):
    """A call that computes one token behind `prompt`, in a cache of fixed size, always at the same place."""
    cache = StaticCache(config=config, max_cache_len=2 * prompt.shape[1])
    start, token = torch.arange(prompt.shape[1]), prompt[:, -1:]
    model(prompt, past_key_values=cache, cache_position=start, use_cache=True)
    behind = start[-1:] + 1
    return lambda: model(token, past_key_values=cache, cache_position=behind, position_ids=behind[None], use_cache=True).logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=512, help="of the prompt")
    parser.add_argument("--samples", type=int, default=15, help="that must count, of each contestant")
    parser.add_argument("--most", type=int, default=200, help="turns after which it ends")
    parser.add_argument("--batch-invariant", action=argparse.BooleanOptionalAction, help="the option (default: as the backend has it)")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = DiffLlamaConfig(vocab_size=8192, hidden_size=options.hidden, intermediate_size=4 * options.hidden,
                             num_hidden_layers=options.layers, num_attention_heads=8, num_key_value_heads=4, attn_implementation="sdpa")
    model = DiffLlamaForCausalLM(config).eval()
    ids = torch.randint(0, config.vocab_size, (1, options.tokens))
    compiled = torch.compile(model, backend="diffattn", options={"threads": 1, "batch_invariant": options.batch_invariant})
    probe, rows = Probe(), {}
    for _ in range(50):
        probe()
    with torch.no_grad():
        prefill = {"sdpa": lambda: model(ids, use_cache=False).logits, "diffattn": lambda: compiled(ids, use_cache=False).logits}
        step = {"sdpa": steps(model, config, ids), "diffattn": steps(compiled, config, ids)}
        for name, calls in (("prefill", prefill), ("step", step)):
            begin = time.perf_counter()
            torch.testing.assert_close(calls["diffattn"](), calls["sdpa"](), rtol=1e-3, atol=1e-4)
            print(f"{name}: compiled and right after {time.perf_counter() - begin:.1f} s")
            rows[name] = {}
            for contestant, times in take_turns(calls, options.samples, probe, options.most).items():
                if len(times) < 2:
                    sys.exit(f"{name}, {contestant}: {len(times)} samples count; the machine is too busy")
                low, median, high = statistics.quantiles(times, n=4)
                rows[name][contestant] = {"median ms": median, "quartiles ms": [low, high], "best ms": min(times), "samples": len(times)}
                print(f"  {contestant:9} {median:8.2f} ms  ({low:.2f} to {high:.2f}, {len(times)} samples)")
            row = rows[name]
            row["ratio"] = row["sdpa"]["median ms"] / row["diffattn"]["median ms"]
            print(f"  {row['ratio']:.2f} times as fast")
    if options.output:
        versions = {"torch": torch.__version__, "diffattn": diffattn.__version__}
        options.output.write_text(json.dumps({"options": {k: v for k, v in vars(options).items() if k != "output"}, "versions": versions,
                                              "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
