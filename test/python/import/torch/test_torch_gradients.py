"""Calls of compiled modules for which PyTorch would record a gradient: an error by either way into the compiler, under the same rule."""
import pytest
import torch
from torch import nn

import diffattn

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs")]


class Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(3)), function

    def forward(self, x):
        return self.function(x, self.weight)


@torch.no_grad()
def without_gradients(x, weight):
    return x * weight


@torch.inference_mode()
def in_inference_mode(x, weight):
    return x * weight


#: By name, with whether a result requires a gradient if the weight does, and if the argument does, too.
FUNCTIONS = {
    "product": (lambda x, weight: x * weight, True, True),
    "one_of_several": (lambda x, weight: (1, {"y": x + weight, "z": x.detach()}), True, True),
    "weight_alone": (lambda x, weight: x.detach() * weight, True, True),
    "detached_weight": (lambda x, weight: x * weight.detach(), False, True),
    "detached": (lambda x, weight: (x * weight).detach(), False, False),
    "integers": (lambda x, weight: (x * weight).argmax(), False, False),
    "no_grad": (without_gradients, False, False),
    "inference_mode": (in_inference_mode, False, False),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("argument_requires", [False, True])
def test_the_rule_is_that_of_the_backend(name, argument_requires):
    function, *required = FUNCTIONS[name]
    module, x = Module(function), torch.ones(3, requires_grad=argument_requires)
    expected = required[argument_requires]
    assert any(leaf.requires_grad for leaf in torch.utils._pytree.tree_leaves(module(x)) if isinstance(leaf, torch.Tensor)) == expected
    ahead, called = diffattn.compile(module, (torch.ones(3),)), torch.compile(module, backend="diffattn")
    if expected:
        culprit = "x" if argument_requires else "weight"
        for _ in range(2):
            with pytest.raises(diffattn.errors.InputError, match=rf"^{culprit}: expected a tensor without gradient, because no gradient flows "
                                                                 r"back through compiled code.*; call under torch\.no_grad\(\)"):
                ahead(x)
        with pytest.raises(diffattn.errors.CompileError, match=r"expected a graph without gradients.*; to infer, call under torch\.no_grad\(\)"):
            called(x)
    else:
        ahead(x), called(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(ahead(x), module(x))


def test_weights_that_are_frozen_later():
    module = nn.Linear(3, 2)
    compiled, x = diffattn.compile(module, (torch.ones(3),)), torch.ones(3)
    with pytest.raises(diffattn.errors.InputError, match="^weight: "):
        compiled(input=x)
    module.requires_grad_(False)
    torch.testing.assert_close(compiled(x), module(x))
    module.bias.requires_grad_()
    with pytest.raises(diffattn.errors.InputError, match="^bias: "):
        compiled(x)


def test_a_refused_call_changes_nothing():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.last = 0, None
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.calls += 1
            self.total += 1
            self.last = x * 2
            return self.last + self.total

    module = Counts()
    compiled = diffattn.compile(module, (torch.ones(3),))
    with pytest.raises(diffattn.errors.InputError, match="^x: "):
        compiled(torch.ones(3, requires_grad=True))
    assert (module.calls, module.last, module.total.tolist()) == (0, None, [0, 0, 0])


def test_a_residual_connection_is_not_trained_in_silence():
    compiled, x = diffattn.compile(nn.Linear(3, 3).requires_grad_(False), (torch.ones(3),)), torch.ones(3, requires_grad=True)
    with pytest.raises(diffattn.errors.InputError, match="^input: "):
        (x + compiled(x)).sum().backward()
