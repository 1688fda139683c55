"""Every shipped GPU kernel assembles without a spill, and the table of schedules says what ptxas makes of it."""
import os
import re
import shutil
import subprocess
import sysconfig

import pytest

from gpu_check.gradient_ops import PLAIN, VARIANTS

#: Variants of tools/gpu-check whose kernels are nearest to their registers, of each width.
FULLEST = "v1-sums,v1-wide-sums,v2-packed,gdla-sums,motif-gda-pages,timm-pages,diffllama-bias-f32-result,one-map,one-map-128,one-map-256"


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
    """Without --full of sm_80 those whose operands take most registers, and each width and feature once; sm_90 copies by tensor maps too."""
    arguments = ["--chips", "sm_80,sm_86,sm_89,sm_90,sm_90a", "--every"] if full else ["--chips", "sm_80", "--types", "bf16", "--variants", FULLEST]
    printed = run_command("ptxas", *arguments)
    if not full:
        assert "FAILED" not in run_command("ptxas", "--chips", "sm_90", "--types", "bf16", "--variants", "v1-wide,gdla")
    assert "diffattn_decode_64x128" in printed and "FAILED" not in printed
    for d, dv in ((64, 64), (128, 128), (256, 256)):
        for kind in ("forward", "decode"):
            assert re.search(rf"diffattn_{kind}_{d}x{dv}_bf16_\w+_onemap", printed), f"{kind} of one map, {d} and {dv}, is not in {printed}"
    for d, dv in ((128, 256), (192, 128), (32, 64)) if full else ():
        assert f"diffattn_forward_{d}x{dv}_f32_plain" in printed


def test_no_kernel_of_gradients_spills(run_command, full):
    """Both ways to copy. Of what is not asked in full: the fullest with scores in part by elements, and those that have each gradient apart."""
    if not full:
        printed = run_command("ptxas", "--chips", "sm_89,sm_90a", "--types", "f16", "--variants",
                              "gradients-v1,gradients-v1-packed,gradients-v1-sequences,gradients-plain-sequences,gradients-dragon")
        printed += run_command("ptxas", "--chips", "sm_90a", "--types", "f16", "--variants", "gradients-v2")
    else:
        printed = run_command("ptxas", "--chips", "sm_80,sm_86,sm_89,sm_90,sm_90a", "--variants", ",".join(variant[0] for variant in [*VARIANTS, *PLAIN]))
    for kernel in ("keys_64x128_f16_w4_t32s2_dk1f16_dk2f16_dvf16", "queries_64x128_f16_w4_t32s2_anystride_dq1f16",
                   "keys_64x128_f16_w4_t16s2_segmentmaski32_dk1f16_dk2f16_dvf16", "keys_128x128_f16_w4_t16s2_onekey_softcap_dk1f16_dvf16",
                   "queries_128x128_f16_w4_t16s2_onekey_softcap_dq1f16", "queries_64x128_f16_w4_t32s2_packedi32_packedkeysi32_dq1f16_dq2f16",
                   "queries_64x128_f16_wgmma_t64s4_dq1f16_dq2f16", "keys_64x128_f16_wgmma_t64s3_dk1f16_dk2f16_dvf16",
                   "keys_128x128_f16_wgmma_t64s2_onekey_dk1f16_dvf16", "queries_128x128_f16_wgmma_t48s4_onekey_dq1f16_dq2f16"):
        assert f"diffattn_{kernel}\n" in printed, f"{kernel} is not in {printed}"
    assert "FAILED" not in printed


def test_kernels_of_gradients_multiply_as_much_as_they_are_meant_to(run_command):
    """14 units of two K with twice as wide values, 11 of one K; those that have each gradient apart are no row."""
    printed = run_command("counts", "--variants", "gradients-v1,gradients-v2,gradients-v1-wide")
    rows = [line.split() for line in printed.splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [("gradients-v1", "8.00"), ("gradients-v1", "6.00"), ("gradients-v2", "6.00"), ("gradients-v2", "5.00")]
    assert all(1.2 < float(row[4]) < 2.0 for row in rows) and "FAILED" not in printed
    printed = run_command("counts", "--chip", "sm_90a", "--variants", "gradients-v1,gradients-v2")
    rows = [line.split() for line in printed.splitlines() if "_wgmma_" in line]
    assert [row[2] for row in rows] == ["8.00", "6.00", "6.00", "5.00"] and all(0.5 < float(row[4]) < 1.2 for row in rows) and "FAILED" not in printed


#: Variants that take kernels by warpgroups or decode by tensor maps, and the beginnings of names that their kernels have. Without --full
#: those whose operands fill registers most are assembled.
FILLING = [("v1", ["forward_64x128_bf16_wgmma_both_k64s6", "forward_64x128_bf16_wgmma_both_k64s6p", "forward_64x128_bf16_wgmma_apart_k192s2p",
                   "forward_64x128_bf16_wgmma_both_k48s8o"]),
           ("v1-wide", ["forward_128x256_bf16_wgmma_apart_k80s2p", "forward_128x256_bf16_wgmma_apart_k96s2c2", "forward_128x256_bf16_wgmma_apart_k64s3o"]),
           ("v1-saved", ["forward_64x128_bf16_wgmma_apart_k192s2p_weightbf16_xbf16_o2bf16_lse1_lse2"]),
           ("gdla", ["forward_192x128_bf16_wgmma_apart_k128s2_onekey"]),
           ("one-map-256-plain", ["forward_256x256_bf16_wgmma_both_k80s2_onemap"]),
           # Fewer warps leave a thread more registers.
           ("v2-wide-mask", ["decode_128x256_bf16_both2x1_k32s4_bulk_onekey_softcap_biasmask"])]
OTHERS = [("timm,edifice", ["forward_32x64_bf16_wgmma_both_k96s5p", "forward_64x64_bf16_wgmma_both_k96s5"]),
          ("v2,v1-128-gate", ["forward_128x128_bf16_wgmma_apart_k192s2_onekey", "forward_128x128_bf16_wgmma_apart_k192s2p_onekey", "forward_128x128_bf16_wgmma_both_k64s3"]),
          ("v1-830m,gdla-two-keys", ["forward_96x192_bf16_wgmma_apart_k96s2", "forward_192x128_bf16_wgmma_apart_k80s2"]),
          ("motif-gda,motif-gda-pages,v2-wide-bias", ["decode_128x256_bf16_both2x1_k32s4_bulk_onekey_biasbf16"]),
          ("one-map,one-map-128,one-map-192", ["forward_64x64_bf16_wgmma_both_k128s5_onemap", "forward_128x128_bf16_wgmma_both_k128s3_onemap",
                                               "forward_192x128_bf16_wgmma_both_k128s2_onemap"])]


def test_ptxas_leaves_products_by_warpgroups_as_they_are(run_command, full):
    """No spill, and no product that it serializes (C75xx), with every variant of a model that takes them."""
    chosen = FILLING + OTHERS if full else FILLING
    printed = run_command("ptxas", "--chips", "sm_90a", *([] if full else ["--types", "bf16", "--variants", ",".join(variants for variants, _ in chosen)]))
    for kernel in (kernel for _, kernels in chosen for kernel in kernels):
        assert re.search(rf"diffattn_{kernel}(?![0-9a-z])", printed), f"{kernel} is not in {printed}"
    assert "FAILED" not in printed


def test_the_table_of_schedules_is_what_ptxas_says(run_command, full):
    printed = run_command("schedules", "--table", *([] if full else ["--plain", "--chips", "sm_80"]))
    assert "kBoth" in printed and "WRONG" not in printed
