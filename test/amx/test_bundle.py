"""A bundle with the code of amx: its bits are those of the emulated tiles, and where the system refuses tiles the error says so.

Run by scripts/amx-check.sh: bundles are written and the emulated one is called on the machine that compiles, the rest is for the one with AMX.
"""
import subprocess
import sys

import numpy as np
import pytest

import diffattn
from paths import ROOT
from prebuilt import COMPILES, KEPT
from test_amx_native import REFUSED

JOB = KEPT.parent
SHAPES = [(1, 1), (1, 5), (1, 40), (2, 70)]
PROMPT, TOKENS = "In the beginning", 12


def call(target):
    """The logits of `SHAPES`, and a text."""
    model = diffattn.bundle.load(str(JOB / f"{target}.bundle"))
    rng = np.random.default_rng(3)
    results = {f"logits{shape}": model.forward(rng.integers(0, 2000, shape).tolist()) for shape in SHAPES}
    return {**results, "text": np.array("".join(model.generate(PROMPT, max_new_tokens=TOKENS)))}


@pytest.fixture(scope="module", autouse=True)
def bundles():
    if COMPILES:
        for target in ("amx", "amx-emulated"):
            subprocess.run(
                [sys.executable, "-m", "diffattn", "bundle", str(ROOT / "examples/tiny-lm"), f"--target=cpu:{target}", "--copy-weights", "-o",
                 str(JOB / f"{target}.bundle")], check=True, stdout=subprocess.DEVNULL)
        np.savez(JOB / "emulated.npz", **call("amx-emulated"))
        pytest.skip("written, for a machine with AMX to call")


def test_a_bundle_is_what_is_emulated():
    expected = np.load(JOB / "emulated.npz")
    for name, result in call("amx").items():
        np.testing.assert_array_equal(result, expected[name], err_msg=name)


def test_a_system_that_refuses_tiles():
    load = f"import diffattn; diffattn.bundle.load({str(JOB / 'amx.bundle')!r})"
    done = subprocess.run([sys.executable, "-c", REFUSED, sys.executable, "-c", load], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "this one lacks amx-bf16 (the system does not let this process use it)" in done.stderr, done.stderr
