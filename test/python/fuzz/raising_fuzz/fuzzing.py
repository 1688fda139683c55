"""Draws graphs from seeds, and has a program raise, interpret and compare them.

    .venv/bin/python test/python/fuzz/raising_fuzz                             # a thousand graphs
    .venv/bin/python test/python/fuzz/raising_fuzz --cases 100000 --from 5000  # more, other seeds
    .venv/bin/python test/python/fuzz/raising_fuzz --seed 1234                 # one graph: its text, what raising makes of it, the verdict

The program (test/fuzz/raise-and-compare.cpp) runs in a process of its own: a crash or a hang is a fault with a seed.
"""
import argparse
import collections
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import time

import case

HERE = pathlib.Path(__file__).resolve().parent
#: Graphs in one run of the program, and seconds that one of them may take.
BATCH, LONGEST = 200, 30


def program():
    build = pathlib.Path(os.environ.get("DIFFATTN_BUILD_DIR", HERE.parents[3] / "build"))
    return build / "test" / "fuzz" / "diffattn-raise-and-compare"


class Compared:
    """The verdicts of the program on a batch of cases."""

    def __init__(self, cases, folder, dump=lambda one: ""):
        self.path = pathlib.Path(folder) / f"batch-{cases[0].seed}.mlir"
        self.cases, self.dump, self.verdicts = cases, dump, {}

    def run(self):
        left = list(self.cases)
        while left:
            left = self._run(left)
        self.path.unlink()
        return self.verdicts

    def _run(self, cases):
        """Runs the program until it ends. Returns the cases that a crash or a hang left over."""
        self.path.write_text("".join(one.module(self.dump(one)) for one in cases))
        errors = open(self.path.with_suffix(".err"), "w+")
        process = subprocess.Popen([program(), self.path], stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        begun, hangs = None, False
        try:
            while True:
                ready, _, _ = select.select([process.stdout], [], [], LONGEST)
                if not ready:
                    hangs = True
                    os.killpg(process.pid, signal.SIGKILL)
                line = process.stdout.readline()
                if not line:
                    break
                seed, kind, *detail = line.rstrip("\n").split(" ", 2)
                if kind == "begins":
                    begun = int(seed)
                else:
                    self.verdicts[int(seed)] = (kind, detail[0] if detail else "")
        finally:
            status = process.wait()
            errors.seek(0)
            output = errors.read()
            errors.close()
        if status == 0:
            return []
        if begun is None:
            raise RuntimeError(f"{program()} fails before the first case: {output[-500:]}")
        if begun not in self.verdicts:
            name = signal.Signals(-status).name if status < 0 else f"exit {status}"
            frames = [line.split(None, 2)[2] for line in output.splitlines() if "diffattn::" in line and line.lstrip().startswith("#")]
            self.verdicts[begun] = ("fault", f"hangs for {LONGEST} s" if hangs else f"crashes: {name} {' < '.join(frames[:3]) or output[-300:]}")
        return cases[next(i for i, one in enumerate(cases) if one.seed == begun) + 1:]


def campaign(seeds, report=None, compiled=0):
    """Compares the graphs of seeds. Returns counts of verdicts, and faults as (seed, text). With `compiled`, every so many-th is compiled and run too."""
    counts, faults = collections.Counter(), []
    seeds = list(seeds)
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(seeds), BATCH):
            cases = [case.draw(seed) for seed in seeds[start:start + BATCH]]
            chosen = {one.seed for one in cases if compiled and one.seed % compiled == 0}
            dump = lambda one: os.path.join(folder, str(one.seed)) if one.seed in chosen else ""
            verdicts = Compared(cases, folder, dump).run()
            for one in cases:
                kind, detail = verdicts[one.seed]
                counts[kind] += 1
                counts["changed, " + kind] += bool(one.changes)
                if kind == "fault":
                    faults.append((one.seed, detail))
                    if report:
                        report(one.seed, detail)
                elif one.seed in chosen and kind in ("same", "kept"):
                    import compiled as compiler
                    difference = compiler.check(one, os.path.join(folder, str(one.seed)))
                    counts["compiled"] += 1
                    if difference:
                        faults.append((one.seed, f"compiled: {difference}"))
                        if report:
                            report(*faults[-1])
    return counts, faults


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="raising_fuzz", description="random graphs, raised and as they are, interpreted and compared")
    parser.add_argument("--cases", type=int, default=1000, help="how many (default %(default)s)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--seed", type=int, help="print this graph, raised too, and compare it")
    parser.add_argument("--text", action="store_true", help="with --seed: print the graph alone")
    parser.add_argument("--compiled", type=int, default=100, help="compile every so many-th, 0: none (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        one = case.draw(options.seed)
        print(one.module(), flush=True)
        if options.text:
            return 0
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "graph.mlir"
            path.write_text(one.module())
            return subprocess.run([program(), "--print", path]).returncode
    begin = time.monotonic()
    counts, faults = campaign(range(options.first, options.first + options.cases), compiled=options.compiled,
                              report=lambda seed, text: print(f"{seed}: {text}", flush=True))
    print(", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    print(f"{options.cases} graphs, {len(faults)} faults, {time.monotonic() - begin:.0f} s")
    return 1 if faults else 0
