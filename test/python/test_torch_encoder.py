"""Transformer encoders of PyTorch, which in inference are ops of their own, and their padding: what eager PyTorch computes by its fast path."""
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

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


def encoder(norm=None, nested=True, cls=nn.TransformerEncoder, **options):
    return cls(layer(**options), 2, norm=norm, enable_nested_tensor=nested).eval()


def tokens(batch=BATCH, count=TOKENS, dtype=torch.float32):
    return torch.randn(batch, count, WIDTH, generator=torch.Generator().manual_seed(count)).to(dtype)


def hidden(name, count=TOKENS):
    if LENGTHS[name] is None:
        return torch.tensor([[True] + [False] * (count - 1)] * BATCH)
    return torch.arange(count) >= torch.tensor(LENGTHS[name]).unsqueeze(1)


def same(got, want, tolerance=1e-4):
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


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
    compare(encoder(dtype=dtype), tokens(dtype=dtype), src_key_padding_mask=hidden("padded"), tolerance=tolerance)


@pytest.mark.parametrize("masks", [
    {"src_mask": CAUSAL, "is_causal": True},
    {"is_causal": True},  # a hint alone, which the fast path does not look at
    {"src_mask": CAUSAL, "src_key_padding_mask": torch.zeros(BATCH, TOKENS).masked_fill(hidden("padded"), -torch.inf)},
    {"src_mask": torch.rand(BATCH * 4, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.6},
    {"src_mask": torch.tensor([0.0, -1.0, 0.0, 2.0, 0.0]).expand(TOKENS, TOKENS)},  # of floats: the fast path asks whether they are 0
    {"src_key_padding_mask": hidden("padded")},  # a layer alone leaves padding what it becomes
    {"src_key_padding_mask": hidden("of_padding_alone")},  # NaN
])
def test_masks_of_a_layer(masks):
    got = compare(layer(), tokens(), **masks)
    assert got.isnan().any() == (masks.get("src_key_padding_mask") is not None and bool(masks["src_key_padding_mask"].bool().all(1).any()))


@pytest.mark.parametrize("norm, nested, norm_first", [(False, True, False), (True, True, False), (False, False, False), (True, True, True)])
def test_padding_becomes_zeros_where_eager_pytorch_leaves_it_out(norm, nested, norm_first, programs):
    """Whether it is left out follows from the mask of each call, and from what the encoder was made with."""
    module = encoder(nn.LayerNorm(WIDTH) if norm else None, nested, norm_first=norm_first)
    compiled = torch.compile(module, backend="diffattn")
    with torch.no_grad():
        for name in LENGTHS:
            got = compiled(tokens(), src_key_padding_mask=hidden(name))
            same(got, module(tokens(), src_key_padding_mask=hidden(name)))
            if name == "padded" and not norm:
                assert (got[hidden(name)] == 0).all() == nested
    assert len(programs) == 1


def test_any_sizes(programs):
    module = encoder()
    compiled = torch.compile(module, backend="diffattn")
    with torch.no_grad():
        for count in (5, 7, 9):
            same(compiled(tokens(count=count), src_key_padding_mask=hidden("padded", count)),
                 module(tokens(count=count), src_key_padding_mask=hidden("padded", count)))
    assert len(programs) == 2


class CallsItsLayers(nn.TransformerEncoder):
    """Without nested tensors."""

    def forward(self, src, src_key_padding_mask):
        for one in self.layers:
            src = one(src, src_key_padding_mask=src_key_padding_mask)
        return src


class AddsPlaces(nn.TransformerEncoder):
    def forward(self, src, **masks):
        return super().forward(src + torch.arange(src.shape[1]).unsqueeze(1) / 8, **masks)


class Several(nn.Module):
    """Encoders that Dynamo finds by a name, in a list, and twice."""

    def __init__(self):
        super().__init__()
        self.by_name = nn.ModuleDict({"first": encoder(cls=AddsPlaces)})
        self.listed = [encoder(nested=False), encoder(nn.LayerNorm(WIDTH))]

    def forward(self, x, mask):
        for one in (self.by_name["first"], *self.listed, self.by_name["first"]):
            x = one(x, src_key_padding_mask=mask)
        return x


@pytest.mark.parametrize("module", [encoder(cls=CallsItsLayers), encoder(cls=AddsPlaces), Several()], ids=["layers", "super", "several"])
def test_encoders_of_ones_own(module):
    x, mask = tokens(), hidden("padded")
    compare(module, x, mask) if isinstance(module, Several) else compare(module, x, src_key_padding_mask=mask)


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


@pytest.mark.parametrize("module", [encoder(nn.LayerNorm(WIDTH)), encoder(nested=False), encoder(cls=CallsItsLayers), Several()],
                         ids=["norm", "not_nested", "layers", "several"])
def test_padding_ahead_of_time(module):
    def masks(name):
        return (None, hidden(name)) if type(module) is nn.TransformerEncoder else (hidden(name),)

    compiled = diffattn.compile(module, (tokens(), *masks("padded")))
    with torch.no_grad():
        for name in ("padded", "in_front", "whole"):
            same(compiled(tokens(), *masks(name)), module(tokens(), *masks(name)))
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())


def test_a_whole_transformer():
    torch.manual_seed(0)
    module = nn.Transformer(WIDTH, 4, 1, 1, 32, batch_first=True).eval()
    compare(module, tokens(), tokens(count=4), src_key_padding_mask=hidden("padded"), memory_key_padding_mask=hidden("padded"),
            tgt_mask=CAUSAL[:4, :4], tgt_is_causal=True)


class Attention(nn.Module):
    """`nn.MultiheadAttention`, and its fast path by itself, which Dynamo does not take."""

    def __init__(self, is_fast):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.is_fast = nn.MultiheadAttention(WIDTH, 4, batch_first=True), is_fast

    def forward(self, query, key, value, mask, need_weights, average):
        one = self.attention
        if not self.is_fast:
            return one(query, key, value, key_padding_mask=mask, need_weights=need_weights, average_attn_weights=average)
        return torch._native_multi_head_attention(query, key, value, one.embed_dim, one.num_heads, one.in_proj_weight, one.in_proj_bias,
                                                  one.out_proj.weight, one.out_proj.bias, mask, need_weights, average, 1)


@pytest.mark.parametrize("is_fast, crossed, need_weights, average", [(False, False, True, True), (True, False, True, True), (True, False, False, True),
                                                                     (True, True, True, False)])
def test_attention_of_many_heads(is_fast, crossed, need_weights, average):
    x, y = tokens(), tokens().flip(1)
    compare(Attention(is_fast).eval(), x, y if crossed else x, y if crossed else x, hidden("padded"), need_weights, average)
