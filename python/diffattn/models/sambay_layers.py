"""The layers of SambaY: their weights, and a function for each kind of layer and call (phi4flash.py says which follow another).

`layer` is a layer's number, `which` its number among those of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers, window_ring
from .diff_v1 import LAMBDA, mix_heads
from .mamba import GatedMemory, Mamba
from .mlir_text import Dim, Function, Module, Value

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

    def __post_init__(self) -> None:
        self.pairs = self.depth // 4  # of a Mamba layer and a windowed one
        self.tail = self.pairs - 1  # of a gated memory unit and a layer with shared keys
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
                  **sight) -> Value:
        """The residual after attention and the feed-forward."""
        init = f.extract(f.table([layers.lambda_init(i) for i in range(self.depth)]), layer)
        vectors = [f.weight(f"{kind}.{{}}.inner_cross_attn.{name}", which) for name in LAMBDA]
        norm = f.weight(f"{kind}.{{}}.inner_cross_attn.subln.weight", which)
        mixed = mix_heads(f, layers.split_pairs(f, q, "adjacent"), k, v, vectors, norm, init, **sight)
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
        return [f.argument(name, self.elem, [1, None, None, *heads], writable=writable)
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
        conv, state = self._states(f)
        x = self._normed(f, h, "input_layernorm", layer)
        h, *rest = self.mamba.mix(f, h, x, memory, conv, state, which, offsets, lengths, batch, length)
        f.ret(self._fed_forward(f, h, layer), *rest)

    def _attention_layer(self, m: Module, name: str, kind: str, *, one: bool) -> tuple[Function, Value, Value, Value, Dim, Dim, list[Value]]:
        """The function, residual, both numbers, sizes and projections of a layer with attention. `one` token of each sequence has a
        static length, and with it one form of attention for every capacity of the caches."""
        f = m.function(name, private=True)
        h = self._rows(f, "h", self.hidden)
        layer, which = self._indices(f, "layer", "which")
        batch, length = (h.dims[0], 1) if one else self._indices(f, "batch", "length")
        return f, h, layer, which, batch, length, self._projected(f, h, kind, layer, which, batch, length)

    def _forward_window_layer(self, m: Module) -> None:
        f, h, layer, which, _, _, (q, k, v) = self._attention_layer(m, "forward_window_layer", "self", one=False)
        f.ret(self._attended(f, h, "self", layer, which, q, layers.split_pairs(f, k, "adjacent"), v, window=(self.window - 1, 0)))

    def _prefill_window_layer(self, m: Module) -> None:
        f, h, layer, which, batch, _, (q, *new) = self._attention_layer(m, "prefill_window_layer", "self", one=False)
        positions, ends = self._numbers(f, "positions", "ends")
        rings = [window_ring.store(f, ring, rows, which, positions, ends) for ring, rows in zip(self._rings(f), new)]
        # The tokens of this call are all there are.
        f.ret(self._attended(f, h, "self", layer, which, q, layers.split_pairs(f, new[0], "adjacent"), new[1],
                             window=(self.window - 1, 0), q_offset=positions, kv_len=ends), *rings)

    def _extend_window_layer(self, m: Module) -> None:
        f, h, layer, which, batch, _, (q, *new) = self._attention_layer(m, "extend_window_layer", "self", one=False)
        positions, ends = self._numbers(f, "positions", "ends")
        rings = self._rings(f)
        before = window_ring.held(f, positions, self.window, batch)
        k, v = (window_ring.in_order(f, ring, rows, which, positions, before) for ring, rows in zip(rings, new))
        rings = [window_ring.store(f, ring, rows, which, positions, ends) for ring, rows in zip(rings, new)]
        valid = f.generic("b, b, b -> b", [before, positions, ends], f.empty([batch], "i64"),
                          lambda n, p, e, _: f.scalar("arith.addi", n, f.scalar("arith.subi", e, p)))
        f.ret(self._attended(f, h, "self", layer, which, q, layers.split_pairs(f, k, "adjacent"), v, window=(self.window - 1, 0),
                             q_offset=before, kv_len=valid), *rings)

    def _decode_window_layer(self, m: Module) -> None:
        f, h, layer, which, batch, _, (q, *new) = self._attention_layer(m, "decode_window_layer", "self", one=True)
        positions, ends = self._numbers(f, "positions", "ends")
        rings = f.loop(batch, self._rings(f), lambda b, *old: [window_ring.store_one(f, ring, rows, which, positions, b)
                                                               for ring, rows in zip(old, new)])
        keys = layers.split_cache(f, rings[0], "adjacent", which, batch, self.window)
        values = f.slice(rings[1], [which, 0, 0, 0, 0], [1, batch, self.window, *self.value_heads], [0])
        f.ret(self._attended(f, h, "self", layer, which, q, keys, values, kv_len=window_ring.held(f, ends, self.window, batch)), *rings)

    def _full_layer(self, m: Module, name: str, *, one: bool) -> None:
        """Keys and values go to the shared caches, of whose places the first `sight` are looked at."""
        f, h, layer, which, batch, length, (q, *new) = self._attention_layer(m, name, "self", one=one)
        (sight,) = self._indices(f, "sight")
        positions, ends = self._numbers(f, "positions", "ends")

        def store(b: Value, *old: Value) -> list[Value]:
            at, stored = f.to_index(f.extract(positions, b)), []
            for cache, rows in zip(old, new):
                heads = cache.dims[3:]
                part = f.slice(rows, [b, 0, 0, 0], [1, length, *heads], [0, 1] if one else [0])
                stored.append(f.insert(part, cache, [0, b, at, 0, 0], [1, 1, length, *heads]))
            return stored

        caches = f.loop(batch, self._shared(f), store)
        f.ret(self._sharing(f, h, "self", layer, which, q, caches, sight, positions, ends, batch, one), *caches)

    def _cross_layer(self, m: Module, name: str, *, one: bool) -> None:
        f, h, layer, which, batch, _, (q,) = self._attention_layer(m, name, "cross", one=one)
        (sight,) = self._indices(f, "sight")
        positions, ends = self._numbers(f, "positions", "ends")
        f.ret(self._sharing(f, h, "cross", layer, which, q, self._shared(f, writable=False), sight, positions, ends, batch, one))

    def _sharing(self, f: Function, h: Value, kind: str, layer: Value, which: Value, q: Value, caches: list[Value], sight: Value,
                 positions: Value, ends: Value, batch: Dim, one: bool) -> Value:
        keys = layers.split_cache(f, caches[0], "adjacent", f.index(0), batch, sight)
        values = f.slice(caches[1], [0, 0, 0, 0, 0], [1, batch, sight, *self.value_heads], [0])
        # One query stands last of all keys.
        more = {} if one else {"causal": True, "q_offset": positions}
        return self._attended(f, h, kind, layer, which, q, keys, values, kv_len=ends, **more)

    def _gmu_layer(self, m: Module) -> None:
        f = m.function("gmu_layer", private=True)
        h = self._rows(f, "h", self.hidden)
        memory = f.argument("memory", "f32", [None, self.mamba.inner])
        layer, which = self._indices(f, "layer", "which")
        h = self.gmu.mix(f, h, self._normed(f, h, "input_layernorm", layer), memory, which)
        f.ret(self._fed_forward(f, h, layer))
