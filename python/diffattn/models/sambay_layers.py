"""The layers of SambaY: their weights, and a function for each kind of layer and call (phi4flash.py says which follow another).

`layer` is a layer's number, `which` its number among those of its kind. `page_rows` says where keys and states lie: in rows of caches,
one for each sequence, or keys in pages of so many tokens (caches.py) and states in slots (states.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers, window_ring
from .caches import FirstRows, Pages
from .diff_v1 import LAMBDA, mix_heads
from .mamba import GatedMemory, Mamba
from .mlir_text import Dim, Function, Module, Value
from .probe import Probe
from .states import RowStates, Slots

LAYER = "model.layers.{}."
ATTENTION = LAYER + "attn."


@dataclass
class SambaYLayers:
    vocab: int
    hidden: int
    inner: int
    depth: int
    eps: float
    activation: str
    tied: bool
    heads: int
    kv_heads: int
    width: int
    window: int
    mamba: Mamba
    gmu: GatedMemory
    elem: str
    page_rows: int | None = None

    def __post_init__(self) -> None:
        self.places = FirstRows() if self.page_rows is None else Pages(self.page_rows)
        self.states = RowStates() if self.page_rows is None else Slots()
        self.pairs = self.depth // 4  # each a Mamba layer and a windowed one
        self.tail = self.pairs - 1  # pairs of a gated memory unit and a layer with shared keys
        self.key_heads, self.value_heads = (2 * self.kv_heads, self.width), (self.kv_heads, 2 * self.width)

    # ---- weights ----------------------------------------------------------------------------------------------

    def _declare_attention(self, m: Module, kind: str, rows: int, **numbered) -> None:
        shapes = {"Wqkv.weight": ([rows, self.hidden], self.elem), "Wqkv.bias": ([rows], "f32"),
                  "out_proj.weight": ([self.hidden, 2 * self.heads * self.width], self.elem), "out_proj.bias": ([self.hidden], "f32"),
                  "inner_cross_attn.subln.weight": ([2 * self.width], "f32")}
        shapes |= {f"inner_cross_attn.{name}": ([self.width], "f32") for name in LAMBDA}
        for name, (shape, elem) in shapes.items():
            declare = m.matrix if len(shape) == 2 else m.weight
            declare(f"{kind}.{{}}.{name}", shape, elem, source=ATTENTION + name, layer_step=2, **numbered)

    def declare(self, m: Module) -> None:
        m.weight("model.embed_tokens.weight", [self.vocab, self.hidden], self.elem)
        for part in ("weight", "bias"):
            for name in ("input_layernorm", "post_attention_layernorm"):
                m.weight(f"{LAYER}{name}.{part}", [self.hidden], "f32", layers=self.depth)
            m.weight(f"model.final_layernorm.{part}", [self.hidden], "f32")
        self.mamba.declare(m)
        self._declare_attention(m, "self", 2 * (self.heads + 2 * self.kv_heads) * self.width, layers=self.pairs + 1, first_layer=1)
        if self.tail:
            self.gmu.declare(m)
            self._declare_attention(m, "cross", 2 * self.heads * self.width, layers=self.tail, first_layer=self.depth // 2 + 3)
        m.matrix(LAYER + "mlp.fc1.weight", [2 * self.inner, self.hidden], self.elem, layers=self.depth)
        m.matrix(LAYER + "mlp.fc2.weight", [self.hidden, self.inner], self.elem, layers=self.depth)
        # Its own symbol even when tied, since a matrix product may keep a packed copy of it.
        if self.tied:
            m.weight("lm_head.weight", [self.vocab, self.hidden], self.elem, source="model.embed_tokens.weight")
        else:
            m.matrix("lm_head.weight", [self.vocab, self.hidden], self.elem)

    # ---- parts of layers --------------------------------------------------------------------------------------

    def _normed(self, f: Function, h: Value, name: str, layer: Value) -> Value:
        weight, bias = (f.weight(f"{LAYER}{name}.{part}", layer) for part in ("weight", "bias"))
        return layers.layer_norm(f, h, weight, bias, self.eps, self.elem)

    def _fed_forward(self, f: Function, h: Value, layer: Value) -> Value:
        x = self._normed(f, h, "post_attention_layernorm", layer)
        both = layers.linear(f, x, f.weight(LAYER + "mlp.fc1.weight", layer))
        gate, up = (f.slice(both, [0, at], [h.dims[0], self.inner]) for at in (0, self.inner))
        inner = layers.gated(f, self.activation, gate, up, self.elem)
        return layers.linear_onto(f, h, inner, f.weight(LAYER + "mlp.fc2.weight", layer))

    def _projected(self, f: Function, h: Value, kind: str, layer: Value, which: Value, batch: Dim, length: Dim) -> list[Value]:
        """Queries and, of layers that have their own, keys and values, `[B, T, heads, width]`."""
        x = self._normed(f, h, "input_layernorm", layer)
        rows = layers.linear(f, x, f.weight(f"{kind}.{{}}.Wqkv.weight", which), f.weight(f"{kind}.{{}}.Wqkv.bias", which))
        rows, at, parts = layers.cast(f, rows, self.elem), 0, []
        for heads, width in [(2 * self.heads, self.width), *([self.key_heads, self.value_heads] if kind == "self" else [])]:
            part = f.slice(rows, [0, at], [h.dims[0], heads * width])
            parts.append(layers.heads_of(f, part, batch, length, heads))
            at += heads * width
        return parts

    def _attended(self, f: Function, h: Value, kind: str, layer: Value, which: Value, q: Value, k: tuple[Value, Value], v: Value,
                  **masks) -> Value:
        """The residual after attention and the feed-forward."""
        init = f.extract(f.table([layers.lambda_init(i) for i in range(self.depth)]), layer)
        vectors = [f.weight(f"{kind}.{{}}.inner_cross_attn.{name}", which) for name in LAMBDA]
        norm = f.weight(f"{kind}.{{}}.inner_cross_attn.subln.weight", which)
        mixed = mix_heads(f, layers.split_pairs(f, q, "adjacent"), k, v, vectors, norm, init, **masks)
        weight, bias = (f.weight(f"{kind}.{{}}.out_proj.{part}", which) for part in ("weight", "bias"))
        h = layers.linear_onto(f, h, layers.rows_of(f, mixed, h.dims[0]), weight, bias)
        return self._fed_forward(f, h, layer)

    # ---- layers -----------------------------------------------------------------------------------------------

    def _rows(self, f: Function, name: str, width: int) -> Value:
        return f.argument(name, "f32", [None, width], writable=True)

    def _numbers(self, f: Function, *names: str) -> list[Value]:
        return [f.argument(name, "i64", [None]) for name in names]

    def _indices(self, f: Function, *names: str) -> list[Value]:
        return [f.argument(name, "index") for name in names]

    def _shared(self, f: Function, *, writable: bool = True) -> list[Value]:
        return [f.argument(name, self.elem, self.places.shape(1, heads), writable=writable)
                for name, heads in (("kcache", self.key_heads), ("vcache", self.value_heads))]

    def _rings(self, f: Function) -> list[Value]:
        return [f.argument(name, self.elem, [self.pairs, None, self.window, *heads], writable=True)
                for name, heads in (("kring", self.key_heads), ("vring", self.value_heads))]

    def _states(self, f: Function) -> list[Value]:
        return [f.argument(name, "f32", shape, writable=True)
                for name, shape in (("conv", self.mamba.conv_shape), ("state", self.mamba.state_shape))]

    def _mamba_layer(self, m: Module) -> None:
        f = m.function("mamba_layer", private=True)
        h, memory = self._rows(f, "h", self.hidden), self._rows(f, "memory", self.mamba.inner)
        layer, which, batch, length = self._indices(f, "layer", "which", "batch", "length")
        offsets, lengths = self._numbers(f, "offsets", "lengths")
        slots = self.states.arguments(f)
        caches = self._states(f)
        x = self._normed(f, h, "input_layernorm", layer)
        (conv, state), place = self.states.taken(f, caches, which, batch, slots)
        h, memory, *taken = self.mamba.mix(f, h, x, memory, conv, state, which, place, offsets, lengths, batch, length)
        caches = self.states.put(f, caches, taken, which, batch, slots)
        f.ret(self._fed_forward(f, h, layer), memory, *caches)

    def _attention_layer(self, m: Module, name: str, kind: str, *, one: bool) -> tuple[Function, Value, Value, Value, Dim, Dim, list[Value]]:
        """The function, residual, both numbers, sizes and projections of a layer with attention. `one` token of each sequence has a
        static length, and with it one form of attention for every capacity of the caches."""
        f = m.function(name, private=True)
        h = self._rows(f, "h", self.hidden)
        layer, which = self._indices(f, "layer", "which")
        batch, length = (h.dims[0], 1) if one else self._indices(f, "batch", "length")
        return f, h, layer, which, batch, length, self._projected(f, h, kind, layer, which, batch, length)

    def _window_rings(self, f: Function) -> tuple[list[Value], list[Value], window_ring.RowOf]:
        """Slots, rings, and which row of them a sequence has."""
        slots = self.states.arguments(f)
        return slots, self._rings(f), lambda b: self.states.row_of(f, b, slots)

    def _probe(self, f: Function, looked_at: bool) -> dict[str, Probe]:
        """Further arguments of attention in a layer that is looked at, whose last argument is the factor of lambda."""
        return {"probe": Probe(f.argument("factor", "f32"))} if looked_at else {}

    def _forward_window_layer(self, m: Module, *, looked_at: bool = False) -> list[Value]:
        """Gives the parts that a layer that is `looked_at` returns behind its rows, as the other layers that may be do."""
        f, h, layer, which, _, _, (q, k, v) = self._attention_layer(m, f"{'inspect' if looked_at else 'forward'}_window_layer", "self", one=False)
        kept = self._probe(f, looked_at)
        h = self._attended(f, h, "self", layer, which, q, layers.split_pairs(f, k, "adjacent"), v, window=(self.window - 1, 0), **kept)
        return _returned(f, kept, h)

    def _prefill_window_layer(self, m: Module) -> None:
        f, h, layer, which, batch, _, (q, *new) = self._attention_layer(m, "prefill_window_layer", "self", one=False)
        positions, ends = self._numbers(f, "positions", "ends")
        _, rings, row_of = self._window_rings(f)
        rings = [window_ring.store(f, ring, rows, which, positions, ends, row_of) for ring, rows in zip(rings, new)]
        # The tokens of this call are all there are.
        f.ret(self._attended(f, h, "self", layer, which, q, layers.split_pairs(f, new[0], "adjacent"), new[1],
                             window=(self.window - 1, 0), q_offset=positions, kv_len=ends), *rings)

    def _extend_window_layer(self, m: Module) -> None:
        f, h, layer, which, batch, _, (q, *new) = self._attention_layer(m, "extend_window_layer", "self", one=False)
        positions, ends = self._numbers(f, "positions", "ends")
        _, rings, row_of = self._window_rings(f)
        before = window_ring.held(f, positions, self.window, batch)
        k, v = (window_ring.in_order(f, ring, rows, which, positions, before, row_of) for ring, rows in zip(rings, new))
        rings = [window_ring.store(f, ring, rows, which, positions, ends, row_of) for ring, rows in zip(rings, new)]
        valid = f.generic("b, b, b -> b", [before, positions, ends], f.empty([batch], "i64"),
                          lambda n, p, e, _: f.scalar("arith.addi", n, f.scalar("arith.subi", e, p)))
        f.ret(self._attended(f, h, "self", layer, which, q, layers.split_pairs(f, k, "adjacent"), v, window=(self.window - 1, 0),
                             q_offset=before, kv_len=valid), *rings)

    def _decode_window_layer(self, m: Module) -> None:
        f, h, layer, which, batch, _, (q, *new) = self._attention_layer(m, "decode_window_layer", "self", one=True)
        positions, ends = self._numbers(f, "positions", "ends")
        slots, rings, row_of = self._window_rings(f)
        rings = f.loop(batch, rings, lambda b, *old: [window_ring.store_one(f, ring, rows, which, positions, b, row_of)
                                                      for ring, rows in zip(old, new)])
        count = rings[0].dims[1] if slots else batch
        keys = layers.split_cache(f, rings[0], "adjacent", which, count, self.window)
        values = f.slice(rings[1], [which, 0, 0, 0, 0], [1, count, self.window, *self.value_heads], [0])
        # A ring in a slot is a page, the only one of its sequence.
        masks = {"block_table": f.expand(slots[0], 0, [batch, 1])} if slots else {}
        f.ret(self._attended(f, h, "self", layer, which, q, keys, values, kv_len=window_ring.held(f, ends, self.window, batch), **masks),
              *rings)

    def _full_layer(self, m: Module, name: str, *, one: bool, looked_at: bool = False) -> list[Value]:
        """Keys and values go to the shared caches."""
        f, h, layer, which, batch, length, (q, *new) = self._attention_layer(m, name, "self", one=one)
        where = self.places.arguments(f)
        positions, ends = self._numbers(f, "positions", "ends")
        caches = self._shared(f)
        kept = self._probe(f, looked_at)
        caches = self.places.store(f, batch, length, f.index(0), positions, ends, where, caches, new)
        return _returned(f, kept, self._sharing(f, h, "self", layer, which, q, caches, where, positions, ends, batch, one, **kept), *caches)

    def _cross_layer(self, m: Module, name: str, *, one: bool, looked_at: bool = False) -> list[Value]:
        f, h, layer, which, batch, _, (q,) = self._attention_layer(m, name, "cross", one=one)
        where = self.places.arguments(f)
        positions, ends = self._numbers(f, "positions", "ends")
        caches = self._shared(f, writable=False)
        kept = self._probe(f, looked_at)
        return _returned(f, kept, self._sharing(f, h, "cross", layer, which, q, caches, where, positions, ends, batch, one, **kept))

    def _sharing(self, f: Function, h: Value, kind: str, layer: Value, which: Value, q: Value, caches: list[Value], where: list[Value],
                 positions: Value, ends: Value, batch: Dim, one: bool, **kept: Probe) -> Value:
        keys = self.places.in_view(f, caches[0], "adjacent", f.index(0), batch, where)
        values = self.places.in_view(f, caches[1], None, f.index(0), batch, where)
        # One query stands last of all keys.
        more = self.places.key_operands(where) | ({} if one else {"causal": True, "q_offset": positions})
        return self._attended(f, h, kind, layer, which, q, keys, values, kv_len=ends, **more, **kept)

    def _gmu_layer(self, m: Module) -> None:
        f = m.function("gmu_layer", private=True)
        h = self._rows(f, "h", self.hidden)
        memory = f.argument("memory", "f32", [None, self.mamba.inner])
        layer, which = self._indices(f, "layer", "which")
        h = self.gmu.mix(f, h, self._normed(f, h, "input_layernorm", layer), memory, which)
        f.ret(self._fed_forward(f, h, layer))


def _returned(f: Function, kept: dict[str, Probe], *results: Value) -> list[Value]:
    """Ends a layer with its results and, where it is looked at, what attention used, which it gives."""
    parts = kept["probe"].parts if kept else []
    f.ret(*results, *parts)
    return parts
