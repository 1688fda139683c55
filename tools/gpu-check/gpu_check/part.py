"""Runs one part of the check in this process and writes its file: a fault on the device ends no other part, and of this one only
the unit that met it (journal.py)."""
import argparse
import os
import sys
import time
import traceback
from pathlib import Path

import torch

from . import check_kernels, check_models, check_timing, launcher, probe, sanitizer, time_gradients, time_models, timing
from .device import Device, DeviceError, Pack
from .journal import LOST, Journal
from .results import BUDGETS, write


def end_if_lost():
    """Ends the process if a fault on the GPU has ended all its later calls: closing what is open may fail too, or hang."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as problem:
        print(problem, file=sys.stderr, flush=True)
        os._exit(LOST)


def run_models(args, deadline, journal):
    """Bundles open the device by themselves: their loader is what is checked."""
    pack = Pack(args.pack)
    os.environ["DIFFATTN_BUILD_DIR"] = str(args.pack)  # where the Python package looks for the loader, in lib
    if not pack.manifest["models"]:
        return {"not_run": "not run: the pack has no models", "failures": []}
    pack.provide_openmp()
    if args.device == "cuda":
        # PyTorch first, so that there is one context and one cuBLASLt.
        if not torch.cuda.is_available():
            raise DeviceError("expected a GPU that PyTorch sees, but torch.cuda.is_available() is false")
        torch.zeros(1, device="cuda")
    opened = Device.simulated(args.simulator, args.chip) if args.device == "sim" else None
    clock = timing.CountingClock() if opened else timing.WallClock()
    checks, failures = check_models.run(pack, opened, 3 if opened else None, journal)
    timed, failed = time_models.run(pack, opened, clock, args.seed, deadline, journal)
    return {"clock": clock.name, "seed": args.seed, "checks": checks, **timed, "failures": failures + failed}


def run(name, args):
    deadline = time.monotonic() + args.seconds
    if name == "sanitizer":
        return sanitizer.run(args.pack, args.device, args.seconds)
    journal = Journal(args.journal, end_if_lost) if args.device == "cuda" else Journal(args.journal)
    if name == "models":
        return run_models(args, deadline, journal)
    opened = launcher.open_launcher(args.pack, args.device, args.simulator, args.chip, probe.package_folders())
    clock = timing.CountingClock() if opened.simulated else time_gradients.EventClock() if name == "backward" else timing.CudaClock()
    try:
        if name == "probe":
            return probe.run(opened, clock, args.seed)
        if name == "kernels":
            # It makes a plan for every shape, which takes longer than all that is checked.
            torch.backends.cuda.enable_cudnn_sdp(False)
            return check_kernels.run(opened, args.seed, deadline, journal)
        if opened.simulated:
            settings = {"cache_bytes": 0, "free_bytes": lambda: 1 << 30,
                        "backends": {**{peer: "math" for peer in (*check_timing.peers.PEERS, *time_gradients.PEERS) if peer.startswith(("flash", "cuDNN"))},
                                     "Triton, both maps": (16, 16)}}
        else:
            settings = {"cache_bytes": torch.cuda.get_device_properties(0).L2_cache_size,
                        "free_bytes": lambda: torch.cuda.mem_get_info()[0], "backends": {}}
        if name == "backward":
            return time_gradients.run(opened, clock, args.seed, settings, deadline, journal)
        return check_timing.run(opened, clock, name, args.seed, settings, deadline, journal)
    finally:
        opened.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(BUDGETS))
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "sim"], required=True)
    parser.add_argument("--simulator", type=Path)
    parser.add_argument("--chip", default="sm_80")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--journal", type=Path, help="what earlier processes have done of this part, and this one adds to")
    parser.add_argument("--seconds", type=float, help="that are left of the part's budget; by default all of it")
    args = parser.parse_args()
    args.seconds = BUDGETS[args.part] if args.seconds is None else args.seconds
    begin = time.monotonic()
    try:
        result = {"complete": True, **run(args.part, args)}
    except Exception as problem:
        result = {"complete": False, "failures": [f"{type(problem).__name__}: {problem}"[:2000]], "trace": traceback.format_exc()[-4000:]}
    write(args.output, {**result, "seconds": time.monotonic() - begin})

