"""torch.ops.diffattn.attention: values, registration as PyTorch checks it, compilers and export."""
import pathlib
import shutil
import subprocess
import sys
import types

import pytest
import torch

import diffattn
import diffattn.torch
from diffattn.errors import InputError, LibraryError, UsageError
from diffattn.torch import gradient, op
from torch_op_cases import OPTIONS, draw, operands, split

pytestmark = pytest.mark.oracle
PYTHON = str(pathlib.Path(diffattn.__file__).parents[1])
attention = torch.ops.diffattn.attention


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # integral: no kernel computes it
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    """As the function, which has the same names, and as PyTorch wants operators: schema, shapes, strides, aliases."""
    tensors, options = split(OPTIONS[name])
    got = attention(*tensors, **options)
    same = dict(options)
    if "q_segments" in same:
        same["segment_ids"] = same.pop("q_segments"), same.pop("kv_segments")
    assert torch.equal(got, diffattn.attention(*tensors, **same)) and got.is_contiguous()
    checked = torch.library.opcheck(attention.default, tuple(tensors), options)
    assert len(checked) == 4 and set(checked.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types_and_strides(dtype):
    tensors = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in operands(dtype)[:5]] + [operands()[5]]
    assert not tensors[0].is_contiguous()
    assert torch.equal(attention(*tensors), diffattn.attention(*tensors)) and attention(*tensors).dtype == dtype
    checked = torch.library.opcheck(attention.default, tuple(tensors))
    assert set(checked.values()) == {"SUCCESS"}


def test_the_schema_has_all_options():
    import inspect

    function = inspect.signature(diffattn.attention).parameters
    schema = [argument.name for argument in attention.default._schema.arguments]
    wanted = [name for name in function if name not in ("out", "stream", "target", "threads", "x", "return_lse", "o2")]
    at = wanted.index("segment_ids")
    wanted[at: at + 1] = ["q_segments", "kv_segments"]
    assert schema[:6] == wanted[:6] and sorted(schema) == sorted([*wanted, "target"])
    for argument in attention.default._schema.arguments[6:]:
        if argument.name in function and argument.name != "target":
            assert argument.default_value == function[argument.name].default, argument.name


class Module(torch.nn.Module):
    def forward(self, q1, k1, q2, k2, v, lam):
        return attention(q1 * 2, k1, q2, k2, v, lam, is_causal=True, window=[q1.shape[2], -1]).sum(-1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile_keeps_one_graph(backend):
    assert backend != "inductor" or shutil.which("g++"), "expected the C++ compiler that inductor calls (Debian: g++)"
    torch._dynamo.reset()
    explained = torch._dynamo.explain(Module())(*operands())
    assert explained.graph_count == 1 and explained.graph_break_count == 0
    torch._dynamo.reset()
    compiled = torch.compile(Module(), fullgraph=True, backend=backend, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        # Sizes that are equal at first become one symbol.
        for sizes in (dict(batch=3), dict(batch=5, queries=6, keys=9), dict(batch=6, queries=9, keys=12)):
            tensors = operands(**sizes)
            torch.testing.assert_close(compiled(*tensors), Module()(*tensors))
    # Compiled code refuses what the op refuses.
    with pytest.raises(InputError, match=r"v: expected shape \[B, Hv, Tk, dv\]"):
        compiled(*operands()[:4], draw(2, 2, 8, 32), operands()[5])


def test_export_keeps_the_op():
    batch, queries, keys = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "queries", "keys"))
    q, k = {0: batch, 2: queries}, {0: batch, 2: keys}
    program = torch.export.export(Module(), tuple(operands()), dynamic_shapes=(q, k, q, k, k, None))
    program = program.run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(attention.default) == 1
    tensors = operands(batch=3, queries=6, keys=11)
    torch.testing.assert_close(program.module()(*tensors), Module()(*tensors))


def test_calls_without_gradients():
    """Where PyTorch records none, tensors that require one are taken as any; gradients are in test_torch_training.py."""
    tensors = operands()
    expected = attention(*tensors)
    given = [t.clone().requires_grad_() for t in tensors]
    assert attention(*given).requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = attention(*given)
        assert torch.equal(got, expected) and not got.requires_grad


@pytest.mark.parametrize("changes, error, message", [
    (dict(q1=torch.ones(2, 4, 16)), InputError, "q1: expected rank 4"),
    (dict(v=torch.ones(2, 2, 7, 32, dtype=torch.float64)), InputError, "v: expected float32, float16 or bfloat16"),
    (dict(k1=torch.ones(2, 2, 7, 15)), InputError, r"k1: expected shape \[B, Hk1, Tk, d\]"),
    (dict(lam=torch.ones(3)), InputError, "lam: expected a number or shape"),
    (dict(window=[1, 2, 3]), UsageError, r"window: expected \(left, right\)"),
    (dict(window=[-2, 0]), UsageError, "window: expected sizes from 0"),
    (dict(norm="layer"), UsageError, "norm: expected None or 'rms'"),
    (dict(kv_len=torch.tensor([1, -1])), InputError, "kv_len: expected 0 to"),
    (dict(q_segments=torch.zeros(2, 5, dtype=torch.int64)), UsageError, "segment_ids: expected "),
    (dict(target="gpu"), UsageError, "target"),
])
def test_errors(changes, error, message):
    names = ("q1", "k1", "q2", "k2", "v", "lam")
    given = dict(zip(names, operands())) | changes
    with pytest.raises(error, match=message):
        attention(*[given.pop(name) for name in names], **given)


def test_errors_while_tracing():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in operands()]
        assert attention(*fake).shape == (2, 4, 5, 32)
        with pytest.raises(InputError, match="k2: expected rank 4"):
            attention(*fake[:3], fake[3][0], *fake[4:])
        with pytest.raises(InputError, match="q2: expected float32, float16 or bfloat16 as all"):
            attention(*fake[:2], fake[2].half(), *fake[3:])


def test_the_result_aliases_nothing():
    tensors = operands()
    before = [t.clone() for t in tensors]
    first, second = attention(*tensors), attention(*tensors)
    assert first.untyped_storage().nbytes() == first.numel() * 4 and first.data_ptr() != second.data_ptr()
    first.fill_(7)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before)) and torch.equal(attention(*tensors), second)


def test_the_kernel_for_cuda_calls_for_its_device(monkeypatch):
    """There is no GPU here: which target the kernel asks for, and that PyTorch knows the kernel."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key("diffattn::attention", "CUDA")
    called = []
    monkeypatch.setattr(gradient, "attention", lambda *tensors, **options: called.append((tensors, options)))
    tensor = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda", index=3))
    op._run(tensor, 1, 2, 3, 4, 5, window=[1, -1], is_causal=True)
    op._run(tensor, 1, 2, 3, 4, 5, target="cuda:sm_90@3")
    assert called == [((tensor, 1, 2, 3, 4, 5), dict(window=(1, -1), segment_ids=None, target="cuda@3", is_causal=True, x=None)),
                      ((tensor, 1, 2, 3, 4, 5), dict(window=None, segment_ids=None, target="cuda:sm_90@3", x=None))]


def test_on_simulated_kernels():
    tensors = operands(torch.float16)
    got = attention(*tensors, is_causal=True, target="cuda-sim:sm_80")
    assert (got - attention(*tensors, is_causal=True)).abs().max() < 5e-3


def run(code, *packages):
    """A fresh process, where modules of these names cannot be imported."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in packages)
    return subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {PYTHON!r})\n{blocked}{code}"],
                          capture_output=True, text=True)


def test_when_it_is_there():
    done = run("import diffattn; assert 'torch' not in sys.modules; import torch; assert not hasattr(torch.ops.diffattn, 'attention')\n"
               "import diffattn.torch; print(torch.ops.diffattn.attention)")
    assert done.returncode == 0 and "diffattn.attention" in done.stdout, done.stderr
    done = run("import torch, diffattn; print(torch.ops.diffattn.attention)")
    assert done.returncode == 0 and "diffattn.attention" in done.stdout, done.stderr
    done = run("import diffattn; import diffattn.torch", "torch")
    assert done.returncode == 1 and "LibraryError: expected the package torch" in done.stderr and "pip install" in done.stderr


def test_an_old_torch(monkeypatch):
    for version in ("2.9.1", "unknown"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(LibraryError, match=f"expected torch 2.10 or later, but got {version}"):
            op._register()
    done = run("import torch; torch.__version__ = '2.9.1'; import diffattn\n"
               "assert not hasattr(torch.ops.diffattn, 'attention'); print(diffattn.attention)")
    assert done.returncode == 0, done.stderr
