#!/usr/bin/env python3
"""A DiffLlama with weights of 8 and 4 bits against the same one in f32 and bf16: a step of decode, and a prompt.

Random weights, one thread. The contestants take turns, sample by sample, in one process, with a loop that reads memory among them. A
sample counts only between two probes of the FMA rate that came near the best one (core_rate.py has both); medians of what counts,
and ratios of them.

    python benchmarks/quantized_cpu.py
    python benchmarks/quantized_cpu.py --target cpu:amx --tokens 512
    python benchmarks/quantized_cpu.py --cpu-time --output quantized.json     # on a machine that other work shares
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from core_rate import Probe, choose, cpu_name  # noqa: E402

import diffattn  # noqa: E402
from diffattn import models  # noqa: E402

TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


def make_folders(args, folder):
    """The folder of each contestant, made of the same numbers."""
    config = {"model_type": "diffllama", "vocab_size": 8192, "hidden_size": args.hidden, "intermediate_size": 23 * args.hidden // 8,
              "num_hidden_layers": args.layers, "num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": False}
    rng = np.random.default_rng(0)
    state = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, (shape, _) in models.build(config).file_types().items()}
    folders = {}
    for name, dtype in TYPES.items():
        folders[name] = folder / name
        folders[name].mkdir()
        (folders[name] / "config.json").write_text(json.dumps(config))
        safetensors.numpy.save_file({n: a.astype(dtype) for n, a in state.items()}, folders[name] / "model.safetensors")
    for bits in ("int8", "int4"):
        for name in TYPES:
            folders[f"{bits} {name}"] = folder / f"{bits}-{name}"
            diffattn.quantize(folders[name], folders[f"{bits} {name}"], bits, args.group)
    return folders, sum(array.size for array in state.values())


def bytes_of_step(folder):
    """Bytes of all weights but the embedding, of which a step reads a row."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    return sum(array.nbytes for name, array in tensors.items() if name != "model.embed_tokens.weight")


def make_calls(folders, args):
    """For each contestant a step behind a prompt, and the prompt."""
    ids = np.random.default_rng(1).integers(0, 8192, (1, args.tokens))
    lengths, token = np.array([args.tokens]), np.array([7])
    steps, prompts = {}, {}
    for name, folder in folders.items():
        model = diffattn.load(folder, threads=1, target=args.target)
        caches = model.new_caches(1, args.tokens + 1)
        prompts[name] = lambda model=model, caches=caches: model.executable.call("prefill", ids, lengths, *caches)
        prompts[name]()
        steps[name] = lambda model=model, caches=caches: model.executable.call("decode", token, lengths, *caches)
    return steps, prompts


def take_turns(calls, probe, turns):
    """Milliseconds of each call: the median of the samples that count, how many these are, and the gate that they passed."""
    samples = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            before, begin = probe.rate(), probe.clock()
            call()
            seconds = probe.clock() - begin
            samples[name].append((seconds, min(before, probe.rate())))
    rows = {}
    for name, taken in samples.items():
        kept, gate = choose(taken, probe.best)
        rows[name] = {"ms": statistics.median(kept) * 1e3, "best ms": min(kept) * 1e3, "kept": len(kept), "of": len(taken), "gate": gate}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256, help="of the prompt")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--target", default="cpu", help="cpu:amx: prompts of more than 64 tokens by tiles")
    parser.add_argument("--cpu-time", action="store_true", help="count the thread's own time, where other work takes the core now and then")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        probe = Probe(folder, time.thread_time if args.cpu_time else time.perf_counter)
        folders, parameters = make_folders(args, folder)
        read = {name: bytes_of_step(place) for name, place in folders.items()}
        steps, prompts = make_calls(folders, args)
        memory = np.ones(256 << 20, np.uint8)
        steps["read loop"], read["read loop"] = lambda: probe.read([memory], 1), memory.nbytes
        rows = {"decode": take_turns(steps, probe, args.turns), "prefill": take_turns(prompts, probe, max(3, args.turns // 3))}
    loop = read["read loop"] / rows["decode"]["read loop"]["ms"] / 1e6
    print(f"{parameters / 1e6:.0f} M parameters, prompt of {args.tokens}; read loop {loop:.1f} GB/s")
    for name in folders:
        step, prompt = rows["decode"][name], rows["prefill"][name]
        step["GB/s"] = read[name] / step["ms"] / 1e6
        step["of read loop"] = step["GB/s"] / loop
        wide = name.split()[-1]
        for row, which in ((step, "decode"), (prompt, "prefill")):
            row["times as fast as its type"] = rows[which][wide]["ms"] / row["ms"]
        print(f"{name:10} decode {step['ms']:7.2f} ms, {step['GB/s']:5.1f} GB/s ({step['of read loop']:.0%} of the loop), "
              f"{step['times as fast as its type']:.2f}x {wide}; prefill {prompt['ms']:7.0f} ms, {prompt['times as fast as its type']:.2f}x"
              f"  [{step['kept']} and {prompt['kept']} samples, gate {min(step['gate'], prompt['gate']):.0%}]")
    if args.output:
        options = {key: value for key, value in vars(args).items() if key != "output"}
        args.output.write_text(json.dumps({"machine": cpu_name(), "options": options, "parameters": parameters, "bytes": read,
                                           "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
