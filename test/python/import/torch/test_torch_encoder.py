"""Transformer encoders of PyTorch, whose layers are ops of their own in inference: what eager PyTorch computes by its fast path."""
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

import diffattn

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs"),
              pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")]
BATCH, TOKENS, WIDTH = 3, 5, 16
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)
#: By name, how many tokens each sequence has before padding; None: padding in front of the others.
LENGTHS = {"padded": (3, 1, 5), "in_front": None, "of_padding_alone": (3, 0, 5), "whole": (5, 5, 5)}


def layer(**options):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(WIDTH, 4, 32, **{"batch_first": True, **options}).eval()


def encoder(norm=None, **options):
    return nn.TransformerEncoder(layer(**options), 2, norm=norm).eval()


def tokens(batch=BATCH, count=TOKENS, dtype=torch.float32):
    return torch.randn(batch, count, WIDTH, generator=torch.Generator().manual_seed(count)).to(dtype)


def hidden(name, count=TOKENS):
    if LENGTHS[name] is None:
        return torch.tensor([[True] + [False] * (count - 1)] * BATCH)
    return torch.arange(count) >= torch.tensor(LENGTHS[name]).unsqueeze(1)


def same(got, want, tolerance=1e-4):
    """But for tokens that see none, which are NaN in eager PyTorch: fused attention gives zeros there."""
    for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
        unseen = other.isnan()
        assert not one.isnan().any()
        torch.testing.assert_close(one[~unseen], other[~unseen], rtol=tolerance, atol=tolerance)


def compare(module, *args, tolerance=1e-4, **kwargs):
    """By one graph, with the fast path of eager PyTorch."""
    counters.clear()
    with torch.no_grad():
        got = torch.compile(module, backend="diffattn")(*args, **kwargs)
        same(got, module(*args, **kwargs), tolerance)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    return got


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}, {"batch_first": False},
                                     {"activation": nn.SiLU()}])
def test_layers(options):
    compare(layer(**options), 4 * tokens())


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 6e-2), (torch.float16, 1e-2)])
def test_narrow_types(dtype, tolerance):
    compare(layer(dtype=dtype), tokens(dtype=dtype), src_key_padding_mask=hidden("padded"), tolerance=tolerance)


@pytest.mark.parametrize("masks", [
    {"src_mask": CAUSAL, "is_causal": True},
    {"is_causal": True},  # a hint alone, which the fast path does not look at
    {"src_mask": CAUSAL, "src_key_padding_mask": torch.zeros(BATCH, TOKENS).masked_fill(hidden("padded"), -torch.inf)},
    {"src_mask": torch.rand(BATCH * 4, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.6},
    {"src_mask": torch.tensor([0.0, -1.0, 0.0, 2.0, 0.0]).expand(TOKENS, TOKENS)},  # floats: the fast path asks whether they are 0
    {"src_key_padding_mask": hidden("padded")},  # a layer alone leaves padding what it becomes
    {"src_key_padding_mask": hidden("of_padding_alone")},
])
def test_masks_of_a_layer(masks):
    compare(layer(), tokens(), **masks)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_gives_what_its_layers_give(norm_first, programs):
    """Also at padding, where eager PyTorch may put zeros, as torch.compile with any backend does."""
    module = encoder(nn.LayerNorm(WIDTH), norm_first=norm_first)
    compiled = torch.compile(module, backend="diffattn")
    with torch.no_grad():
        for name in LENGTHS:
            got, want = compiled(tokens(), src_key_padding_mask=hidden(name)), module(tokens(), src_key_padding_mask=hidden(name))
            same(got[~hidden(name)], want[~hidden(name)])
            x = tokens()
            for one in module.layers:
                x = one(x, src_key_padding_mask=hidden(name))
            same(got, module.norm(x))
    assert len(programs) == 1


def test_any_sizes(programs):
    module = encoder()
    compiled = torch.compile(module, backend="diffattn")
    with torch.no_grad():
        for count in (5, 7, 9):
            mask = hidden("padded", count)
            got, want = (call(tokens(count=count), src_key_padding_mask=mask) for call in (compiled, module))
            same(got[~mask], want[~mask])
    assert len(programs) == 2


def test_padding_without_the_fast_path():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        module = encoder()
        got = compare(module, tokens(), src_key_padding_mask=hidden("padded"))
        assert got[hidden("padded")].all()
        with torch.no_grad():
            same(diffattn.compile(module, (tokens(), None, hidden("padded")))(tokens(), None, hidden("padded")), got)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_whole_transformer():
    torch.manual_seed(0)
    module = nn.Transformer(WIDTH, 4, 1, 1, 32, batch_first=True).eval()
    compare(module, tokens(), tokens(count=4), src_key_padding_mask=hidden("padded"), memory_key_padding_mask=hidden("padded"),
            tgt_mask=CAUSAL[:4, :4], tgt_is_causal=True)


@pytest.mark.parametrize("crossed", [False, True])
def test_attention_of_many_heads(crossed):
    torch.manual_seed(0)
    x, y = tokens(), tokens().flip(1)
    compare(nn.MultiheadAttention(WIDTH, 4, batch_first=True).eval(), x, y if crossed else x, y if crossed else x, key_padding_mask=hidden("padded"))
