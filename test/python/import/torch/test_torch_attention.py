"""torch.ops.diffattn.attention in modules that are compiled: one op of the dialect for each call, with every option, as its own call."""
import pytest
import torch
from torch import nn

import diffattn
import diffattn.torch
from diffattn import runtime
from diffattn.errors import CompileError, InputError, RunError, UsageError
from torch_op_cases import OPTIONS, draw, operands, split

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs")]
attention = torch.ops.diffattn.attention
#: The options that compiled graphs have, and those that come with operands of their own.
NAMES = [name for name in OPTIONS if name != "target"]
SEQUENCES = ("packed", "paged")


class Attention(nn.Module):
    """A call with options that are fixed, between ops of the graph's own."""

    def __init__(self, **fixed):
        super().__init__()
        self.fixed = fixed

    def forward(self, q1, k1, q2, k2, v, lam, **given):
        return attention(q1 * 1.5, k1, q2, k2, v, lam, **self.fixed, **given).transpose(1, 2) + 1


def case(name):
    """A module, its arguments, and its tensors by name."""
    tensors, options = split(OPTIONS[name])
    named = {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    return Attention(**{name: value for name, value in options.items() if name not in named}), tensors, named


def ops_of(mlir):
    """The ops after raising. There are as many before it: none had to be found."""
    raised = [line for line in runtime.emit(mlir, "raised").decode().splitlines() if " diffattn.attention " in line]
    assert mlir.count(" call @diffattn_attention_") == len(raised)
    return raised


def is_kernel(compiled, name=""):
    """Without a word, but that integral has no kernel."""
    return all("integral" in d.message for d in compiled.diagnostics) and (name == "integral") == bool(compiled.diagnostics)


def same(got, want, tolerance=1e-5):
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # integral
@pytest.mark.parametrize("name", NAMES)
def test_every_option_exported(name):
    module, tensors, named = case(name)
    compiled = diffattn.compile(module, tuple(tensors), named)
    same(compiled(*tensors, **named), module(*tensors, **named))
    assert len(ops_of(compiled.mlir)) == 1 and is_kernel(compiled, name)


#: The axes of tensors that count batches, queries and keys.
AXES = {"q1": "b.q.", "k1": "b.k.", "q2": "b.q.", "k2": "b.k.", "v": "b.k.", "gate": "b.q.", "lam": "bq.", "attn_mask": "b.qk", "kv_len": "b",
        "q_segments": "bq", "kv_segments": "bk"}


def longer(name, value, more):
    """A tensor with more batches, queries and keys, each as the first one."""
    for letter, axis in zip(reversed(AXES.get(name, "")), range(value.dim() - 1, -1, -1)):
        if letter in more and (name != "lam" or value.dim() == 3) and (name, value.size(axis)) != ("attn_mask", 1):
            value = torch.cat([value, value.narrow(axis, 0, 1).repeat_interleave(more[letter], axis)], axis)
    return value


class AllOptions(nn.Module):
    """A call for each row of OPTIONS: `given` has the tensors of each."""

    def __init__(self):
        super().__init__()
        self.calls = [split(OPTIONS[name])[1] for name in NAMES if name not in SEQUENCES]

    def forward(self, tensors, given):
        return [attention(*tensors[:5], more.pop("lam", tensors[5]), **{**fixed, **more})
                for fixed, more in zip(self.calls, map(dict, given))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@torch.no_grad()
def test_every_option_by_dynamo_with_any_sizes(programs):
    compiled, given = torch.compile(AllOptions(), backend="diffattn", dynamic=True, fullgraph=True), []
    for name in (name for name in NAMES if name not in SEQUENCES):
        given.append({key: value for key, value in OPTIONS[name].items() if isinstance(value, torch.Tensor)})
    # None is the size of heads: sizes that are equal at first become one symbol.
    for more in ({"b": 1, "q": 2, "k": 3}, {"b": 4, "q": 8, "k": 12}, {"b": 3, "q": 1, "k": 5}):
        args = ([longer(*one, more) for one in zip(AXES, operands()[:5])] + operands()[5:],
                [{key: longer(key, value, more) for key, value in one.items()} for one in given])
        for got, want in zip(compiled(*args), AllOptions()(*args)):
            same(got, want)
    (made,) = programs
    assert len(ops_of(made.mlir)) == len(NAMES) - len(SEQUENCES) and all("integral" in d.message for d in made.diagnostics)


@torch.no_grad()
def test_sequences_by_dynamo_with_any_sizes(programs):
    """Other lengths of sequences, and more of them, in the same code."""
    module = Attention(is_causal=True)
    compiled = torch.compile(module, backend="diffattn", dynamic=True, fullgraph=True)
    tensors, options = split(OPTIONS["packed"])
    q1, k1, q2, k2, v, lam = tensors
    for ends, key_ends in (([0, 2, 5], [0, 4, 7]), ([0, 3, 5], [0, 1, 7]), ([0, 0, 1, 4, 10], [0, 3, 7, 7, 14])):
        times = ends[-1] // 5
        arguments = [q1.repeat(1, 1, times, 1), k1.repeat(1, 1, times, 1), q2.repeat(1, 1, times, 1), k2.repeat(1, 1, times, 1),
                     v.repeat(1, 1, times, 1), lam]
        tables = {"cu_seqlens_q": torch.tensor(ends), "cu_seqlens_k": torch.tensor(key_ends)}
        same(compiled(*arguments, **tables), module(*arguments, **tables))
    assert len(programs) == 1
    with pytest.raises(RunError, match="expected cu_seqlens_q to end with 10, the number of queries, but got 9"):
        compiled(*arguments, cu_seqlens_q=torch.tensor([0, 0, 1, 4, 9]), cu_seqlens_k=torch.tensor([0, 3, 7, 7, 14]))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
@torch.no_grad()
def test_16_bit_types_strides_and_groups(dtype, tolerance, programs):
    """Two signal heads to a noise head, keys shared by both maps, lambda and the norm's weight in other types, both doors."""
    q1, k1, q2, _, v, lam = operands(dtype)
    tensors = [q1.transpose(1, 2).contiguous().transpose(1, 2), k1, q2[:, ::2], k1, v, lam.double()]
    module, weight = Attention(norm="rms", is_causal=True), draw(32)
    exported, compiled = diffattn.compile(module, tuple(tensors), {"norm_weight": weight}), torch.compile(module, backend="diffattn")
    want = module(*tensors, norm_weight=weight)
    for function in (exported, compiled):
        got = function(*tensors, norm_weight=weight)
        assert got.dtype == dtype
        same(got.float(), want.float(), tolerance)
    for one in programs:
        (op,) = ops_of(one.mlir)
        assert dtype.__str__().replace("torch.float", "f").replace("torch.bfloat", "bf") in op and is_kernel(one)


class Windowed(nn.Module):
    def forward(self, x, q1, k1, q2, k2, v, lam):
        return attention(q1, k1, q2, k2, v, lam, window=[x.shape[0], -1])


@torch.no_grad()
def test_windows_of_symbols(programs, full):
    """Each is a graph of its own, as a window is an attribute of the op: alone, beside both kinds of masks, and with positions."""
    given = [{"attn_mask": draw(2, 1, 5, 7) > -1}, {"attn_mask": draw(5, 7), "kv_len": torch.tensor([3, 7])},
             {"kv_len": torch.tensor([3, 7]), "q_offset": torch.tensor(1), "is_causal": True}]

    def windowed(left, right, *tensors):
        return [attention(*tensors, window=[left, right], **more) for more in given] + [attention(*tensors, window=[-1, right])]

    compiled = torch.compile(windowed, backend="diffattn", dynamic=True, fullgraph=True)
    windows = ((3, 2), (4, 5), (2, 6)) if full else ((3, 2), (4, 5))
    for left, right in windows:
        for got, want in zip(compiled(left, right, *operands()), windowed(left, right, *operands())):
            same(got, want)
    assert len(programs) == len(windows) and all(len(ops_of(made.mlir)) == len(given) + 1 and is_kernel(made) for made in programs)
    with pytest.raises(CompileError, match="window: expected numbers, but got one of dynamic_shapes"):
        diffattn.compile(Windowed(), (torch.ones(3), *operands()), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, *[None] * len(operands())))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam, self.weight = nn.Parameter(torch.tensor(0.3)), nn.Parameter(draw(32))

    def forward(self, q1, k1, q2, k2, v):
        first = attention(q1, k1, q2, k2, v, self.lam, norm="rms", norm_weight=self.weight)
        return attention(first[..., :16], k1, q2, k2, v, self.lam, is_causal=True)


def test_a_program_that_keeps_the_op():
    """Two calls are two ops. Parameters are bound as weights, and read anew."""
    module, tensors = Twice(), tuple(operands()[:5])
    with torch.no_grad():
        program = torch.export.export(module, tensors)
        compiled = diffattn.compile(program.module(), tensors)
        same(compiled(*tensors), module(*tensors))
        assert len(ops_of(compiled.mlir)) == 2 and compiled.mlir.count("diffattn.weight = ") == 2 and is_kernel(compiled)
        module.lam.add_(1)
        compiled = diffattn.compile(module, tensors)
        same(compiled(*tensors), module(*tensors))
        module.lam.mul_(0.5)
        module.weight.add_(1)
        same(compiled(*tensors), module(*tensors))


def test_a_result_that_nobody_needs():
    class Unused(nn.Module):
        def forward(self, *tensors):
            attention(*tensors)
            return tensors[0] + 1

    compiled = diffattn.compile(Unused(), tuple(operands()))
    same(compiled(*operands()), operands()[0] + 1)
    assert "attention" not in compiled.mlir


@pytest.mark.parametrize("changes, options, error, message", [
    ({4: torch.ones(2, 2, 8, 32)}, {}, InputError, r"v: expected shape \[B, Hv, Tk, dv\] = \[2, 2, 7, 32\], but got \[2, 2, 8, 32\]"),
    ({5: torch.ones(3)}, {}, InputError, r"lam: expected a number or shape \[4\]"),
    ({5: torch.ones(4, dtype=torch.int64)}, {}, InputError, "lam: expected floats, but got torch.int64"),
    ({}, dict(window=[1, 2, 3]), UsageError, r"window: expected \(left, right\)"),
    ({}, dict(norm="layer"), UsageError, "norm: expected None or 'rms'"),
    ({}, dict(target="cpu:generic"), CompileError, "target: expected None in a graph that is compiled, whose own target it has, but got 'cpu:generic'"),
    ({}, dict(attn_mask=torch.ones(5, 6)), InputError, r"attn_mask: expected a shape that broadcasts to"),
    ({}, dict(kv_len=torch.ones(3, dtype=torch.int64)), InputError, r"kv_len: expected a number or shape \[2\], but got \[3\]"),
    ({}, dict(kv_len=torch.ones(2)), InputError, "kv_len: expected integers, but got torch.float32"),
    ({}, dict(q_segments=torch.zeros(2, 5, dtype=torch.int64)), InputError, "segment_ids: expected q_segments and kv_segments together"),
])
def test_errors_name_the_line(changes, options, error, message):
    """By both doors; a call of Dynamo's function raises the error itself."""
    tensors = operands()
    for place, value in changes.items():
        tensors[place] = value
    named = {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    module = Attention(**{name: value for name, value in options.items() if name not in named})
    line = rf"^\S*test_torch_attention\.py:{Attention.forward.__code__.co_firstlineno + 1}: {message}"
    with pytest.raises(error, match=line) as raised:
        diffattn.compile(module, tuple(tensors), named)
    assert "\n" not in str(raised.value)
    with torch.no_grad(), pytest.raises(error, match=line):
        torch.compile(module, backend="diffattn")(*tensors, **named)


def test_heads_of_any_number_are_refused():
    width = torch.export.Dim("width", min=2, max=64)
    with pytest.raises(CompileError, match="q1: expected numbers of heads and widths that are known, but axis 3 of torch.ops.diffattn.attention "
                                           "is one of dynamic_shapes"):
        diffattn.compile(Twice(), tuple(operands()[:5]), dynamic_shapes=({3: width}, {3: width}, {3: width}, {3: width}, None))


@torch.no_grad()
def test_another_width_is_another_graph(programs):
    module, compiled = Attention(), torch.compile(Attention(), backend="diffattn", dynamic=True)
    for width in (16, 8):
        q1, k1, q2, k2, v, lam = operands()
        tensors = [*(x[..., :width].contiguous() for x in (q1, k1, q2, k2)), v, lam]
        same(compiled(*tensors), module(*tensors))
    assert len(programs) == 2


class Lengths(nn.Module):
    def forward(self, q1, k1, q2, k2, v, lam, kv_len):
        return attention(q1, k1, q2, k2, v, lam, kv_len=kv_len)


def test_sizes_and_lengths_that_calls_get_wrong():
    batch, keys = torch.export.Dim("batch", min=1, max=9), torch.export.Dim("keys", min=2, max=64)
    given = torch.tensor([3, 7], dtype=torch.int32)
    q, k = {0: batch}, {0: batch, 2: keys}
    compiled = diffattn.compile(Lengths(), (*operands(), given), dynamic_shapes=(q, k, q, k, k, None, q))
    for lengths in ([9, 0], [1, 2]):
        kv_len = torch.tensor(lengths, dtype=torch.int32)
        same(compiled(*operands(keys=9), kv_len), Lengths()(*operands(keys=9), kv_len))
    with pytest.raises(RunError, match="kv_len: expected 0 to 9223372036854775807, but got a negative number"):
        compiled(*operands(), torch.tensor([3, -1], dtype=torch.int32))
    tensors = operands()
    tensors[3] = operands(keys=8)[3]
    with pytest.raises(InputError, match="k2, size of axis 2: expected 7, as for k1"):
        compiled(*tensors, given)


def test_it_is_for_graphs_alone():
    with pytest.raises(NotImplementedError):
        torch.ops.diffattn._attention("{}", operands())
