"""Runs attacks in processes of their own, so that a crash or a hang is a finding with a number that repeats it.

    .venv/bin/python test/python/fuzz/attack                              # a minute of every kind
    .venv/bin/python test/python/fuzz/attack --minutes 60 --from 1000     # an hour, other numbers
    .venv/bin/python test/python/fuzz/attack --kind tensors --seed 1234   # one case again, in this process
"""
import argparse
import collections
import importlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
#: Each is a module `attack_<kind>` with a function `run(seed) -> Tally`.
KINDS = ("attention", "gradients", "sizes", "states", "tensors", "interface", "options", "models")
#: Seconds for one case; the slowest take a few on a loaded machine.
LONGEST_CASE = 60


def one_case(kind: str, seed: int) -> dict:
    """Runs a case in an empty folder, because a name of a file may be among what is attacked."""
    attack = importlib.import_module(f"attack_{kind}")
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return dict(attack.run(seed))
        finally:
            os.chdir(before)


def serve() -> None:
    """The process that is attacked: takes `kind seed` from its input, answers with a line of JSON."""
    for line in sys.stdin:
        kind, seed = line.split()
        try:
            answer = {"counts": one_case(kind, int(seed))}
        except BaseException as error:  # noqa: B902 - whatever it is, it is the finding
            answer = {"fault": f"{type(error).__name__}: {error}"}
        os.write(1, (json.dumps(answer) + "\n").encode())


class Victim:
    """The attacked process, started again after each death."""

    def __init__(self, environment=None):
        self.process, self._environment = None, environment

    def ask(self, kind: str, seed: int, seconds: float = LONGEST_CASE) -> dict:
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, str(HERE), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, env=self._environment, start_new_session=True)
            os.set_blocking(self.process.stderr.fileno(), False)
        self.process.stdin.write(f"{kind} {seed}\n".encode())
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            self.end()
            return {"fault": f"hangs: no answer within {seconds} s"}
        answer = self.process.stdout.readline()
        errors = self.process.stderr.read() or b""  # never let the pipe fill up
        if answer:
            return json.loads(answer)
        status = self.process.wait()
        self.process = None
        name = signal.Signals(-status).name if status < 0 else f"exit {status}"
        return {"fault": f"crashes: {name}; {errors.decode(errors='replace')[-300:]}"}

    def end(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def campaign(cases, victim=None, report=None, until=None):
    """Runs (kind, seed) pairs. Returns the counts of each kind, and the faults as (kind, seed, text)."""
    victim = victim or Victim()
    counts, faults = collections.defaultdict(collections.Counter), []
    try:
        for kind, seed in cases:
            if until and time.monotonic() > until:
                break
            answer = victim.ask(kind, seed)
            counts[kind]["cases"] += 1
            if "fault" in answer:
                faults.append((kind, seed, answer["fault"]))
                if report:
                    report(f"{kind} {seed}: {answer['fault']}")
            else:
                counts[kind].update(answer["counts"])
    finally:
        victim.end()
    return counts, faults


def endless(kinds, first):
    seed = first
    while True:
        yield from ((kind, seed) for kind in kinds)
        seed += 1


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="attack", description="random calls and modules, each judged or refused")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be given again")
    parser.add_argument("--seed", type=int, help="this one case, in this process, so that a debugger can follow")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first number (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=1, help="how long (default %(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    kinds = options.kind or list(KINDS)
    if options.seed is not None:
        for kind in kinds:
            print(kind, options.seed, one_case(kind, options.seed))
        return 0
    counts, faults = campaign(endless(kinds, options.first), report=lambda text: print(ascii(text)[1:-1], flush=True),
                              until=time.monotonic() + 60 * options.minutes)
    for kind, count in counts.items():
        print(f"{kind}: {dict(count)}")
    print(f"{sum(c['cases'] for c in counts.values())} cases, {len(faults)} faults")
    return 1 if faults else 0
