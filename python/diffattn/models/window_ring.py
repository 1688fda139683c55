"""Keys and values of a sliding window in a ring: the token at position p has slot p modulo the window's width W.

Where keys carry no positions, their order means nothing: one query whose own key is stored sees the whole ring, or what of it is
filled. Several queries need their keys in order, as each has another window: `in_order` puts those that the ring holds before
the new ones.
"""

from __future__ import annotations

from collections.abc import Callable

from .mlir_text import Dim, Function, Value

#: The row of a ring that a sequence has.
RowOf = Callable[[Value], Value]


def store_one(f: Function, ring: Value, rows: Value, layer: Value, positions: Value, b: Value, row_of: RowOf) -> Value:
    """The ring `[L, N, W, heads, w]` with sequence b's token of `rows`, `[B, 1, heads, w]`, at its position."""
    heads = ring.dims[3:]
    slot = f.scalar("arith.remui", f.to_index(f.extract(positions, b)), f.index(ring.dims[2]))
    row = f.slice(rows, [b, 0, 0, 0], [1, 1, *heads], [0, 1])
    return f.insert(row, ring, [layer, row_of(b), slot, 0, 0], [1, 1, 1, *heads])


def held(f: Function, positions: Value, width: int, batch: Dim) -> Value:
    """Number of tokens before its position that each sequence has in the ring, i64 `[B]`."""
    return f.generic("b -> b", [positions], f.empty([batch], "i64"),
                     lambda p, _: f.emit(f"arith.minsi {p}, {f.i64(width)} : i64", "i64"))


def in_order(f: Function, ring: Value, rows: Value, layer: Value, positions: Value, before: Value, row_of: RowOf) -> Value:
    """`[B, W + T, heads, w]`: of each sequence the `before[b]` tokens that stand before its position, oldest first, and right
    behind them its T tokens of `rows`, `[B, T, heads, w]`. What follows has no meaning."""
    batch, length, heads, wide = rows.dims
    width = ring.dims[2]
    last = f.scalar("arith.subi", f.index(length), f.index(1))

    def read(position: Value, count: Value, _: Value) -> Value:
        b, j, head, i = (f.loop_index(axis) for axis in range(4))
        count = f.to_index(count)
        # All indices stay inside, as both sides are read and then one is taken.
        oldest = f.scalar("arith.subi", f.to_index(position), count)
        slot = f.scalar("arith.remui", f.scalar("arith.addi", oldest, j), f.index(width))
        new = f.scalar("arith.subi", f.emit(f"arith.maxui {j}, {count} : index", "index"), count)
        new = f.emit(f"arith.minui {new}, {last} : index", "index")
        old = f.compare("ult", j, count)
        return f.select(old, f.extract(ring, layer, row_of(b), slot, head, i), f.extract(rows, b, new, head, i))

    total = f.scalar("arith.addi", f.index(length), f.index(width))
    return f.generic("b, b -> b j h i", [positions, before], f.empty([batch, total, heads, wide], ring.elem), read)


def store(f: Function, ring: Value, rows: Value, layer: Value, positions: Value, ends: Value, row_of: RowOf) -> Value:
    """The ring with the last tokens of each sequence in `rows`, which begin at its position; those from its end on are padding."""
    batch, _, heads, wide = rows.dims
    width = ring.dims[2]

    def of_sequence(b: Value, ring: Value) -> list[Value]:
        position, end = (f.to_index(f.extract(place, b)) for place in (positions, ends))
        newest, count = f.scalar("arith.subi", end, f.index(1)), f.scalar("arith.subi", end, position)

        def write(old: Value) -> Value:
            slot, head, i = (f.loop_index(axis) for axis in range(3))
            # The newest token of a slot: as many tokens before the end as the slot is before the end's.
            back = f.scalar("arith.remui", f.scalar("arith.subi", f.scalar("arith.addi", newest, f.index(width)), slot), f.index(width))
            new = f.compare("ult", back, count)
            place = f.scalar("arith.subi", f.scalar("arith.subi", count, f.index(1)), back)
            return f.select(new, f.extract(rows, b, f.select(new, place, f.index(0)), head, i), old)

        at, size = [layer, row_of(b), 0, 0, 0], [1, 1, width, heads, wide]
        return [f.insert(f.generic("-> j h i", [], f.slice(ring, at, size, [0, 1]), write), ring, at, size)]

    return f.loop(batch, [ring], of_sequence)[0]
