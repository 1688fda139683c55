"""The commands of this folder: python3 tools/gpu-check COMMAND ... . Each one's --help says more.

    pack       writes what a machine with a GPU and no compiler needs (scripts/gpu-pack.sh)
    check      checks and times it there (scripts/gpu-check.sh)
    part       one part of a check, in a process of its own
    one-check  a few launches, for compute-sanitizer to watch
    ptxas      what ptxas says of every shipped kernel (scripts/ptxas-report.sh)
    counts     what kernels of gradients execute for a tile
    schedules  which schedules ptxas assembles without a spill
"""
import importlib
import io
import os
import signal
import sys

MODULES = {"pack": "pack", "check": "check", "part": "part", "one-check": "one_check", "ptxas": "ptxas_report",
           "counts": "gradient_counts", "schedules": "schedule_search"}


def run():
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


class OutputFailed(Exception):
    """Standard output cannot be written. No OSError: it is told from those of other files, and argparse does not pass over it."""


class Output(io.FileIO):
    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            raise OutputFailed() from error


class Messages(io.FileIO):
    def write(self, data):
        """Drops what cannot be shown: it does not change the exit status."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def text(raw):
    """As Python's own streams, but that PYTHONUNBUFFERED changes nothing."""
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def hold_closed_streams():
    """Files that are opened later do not get their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)


def main():
    """Ends as `run` does; without a word, and with what a shell reports of SIGPIPE, if nobody reads standard output any more."""
    hold_closed_streams()
    sys.stdout, sys.stderr = text(Output(1, "w", closefd=False)), text(Messages(2, "w", closefd=False))
    try:
        try:
            status = run()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
        return status
    except OutputFailed as failed:
        # Text that is still buffered would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout.flush()
        if isinstance(failed.__cause__, BrokenPipeError):
            return 128 + signal.SIGPIPE
        return f"error: standard output: expected to write to it, but got: {failed.__cause__.strerror}"


if __name__ == "__main__":
    sys.exit(main())
