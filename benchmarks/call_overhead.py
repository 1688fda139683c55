#!/usr/bin/env python3
"""Cost of a call beside its arithmetic: a tiny attention, and what PyTorch's own ops lose between our calls.

The tiny attention has one head, one query and four keys. The contestants take turns, sample by sample, in one process, on one
thread; the peer is two calls of PyTorch's scaled_dot_product_attention, without their subtraction. Medians, and the tenth and
ninetieth percentile, since a machine that others use disturbs single samples.

Then compiled graphs of PyTorch with one weight and with many, which every call compares with what was packed.

Then a product of PyTorch's, on all threads: in turns with nothing else, with an attention of ours that uses all threads too, and
with PyTorch's own attention of the same shape. Both pools of threads are one if the second is as fast as the third.

    python benchmarks/call_overhead.py
    python benchmarks/call_overhead.py --samples 20000 --output overhead.json
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))


def take_turns(calls, samples):
    """Microseconds of each call, in turns: median, 10 % and 90 %."""
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    clock = time.perf_counter
    for _ in range(samples):
        for name, call in calls.items():
            begin = clock()
            call()
            times[name].append((clock() - begin) * 1e6)
    return {name: summary(measured) for name, measured in times.items()}


def summary(measured):
    ranked = sorted(measured)
    return {"median": statistics.median(ranked), "p10": ranked[len(ranked) // 10], "p90": ranked[len(ranked) * 9 // 10]}


def tiny_calls():
    import torch

    import diffattn
    import diffattn.torch  # the operator

    q1, q2, k1, k2 = (torch.randn(1, 1, length, 16) for length in (1, 1, 4, 4))
    v, lam = torch.randn(1, 1, 4, 32), torch.tensor([0.3])
    tensors = (q1, k1, q2, k2, v)
    arrays = [t.numpy() for t in (*tensors, lam)]
    half = [t.bfloat16() for t in tensors]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    op = torch.ops.diffattn.attention
    cache = [torch.randn(1, 1, 4096, width) for width in (16, 16, 32)]
    keys = iter(range(10**9))

    def growing():
        at = 4 + next(keys) % 4000
        return diffattn.attention(q1, cache[0][:, :, :at], q2, cache[1][:, :, :at], cache[2][:, :, :at], lam)

    return {
        "attention, tensors": lambda: diffattn.attention(*tensors, lam),
        "attention, tensors, causal and norm": lambda: diffattn.attention(*tensors, lam, is_causal=True, norm="rms"),
        "attention, bfloat16 tensors": lambda: diffattn.attention(*half, lam),
        "attention, lambda a number": lambda: diffattn.attention(*tensors, 0.3),
        "attention, NumPy": lambda: diffattn.attention(*arrays),
        "attention, keys of a new length": growing,
        "torch.ops.diffattn.attention": lambda: op(*tensors, lam),
        "two SDPA calls": lambda: (sdpa(q1, k1, v), sdpa(q2, k2, v)),
    }


def graph_calls():
    """Graphs of PyTorch that read many small weights, as Dynamo calls them once its guards have held: what AOTAutograd adds is in it.
    The arithmetic is one fused loop over 16 numbers."""
    import torch

    from diffattn.torch.backend import backend

    class Summed(torch.nn.Module):
        def __init__(self, count):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.randn(16) for _ in range(count))

        def forward(self, x):
            for weight in self.weights:
                x = x + weight
            return x

    def behind_guards(module, x):
        seen = []

        def keep(graph, inputs):
            function = backend(graph, inputs, options={"threads": 1})

            def call(*arguments):
                seen[:] = [function, arguments]
                return function(*arguments)

            return call

        torch.compile(module, backend=keep)(x)
        function, arguments = seen
        return lambda: function(*arguments)

    x = torch.randn(16)
    return {f"graph, {count} weight{'s' * (count > 1)}": behind_guards(Summed(count), x) for count in (1, 100, 200)}


def between_calls(samples):
    """A product of PyTorch's after nothing, after our attention, and after PyTorch's."""
    import torch

    import diffattn

    q1, k1, q2, k2 = torch.randn(4, 1, 8, 128, 64).unbind(0)
    v, x = torch.randn(1, 8, 128, 128), torch.randn(256, 256)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    before = {"nothing": lambda: None, "our attention": lambda: diffattn.attention(q1, k1, q2, k2, v, 0.3),
              "PyTorch's attention": lambda: (sdpa(q1, k1, v), sdpa(q2, k2, v))}
    times = {name: [] for name in before}
    for _ in range(samples):
        for name, other in before.items():
            for _ in range(3):
                other()
                begin = time.perf_counter()
                x @ x
                times[name].append((time.perf_counter() - begin) * 1e6)
    return {name: summary(measured) for name, measured in times.items()}


def show(title, rows):
    print(title)
    for name, row in rows.items():
        print(f"  {name:38s} {row['median']:7.1f} us   (10 %: {row['p10']:.1f}, 90 %: {row['p90']:.1f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=0, help="for the product between calls; 0: as many as PyTorch takes")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    import torch

    threads = args.threads or torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        calls = take_turns(tiny_calls(), args.samples)
        show("one head, one query, four keys, one thread", calls)
        graphs = take_turns(graph_calls(), args.samples)
        show("a compiled graph behind Dynamo's guards, one thread", graphs)
        torch.set_num_threads(threads)
        between = between_calls(max(args.samples // 10, 1))
        show(f"a product of 256 x 256 by PyTorch on {threads} threads, after", between)
    if args.output:
        args.output.write_text(json.dumps({"torch": torch.__version__, "samples": args.samples, "threads": threads, "calls": calls,
                                           "graphs": graphs, "between": between}, indent=2) + "\n")


if __name__ == "__main__":
    main()
