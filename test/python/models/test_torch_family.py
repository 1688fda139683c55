"""Differential attention as its authors write it in PyTorch (torch_family): each model by diffattn.compile, some by torch.compile, the
numbers, and that each attention was found."""
import copy

import pytest
import torch
from torch.utils import _pytree as pytree
from torch_family.cases import CASES

import diffattn
from diffattn.torch import export, program

pytestmark = pytest.mark.oracle

#: Relative to the largest value.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def module_of(case):
    torch.manual_seed(0)
    return case.make().eval().to(case.dtype)


def arguments_of(case, size):
    torch.manual_seed(1000 * size[0] + size[1])
    return to_floats(case.dtype, case.arguments(*size))


def to_floats(dtype, tree):
    return pytree.tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, tree)


def assert_near(got, want, dtype):
    got, want = pytree.tree_leaves(got), pytree.tree_leaves(want)
    assert len(got) == len(want)
    for one, other in zip(got, want):
        assert one.shape == other.shape and one.dtype == dtype
        error, scale = (one.double() - other.double()).abs().max(), other.double().abs().max()
        assert error <= TOLERANCE[dtype] * scale, f"error {error:.3g} at magnitude {scale:.3g}"


def assert_raised(compiled, case):
    raised = [d for d in compiled.applied if d.name == "Raised"]
    assert len(raised) == case.attentions, [str(d) for d in compiled.diagnostics]
    if case.kept is None:
        assert not compiled.diagnostics, [str(d) for d in compiled.diagnostics]
    else:
        assert compiled.diagnostics and all(case.kept in str(d) for d in compiled.diagnostics), [str(d) for d in compiled.diagnostics]


def expected(case, module, size):
    with torch.no_grad():
        return copy.deepcopy(module).to(case.reference)(*to_floats(case.reference, arguments_of(case, size)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [case for case in CASES if case.dynamo], ids=lambda case: case.name)
def test_met_by_dynamo(case, programs):
    module = module_of(case)
    compiled = torch.compile(module, backend="diffattn", fullgraph=True, dynamic=case.dynamic is not None)
    with torch.no_grad():
        for size in [size for size in case.calls if size[0] > 1]:  # Dynamo makes another graph for a batch of 1
            assert_near(compiled(*arguments_of(case, size)), expected(case, module, size), case.dtype)
    assert len(programs) == 1
    assert_raised(programs[0], case)


@pytest.fixture
def exported(monkeypatch):
    """Programs of torch.export, each made once, and imported as often as it is asked for: export takes most of the time."""
    made, make = [], export._export

    def once(*given):
        made.append(make(*given)) if not made else None
        return copy.deepcopy(made[0])

    monkeypatch.setattr(export, "_export", once)
    return made


@pytest.fixture
def imported(monkeypatch):
    """The texts that torch-mlir makes of graphs, each time anew: none is taken from the cache, but the code of equal texts is."""
    texts, lower = [], program.lower

    def keep(*given):
        texts.append(lower(*given))
        return texts[-1]

    monkeypatch.setattr(program, "lower", keep)
    monkeypatch.setattr(program.text_cache, "read", lambda *_: None)
    return texts


@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.no_grad()
def test_compiled(case, exported, imported):
    module = module_of(case)
    compiled, again = (diffattn.compile(module, arguments_of(case, case.example), dynamic_shapes=case.shapes) for _ in range(2))
    assert len(exported) == 1 and len(imported) == 2 and imported[0] == imported[1] and again.mlir == compiled.mlir
    assert_raised(compiled, case)
    for size in case.calls:
        want = expected(case, module, size)  # first: a call may change a cache
        assert_near(compiled(*arguments_of(case, size)), want, case.dtype)
