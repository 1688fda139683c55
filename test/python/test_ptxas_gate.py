"""Every shipped GPU kernel assembles without a spill, and the table of schedules says what ptxas makes of it."""
import os
import re
import shutil
import subprocess
import sysconfig

import pytest


@pytest.fixture
def run_command(root, build_dir):
    """Runs a command of tools/gpu-check that needs ptxas; returns what it prints."""
    folders = [os.environ["PATH"], "/usr/local/cuda/bin", os.path.join(sysconfig.get_paths()["purelib"], "nvidia/cu13/bin")]
    path = os.pathsep.join(folders)
    assert shutil.which("ptxas", path=path), "expected ptxas of the CUDA Toolkit or of the package nvidia-cuda-nvcc"

    def run(name, *arguments):
        command = ["python3", "tools/gpu-check", name, "--opt", str(build_dir / "bin/diffattn-opt"), *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        return done.stdout

    return run


def test_no_kernel_spills(run_command, full):
    arguments = ["--chips", "sm_80,sm_86,sm_89,sm_90,sm_90a", "--every"] if full else ["--chips", "sm_80", "--types", "bf16"]
    printed = run_command("ptxas", *arguments)
    if not full:
        assert "FAILED" not in run_command("ptxas", "--chips", "sm_90", "--types", "bf16", "--variants", "v1-wide,phi4-flash-window,v2,gdla,v1-128-packed")
    assert "diffattn_decode_64x128" in printed and "FAILED" not in printed
    for d, dv in ((64, 64), (128, 128), (256, 256)):
        for kind in ("forward", "decode"):
            assert re.search(rf"diffattn_{kind}_{d}x{dv}_bf16_\w+_onemap", printed), f"{kind} of one map, {d} and {dv}, is not in {printed}"
    for d, dv in ((128, 256), (192, 128), (32, 64)):
        assert f"diffattn_forward_{d}x{dv}_f32_plain" in printed


def test_ptxas_leaves_products_by_warpgroups_as_they_are(run_command, full):
    """No spill, and no product that it serializes (C75xx), with every variant of a model that takes them."""
    printed = run_command("ptxas", "--chips", "sm_90a", *([] if full else ["--types", "bf16", "--variants", "v1,timm,v2,v1-wide,motif-gda,motif-gda-pages,edifice,v1-128-gate,v1-830m,gdla,gdla-two-keys,v2-wide-bias,v2-wide-mask,one-map,one-map-128,one-map-192,one-map-256-plain"]))
    for kernel in ("32x64_bf16_wgmma_both_k96s5p", "64x64_bf16_wgmma_both_k96s5", "64x128_bf16_wgmma_both_k64s6",
                   "64x128_bf16_wgmma_both_k64s6p", "64x128_bf16_wgmma_apart_k192s2p",
                   "128x128_bf16_wgmma_apart_k192s2_onekey", "128x128_bf16_wgmma_apart_k192s2p_onekey",
                   "128x128_bf16_wgmma_both_k64s3", "96x192_bf16_wgmma_apart_k96s2", "192x128_bf16_wgmma_apart_k128s2_onekey",
                   "192x128_bf16_wgmma_apart_k80s2", "128x256_bf16_wgmma_apart_k80s2p",
                   "64x64_bf16_wgmma_both_k128s5_onemap", "128x128_bf16_wgmma_both_k128s3_onemap", "192x128_bf16_wgmma_both_k128s2_onemap",
                   "256x256_bf16_wgmma_both_k80s2_onemap", "128x256_bf16_wgmma_apart_k96s2c2", "64x128_bf16_wgmma_both_k48s8o", "128x256_bf16_wgmma_apart_k64s3o"):
        assert re.search(rf"diffattn_forward_{kernel}(?![0-9a-z])", printed), f"{kernel} is not in {printed}"
    # The fullest kernels of decode by tensor maps: fewer warps leave a thread more registers.
    for features in ("biasbf16", "softcap_biasmask"):
        assert f"diffattn_decode_128x256_bf16_both2x1_k32s4_bulk_onekey_{features}\n" in printed
    assert "FAILED" not in printed


def test_the_table_of_schedules_is_what_ptxas_says(run_command, full):
    printed = run_command("schedules", "--table", *([] if full else ["--plain", "--chips", "sm_80"]))
    assert "kBoth" in printed and "WRONG" not in printed
