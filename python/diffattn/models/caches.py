"""Where the keys and values of a decoder lie: in rows of caches, one for each sequence, or in pages, which a table names.

    Rows    kcache, vcache [layers, B, C, heads, width]: the token at position p of sequence b is row p of b
    Pages   kcache, vcache [layers, P, S, heads, width]: it is row p mod S of page block_table[b, p div S]

Both are updated in place. S is static, as it is a part of the code that reads pages where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import layers, tokens
from .mlir_text import Dim, Function, Value

Heads = tuple[int, int]


class Rows:
    """Caches of as many rows as the batch has. A chunk's padding is stored too, so it must find room."""

    def arguments(self, f: Function) -> list[Value]:
        """Arguments that entries and layers take before the caches."""
        return []

    def shape(self, depth: int, heads: Heads) -> list[int | None]:
        return [depth, None, None, *heads]

    def checks(self, f: Function, batch: Value, length: Dim, positions: Value, ends: Value, tables: Sequence[Value],
               caches: Sequence[Value]) -> list[tokens.Check]:
        """Checks that `length` tokens of each sequence have their places, the first at `positions`; padded ones end at `ends`."""
        checks = tokens.batch_checks(f, batch, [cache.dims[1] for cache in caches])
        if length == 1:
            return checks + [tokens.position_check(f, positions, cache.dims[2]) for cache in caches]
        return checks + [tokens.chunk_check(f, positions, length, cache.dims[2]) for cache in caches]

    def store(self, f: Function, batch: Value, length: Dim, layer: Value, positions: Value, ends: Value, tables: Sequence[Value],
              caches: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        """The caches with the rows `new`, `[B, length, heads, width]`, from each sequence's position on."""

        def of_sequence(b: Value, *old: Value) -> list[Value]:
            at = f.to_index(f.extract(positions, b))
            stored = []
            for cache, rows in zip(old, new):
                heads = rows.dims[2:]
                part = f.slice(rows, [b, 0, 0, 0], [1, length, *heads], [0, 1] if length == 1 else [0])
                stored.append(f.insert(part, cache, [layer, b, at, 0, 0], [1, 1, length, *heads]))
            return stored

        return f.loop(batch, caches, of_sequence)

    def in_view(self, f: Function, cache: Value, pairing: str | None, layer: Value, batch: Value,
                tables: Sequence[Value]) -> Value | tuple[Value, Value]:
        """A layer of a cache, or with `pairing` its two maps, of the whole capacity: how far a row sees is data, which kv_len
        says, and no shape depends on data."""
        return _view(f, cache, pairing, layer, batch, cache.dims[2])

    def key_operands(self, tables: Sequence[Value]) -> dict[str, Value]:
        """Operands by which attention finds the keys."""
        return {}


class FirstRows(Rows):
    """Rows of which layers look at the first `visible_keys` places alone, so that the form of attention need not follow the capacity."""

    def arguments(self, f: Function) -> list[Value]:
        return [f.argument("visible_keys", "index")]

    def in_view(self, f: Function, cache: Value, pairing: str | None, layer: Value, batch: Value,
                tables: Sequence[Value]) -> Value | tuple[Value, Value]:
        return _view(f, cache, pairing, layer, batch, tables[0])


@dataclass(frozen=True)
class Pages:
    """Caches of any number of pages with `rows` tokens each. Padding is not stored, and needs no room."""

    rows: int

    def arguments(self, f: Function) -> list[Value]:
        return [f.argument("block_table", "i64", [None, None])]

    def shape(self, depth: int, heads: Heads) -> list[int | None]:
        return [depth, None, self.rows, *heads]

    def checks(self, f: Function, batch: Value, length: Dim, positions: Value, ends: Value, tables: Sequence[Value],
               caches: Sequence[Value]) -> list[tokens.Check]:
        (table,), (first, *others) = tables, caches
        same = f.compare("eq", batch, table.dims[0])
        checks = [(same, "expected the batches of ids and block_table to be equal")]
        checks += [(f.compare("eq", first.dims[1], other.dims[1]), "expected the caches to have equally many pages") for other in others]
        room = f.to_i64(f.multiply(table.dims[1], self.rows))
        fits = f.scalar("arith.andi", tokens.all_within(f, positions, 0, room),
                        tokens.all_within(f, ends, 0, f.scalar("arith.addi", room, f.i64(1))))
        checks.append((fits, "expected every position to be at least 0, and positions and lengths to end within the pages that block_table has place for"))
        # None of them where the batches differ, as there may be no row to read.
        count = f.select(f.scalar("arith.andi", same, f.compare("eq", batch, ends.dims[0])), batch, f.index(0))
        table, ends = f.slice(table, [0, 0], [count, table.dims[1]]), f.slice(ends, [0], [count])

        def narrow(page: Value, end: Value, fine: Value) -> Value:
            begins = f.scalar("arith.muli", f.to_i64(f.loop_index(1)), f.i64(self.rows))
            # As unsigned numbers, negative ones are large too.
            known = f.compare("ult", page, f.to_i64(first.dims[1]))
            return f.scalar("arith.andi", fine, f.scalar("arith.ori", known, f.compare("sge", begins, end)))

        known = f.extract(f.generic("b m, b ->", [table, ends], f.rank0(f.true()), narrow))
        checks.append((known, "expected every entry of block_table to be a page of the caches, for all keys that a sequence has"))
        return checks

    def store(self, f: Function, batch: Value, length: Dim, layer: Value, positions: Value, ends: Value, tables: Sequence[Value],
              caches: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        (table,), rows = tables, f.index(self.rows)

        def page_of(b: Value, number: Value) -> Value:
            return f.to_index(f.extract(table, b, number))

        def one(b: Value, *old: Value) -> list[Value]:
            at = f.to_index(f.extract(positions, b))
            page, row = page_of(b, f.scalar("arith.divui", at, rows)), f.scalar("arith.remui", at, rows)
            parts = [f.slice(part, [b, 0, 0, 0], [1, 1, *part.dims[2:]], [0, 1]) for part in new]
            return [f.insert(part, cache, [layer, page, row, 0, 0], [1, 1, 1, *part.dims]) for cache, part in zip(old, parts)]

        # Pages that `length` tokens may lie in, wherever they begin; as sizes are to follow from shapes alone, whole pages are written.
        most = None if length == 1 else f.scalar("arith.addi", f.scalar("arith.ceildivui", length, rows), f.index(1))

        def several(b: Value, *old: Value) -> list[Value]:
            begin, end = (f.to_index(f.extract(place, b)) for place in (positions, ends))
            first, last = (f.scalar("arith.divui", at, rows) for at in (begin, f.scalar("arith.subi", end, f.index(1))))
            limit = f.scalar("arith.subi", length, f.index(1))

            def of_page(j: Value, *old: Value) -> list[Value]:
                # Behind the last one it is written again, with what it has.
                number = f.scalar("arith.minui", f.scalar("arith.addi", first, j), last)
                start, page = f.scalar("arith.muli", number, rows), page_of(b, number)
                stored = []
                for cache, part in zip(old, new):
                    heads = part.dims[2:]
                    place = ([layer, page, 0, 0, 0], [1, 1, self.rows, *heads])

                    def choose(kept: Value, part: Value = part) -> Value:
                        at = f.scalar("arith.addi", start, f.loop_index(0))
                        inside = f.scalar("arith.andi", f.compare("uge", at, begin), f.compare("ult", at, end))
                        row = f.scalar("arith.minui", f.select(inside, f.scalar("arith.subi", at, begin), f.index(0)), limit)
                        return f.select(inside, f.extract(part, b, row, f.loop_index(1), f.loop_index(2)), kept)

                    rows_of_page = f.generic("-> s h w", [], f.slice(cache, *place, [0, 1]), choose)
                    stored.append(f.insert(rows_of_page, cache, *place))
                return stored

            return f.loop(most, old, of_page)

        return f.loop(batch, caches, one if length == 1 else several)

    def in_view(self, f: Function, cache: Value, pairing: str | None, layer: Value, batch: Value,
                tables: Sequence[Value]) -> Value | tuple[Value, Value]:
        return _view(f, cache, pairing, layer, cache.dims[1], cache.dims[2])

    def key_operands(self, tables: Sequence[Value]) -> dict[str, Value]:
        return {"block_table": tables[0]}


def _view(f: Function, cache: Value, pairing: str | None, layer: Value, count: Value, length: Dim) -> Value | tuple[Value, Value]:
    """The first `length` tokens of `count` entries of a layer of a cache, in whole or as the two maps of a pairing."""
    if pairing is not None:
        return layers.split_cache(f, cache, pairing, layer, count, length)
    return f.slice(cache, [layer, 0, 0, 0, 0], [1, count, length, *cache.dims[3:]], [0])
