"""tools/gpu-check: the operands of its cases, and what its reference makes of them."""
import re

import pytest
import torch

from gpu_check import cases
from gpu_check import exact_attention
from gpu_check import operands

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("layout", operands.LAYOUTS)
def test_every_case_has_its_operands(layout):
    """Also those that no test packs: operands of the types that the text has, and a reference with the result's rows."""
    for case in [*cases.checked(), *cases.timed()]:
        tensors = operands.make(case, 3, case.queries or 7, 50, layout, seed=4)
        types = re.findall(r"%(\w+): memref<(?:[^,>]*x)?(\w+)", case.text().split("{\n")[0])
        names = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i64": torch.int64, "i32": torch.int32, "i1": torch.bool}
        assert [tensors[name].dtype for name in case.operands()] == [names[t] for _, t in types], case.name
        assert [name for name, _ in types] == ["l" if name == "lambda" else "bias" if name == "mask" else "norm_weight" if name == "weight"
                                               else name for name in case.operands()], case.name
        known = operands.for_reference(case, tensors)
        want = operands.like_result(case, tensors, exact_attention.exact(case, known).result)
        assert want.shape == tensors["o"].shape and want.isfinite().all(), case.name


def test_packed_sequences_and_pages():
    """Operands for the reference hold the elements that tables name; a page that no key needs cannot be used."""
    case = next(c for c in cases.checked() if c.name == "motif_gda_pages_bf16")
    tensors = operands.make(case, 3, 9, 100, "bthd", seed=5)
    assert tensors["cu_seqlens_q"].tolist() == [0, 9, 15, 18] and tensors["kv_len"].tolist() == [97, 64, 31]
    table = tensors["block_table"]
    assert tensors["k1"].shape[0] == 2 * table.numel() and (table == operands.NO_PAGE).sum(1).tolist() == [0, 3, 5]
    known = operands.for_reference(case, tensors)
    assert known["q1"].shape[:3] == (3, 8, 9) and known["q_offset"].tolist() == [88, 58, 28]
    torch.testing.assert_close(known["q2"][1, :, :6], tensors["q2"][0, :, 9:15])
    torch.testing.assert_close(known["v"][2, :, 16:31], tensors["v"][table[2, 1], :, :15])
    used = torch.cat([table[b, :-(-n // 16)] for b, n in enumerate(tensors["kv_len"].tolist())]).long()
    others = sorted(set(range(len(tensors["v"]))) - set(used.tolist()))
    assert tensors["v"][others].isnan().all() and tensors["k1"][table[2, 1], :, 15:].isnan().all()
    assert int(tensors["v"][used].isnan().sum()) == (15 + 1) * 256 * tensors["v"].shape[1]


def test_the_measure_knows_what_f16_cannot_hold():
    """A key of nearly all weight with a value of 0, and one whose weight is a subnormal number beside 1: rounding that weight, and the
    result, is off by more than the gate of M, and by no more than the two half steps. An error of twice that is seen."""
    case = cases.Case("two keys", "f16", 16, 16, (1, 1, 1, 1, 1))
    k = torch.zeros(1, 1, 2, 16, dtype=torch.float16)
    k[0, 0, 1, 0] = -14.109375 / cases.SCALE
    q = torch.zeros(1, 1, 1, 16, dtype=torch.float16)
    q[..., 0] = 1
    v = torch.zeros_like(k)
    v[0, 0, 1] = torch.linspace(0.01, 300, 16)
    tensors = {"q1": q, "k1": k, "q2": q, "k2": k, "v": v, "lambda": torch.tensor(0.4)}
    exact = exact_attention.exact(case, tensors)
    weight = float(exact.m[0, 0, 0, 0] / v[0, 0, 1, 0].double() / 1.4)
    rounded = torch.tensor(weight).half().double()
    assert 12.4 < weight * 2**24 < 12.6 and exact.n[0, 0, 0].allclose(1.4 * v[0, 0, 1].double(), rtol=1e-4)
    got = (0.6 * rounded * v[0, 0, 1].double()).half().reshape(1, 1, 1, 16)
    gate, flat = exact_attention.GATES["f16"], exact._replace(n=torch.zeros_like(exact.n))
    assert exact_attention.measured(got, exact, torch.float16) <= gate
    assert exact_attention.measured(got, flat, torch.float16) > gate
    # Results in f32 of the same weights have no step of their own.
    wide = (0.6 * rounded * v[0, 0, 1].double()).float().reshape(1, 1, 1, 16)
    assert exact_attention.measured(wide, exact, torch.float16) <= gate < exact_attention.measured(wide, exact, torch.float32)
    twice = (exact.result + 2 * exact_attention.half_step(torch.float16) * (exact.n + 1)).float()
    assert exact_attention.measured(twice, exact, torch.float16) > gate
    assert [exact_attention.half_step(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)] == [2.0**-150, 2.0**-25, 2.0**-134]
