"""How likely given tokens are: log-probabilities of ids, so that no logits `[B,T,V]` leave the model or fill its memory."""

from __future__ import annotations

from collections.abc import Callable

from . import layers
from .mlir_text import Function, Value
from .tokens import Check

#: Rows whose logits are in memory at a time.
ROWS = 64


def target_check(f: Function, ids: Value, targets: Value) -> Check:
    """Whether there is a target for every id."""
    same = f.scalar("arith.andi", *(f.compare("eq", a, b) for a, b in zip(ids.dims, targets.dims)))
    return same, "expected targets of the shape of ids"


def fitting(f: Function, targets: Value, count: Value) -> Value:
    """The targets `[B, T]` as `[count]`, which a check has compared with their number: where they are fewer or more, zeros."""
    own = f.multiply(*targets.dims)
    flat = f.collapse(targets, [[0, 1]], [own])
    inside = f.compare("eq", own, count)

    def read(_: Value) -> Value:
        place = f.select(inside, f.loop_index(0), f.index(0))
        return f.select(inside, f.extract(flat, place), f.i64(0))

    return f.generic("-> m", [], f.empty([count], "i64"), read)


def of_targets(f: Function, h: Value, targets: Value, vocab: int, logits: Callable[[Value], Value]) -> tuple[Value, Value, Value]:
    """Of the rows `h` `[M, D]`: log-probabilities of `targets` `[M]`, the likeliest ids (of equal ones the first) and their
    log-probabilities, each `[M]`. `logits` makes `[m, V]` of rows `[m, D]`."""
    layers.check_ids(f, targets, vocab)
    count = h.dims[0]
    parts = f.scalar("arith.ceildivui", count, f.index(ROWS))

    def part(i: Value, *old: Value) -> list[Value]:
        first = f.scalar("arith.muli", i, f.index(ROWS))
        size = f.scalar("arith.minui", f.scalar("arith.subi", count, first), f.index(ROWS))
        rows = logits(f.slice(h, [first, 0], [size, h.dims[1]]))
        found = _of_rows(f, rows, f.slice(targets, [first], [size]))
        return [f.insert(new, whole, [first], [size]) for whole, new in zip(old, found)]

    return tuple(f.loop(parts, [f.empty([count], elem) for elem in ("f32", "i64", "f32")], part))


def _of_rows(f: Function, logits: Value, targets: Value) -> tuple[Value, Value, Value]:
    size, vocab = logits.dims
    most = f.generic("m v -> m", [logits], f.fill(f.constant("0xFF800000", "f32"), [size]),
                     lambda a, most: f.scalar("arith.maximumf", most, a))
    total = f.generic("m v, m -> m", [logits, most], f.fill(f.f32(0), [size]),
                      lambda a, most, total: f.scalar("arith.addf", total, f.scalar("math.exp", f.scalar("arith.subf", a, most))))

    def place(a: Value, most: Value, first: Value) -> Value:
        here = f.select(f.compare("oeq", a, most), f.to_i64(f.loop_index(1)), f.i64(vocab - 1))
        return f.emit(f"arith.minsi {first}, {here} : i64", "i64")

    best = f.generic("m v, m -> m", [logits, most], f.fill(f.i64(vocab - 1), [size]), place)
    normal = f.generic("m -> m", [total], f.empty([size], "f32"), lambda t, _: f.scalar("math.log", t))

    def of_target(target: Value, most: Value, log: Value, _: Value) -> Value:
        # Kept inside even for ids that were reported as wrong.
        target = f.emit(f"arith.minsi {target}, {f.i64(vocab - 1)} : i64", "i64")
        target = f.to_index(f.emit(f"arith.maxsi {target}, {f.i64(0)} : i64", "i64"))
        score = f.extract(logits, f.loop_index(0), target)
        return f.scalar("arith.subf", f.scalar("arith.subf", score, most), log)

    of_targets = f.generic("m, m, m -> m", [targets, most, normal], f.empty([size], "f32"), of_target)
    of_best = f.generic("m -> m", [normal], f.empty([size], "f32"), lambda log, _: f.scalar("arith.negf", log))
    return of_targets, best, of_best
