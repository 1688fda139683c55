"""How likely given tokens are: log-probabilities of ids, so that no logits `[B,T,V]` leave the model or fill its memory."""

from __future__ import annotations

from collections.abc import Callable

from . import layers
from .mlir_text import Function, Value
from .tokens import Check

#: Rows whose logits are in memory at a time.
ROWS = 64
#: Number of likeliest ids that are given beside the target of a row.
LIKELIEST = 5
#: Infinities of f32.
_LOWEST, _HIGHEST = "0xFF800000", "0x7F800000"


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


def of_targets(f: Function, h: Value, targets: Value, vocab: int, logits: Callable[[Value], Value], *, ranked: bool) -> list[Value]:
    """Log-probabilities of `targets` `[M]` after the rows `h` `[M, D]`; with `ranked` also the likeliest ids and theirs `[M, LIKELIEST]`, of a
    smaller vocabulary all. Among equal ones those with low ids stand first. `logits` makes `[m, V]` of rows `[m, D]`."""
    layers.check_ids(f, targets, vocab)
    count, most = h.dims[0], min(LIKELIEST, vocab)
    parts = f.scalar("arith.ceildivui", count, f.index(ROWS))

    def part(i: Value, *old: Value) -> list[Value]:
        first = f.scalar("arith.muli", i, f.index(ROWS))
        size = f.scalar("arith.minui", f.scalar("arith.subi", count, first), f.index(ROWS))
        rows = logits(f.slice(h, [first, 0], [size, h.dims[1]]))
        largest, normal = _normal(f, rows)
        results = [_of_ids(f, rows, f.slice(targets, [first], [size]), largest, normal)]
        if ranked:
            results += _likeliest(f, rows, most, largest, normal)
        return [f.insert(new, whole, [first, 0][: len(new.dims)], new.dims) for whole, new in zip(old, results)]

    wholes = [f.empty([count], "f32")]
    if ranked:
        wholes += [f.empty([count, most], "i64"), f.empty([count, most], "f32")]
    return f.loop(parts, wholes, part)


def _normal(f: Function, logits: Value) -> tuple[Value, Value]:
    """The largest of each row `[m, V]`, and the logarithm of the sum of exponentials without it, both `[m]`."""
    size, _ = logits.dims
    largest = f.generic("m v -> m", [logits], f.fill(f.constant(_LOWEST, "f32"), [size]),
                        lambda a, most: f.scalar("arith.maximumf", most, a))
    total = f.generic("m v, m -> m", [logits, largest], f.fill(f.f32(0), [size]),
                      lambda a, most, total: f.scalar("arith.addf", total, f.scalar("math.exp", f.scalar("arith.subf", a, most))))
    return largest, f.generic("m -> m", [total], f.empty([size], "f32"), lambda t, _: f.scalar("math.log", t))


def _log_p(f: Function, logit: Value, largest: Value, normal: Value) -> Value:
    return f.scalar("arith.subf", f.scalar("arith.subf", logit, largest), normal)


def _of_ids(f: Function, logits: Value, ids: Value, largest: Value, normal: Value) -> Value:
    """Log-probabilities `[m]` of one id a row."""
    size, vocab = logits.dims

    def read(id_: Value, most: Value, log: Value, _: Value) -> Value:
        # Kept inside even for ids that were reported as wrong.
        id_ = f.emit(f"arith.minsi {id_}, {f.i64(vocab - 1)} : i64", "i64")
        id_ = f.to_index(f.emit(f"arith.maxsi {id_}, {f.i64(0)} : i64", "i64"))
        return _log_p(f, f.extract(logits, f.loop_index(0), id_), most, log)

    return f.generic("m, m, m -> m", [ids, largest, normal], f.empty([size], "f32"), read)


def _likeliest(f: Function, logits: Value, count: int, largest: Value, normal: Value) -> list[Value]:
    """Ids and log-probabilities `[m, count]`: one rank after the other, each of those behind the one before it."""
    size, vocab = logits.dims

    def is_behind(a: Value, last: Value, last_id: Value) -> Value:
        later = f.compare("sgt", f.to_i64(f.loop_index(1)), last_id)
        return f.scalar("arith.ori", f.compare("olt", a, last), f.scalar("arith.andi", f.compare("oeq", a, last), later))

    def rank(r: Value, ids: Value, scores: Value, last: Value, last_id: Value) -> list[Value]:
        def take(a: Value, last: Value, last_id: Value, most: Value) -> Value:
            a = f.select(is_behind(a, last, last_id), a, f.constant(_LOWEST, "f32"))
            return f.scalar("arith.maximumf", most, a)

        def place(a: Value, next_: Value, last: Value, last_id: Value, first: Value) -> Value:
            here = f.scalar("arith.andi", f.compare("oeq", a, next_), is_behind(a, last, last_id))
            here = f.select(here, f.to_i64(f.loop_index(1)), f.i64(vocab - 1))
            return f.emit(f"arith.minsi {first}, {here} : i64", "i64")

        next_ = f.generic("m v, m, m -> m", [logits, last, last_id], f.fill(f.constant(_LOWEST, "f32"), [size]), take)
        id_ = f.generic("m v, m, m, m -> m", [logits, next_, last, last_id], f.fill(f.i64(vocab - 1), [size]), place)
        score = f.generic("m, m, m -> m", [next_, largest, normal], f.empty([size], "f32"), lambda a, most, log, _: _log_p(f, a, most, log))
        column = [size, 1]
        new = f.insert(id_, ids, [0, r], column), f.insert(score, scores, [0, r], column), f.insert(next_, last, [0], [size])
        return [*new, f.insert(id_, last_id, [0], [size])]

    begin = [f.empty([size, count], "i64"), f.empty([size, count], "f32"), f.fill(f.constant(_HIGHEST, "f32"), [size]),
             f.fill(f.i64(-1), [size])]
    return f.loop(count, begin, rank)[:2]
