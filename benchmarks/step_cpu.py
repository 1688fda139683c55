#!/usr/bin/env python3
"""A step of a small model, and `generate`, on one thread: what they cost beside reading the weights.

The weights of examples/tiny-lm (6.6 MB) lie in the last cache, so that a step takes a fraction of a millisecond, of which calls, small
ops and Python are a part. A read loop over as many bytes, steps of `decode`, and whole texts by `generate` take turns. Medians and
quartiles, and the ratios: of the step to the read loop, and of `generate` (steps, sampling, text; all but the prompt's prefill) to the
step.

    python benchmarks/step_cpu.py
    python benchmarks/step_cpu.py --against ../before --output step.json    # in turns with another built tree: how much faster
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from core_rate import Probe, at_least, cpu_name, quartiles  # noqa: E402


def work(tree, model, tokens):
    """Answers each line of stdin with microseconds of steps and of tokens, by the package of `tree`."""
    sys.path.insert(0, str(tree / "python"))
    os.environ["DIFFATTN_BUILD_DIR"] = str(tree / "build")
    import diffattn

    prompt = "In the beginning"
    loaded = diffattn.load(model, threads=1)
    ids = np.array([loaded.tokenizer.encode(prompt)])
    caches = loaded.new_caches(1, ids.shape[1] + tokens)
    _, *caches = loaded.executable.call("prefill", ids, np.array([ids.shape[1]]), *caches)
    token, position = np.array([7]), np.array([ids.shape[1]])
    # Trees before repetition penalties have none to leave out.
    greedy = {"temperature": 0, **dict.fromkeys({"repetition_penalty"} & set(inspect.signature(loaded.generate).parameters), 1)}
    clock = time.perf_counter
    for _ in sys.stdin:
        steps = []
        for at in range(tokens):
            position[0] = ids.shape[1] + at
            begin = clock()
            loaded.executable.call("decode", token, position, *caches)
            steps.append((clock() - begin) * 1e6)
        begin = clock()
        for _ in loaded.generate(prompt, tokens, **greedy):
            pass
        timing = loaded.timing
        whole = (clock() - begin - timing.prefill_seconds) * 1e6
        print(json.dumps({"step": statistics.median(steps), "step in generate": timing.decode_seconds / timing.decode_tokens * 1e6,
                          "token of generate": whole / (timing.decode_tokens + 1)}), flush=True)


class Worker:
    """A process of its own for each tree: two builds of one library cannot be in one."""

    def __init__(self, tree, options):
        self.process = subprocess.Popen([sys.executable, __file__, "--work", str(tree), "--model", str(options.model), "--tokens",
                                         str(options.tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def sample(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("expected microseconds of the worker, but it ended; what it said is above")
        return json.loads(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "examples/tiny-lm")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another tree, built in its build/")
    parser.add_argument("--tokens", type=at_least(2), default=100)
    parser.add_argument("--turns", type=at_least(1), default=15)
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.model, options.tokens)
        return
    if options.against and not (options.against / "build/lib/libDiffAttnC.so").exists():
        parser.error(f"--against: expected a built tree, but there is no {options.against}/build/lib/libDiffAttnC.so")
    weights = options.model / "model.safetensors"
    if not weights.exists():
        parser.error(f"--model: expected a folder with model.safetensors, but got {options.model}")
    trees = {"here": ROOT, **({"against": options.against.resolve()} if options.against else {})}
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        probe, memory = Probe(Path(folder), time.perf_counter), np.ones(weights.stat().st_size, np.uint8)
        workers = {name: Worker(tree, options) for name, tree in trees.items()}
        for turn in range(options.turns + 1):
            loops = []
            for _ in range(options.tokens):
                begin = time.perf_counter()
                probe.read([memory], 1)
                loops.append((time.perf_counter() - begin) * 1e6)
            rows = {"read loop": statistics.median(loops)}
            for name, worker in workers.items():
                rows.update({f"{name}: {what}": us for what, us in worker.sample().items()})
            for name, us in rows.items() if turn else ():  # the first packs weights and fills caches
                taken.setdefault(name, []).append(us)
        for worker in workers.values():
            worker.end()
    rows = {name: {**quartiles(values), "best": min(values)} for name, values in taken.items()}
    for name, row in rows.items():
        print(f"{name:28s} {row['median']:7.1f} us   (quartiles {row['quartiles'][0]:.1f} to {row['quartiles'][1]:.1f})")
    median = {name: row["median"] for name, row in rows.items()}
    ratios = {f"{name}: read loop of step": median["read loop"] / median[f"{name}: step"] for name in trees}
    ratios.update({f"{name}: generate's rate of the step's": median[f"{name}: step"] / median[f"{name}: token of generate"] for name in trees})
    if options.against:
        ratios.update({f"{what}, times as fast": median[f"against: {what}"] / median[f"here: {what}"]
                       for what in ("step", "step in generate", "token of generate")})
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    if options.output:
        options.output.write_text(json.dumps({"machine": cpu_name(), "tokens": options.tokens, "turns": options.turns, "microseconds": rows, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
