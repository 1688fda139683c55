"""The call of a layer's step against `diffattn.attention`, on steps without an engine: results, what is stored where, and what is refused."""
import dataclasses

import pytest
import torch
from test_refused import impl

import diffattn
from diffattn.errors import DiffAttnError, UsageError

PAGES, ROWS, WIDTH, SIGNALS = 12, 16, 32, 4
STYLES = {
    "two keys": ({"noises": 4, "num_kv_heads": 4}, {"norm": "rms", "out_scale": 0.75}),
    "a weight and groups": ({"noises": 2, "num_kv_heads": 2}, {"norm": "rms", "norm_weight": None, "out_scale": 0.5}),
    "shared keys, lambda by token": ({"noises": 4, "num_kv_heads": 2, "shares_keys": True}, {"lam_activation": "sigmoid"}),
}


class Step:
    """Requests with 5, 20 and 33 keys, of which `queries` of each are new, in pages whose free rows are NaN."""

    def __init__(self, monkeypatch, style, dtype=torch.float32, queries=1):
        from diffattn.vllm import backend

        self.random = torch.Generator().manual_seed(queries)
        sizes, options = STYLES[style]
        options = options | ({"norm_weight": 1 + self.rows(2 * WIDTH)} if "norm_weight" in options else {})
        self.layer = impl(monkeypatch, head_size=WIDTH, signals=SIGNALS, scale=WIDTH**-0.5, options=options, **sizes)
        self.tokens, key_heads = 3 * queries, sizes["num_kv_heads"]
        self.lengths, self.table = torch.tensor([5, 20, 33], dtype=torch.int32), torch.tensor([[3, 0, 9], [7, 1, 2], [4, 11, 5]], dtype=torch.int32)
        self.cache = torch.full((PAGES, key_heads, ROWS, 2 * WIDTH), float("nan"), dtype=dtype)
        self.positions = [torch.arange(length) for length in self.lengths]
        self.slots = [row[place // ROWS].long() * ROWS + place % ROWS for row, place in zip(self.table, self.positions)]
        keys, values = self.layer._pages(self.cache)
        for slots in self.slots:
            for pages in (keys, values):
                pages.transpose(1, 2)[slots // ROWS, slots % ROWS] = self.rows(len(slots), *pages.shape[1::2]).to(dtype)
        # Rows of the projection of queries, keys and values, as a layer gives them.
        widths = [(SIGNALS + self.layer.noises) * WIDTH, key_heads * WIDTH, key_heads * WIDTH]
        self.query, self.key, self.value = self.rows(self.tokens, sum(widths)).to(dtype).split(widths, 1)
        self.logits = self.rows(self.tokens, SIGNALS) if "lam_activation" in options else None
        self.layer.lam = None if self.logits is not None else torch.tensor(0.3)
        starts = (torch.arange(4) * queries).to(torch.int32)
        self.data = backend.Metadata(self.tokens, torch.cat([slots[-queries:] for slots in self.slots]), queries == 1, starts, self.lengths, self.table)

    def rows(self, *shape):
        return torch.randn(*shape, generator=self.random)

    def call(self, layer=None, **changes):
        output = torch.empty(self.tokens, SIGNALS * self.layer.value_size, dtype=self.query.dtype)
        data = dataclasses.replace(self.data, **changes) if changes else self.data
        return (layer or self.layer).forward(None, self.query, self.key, self.value, self.cache, data, output, self.logits)

    def expected(self, layer):
        """The result of each request alone, from the cache as the step left it, which has the new keys and values."""
        pages = [part.transpose(1, 2) for part in layer._pages(self.cache)]
        results, heads = [], layer.key_value_heads
        for number, slots in enumerate(self.slots):
            part = slice(*self.data.query_starts[number:number + 2].tolist())
            new = slots[-(part.stop - part.start):]
            for kept, given in zip(pages, (self.key, self.value)):
                assert torch.equal(kept[new // ROWS, new % ROWS].flatten(1), given[part])
            query = self.query[part].unflatten(1, (-1, WIDTH)).transpose(0, 1)[None]
            keys, values = (kept[slots // ROWS, slots % ROWS].transpose(0, 1)[None] for kept in pages)
            lam = layer.lam if self.logits is None else self.logits[part][None]
            results.append(diffattn.attention(query[:, :SIGNALS], keys[:, :heads], query[:, SIGNALS:], keys[:, -heads:], values, lam, **layer.options)[0])
        return torch.cat([result.transpose(0, 1).flatten(1) for result in results])


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("style", STYLES)
def test_results(monkeypatch, style, queries):
    step = Step(monkeypatch, style, queries=queries)
    assert torch.allclose(step.call(), step.expected(step.layer), rtol=1e-5, atol=1e-5)


def test_bfloat16(monkeypatch):
    step = Step(monkeypatch, "two keys", torch.bfloat16)
    assert torch.allclose(step.call().float(), step.expected(step.layer).float(), rtol=2e-2, atol=2e-2)


def test_layers_of_a_step(monkeypatch):
    """A second layer of other options and another cache writes over the arguments of the first; one whose pages have others between them, and
    one of another form, have their own."""
    step, other = Step(monkeypatch, "two keys"), Step(monkeypatch, "shared keys, lambda by token")
    first, call = step.call(), step.data.call
    second = impl(monkeypatch, head_size=WIDTH, signals=SIGNALS, noises=4, num_kv_heads=4, scale=0.1, options={"norm": "rms", "norm_eps": 0.1})
    second.lam, cache, step.cache = torch.tensor(0.9), step.cache, step.cache.clone()
    assert torch.allclose(step.call(second), step.expected(second), rtol=1e-5, atol=1e-5)
    assert step.data.call is call
    step.cache = cache
    assert torch.equal(step.call(), first) and step.data.call is call
    step.cache = torch.stack([cache, torch.full_like(cache, float("nan"))], 1)[:, 0]
    assert torch.equal(step.call(), first) and step.data.call is not call
    other.data = step.data
    assert torch.allclose(other.call(), other.expected(other.layer), rtol=1e-5, atol=1e-5)
    assert step.data.call is not call


def test_many_tokens(monkeypatch):
    """Steps of many tokens are stored by PyTorch on many threads."""
    from diffattn.vllm import backend

    monkeypatch.setattr(backend, "MANY_TOKENS", 9)
    monkeypatch.setattr(backend, "MANY_THREADS", 1)
    step = Step(monkeypatch, "two keys", queries=3)
    assert torch.allclose(step.call(), step.expected(step.layer), rtol=1e-5, atol=1e-5)
    assert not step.data.call.stores


def test_tokens_without_slots(monkeypatch):
    """Nothing is stored for those with a slot below 0; others are."""
    step = Step(monkeypatch, "two keys")
    before = step.cache.clone()
    step.call(slots=torch.tensor([-1, step.data.slots[1], -1]))
    changed = (before.nan_to_num(7) != step.cache.nan_to_num(7)).flatten(1).any(1).nonzero().flatten()
    assert changed.tolist() == [step.data.slots[1] // ROWS]


@pytest.mark.parametrize("changes, message", [
    ({"block_table": [[3, 0, 9], [7, 12, 2], [4, 11, 5]]}, "expected pages from 0 and below 12 in block_table, but got 12"),
    ({"slots": [4, 12 * 16, 3]}, "expected a slice that begins from 0 to 11 on axis 0, but got 12"),
    ({"is_decode": False, "query_starts": [0, 2, 1, 3]}, "expected cu_seqlens_q not to fall below 2, but got 1"),
    ({"is_decode": False, "query_starts": [0, 1, 2, 4]}, "expected cu_seqlens_q to end with 3, the number of queries, but got 4"),
], ids=["table", "slots", "falling", "end"])
def test_tables_are_checked(monkeypatch, changes, message):
    step = Step(monkeypatch, "two keys")
    with pytest.raises(DiffAttnError, match=message):
        step.call(**{name: torch.tensor(value, dtype=getattr(step.data, name).dtype) if isinstance(value, list) else value
                     for name, value in changes.items()})


def test_rows_are_checked(monkeypatch):
    step = Step(monkeypatch, "two keys")
    for query, message in ((step.query[:2], r"shape \[2, 256\]"), (step.query[:, :-1], r"shape \[3, 255\]"),
                           (step.query.t().contiguous().t(), r"strides \[1, 3\]")):
        step.query = query
        with pytest.raises(UsageError, match=r"query: expected dense rows \[3, 256\], but got .*" + message):
            step.call()
    with pytest.raises(DiffAttnError, match="q1: expected bfloat16|expected bfloat16 as q1"):
        step.query = step.rows(3, 256).to(torch.bfloat16)
        step.call()
