"""Chains of reshapes of sizes that are symbols, drawn at random, against PyTorch: axes merged and split, with -1 for one of them."""
import random

import pytest
import torch

pytestmark = pytest.mark.oracle
SIZES = [{"a": 3, "b": 5, "c": 7}, {"a": 4, "b": 2, "c": 6}, {"a": 5, "b": 5, "c": 5}]


def size_of(group, sizes):
    size = 1
    for factor in group:
        size = size * (sizes[factor] if factor in sizes else factor)
    return size


def cut(rng, factors):
    """The factors as groups, each the factors of one axis."""
    groups, begin = [], 0
    while begin < len(factors):
        end = rng.randint(begin + 1, len(factors))
        groups.append(factors[begin:end])
        begin = end
    return groups


def reshapes(chain):
    """A function of a tensor, and of three whose sizes are a, b and c."""
    def function(x, *sized):
        sizes = {name: one.size(0) for name, one in zip("abc", sized)}
        for groups, unknown in chain:
            x = x.reshape([-1 if axis == unknown else size_of(group, sizes) for axis, group in enumerate(groups)]) + 1
        return x
    return function


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.sampled(12)) for n in range(80)])
def test_chains(number, programs):
    rng = random.Random(number)
    factors = [rng.choice("abc"), *rng.choices(["a", "b", "c", 1, 2, 3, 4], k=rng.randint(1, 4))]
    rng.shuffle(factors)
    first, chain = cut(rng, factors), []
    for _ in range(rng.randint(1, 3)):
        groups = cut(rng, factors)
        chain.append((groups, rng.choice([None, rng.randrange(len(groups))])))
    function = reshapes(chain)
    compiled = torch.compile(function, backend="diffattn", dynamic=True, fullgraph=True)
    for sizes in SIZES:
        x, sized = torch.randn([size_of(group, sizes) for group in first]), [torch.zeros(sizes[name]) for name in "abc"]
        with torch.no_grad():
            assert torch.equal(compiled(x, *sized), function(x, *sized)), (first, chain, sizes)
    assert programs
