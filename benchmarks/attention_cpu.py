#!/usr/bin/env python3
"""Differential attention against PyTorch on this machine's CPU, and decoding against a plain read loop.

Shapes are those of the first differential transformer: batch 1, 8 heads, d 64, dv 128, RMS norm on. The contestants run
in this process, turn by turn, on the same inputs and the same number of threads. A probe that does nothing but
fused multiply-adds runs before and after each sample, and a sample counts only if both came near the rate that the probe
reaches on a quiet core: what a neighbour disturbed is thrown away. Where too few count, more are taken; in an hour that is never
quiet, those with the best probes count, and the output says how good these were. The least of what counts is reported, with
how many there were.

Rates are nominal: the operations of two separate attentions (6 units, where ours needs 4), half of them if causal.

    python benchmarks/attention_cpu.py                             # f32 and bf16, one thread: some minutes
    python benchmarks/attention_cpu.py --threads 2 --output benchmarks/results/attention.json
    python benchmarks/attention_cpu.py --clock cpu                 # a machine that others use: time on the CPU, not on the wall
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

HEADS, D, DV, SCALE, LAMBDA, OUT_SCALE = 8, 64, 128, 0.125, 0.4, 0.8
#: A sample counts if the probes around it came this near to a quiet core; so many samples at least, of so many turns at most
#: for each that was asked for.
GATE, LEAST_KEPT, MOST_TURNS = 0.93, 3, 4

PROBE = r"""
typedef float v __attribute__((vector_size(BYTES)));
float diffattn_fma(long rounds) {
  v a[NUMBER], x = (v){} + 0.5f, y = (v){} + 0.1f;
  for (int i = 0; i < NUMBER; ++i) a[i] = (v){} + 1e-3f * i;
  for (long r = 0; r < rounds; ++r) {
    for (int i = 0; i < NUMBER; ++i) a[i] = a[i] * x + y;
    __asm__ volatile("" ::: "memory");
  }
  float sum = 0;
  for (int i = 0; i < NUMBER; ++i) sum += a[i][0];
  return sum;
}
float diffattn_read(const char *p, long bytes) {
  v a[8] = {};
  for (long at = 0; at + 8 * (long)sizeof(v) <= bytes; at += 8 * sizeof(v))
    for (int i = 0; i < 8; ++i) a[i] += *(const v *)(p + at + i * sizeof(v));
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += a[i][0];
  return sum;
}
"""


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def has_avx512():
    return "avx512f" in Path("/proc/cpuinfo").read_text()


class Probe:
    """The rates that this core reaches: fused multiply-adds, and reading memory."""

    def __init__(self, folder, clock):
        bytes_, number = (64, 16) if has_avx512() else (32, 12)
        source, library = folder / "probe.c", folder / "probe.so"
        source.write_text(PROBE.replace("BYTES", str(bytes_)).replace("NUMBER", str(number)))
        compiler = next((c for c in ("clang-22", "clang", "cc") if subprocess.run(
            ["sh", "-c", f"command -v {c}"], capture_output=True, check=False).returncode == 0), None)
        if compiler is None:
            raise SystemExit("expected a C compiler for the probe (clang-22, clang or cc), but found none")
        # Compilers split vectors of 64 bytes for CPUs of Intel unless they are told otherwise.
        wide = ["-mprefer-vector-width=512"] * (bytes_ == 64)
        subprocess.run([compiler, "-O3", "-march=native", *wide, "-ffp-contract=fast", "-shared", "-fPIC", "-Wno-psabi", "-o",
                        str(library), str(source)], check=True)
        self.library, self.clock = ctypes.CDLL(str(library)), clock
        self.library.diffattn_read.argtypes = [ctypes.c_void_p, ctypes.c_long]
        self.library.diffattn_read.restype = self.library.diffattn_fma.restype = ctypes.c_float
        self.rounds, self.flop = 30000, 2 * bytes_ // 4 * number
        self.rates = []
        for _ in range(100):
            self.rate()

    @property
    def best(self):
        """The rate of a quiet core: one that the probe reached several times. A single reading may be a boost of the clock."""
        return sorted(self.rates, reverse=True)[min(4, len(self.rates) - 1)]

    def rate(self):
        """The best of three: the first after other work pays for cold code and for a clock that has to rise."""
        best = 0.0
        for _ in range(3):
            begin = self.clock()
            self.library.diffattn_fma(self.rounds)
            best = max(best, self.rounds * self.flop / (self.clock() - begin) / 1e9)
        self.rates.append(best)
        return best

    def read(self, arrays, threads):
        """Reads all of `arrays`, each thread its part."""
        def part(number):
            for a in arrays:
                size = a.nbytes // threads
                self.library.diffattn_read(a.ctypes.data + number * size, size)

        helpers = [threading.Thread(target=part, args=(i,)) for i in range(1, threads)]
        for helper in helpers:
            helper.start()
        part(0)
        for helper in helpers:
            helper.join()


def choose(samples, best):
    """Of samples (seconds, rate of the worse probe) those that count, and the gate that they passed: a part of `best`.

    Where fewer than LEAST_KEPT pass GATE, the gate is as much lower as it must be."""
    ranked = sorted((rate / best for _, rate in samples), reverse=True)
    gate = min(GATE, ranked[min(LEAST_KEPT, len(ranked)) - 1])
    return [seconds for seconds, rate in samples if rate / best >= gate], gate


def sample(probe, calls, turns):
    """For each call the least time of the samples that count, their number, that of all, and the gate."""
    samples = {name: [] for name in calls}
    for turn in range(turns * MOST_TURNS):
        # Judged anew each time: what a quiet core reaches is known better and better.
        chosen = {n: choose(s, probe.best) for n, s in samples.items() if s}
        if turn >= turns and all(gate == GATE for _, gate in chosen.values()):
            break
        for name, call in calls.items():
            before = probe.rate()
            begin = probe.clock()
            call()
            seconds = probe.clock() - begin
            samples[name].append((seconds, min(before, probe.rate())))
    result = {}
    for name in calls:
        kept, gate = choose(samples[name], probe.best)
        result[name] = {"seconds": min(kept), "kept": len(kept), "of": len(samples[name]), "gate": gate}
    return result


def noise(times):
    """How many samples count, and a warning where the core was never quiet."""
    least, gate = min((t["kept"], t["of"]) for t in times.values()), min(t["gate"] for t in times.values())
    text = f"[at least {least[0]} of {least[1]} samples kept"
    return text + (f"; NOISY: probes around them reached {gate:.0%} of a quiet core only]" if gate < GATE else "]")


def peers(torch, tensors, causal):
    """The compositions that PyTorch offers, each a function without arguments."""
    q1, k1, q2, k2, v = tensors
    half = DV // 2
    first, second = v[..., :half].contiguous(), v[..., half:].contiguous()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    mask = torch.full((q1.shape[2], k1.shape[2]), float("-inf"), dtype=v.dtype).triu(1) if causal else None

    def end(x):
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * OUT_SCALE).to(x.dtype)

    def one_map(q, k):
        scores = q @ k.transpose(-1, -2) * SCALE
        return torch.softmax(scores if mask is None else scores + mask, -1)

    def naive(q1, k1, q2, k2, v):
        return end((one_map(q1, k1) - LAMBDA * one_map(q2, k2)) @ v)

    def sdpa2():
        return end(sdpa(q1, k1, v, is_causal=causal, scale=SCALE) - LAMBDA * sdpa(q2, k2, v, is_causal=causal, scale=SCALE))

    def sdpa4():
        one = lambda q, k: torch.cat([sdpa(q, k, x, is_causal=causal, scale=SCALE) for x in (first, second)], -1)
        return end(one(q1, k1) - LAMBDA * one(q2, k2))

    torch._dynamo.reset()
    compiled = torch.compile(naive)
    return {"naive": lambda: naive(q1, k1, q2, k2, v), "compiled": lambda: compiled(q1, k1, q2, k2, v), "sdpa x2": sdpa2,
            "sdpa x4": sdpa4}


def random(rng, dtype, *shape):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def measure_prefill(args, probe, dtype, length, causal):
    import torch

    import diffattn

    rng = np.random.default_rng(0)
    shape = (1, HEADS, length)
    arrays = [random(rng, dtype, *shape, D) for _ in range(4)] + [random(rng, dtype, *shape, DV)]
    tensors = [torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) if dtype == ml_dtypes.bfloat16 else
               torch.from_numpy(a) for a in arrays]
    name = "bf16" if dtype == ml_dtypes.bfloat16 else "f32"
    targets = {"diffattn": "cpu"}
    if name == "f32" and has_avx512():
        targets["diffattn 256-bit"] = "cpu:avx2"
    ours = {n: lambda t=t: diffattn.attention(*arrays, LAMBDA, scale=SCALE, is_causal=causal, norm="rms",
                                              out_scale=OUT_SCALE, target=t) for n, t in targets.items()}
    theirs = peers(torch, tensors, causal)
    with torch.no_grad():
        expected = theirs["naive"]().float().numpy()
        for n, call in ours.items():
            error = np.abs(call().astype(np.float32) - expected).max()
            if not error < (0.1 if name == "bf16" else 1e-3):
                raise SystemExit(f"expected {n} to give what PyTorch gives, but got an error of {error:.2g}")
        for call in theirs.values():
            call()
        times = sample(probe, {**ours, **theirs}, args.turns)
    flop = HEADS * length * length * (4 * D + 4 * DV) * (0.5 if causal else 1)
    for entry in times.values():
        entry["gflops"] = flop / entry["seconds"] / 1e9
    best = min((n for n in times if n in theirs), key=lambda n: times[n]["seconds"])
    row = {"kind": "prefill", "dtype": name, "length": length, "causal": causal, "times": times, "fastest peer": best}
    for n in ours:
        row[n] = {"ratio": times[best]["seconds"] / times[n]["seconds"],
                  "of peak": times[n]["gflops"] / (probe.best * args.threads)}
        print(f"{name} N {length} {'causal' if causal else 'full'}: {n} {times[n]['gflops']:.0f} GFLOP/s, "
              f"{row[n]['ratio']:.2f}x of {best} ({times[best]['gflops']:.0f}), {row[n]['of peak']:.0%} of the FMA peak "
              f"{noise(times)}", flush=True)
    return row


def measure_decode(args, probe, dtype, length, key_heads):
    import diffattn

    rng = np.random.default_rng(0)
    q = [random(rng, dtype, 1, HEADS, 1, D) for _ in range(2)]
    k = [random(rng, dtype, 1, key_heads, length, D) for _ in range(2)]
    v = random(rng, dtype, 1, key_heads, length, DV)
    call = lambda: diffattn.attention(q[0], k[0], q[1], k[1], v, LAMBDA, scale=SCALE, norm="rms", out_scale=OUT_SCALE)
    call()
    times = sample(probe, {"diffattn": call, "read loop": lambda: probe.read([*k, v], args.threads)}, 3 * args.turns)
    size = sum(a.nbytes for a in (*k, v))
    for entry in times.values():
        entry["gb_per_s"] = size / entry["seconds"] / 1e9
    name = "bf16" if dtype == ml_dtypes.bfloat16 else "f32"
    ratio = times["read loop"]["seconds"] / times["diffattn"]["seconds"]
    print(f"{name} decode, {length} keys, {key_heads} key heads: {times['diffattn']['gb_per_s']:.1f} GB/s, {ratio:.0%} of a "
          f"read loop's {times['read loop']['gb_per_s']:.1f} {noise(times)}", flush=True)
    return {"kind": "decode", "dtype": name, "length": length, "key heads": key_heads, "times": times, "of read loop": ratio}


def measure_segments(args, probe, dtype, count, each):
    """`count` packed sequences of `each` tokens: by their numbers, by the boolean mask that says the same, and without a mask."""
    import diffattn

    rng = np.random.default_rng(0)
    length = count * each
    shape = (1, HEADS, length)
    arrays = [random(rng, dtype, *shape, D) for _ in range(4)] + [random(rng, dtype, *shape, DV)]
    ids = np.repeat(np.arange(count), each)[None]
    mask = ids[0][:, None] == ids[0][None]
    call = lambda **options: diffattn.attention(*arrays, LAMBDA, scale=SCALE, norm="rms", out_scale=OUT_SCALE, **options)
    calls = {"segments": lambda: call(segment_ids=(ids, ids)), "boolean mask": lambda: call(attn_mask=mask), "no mask": call}
    name = "bf16" if dtype == ml_dtypes.bfloat16 else "f32"
    error = np.abs(calls["segments"]().astype(np.float32) - calls["boolean mask"]().astype(np.float32)).max()
    if not error < (0.1 if name == "bf16" else 1e-4):
        raise SystemExit(f"expected segments to give what the boolean mask gives, but got an error of {error:.2g}")
    calls["no mask"]()
    times = sample(probe, calls, args.turns)
    part = times["segments"]["seconds"] / times["boolean mask"]["seconds"]
    print(f"{name} {count} segments of {each}: {times['segments']['seconds'] * 1e3:.1f} ms, {part:.0%} of the boolean mask's "
          f"{times['boolean mask']['seconds'] * 1e3:.1f}, {times['segments']['seconds'] / times['no mask']['seconds']:.0%} of the "
          f"{times['no mask']['seconds'] * 1e3:.1f} without a mask {noise(times)}", flush=True)
    return {"kind": "segments", "dtype": name, "count": count, "each": each, "times": times, "of boolean mask": part}


def plot(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in result["rows"] if r["kind"] == "prefill"]
    figure, axis = pyplot.subplots(figsize=(max(6, 1.3 * len(rows)), 3.6), layout="constrained")
    names = list(dict.fromkeys(n for r in rows for n in r["times"]))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        points = [(x, r["times"][name]["gflops"]) for x, r in enumerate(rows) if name in r["times"]]
        axis.bar([x + i * width for x, _ in points], [y for _, y in points], width, label=name,
                 color={"diffattn": "#3366aa", "diffattn 256-bit": "#88aadd"}.get(name, str(0.35 + 0.1 * i)))
    axis.axhline(result["fma_peak_gflops"] * result["threads"], color="black", lw=0.8, ls="--", label="f32 FMA peak")
    axis.set_xticks([x + 0.4 for x in range(len(rows))],
                    [f"{r['dtype']} {r['length']}\n{'causal' if r['causal'] else 'full'}" for r in rows])
    axis.set(ylabel="GFLOP/s, nominal", title=f"{result['machine']}, {result['threads']} thread(s), {result['date']}")
    axis.legend(fontsize=7, ncols=4)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--decode-keys", type=int, default=32768, help="0: no decoding")
    parser.add_argument("--segments", type=int, nargs=2, default=[8, 512], metavar=("COUNT", "EACH"),
                        help="packed sequences and the tokens of each; 0 0: none")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu needs one thread")
    parser.add_argument("--output", type=Path, help="where the JSON goes, and the PNG beside it")
    args = parser.parse_args()
    if args.clock == "cpu" and args.threads != 1:
        parser.error("expected --threads 1 with --clock cpu: it adds up what threads take")
    # Before anything brings up OpenMP, which all contestants share.
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder), time.perf_counter if args.clock == "wall" else time.process_time)
        types = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
        rows = [measure_prefill(args, probe, types[t], n, causal) for t in args.dtypes for n in args.lengths
                for causal in (False, True)]
        if args.decode_keys:
            rows += [measure_decode(args, probe, types[t], args.decode_keys, heads) for t in args.dtypes for heads in (8, 2)]
        if args.segments[0]:
            rows += [measure_segments(args, probe, types[t], *args.segments) for t in args.dtypes]
    result = {"machine": cpu_name(), "date": datetime.date.today().isoformat(), "threads": args.threads,
              "clock": args.clock, "torch": torch.__version__, "fma_peak_gflops": probe.best, "rows": rows}
    print(f"FMA peak of one core: {probe.best:.0f} GFLOP/s")
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")
        plot(result, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
