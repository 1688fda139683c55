"""torch.nn.attention.flex_attention in modules that are compiled, against eager PyTorch: alone, and as the two maps of differential attention,
whose functions of scores and masks are then of the fused op."""
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import diffattn
from diffattn import runtime

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("programs"),
              pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:.*return_lse", "ignore::FutureWarning")]
DOCUMENTS = torch.stack([torch.arange(12) // 5, torch.arange(12) // 3])
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.02])
BY_DISTANCE = torch.randn(4, 23, generator=torch.Generator().manual_seed(1))


def causal(batch, head, query, key):
    return query >= key


def window(batch, head, query, key):
    return (query >= key) & (query - key <= 4)


def document(batch, head, query, key):
    return (DOCUMENTS[batch, query] == DOCUMENTS[batch, key]) & (query >= key)


def late(batch, head, query, key):
    """The first rows see nothing: their result is 0."""
    return (query >= key) & (query > 2)


def softcap(score, batch, head, query, key):
    return torch.tanh(score / 5) * 5


def alibi(score, batch, head, query, key):
    return score + SLOPES[head] * (key - query)


def by_distance(score, batch, head, query, key):
    return score + BY_DISTANCE[head][query - key + 11]


class Maps(nn.Module):
    """The attention of one pair of queries and keys (`count` 1), or the difference of two (`count` 2)."""

    def __init__(self, count, score=None, mask=None, **options):
        super().__init__()
        self.count, self.score, self.options = count, score, options
        self.mask = None if mask is None else create_block_mask(mask, 2, None, 12, 12, device="cpu")

    def forward(self, q, k, v):
        maps = [flex_attention(a, b, v, score_mod=self.score, block_mask=self.mask, **self.options)
                for a, b in zip(q.chunk(self.count, -1), k.chunk(self.count, -1))]
        return maps[0] - 0.4 * maps[1] if self.count == 2 else maps[0]


def tensors(keys=4, dtype=torch.float32, length=12, batch=2):
    make = torch.Generator().manual_seed(0)
    return [torch.randn(batch, heads, length, 16, generator=make).to(dtype) for heads in (4, keys, keys)]


KINDS = {"softcap": (softcap, None, "softcap = 5"), "causal": (None, causal, "{is_causal"), "window": (None, window, "window = array<i64: 4, -1>"),
         "document": (None, document, "q_segments"), "late": (None, late, "is_causal"), "alibi": (alibi, causal, "{is_causal"),
         "by distance": (by_distance, None, "bias(")}


class Each(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, q, k, v):
        """The parts' results, each for other queries: parts that share their scores are not fused."""
        return [part(q + number, k, v) for number, part in enumerate(self.parts)]


def test_two_maps_of_each_kind_are_one_op():
    module, args = Each([Maps(2, score, mask) for score, mask, _ in KINDS.values()]), tensors()
    compiled = diffattn.compile(module, args)
    torch.testing.assert_close(compiled(*args), module(*args), rtol=1e-4, atol=1e-5)
    raised = [line for line in runtime.emit(compiled.mlir, "raised").decode().splitlines() if " diffattn.attention " in line]
    for line, (_, _, text) in zip(raised, KINDS.values(), strict=True):
        assert text in line
    assert len(compiled.applied) == 2 * len(KINDS) and not compiled.diagnostics


def test_when_it_is_called():
    module, args = Each([Maps(1, *KINDS[kind][:2]) for kind in ("softcap", "document", "late", "by distance")] + [Maps(2, alibi, causal)]), tensors()
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(module, backend="diffattn")(*args), module(*args), rtol=1e-4, atol=1e-5)


def test_shared_keys_and_sums():
    module, args = Maps(1, softcap, late, enable_gqa=True, scale=0.3, return_lse=True), tensors(2, torch.bfloat16)
    args[0] = args[0].transpose(1, 2).contiguous().transpose(1, 2)
    for got, expected in zip(diffattn.compile(module, args)(*args), module(*args), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2, check_stride=True)


class Given(nn.Module):
    """Functions that read an argument, a parameter and a number of the module; the mask is made when it is called."""

    def __init__(self):
        super().__init__()
        self.slopes, self.limit = nn.Parameter(SLOPES.clone()), 3.0

    def forward(self, q, k, v, documents):
        mask = create_block_mask(lambda b, h, i, j: documents[b, i] == documents[b, j], 2, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh((s + self.slopes[h] * (i - j)) / self.limit) * self.limit, block_mask=mask)


def test_what_the_functions_read():
    module, args = Given(), tensors()
    with torch.no_grad():
        compiled = diffattn.compile(module, (*args, DOCUMENTS))
        for documents in (DOCUMENTS, DOCUMENTS.flip(0), DOCUMENTS * 0):
            torch.testing.assert_close(compiled(*args, documents), module(*args, documents), rtol=1e-4, atol=1e-5)
