"""Readings of a GPU that tools/gpu-check has in benchmarks/results, on the simulator: the same inputs, the same error."""
import gzip
import json

import pytest
import torch

from paths import ROOT
from cuda_random import CudaRandom
from gpu_check import check_kernels
from gpu_check import exact_attention
from gpu_check import operands

pytestmark = pytest.mark.oracle
CASE = "v1_128_packed_f16"


@pytest.fixture(scope="module")
def beyond():
    """Errors that an H200 measured beyond the gate, when M alone was allowed a part of."""
    readings = json.loads(gzip.decompress((ROOT / "benchmarks/results/2026-11-28-h200/kernels.json.gz").read_bytes()))["results"]
    by_image = {r["image"]: r for r in readings if r["error_over_m"] > r["allowed"]}
    assert [(image, r["case"], r["layout"]) for image, r in by_image.items()] == [(f"{chip} cubin", CASE, "shared") for chip in ("sm_90a", "sm_90")]
    return by_image


@pytest.fixture(scope="module")
def images(make_pack, open_pack):
    opened = open_pack(make_pack(["sm_90", "sm_90a"], [CASE]), "sm_90a")
    return {"sm_90a cubin": opened, "sm_90 cubin": opened.plain}


@pytest.mark.parametrize("image", ["sm_90a cubin", "sm_90 cubin"])
def test_an_error_of_a_gpu_is_that_of_the_simulator(beyond, images, image, monkeypatch):
    """To the last digit, where M alone counts; with the terms for numbers below the normal range it is no error."""
    reading, errors = beyond[image], []
    for half_step in (lambda dtype: 0.0, exact_attention.half_step):
        monkeypatch.setattr(operands, "torch", CudaRandom(reading["seed"]))
        monkeypatch.setattr(exact_attention, "half_step", half_step)
        errors.append(check_kernels.check(images[image], images[image].cases[CASE],
                                          *(reading[name] for name in ("layout", "batch", "queries", "keys", "seed"))))
    of_m, now = errors
    assert of_m["kernels"] == reading["kernels"] and of_m["error_over_m"] == pytest.approx(reading["error_over_m"], rel=1e-12)
    assert of_m["failures"] == ["error 0.00169 of M, allowed 0.0015"]
    assert now["failures"] == [] and now["error_over_m"] < 2**-10


def test_the_error_is_that_of_one_rounding(beyond, images, monkeypatch):
    """Row 11 of the first batch sees key 72 alone. Its element of V in column 126 is 169 of f16's steps, and 101.4 of them are
    (1 - lambda) times that: the nearest number is off by what the GPU was off by."""
    reading, case = beyond["sm_90a cubin"], images["sm_90a cubin"].cases[CASE]
    monkeypatch.setattr(operands, "torch", CudaRandom(reading["seed"]))
    tensors = operands.make(case, *(reading[name] for name in ("batch", "queries", "keys", "layout")))
    assert exact_attention.visible(case, tensors, torch.tensor([11]))[0].flatten().nonzero().flatten().tolist() == [72]
    assert float(tensors["v"][0, 1, 72, 126]) == 169 * 2.0**-24
    lam = float(tensors["lambda"])
    assert abs(101 - (1 - lam) * 169) / ((1 + lam) * 169) == pytest.approx(reading["error_over_m"], rel=1e-12)
