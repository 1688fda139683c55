"""Attention of one map in PyTorch's modules (torch_single), by torch.compile: each is fused, or told why not, and the numbers are those of
eager PyTorch."""
import copy

import pytest
import torch
from torch.utils import _pytree as pytree
from torch_single.cases import CASES

pytestmark = pytest.mark.oracle

#: Relative to the largest value.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def to_floats(dtype, tree):
    return pytree.tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, tree)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.no_grad()
def test_fused_or_reported(case, programs):
    torch.manual_seed(0)
    module = case.make().eval()
    given = to_floats(case.dtype, case.arguments(2, 12))
    want = copy.deepcopy(module).double()(*to_floats(torch.float64, given))
    compiled = torch.compile(module.to(case.dtype), backend="diffattn", fullgraph=True)
    got = compiled(*given)
    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        assert one.shape == other.shape and one.dtype == case.dtype
        error, scale = (one.double() - other.double()).abs().max(), other.double().abs().max()
        assert error <= TOLERANCE[case.dtype] * scale, f"error {error:.3g} at magnitude {scale:.3g}"
    (program,) = programs
    diagnostics = [str(one) for one in (*program.applied, *program.diagnostics) if one.category == "diffattn-fuse"]
    missed = [str(one) for one in program.diagnostics if one.category == "diffattn-fuse"]
    assert sum("one map became a" in one for one in diagnostics) == case.single, diagnostics
    assert sum("two maps became one" in one for one in diagnostics) == case.pairs, diagnostics
    assert len(missed) == (case.kept is not None) and all(case.kept in one for one in missed), diagnostics
