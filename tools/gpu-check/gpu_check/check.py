"""Checks and times the packed kernels and models on this machine's GPU: see docs/gpu-check.md.

    scripts/gpu-check.sh                      every part of inference
    scripts/gpu-check.sh backward             gradients, timed
    scripts/gpu-check.sh probe kernels        these parts
    scripts/gpu-check.sh --device=sim kernels the simulator in the place of a GPU
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import results, table
from .journal import LOST, unfinished
from .journal import end as end_unit
from .nvidia_smi import smi

ROOT = Path(__file__).resolve().parents[3]
# Factor of its budget after which a process is ended.
LENIENCE = 1.14
# Seconds for a last process to write what earlier ones did; and between two looks at one.
GRACE, POLL = 12, 0.2


def result_folder(device):
    name = "simulated"
    if device == "cuda":
        words = re.findall(r"[a-z]*\d+[a-z0-9]*", smi("name").get("name", "").lower())
        name = words[0] if words else "gpu"
    return ROOT / "benchmarks/results" / f"{datetime.date.today()}-{name}"


def _watch(command, journal, end):
    """Runs a process until it ends, until its unit takes longer than it may, or until `end`. Returns its status, None if it was
    killed, and its output."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            while True:
                try:
                    status = process.wait(POLL)
                    break
                except subprocess.TimeoutExpired:
                    unit = unfinished(journal)
                    if time.monotonic() > end or (unit and time.time() > unit["time"] + unit["seconds"]):
                        process.kill()
                        status = None
                        break
        output.seek(0)
        return status, output.read().decode(errors="replace")


def run_part(name, args, folder):
    """Starts the part, again behind each unit that killed it, and returns what its file holds."""
    path, journal = folder / f"{name}.json", folder / f"{name}.journal"
    for old in (path, journal):
        old.unlink(missing_ok=True)
    command = [sys.executable, str(ROOT / "tools/gpu-check"), "part", name, "--pack", str(args.pack), "--device", args.device, "--chip",
               args.chip, "--seed", str(args.seed), "--output", str(path), "--journal", str(journal)]
    if args.simulator:
        command += ["--simulator", str(args.simulator)]
    begin, limit = time.monotonic(), results.BUDGETS[name] * LENIENCE
    end, last = begin + limit, False
    while not path.is_file():
        left = max(0, begin + results.BUDGETS[name] - time.monotonic())
        status, output = _watch([*command, "--seconds", f"{left:.1f}"], journal, end)
        unit = unfinished(journal)
        if status is not None:
            problem = f"ended with status {status}"
        else:
            problem = f"not done after {unit['seconds']:g} s" if unit and time.monotonic() <= end else f"not done after {limit:.0f} s"
        if unit:
            end_unit(journal, unit, problem)
        if path.is_file():
            break
        # Nothing is gained by another process where this one did no unit, or was the last one.
        if last or not (unit or status == LOST):
            results.write(path, {"complete": False, "failures": [problem], "trace": output[-4000:]})
            break
        if time.monotonic() > end:
            end, last = time.monotonic() + GRACE, True
    journal.unlink(missing_ok=True)
    return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(prog="scripts/gpu-check.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(results.BUDGETS)}; by default all but {', '.join(results.BY_NAME)}")
    parser.add_argument("--device", choices=["cuda", "sim"], default="cuda")
    parser.add_argument("--pack", type=Path, default=ROOT / "build/gpu-pack", help="what scripts/gpu-pack.sh wrote")
    parser.add_argument("--output", type=Path, help="for results; by default $OUT, else benchmarks/results/<date>-<gpu>")
    parser.add_argument("--again", action="store_true", help="run parts that have a result again")
    parser.add_argument("--seed", type=int, help="of the inputs; by default a fresh one")
    parser.add_argument("--chip", default="sm_80", help="that is simulated with --device=sim")
    parser.add_argument("--simulator", type=Path, default=ROOT / "build/lib/libDiffAttnC.so", help="the library with the simulator")
    args = parser.parse_args()
    if unknown := [p for p in args.parts if p not in results.BUDGETS]:
        parser.error(f"expected parts of {', '.join(results.BUDGETS)}, but got {', '.join(unknown)}")
    args.seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "little")
    folder = args.output or (Path(os.environ["OUT"]) if os.environ.get("OUT") else result_folder(args.device))
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in args.parts or results.DEFAULT:
        begin = time.monotonic()
        result = {} if args.again else results.read(folder).get(name, {})
        known = bool(result.get("complete"))
        if not known:
            result = run_part(name, args, folder)
        failed |= bool(result["failures"])
        state = "FAILED" if result["failures"] else result.get("not_run", "passed")
        print(f"{name}: {state} ({'as before' if known else f'{time.monotonic() - begin:.0f} s'})", flush=True)
        for failure in result["failures"][:20]:
            print(f"  {failure}", flush=True)
        table.write(folder / "table.md", results.read(folder))
    print(f"{folder}/table.md")
    return 1 if failed else 0

