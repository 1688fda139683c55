#!/usr/bin/env python3
"""Gradients of differential attention against PyTorch's autograd on this machine's CPU, and what forward and backward take of memory.

Shapes, contestants, probes and samples are those of attention_cpu.py, in f32, with a norm of each head unless --v2 says otherwise. Each
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
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from attention_cpu import add_options, parse_options, rated, run, set_up, targets  # noqa: E402
from attention_peers import OUT_SCALE, Operands  # noqa: E402
from core_rate import at_least, sample  # noqa: E402

#: The largest norm of an error, as a part of the norm of what PyTorch's naive composition gives.
TOLERANCE = 1e-4
#: The longest sequence of which PyTorch's naive composition shows its memory: maps of 64 MB a head.
MOST_NAIVE = 4096
#: Compiles what a process of its own runs, and brings in what that loads.
SHORT = 64


class Gradients:
    """The operands of one length as tensors that require a gradient, and what gives theirs: functions of them."""

    def __init__(self, args, length, causal):
        import torch

        self.args, self.causal, self.shape = args, causal, args.shape
        self.operands = Operands(args.shape, "f32", length, length)
        maps = self.operands.tensors
        lam = torch.from_numpy(self.operands.lam) if self.shape.v2 else torch.tensor(self.operands.lam)
        #: q1, k1, q2, k2 if it is not k1, v, lambda.
        self.leaves = [x.requires_grad_() for x in (*maps[:3], *(() if self.shape.v2 else maps[3:4]), maps[4], lam)]
        self.names = ["q1", "k1", "q2", *([] if self.shape.v2 else ["k2"]), "v", "lambda"]
        rng = np.random.default_rng(1)
        self.d_out = torch.from_numpy(rng.standard_normal((*maps[0].shape[:3], self.shape.dv), dtype=np.float32))

    def six(self, leaves):
        """q1, k1, q2, k2, v and lambda."""
        return (*leaves[:3], leaves[1], *leaves[3:]) if self.shape.v2 else leaves

    def ours(self):
        return {name: differential(self, target) for name, target in targets(self.args, "f32").items()}

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

        *maps, lam = self.leaves
        rows = lam if self.shape.v2 else lam.detach().expand(*self.d_out.shape[:3], 1).clone().requires_grad_()
        *six, _ = self.six(self.leaves)
        out = self.operands.compositions(self.causal)["naive"](*six, self.operands.rows_of_lambda(rows))
        *expected, of_rows = (out.detach(), *torch.autograd.grad(out, [*maps, rows], self.d_out))
        magnitudes = [*map(torch.linalg.vector_norm, expected), torch.linalg.vector_norm(of_rows) if self.shape.v2 else of_rows.abs().sum()]
        expected.append(of_rows if self.shape.v2 else of_rows.sum())
        for name, function in functions.items():
            for what, found, wanted, magnitude in zip(["out", *(f"d_{n}" for n in self.names)], self.of(function), expected, magnitudes):
                error = (torch.linalg.vector_norm(found - wanted) / magnitude).item()
                if not error < TOLERANCE:
                    raise SystemExit(f"expected {name} to give what PyTorch's naive composition gives, but got an error of {error:.2g} in {what}")


def module(shape, causal):
    """The functions `forward` and `backward` of batches and lengths of any size."""
    from diffattn.attention_module import attributes_of, options_of

    end = {"lam_activation": "sigmoid", "norm": None, "out_scale": 1.0} if shape.v2 else {"lam_activation": None, "norm": "rms", "out_scale": OUT_SCALE}
    attributes = attributes_of(shape.d, options_of(shape.scale, causal, None, None, norm_eps=1e-5, norm_eps_mode="inside", **end))
    memref = lambda heads, width: f"memref<?x{heads}x?x{width}xf32, strided<[?, ?, ?, 1], offset: ?>>"
    q, o = (memref(shape.heads, width) for width in (shape.d, shape.dv))
    k, v = (memref(shape.key_heads, width) for width in (shape.d, shape.dv))
    lam = f"memref<?x?x{shape.heads}xf32, strided<[?, ?, 1], offset: ?>>" if shape.v2 else "memref<f32>"
    types = {"q1": q, "k1": k, "q2": q, **({} if shape.v2 else {"k2": k}), "v": v, "lambda": lam}
    arguments = ", ".join(f"%{name}: {t}" for name, t in types.items())
    maps = ["q1", "k1", "q2", "k1" if shape.v2 else "k2", "v"]
    ins = f"ins({', '.join('%' + n for n in maps)} : {', '.join(types[n] for n in maps)})"
    outs = " ".join(f"d_{name}(%d_{name} : {t})" for name, t in types.items())
    return f"""
func.func @forward({arguments}, %out: {o}) {{
  diffattn.attention {ins} lambda(%lambda : {lam}) outs(%out : {o}) {{{attributes}}}
  return
}}
func.func @backward({arguments}, %d_out: {o}, {", ".join(f"%d_{name}: {t}" for name, t in types.items())}) {{
  diffattn.attention_backward {ins} d_out(%d_out : {o}) lambda(%lambda : {lam}) outs({outs}) {{{attributes}}}
  return
}}
"""


def differential(gradients, target):
    """Ours as a function of the leaves that autograd knows. It keeps the operands, nothing else."""
    import torch
    from diffattn.runtime import Executable

    executable = Executable(module(gradients.shape, gradients.causal), target=target)

    class Differential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *leaves):
            ctx.save_for_backward(*leaves)
            out = torch.empty_like(gradients.d_out)
            executable.call("forward", *(x.detach().numpy() for x in leaves), out.numpy())
            return out

        @staticmethod
        def backward(ctx, d_out):
            found = [torch.empty_like(x, requires_grad=False) for x in ctx.saved_tensors]
            executable.call("backward", *(x.detach().numpy() for x in ctx.saved_tensors), d_out.numpy(), *(x.numpy() for x in found))
            return tuple(found)

    return Differential.apply


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
    return [rated(args, probe, "backward", "f32", length, causal, flop, alone, ours),
            rated(args, probe, "forward + backward", "f32", length, causal, flop + args.shape.flop(length, length), both, ours)]


def held(field):
    """VmRSS, the bytes that this process holds, or VmHWM, their peak since it was last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) << 10


def show_memory(args, contestant, length):
    """In a process of its own: prints what it holds before a causal forward and backward, and at their peak."""
    args.compile = False
    short, long = (Gradients(args, n, causal=True) for n in (SHORT, length))
    functions = {**short.ours(), **short.peers()}
    short.of(functions[contestant])
    function = {**long.ours(), **long.peers()}[contestant]
    Path("/proc/self/clear_refs").write_text("5\n")  # resets the peak; that of getrusage may be the parent's
    before = held("VmRSS")
    long.of(function)
    print(json.dumps({"before": before, "peak": held("VmHWM")}))


def measure_memory(args, length):
    contestants = [*targets(args, "f32"), *(["naive", "sdpa x2"] if length <= MOST_NAIVE else [])]
    row = {"kind": "memory", "dtype": "f32", "length": length, "causal": True, "bytes": {}}
    for name in contestants:
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--show-memory", name, str(length)], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise SystemExit(f"memory of {name}: expected a process to end well, but it ended with {done.returncode}; what it said is above")
        row["bytes"][name] = json.loads(done.stdout)
    raised = {name: b["peak"] - b["before"] for name, b in row["bytes"].items()}
    print(f"memory, N {length}: " + ", ".join(f"{name} {size / 2**20:.0f} MiB, {size / 2**10 / length / args.shape.batch:.1f} KiB a token"
                                              for name, size in raised.items()), flush=True)
    return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(parser)
    parser.add_argument("--memory", type=at_least(SHORT), nargs="*", default=[2048, 4096, 8192], metavar="LENGTH",
                        help=f"lengths of which memory is shown, PyTorch's up to {MOST_NAIVE} (default: 2048 4096 8192); no number: none")
    parser.add_argument("--show-memory", nargs=2, metavar=("CONTESTANT", "LENGTH"), help=argparse.SUPPRESS)
    return parse_options(parser)


def main():
    args = parse()
    set_up(args)
    if args.show_memory:
        show_memory(args, args.show_memory[0], int(args.show_memory[1]))
        return

    def rows(probe):
        times = [row for n in args.lengths for causal in (False, True) for row in measure(args, probe, n, causal)]
        return times + [measure_memory(args, n) for n in args.memory]

    run(args, rows)


if __name__ == "__main__":
    main()
