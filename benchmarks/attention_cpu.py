#!/usr/bin/env python3
"""Attention, differential or of one map, against PyTorch on this machine's CPU, and decoding against PyTorch and a plain read loop.

Shapes are those of the first differential transformer unless options say otherwise: batch 1, 8 heads, d 64, dv 128, RMS norm on. The
contestants run in this process, turn by turn, on the same inputs and the same number of threads. A sample counts only between two probes
of the core's rate (core_rate.py); where too few count, more are taken; in an hour that is never quiet, those with the best probes count,
and the output says how good these were. The least of what counts is reported, with its quartiles.

Rates are nominal: the operations of two separate attentions (6 units, where ours needs 4), or of the one of a single map, half of them
if causal.

    python benchmarks/attention_cpu.py                             # f32 and bf16, one thread: some minutes
    python benchmarks/attention_cpu.py --threads 2 --output benchmarks/results/attention.json
    python benchmarks/attention_cpu.py --clock cpu                 # a machine that others use: time on the CPU, not on the wall
    python benchmarks/attention_cpu.py --v2 --d 128 --key-heads 2 --dtypes f16
    python benchmarks/attention_cpu.py --plain --lengths 257 512 2048 --decode-keys 8192    # softmax attention
    python benchmarks/attention_cpu.py --masks causal window room  # masks that are arrays, by what they hold
    python benchmarks/attention_cpu.py --avx2                      # PyTorch without AVX-512, beside our code for AVX2
    python benchmarks/attention_cpu.py --isa amx avx512 --dtypes bf16    # decoding: scores by tiles beside those by f32 FMA
"""

import argparse
import dataclasses
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from attention_peers import TOLERANCE, TYPES, Operands, Shape  # noqa: E402
from core_rate import GATE, LEAST_KEPT, MOST_TURNS, Probe, at_least, cpu_name, has_feature, noise, sample  # noqa: E402, F401

#: Variables that keep PyTorch and the libraries that it brings from AVX-512; read when they are loaded.
NO_AVX512 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

#: More than the last cache of a core holds.
OTHER_BYTES = 128 << 20

#: Which keys a query sees, of as many queries as keys or of the last ones: those up to its own; the last eighth of them; a quarter of a
#: cache's room.
MASKS = {
    "causal": lambda i, j, keys: j <= i,
    "window": lambda i, j, keys: (j <= i) & (j > i - keys // 8),
    "room": lambda i, j, keys: (j < keys // 4) & (i >= 0),
}

#: The words of the plot below the bars of a kind of row.
TITLES = {"prefill": "", "backward": "\nbackward", "forward + backward": "\nboth"}


def targets(args, dtype):
    if args.isa:
        return {f"diffattn {isa}": f"cpu:{isa}" for isa in args.isa}
    if args.avx2:
        return {"diffattn 256-bit": "cpu:avx2"}
    wide = {"diffattn": "cpu"}
    return {**wide, "diffattn 256-bit": "cpu:avx2"} if dtype == "f32" and has_feature("avx512f") else wide


def checked(operands, ours, naive):
    """Nothing wrong is timed."""
    expected = naive().float().numpy()
    for name, call in ours.items():
        error = np.abs(call().astype(np.float32) - expected).max()
        if not error < TOLERANCE[operands.dtype]:
            raise SystemExit(f"expected {name} to give what PyTorch gives, but got an error of {error:.2g}")


def emptied_caches(probe):
    """A function that runs before each sample of decoding and empties the last cache: what one contestant leaves there would be a gift to the
    next, largest where they read the same one after the other."""
    other = np.ones(OTHER_BYTES, np.uint8)
    return lambda _: probe.read([other], 1)


def rated(args, probe, kind, dtype, length, causal, flop, times, ours):
    """The row of `times` of as many queries as keys, which take `flop` operations without a mask: rates, and what `ours` are beside the
    fastest of the others."""
    flop *= 0.5 if causal else 1
    for entry in times.values():
        entry["gflops"] = flop / entry["seconds"] / 1e9
    best = min(times.keys() - ours.keys(), key=lambda n: times[n]["seconds"])
    row = {"kind": kind, "dtype": dtype, "length": length, "causal": causal, "times": times, "fastest peer": best}
    for n in ours:
        row[n] = {"ratio": times[best]["seconds"] / times[n]["seconds"],
                  "of peak": times[n]["gflops"] / (probe.best * args.threads)}
        print(f"{dtype} {kind}, N {length} {'causal' if causal else 'full'}: {n} {times[n]['gflops']:.0f} GFLOP/s, "
              f"{row[n]['ratio']:.2f}x of {best} ({times[best]['gflops']:.0f}), {row[n]['of peak']:.0%} of the FMA peak "
              f"{noise(times)}", flush=True)
    return row


def measure_prefill(args, probe, dtype, length, causal):
    import torch

    operands = Operands(args.shape, dtype, length, length)
    ours = {n: lambda t=t: operands.ours(t, is_causal=causal) for n, t in targets(args, dtype).items()}
    theirs = operands.peers(causal, compiled=args.compile)
    with torch.no_grad():
        checked(operands, ours, theirs["naive"])
        for call in theirs.values():
            call()
        times = sample(probe, {**ours, **theirs}, args.turns)
    return rated(args, probe, "prefill", dtype, length, causal, args.shape.flop(length, length), times, ours)


def measure_decode(args, probe, dtype, length, key_heads):
    import torch

    operands = Operands(dataclasses.replace(args.shape, key_heads=key_heads), dtype, 1, length)
    ours = {n: lambda t=t: operands.ours(t) for n, t in targets(args, dtype).items()}
    theirs = operands.peers(causal=False, compiled=False)
    with torch.no_grad():
        checked(operands, ours, theirs["naive"])
        times = sample(probe, {**ours, "read loop": lambda: probe.read(operands.read, args.threads), **theirs}, 3 * args.turns,
                       prepare=emptied_caches(probe))
    for entry in times.values():
        entry["gb_per_s"] = operands.bytes_read / entry["seconds"] / 1e9
    best = min(theirs, key=lambda n: times[n]["seconds"])
    row = {"kind": "decode", "dtype": dtype, "length": length, "key heads": key_heads, "times": times, "fastest peer": best}
    for n in ours:
        row[n] = {"ratio": times[best]["seconds"] / times[n]["seconds"],
                  "of read loop": times["read loop"]["seconds"] / times[n]["seconds"]}
        print(f"{dtype} decode, {length} keys, {key_heads} key heads: {n} {times[n]['gb_per_s']:.1f} GB/s, {row[n]['of read loop']:.0%} "
              f"of a read loop's {times['read loop']['gb_per_s']:.1f}, {row[n]['ratio']:.2f}x of {best} {noise(times)}", flush=True)
    return row


def measure_segments(args, probe, dtype, count, each):
    """`count` packed sequences of `each` tokens: by their numbers, by the boolean mask that says the same, and without a mask."""
    operands = Operands(args.shape, dtype, count * each, count * each)
    ids = np.repeat(np.arange(count), each)[None].repeat(args.shape.batch, 0)
    mask = ids[0][:, None] == ids[0][None]
    target = next(iter(targets(args, dtype).values()))
    calls = {"segments": lambda: operands.ours(target, segment_ids=(ids, ids)),
             "boolean mask": lambda: operands.ours(target, attn_mask=mask), "no mask": lambda: operands.ours(target)}
    error = np.abs(calls["segments"]().astype(np.float32) - calls["boolean mask"]().astype(np.float32)).max()
    if not error < TOLERANCE[dtype]:
        raise SystemExit(f"expected segments to give what the boolean mask gives, but got an error of {error:.2g}")
    calls["no mask"]()
    times = sample(probe, calls, args.turns)
    part = times["segments"]["seconds"] / times["boolean mask"]["seconds"]
    print(f"{dtype} {count} segments of {each}: {times['segments']['seconds'] * 1e3:.1f} ms, {part:.0%} of the boolean mask's "
          f"{times['boolean mask']['seconds'] * 1e3:.1f}, {times['segments']['seconds'] / times['no mask']['seconds']:.0%} of the "
          f"{times['no mask']['seconds'] * 1e3:.1f} without a mask {noise(times)}", flush=True)
    return {"kind": "segments", "dtype": dtype, "count": count, "each": each, "times": times, "of boolean mask": part}


def measure_mask(args, probe, dtype, name, queries, keys):
    """A mask that is an array, of truth values and of 0 and -inf, beside the same call without one and PyTorch's calls with it."""
    import torch

    operands = Operands(args.shape, dtype, queries, keys)
    seen = MASKS[name](np.arange(keys - queries, keys)[:, None], np.arange(keys)[None], keys)
    added = np.where(seen, 0, -np.inf).astype(TYPES[dtype])
    target = next(iter(targets(args, dtype).values()))
    ours = {"boolean mask": lambda: operands.ours(target, attn_mask=seen), "mask of -inf": lambda: operands.ours(target, attn_mask=added)}
    theirs = operands.peers(causal=False, compiled=False, seen=seen)
    prepare = emptied_caches(probe) if queries == 1 else None
    with torch.no_grad():
        checked(operands, ours, theirs["naive"])
        times = sample(probe, {**ours, "no mask": lambda: operands.ours(target), **theirs}, args.turns, prepare=prepare)
    best = min(theirs, key=lambda n: times[n]["seconds"])
    row = {"kind": "mask", "dtype": dtype, "mask": name, "queries": queries, "keys": keys, "times": times, "fastest peer": best}
    for n in ours:
        row[n] = {"ratio": times[best]["seconds"] / times[n]["seconds"], "of no mask": times[n]["seconds"] / times["no mask"]["seconds"]}
        print(f"{dtype} {queries} queries, {keys} keys, {name}: {n} {times[n]['seconds'] * 1e3:.2f} ms, {row[n]['of no mask']:.2f} of no mask, "
              f"{row[n]['ratio']:.2f}x of {best} {noise(times)}", flush=True)
    return row


def plot(result, path):
    """Bars of the rows with rates, of which there are some."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in result["rows"] if r["kind"] in TITLES]
    figure, axis = pyplot.subplots(figsize=(max(6, 1.3 * len(rows)), 3.6), layout="constrained")
    names = list(dict.fromkeys(n for r in rows for n in r["times"]))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        points = [(x, r["times"][name]["gflops"]) for x, r in enumerate(rows) if name in r["times"]]
        axis.bar([x + i * width for x, _ in points], [y for _, y in points], width, label=name,
                 color={"diffattn": "#3366aa", "diffattn 256-bit": "#88aadd"}.get(name, str(0.35 + 0.1 * i)))
    axis.axhline(result["fma_peak_gflops"] * result["threads"], color="black", lw=0.8, ls="--", label="f32 FMA peak")
    axis.set_xticks([x + 0.4 for x in range(len(rows))],
                    [f"{r['dtype']} {r['length']}\n{'causal' if r['causal'] else 'full'}{TITLES[r['kind']]}" for r in rows])
    axis.set(ylabel="GFLOP/s, nominal", title=f"{result['machine']}, {result['threads']} thread(s), {result['date']}")
    axis.legend(fontsize=7, ncols=4)
    figure.savefig(path, dpi=120)


def add_run_options(parser):
    """The options of samples, and of the record."""
    parser.add_argument("--turns", type=at_least(1), default=8)
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu needs one thread")
    parser.add_argument("--output", type=Path, help="where the JSON goes, and beside it the PNG of rates")


def check_run_options(parser, args):
    if args.clock == "cpu" and args.threads != 1:
        parser.error("expected --threads 1 with --clock cpu: it adds up what threads take")


def add_options(parser):
    """The options of shapes and contestants, and those of all benchmarks."""
    positive = at_least(1)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--heads", type=positive, default=8)
    parser.add_argument("--key-heads", type=positive, help="a divisor of the heads (default: as many; where decoding is timed also a quarter)")
    parser.add_argument("--d", type=positive, default=64, help="width of a query or key")
    parser.add_argument("--dv", type=positive, help="width of a value (default: 2 d; of V2 and of one map d)")
    parser.add_argument("--v2", action="store_true", help="one key for both maps, lambda of each token, no norm")
    parser.add_argument("--avx2", action="store_true", help="everybody without AVX-512: our code for AVX2, PyTorch as its variables say")
    parser.add_argument("--isa", nargs="+", metavar="ISA", help="our code for these instruction sets, one beside the other (default: native)")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="without the naive peer under torch.compile")
    add_run_options(parser)


def parse_options(parser):
    """The options of the command line, with the shape that they describe."""
    args = parser.parse_args()
    check_run_options(parser, args)
    if args.isa and args.avx2:
        parser.error("expected --avx2 or --isa, not both: --avx2 has our code for AVX2 alone")
    if args.heads % (args.key_heads or 1):
        parser.error(f"--key-heads: expected a divisor of {args.heads}, but got {args.key_heads}")
    plain = getattr(args, "plain", False)
    if plain and args.v2:
        parser.error("expected --plain or --v2, not both: V2 has two maps")
    args.shape = Shape(args.batch, args.heads, args.key_heads or args.heads, args.d, args.dv or (args.d if args.v2 or plain else 2 * args.d),
                       args.v2, plain)
    return args


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(parser)
    parser.add_argument("--plain", action="store_true", help="one map: softmax attention")
    parser.add_argument("--dtypes", nargs="+", choices=list(TYPES), default=["f32", "bf16"])
    parser.add_argument("--decode-keys", type=at_least(0), default=32768, help="0: no decoding")
    parser.add_argument("--segments", type=at_least(0), nargs=2, default=[8, 512], metavar=("COUNT", "EACH"),
                        help="packed sequences and the tokens of each; 0 0: none")
    parser.add_argument("--masks", nargs="+", choices=list(MASKS), default=[],
                        help="masks that are arrays: of as many queries as keys, and of one query where there is decoding")
    args = parse_options(parser)
    if (args.segments[0] == 0) != (args.segments[1] == 0):
        parser.error(f"--segments: expected two numbers of at least 1, or 0 0, but got {args.segments[0]} {args.segments[1]}")
    args.decode_heads = [args.key_heads] if args.key_heads else sorted({args.heads, max(args.heads // 4, 1)}, reverse=True)
    args.decode_heads = [heads for heads in args.decode_heads if args.heads % heads == 0]
    return args


def set_up(threads):
    """Before anything brings up OpenMP, which all contestants share."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)


def set_up_peers(args):
    """PyTorch as the options say, and what `set_up` does."""
    if args.avx2:
        os.environ.update(NO_AVX512)
    set_up(args.threads)
    if args.avx2 and args.compile:
        import torch._inductor.config

        torch._inductor.config.cpp.simdlen = 256


def run(args, heading, facts, measure, wide=True):
    """The record of `facts` and of the rows that `measure` takes with a probe, printed, and written where the options say."""
    import torch

    print(f"{heading}; PyTorch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder), time.perf_counter if args.clock == "wall" else time.process_time, wide)
        peaks = probe.peaks()
        print("GFLOP/s of one core: " + ", ".join(f"{n} {p if isinstance(p, str) else f'{p:.0f}'}" for n, p in peaks.items()), flush=True)
        rows = measure(probe)
    peaks["fma f32"] = probe.best
    result = {"machine": cpu_name(), "date": datetime.date.today().isoformat(), "threads": args.threads, "clock": args.clock,
              **facts, "torch": torch.__version__, "torch capability": torch.backends.cpu.get_cpu_capability(),
              "fma_peak_gflops": probe.best, "peaks": peaks, "rows": rows}
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")
        if any(row["kind"] in TITLES for row in rows):
            plot(result, args.output.with_suffix(".png"))


def run_shape(args, measure):
    """`run` of the shape that the options say."""
    run(args, args.shape.describe(), {"shape": dataclasses.asdict(args.shape)}, measure, wide=not args.avx2)


def main():
    args = parse()
    set_up_peers(args)

    def measure(probe):
        rows = [measure_prefill(args, probe, t, n, causal) for t in args.dtypes for n in args.lengths for causal in (False, True)]
        if args.decode_keys:
            rows += [measure_decode(args, probe, t, args.decode_keys, heads) for t in args.dtypes for heads in args.decode_heads]
        if args.segments[0]:
            rows += [measure_segments(args, probe, t, *args.segments) for t in args.dtypes]
        sizes = [(n, n) for n in args.lengths] + [(1, args.decode_keys)] * (args.decode_keys > 0)
        return rows + [measure_mask(args, probe, t, name, *size) for t in args.dtypes for name in args.masks for size in sizes]

    run_shape(args, measure)


if __name__ == "__main__":
    main()
