"""Packs what scripts/gpu-check.sh needs on a machine without MLIR: kernels, the host code that launches them, the runtime.

The folder holds manifest.json, the runtime's library and the loader of bundles, for each chip an image of all kernels (a cubin, PTX for
other chips, or, for the simulator, LLVM bitcode), and models as bundles. Inputs of the kernels are not packed: the other side makes
them from a seed.
"""
import argparse
import concurrent.futures
import dataclasses
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import cases, generated, gradient_cases, host_program, model_pack
from .device import PACK_VERSION

LIMIT = 48 << 20
RUNTIME, LOADER, OPENMP = "lib/libDiffAttnRuntime.so", "lib/libDiffAttnBundle.so", "lib/libgomp.so.1"
# The oldest drivers that load cubins of CUDA 13 and PTX 8.0, as CUDA numbers them.
CUBIN_DRIVER, PTX_DRIVER = 13000, 12000


def compile_for(opt, chip, text, form, folder, ptxas):
    """The image of `chip`, the functions that launch its kernels, and what is known of each kernel."""
    stem = Path(folder) / f"{chip}-{form}"
    written = {"cubin": f"ptxas={ptxas}", "ptx": "assemble=false", "bc": "ptx=false"}[form]
    pipeline = (f"builtin.module(diffattn-select-gpu-schedule{{chip={chip}}},convert-linalg-to-gpu{{chip={chip}}},"
                f"convert-diffattn-to-gpu{{chip={chip}}},canonicalize,cse,"
                f"diffattn-gpu-to-ptx{{file={stem} {written}}})")
    done = subprocess.run([opt, "-", "--mlir-print-op-generic", f"--pass-pipeline={pipeline}"], input=text, capture_output=True,
                          text=True, check=False)
    if done.returncode:
        sys.exit(f"{chip}: {done.stderr[-4000:]}")
    facts = {name: {"registers": int(r), "spilled_bytes": int(a) + int(b)} for name, r, a, b in re.findall(
        r"(diffattn_\w+) = \{registers = (\d+) : i64, spill_loads = (\d+) : i64, spill_stores = (\d+) : i64\}", done.stdout)}
    early = host_program.early_kernels(done.stdout)
    kernels = [{"name": name, "parameters": parameters, "starts_early": name in early, **facts.get(name, {})}
               for name, parameters in host_program.kernel_parameters(done.stdout).items()]
    return stem, host_program.parse(done.stdout), kernels


def bitcode(stem, llvm_as):
    done = subprocess.run([llvm_as, f"{stem}.ll", "-o", f"{stem}.bc"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"llvm-as: {done.stderr[-2000:]}")


def openmp_of(library):
    """The libgomp that the loader finds for `library`: images of containers often have none."""
    listed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    match = re.search(r"libgomp\.so\.1 => (\S+)", listed)
    if not match:
        sys.exit(f"expected {library} to find libgomp.so.1, but ldd says:\n{listed}")
    return match[1]


def pack(out, build, chips, names, device, models=(), ptxas="ptxas", llvm_as="llvm-as", jobs=1):
    """Writes the folder `out`, which must not be there or be a pack. `names`: of cases, all if there are none; `models`: of
    model_pack.NAMES."""
    opt = str(build / "bin/diffattn-opt")
    saving, timed_gradients = gradient_cases.timed()
    chosen = [c for c in cases.checked() + cases.timed() + saving if not names or c.name in names]
    gradients = [c for c in gradient_cases.checked() + timed_gradients if not names or c.name in names]
    others = [g for g in generated.listed() if not names or g.name in names]
    if missing := set(names) - {c.name for c in [*chosen, *gradients, *others]}:
        sys.exit(f"expected names of cases, but got {', '.join(sorted(missing))}")
    if missing := set(models) - set(model_pack.NAMES):
        sys.exit(f"expected models of {', '.join(model_pack.NAMES)}, but got {', '.join(sorted(missing))}")

    def text_for(chip):
        return "".join(c.text() for c in [*(c for c in chosen if c.chip in ("", chip)), *gradients, *others])

    if out.exists() and any(out.iterdir()) and not (out / "manifest.json").is_file():
        sys.exit(f"expected {out} to be absent, empty or an older pack, but it holds other files")
    forms = [(chip, "cubin") for chip in chips] + [(chips[0], "ptx")] if device == "cuda" else [(chip, "bc") for chip in chips]
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        whole = Path(folder) / "pack"
        whole.mkdir()
        images = []
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            compiled = list(pool.map(lambda form: compile_for(opt, form[0], text_for(form[0]), form[1], folder, ptxas), forms))
        for (chip, form), (stem, functions, kernels) in zip(forms, compiled):
            if form == "bc":
                bitcode(stem, llvm_as)
            image, host = whole / f"{chip}.{form}.gz", whole / f"{chip}-{form}.json.gz"
            described = json.dumps({"kernels": kernels, "functions": functions}, separators=(",", ":")).encode()
            for path, data in ((image, Path(f"{stem}.{form}").read_bytes()), (host, described)):
                path.write_bytes(gzip.compress(data, mtime=0))
            images.append({"chip": chip, "format": form, "file": image.name, "host": host.name,
                           "driver": {"cubin": CUBIN_DRIVER, "ptx": PTX_DRIVER, "bc": 0}[form]})
        (whole / "lib").mkdir()
        for library in (RUNTIME, LOADER):
            shutil.copyfile(build / library, whole / library)
        shutil.copyfile(openmp_of(build / RUNTIME), whole / OPENMP)
        (Path(folder) / "models").mkdir()
        # Whole models run what `--target=cuda` takes of a GPU: where its chip has features of its own, the kernels that use them.
        native = [chip for chip in chips if chip + "a" not in chips]
        packed = model_pack.write(whole, Path(folder) / "models", native, models, device == "sim")
        held = sorted(f for f in whole.rglob("*") if f.is_file())
        files = {str(f.relative_to(whole)): {"bytes": f.stat().st_size, "sha256": hashlib.sha256(f.read_bytes()).hexdigest()} for f in held}
        manifest = {"format": "diffattn gpu pack", "version": PACK_VERSION, "runtime": RUNTIME, "loader": LOADER, "openmp": OPENMP,
                    "images": images,
                    "cases": [dataclasses.asdict(c) for c in chosen], "gradients": [dataclasses.asdict(c) for c in gradients],
                    "generated": [dataclasses.asdict(g) for g in others],
                    "models": packed, "files": files}
        (whole / "manifest.json").write_text(json.dumps(manifest, indent=1))
        size = sum(f.stat().st_size for f in [*held, whole / "manifest.json"])
        if size > LIMIT:
            sys.exit(f"expected at most {LIMIT >> 20} MB, but the pack has {size / (1 << 20):.1f} MB")
        if out.exists():
            shutil.rmtree(out)
        whole.rename(out)
    return size, {f"{chip}.{form}": len(kernels) for (chip, form), (_, _, kernels) in zip(forms, compiled)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True, help="the build folder")
    parser.add_argument("--chips", default="sm_80,sm_90,sm_90a")
    parser.add_argument("--cases", default="", help="only these, by name; all by default")
    parser.add_argument("--models", help=f"only these of {', '.join(model_pack.NAMES)}, or none; by default all, none with --cases")
    parser.add_argument("--device", choices=["cuda", "sim"], default="cuda")
    parser.add_argument("--ptxas", default="ptxas")
    parser.add_argument("--llvm-as", default="llvm-as")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    names = [n for n in args.cases.split(",") if n]
    os.environ["DIFFATTN_BUILD_DIR"] = str(args.build.absolute())  # the Python package compiles with it
    models = args.models or ("none" if names else ",".join(model_pack.NAMES))
    size, images = pack(args.output.absolute(), args.build.absolute(), args.chips.split(","), names, args.device,
                        [] if models == "none" else models.split(","), args.ptxas, args.llvm_as, args.jobs)
    print(f"{args.output}: {size / (1 << 20):.1f} MB, " + ", ".join(f"{count} kernels in {name}" for name, count in images.items()))

