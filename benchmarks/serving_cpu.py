#!/usr/bin/env python3
"""Tokens a second of the engine with one client and with several at once, and how long each waits for its first token.

A DiffLlama with random weights. Each client sends a prompt of its own and reads the answer; all begin at once. Rates are medians of
the runs, and ratios are those to one client. First tokens are compared with a prefill of the same prompt in contiguous caches, which
takes turns with them.

    python benchmarks/serving_cpu.py
    python benchmarks/serving_cpu.py --dtype bf16 --threads 2 --prompt-tokens 16 --clients 1 8 32
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from core_rate import cpu_name  # noqa: E402

import diffattn  # noqa: E402
from diffattn import models  # noqa: E402
from diffattn.serving import model as paged_model  # noqa: E402
from diffattn.serving.engine import Engine  # noqa: E402
from diffattn.serving.requests import Request, TokenDrawn  # noqa: E402

VOCABULARY = 16000


def make_folder(args, folder):
    """The folder, and how many numbers the model has."""
    config = {"model_type": "diffllama", "vocab_size": VOCABULARY, "hidden_size": args.hidden, "intermediate_size": 8 * args.hidden // 3 // 8 * 8,
              "num_hidden_layers": args.layers, "num_attention_heads": 12, "num_key_value_heads": 6, "max_position_embeddings": 4096}
    rng = np.random.default_rng(0)
    state = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, (shape, _) in models.build(config).file_types().items()}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(state, folder / "model.safetensors")
    return sum(array.size for array in state.values())


def run(engine, prompts, tokens):
    """Tokens a second of all, and the seconds of each until its first token."""
    firsts = [0.0] * len(prompts)
    begin = time.perf_counter()

    def client(number):
        for event in engine.events(Request(tuple(prompts[number]), tokens, want_text=False)):
            if isinstance(event, TokenDrawn) and not firsts[number]:
                firsts[number] = time.perf_counter() - begin

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(prompts) * tokens / (time.perf_counter() - begin), firsts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="f32", choices=models.FLOATS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        size = make_folder(args, Path(folder))
        plain = diffattn.load(folder, dtype=args.dtype, threads=args.threads, batch_invariant=True)
        served = paged_model.load(folder, dtype=args.dtype, threads=args.threads)
    capacity = args.prompt_tokens + args.tokens
    engine = Engine(served, pages=(max(args.clients) + 1) * -(-capacity // served.page_rows), capacity=capacity, rows=max(args.clients))
    engine.warm()
    prompts = lambda count: rng.integers(0, VOCABULARY, (count, args.prompt_tokens)).tolist()  # noqa: E731
    print(f"{cpu_name()}, {args.threads} thread(s): {size / 1e6:.0f} million parameters, {args.dtype}, prompts of {args.prompt_tokens} tokens, "
          f"{args.tokens} new ones")
    one, caches, alone, idle = None, plain.new_caches(1, capacity), [], []
    for _ in range(args.runs + 1):
        ids = np.array(prompts(1))
        begin = time.perf_counter()
        plain.executable.call("prefill", ids, np.array([args.prompt_tokens]), *caches)
        alone.append(time.perf_counter() - begin)
        idle += run(engine, ids.tolist(), 1)[1]
    print(f"first token when idle: {min(idle[1:]) / min(alone[1:]):.2f} of a prefill alone ({min(alone[1:]) * 1e3:.1f} ms)")
    for clients in args.clients:
        runs = [run(engine, prompts(clients), args.tokens) for _ in range(args.runs)]
        rate = statistics.median(rate for rate, _ in runs)
        one = one or rate
        first = statistics.median(max(firsts) for _, firsts in runs)
        print(f"{clients:4} clients: {rate:8.1f} tokens/s, {rate / one:5.2f} of one; the last first token after {first * 1e3:.0f} ms")
    engine.close()


if __name__ == "__main__":
    main()
