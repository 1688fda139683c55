"""Whole models of transformers and timm by diffattn.compile and torch.compile: the numbers, and that each attention was raised."""
import copy
import time

import pytest
import torch
from torch._dynamo.utils import counters

import diffattn
from diffattn.torch import program

pytestmark = pytest.mark.oracle

#: Relative to the largest value.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
LAYERS = 2


def diffllama(attention, dtype=torch.float32, key_heads=2, layers=LAYERS):
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    torch.manual_seed(0)
    config = DiffLlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
                             num_key_value_heads=key_heads, max_position_embeddings=128, attn_implementation=attention)
    return DiffLlamaForCausalLM(config).eval().to(dtype)


def ids(batch, length):
    return torch.randint(0, 96, (batch, length), generator=torch.Generator().manual_seed(batch * 1000 + length))


def assert_near(got, want):
    assert got.shape == want.shape and got.dtype == want.dtype
    error, scale = (got.double() - want.double()).abs().max(), want.double().abs().max()
    assert error <= TOLERANCE[want.dtype] * scale, f"error {error:.3g} at magnitude {scale:.3g}"


def assert_raised(compiled, count=LAYERS):
    assert compiled.diagnostics == []
    assert sum(d.name == "Raised" for d in compiled.applied) == count, [str(d) for d in compiled.applied]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("attention, dtype, dynamic", [
    ("eager", torch.float32, True), ("sdpa", torch.float32, True), ("eager", torch.bfloat16, False), ("sdpa", torch.bfloat16, True),
    ("sdpa", torch.float16, False),
])
def test_diffllama_is_exported(attention, dtype, dynamic):
    layers = LAYERS if dtype == torch.float32 else 1
    model = diffllama(attention, dtype, layers=layers)
    sizes = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", min=2, max=100)}
    compiled = diffattn.compile(model, (ids(2, 24),), {"use_cache": False}, dynamic_shapes=({"input_ids": sizes, "use_cache": None} if dynamic else None))
    assert_raised(compiled, layers)
    for shape in [(2, 24)] + [(1, 2), (3, 50), (1, 70)] * dynamic:
        with torch.no_grad():
            want, got = model(ids(*shape), use_cache=False), compiled(ids(*shape), use_cache=False)
        assert type(got) is type(want)
        assert_near(got.logits, want.logits)


def test_padding_is_masked():
    """A mask of the tokens is a second argument, and hides keys."""
    model, mask = diffllama("sdpa"), torch.ones(2, 24, dtype=torch.int64)
    mask[0, :5] = 0
    compiled = diffattn.compile(model, (ids(2, 24), mask), {"use_cache": False})
    assert_raised(compiled)
    with torch.no_grad():
        want, got = (call(ids(2, 24), mask, use_cache=False).logits for call in (model, compiled))
    assert_near(got[:, 5:], want[:, 5:])


def test_a_vision_transformer_of_timm():
    import timm
    from timm.layers import DiffAttention

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=2, num_classes=10,
                              attn_layer=DiffAttention).eval()
    image = torch.randn(2, 3, 32, 32)
    compiled = diffattn.compile(model, (image,))
    assert_raised(compiled)
    with torch.no_grad():
        assert_near(compiled(image), model(image))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attention, key_heads, cache, graphs", [("eager", 4, None, 3), ("sdpa", 2, "static", 2)])
def test_generate_gives_the_same_tokens(attention, key_heads, cache, graphs, programs):
    """Prefill, and steps: with a cache that grows, the second step makes its size one of any."""
    model = diffllama(attention, key_heads=key_heads)
    options = dict(do_sample=False, max_new_tokens=64, min_new_tokens=64, pad_token_id=0, cache_implementation=cache)
    want = model.generate(ids(1, 9), **options)
    counters.clear()
    model.compile(backend="diffattn")
    assert torch.equal(model.generate(ids(1, 9), **options), want)
    assert len(programs) == graphs and counters["stats"]["unique_graphs"] == graphs and not counters["graph_break"]
    for one in programs:
        assert_raised(one)


def test_many_layers_are_compiled_in_seconds(monkeypatch, tmp_path, full):
    """From the graph to what can be called: anew, and from the cache."""
    torch._dynamo.reset()
    seconds, init = [], program.GraphProgram.__init__

    def timed(self, prepared, *args, **options):
        twice = prepared, copy.copy(prepared)
        twice[1].module = copy.deepcopy(prepared.module)  # lowering changes it
        for one in twice:
            begin = time.perf_counter()
            init(self, one, *args, **options | {"cache": tmp_path})
            seconds.append(time.perf_counter() - begin)

    monkeypatch.setattr(program.GraphProgram, "__init__", timed)
    model = diffllama("sdpa", layers=16 if full else 6)
    compiled = torch.compile(model, backend="diffattn")
    with torch.no_grad():
        assert_near(compiled(ids(1, 9), use_cache=False).logits, model(ids(1, 9), use_cache=False).logits)
    anew, kept = seconds
    assert anew < 20 and kept < 1


@pytest.mark.long  # sizes that are symbols of Dynamo: test_torch_family.py
def test_dynamo_with_two_sizes(programs):
    """Batch and length are symbols of the graph."""
    model = diffllama("sdpa")
    compiled = torch.compile(model, backend="diffattn", dynamic=True)
    with torch.no_grad():
        for shape in ((2, 24), (3, 50), (2, 7)):
            assert_near(compiled(ids(*shape), use_cache=False).logits, model(ids(*shape), use_cache=False).logits)
    assert len(programs) == 1
    assert_raised(programs[0])


def assert_fused(compiled, count=LAYERS):
    """The operator is the op of the dialect: none had to be found, and each is a kernel."""
    assert compiled.mlir.count(" call @diffattn_attention_") == count and compiled.diagnostics == []
    assert [d.name for d in compiled.applied] == ["SelectSchedule"] * count, [str(d) for d in compiled.applied]


def test_a_patched_diffllama_is_exported():
    model = diffllama("eager", torch.bfloat16)
    with torch.no_grad():
        wants = {shape: model(ids(*shape), use_cache=False).logits for shape in [(2, 24), (1, 2), (3, 50)]}
    diffattn.patch(model)
    sizes = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", min=2, max=100)}
    compiled = diffattn.compile(model, (ids(2, 24),), {"use_cache": False}, dynamic_shapes={"input_ids": sizes, "use_cache": None})
    assert_fused(compiled)
    with torch.no_grad():
        for shape, want in wants.items():
            assert_near(compiled(ids(*shape), use_cache=False).logits, want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cache, graphs", [(None, 3), ("static", 2)])
def test_a_patched_diffllama_generates_the_same_tokens(cache, graphs, programs):
    model = diffllama("sdpa")
    options = dict(do_sample=False, max_new_tokens=12, min_new_tokens=12, pad_token_id=0, cache_implementation=cache)
    want = model.generate(ids(2, 9), **options)
    diffattn.patch(model)
    counters.clear()
    model.compile(backend="diffattn")
    assert torch.equal(model.generate(ids(2, 9), **options), want)
    assert len(programs) == graphs and not counters["graph_break"]
    for one in programs:
        assert_fused(one)


def test_a_patched_vision_transformer():
    import timm
    from timm.layers import DiffAttention

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=2, num_classes=10,
                              attn_layer=DiffAttention).eval()
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        want = model(image)
    diffattn.patch(model)
    compiled = diffattn.compile(model, (image,))
    assert_fused(compiled)
    with torch.no_grad():
        assert_near(compiled(image), want)
