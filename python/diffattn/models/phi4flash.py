"""Phi-4-mini-flash, or SambaY: Mamba, windowed differential attention, and a second half that shares one cache.

Of L layers, those with even numbers up to L/2 are Mamba and the odd ones between them attention with a window. Layer L/2 + 1
attends to all tokens, and its keys and values are those of every later attention layer, which has queries alone; between these
are gated memory units, which read what the scan of layer L/2 gave. So from layer L/2 + 2 on only the last token of a prompt is
computed. There are no positions. The functions are those of decoder.py, with six caches in place of two:

    kcache, vcache [1, B, capacity, heads, width]          of layer L/2 + 1
    kring, vring [L/4, B, window, heads, width]            of windowed layers (window_ring.py)
    conv [L/4 + 1, B, taps - 1, inner], state [L/4 + 1, B, states, inner]      of Mamba layers, f32 (mamba.py)

In the form with pages kcache and vcache lie in them, and the other four have N slots in place of B rows, of which slots [B], behind
block_table, names one for each sequence (states.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import layers, likelihood, probe, tokens
from .config import LARGEST, Config
from .mamba import GatedMemory, Mamba
from .mlir_text import Dim, Function, Module, Value
from .quantization import Quantization, read_quantization
from .sambay_layers import ATTENTION, SambaYLayers


@dataclass
class Call:
    """A call of an entry: T tokens of each of B sequences, the first at its position, `lengths` of them valid up to
    its end; where the keys of the shared caches are, how many places of them or their pages, and slots; and whether the call's checks
    held. `one` is a step, whose T is static."""

    batch: Value
    length: Dim
    positions: Value
    ends: Value
    lengths: Value
    where: list[Value]
    slots: list[Value]
    fine: Value
    one: bool = False


class SambaY(SambaYLayers):
    def build(self, quantization: Quantization | None, inspect: bool = False) -> Module:
        """Builds the module; with `inspect`, it has the entry `inspect`."""
        m = Module(quantization)
        m.cache_shapes = [(1, self.key_heads), (1, self.value_heads)]
        rings = self.pairs * self.window * sum(heads * width for heads, width in (self.key_heads, self.value_heads))
        m.state_size = rings + self.mamba.layers * self.mamba.inner * (self.mamba.taps - 1 + self.mamba.states)
        self.declare(m)
        self._mamba_layer(m)
        if inspect:
            self._inspect(m)
            return m
        if self.page_rows is None:
            self._forward_window_layer(m)
            self._prefill_window_layer(m)
        self._extend_window_layer(m)
        self._decode_window_layer(m)
        self._full_layer(m, "full_layer", one=False)
        self._full_layer(m, "decode_full_layer", one=True)
        if self.tail:
            self._gmu_layer(m)
            self._cross_layer(m, "forward_cross_layer", one=False)
            self._cross_layer(m, "cross_layer", one=True)
        if self.page_rows is None:
            self._forward(m)
            self._forward(m, scores=True)
            self._chunk(m, "prefill", further=False)
        self._chunk(m, "extend", further=True)
        if self.page_rows is not None:
            self._chunk(m, "score", further=True, scores=True)
        self._decode(m)
        return m

    # ---- runs of layers ---------------------------------------------------------------------------------------

    def _numbered(self, f: Function, i: Value, first: int) -> Value:
        """The number of the i-th of every other layer from `first` on."""
        twice = f.scalar("arith.muli", i, f.index(2))
        return twice if first == 0 else f.scalar("arith.addi", twice, f.index(first))

    def _first_half(self, f: Function, call: Call, h: Value, memory: Value, states: list[Value], shared: list[Value],
                    rings: list[Value], window: str) -> list[Value]:
        """Up to the layer whose keys are shared; `window` is the function of a windowed layer. Gives all that it was given: the
        residual, the memory, both states, the shared caches and the rings."""
        n, sizes = len(states), [f.index(call.batch), f.index(call.length)]
        size_of = [] if call.one else sizes
        numbers = [call.positions, call.ends]

        def mamba(layer: Value, which: Value, h: Value, memory: Value, states: list[Value]) -> list[Value]:
            return f.call("mamba_layer", [h, memory, layer, which, *sizes, call.positions, call.lengths, *call.slots, *states],
                          [h, memory, *states])

        def pair(i: Value, h: Value, memory: Value, *others: Value) -> list[Value]:
            h, memory, *new = mamba(self._numbered(f, i, 0), i, h, memory, list(others[:n]))
            known = [*numbers, *call.slots, *others[n:]] if rings else []
            h, *written = f.call(window, [h, self._numbered(f, i, 1), i, *size_of, *known], [h, *others[n:]])
            return [h, memory, *new, *written]

        h, memory, *others = f.loop(tokens.count_if(f, call.fine, self.pairs), [h, memory, *states, *rings], pair)
        states, rings = others[:n], others[n:]
        last, layer = f.index(self.pairs), self.depth // 2

        def middle(_: Value, h: Value, memory: Value, *others: Value) -> list[Value]:
            h, memory, *new = mamba(f.index(layer), last, h, memory, list(others[:n]))
            h, *caches = f.call("decode_full_layer" if call.one else "full_layer",
                                [h, f.index(layer + 1), last, *size_of, *call.where, *numbers, *others[n:]], [h, *others[n:]])
            return [h, memory, *new, *caches]

        # In a loop of one or none: nothing is computed where a check failed.
        h, memory, *others = f.loop(tokens.count_if(f, call.fine, 1), [h, memory, *states, *shared], middle)
        return [h, memory, *others, *rings]

    def _second_half(self, f: Function, call: Call, h: Value, memory: Value, shared: list[Value], *, one: bool) -> Value:
        """The other layers, of all tokens or of `one` of each sequence, its last."""
        if not self.tail:
            return h
        first, sizes = self.depth // 2 + 2, [] if one else [f.index(call.batch), f.index(call.length)]

        def pair(i: Value, h: Value) -> list[Value]:
            (h,) = f.call("gmu_layer", [h, memory, self._numbered(f, i, first), i], [h])
            return f.call("cross_layer" if one else "forward_cross_layer",
                          [h, self._numbered(f, i, first + 1), i, *sizes, *call.where, call.positions, call.ends, *shared], [h])

        (h,) = f.loop(tokens.count_if(f, call.fine, self.tail), [h], pair)
        return h

    def _logits(self, f: Function, h: Value) -> Value:
        weight, bias = (f.weight(f"model.final_layernorm.{part}") for part in ("weight", "bias"))
        return layers.linear(f, layers.layer_norm(f, h, weight, bias, self.eps, self.elem), f.weight("lm_head.weight"))

    # ---- entries ----------------------------------------------------------------------------------------------

    def _memory(self, f: Function, rows: Dim) -> Value:
        return f.empty([rows, self.mamba.inner], "f32")

    def _scored(self, f: Function, h: Value, targets: Value, *, ranked: bool) -> list[Value]:
        return likelihood.of_targets(f, h, likelihood.fitting(f, targets, h.dims[0]), self.vocab, lambda part: self._logits(f, part),
                                     ranked=ranked)

    def _forward(self, m: Module, *, scores: bool = False) -> None:
        f = m.function("score" if scores else "forward")
        ids = f.argument("ids", "i64", [None, None])
        targets = f.argument("targets", "i64", [None, None]) if scores else None
        fine = tokens.require_all(f, [likelihood.target_check(f, ids, targets)] if scores else [])
        batch, length = ids.dims
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        states, shared, lengths = self._own(f, batch, length)
        call = Call(batch, length, f.fill(f.i64(0), [batch]), lengths, lengths, [length], [], fine)
        h, memory, _, _, *shared = self._first_half(f, call, h, self._memory(f, h.dims[0]), states, shared, [], "forward_window_layer")
        h = self._second_half(f, call, h, memory, shared, one=False)
        f.ret(f.expand(self._scored(f, h, targets, ranked=False)[0] if scores else self._logits(f, h), 0, [batch, length]))

    def _inspect(self, m: Module) -> None:
        """The entry of decoder.py, of layers with attention: odd ones. A layer with shared keys reads those of another."""
        parts = self._forward_window_layer(m, looked_at=True)
        full = self._full_layer(m, "inspect_full_layer", one=False, looked_at=True)
        if self.tail:
            self._gmu_layer(m)
            cross = self._cross_layer(m, "inspect_cross_layer", one=False, looked_at=True)
        m.attentions = {layer: self.window - 1 if layer < self.depth // 2 else None for layer in range(1, self.depth, 2)}
        f = m.function("inspect")
        ids, targets = (f.argument(name, "i64", [None, None]) for name in ("ids", "targets"))
        factor, chosen = f.argument("factor", "f32", []), f.argument("layers", "i64", [None])

        def narrow(layer: Value, fine: Value) -> Value:
            # As unsigned numbers, negative ones are large too.
            known = f.compare("ult", layer, f.i64(self.depth))
            odd = f.compare("eq", f.scalar("arith.andi", layer, f.i64(1)), f.i64(1))
            return f.scalar("arith.andi", fine, f.scalar("arith.andi", known, odd))

        known = f.extract(f.generic("n ->", [chosen], f.rank0(f.true()), narrow))
        fine = tokens.require_all(f, [likelihood.target_check(f, ids, targets),
                                      (known, f"expected every layer to be one with attention, an odd number below {self.depth}")])
        batch, length = ids.dims
        factor, sizes = f.extract(factor), [batch, length]
        names = {"%batch": batch, "%length": length, "%visible_keys": length}
        wholes = [probe.whole(f, part, chosen.dims[0], names) for part in parts]
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        states, shared, lengths = self._own(f, batch, length)
        positions = f.fill(f.i64(0), [batch])
        memory, pairs, depth = self._memory(f, h.dims[0]), self.pairs, self.depth

        def mamba(layer: Value, which: Value, h: Value, memory: Value, states: list[Value]) -> list[Value]:
            return f.call("mamba_layer", [h, memory, layer, which, *sizes, positions, lengths, *states], [h, memory, *states])

        def looked(name: str, layer: Value, which: Value, of: list[Value], h: Value, wholes: list[Value], given: list[Value],
                   written: list[Value]) -> tuple[list[Value], list[Value]]:
            """Results of a layer, and the tensors of all parts with its own parts in them."""
            results = [h, *written, *(probe.like(part, names) for part in of)]
            made = f.call(name, [h, layer, which, *sizes, *given, factor], results)
            count = 1 + len(written)
            return made[:count], probe.put(f, made[count:], wholes, chosen, layer)

        def first(i: Value, h: Value, memory: Value, *others: Value) -> list[Value]:
            h, memory, *states = mamba(self._numbered(f, i, 0), i, h, memory, list(others[:2]))
            (h,), wholes = looked("inspect_window_layer", self._numbered(f, i, 1), i, parts, h, list(others[2:]), [], [])
            return [h, memory, *states, *wholes]

        h, memory, *others = f.loop(tokens.count_if(f, fine, pairs), [h, memory, *states, *wholes], first)
        where = [length, positions, lengths]

        def middle(_: Value, h: Value, memory: Value, *others: Value) -> list[Value]:
            h, memory, *states = mamba(f.index(depth // 2), f.index(pairs), h, memory, list(others[:2]))
            (h, *caches), wholes = looked("inspect_full_layer", f.index(depth // 2 + 1), f.index(pairs), full, h, list(others[4:]),
                                          [*where, *others[2:4]], list(others[2:4]))
            return [h, memory, *states, *caches, *wholes]

        h, memory, *others = f.loop(tokens.count_if(f, fine, 1), [h, memory, *others[:2], *shared, *others[2:]], middle)
        shared, wholes = others[2:4], others[4:]

        def second(i: Value, h: Value, *wholes: Value) -> list[Value]:
            (h,) = f.call("gmu_layer", [h, memory, self._numbered(f, i, depth // 2 + 2), i], [h])
            (h,), wholes = looked("inspect_cross_layer", self._numbered(f, i, depth // 2 + 3), i, cross, h, list(wholes), [*where, *shared], [])
            return [h, *wholes]

        if self.tail:
            h, *wholes = f.loop(tokens.count_if(f, fine, self.tail), [h, *wholes], second)
        log_p = f.expand(self._scored(f, h, targets, ranked=False)[0], 0, [batch, length])
        f.ret(log_p, self._logits(f, layers.pick_rows(f, h, tokens.last_rows(f, lengths, batch, length))), *wholes)

    def _own(self, f: Function, batch: Value, length: Value) -> tuple[list[Value], list[Value], Value]:
        """States and keys of a call alone, which begin at position 0, and its lengths."""
        states = [f.empty([batch if size is None else size for size in shape], "f32")
                  for shape in (self.mamba.conv_shape, self.mamba.state_shape)]
        shared = [f.empty([1, batch, length, *heads], self.elem) for heads in (self.key_heads, self.value_heads)]
        return states, shared, f.fill(f.to_i64(length), [batch])

    def _caches(self, f: Function) -> list[Value]:
        return [*self._shared(f), *self._rings(f), *self._states(f)]

    def _places(self, f: Function) -> tuple[list[Value], list[Value]]:
        """Pages and slots, which an entry takes in the form that has them."""
        return [] if self.page_rows is None else self.places.arguments(f), self.states.arguments(f)

    def _place_checks(self, f: Function, batch: Value, length: Dim, positions: Value, ends: Value, tables: list[Value],
                      slots: list[Value], caches: list[Value]) -> list[tokens.Check]:
        return [*self.places.checks(f, batch, length, positions, ends, tables, caches[:2]), *self.states.checks(f, batch, slots, caches[2:])]

    def _chunk(self, m: Module, name: str, *, further: bool, scores: bool = False) -> None:
        """`prefill`, or `extend` for `further` tokens behind those that the caches hold, or `score`, which `scores` them too."""
        f = m.function(name)
        ids = f.argument("ids", "i64", [None, None])
        targets = f.argument("targets", "i64", [None, None]) if scores else None
        lengths = f.argument("lengths", "i64", [None])
        given = [f.argument("positions", "i64", [None])] if further else []
        tables, slots = self._places(f)
        caches = self._caches(f)
        batch, length = ids.dims
        checks = tokens.batch_checks(f, batch, [x.dims[0] for x in (lengths, *given)])
        checks.append(tokens.length_check(f, lengths, length))
        fits = tokens.require_all(f, checks)  # checked before the lengths are read for the positions
        positions = given[0] if further else f.fill(f.i64(0), [batch])
        ends = tokens.sums(f, positions, f.slice(lengths, [0], [positions.dims[0]]))
        if further:
            checks = self._place_checks(f, batch, length, positions, ends, tables, slots, caches)
        else:
            checks = tokens.batch_checks(f, batch, [cache.dims[1] for cache in caches])
            checks += [tokens.room_check(f, length, cache.dims[2]) for cache in caches[:2]]
        if scores:
            checks.append(likelihood.target_check(f, ids, targets))
        fine = f.scalar("arith.andi", fits, tokens.require_all(f, checks))
        lengths = f.slice(lengths, [0], [batch])
        h = tokens.embedded(f, tokens.flat(f, ids), self.vocab)
        # A prompt has no more keys than tokens, so that its form of attention does not follow the caches' capacity.
        where = tables or [caches[0].dims[2] if further else length]
        call = Call(batch, length, positions, ends, lengths, where, slots, fine)
        h, memory, *states, kcache, vcache, kring, vring = self._first_half(
            f, call, h, self._memory(f, h.dims[0]), caches[4:], caches[:2], caches[2:4], f"{'extend' if further else name}_window_layer")
        rows = tokens.last_rows(f, lengths, batch, length)
        last = self._second_half(f, call, layers.pick_rows(f, h, rows), layers.pick_rows(f, memory, rows), [kcache, vcache], one=True)
        scored: list[Value] = []
        if scores:  # the last token is computed once more, so that its logits are those of `extend`
            h = self._second_half(f, call, h, memory, [kcache, vcache], one=False)
            scored = [f.expand(value, 0, [batch, length]) for value in self._scored(f, h, targets, ranked=True)]
        f.ret(*scored, self._logits(f, last), kcache, vcache, kring, vring, *states)

    def _decode(self, m: Module) -> None:
        f = m.function("decode")
        ids, positions = f.argument("ids", "i64", [None]), f.argument("positions", "i64", [None])
        tables, slots = self._places(f)
        caches = self._caches(f)
        batch = ids.dims[0]
        ends = tokens.sums(f, positions, 1)
        checks = tokens.batch_checks(f, batch, [positions.dims[0]])
        checks += self._place_checks(f, batch, 1, positions, ends, tables, slots, caches)
        fine = tokens.require_all(f, checks)
        call = Call(batch, 1, positions, ends, f.fill(f.i64(1), [batch]), tables or [caches[0].dims[2]], slots, fine, one=True)
        h = tokens.embedded(f, ids, self.vocab)
        h, memory, *states, kcache, vcache, kring, vring = self._first_half(
            f, call, h, self._memory(f, batch), caches[4:], caches[:2], caches[2:4], "decode_window_layer")
        h = self._second_half(f, call, h, memory, [kcache, vcache], one=True)
        f.ret(self._logits(f, h), kcache, vcache, kring, vring, *states)


def _read_window(config: Config, depth: int) -> int:
    """The window of the layers that have one: a number, or a list that says it of every layer."""
    given = config.values.get("sliding_window")
    if not isinstance(given, (list, tuple)):
        return config.integer("sliding_window")
    windowed = [i % 2 == 1 and i < depth // 2 for i in range(depth)]
    sizes = {size for size, has in zip(given, windowed) if has}
    if len(given) != depth or len(sizes) != 1 or any(size is not None for size, has in zip(given, windowed) if not has):
        raise config.fail("sliding_window", f"a number, or a list of it for odd layers below {depth // 2} of {depth} and null for others", given)
    return Config({"sliding_window": sizes.pop()}, config.source).integer("sliding_window")


def _check_fixed(config: Config) -> None:
    """Refuses options of the family's configs that these models have with one value only."""
    for key in ("mlp_bias", "lm_head_bias"):
        if config.flag(key, False):
            raise config.fail(key, "false", True)
    if config.integer("mb_per_layer", 2) != 2:
        raise config.fail("mb_per_layer", "2", config.values["mb_per_layer"])
    if config.number("attention_dropout", 0.0) != 0.0:
        raise config.fail("attention_dropout", "0", config.values["attention_dropout"])


def _read_heads(config: Config, hidden: int) -> tuple[int, int, int]:
    """Heads of the output, key-value heads, and the width of a map."""
    maps = config.integer("num_attention_heads")
    kv_maps = config.integer("num_key_value_heads", maps)
    for key, count in (("num_attention_heads", maps), ("num_key_value_heads", kv_maps)):
        if count % 2:
            raise config.fail(key, "even, as two maps make a head", count)
    config.divides("num_attention_heads", maps, "hidden_size", hidden)
    config.divides("num_key_value_heads", kv_maps, "num_attention_heads", maps)
    return maps // 2, kv_maps // 2, hidden // maps


def build(config: Config, elem: str = "f32", page_rows: int | None = None, inspect: bool = False) -> Module:
    """The decoder of `"model_type": "phi4flash"`."""
    _check_fixed(config)
    hidden, depth = config.integer("hidden_size"), config.depth("num_hidden_layers")
    if depth % 4:
        raise config.fail("num_hidden_layers", "a multiple of 4", depth)
    heads, kv_heads, width = _read_heads(config, hidden)
    inner = config.integer("mamba_expand", 2) * hidden
    if inner > LARGEST:
        raise config.fail("mamba_expand", f"at most {LARGEST} when multiplied by hidden_size = {hidden}", config.values["mamba_expand"])
    rank = config.values.get("mamba_dt_rank", "auto")
    rank = math.ceil(hidden / 16) if rank == "auto" else config.integer("mamba_dt_rank")
    bias = config.flag("mamba_proj_bias", False)
    mamba = Mamba(ATTENTION, {"layers": depth // 4 + 1, "layer_step": 2}, hidden, inner, config.integer("mamba_d_state", 16),
                  config.integer("mamba_d_conv", 4, minimum=2, maximum=64), rank, config.flag("mamba_conv_bias", True), bias, elem)
    gmu = GatedMemory(ATTENTION, {"layers": depth // 4 - 1, "first_layer": depth // 2 + 2, "layer_step": 2}, hidden, inner, bias, elem)
    return SambaY(config.integer("vocab_size"), hidden, config.integer("intermediate_size"), depth,
                  config.number("layer_norm_eps", 1e-5, above=0), config.choice("hidden_act", layers.ACTIVATIONS, "silu"),
                  config.flag("tie_word_embeddings", True), heads, kv_heads, width, _read_window(config, depth), mamba, gmu, elem,
                  page_rows).build(read_quantization(config), inspect)
