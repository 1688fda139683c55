"""Gradients in PyTorch of calls on a GPU, in the simulator: what they keep, that they are those of the CPU, and what is refused. No device is
here: what CUDA tensors do is known by the target that they ask for."""
import types

import pytest
import torch

import diffattn
import diffattn.torch
import training_reference
from diffattn.errors import UsageError
from diffattn.torch import gradient

SM_80, HOPPER = "cuda-sim:sm_80", "cuda-sim:sm_90a"
attention = torch.ops.diffattn.attention
OPTIONS = {
    "norm": dict(norm="rms", norm_weight=(32,), out_scale=0.7),
    "gate": dict(gate=(1, 4, 5, 32), lam_activation="sigmoid"),
    "plain": {},
    "scaled": dict(out_scale=0.5),
}
pytestmark = pytest.mark.filterwarnings("ignore:gradients of attention have no GPU kernels", "ignore:the gradients of attention are computed by loops")


def operands(dtype=torch.float32, requires=("q1", "k1", "q2", "k2", "v", "lam"), **options):
    """Two signal heads to a noise head; options that are sizes become tensors."""
    torch.manual_seed(1)
    shapes = dict(q1=(1, 4, 5, 16), k1=(1, 2, 7, 16), q2=(1, 2, 5, 16), k2=(1, 2, 7, 16), v=(1, 2, 7, 32), lam=(4,))
    given = {name: torch.randn(shape).to(torch.float32 if name == "lam" else dtype) for name, shape in shapes.items()}
    given |= {name: torch.randn(shape).to(dtype) if isinstance(shape, tuple) else shape for name, shape in options.items()}
    return {name: value.requires_grad_() if name in requires and isinstance(value, torch.Tensor) else value for name, value in given.items()}


def call(given, **more):
    options = dict(given, **more)
    return attention(*[options.pop(name) for name in ("q1", "k1", "q2", "k2", "v", "lam")], is_causal=True, **options)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_the_cpu(name):
    given = operands(requires=("q1", "k1", "q2", "k2", "v", "lam", "norm_weight", "gate"), **OPTIONS[name])
    wanted = [value for value in given.values() if isinstance(value, torch.Tensor)]
    d_out = torch.randn(1, 4, 5, 32)
    for got, want in zip(torch.autograd.grad(call(given, target=SM_80), wanted, d_out), torch.autograd.grad(call(given), wanted, d_out)):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name, kept", [("norm", ["lse1", "lse2", "o2", "x"]), ("gate", ["lse1", "lse2", "o2", "x"]), ("plain", ["lse1", "lse2", "o2", "x"]),
                                        ("scaled", ["lse1", "lse2", "o2"])])
def test_what_is_kept(name, kept, monkeypatch):
    """Rows of the operands' type; x is the result where that is the same."""
    given = operands(torch.bfloat16, ("lam",), **OPTIONS[name])
    calls, compute = [], gradient.attention_backward
    monkeypatch.setattr(gradient, "attention_backward", lambda *arrays, **options: calls.append(options) or compute(*arrays, **options))
    result = call(given, target=SM_80)
    result.sum().backward()
    saved = {name: value for name, value in calls[0].items() if name in ("lse1", "lse2", "x", "o2") and value is not None}
    assert sorted(saved) == kept and calls[0]["target"] == SM_80
    assert all(saved[name].dtype == (torch.float32 if name.startswith("lse") else torch.bfloat16) for name in saved)
    assert (saved["x"].data_ptr() == result.data_ptr()) == (name == "plain") if "x" in saved else True


@pytest.mark.filterwarnings("error")
def test_gradients_of_rows_are_kernels():
    given = operands(torch.bfloat16, ("lam", "norm_weight", "gate"), norm="rms", norm_weight=(32,), gate=(1, 4, 5, 32))
    wanted = [given[name] for name in ("lam", "norm_weight", "gate")]
    d_out = torch.randn(1, 4, 5, 32).bfloat16()
    expected = torch.autograd.grad(call(given), wanted, d_out)
    for got, want in zip(torch.autograd.grad(call(given, target=SM_80), wanted, d_out), expected):
        assert got.dtype == want.dtype and (got - want).float().norm() <= 0.03 * want.float().norm() + 0.05


def draw(dtype, queries, keys, width=16, values=32):
    """Operands of two signal heads to a noise head."""
    torch.manual_seed(2)
    shapes = dict(q1=(1, 4, queries, width), k1=(1, 2, keys, width), q2=(1, 2, queries, width), k2=(1, 2, keys, width), v=(1, 2, keys, values), lam=(1, queries, 4))
    return {name: torch.randn(shape).to(torch.float32 if name == "lam" else dtype).requires_grad_() for name, shape in shapes.items()}


def check_against_f64(given, options, bound, target):
    """The result and every gradient, each within `bound` of its norm. Returns the gradients."""
    wanted = [value for value in [*given.values(), *options.values()] if isinstance(value, torch.Tensor) and value.requires_grad]
    result, exact = attention(*given.values(), **options, target=target), training_reference.attention(*given.values(), **options)
    d_out = torch.randn(result.shape).to(result.dtype)
    got, want = torch.autograd.grad(result, wanted, d_out), torch.autograd.grad(exact, wanted, d_out.double())
    for ours, right in [(result, exact), *zip(got, want)]:
        assert (ours.double() - right.double()).norm() <= bound * right.double().norm() + 1e-30
    return got


def bounds_of(*counts):
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()


#: Queries and keys of packed sequences: none of these, none of those, one row, and more than a tile has.
QUERIES, KEYS = (3, 0, 1, 4, 70), (9, 2, 1, 0, 66)


@pytest.mark.filterwarnings("error")  # a warning says that there are no kernels
@pytest.mark.parametrize("dtype, bound, options", [(torch.float32, 1e-5, dict(is_causal=True, norm="rms")), (torch.bfloat16, 1.5e-2, dict(is_causal=True)),
                                                   (torch.float16, 3e-3, dict(window=(8, 3), q_offset=(0, 0, 0, 0, 5), norm="rms"))])
def test_packed_sequences(dtype, bound, options):
    given = draw(dtype, sum(QUERIES), sum(KEYS))
    options = {name: torch.tensor(value) if name == "q_offset" else value for name, value in options.items()}
    packed = dict(cu_seqlens_q=bounds_of(*QUERIES), cu_seqlens_k=bounds_of(*KEYS), **options)
    check_against_f64(given, packed, bound, SM_80)


@pytest.mark.filterwarnings("error")
def test_a_packed_sequence_has_the_gradients_of_it_alone():
    """Bit by bit, but for what sequences share."""
    given = draw(torch.bfloat16, 40, 50)
    of = lambda given, **options: torch.autograd.grad(attention(*given.values(), is_causal=True, target=SM_80, **options).sum(), list(given.values()))
    together = of(given, cu_seqlens_q=bounds_of(7, 33), cu_seqlens_k=bounds_of(20, 30))
    for rows, keys in ((slice(0, 7), slice(0, 20)), (slice(7, 40), slice(20, 50))):
        places = dict(q1=(0, 0, rows), k1=(0, 0, keys), q2=(0, 0, rows), k2=(0, 0, keys), v=(0, 0, keys), lam=(0, rows))
        cuts = [tuple(p if isinstance(p, slice) else slice(None) for p in place) for place in places.values()]
        alone = of({name: value.detach()[cut].contiguous().requires_grad_() for (name, value), cut in zip(given.items(), cuts)})
        assert all(torch.equal(ours[cut], theirs) for ours, theirs, cut in zip(together, alone, cuts))


@pytest.mark.filterwarnings("error")  # a warning also says what is not by wgmma
@pytest.mark.parametrize("norm", [None, "rms"])
def test_both_calls_by_warpgroups(norm):
    check_against_f64(draw(torch.bfloat16, 140, 140, width=64, values=64), dict(is_causal=True, norm=norm), 1.5e-2, HOPPER)


def test_a_scaler_finds_an_overflow():
    """Gradients that 16 bits cannot hold reach every parameter as infinities or NaN, and the step is left out; later ones are made."""
    torch.manual_seed(3)
    heads = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8 * heads, bias=False) for name, heads in dict(q1=2, k1=1, q2=2, k2=1, v=1).items()})
    lam, x = torch.nn.Parameter(torch.tensor([0.4, 0.2])), torch.randn(1, 5, 8)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000), torch.optim.SGD([*heads.parameters(), lam], lr=1e-3)
    parameters = [*heads.parameters(), lam]
    before = [parameter.detach().clone() for parameter in parameters]

    def step():
        optimizer.zero_grad()
        operands = [projection(x).unflatten(-1, (-1, 8)).transpose(1, 2).half() for projection in heads.values()]
        scaler.scale(attention(*operands, lam, norm="rms", is_causal=True, target=SM_80).float().square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    step()
    assert not any(parameter.grad.isfinite().all() for parameter in parameters) and scaler.get_scale() == 2.0**39
    assert all(map(torch.equal, parameters, before))
    scaler.update(2.0**6)
    step()
    assert scaler.get_scale() == 2.0**6 and not any(map(torch.equal, parameters, before))


def test_one_map_and_the_function():
    given = operands(norm="rms")
    q, k, v = (given[name] for name in ("q1", "k1", "v"))
    d_out = torch.randn(1, 4, 5, 32)
    of = lambda **options: torch.autograd.grad(diffattn.plain_attention(q, k, v, norm="rms", **options), (q, k, v), d_out)
    for got, want in zip(of(target=SM_80), of()):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_bad_numbers_reach_the_gradients():
    given = operands(requires=("lam", "norm_weight"), norm="rms", norm_weight=(32,))
    d_out = torch.ones(1, 4, 5, 32)
    d_out[0, 1, 2, 3] = torch.inf
    d_lam, d_weight = torch.autograd.grad(call(given, target=SM_80), (given["lam"], given["norm_weight"]), d_out)
    assert not d_lam[1].isfinite() and not d_weight[3].isfinite() and d_lam[[0, 2, 3]].isfinite().all()


def test_graphs_hold_one_node_each():
    """Fakes have the results of calls, also as PyTorch traces for a device."""
    given = operands(torch.bfloat16, norm="rms")
    rows = torch.ops.diffattn.attention_and_rows
    arguments = [given[name].detach() for name in ("q1", "k1", "q2", "k2", "v", "lam")]
    real = rows(*arguments, norm="rms", target=SM_80)
    with torch._subclasses.FakeTensorMode():
        fakes = [torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda") for tensor in arguments]
        assert [(t.shape, t.dtype, t.device.type) for t in rows(*fakes, norm="rms")] == [(t.shape, t.dtype, "cuda") for t in real]
        fakes = [torch.empty(tensor.shape, dtype=tensor.dtype, requires_grad=True) for tensor in arguments]
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
            result = attention(*fakes, norm="rms", target=SM_80)
        assert len(kept) == len(fakes) + 4
        for got, fake in zip(torch.autograd.grad(result, fakes, torch.empty_like(result)), fakes):
            assert (got.shape, got.dtype) == (fake.shape, fake.dtype)


@pytest.mark.parametrize("index, target, asked", [(3, None, "cuda@3"), (None, None, "cuda@0"), (1, "cuda:sm_90@1", "cuda:sm_90@1")])
def test_calls_are_for_the_tensors_device(index, target, asked, monkeypatch):
    """There is no GPU here: which target both calls ask for."""
    q1 = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda", index=index))
    assert gradient.runs_on_gpu(dict(q1=q1, target=target)) and gradient._target_of(q1, target) == asked


@pytest.mark.parametrize("changes, message", [
    (dict(attn_mask=torch.zeros(5, 7, requires_grad=True)), "^attn_mask: expected one that requires no gradient on a GPU"),
    (dict(cu_seqlens_q=torch.tensor([0, 5]), cu_seqlens_k=torch.tensor([0, 7]), out_scale=0.5), "^out_scale: expected 1 without norm and gate"),
    (dict(sink=torch.zeros(4)), "^sink: expected none in a call that needs gradients"),
    (dict(block_table=torch.zeros(1, 1, dtype=torch.int32)), "^block_table: expected none in a call that needs gradients"),
])
def test_what_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        call(operands(), target=SM_80, **changes)


def test_no_gradient_of_a_mask():
    given = operands()
    arguments = [given[name] for name in ("q1", "k1", "q2", "k2", "v", "lam")]
    with pytest.raises(UsageError, match="^output_mask: expected False for attn_mask on a GPU"):
        torch.ops.diffattn.attention_backward(torch.ones(1, 4, 5, 32), *arguments, attn_mask=torch.zeros(5, 7), output_mask=[False] * 6 + [True] + [False] * 2,
                                              target=SM_80)
