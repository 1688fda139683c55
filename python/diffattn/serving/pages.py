"""Which pages of the caches belong to whom. Numbers alone: what the pages hold is the model's.

A page is free, or held by as many sequences as share it, or kept: nobody holds it, but it has a part of a prompt that may come again.
Kept pages are taken back when free ones run out, those that were used longest ago first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import RunError


@dataclass(eq=False)
class _Unit:
    """Pages of a prefix, behind those of its parent, and the tokens in them."""

    parent: _Unit | None
    tokens: tuple[int, ...]
    pages: tuple[int, ...] = ()
    children: dict[tuple[int, ...], _Unit] = field(default_factory=dict)


class PagePool:
    """`pages` pages, of which prompts share units of `unit_pages` that hold the same `unit_tokens` tokens behind the same tokens.

    A sequence promises itself what it will need at most and then takes page by page, so that none of them ever finds none.
    """

    def __init__(self, pages: int, unit_tokens: int, unit_pages: int) -> None:
        self.pages, self.unit_tokens, self.unit_pages = pages, unit_tokens, unit_pages
        self._free = list(range(pages))  # a heap: low numbers first, so that memory is touched only where it is needed
        self._holders = [0] * pages
        self._root = _Unit(None, ())
        self._unit_of: dict[int, _Unit] = {}
        #: Units that nobody holds, in the order of their last use. Whoever holds a unit holds those before it.
        self._kept: OrderedDict[_Unit, None] = OrderedDict()
        self._promised = 0

    @property
    def used(self) -> int:
        """Pages that sequences hold."""
        return self.pages - self._available

    @property
    def unpromised(self) -> int:
        """Pages that can still be promised."""
        return self._available - self._promised

    @property
    def _available(self) -> int:
        return len(self._free) + self.unit_pages * len(self._kept)

    def promise(self, count: int) -> bool:
        """Whether `count` more pages are there; they are then kept for whoever asked."""
        if count > self.unpromised:
            return False
        self._promised += count
        return True

    def withdraw(self, count: int) -> None:
        """Gives back a promise of `count` pages that were not taken."""
        self._promised -= count

    def take(self) -> int:
        """Takes one of the promised pages."""
        if self._promised <= 0:
            raise RunError("expected a promised page, but none is left of the promise")
        if not self._free:
            self._forget_oldest()
        self._promised -= 1
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page

    def share(self, pages: Sequence[int]) -> None:
        """Adds a sequence to the holders of these pages."""
        for page in pages:
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Takes a sequence from the holders of these pages, and frees those without holders."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            unit = self._unit_of.get(page)
            if unit is None:
                heapq.heappush(self._free, page)
            elif not any(self._holders[other] for other in unit.pages):
                self._kept[unit] = None

    # ---- prefixes ---------------------------------------------------------------------------------------------

    def adopt(self, tokens: Sequence[int], held: int) -> list[int]:
        """The pages of the longest known prefix of `tokens`, behind those of the first `held` units, which the caller has: it now
        holds them, out of what it was promised."""
        pages: list[int] = []
        for unit in self._known(tokens)[held:]:
            self._hold(unit)
            self._promised -= self.unit_pages
            pages += unit.pages
        return pages

    def remember(self, tokens: Sequence[int], pages: list[int]) -> None:
        """Makes the units of `tokens`, whose keys the first of `pages` hold, known to others. Where equal ones are known, the caller
        gets those in place of its own."""
        unit = self._root
        for number in range(len(tokens) // self.unit_tokens):
            part = tuple(tokens[number * self.unit_tokens : (number + 1) * self.unit_tokens])
            place = slice(number * self.unit_pages, (number + 1) * self.unit_pages)
            child = unit.children.get(part)
            if child is None:
                child = unit.children[part] = _Unit(unit, part, tuple(pages[place]))
                self._unit_of.update(dict.fromkeys(child.pages, child))
            elif child.pages != tuple(pages[place]):
                self._hold(child)
                own, pages[place] = pages[place], child.pages
                self.release(own)
            unit = child

    def _hold(self, unit: _Unit) -> None:
        self._kept.pop(unit, None)
        self.share(unit.pages)

    def _known(self, tokens: Sequence[int]) -> list[_Unit]:
        unit, nodes = self._root, []
        for at in range(0, len(tokens) - self.unit_tokens + 1, self.unit_tokens):
            child = unit.children.get(tuple(tokens[at : at + self.unit_tokens]))
            if child is None:
                break
            nodes.append(child)
            unit = child
        return nodes

    def _forget_oldest(self) -> None:
        """Frees the pages of a unit that nobody holds, and that no other one is behind."""
        unit = next(unit for unit in self._kept if not unit.children)
        del self._kept[unit], unit.parent.children[unit.tokens]
        for page in unit.pages:
            del self._unit_of[page]
            heapq.heappush(self._free, page)
