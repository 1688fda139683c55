"""Where states of sequences lie, whose size does not grow with them: in caches of as many rows as a batch has, or in slots, which a call
names.

    RowStates   caches [layers, B, ...]: sequence b has row b
    Slots       caches [layers, N, ...]: it has row slots[b]

Both are updated in place, and nothing is written of rows that a call does not name.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import tokens
from .mlir_text import Function, Value


class RowStates:
    def arguments(self, f: Function) -> list[Value]:
        """Arguments that entries and layers take before the caches."""
        return []

    def checks(self, f: Function, batch: Value, slots: Sequence[Value], caches: Sequence[Value]) -> list[tokens.Check]:
        """Checks that each sequence has its row."""
        return tokens.batch_checks(f, batch, [cache.dims[1] for cache in caches])

    def row_of(self, f: Function, b: Value, slots: Sequence[Value]) -> Value:
        return b

    def taken(self, f: Function, caches: Sequence[Value], layer: Value, batch: Value, slots: Sequence[Value]) -> tuple[list[Value], Value]:
        """Caches whose row b is that of sequence b, and the number that the layer has in them."""
        return list(caches), layer

    def put(self, f: Function, caches: Sequence[Value], taken: Sequence[Value], layer: Value, batch: Value, slots: Sequence[Value]) -> list[Value]:
        """The caches with what became of those that were taken."""
        return list(taken)


class Slots(RowStates):
    def arguments(self, f: Function) -> list[Value]:
        return [f.argument("slots", "i64", [None])]

    def checks(self, f: Function, batch: Value, slots: Sequence[Value], caches: Sequence[Value]) -> list[tokens.Check]:
        (named,), (first, *others) = slots, caches
        checks = [(f.compare("eq", batch, named.dims[0]), "expected the batches of ids and slots to be equal")]
        checks += [(f.compare("eq", first.dims[1], other.dims[1]), "expected the caches of states to have equally many slots") for other in others]
        known = tokens.all_within(f, named, 0, f.to_i64(first.dims[1]))
        checks.append((known, "expected every slot to be at least 0 and below the number of slots"))

        # Two sequences in one slot would each go on from what the other one left.
        def narrow(one: Value, other: Value, fine: Value) -> Value:
            same = f.compare("eq", f.loop_index(0), f.loop_index(1))
            return f.scalar("arith.andi", fine, f.scalar("arith.ori", same, f.compare("ne", one, other)))

        apart = f.extract(f.generic("b, c ->", [named, named], f.rank0(f.true()), narrow))
        checks.append((apart, "expected a slot of its own for each sequence"))
        return checks

    def row_of(self, f: Function, b: Value, slots: Sequence[Value]) -> Value:
        return f.to_index(f.extract(slots[0], b))

    def taken(self, f: Function, caches: Sequence[Value], layer: Value, batch: Value, slots: Sequence[Value]) -> tuple[list[Value], Value]:
        def of(cache: Value) -> Value:
            def read(slot: Value, _: Value) -> Value:
                return f.extract(cache, layer, f.to_index(slot), f.loop_index(1), f.loop_index(2))

            rows = f.generic("b -> b k i", slots, f.empty([batch, *cache.dims[2:]], cache.elem), read)
            return f.expand(rows, 0, [1, batch])

        return [of(cache) for cache in caches], f.index(0)

    def put(self, f: Function, caches: Sequence[Value], taken: Sequence[Value], layer: Value, batch: Value, slots: Sequence[Value]) -> list[Value]:
        def of_sequence(b: Value, *old: Value) -> list[Value]:
            row, stored = self.row_of(f, b, slots), []
            for cache, new in zip(old, taken):
                size = [1, 1, *cache.dims[2:]]
                stored.append(f.insert(f.slice(new, [0, b, 0, 0], size, [0, 1]), cache, [layer, row, 0, 0], size))
            return stored

        return f.loop(batch, list(caches), of_sequence)
