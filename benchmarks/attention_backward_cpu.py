#!/usr/bin/env python3
"""Gradients of differential attention against PyTorch's autograd on this machine's CPU, and what forward and backward take of memory.

Shapes, contestants, probes and samples are those of attention_cpu.py, of one type, with a norm of each head unless --v2 says otherwise. Each
contestant gives the gradients of q1, k1, q2, k2, v and lambda. "backward" is that alone, of an output whose graph was made outside of the
time, anew for each sample; "forward + backward" is both. Memory is that of a process of its own: how far forward and backward raise the
peak of what it holds, once they have run on a short sequence.

Rates are nominal: of the backward pass the operations that one of both maps needs (10 units, where two separate attentions need 14), of
the forward pass those of two separate attentions (6 units), half of them if causal.

    python benchmarks/attention_backward_cpu.py                               # (64,128), one thread
    python benchmarks/attention_backward_cpu.py --v2 --d 128                  # one key for both maps
    python benchmarks/attention_backward_cpu.py --key-heads 2                 # a key head for four heads
    python benchmarks/attention_backward_cpu.py --d 32 --lengths 1024 2048    # (32,64); --d 128: (128,256)
    python benchmarks/attention_backward_cpu.py --lengths 2048 --memory --threads 2 --output benchmarks/results/backward.json
    python benchmarks/attention_backward_cpu.py --isa avx512 avx2             # our code for both, side by side
    python benchmarks/attention_backward_cpu.py --dtype bf16                  # operands and gradients of 16 bits
"""

import argparse
import functools
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from attention_cpu import add_options, parse_options, rated, run_shape, set_up_peers, targets  # noqa: E402
from attention_peers import TYPES, Operands  # noqa: E402
from core_rate import at_least, sample  # noqa: E402
from held_memory import peak_in_process, peak_of, raised  # noqa: E402

#: The largest norm of an error, as a part of the norm of what PyTorch's naive composition gives in f32.
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2, "f16": 4e-3}
#: The longest sequence of which PyTorch's naive composition shows its memory: maps of 64 MB a head.
MOST_NAIVE = 4096
#: Compiles what a process of its own runs, and brings in what that loads.
SHORT = 64


class Gradients:
    """The operands of one length as tensors that require a gradient, and what gives theirs: functions of them."""

    def __init__(self, args, length, causal):
        import torch

        self.args, self.causal, self.shape = args, causal, args.shape
        self.operands = Operands(args.shape, args.dtype, length, length)
        maps = self.operands.tensors
        lam = torch.from_numpy(self.operands.lam) if self.shape.v2 else torch.tensor(self.operands.lam)
        #: q1, k1, q2, k2 if it is not k1, v, lambda.
        self.leaves = [x.requires_grad_() for x in (*maps[:3], *(() if self.shape.v2 else maps[3:4]), maps[4], lam)]
        self.names = ["q1", "k1", "q2", *([] if self.shape.v2 else ["k2"]), "v", "lambda"]
        rng = np.random.default_rng(1)
        self.d_out = torch.from_numpy(rng.standard_normal((*maps[0].shape[:3], self.shape.dv), dtype=np.float32)).to(maps[0].dtype)

    def six(self, leaves):
        """q1, k1, q2, k2, v and lambda."""
        return (*leaves[:3], leaves[1], *leaves[3:]) if self.shape.v2 else leaves

    def ours(self):
        import diffattn

        def on_leaves(target):
            return lambda *leaves: diffattn.attention(*self.six(leaves), is_causal=self.causal, target=target, **self.operands.options)

        return {name: on_leaves(target) for name, target in targets(self.args, self.args.dtype).items()}

    def peers(self):
        import torch

        def on_leaves(name, function):
            def call(*leaves):
                *maps, v, lam = self.six(leaves)
                return function(*maps, v.chunk(2, -1) if name == "sdpa x4" else v, self.operands.rows_of_lambda(lam))
            return call

        functions = {name: on_leaves(name, function) for name, function in self.operands.compositions(self.causal).items()}
        if self.args.compile:
            torch._dynamo.reset()
            functions["compiled"] = torch.compile(functions["naive"])
        return functions

    def of(self, function):
        """The output and the gradients."""
        import torch

        out = function(*self.leaves)
        return out.detach(), *torch.autograd.grad(out, self.leaves, self.d_out)

    def check(self, functions):
        """Nothing wrong is timed. A number that is lambda has a gradient which is a sum over all rows, so its error is judged by the sum of
        magnitudes."""
        import torch

        exact = Operands(self.shape, "f32", *self.d_out.shape[2:3] * 2)
        *maps, lam = (leaf.detach().float().requires_grad_() for leaf in self.leaves)
        rows = lam if self.shape.v2 else lam.detach().expand(*self.d_out.shape[:3], 1).clone().requires_grad_()
        *six, _ = self.six([*maps, lam])
        out = exact.compositions(self.causal)["naive"](*six, exact.rows_of_lambda(rows))
        *expected, of_rows = (out.detach(), *torch.autograd.grad(out, [*maps, rows], self.d_out.float()))
        magnitudes = [*map(torch.linalg.vector_norm, expected), torch.linalg.vector_norm(of_rows) if self.shape.v2 else of_rows.abs().sum()]
        expected.append(of_rows if self.shape.v2 else of_rows.sum())
        for name, function in functions.items():
            for what, got, wanted, magnitude in zip(["out", *(f"d_{n}" for n in self.names)], self.of(function), expected, magnitudes):
                error = (torch.linalg.vector_norm(got - wanted) / magnitude).item()
                if not error < TOLERANCE[self.args.dtype]:
                    raise SystemExit(f"expected {name} to give what PyTorch's naive composition gives, but got an error of {error:.2g} in {what}")


def measure(args, probe, length, causal):
    import torch

    gradients = Gradients(args, length, causal)
    ours = gradients.ours()
    functions = {**ours, **gradients.peers()}
    gradients.check(functions)
    outs = {}

    def forward(name):
        outs[name] = functions[name](*gradients.leaves)

    def backward(name):
        torch.autograd.grad(outs.pop(name), gradients.leaves, gradients.d_out)

    alone = sample(probe, {n: lambda n=n: backward(n) for n in functions}, args.turns, prepare=forward)
    both = sample(probe, {n: lambda f=f: gradients.of(f) for n, f in functions.items()}, args.turns)
    flop = args.shape.backward_flop(length, length)
    return [rated(args, probe, "backward", args.dtype, length, causal, flop, alone, ours),
            rated(args, probe, "forward + backward", args.dtype, length, causal, flop + args.shape.flop(length, length), both, ours)]


def show_memory(args, contestant, length):
    """In a process of its own: prints what it holds before a causal forward and backward, and at their peak."""
    args.compile = False
    for n in (SHORT, length):
        gradients = Gradients(args, n, causal=True)
        functions = gradients.ours() if contestant in targets(args, args.dtype) else gradients.peers()
        bytes_ = peak_of(functools.partial(gradients.of, functions[contestant]))
    print(json.dumps(bytes_))


def measure_memory(args, length):
    contestants = [*targets(args, args.dtype), *(["naive", "sdpa x2"] if length <= MOST_NAIVE else [])]
    row = {"kind": "memory", "dtype": args.dtype, "length": length, "causal": True,
           "bytes": {name: peak_in_process("--show-memory", name, length) for name in contestants}}
    print(f"memory, N {length}: " + ", ".join(f"{name} {raised(b) / 2**20:.0f} MiB, {raised(b) / 2**10 / length / args.shape.batch:.1f} KiB a token"
                                              for name, b in row["bytes"].items()), flush=True)
    return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(parser)
    parser.add_argument("--dtype", choices=list(TYPES), default="f32", help="of operands, d_out and gradients (default: f32)")
    parser.add_argument("--memory", type=at_least(SHORT), nargs="*", default=[2048, 4096, 8192], metavar="LENGTH",
                        help=f"lengths of which memory is shown, PyTorch's up to {MOST_NAIVE} (default: 2048 4096 8192); no number: none")
    parser.add_argument("--show-memory", nargs=2, metavar=("CONTESTANT", "LENGTH"), help=argparse.SUPPRESS)
    return parse_options(parser)


def main():
    args = parse()
    set_up_peers(args)
    if args.show_memory:
        show_memory(args, args.show_memory[0], int(args.show_memory[1]))
        return

    def rows(probe):
        times = [row for n in args.lengths for causal in (False, True) for row in measure(args, probe, n, causal)]
        return times + [measure_memory(args, n) for n in args.memory]

    run_shape(args, rows)


if __name__ == "__main__":
    main()
