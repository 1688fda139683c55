"""Code for the tiles of AMX against its emulation, bit for bit, on a CPU that has them.

On other machines nothing is compared, and the skip says so. The emulation itself is judged everywhere: its tiles in test_amx_tiles.py, its kernels with every
other ISA in test_attention_random.py.
"""
import subprocess
import sys

import numpy as np
import pytest

from diffattn import runtime
from kernel_library import compile_library, runnable_isas
from test_attention_backward import gradients
from test_attention_random import Inputs, draw_signature, run
from test_backward_kernel import Shaped, fill

pytestmark = pytest.mark.skipif("amx" not in runnable_isas(), reason="not compared: this machine has no AMX, or its system does not let it be used")

SIGNATURES = 10
LENGTHS = [dict(tq=97, tk=300), dict(tq=33, tk=65), dict(tq=16, tk=31), dict(tq=2, tk=130), dict(tq=1, tk=530), dict(tq=8, tk=47)]
# Runs a command that may not ask for tiles: of x86-64's system call 158, arch_prctl, request 0x1023 fails with EPERM.
REFUSED = """
import ctypes, struct, subprocess, sys
load, jump_equal, give = 0x20, 0x15, 0x06
rules = [(load, 0, 0, 0), (jump_equal, 0, 3, 158), (load, 0, 0, 16), (jump_equal, 0, 1, 0x1023), (give, 0, 0, 0x00050001), (give, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert prctl(22, 2, ctypes.byref(Program(len(rules), ctypes.addressof(code))), 0, 0) == 0, ctypes.get_errno()
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
ATTENTION = """func.func @f(%q: memref<1x2x16x64xbf16>, %k: memref<1x2x32x64xbf16>, %v: memref<1x2x32x64xbf16>, %l: memref<f32>, %o: memref<1x2x16x64xbf16>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x16x64xbf16>, memref<1x2x32x64xbf16>, memref<1x2x16x64xbf16>, memref<1x2x32x64xbf16>,
    memref<1x2x32x64xbf16>) lambda(%l : memref<f32>) outs(%o : memref<1x2x16x64xbf16>) {scale = 0.1 : f32}
  return
}
"""


def test_attention_is_what_is_emulated(build_dir, tmp_path):
    rng = np.random.default_rng(11)
    signatures = [draw_signature(rng, number) for number in range(SIGNATURES)]
    for number, sig in enumerate(signatures):
        sig.update(type="bf16", bias="bf16" if sig["bias"] == sig["type"] else sig["bias"], result="f32" if number % 2 else None)
    libraries = []
    for isa in ("amx", "amx-emulated"):
        (tmp_path / isa).mkdir()
        libraries.append((isa, compile_library(signatures, isa, build_dir, tmp_path / isa)))
    for number, sig in enumerate(signatures):
        for lengths in LENGTHS:
            inputs = Inputs(np.random.default_rng(number), sig, lengths)
            # All of bf16's numbers, subnormal ones too, whose products tiles flush.
            inputs.arrays["q1"][..., ::3] *= 2.0**-70
            inputs.arrays["k1"][..., ::3] *= 2.0**-70
            native, emulated = [run(library, number, inputs) for library in libraries]
            np.testing.assert_array_equal(native, emulated, err_msg=f"s{number}: {sig} {lengths}")


@pytest.mark.parametrize("again", [False, True])
def test_gradients_are_what_is_emulated(again):
    results = []
    for isa in ("amx", "amx-emulated"):
        one = fill(Shaped(isa), isa, again)
        arrays = one.draw(2)
        for name in ("q1", "k2", "d_out"):  # and numbers whose products tiles flush
            arrays[name][..., ::3] *= 2.0**-70
        results.append(gradients(one, runtime.Executable(one.text("tensor", arrays), cache=False), arrays))
    for name, native in results[0].items():
        np.testing.assert_array_equal(native, results[1][name], err_msg=name)


@pytest.mark.parametrize("refused", [False, True])
def test_native_takes_tiles_where_the_system_lets_it(build_dir, refused):
    command = [str(build_dir / "bin/diffattn-opt"), "-", "--diffattn-select-schedule", "--remarks-filter=diffattn.*", "--remark-format=emitRemark"]
    if refused:
        command = [sys.executable, "-c", REFUSED, *command]
    done = subprocess.run(command, input=ATTENTION, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ('isa = "amx"' in done.stdout) == (not refused), done.stdout
    assert ("of tiles the system says: Operation not permitted" in done.stderr) == refused, done.stderr
