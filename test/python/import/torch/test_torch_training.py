"""Gradients of torch.ops.diffattn.attention and of diffattn.attention: values, types and strides, which are computed, compilers, and what
is refused."""
import functools
import gc
import shutil
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch._functorch.config
import torch._inductor.config

import diffattn
import diffattn.torch
import training_reference
from diffattn import _attention
from diffattn.errors import InputError, UsageError
from diffattn.torch import gradient
from torch_op_cases import OPTIONS, draw, operands, split
from training_reference import draw_call

pytestmark = [pytest.mark.oracle,
              pytest.mark.filterwarnings("ignore:the gradient of attention runs as loops:RuntimeWarning")]  # of a bias
attention, saving, backward = torch.ops.diffattn.attention, torch.ops.diffattn.attention_and_x, torch.ops.diffattn.attention_backward
NAMES = gradient.GRADIENTS
MASK = [True] * 6 + [False] * 3
#: Bounds of errors relative to the largest magnitude of a gradient.
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors_of(options, dtype=torch.float32):
    """The arguments of a row of OPTIONS by name; floats require gradients."""
    tensors, options = split(options)
    given = dict(zip(NAMES, tensors), **options)
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value if name in ("lam", "norm_weight") else value.to(dtype)
            given[name] = value.clone().requires_grad_()
    return given


def call(function, given):
    """The operator or the function, which has the same names but for segments."""
    given = dict(given)
    if function is diffattn.attention and "q_segments" in given:
        given["segment_ids"] = given.pop("q_segments"), given.pop("kv_segments")
    return function(*[given.pop(name) for name in NAMES[:6]], **given)


def gradients_of(function, given, weights):
    wanted = {name: value for name, value in given.items() if isinstance(value, torch.Tensor) and value.requires_grad}
    result = call(function, given)
    return dict(zip(wanted, torch.autograd.grad((result * weights).sum(), list(wanted.values()))))


def check(given, weights, function=attention, bound=None):
    """Gradients of `function` against those of the reference, by their largest magnitude."""
    got = gradients_of(function, given, weights)
    expected = gradients_of(training_reference.attention, {name: value for name, value in given.items() if name != "target"}, weights.double())
    bound = bound or BOUNDS[given["q1"].dtype]
    for name, gradient_ in got.items():
        assert gradient_.shape == given[name].shape and gradient_.dtype == given[name].dtype, name
        error = (gradient_.double() - expected[name].double()).abs().max() / expected[name].abs().max().clamp(min=1e-3)
        assert error <= bound, (name, error.item(), given.keys())
    return got


@pytest.mark.parametrize("number", range(96))
@pytest.mark.sampled(24)
def test_random_calls(number):
    given, weights = draw_call(np.random.default_rng(number), number)
    check(given, weights, diffattn.attention if number % 2 else attention)


def test_every_option_has_gradients_or_is_refused():
    for name in ("paged", "integral"):
        given = tensors_of(OPTIONS[name])
        culprit = {"paged": "block_table"}.get(name, name)
        for function in (attention, diffattn.attention):
            with pytest.raises(UsageError, match=f"^{culprit}: expected none in a call that needs gradients"):
                call(function, given)
        with pytest.raises(UsageError, match=f"^{culprit}: expected none in a call that needs gradients"):
            detached = {key: value.detach() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
            backward(torch.ones(2, 4, 5, 32), *[detached.pop(key) for key in NAMES[:6]], output_mask=MASK, **detached)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("paged", "integral")])
def test_options(name):
    """Values against the reference, by both ways in, and both ops as PyTorch wants operators."""
    given = tensors_of(OPTIONS[name])
    shape = call(attention, given).shape
    weights = draw(*shape)
    by_op, by_function = check(given, weights), gradients_of(diffattn.attention, given, weights)
    assert all(torch.equal(by_op[one], by_function[one]) for one in by_op)
    tensors, options = [given.pop(one) for one in NAMES[:6]], given
    assert set(torch.library.opcheck(attention.default, tuple(tensors), options).values()) == {"SUCCESS"}
    mask = MASK[:6] + [options.get(one) is not None and options[one].is_floating_point() for one in NAMES[6:]]
    plain = {one: value.detach() if isinstance(value, torch.Tensor) else value for one, value in options.items()}
    checked = torch.library.opcheck(backward.default, (weights, *(t.detach() for t in tensors)), dict(plain, output_mask=mask))
    assert set(checked.values()) == {"SUCCESS"}
    if "norm" in given:
        assert set(torch.library.opcheck(saving.default, tuple(tensors), options).values()) == {"SUCCESS"}
        result, x = saving(*tensors, **options)
        assert torch.equal(result, attention(*tensors, **options)) and not x.requires_grad
        bits = backward(weights, *tensors, **plain, output_mask=mask)
        for again, saved in zip(bits, backward(weights, *tensors, **plain, output_mask=mask, x=x)):
            # Beside weights of f32 nothing of 16-bit operands is rounded in the backward call, as it is in the forward one.
            assert torch.equal(again, saved) if x.dtype == result.dtype else (again - saved).abs().max() <= 0.02 * again.abs().max()


def plain_attention(q1, k1, q2, k2, v, lam, *, q_segments=None, kv_segments=None, **options):
    """`diffattn.plain_attention` with the arguments of the operator."""
    return diffattn.plain_attention(q1, k1, v, segment_ids=None if q_segments is None else (q_segments, kv_segments), **options)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("paged", "integral", "lambda")])
def test_one_map(name, dtype):
    """Gradients of one map are those of two whose lambda is 0, by both ways in, and the operator is as PyTorch wants it without its second map."""
    given = tensors_of(OPTIONS[name], dtype)
    one = {**given, "q2": None, "k2": None, "lam": None}
    zero = {**given, "q2": given["q1"].detach(), "k2": given["k1"].detach(), "lam": torch.zeros(())}
    zero.pop("target", None)
    weights = draw(*call(attention, one).shape)
    expected = gradients_of(training_reference.attention, zero, weights.double())
    by_op, by_function = gradients_of(attention, one, weights), gradients_of(plain_attention, one, weights)
    assert by_op.keys() == expected.keys()
    for key, got in by_op.items():
        assert torch.equal(got, by_function[key]) and got.dtype == given[key].dtype, key
        error = (got.double() - expected[key].double()).abs().max() / expected[key].abs().max().clamp(min=1e-3)
        assert error <= BOUNDS[dtype], (key, error.item())
    tensors = tuple(one.pop(key) for key in NAMES[:6])
    assert set(torch.library.opcheck(attention.default, tensors, one).values()) == {"SUCCESS"}


def test_packed_sequences():
    """One may be empty, or have no keys; what all share has the sum of their gradients."""
    bounds_q, bounds_k = torch.tensor([0, 2, 2, 5, 9]), torch.tensor([0, 4, 6, 6, 11], dtype=torch.int32)
    generator = torch.Generator().manual_seed(5)
    make = lambda *shape: torch.randn(shape, generator=generator).requires_grad_()
    for lam in (make(4), make(1, 9, 4), torch.tensor(0.3, requires_grad=True)):
        given = dict(q1=make(1, 4, 9, 16), k1=make(1, 2, 11, 16), q2=make(1, 4, 9, 16), k2=make(1, 2, 11, 16), v=make(1, 2, 11, 32), lam=lam,
                     cu_seqlens_q=bounds_q, cu_seqlens_k=bounds_k, is_causal=True, norm="rms", norm_weight=make(32), gate=make(1, 4, 9, 32),
                     q_offset=torch.tensor([2, 0, 0, 1]))
        got = check(given, draw(1, 4, 9, 32))
        assert not got["k1"][:, :, 4:6].any() and not got["q1"][:, :, 2:5].any()
    with pytest.raises(InputError, match="cu_seqlens_q: expected 9, the number of queries, as the last number, but got 8"):
        plain = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
        backward(draw(1, 4, 9, 32), *[plain.pop(name) for name in NAMES[:6]], output_mask=MASK, **{**plain, "cu_seqlens_q": torch.tensor([0, 2, 2, 5, 8])})


def test_empty_calls():
    for sizes in (dict(batch=0), dict(queries=0), dict(keys=0)):
        tensors = [t.requires_grad_() for t in operands(**sizes)]
        for gradient_ in torch.autograd.grad(attention(*tensors).sum(), tensors):
            assert not gradient_.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_d_out_in_f32_is_not_rounded(dtype):
    tensors, d_out = [*operands(dtype)[:5], operands()[5]], draw(2, 4, 5, 32)
    exact, rounded = backward(d_out, *tensors, output_mask=MASK), backward(d_out.to(dtype), *tensors, output_mask=MASK)
    assert [t.dtype for t in exact] == [t.dtype for t in tensors]
    wide = [t.double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad((training_reference.attention(*wide) * d_out).sum(), wide)
    errors = [[((a.double() - b).norm() / b.norm()).item() for a, b in zip(results, expected)] for results in (exact, rounded)]
    assert errors[0][5] < errors[1][5]  # d_lambda is f32 itself
    assert max(errors[0]) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_comes_before_the_norm_is_kept(dtype):
    """In f32, for any type, and gradients err as those for which it is made again."""
    tensors, d_out, kept = [t.requires_grad_() for t in (*operands(dtype)[:5], operands()[5])], draw(2, 4, 5, 32).to(dtype), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        result = attention(*tensors, norm="rms")
    assert kept[-1].dtype == torch.float32 and kept[-1].shape == result.shape
    got = torch.autograd.grad(result, tensors, d_out)
    again = backward(d_out, *(t.detach() for t in tensors), output_mask=MASK, norm="rms")
    wide = [t.detach().double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad((training_reference.attention(*wide, norm="rms") * d_out).sum(), wide)
    for name, *results, exact in zip(NAMES, got, again, expected):
        ours, theirs = (((one.double() - exact).norm() / exact.norm()).item() for one in results)
        assert ours <= 1.5 * theirs + 1e-6, (name, ours, theirs)


def test_d_out_with_any_strides():
    tensors = [t.requires_grad_() for t in operands()]
    ones = torch.autograd.grad(attention(*tensors).sum(), tensors)  # strides of 0
    dense = torch.autograd.grad(attention(*tensors), tensors, torch.ones(2, 4, 5, 32))
    swapped = torch.autograd.grad(attention(*tensors), tensors, torch.ones(2, 5, 32, 4).permute(0, 3, 1, 2))
    for a, b, c in zip(ones, dense, swapped):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(c, b)


def test_gradients_lie_as_their_operands():
    """So that heads that are beside each other in memory are not copied by what made them."""
    tensors = [t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in operands()[:5]]
    for tensor, gradient_ in zip(tensors, torch.autograd.grad(attention(*tensors, operands()[5]).sum(), tensors)):
        assert gradient_.stride() == tensor.stride() and not gradient_.is_contiguous()


def recorded(monkeypatch):
    """The gradients that calls of the compiled code compute, by their names, and whether they have one K."""
    calls, run = [], gradient.attention_backward

    def record(d_out, q1, k1, q2, k2, v, lam, gradients, **options):
        calls.append((list(gradients), k2 is None))
        run(d_out, q1, k1, q2, k2, v, lam, gradients, **options)

    monkeypatch.setattr(gradient, "attention_backward", record)
    return calls


def test_only_wanted_gradients_are_computed(monkeypatch):
    calls = recorded(monkeypatch)
    for trained in (["q1"], ["v", "lam"], ["q2", "k2"], ["norm_weight"]):
        given = dict(zip(NAMES, operands()), norm="rms", norm_weight=draw(32))
        for name in trained:
            given[name].requires_grad_()
        check(given, draw(2, 4, 5, 32))
        assert calls.pop() == (trained, False) and not calls
    tensors = [t.requires_grad_() for t in operands()]
    detached = attention(*tensors).detach()
    assert not detached.requires_grad and not calls


def test_a_result_without_gradient(monkeypatch):
    """One whose own use gives it none: nothing is computed."""
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, d):
            return None

    calls, tensors = recorded(monkeypatch), [t.requires_grad_() for t in operands()]
    assert torch.autograd.grad(Dropped.apply(attention(*tensors)).sum(), tensors, allow_unused=True) == (None,) * 6 and not calls


def test_operands_are_kept_and_what_norm_and_gate_read():
    tensors = [t.requires_grad_() for t in operands()]
    kept = []
    gate = draw(2, 4, 5, 32)
    for end, wants in ((dict(norm="rms"), True), (dict(gate=gate), False), (dict(gate=gate.detach().requires_grad_()), True)):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            attention(*tensors, is_causal=True, **end)
        assert {t.data_ptr() for t in kept[:6]} == {t.data_ptr() for t in tensors} and len(kept) == 6 + ("gate" in end) + wants
        if wants:
            assert torch.equal(kept[-1], attention(*tensors, is_causal=True))
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        attention(*tensors[:3], tensors[1], *tensors[4:])  # one K
    assert len(kept) == 5
    result = attention(*tensors)
    alive = weakref.ref(result)
    del result
    gc.collect()
    assert alive() is None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result = attention(*[t * 1 for t in tensors[:5]], changed := tensors[5] * 1).sum()
        changed += 1
        result.backward()


class Reversed(torch.autograd.Function):
    """A view whose gradient is not that of a view."""

    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(_, d):
        return -d


#: How k1 and k2 come from one tensor, and whether they then are one K.
def unrecorded(k):
    with torch.no_grad():
        view = k.view_as(k)
    return view.requires_grad_()


def with_hook(k):
    view = k.transpose(0, 1).transpose(0, 1)
    view.register_hook(lambda d: 2 * d)
    return view


KEYS = {
    "same": (lambda k: (k, k), True),
    "views": (lambda k: (k.transpose(1, 2).transpose(1, 2), k.mT.mT), True),
    "parts": (lambda k: (k.chunk(2, 0)[0], k[:1]), True),
    "of a view": (lambda k: ((k * 1)[:1], (k * 1)[:1]), False),
    "others": (lambda k: (k[:1], k[1:]), False),
    "detached": (lambda k: (k, k.detach()), False),
    "detached first": (lambda k: (k.detach(), k), False),
    "frozen": (lambda k: (k.detach(), k.detach()), True),
    "leaf of its own": (lambda k: (k, k.detach().requires_grad_()), False),
    "view without record": (lambda k: (k, unrecorded(k)), False),
    "reversed": (lambda k: (k, Reversed.apply(k)), False),
    "hooked": (lambda k: (k, with_hook(k)), False),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("function", [attention, diffattn.attention])
def test_one_key(name, function, monkeypatch):
    """Where both maps read one K, autograd gives it the gradient of both, once."""
    make, is_one = KEYS[name]
    calls = recorded(monkeypatch)
    q1, k1, q2, _, v, lam = operands(batch=1 if name in ("parts", "of a view", "others") else 2)
    k, weights = draw(2, 2, 7, 16).requires_grad_(), draw(*q1.shape[:3], 32)
    q1.requires_grad_()
    if name == "frozen":
        k.requires_grad_(False)

    def run(function):
        k1, k2 = make(k)
        leaves = [t for t in {id(t): t for t in (q1, k, k1, k2)}.values() if t.is_leaf and t.requires_grad]
        return torch.autograd.grad((function(q1, k1, q2, k2, v, lam) * weights).sum(), leaves, allow_unused=True)

    got, expected = run(function), run(training_reference.attention)
    assert [shared for _, shared in calls] == [is_one]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_one_key_of_the_op_for_gradients():
    q1, k, q2, _, v, lam = operands()
    d_out = draw(2, 4, 5, 32)
    apart = backward(d_out, q1, k, q2, k, v, lam, output_mask=MASK)
    mask = [True, True, True, False, True, True, False, False, False]
    together = backward(d_out, q1, k, q2, None, v, lam, output_mask=mask)
    torch.testing.assert_close(together[1], apart[1] + apart[3], rtol=1e-4, atol=1e-5)
    for a, b in zip((together[0], *together[2:]), (apart[0], apart[2], *apart[4:])):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_module_is_compiled_by_the_first_backward(monkeypatch):
    monkeypatch.setattr(_attention, "_compiled", {})
    tensors = [t.requires_grad_() for t in operands()]
    result = attention(*tensors)
    assert len(_attention._compiled) == 1
    for sizes in (dict(), dict(batch=3, queries=17, keys=21)):
        tensors = [t.requires_grad_() for t in operands(**sizes)]
        attention(*tensors).sum().backward()
        assert len([1 for _, text in _attention._compiled if "attention_backward" in text]) == 1
    assert result.requires_grad


def test_bias_says_that_no_kernel_computes_its_gradient(monkeypatch):
    monkeypatch.setattr(_attention, "_compiled", {})
    given = tensors_of(OPTIONS["bias"])
    with pytest.warns(RuntimeWarning, match="no kernel computes the gradient of a bias"):
        check(given, draw(2, 4, 5, 32))
    given["attn_mask"] = given["attn_mask"].detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(given, draw(2, 4, 5, 32))


def test_numbers_and_arrays_beside_tensors():
    """Values that are no tensors are read as they were when the result was computed."""
    given = dict(zip(NAMES, (t.requires_grad_() for t in operands())))
    length = np.array([3, 7])
    given.update(lam=0.3, kv_len=length, q_offset=1, is_causal=True, attn_mask=(draw(2, 1, 5, 7) > -1).numpy())
    wanted = [given[name] for name in NAMES[:5]]
    result = call(diffattn.attention, given)
    length[:] = 1
    got = torch.autograd.grad(result.sum(), wanted)
    same = dict(given, lam=torch.tensor(0.3), kv_len=torch.tensor([3, 7]), attn_mask=torch.from_numpy(given["attn_mask"]))
    for a, b in zip(got, torch.autograd.grad(call(training_reference.attention, same).sum(), wanted)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_threads_are_those_of_both_calls(monkeypatch):
    seen, run = [], gradient.attention_backward
    monkeypatch.setattr(gradient, "attention_backward", lambda *args, threads, **options: seen.append(threads) or run(*args, threads=threads, **options))
    tensors = [t.requires_grad_() for t in operands()]
    gradients = [torch.autograd.grad(diffattn.attention(*tensors, threads=threads).sum(), tensors) for threads in (1, 2, None)]
    assert seen == [1, 2, None] and all(torch.equal(a, b) for other in gradients[1:] for a, b in zip(gradients[0], other))


class Layer(torch.nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm = norm

    def forward(self, q1, k1, q2, k2, v, lam):
        return attention(q1 * 2, k1, q2, k2, v, lam, is_causal=True, window=[q1.shape[2], -1], norm=self.norm).sum(-1)


def graphs_of(backend):
    """A backend that keeps the graphs that it hands on, forward and backward."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.compile_fx import compile_fx_inner
    from functorch.compile import make_boxed_func

    graphs = []

    def compiler(graph, inputs, **options):
        graphs.append(graph)
        return compile_fx_inner(graph, inputs, **options) if backend == "inductor" else make_boxed_func(graph.forward)

    if backend == "inductor":
        from torch._inductor.compile_fx import compile_fx

        return graphs, functools.partial(compile_fx, inner_compile=compiler)
    return graphs, aot_autograd(fw_compiler=compiler, bw_compiler=compiler)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shared, norm", [(False, None), (True, None), (False, "rms")])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@torch._functorch.config.patch(enable_autograd_cache=False)  # graphs from PyTorch's cache would not be seen
@torch._inductor.config.patch(fx_graph_cache=False)
def test_compiled_graphs_keep_one_node_each(backend, shared, norm):
    assert backend != "inductor" or shutil.which("g++"), "expected the C++ compiler that inductor calls (Debian: g++)"
    torch._dynamo.reset()
    graphs, compile_by = graphs_of(backend)
    compiled = torch.compile(Layer(norm), fullgraph=True, backend=compile_by, dynamic=True)
    for count, sizes in enumerate((dict(batch=3), dict(batch=5, queries=6, keys=9), dict(batch=6, queries=9, keys=12))):
        tensors = operands(**sizes)
        # Heads that are split from one projection, as models have them.
        tensors = [t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors[:5]] + [tensors[5].requires_grad_()]
        if shared:
            tensors[3] = tensors[1]
        wanted = list({id(t): t for t in tensors}.values())
        got, expected = (torch.autograd.grad(run(*tensors).sum(), wanted) for run in (compiled, Layer(norm)))
        for a, b in zip(got, expected):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert len(graphs) == 2  # for all sizes
    forwards = (attention.default, saving.default)
    counts = [[sum(node.target == one for node in graph.graph.nodes) for one in (*forwards, backward.default)] for graph in graphs]
    assert counts == [[not norm, bool(norm), 0], [0, 0, 1]]
    node, = (node for node in graphs[1].graph.nodes if node.target == backward.default)
    assert (node.args[4] is None) == shared
    saved = [node for node in graphs[1].graph.nodes if node.op == "placeholder" and node.meta["val"].__class__ is not torch.SymInt]
    assert len([node for node in saved if isinstance(node.meta["val"], torch.Tensor)]) <= 7 + bool(norm)  # operands, the gradient of the result, and x


def test_compiled_with_fixed_sizes():
    torch._dynamo.reset()
    tensors = [t.requires_grad_() for t in operands()]
    compiled = torch.compile(Layer(), fullgraph=True, backend="aot_eager", dynamic=False)
    for a, b in zip(torch.autograd.grad(compiled(*tensors).sum(), tensors), torch.autograd.grad(Layer()(*tensors).sum(), tensors)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("norm", [None, "rms"])
def test_export_of_what_requires_gradients(norm):
    tensors = [t.requires_grad_() for t in operands()]
    program = torch.export.export(Layer(norm), tuple(tensors))
    program = program.run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(attention.default) == 1 and backward.default not in targets
    for a, b in zip(torch.autograd.grad(program.module()(*tensors).sum(), tensors), torch.autograd.grad(Layer(norm)(*tensors).sum(), tensors)):
        torch.testing.assert_close(a, b)


def double(function, given):
    """A derivative of a gradient."""
    first, = torch.autograd.grad(call(function, given).sum(), given["q1"], create_graph=True)
    return torch.autograd.grad(first.sum(), given["q1"])


def dual(function, given):
    """A call in forward mode."""
    with torch.autograd.forward_ad.dual_level():
        made = torch.autograd.forward_ad.make_dual(given["q1"].detach(), torch.ones(2, 4, 5, 16))
        return call(function, dict(given, q1=made))


def transformed(transform):
    def run(function, given):
        given = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
        return transform(lambda q1: call(function, dict(given, q1=q1)), given["q1"])
    return run


#: Errors of PyTorch's other ways to differentiate.
OTHERS = {
    "double": (double, "^torch.ops.diffattn.attention: expected one derivative, because gradients of its gradients are not computed"),
    "dual": (dual, r"^q1: expected a tensor without tangent, because torch.ops.diffattn.attention has no forward-mode derivative \(jvp\)"),
    "vmap": (transformed(lambda f, x: torch.vmap(f)(x[None])), r"^q1: expected a tensor outside of torch.func's transforms \(vmap, grad, jvp"),
    "jvp": (transformed(lambda f, x: torch.func.jvp(f, (x,), (x,))), "^q1: expected a tensor outside of torch.func's transforms"),
    "grad": (transformed(lambda f, x: torch.func.grad(lambda x: f(x).sum())(x)), "^q1: expected a tensor outside of torch.func's transforms"),
    "hessian": (transformed(lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x)), "^q1: expected a tensor outside of torch.func's transforms"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("function", [attention, diffattn.attention])
def test_other_derivatives_are_refused_by_name(name, function):
    run, message = OTHERS[name]
    with pytest.raises(UsageError, match=message):
        run(function, tensors_of(OPTIONS["plain"]))


def test_derivatives_of_the_op_for_gradients_are_refused():
    d_out, tensors = draw(2, 4, 5, 32).requires_grad_(), operands()
    with pytest.raises(UsageError, match="^torch.ops.diffattn.attention: expected one derivative"):
        backward(d_out, *tensors, output_mask=MASK)[0].sum().backward()
    with pytest.raises(UsageError, match="^d_out: expected a tensor outside of torch.func's transforms"):
        torch.vmap(lambda d: backward(d, *tensors, output_mask=MASK)[0])(d_out.detach()[None])


def test_create_graph_without_a_second_derivative():
    tensors = [t.requires_grad_() for t in operands()]
    first, = torch.autograd.grad(attention(*tensors).sum(), tensors[0], create_graph=True)
    assert torch.equal(first.detach(), torch.autograd.grad(attention(*tensors).sum(), tensors[0])[0])


D_OUT = torch.ones(2, 4, 5, 32)


@pytest.mark.parametrize("changes, error, message", [
    (dict(d_out=D_OUT[:, :, :4]), InputError, r"^d_out: expected shape \[2, 4, 5, 32\], but got \[2, 4, 4, 32\]"),
    (dict(d_out=D_OUT[0]), InputError, r"^d_out: expected shape"),
    (dict(d_out=D_OUT.double()), InputError, "^d_out: expected float32, but got float64"),
    (dict(d_out=D_OUT.half()), InputError, "^d_out: expected float32, but got float16"),
    (dict(d_out=D_OUT.to("meta")), InputError, "^d_out: expected a tensor on cpu as q1, but got one on meta"),
    (dict(d_out=D_OUT.to_sparse()), InputError, "^d_out: expected a tensor with strides, but got one of layout torch.sparse_coo"),
    (dict(lam=torch.ones(4, 4).to_sparse_csr()), InputError, "^lam: expected a tensor with strides, but got one of layout torch.sparse_csr"),
    (dict(lam=torch.ones(4, device="meta")), InputError, "^lam: expected a tensor on cpu as q1, but got one on meta"),
    (dict(k1=torch.ones(2, 2, 7, 16, device="meta")), InputError, "^k1: expected a tensor on cpu as q1, but got one on meta"),
    (dict(k1=torch.ones(2, 2, 7, 15)), InputError, r"^k1: expected shape \[B, Hk1, Tk, d\]"),
    (dict(q1=torch.ones(4, 5, 16)), InputError, "^q1: expected rank 4"),
    (dict(lam=torch.ones(3)), InputError, "^lam: expected a number or shape"),
    (dict(attn_mask=torch.ones(5, 7, dtype=torch.bool), output_mask=[True] * 7 + [False] * 2), UsageError,
     "^output_mask: expected False for attn_mask, because torch.bool has no gradient, but got True"),
    (dict(output_mask=[True] * 8 + [False]), UsageError, "^output_mask: expected False for attn_mask, because it was not given, but got True"),
    (dict(k2=None), UsageError, "^output_mask: expected False for k2, because it was not given, but got True"),
    (dict(output_mask=[True] * 6), UsageError, "^output_mask: expected 9 truth values, for q1, k1, q2, k2, v, lam, attn_mask, norm_weight, gate"),
    (dict(output_mask=[False] * 9), UsageError, "^output_mask: expected True for at least one gradient"),
    (dict(kv_len=torch.tensor([1, -1])), InputError, "^kv_len: expected 0 to"),
    (dict(norm_weight=torch.ones(32)), UsageError, "^norm_weight: expected norm='rms' with it"),
    (dict(cu_seqlens_q=torch.tensor([0, 5])), UsageError, "^cu_seqlens_q: expected it with either cu_seqlens_k or block_table"),
])
def test_bad_calls_of_the_op_for_gradients(changes, error, message):
    given = dict(zip(NAMES, operands()), d_out=D_OUT, output_mask=MASK) | changes
    with pytest.raises(error, match=message):
        backward(*[given.pop(name) for name in ("d_out", *NAMES[:6])], **given)


@pytest.mark.parametrize("changes, error, message", [
    (dict(out=torch.empty(2, 4, 5, 32)), UsageError, "^out: expected none in a call that needs gradients"),
    (dict(stream=1), UsageError, "^stream: expected none in a call that needs gradients"),
    (dict(segment_ids=3), UsageError, r"^segment_ids: expected \(q_segments, kv_segments\), but got 3"),
    (dict(window=3), UsageError, r"^window: expected \(left, right\), but got 3"),
    (dict(threads=-1), UsageError, "^threads: expected"),
    (dict(lam=torch.ones(3)), InputError, "^lam: expected a number or shape"),
    (dict(q1=operands()[0].numpy()), InputError, "^k1: expected a tensor without gradient, because no gradient flows back"),
])
def test_bad_calls_of_the_function(changes, error, message):
    given = tensors_of(OPTIONS["plain"]) | changes
    with pytest.raises(error, match=message):
        call(diffattn.attention, given)


def test_tensors_of_other_devices_have_no_gradients():
    """There is no such device here: what is said of a tensor that says that it lies on one."""
    class Elsewhere(torch.Tensor):
        device = torch.device("mps:1")

    tensor = torch.ones(2).as_subclass(Elsewhere)
    with pytest.raises(InputError, match="^q1: expected a tensor in memory of the host or of a CUDA device in a call that needs gradients, but got one "
                                         "on mps:1; call under torch.no_grad"):
        gradient.check_differentiable(dict(q1=tensor))
    for name in ("attention", "attention_and_x", "attention_and_rows", "attention_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"diffattn::{name}", "CUDA")


def test_fakes_check_what_they_can():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake, d_out = [mode.from_tensor(t) for t in operands()], mode.from_tensor(D_OUT)
        assert [t.shape for t in backward(d_out, *fake, output_mask=MASK)] == [t.shape for t in fake]
        with pytest.raises(InputError, match="^d_out: expected rank 4"):
            backward(d_out[0], *fake, output_mask=MASK)
        with pytest.raises(InputError, match="^d_out: expected float32, but got torch.float16"):
            backward(d_out.half(), *fake, output_mask=MASK)
        with pytest.raises(UsageError, match="^output_mask: expected 9"):
            backward(d_out, *fake, output_mask=[True])


def test_the_schemas_have_the_same_options():
    arguments = [[(argument.name, str(argument.type), argument.default_value) for argument in one.default._schema.arguments]
                 for one in (attention, backward, saving, torch.ops.diffattn.attention_and_rows)]
    assert arguments[0] == arguments[2] == arguments[3] and arguments[0][6:] == arguments[1][12:]
    assert [name for name, *_ in arguments[1][:12]] == ["d_out", *NAMES[:6], "output_mask", "x", "lse1", "lse2", "o2"]
