"""Memory that a process holds, and how far a call raises it: shared by the benchmarks of training."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path


def held(field):
    """VmRSS, the bytes that this process holds, or VmHWM, their peak since it was last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) << 10


def peak_of(call):
    """The bytes that this process holds before `call`, and at its peak meanwhile. What earlier calls gave back to the allocator is returned to the
    system first: `call` could take it without holding more."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5\n")  # resets the peak; that of getrusage may be the parent's
    before = held("VmRSS")
    call()
    return {"before": before, "peak": held("VmHWM")}


def peak_in_process(*options):
    """The output of `peak_of` in a process of its own, which runs this script with its options and `options`."""
    done = subprocess.run([sys.executable, *sys.argv, *map(str, options)], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, options))}: expected a process to end well, but it ended with {done.returncode}; what it said is above")
    return json.loads(done.stdout)


def raised(bytes_):
    """Bytes of `peak_of` that the call raised the process by."""
    return bytes_["peak"] - bytes_["before"]
