"""The frame of a decoder: embedding, pre-norm blocks of attention and gated MLP, final norm and logits.

What differs between models, the projections and the pairing of heads, is a `Mixer`. The frame writes five functions,

    forward(ids [B,T]) -> logits [B,T,V]
    score(ids [B,T], targets [B,T]) -> log-probabilities of the targets [B,T]
    prefill(ids [B,T], lengths [B], kcache, vcache) -> logits of each last token [B,V], kcache, vcache
    extend(ids [B,T], lengths [B], positions [B], kcache, vcache) -> logits of each last token [B,V], kcache, vcache
    decode(ids [B], positions [B], kcache, vcache) -> logits [B,V], kcache, vcache

and one function a layer for each of them, called in a loop. In the form with pages (`caches.py`) `extend` and `decode` take
block_table [B,M] before the caches, and in place of the others there is

    score(ids [B,T], targets [B,T], lengths [B], positions [B], block_table [B,M], kcache, vcache)
        -> log-probabilities of the targets [B,T], the likeliest ids [B,T,5] and theirs [B,T,5], logits [B,V], kcache, vcache

The form that is inspected has one entry, of all tokens, with the factor [] of lambda and the layers [N] that are looked at:

    inspect(ids [B,T], targets [B,T], factor [], layers [N])
        -> log-probabilities of the targets [B,T], logits of the last tokens [B,V], and of each of these layers `probe.PARTS`

Caches are updated in place. A call whose arguments are out of range reports an error and computes no layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from . import layers, likelihood, probe, tokens
from .caches import Pages, Rows
from .config import Config, ConfigError
from .mlir_text import Dim, Function, Module, Value
from .mlp import GatedMlp
from .quantization import Quantization
from .rope import Rope, rotate, tables

LAYER = "model.layers.{}."
Pair = tuple[Value, Value]


class Mixer(Protocol):
    """The attention of a decoder, but for positions, caches and the residual."""

    query_heads: int
    key_heads: tuple[int, int]
    value_heads: tuple[int, int]
    key_pairing: str

    def declare(self, m: Module, frame: Decoder) -> None:
        """Declares the weights of the projections."""

    def project(self, f: Function, x: Value, layer: Value) -> tuple[Value, Value, Value]:
        """The rows of queries, keys and values."""

    def queries(self, f: Function, q: Value) -> Pair:
        """The queries of both maps, views of `[B, T, query_heads, width]`."""

    def mix(self, f: Function, x: Value, q: Pair, k: Pair, v: Value, layer: Value, **masks) -> Value:
        """Attention over views `[B, T, heads, width]`; `masks`: options of the op that say which keys a query sees."""

    def output(self, f: Function, residual: Value, mixed: Value, layer: Value) -> Value:
        """Projects the rows of all heads onto the residual."""


@dataclass
class Decoder:
    vocab: int
    hidden: int
    inner: int
    layers: int
    eps: float
    activation: str
    tied: bool
    rope: Rope
    mixer: Mixer
    elem: str
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        self.mlp = GatedMlp(LAYER, self.hidden, self.inner, self.layers, self.activation, self.elem, self.mlp_bias)

    def build(self, quantization: Quantization | None = None, page_rows: int | None = None, inspect: bool = False) -> Module:
        """Builds the module. With `page_rows`, caches lie in pages of so many tokens, for sequences that do not depend on others; with
        `inspect`, it has the entry `inspect`."""
        if page_rows is not None and self.rope.growth is not None:
            raise ConfigError("expected a 'rope_type' whose angles follow from positions alone, as caches in pages are asked for, but "
                              "got 'dynamic'")
        m = Module(quantization)
        m.cache_shapes = [(self.layers, self.mixer.key_heads), (self.layers, self.mixer.value_heads)]
        m.weight("model.embed_tokens.weight", [self.vocab, self.hidden], self.elem)
        self.layer_weight(m, "input_layernorm.weight", [self.hidden], "f32")
        self.mixer.declare(m, self)
        self.layer_weight(m, "post_attention_layernorm.weight", [self.hidden], "f32")
        self.mlp.declare(m)
        m.weight("model.norm.weight", [self.hidden], "f32")
        # Its own symbol even when tied, since a matrix product may keep a packed copy of it.
        if self.tied:
            m.weight("lm_head.weight", [self.vocab, self.hidden], self.elem, source="model.embed_tokens.weight")
        else:
            m.matrix("lm_head.weight", [self.vocab, self.hidden], self.elem)
        if inspect:
            self._inspect(m, self._forward_layer(m, looked_at=True))
            return m
        if page_rows is None:
            self._forward_layer(m)
            self._forward(m)
            self._forward(m, scores=True)
            self._prefill_layer(m)
            self._prefill(m)
        places = Rows() if page_rows is None else Pages(page_rows)
        self._step_layer(m, "extend_layer", places, several=True)
        self._extend(m, places)
        if page_rows is not None:
            self._extend(m, places, scores=True)
        self._step_layer(m, "decode_layer", places, several=False)
        self._decode(m, places)
        return m

    def layer_weight(self, m: Module, name: str, shape, elem: str, **options) -> None:
        m.weight(LAYER + name, shape, elem, layers=self.layers, **options)

    def layer_matrix(self, m: Module, name: str, shape, **options) -> None:
        """The weight of a linear layer, which may be quantized."""
        m.matrix(LAYER + name, shape, self.elem, layers=self.layers, **options)

    # ---- one layer --------------------------------------------------------------------------------------------

    def _layer_arguments(self, f: Function) -> tuple[Value, Value, Value, Value]:
        """Rows, cosines, sines and the number of the layer."""
        h = f.argument("h", "f32", [None, self.hidden], writable=True)
        cos = f.argument("cos", "f32", [None, self.rope.width // 2])
        sin = f.argument("sin", "f32", [None, self.rope.width // 2])
        return h, cos, sin, f.argument("layer", "index")

    def _caches(self, f: Function, places: Rows | Pages) -> tuple[Value, Value]:
        return tuple(f.argument(name, self.elem, places.shape(self.layers, heads), writable=True)
                     for name, heads in (("kcache", self.mixer.key_heads), ("vcache", self.mixer.value_heads)))

    def _normed(self, f: Function, h: Value, name: str, layer: Value) -> Value:
        return layers.rms_norm(f, h, f.weight(f"{LAYER}{name}.weight", layer), self.eps, self.elem)

    def _rotated(self, f: Function, rows: Value, batch: Dim, length: Dim, heads: int, cos: Value, sin: Value,
                 row: str, into: Value | None = None) -> Value:
        x = layers.heads_of(f, rows, batch, length, heads)
        return rotate(f, self.rope, x, cos, sin, into or f.empty(x.dims, self.elem), row)

    def _values(self, f: Function, rows: Value, batch: Dim, length: Dim) -> Value:
        return layers.heads_of(f, layers.cast(f, rows, self.elem), batch, length, self.mixer.value_heads[0])

    def _after_attention(self, f: Function, h: Value, mixed: Value, layer: Value) -> Value:
        h = self.mixer.output(f, h, layers.rows_of(f, mixed, h.dims[0]), layer)
        return self.mlp.onto(f, h, self._normed(f, h, "post_attention_layernorm", layer), layer)

    def _forward_layer(self, m: Module, *, looked_at: bool = False) -> list[Value]:
        """Gives the parts that a layer that is `looked_at` returns behind its rows."""
        f = m.function("inspect_layer" if looked_at else "forward_layer", private=True)
        h, cos, sin, layer = self._layer_arguments(f)
        batch, length = f.argument("batch", "index"), f.argument("length", "index")
        kept = {"probe": probe.Probe(f.argument("factor", "f32"))} if looked_at else {}
        x = self._normed(f, h, "input_layernorm", layer)
        q, k, v = self.mixer.project(f, x, layer)
        q = self._rotated(f, q, batch, length, self.mixer.query_heads, cos, sin, "t")
        k = self._rotated(f, k, batch, length, self.mixer.key_heads[0], cos, sin, "t")
        v = self._values(f, v, batch, length)
        keys = layers.split_pairs(f, k, self.mixer.key_pairing)
        mixed = self.mixer.mix(f, x, self.mixer.queries(f, q), keys, v, layer, causal=True, **kept)
        parts = kept["probe"].parts if kept else []
        f.ret(self._after_attention(f, h, mixed, layer), *parts)
        return parts

    def _prefill_layer(self, m: Module) -> None:
        f = m.function("prefill_layer", private=True)
        h, cos, sin, layer = self._layer_arguments(f)
        lengths, offsets = f.argument("lengths", "i64", [None]), f.argument("offsets", "i64", [None])
        batch, length = f.argument("batch", "index"), f.argument("length", "index")
        kcache, vcache = self._caches(f, Rows())
        x = self._normed(f, h, "input_layernorm", layer)
        q, k, v = self.mixer.project(f, x, layer)
        q = self._rotated(f, q, batch, length, self.mixer.query_heads, cos, sin, "t")
        # Keys are turned straight into their place in the cache, and attention reads them there.
        origin = [layer, 0, 0, 0, 0]
        size = [1, batch, length, *self.mixer.key_heads]
        place = f.slice(kcache, origin, size, [0])
        turned = self._rotated(f, k, batch, length, self.mixer.key_heads[0], cos, sin, "t", into=place)
        kcache = f.insert(turned, kcache, origin, size)
        keys = layers.split_cache(f, kcache, self.mixer.key_pairing, layer, batch, length)
        v = self._values(f, v, batch, length)
        vcache = f.insert(v, vcache, origin, [1, batch, length, *self.mixer.value_heads])
        mixed = self.mixer.mix(f, x, self.mixer.queries(f, q), keys, v, layer, causal=True, kv_len=lengths,
                               q_offset=offsets)
        f.ret(self._after_attention(f, h, mixed, layer), kcache, vcache)

    def _step_layer(self, m: Module, name: str, places: Rows | Pages, *, several: bool) -> None:
        """Tokens behind what the caches hold: one of each sequence, or `several`, which see each other too."""
        f = m.function(name, private=True)
        h, cos, sin, layer = self._layer_arguments(f)
        positions, ends = f.argument("positions", "i64", [None]), f.argument("ends", "i64", [None])
        batch, length, row = h.dims[0], 1, "b"
        if several:
            batch, length, row = f.argument("batch", "index"), f.argument("length", "index"), "b t"
            cos, sin = (f.expand(table, 0, [batch, length]) for table in (cos, sin))
        where = places.arguments(f)
        caches = self._caches(f, places)
        x = self._normed(f, h, "input_layernorm", layer)
        q, k, v = self.mixer.project(f, x, layer)
        q = self._rotated(f, q, batch, length, self.mixer.query_heads, cos, sin, row)
        k = self._rotated(f, k, batch, length, self.mixer.key_heads[0], cos, sin, row)
        v = self._values(f, v, batch, length)
        caches = places.store(f, batch, length, layer, positions, ends, where, caches, (k, v))
        keys = places.in_view(f, caches[0], self.mixer.key_pairing, layer, batch, where)
        values = places.in_view(f, caches[1], None, layer, batch, where)
        masks = places.key_operands(where) | ({"causal": True, "q_offset": positions} if several else {})
        mixed = self.mixer.mix(f, x, self.mixer.queries(f, q), keys, values, layer, kv_len=ends, **masks)
        f.ret(self._after_attention(f, h, mixed, layer), *caches)

    # ---- whole model ------------------------------------------------------------------------------------------

    def _logits(self, f: Function, h: Value) -> Value:
        x = layers.rms_norm(f, h, f.weight("model.norm.weight"), self.eps, self.elem)
        return layers.linear(f, x, f.weight("lm_head.weight"))

    def _forward(self, m: Module, *, scores: bool = False) -> None:
        f = m.function("score" if scores else "forward")
        ids = f.argument("ids", "i64", [None, None])
        targets = f.argument("targets", "i64", [None, None]) if scores else None
        batch, length = ids.dims
        count = self.layers
        if scores:
            count = tokens.count_if(f, tokens.require_all(f, [likelihood.target_check(f, ids, targets)]), self.layers)
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        cos, sin = tables(f, self.rope, length=length)
        (h,) = f.loop(count, [h], lambda i, h: f.call("forward_layer", [h, cos, sin, i, batch, length], [h]))
        f.ret(f.expand(self._scored(f, h, targets, ranked=False)[0] if scores else self._logits(f, h), 0, [batch, length]))

    def _scored(self, f: Function, h: Value, targets: Value, *, ranked: bool) -> list[Value]:
        return likelihood.of_targets(f, h, likelihood.fitting(f, targets, h.dims[0]), self.vocab, lambda part: self._logits(f, part),
                                     ranked=ranked)

    def _inspect(self, m: Module, parts: list[Value]) -> None:
        """`parts` are what a layer returns of its attention."""
        m.attentions = dict.fromkeys(range(self.layers))
        f = m.function("inspect")
        ids, targets = (f.argument(name, "i64", [None, None]) for name in ("ids", "targets"))
        factor, chosen = f.argument("factor", "f32", []), f.argument("layers", "i64", [None])
        batch, length = ids.dims
        known = tokens.all_within(f, chosen, 0, f.i64(self.layers))
        checks = [likelihood.target_check(f, ids, targets), (known, f"expected every layer to be at least 0 and below {self.layers}")]
        count = tokens.count_if(f, tokens.require_all(f, checks), self.layers)
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        cos, sin = tables(f, self.rope, length=length)
        factor = f.extract(factor)
        names = {"%batch": batch, "%length": length}
        wholes = [probe.whole(f, part, chosen.dims[0], names) for part in parts]

        def of_layer(i: Value, h: Value, *wholes: Value) -> list[Value]:
            results = [h, *(probe.like(part, names) for part in parts)]
            h, *new_parts = f.call("inspect_layer", [h, cos, sin, i, batch, length, factor], results)
            return [h, *probe.put(f, new_parts, wholes, chosen, i)]

        h, *wholes = f.loop(count, [h, *wholes], of_layer)
        log_p = f.expand(self._scored(f, h, targets, ranked=False)[0], 0, [batch, length])
        rows = tokens.last_rows(f, f.fill(f.to_i64(length), [batch]), batch, length)
        f.ret(log_p, self._logits(f, layers.pick_rows(f, h, rows)), *wholes)

    def _prefill(self, m: Module) -> None:
        f = m.function("prefill")
        ids, lengths = f.argument("ids", "i64", [None, None]), f.argument("lengths", "i64", [None])
        kcache, vcache = self._caches(f, Rows())
        batch, length = ids.dims
        checks = tokens.batch_checks(f, batch, [lengths.dims[0], kcache.dims[1], vcache.dims[1]])
        checks.append(tokens.length_check(f, lengths, length))
        checks += [tokens.room_check(f, length, cache.dims[2]) for cache in (kcache, vcache)]
        count = tokens.count_if(f, tokens.require_all(f, checks), self.layers)
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        cos, sin = tables(f, self.rope, length=length)
        offsets = f.fill(f.i64(0), [batch])
        h, kcache, vcache = f.loop(
            count, [h, kcache, vcache],
            lambda i, h, k, v: f.call("prefill_layer",
                                      [h, cos, sin, i, lengths, offsets, batch, length, k, v], [h, k, v]))
        rows = tokens.last_rows(f, lengths, batch, length)
        f.ret(self._logits(f, layers.pick_rows(f, h, rows)), kcache, vcache)

    def _extend(self, m: Module, places: Rows | Pages, *, scores: bool = False) -> None:
        f = m.function("score" if scores else "extend")
        ids = f.argument("ids", "i64", [None, None])
        targets = f.argument("targets", "i64", [None, None]) if scores else None
        lengths, positions = f.argument("lengths", "i64", [None]), f.argument("positions", "i64", [None])
        where = places.arguments(f)
        caches = self._caches(f, places)
        batch, length = ids.dims
        checks = tokens.batch_checks(f, batch, [lengths.dims[0], positions.dims[0]])
        checks.append(tokens.length_check(f, lengths, length))
        fits = tokens.require_all(f, checks)  # checked before the lengths are read for the positions
        ends = tokens.sums(f, positions, f.slice(lengths, [0], [positions.dims[0]]))
        checks = places.checks(f, batch, length, positions, ends, where, caches)
        if scores:
            checks.append(likelihood.target_check(f, ids, targets))
        fits = f.scalar("arith.andi", fits, tokens.require_all(f, checks))
        count = tokens.count_if(f, fits, self.layers)
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        # Each row's own positions, as those of a step of so many rows.
        each = f.generic("b -> b t", [f.slice(positions, [0], [batch])], f.empty([batch, length], "i64"),
                         lambda p, _: f.scalar("arith.addi", p, f.to_i64(f.loop_index(1))))
        each = f.collapse(each, [[0, 1]], [f.multiply(batch, length)])
        longest = tokens.largest(f, ends) if self.rope.growth is not None else None
        cos, sin = tables(f, self.rope, length=longest, positions=each)
        h, *caches = f.loop(
            count, [h, *caches],
            lambda i, h, *old: f.call("extend_layer", [h, cos, sin, i, positions, ends, batch, length, *where, *old], [h, *old]))
        rows = tokens.last_rows(f, lengths, batch, length)
        logits = self._logits(f, layers.pick_rows(f, h, rows))
        if not scores:
            f.ret(logits, *caches)
            return
        f.ret(*(f.expand(value, 0, [batch, length]) for value in self._scored(f, h, targets, ranked=True)), logits, *caches)

    def _decode(self, m: Module, places: Rows | Pages) -> None:
        f = m.function("decode")
        ids, positions = f.argument("ids", "i64", [None]), f.argument("positions", "i64", [None])
        where = places.arguments(f)
        caches = self._caches(f, places)
        batch = ids.dims[0]
        ends = tokens.sums(f, positions, 1)
        checks = tokens.batch_checks(f, batch, [positions.dims[0]]) + places.checks(f, batch, 1, positions, ends, where, caches)
        count = tokens.count_if(f, tokens.require_all(f, checks), self.layers)
        h = tokens.embedded(f, ids, self.vocab)
        longest = tokens.largest(f, ends) if self.rope.growth is not None else None
        cos, sin = tables(f, self.rope, length=longest, positions=positions)
        h, *caches = f.loop(
            count, [h, *caches],
            lambda i, h, *old: f.call("decode_layer", [h, cos, sin, i, positions, ends, *where, *old], [h, *old]))
        f.ret(self._logits(f, h), *caches)


def read_frame(config: Config, mixer: Mixer, rope: Rope, elem: str, *, eps: float, tied: bool,
               activations: tuple[str, ...] = layers.ACTIVATIONS, mlp_bias: bool = False) -> Decoder:
    """The frame that the usual keys of a config describe."""
    hidden = config.integer("hidden_size")
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        inner=config.integer("intermediate_size"),
        layers=config.depth("num_hidden_layers"),
        eps=config.number("rms_norm_eps", eps, above=0),
        activation=config.choice("hidden_act", activations, activations[0]),
        tied=config.flag("tie_word_embeddings", tied),
        rope=rope,
        mixer=mixer,
        elem=elem,
        mlp_bias=mlp_bias,
    )
