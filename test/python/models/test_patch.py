"""diffattn.patch: models of transformers and timm whose attention is torch.ops.diffattn.attention, against themselves."""
import copy
import re
import warnings

import pytest
import timm
import torch
import transformers
from checkpoints import assert_near
from timm.layers.diff_attention import DiffAttention
from timm.models.vision_transformer import DiffParallelScalingBlock
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

import diffattn
from diffattn.errors import UsageError

pytestmark = pytest.mark.oracle
TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 11}
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def randomized(model):
    """Wide enough that attention is far from uniform; norms that are not all ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1 if "norm" in name else 0, 0.3 if parameter.ndim == 1 else 0.2, generator=generator)
    return model.eval()


def diffllama(**changes):
    return randomized(transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**(TINY | changes))))


def vit(name="vit_dwee_patch16_reg1_gap_256", **changes):
    return randomized(timm.create_model(name, **(VIT | changes)))


@torch.no_grad()
def steps(model, ids, mask, static, count=3):
    """Logits of a prefill and of greedy steps with a cache."""
    cache = transformers.StaticCache(model.config, max_cache_len=16) if static else transformers.DynamicCache(config=model.config)
    result = []
    for _ in range(count):
        logits = model(ids, attention_mask=mask, past_key_values=cache, use_cache=True).logits
        result.append(logits[:, -1].float())
        ids = result[-1].argmax(-1)[:, None]
        mask = torch.cat([mask, torch.ones(len(ids), 1, dtype=mask.dtype)], 1)
    return torch.stack(result)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("implementation, dtype, static", [
    ("eager", torch.float32, False), ("sdpa", torch.float32, False), ("sdpa", torch.float32, True), ("sdpa", torch.bfloat16, False),
    ("eager", torch.float16, True)])
def test_diffllama(implementation, dtype, static):
    model = diffllama(attn_implementation=implementation, num_key_value_heads=2 if static else 4, attention_bias=static).to(dtype)
    ids = torch.tensor([[0, 0, 5, 9, 11], [3, 7, 2, 8, 4]])
    for prompt, mask in ((ids[1:], torch.ones(1, 5, dtype=torch.int64)), (ids, (ids != 0).long())):
        expected = steps(model, prompt, mask, static)
        assert diffattn.patch(model) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
        before = calls()
        got = steps(model, prompt, mask, static)
        assert calls() > before
        diffattn.unpatch(model)
        assert_near(got, expected, BOUNDS[dtype])


def calls():
    """How many parallel loops compiled code has run: it moves only if the op does the work."""
    from diffattn.runtime import counters

    return counters().parallel_calls


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_output_attentions_is_the_difference(implementation):
    """Eager's weights are those of map 1 of all heads and then of map 2; with a mask of padding, and in a step with a cache."""
    model = diffllama(attn_implementation="eager")
    ids, mask = torch.tensor([[0, 0, 5, 9, 11], [3, 7, 2, 8, 4]]), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])

    def run():
        cache = transformers.DynamicCache(config=model.config)
        first = model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, output_attentions=True).attentions
        mask_ = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], 1)
        return first, model(ids[:, :1] + 4, attention_mask=mask_, past_key_values=cache, use_cache=True, output_attentions=True).attentions

    expected = run()
    diffattn.patch(model)
    model.set_attn_implementation(implementation)
    got = run()
    for one, other in zip(got, expected):
        assert len(one) == len(other) == 2
        for layer, (weights, eager) in enumerate(zip(one, other)):
            lam = model.model.layers[layer].self_attn._lambda(torch.float32)
            a1, a2 = eager.chunk(2, dim=1)
            some = slice(2 if weights.shape[2] > 1 else 0, None)  # queries of padding see no key
            torch.testing.assert_close(weights[0, :, some], (a1 - lam * a2)[0, :, some], rtol=0, atol=1e-5)
            torch.testing.assert_close(weights[1], (a1 - lam * a2)[1], rtol=0, atol=1e-5)
    assert model(ids, attention_mask=mask).attentions is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_continuous_batching(implementation, monkeypatch):
    """Chunks of prompts and steps of several requests in one call a layer give the tokens of each prompt alone. Unpatched, transformers does
    so from 5.24 on: before, the module writes its cache once for each half of the values."""
    model = diffllama(attn_implementation=implementation)
    prompts = [[5, 9, 11], list(range(2, 19)), [7]]
    expected = [model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)[0, len(prompt):].tolist() for prompt in prompts]
    diffattn.patch(model)
    attention, packed = torch.ops.diffattn.attention, []
    monkeypatch.setattr(torch.ops.diffattn, "attention", lambda *given, **options: packed.append(options["cu_seqlens_q"]) or attention(*given, **options))
    sizes = transformers.ContinuousBatchingConfig(page_size=8, num_blocks=16, max_batch_tokens=12, max_requests_per_batch=4)
    done = model.generate_batch(inputs=prompts, continuous_batching_config=sizes, warmup=False,
                                generation_config=transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0))
    assert [done[name].generated_tokens for name in sorted(done)] == expected
    assert len(packed) % 2 == 0 and max(len(starts) for starts in packed) > 2


def test_what_continuous_batching_may_not_have():
    model = diffllama(attn_implementation="eager")
    diffattn.patch(model)
    layer = model.model.layers[0].self_attn
    given = {"hidden_states": torch.zeros(1, 1, 32), "position_embeddings": (torch.ones(1, 1, 4), torch.zeros(1, 1, 4))}
    cache = object.__new__(PagedAttentionCache)
    with pytest.raises(UsageError, match="block_table: expected none in a patched model, .* set max_blocks_per_request=0"):
        layer(**given, cache=cache, block_table=torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(UsageError, match="output_attentions: expected False under continuous batching"):
        layer(**given, cache=cache, output_attentions=True)
    model.set_attn_implementation("paged|eager")
    with pytest.raises(UsageError, match="attn_implementation: expected eager or sdpa in a call without the cache .* but got 'paged|eager'"):
        layer(**given)


def test_generate_and_state_stay():
    model = diffllama()
    names, copied = list(model.state_dict()), copy.deepcopy(model)
    ids = torch.tensor([[5, 9, 11, 2]])
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)
    diffattn.patch(model)
    assert list(model.state_dict()) == names and isinstance(model.model.layers[0].self_attn, DiffLlamaAttention)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), expected)
    assert torch.equal(copy.deepcopy(model).generate(ids, max_new_tokens=12, do_sample=False), expected)
    copied.load_state_dict(model.state_dict())


@pytest.mark.parametrize("make", [lambda: (diffllama(), torch.tensor([[5, 9, 11, 2]])),
                                  lambda: (vit(qk_norm=True), torch.randn(2, 3, 32, 32))], ids=["diffllama", "timm"])
@torch.no_grad()
def test_autocast(make):
    model, inputs = make()
    logits = lambda: model(inputs).logits if inputs.ndim == 2 else model(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        expected = logits().float()
        diffattn.patch(model)
        assert_near(logits().float(), expected, BOUNDS[torch.bfloat16])


@torch.no_grad()
def test_one_graph():
    model = diffllama()
    ids = torch.tensor([[5, 9, 11, 2]])
    expected = model(ids, use_cache=False).logits
    diffattn.patch(model)
    graphs = []

    def keep(module, _):
        graphs.append(module)
        return module.forward

    got = torch.compile(model, fullgraph=True, backend=keep)(ids, use_cache=False).logits
    assert_near(got, expected, 2e-5)
    targets = [node.target for node in graphs[0].graph.nodes]
    assert len(graphs) == 1 and sum(t in (torch.ops.diffattn.attention, torch.ops.diffattn.attention.default) for t in targets) == 2


@pytest.mark.parametrize("name, changes, dtype", [("vit_dwee_patch16_reg1_gap_256", {}, torch.float32),
                                                  ("vit_dwee_patch16_reg1_gap_256", {}, torch.bfloat16),
                                                  ("vit_dlittle_patch16_reg1_gap_256", {"num_heads": 2}, torch.float32),
                                                  ("vit_dpwee_patch16_reg1_gap_256", {}, torch.float32),
                                                  ("vit_dpwee_patch16_reg1_gap_256", {"qkv_bias": False}, torch.float32)])
@torch.no_grad()
def test_timm(name, changes, dtype):
    model, images = vit(name, **changes).to(dtype), torch.randn(2, 3, 32, 32).to(dtype)
    expected = model(images).float()
    names = diffattn.patch(model)
    assert len(names) == 2 and all(isinstance(model.get_submodule(n), (DiffAttention, DiffParallelScalingBlock)) for n in names)
    assert_near(model(images).float(), expected, BOUNDS[dtype])
    assert diffattn.unpatch(model) == names and torch.equal(model(images).float(), expected)


@pytest.mark.parametrize("options", [dict(is_causal=True), dict(attn_mask=torch.rand(6, 6) > 0.2),
                                     dict(attn_mask=torch.randn(2, 1, 6, 6))], ids=["causal", "mask", "bias"])
@pytest.mark.parametrize("arguments", [dict(qk_norm=True, scale_norm=True), dict(dual_lambda=True, qkv_bias=True)],
                         ids=["norms", "dual"])
@torch.no_grad()
def test_timm_module(options, arguments):
    module, x = randomized(DiffAttention(24, num_heads=3, depth=2, **arguments)), torch.randn(2, 6, 24)
    expected = module(x, **options)
    assert diffattn.patch(module) == [""]
    assert_near(module(x, **options), expected, 2e-5)


def tensors_of_a_call(model, count=4):
    """Tensors that a layer hands to its attention module: hidden states, and cosines and sines."""
    hidden = torch.randn(1, count, model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    return hidden, model.model.rotary_emb(hidden, torch.arange(count)[None])


@torch.no_grad()
def test_both_names_of_the_cache():
    """Releases before 5.24 hand over `past_key_values`, later ones `cache`: each is the cache, in whatever release."""
    model = diffllama()
    results = []
    for name in ("cache", "past_key_values", None):
        cache, (hidden, positions) = transformers.DynamicCache(config=model.config), tensors_of_a_call(model)
        if not results:  # the module itself, by the name that its release has
            results.append(model.model.layers[0].self_attn(hidden, positions, None, cache)[0])
            diffattn.patch(model)
            cache = transformers.DynamicCache(config=model.config)
        attention = model.model.layers[0].self_attn
        first = (cache,) if name is None else ()
        keywords = {} if name is None else {name: cache}
        results.append(attention(hidden, positions, None, *first, **keywords)[0])
        step = [tensor[:, -1:] for tensor in (hidden, *positions)]
        attention(step[0], tuple(step[1:]), None, *first, **keywords)
        assert cache.get_seq_length() == 5
    for result in results[1:]:
        assert_near(result, results[0], 2e-5)
    with pytest.raises(UsageError, match="cache: expected one cache, but got cache and past_key_values"):
        attention(hidden, positions, None, cache=cache, past_key_values=transformers.DynamicCache(config=model.config))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_keywords(implementation):
    """Neutral ones pass, with the result of the replaced class; those that would change it are named, with the release."""
    model = diffllama(attn_implementation=implementation)
    (hidden, positions), bias = tensors_of_a_call(model), torch.randn(1, 8, 4, 4)
    neutral = dict(position_ids=torch.arange(4)[None], cache_position=torch.arange(4), use_cache=True, num_items_in_batch=4,
                   position_bias=None, cu_seq_lens_q=torch.tensor([0, 4]), nothing_knows_this=3, output_attentions=False)
    cases = [{}, neutral, {"is_causal": False}, {"is_causal": True}]
    expected = [model.model.layers[0].self_attn(hidden, positions, **case)[0] for case in cases]
    diffattn.patch(model)
    attention = model.model.layers[0].self_attn
    for case, result in zip(cases, expected):
        assert_near(attention(hidden, positions, **case)[0], result, 2e-5)
    assert torch.equal(expected[2], expected[3]) == (implementation == "eager")
    if implementation == "sdpa":
        for name, value in (("position_bias", bias), ("softcap", 5.0)):
            with pytest.raises(UsageError, match=f"{name}: expected none in a patched model, because it changes .* in transformers {transformers.__version__}"):
                attention(hidden, positions, **{name: value})
    else:
        assert_near(attention(hidden, positions, position_bias=bias)[0], expected[0], 2e-5)  # ignored by what was replaced, too


@pytest.mark.parametrize("make, library", [(diffllama, transformers), (vit, timm)], ids=["transformers", "timm"])
@torch.no_grad()
def test_releases_that_were_not_tried(make, library, monkeypatch):
    """One warning; and what a layer hands over that no tried release knows is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diffattn.patch(make())
    model = make()
    for name in diffattn.patch(model):
        monkeypatch.setattr(type(model.get_submodule(name)), "version", "99.1.0")
    diffattn.unpatch(model)
    with pytest.warns(UserWarning) as warned:
        names = diffattn.patch(model)
    assert len(names) == 2 and len(warned) == 1
    assert re.match(rf"{library.__name__} 99.1.0 was not tried with diffattn.patch, as {library.__name__} \S+ to \S+ were", str(warned[0].message))
    if library is transformers:
        hidden, positions = tensors_of_a_call(model)
        attention = model.model.layers[0].self_attn
        attention(hidden, positions, position_ids=None, use_cache=True, nothing_knows_this=None)
        with pytest.raises(UsageError, match="nothing_knows_this: expected none in a patched model, because it may change .* in transformers 99.1.0"):
            attention(hidden, positions, nothing_knows_this=3)


@pytest.mark.parametrize("make, replaced", [(diffllama, DiffLlamaAttention), (vit, DiffAttention)], ids=["transformers", "timm"])
def test_forwards_that_are_unknown(make, replaced, monkeypatch):
    """A parameter by a new name, or one more, could mean anything: nothing is replaced."""
    model = make()
    monkeypatch.setattr(replaced, "forward", lambda self, hidden_states, new_name=None: None)
    with pytest.raises(UsageError, match=rf"to take \(.*as {replaced.__name__} does in .* takes \(hidden_states, new_name\)"):
        diffattn.patch(model)
    assert not any(hasattr(type(module), "unfused") for module in model.modules())


def test_errors():
    with pytest.raises(UsageError, match="model: expected a torch.nn.Module, but got 3"):
        diffattn.patch(3)
    with pytest.raises(UsageError, match="expected a module with DiffLlamaAttention of transformers or DiffAttention of timm or "
                                         "DiffParallelScalingBlock of timm that is not patched yet, but Linear has none"):
        diffattn.patch(torch.nn.Linear(2, 2))
    model = diffllama()
    with pytest.raises(UsageError, match="expected a module that was patched, but DiffLlamaForCausalLM has none"):
        diffattn.unpatch(model)
    layers = [layer.self_attn for layer in model.model.layers]
    layers[1].groupnorm = torch.nn.LayerNorm(8)
    with pytest.raises(UsageError, match=r"'model.layers.1.self_attn' to have a groupnorm of torch.nn.RMSNorm"):
        diffattn.patch(model)
    layers[1].groupnorm = layers[0].groupnorm
    layers[1].forward = layers[1].forward
    with pytest.raises(UsageError, match=r"'model.layers.1.self_attn' has one of its own"):
        diffattn.patch(model)
    assert type(layers[0]) is DiffLlamaAttention  # nothing was replaced
    del layers[1].forward
    diffattn.patch(model)
    with pytest.raises(UsageError, match="that is not patched yet"):
        diffattn.patch(model)
    subclass = type("Special", (DiffAttention,), {})
    with pytest.raises(UsageError, match="has none: 'the model' is a Special, a subclass of DiffAttention"):
        diffattn.patch(subclass(24, num_heads=3))


def test_calls_that_are_refused():
    model = diffllama()
    diffattn.patch(model)
    with torch.no_grad():
        model.config._attn_implementation = "flex_attention"
        with pytest.raises(UsageError, match="attn_implementation: expected eager, sdpa, paged\\|eager in a patched model, but got 'flex_attention'"):
            model.model.layers[0].self_attn(torch.zeros(1, 2, 32), (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)))
    image = vit()
    diffattn.patch(image)
    attention = image.get_submodule("blocks.0.attn")
    attention.attn_drop_p = 0.1
    with pytest.raises(UsageError, match="attn_drop: expected 0 in a patched model in training, because .*, but got 0.1"):
        attention.train()(torch.zeros(1, 4, 48))
    module = model.model.layers[0].self_attn.train()
    module.attention_dropout, model.config._attn_implementation = 0.2, "sdpa"
    with pytest.raises(UsageError, match="attention_dropout: expected 0 in a patched model in training, because .*, but got 0.2"):
        module(*tensors_of_a_call(model))
    module.eval()(*tensors_of_a_call(model))
