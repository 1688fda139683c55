"""The part `probe`: what this machine is, whether products of the runtime agree with PyTorch's, and the rates that it reaches."""
import ctypes
import platform
import site
import sys

import torch

from . import timing
from .device import DTYPES, Product
from .nvidia_smi import smi

GEMM, SMALL_GEMM = 8192, 32
COPY_BYTES, SMALL_COPY = 2 << 30, 1 << 16


def package_folders():
    """Where Python's packages of CUDA may lie."""
    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []), *sys.path[1:]]


def versions():
    versions_by_name = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    try:
        import triton
        versions_by_name["triton"] = triton.__version__
    except ImportError:
        versions_by_name["triton"] = "none"
    if torch.cuda.is_available():
        versions_by_name["cuda of torch"] = torch.version.cuda
        versions_by_name["cudnn"] = torch.backends.cudnn.version()
    return versions_by_name


def product(launcher, m, n, k, seed):
    """One bf16 product with f32 sums on the device against f64; the same of PyTorch."""
    device = launcher.device
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in ((m, k), (n, k)))
    c = torch.full((m, n), float("nan"), dtype=torch.bfloat16)
    places = []
    for tensor in (a, b, c):
        places.append(device.allocate(tensor.nbytes))
        device.copy_in(places[-1], tensor.data_ptr(), tensor.nbytes)
    bf16 = DTYPES["bf16"]
    device.gemm(Product(bf16, bf16, bf16, 1, m, n, k, *places, k, k, n, 1, 0, 0, 0, ctypes.c_float(0.0)))
    device.copy_out(c.data_ptr(), places[2], c.nbytes)
    for place in places:
        device.release(place)
    want = a.double() @ b.double().T
    theirs = (a.to(launcher.torch_device) @ b.to(launcher.torch_device).T).cpu()
    measure = (a.double().abs() @ b.double().T.abs())
    error = float(((c.double() - want).abs() / measure).max()) if bool(torch.isfinite(c).all()) else float("inf")
    return {"m": m, "n": n, "k": k, "library": device.properties()["gemm_library"], "error": error,
            "torch_error": float(((theirs.double() - want).abs() / measure).max()), "allowed": 2.0 ** -8}


def rates(launcher, clock, seed):
    """A big product and a big copy, by PyTorch: the peaks that other parts are compared with."""
    small = launcher.simulated
    size, count = (SMALL_GEMM, SMALL_COPY) if small else (GEMM, COPY_BYTES)
    generator = torch.Generator(device=launcher.torch_device).manual_seed(seed)
    a, b = (torch.randn(size, size, generator=generator, device=launcher.torch_device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    gemm = timing.compare(clock, {"gemm": [lambda: torch.mm(a, b, out=out)]}, 3)["gemm"]
    source = torch.randn(count // 4, generator=generator, device=launcher.torch_device)
    target = torch.empty_like(source)
    copy = timing.compare(clock, {"copy": [lambda: target.copy_(source)]}, 3)["copy"]
    return {"gemm_tflops": 2 * size ** 3 / gemm["median_s"] / 1e12, "copy_tb_per_s": 2 * count / copy["median_s"] / 1e12,
            "gemm": gemm, "copy": copy, "size": size, "copied_bytes": count}


def run(launcher, clock, seed):
    result = {"device": launcher.facts, "image": f"{launcher.image['chip']} {launcher.image['format']}", "versions": versions(),
              "driver": smi("driver_version,name,clocks.max.sm,clocks.max.mem,power.limit"), "failures": []}
    result["product"] = product(launcher, 192, 160, 96, seed) if launcher.simulated else product(launcher, 512, 768, 1024, seed)
    if not result["product"]["error"] <= result["product"]["allowed"]:
        result["failures"].append(f"a product of the device is off by {result['product']['error']:.3g} of its terms")
    result["rates"] = rates(launcher, clock, seed)
    return result
