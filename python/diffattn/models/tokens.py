"""Parts of the entries of all decoders: checks of a call's arguments, which rows hold the last tokens, and the embedding.

A call whose arguments are out of range reports an error and computes no layer, as memory outside of a cache would be written.
"""

from __future__ import annotations

from . import layers
from .mlir_text import Function, Value

#: A condition, an i1, and what was expected where it is false.
Check = tuple[Value, str]


def embedded(f: Function, ids: Value, vocab: int) -> Value:
    """The rows of the embedding, `[M, D]` f32, of the ids `[M]`."""
    layers.check_ids(f, ids, vocab)
    return layers.embed(f, ids, f.weight("model.embed_tokens.weight"))


def flat(f: Function, ids: Value) -> Value:
    """The ids `[B, T]` as `[B * T]`."""
    return f.collapse(ids, [[0, 1]], [f.multiply(*ids.dims)])


def require_all(f: Function, checks: list[Check]) -> Value:
    """Whether all of them hold; each that does not is an error of the run."""
    every = f.true()
    for fine, message in checks:
        f.require(fine, message)
        every = f.scalar("arith.andi", every, fine)
    return every


def count_if(f: Function, fine: Value, count: int) -> Value:
    """Number of layers to compute: none if the checks failed."""
    return f.select(fine, f.index(count), f.index(0))


def batch_checks(f: Function, batch: Value, others: list[Value]) -> list[Check]:
    message = "expected the batches of ids, lengths or positions, and caches to be equal"
    return [(f.compare("eq", batch, other), message) for other in others]


def all_within(f: Function, values: Value, low: int, high: Value) -> Value:
    """Whether every element of the i64 tensor is at least `low` and below `high`."""

    def narrow(value: Value, fine: Value) -> Value:
        above, below = f.compare("sge", value, f.i64(low)), f.compare("slt", value, high)
        return f.scalar("arith.andi", f.scalar("arith.andi", fine, above), below)

    return f.extract(f.generic("b ->", [values], f.rank0(f.true()), narrow))


def length_check(f: Function, lengths: Value, longest: Value) -> Check:
    beyond = f.scalar("arith.addi", f.to_i64(longest), f.i64(1))
    return (all_within(f, lengths, 1, beyond), "expected every length to be at least 1 and at most the length of ids")


def room_check(f: Function, length: Value, capacity: Value) -> Check:
    return (f.compare("ule", length, capacity), "expected the length of ids to be at most the capacity of the caches")


def position_check(f: Function, positions: Value, capacity: Value) -> Check:
    return (all_within(f, positions, 0, f.to_i64(capacity)),
            "expected every position to be at least 0 and below the capacity of the caches")


def chunk_check(f: Function, positions: Value, length: Value, capacity: Value) -> Check:
    """Whether `length` tokens behind each position have a place. Padding too, as all of them are stored."""
    last = f.scalar("arith.subi", f.to_i64(capacity), f.to_i64(length))
    return (all_within(f, positions, 0, f.scalar("arith.addi", last, f.i64(1))),
            "expected every position to be at least 0, and positions and the length of ids to end within the capacity of the caches")


def sums(f: Function, a: Value, b: Value | int) -> Value:
    """The sums of two i64 tensors `[B]`, or of one and a number. As long as `a`, which checks have compared with the batch."""
    operands = [a] if isinstance(b, int) else [a, b]
    return f.generic(", ".join("b" for _ in operands) + " -> b", operands, f.empty(a.dims, "i64"),
                     lambda x, y, *_: f.scalar("arith.addi", x, f.i64(b) if isinstance(b, int) else y))


def largest(f: Function, values: Value) -> Value:
    """The largest of the i64 tensor, at least 0, as an index."""
    most = f.generic("b ->", [values], f.rank0(f.i64(0)), lambda n, most: f.emit(f"arith.maxsi {n}, {most} : i64", "i64"))
    return f.to_index(f.extract(most))


def last_rows(f: Function, lengths: Value, batch: Value, length: Value) -> Value:
    """The number of the row that holds the last token of each sequence, `[B]`, in rows `[B * T]`."""

    def last_row(n: Value, _: Value) -> Value:
        # Kept inside even for lengths that were reported as wrong.
        n = f.emit(f"arith.minsi {n}, {f.to_i64(length)} : i64", "i64")
        last = f.scalar("arith.subi", f.emit(f"arith.maxsi {n}, {f.i64(1)} : i64", "i64"), f.i64(1))
        start = f.scalar("arith.muli", f.loop_index(0), length)
        return f.scalar("arith.addi", start, f.to_index(last))

    return f.generic("b -> b", [f.slice(lengths, [0], [batch])], f.empty([batch], "index"), last_row)
