"""Runs one part of the check in this process and writes its file: a fault on the device ends no other part."""
import argparse
import time
import traceback
from pathlib import Path

import torch

import check_kernels
import check_timing
import launcher
import probe
import sanitizer
import timing
from results import BUDGETS, write


def run(name, args):
    deadline = time.monotonic() + BUDGETS[name]
    if name == "sanitizer":
        return sanitizer.run(args.pack, args.device, BUDGETS[name])
    opened = launcher.open_launcher(args.pack, args.device, args.simulator, args.chip, probe.package_folders())
    clock = timing.CountingClock() if opened.simulated else timing.CudaClock()
    try:
        if name == "probe":
            return probe.run(opened, clock, args.seed)
        if name == "kernels":
            return check_kernels.run(opened, args.seed, deadline)
        if opened.simulated:
            settings = {"cache_bytes": 0, "free_bytes": lambda: 1 << 30,
                        "backends": {"flash x4, kernels alone": "math", "flash x4, eager tail": "math", "cuDNN x2, eager tail": "math",
                                     "cuDNN x2, compiled tail": "math", "cuDNN x4, eager tail": "math", "Triton, both maps": (16, 16)}}
        else:
            settings = {"cache_bytes": torch.cuda.get_device_properties(0).L2_cache_size,
                        "free_bytes": lambda: torch.cuda.mem_get_info()[0], "backends": {}}
        return check_timing.run(opened, clock, name, args.seed, settings, deadline)
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
    args = parser.parse_args()
    begin = time.monotonic()
    try:
        result = {"complete": True, **run(args.part, args)}
    except Exception as problem:
        result = {"complete": False, "failures": [f"{type(problem).__name__}: {problem}"[:2000]], "trace": traceback.format_exc()[-4000:]}
    write(args.output, {**result, "seconds": time.monotonic() - begin})


if __name__ == "__main__":
    main()
