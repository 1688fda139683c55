"""The compiled call of a layer's step on a CPU, which stores the new keys and values and computes attention of all requests.

Whatever can be is done less often than a layer is called: types, shapes and strides are checked once for each kind of step (`Layout`), tables
once a step (`StepCall`), and code is looked up once for each layer. A layer writes its addresses over those of the layer before, and calls.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from .._attention import executable_of
from ..array_facts import facts_of
from ..attention_module import options_of
from ..attention_operands import NAMES
from ..attention_plan import StoringPlan
from ..calls import CompiledCode

#: Layouts by all that they follow from; the oldest makes room.
MOST_LAYOUTS = 256
_layouts: dict[tuple, Layout] = {}
_lock = threading.Lock()
#: Numbers of the forms of code: layouts of one number differ in sizes and strides that code is not compiled for.
_forms: dict[tuple, int] = {}
_numbers = itertools.count()
_ENTRY = b"attention"
#: Arguments behind those of the op, and words of an argument, of which the first is its address.
_NEW = ("slots", "new_keys", "new_values")
_WORDS = 4


class Layout:
    """Calls that differ in addresses and in their layers' options alone."""

    def __init__(self, operands: dict[str, Any], shared: bool, new: tuple[Any, Any, Any], options: dict[str, Any]) -> None:
        """`operands` by the names of `NAMES`; `shared`: k1 is k2 too; `new`: slots, new keys and new values; `options`
        of a layer, those of `attention` that are no arrays. Raises InputError or UsageError where they do not fit together."""
        specs = {name: facts_of(operand, name)[0] for name, operand in operands.items()}
        self._plan = StoringPlan(tuple(specs.get(name) for name in NAMES), shared, options_of(**options),
                                 tuple(facts_of(array, name)[0] for name, array in zip(_NEW, new)))
        names = [*(NAMES[slot] for slot in self._plan.slots), *_NEW]
        self.count = len(names)
        #: Where an argument's address is, by its name.
        self.places = {name: place for place, name in enumerate(names)}
        with _lock:
            self.form = _forms.setdefault(self._plan.form, next(_numbers))

    def arguments(self) -> Any:
        """New arguments, as the C interface takes them, without addresses; the layout must outlive them."""
        return self._plan.packed([0] * self.count)

    def compile(self, options: dict[str, Any]) -> CompiledCode:
        """The code of a layer with these options, for all layouts of the form."""
        return executable_of("cpu", self._plan.module_of(options_of(**options)), self._plan.entry, frames=4)


def find_layout(facts: tuple) -> Layout | None:
    """The layout that was kept for these facts."""
    return _layouts.get(facts)


def keep_layout(facts: tuple, layout: Layout) -> None:
    """Keeps the layout of all calls with these facts."""
    with _lock:
        _layouts[facts] = layout
        if len(_layouts) > MOST_LAYOUTS:
            del _layouts[next(iter(_layouts))]


class StepCall:
    """The arguments of a step's calls. Layers have it in common whose `kind` is one object and whose rows have the same `strides`; one layer
    calls at a time. `tables`: arrays that they share, by name; `noise`: bytes from a token's first signal head to its first noise head."""

    __slots__ = ("_addresses", "_arguments", "_count", "_k2", "_new_keys", "_noise", "_owners", "_result", "_weight", "form", "kind", "layout",
                 "stores", "strides")

    def __init__(self, kind: object, strides: tuple, layout: Layout, tables: dict[str, Any], stores: bool, noise: int) -> None:
        self.kind, self.strides, self.layout, self.form, self.stores = kind, strides, layout, layout.form, stores
        self._arguments, self._count, self._noise, self._owners = layout.arguments(), layout.count, noise, tables
        self._addresses = memoryview(self._arguments).cast("B").cast("Q")[::_WORDS]
        places = layout.places
        for name, table in tables.items():
            self._addresses[places[name]] = facts_of(table, name)[1]
        self._k2, self._weight = places.get("k2"), places.get("norm_weight")
        self._result, self._new_keys = places["init"], places["new_keys"]

    def __call__(self, code: CompiledCode, pages: tuple[int, int, int], query: int, key: int, value: int, lam: int, weight: int | None,
                 output: int) -> None:
        """Calls a layer's code at these addresses: those of k1, k2 and v, of rows of queries, new keys, new values and the result, and of lambda
        and the norm's weight."""
        addresses, result, new_keys, k2 = self._addresses, self._result, self._new_keys, self._k2
        addresses[0], addresses[1], addresses[2] = query, pages[0], query + self._noise
        place = 3
        if k2 is not None:
            addresses[3] = pages[1]
            place = 4
        addresses[place], addresses[place + 1] = pages[2], lam
        if weight is not None:
            addresses[place + 2] = weight
        addresses[result], addresses[new_keys], addresses[new_keys + 1] = output, key, value
        code.call_again(_ENTRY, self._arguments, self._count)
