"""The commands of this folder: python3 tools/gpu-check COMMAND ... . Each one's --help says more.

    pack       writes what a machine with a GPU and no compiler needs (scripts/gpu-pack.sh)
    check      checks and times it there (scripts/gpu-check.sh)
    part       one part of a check, in a process of its own
    one-check  a few launches, for compute-sanitizer to watch
    ptxas      what ptxas says of every shipped kernel (scripts/ptxas-report.sh)
    schedules  which schedules ptxas assembles without a spill
"""
import importlib
import sys

MODULES = {"pack": "pack", "check": "check", "part": "part", "one-check": "one_check", "ptxas": "ptxas_report",
           "schedules": "schedule_search"}


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else None
    if command in (None, "-h", "--help"):
        print(__doc__.strip())
        return 0 if command else 2
    if command not in MODULES:
        print(f"error: expected a command of {', '.join(MODULES)}, but got {command}", file=sys.stderr)
        return 2
    # Loaded one at a time: only what runs models needs PyTorch.
    module = importlib.import_module("gpu_check." + MODULES[command])
    sys.argv[:2] = [f"{sys.argv[0]} {command}"]
    return module.main()


if __name__ == "__main__":
    sys.exit(main())
