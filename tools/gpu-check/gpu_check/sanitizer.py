"""The part `sanitizer`: compute-sanitizer over a few checks, where a probe of it succeeds."""
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .device import Pack
from .one_check import PLAIN

TOOLS = ("memcheck", "racecheck", "synccheck")
#: Cases of the sanitizer. With @plain they run by kernels of all chips, otherwise by kernels for this chip alone.
CASES = ("v1_bf16", "v1_bf16_decode", "v1_wide_f16", "v2_bf16", "v1_sums_bf16", "v1_bf16@plain", "v1_bf16_decode@plain", "v1_wide_f16@plain",
         "v1_sums_bf16@plain", "v1_sums_bf16_decode@plain", "gradients_v1_bf16", "gradients_v2_f16", "gradients_v1_bf16@plain")
PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
          "/opt/nvidia/compute-sanitizer/compute-sanitizer")
#: The command that is watched: its arguments before the pack.
CHECK = (str(Path(__file__).resolve().parents[1]), "one-check")


def find():
    return shutil.which("compute-sanitizer") or next((p for p in PLACES if Path(p).is_file()), None)


def _run(command, seconds):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, seconds), check=False)
    except subprocess.TimeoutExpired:
        return None, f"not done after {seconds:.0f} s"
    return done.returncode, (done.stdout + done.stderr)[-4000:]


def run(pack_folder, device_kind, seconds):
    tool = find()
    if device_kind != "cuda":
        return {"not_run": "not run: compute-sanitizer needs a GPU, and the simulator checks accesses, races and barriers itself",
                "failures": []}
    if not tool:
        return {"not_run": f"not run: no compute-sanitizer in PATH, {', '.join(PLACES)}", "failures": []}
    manifest = Pack(pack_folder).manifest
    held = {fields["name"] for fields in manifest["cases"] + manifest["gradients"]}
    chosen = [name for name in CASES if name.removesuffix(PLAIN) in held]
    if not chosen:
        return {"not_run": f"not run: the pack has none of {', '.join(CASES)}", "failures": []}
    end = time.monotonic() + seconds
    status, text = _run([tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, *CHECK, str(pack_folder), ""], seconds / 3)
    if status != 0 or "checks done" not in text:
        return {"not_run": f"not run: its probe failed: {(text.strip().splitlines() or ['no output'])[-1][:300]}", "failures": [],
                "probe": text}
    results, failures = [], []
    for name in TOOLS:
        left = end - time.monotonic()
        if left < 10:
            failures.append(f"{name}: not reached in time")
            continue
        status, text = _run([tool, "--tool", name, "--error-exitcode", "9", "--kernel-regex", "kns=diffattn_", sys.executable,
                             *CHECK, str(pack_folder), ",".join(chosen)], left)
        summary = next((line for line in reversed(text.splitlines()) if "SUMMARY" in line), "")
        results.append({"tool": name, "status": status, "summary": summary, "output": text if status else ""})
        if status != 0:
            failures.append(f"{name}: {summary or (text.strip().splitlines() or ['no output'])[-1][:300]}")
        elif "checks done" not in text:
            failures.append(f"{name}: status 0, but no end of the checks")
    return {"tool": tool, "cases": chosen, "results": results, "failures": failures}
