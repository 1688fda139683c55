"""A Mamba-1 layer and its states: a short convolution along the sequence, then a scan of a linear recurrence.

With inner width I, N states a channel and K taps, a sequence has the last K - 1 inputs of the convolution, `[K - 1, I]`, and the
state of the recurrence, `[N, I]`, both f32. A layer's function takes T further tokens of each of B sequences:

    u = silu(conv(x) + bias)                              x, z: the halves of in_proj
    dt = softplus(dt_proj(...)), B, C                      of x_proj(u)
    h_t = exp(dt_t * A) h_(t-1) + dt_t u_t B_t             A = -exp(A_log)
    y_t = C_t h_t + D u_t                                  the memory that later layers read
    out_proj(y silu(z))

A row at position 0 begins with zeros, whatever its states hold. Tokens behind a row's length change no state.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers
from .mlir_text import Dim, Function, Module, Value


@dataclass
class Mamba:
    """`prefix` is what names of the file begin with, `numbered` says which layers these are (options of `Module.weight`)."""

    prefix: str
    numbered: dict[str, int]
    hidden: int
    inner: int
    states: int
    taps: int
    rank: int
    conv_bias: bool
    bias: bool
    elem: str

    @property
    def layers(self) -> int:
        return self.numbered["layers"]

    @property
    def conv_shape(self) -> list[int | None]:
        return [self.layers, None, self.taps - 1, self.inner]

    @property
    def state_shape(self) -> list[int | None]:
        return [self.layers, None, self.states, self.inner]

    def _declare(self, m: Module, name: str, shape: list[int], elem: str, **options) -> None:
        m.weight(f"mamba.{{}}.{name}", shape, elem, source=self.prefix + name, **self.numbered, **options)

    def _declare_matrix(self, m: Module, name: str, shape: list[int]) -> None:
        # Matrices from which steps and states are computed are small, and the recurrence would multiply their rounding errors.
        if name in ("x_proj", "dt_proj"):
            self._declare(m, f"{name}.weight", shape, self.elem)
        else:
            m.matrix(f"mamba.{{}}.{name}.weight", shape, self.elem, source=f"{self.prefix}{name}.weight", **self.numbered)

    def declare(self, m: Module) -> None:
        matrices = {"in_proj": [2 * self.inner, self.hidden], "x_proj": [self.rank + 2 * self.states, self.inner],
                    "dt_proj": [self.inner, self.rank], "out_proj": [self.hidden, self.inner]}
        for name, shape in matrices.items():
            self._declare_matrix(m, name, shape)
            if name == "dt_proj" or self.bias and name != "x_proj":
                self._declare(m, f"{name}.bias", shape[:1], "f32")
        self._declare(m, "conv1d.weight", [self.inner, 1, self.taps], "f32")
        if self.conv_bias:
            self._declare(m, "conv1d.bias", [self.inner], "f32")
        # Channels side by side, as lanes run along them.
        self._declare(m, "A_log", [self.states, self.inner], "f32", transpose=True)
        self._declare(m, "D", [self.inner], "f32")

    def _weight(self, f: Function, name: str, which: Value) -> Value:
        return f.weight(f"mamba.{{}}.{name}", which)

    def _linear(self, f: Function, x: Value, name: str, which: Value, bias: bool) -> Value:
        return layers.linear(f, x, self._weight(f, f"{name}.weight", which), self._weight(f, f"{name}.bias", which) if bias else None)

    def _inputs(self, f: Function, x: Value, conv: Value, place: Value, offsets: Value, batch: Dim, length: Dim) -> Value:
        """Inputs of the convolution, `[B, K - 1 + T, I]`: the last ones before these tokens, and those of these tokens."""
        before, inner = self.taps - 1, self.inner
        wide = f.empty([batch, f.scalar("arith.addi", f.index(length), f.index(before)), inner], "f32")
        old = f.slice(conv, [place, 0, 0, 0], [1, batch, before, inner], [0])

        def begin(offset: Value, value: Value, _: Value) -> Value:
            return f.select(f.compare("sgt", offset, f.i64(0)), value, f.f32(0))

        size = [batch, before, inner]
        head = f.generic("b, b k i -> b k i", [offsets, old], f.slice(wide, [0, 0, 0], size), begin)
        wide = f.insert(head, wide, [0, 0, 0], size)
        size, at = [batch, length, inner], [0, before, 0]
        tail = f.generic("b t i -> b t i", [f.expand(x, 0, [batch, length])], f.slice(wide, at, size), lambda a, _: a)
        return f.insert(tail, wide, at, size)

    def _convolved(self, f: Function, wide: Value, which: Value, batch: Dim, length: Dim) -> Value:
        """`silu(conv + bias)`, `[B, T, I]`."""
        weight = self._weight(f, "conv1d.weight", which)
        size = [batch, length, self.inner]
        seen = [f.slice(wide, [0, k, 0], size) for k in range(self.taps)]
        taps = [f.slice(weight, [0, 0, k], [self.inner, 1, 1], [1, 2]) for k in range(self.taps)]
        bias = [self._weight(f, "conv1d.bias", which)] if self.conv_bias else []

        def add(*scalars: Value) -> Value:
            values, weights, more = scalars[: self.taps], scalars[self.taps: 2 * self.taps], scalars[2 * self.taps: -1]
            total = more[0] if more else f.f32(0)
            for value, tap in zip(values, weights):
                total = f.scalar("arith.addf", total, f.scalar("arith.mulf", value, tap))
            return layers.activate(f, "silu", total)

        spec = ", ".join(["b t i"] * self.taps + ["i"] * (self.taps + len(bias))) + " -> b t i"
        return f.generic(spec, [*seen, *taps, *bias], f.empty(size, "f32"), add)

    def _kept(self, f: Function, wide: Value, conv: Value, place: Value, lengths: Value, batch: Dim) -> Value:
        """The states of the convolution after these tokens: the last inputs of each row."""
        at, size = [place, 0, 0, 0], [1, batch, self.taps - 1, self.inner]

        def last(n: Value, _: Value) -> Value:
            token = f.scalar("arith.addi", f.to_index(n), f.loop_index(1))
            return f.extract(wide, f.loop_index(0), token, f.loop_index(2))

        kept = f.generic("b -> b k i", [lengths], f.slice(conv, at, size, [0]), last)
        return f.insert(kept, conv, at, size)

    def _steps(self, f: Function, rows: Value, lengths: Value, batch: Dim, length: Dim) -> Value:
        """`softplus`, and 0 behind a row's length, which leaves its state as it is."""

        def softplus(x: Value, n: Value, _: Value) -> Value:
            large = f.scalar("arith.maximumf", x, f.f32(0))
            small = f.scalar("math.exp", f.scalar("arith.negf", f.scalar("math.absf", x)))
            value = f.scalar("arith.addf", large, f.scalar("math.log1p", small))
            return f.select(f.compare("slt", f.to_i64(f.loop_index(1)), n), value, f.f32(0))

        return f.generic("b t i, b -> b t i", [f.expand(rows, 0, [batch, length]), lengths],
                         f.empty([batch, length, self.inner], "f32"), softplus)

    def _scan(self, f: Function, u: Value, dt: Value, dbc: Value, state: Value, memory: Value, which: Value, place: Value,
              offsets: Value, batch: Dim, length: Dim) -> tuple[Value, Value]:
        """The states after the tokens, and y in the place of `memory`, `[B, T, I]`."""
        states, inner = self.states, self.inner
        at, size = [place, 0, 0, 0], [1, batch, states, inner]
        decay = f.generic("n i -> n i", [self._weight(f, "A_log", which)], f.empty([states, inner], "f32"),
                          lambda a, _: f.scalar("arith.negf", f.scalar("math.exp", a)))
        skip = self._weight(f, "D", which)

        def begin(offset: Value, old: Value) -> Value:
            return f.select(f.compare("sgt", offset, f.i64(0)), old, f.f32(0))

        begun = f.generic("b -> b n i", [offsets], f.slice(state, at, size, [0]), begin)
        state = f.insert(begun, state, at, size)
        dbc = f.expand(dbc, 0, [batch, length])

        def token(t: Value, state: Value, memory: Value) -> list[Value]:
            dt_t, u_t = (f.slice(x, [0, t, 0], [batch, 1, inner], [1]) for x in (dt, u))
            b_t, c_t = (f.slice(dbc, [0, t, self.rank + part * states], [batch, 1, states], [1]) for part in (0, 1))

            def advance(step: Value, a: Value, value: Value, b: Value, old: Value) -> Value:
                kept = f.scalar("arith.mulf", f.scalar("math.exp", f.scalar("arith.mulf", step, a)), old)
                return f.scalar("arith.addf", kept, f.scalar("arith.mulf", f.scalar("arith.mulf", step, value), b))

            new = f.generic("b i, n i, b i, b n -> b n i", [dt_t, decay, u_t, b_t], f.slice(state, at, size, [0]), advance)
            state = f.insert(new, state, at, size)
            row = f.generic("b i, i -> b i", [u_t, skip], f.slice(memory, [0, t, 0], [batch, 1, inner], [1]),
                            lambda x, d, _: f.scalar("arith.mulf", x, d))
            memory = f.insert(row, memory, [0, t, 0], [batch, 1, inner])

            # One state of all channels after another, so that lanes run along channels.
            def read(n: Value, memory: Value) -> list[Value]:
                h = f.slice(state, [place, 0, n, 0], [1, batch, 1, inner], [0, 2])
                c = f.slice(c_t, [0, n], [batch, 1], [1])
                row = f.generic("b i, b -> b i", [h, c], f.slice(memory, [0, t, 0], [batch, 1, inner], [1]),
                                lambda x, y, total: f.scalar("arith.addf", total, f.scalar("arith.mulf", x, y)))
                return [f.insert(row, memory, [0, t, 0], [batch, 1, inner])]

            return [state, *f.loop(states, [memory], read)]

        return tuple(f.loop(length, [state, memory], token))

    def mix(self, f: Function, residual: Value, x: Value, memory: Value, conv: Value, state: Value, which: Value, place: Value,
            offsets: Value, lengths: Value, batch: Dim, length: Dim) -> tuple[Value, Value, Value, Value]:
        """The residual with the output of layer `which` for the rows `x`, y of these rows in the place of `memory` `[M, I]`, and both
        states, in which it is layer `place`. Sequences go on from `offsets`, i64 `[B]`, by `lengths` tokens of `length`."""
        rows, inner = x.dims[0], self.inner
        xz = self._linear(f, x, "in_proj", which, self.bias)
        wide = self._inputs(f, f.slice(xz, [0, 0], [rows, inner]), conv, place, offsets, batch, length)
        u = self._convolved(f, wide, which, batch, length)
        conv = self._kept(f, wide, conv, place, lengths, batch)
        dbc = self._linear(f, layers.cast(f, f.collapse(u, [[0, 1], [2]], [rows, inner]), self.elem), "x_proj", which, False)
        low = layers.cast(f, f.slice(dbc, [0, 0], [rows, self.rank]), self.elem)
        dt = self._steps(f, self._linear(f, low, "dt_proj", which, True), lengths, batch, length)
        state, y = self._scan(f, u, dt, dbc, state, f.expand(memory, 0, [batch, length]), which, place, offsets, batch,
                              length)
        memory = f.collapse(y, [[0, 1], [2]], [rows, inner])
        gated = layers.gated(f, "silu", f.slice(xz, [0, inner], [rows, inner]), memory, self.elem)
        weight = self._weight(f, "out_proj.weight", which)
        bias = self._weight(f, "out_proj.bias", which) if self.bias else None
        return layers.linear_onto(f, residual, gated, weight, bias), memory, conv, state


@dataclass
class GatedMemory:
    """A gated memory unit: `out_proj(memory silu(in_proj(x)))`."""

    prefix: str
    numbered: dict[str, int]
    hidden: int
    inner: int
    bias: bool
    elem: str

    def declare(self, m: Module) -> None:
        for name, shape in (("in_proj", [self.inner, self.hidden]), ("out_proj", [self.hidden, self.inner])):
            m.matrix(f"gmu.{{}}.{name}.weight", shape, self.elem, source=f"{self.prefix}{name}.weight", **self.numbered)
            if self.bias:
                m.weight(f"gmu.{{}}.{name}.bias", shape[:1], "f32", source=f"{self.prefix}{name}.bias", **self.numbered)

    def _weights(self, f: Function, name: str, which: Value) -> tuple[Value, Value | None]:
        return f.weight(f"gmu.{{}}.{name}.weight", which), f.weight(f"gmu.{{}}.{name}.bias", which) if self.bias else None

    def mix(self, f: Function, residual: Value, x: Value, memory: Value, which: Value) -> Value:
        gate = layers.linear(f, x, *self._weights(f, "in_proj", which))
        gated = layers.gated(f, "silu", gate, memory, self.elem)
        return layers.linear_onto(f, residual, gated, *self._weights(f, "out_proj", which))
