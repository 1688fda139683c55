"""The plan of one kind of call of `diffattn.attention`: its arguments checked by their types, shapes and strides, the module
that it is compiled from, and its arrays as the C interface takes them.

All of it follows from the specs of the arrays (array_facts.py), the options and the target, so calls that agree in these share
one plan. What depends on contents or addresses is checked by each call (_attention.py).
"""

from __future__ import annotations

import ctypes
import struct

import numpy as np

from .array_facts import IN_ELEMENTS, ArrayType
from .arrays import CODES, ON_DEVICE, Array, dense_steps
from .attention_module import attributes_of, backward_module, memref, module, size_bounds, storing_module
from .attention_operands import (AS_Q1, BACKWARD_NAMES, DIFFERENTIABLE, F32, FLOATS, I32, I64, KEYS, NAMES, OF_ONE_MAP, OPERAND, OPERANDS,
                                 POSITIONS, RESULTS, SAVED, SINKS, TABLES, Operand)
from .errors import InputError, UsageError

KV_LEN, Q_OFFSET, INIT, X, LSE1, LSE2, O2 = (NAMES.index(name) for name in (*POSITIONS, *RESULTS))
CU_SEQLENS_Q, CU_SEQLENS_K, BLOCK_TABLE = (NAMES.index(name) for name in TABLES)
#: The fields of `Array`, and what writes so many of them.
_ARRAY = "QiiQQ"
_PACKS = [struct.Struct("=" + _ARRAY * count).pack for count in range(len(BACKWARD_NAMES) + 1)]


class _Packed:
    """Arrays as the C interface takes them: those of `slots`, in their order."""

    slots: tuple[int, ...]
    arrays: list[ArrayType]

    def _lay_out(self) -> None:
        # The sizes and strides of all arrays, one after the other.
        numbers = [number for array in self.arrays for sizes in (array.shape, array.steps) for number in sizes]
        self._numbers = (ctypes.c_int64 * len(numbers))(*numbers)
        self._words, at = [], ctypes.addressof(self._numbers)
        for array in self.arrays:
            rank = array.ndim
            self._words += (0, CODES[array.dtype] + (ON_DEVICE if array.on_device else 0), rank, at, at + 8 * rank)
            at += 16 * rank

    def packed(self, addresses):
        """Arrays at these addresses, one for each of `slots`, for the C interface; the plan must outlive them."""
        words = self._words[:]
        words[:: len(_ARRAY)] = addresses
        count = len(self.arrays)
        return (Array * count).from_buffer_copy(_PACKS[count](*words))


class Plan(_Packed):
    """`specs` has one spec for each of NAMES, None: not given. `has_lengths`, `has_offsets`: whether kv_len and q_offset are."""

    #: The compiled function's name.
    entry = "attention"

    def __init__(self, specs, has_lengths: bool, has_offsets: bool, shared: bool, options, target: str):
        #: Whether there is one map.
        self.is_single = specs[NAMES.index("q2")] is None
        given = {name: ArrayType(spec, display_name_of(name, self.is_single)) for name, spec in zip(NAMES, specs) if spec is not None}
        sizes = check_arguments(given, options, has_lengths)
        #: The result's shape and, if none was given, its type.
        self.shape, self.dtype = tuple(sizes[axis] for axis in ("B", "Hs", "Tq", "dv")), given["q1"].dtype
        #: How many sequences there are, and so numbers of kv_len and q_offset.
        self.batch, self.is_empty = sizes["N"], 0 in self.shape
        #: Queries, keys (of a page), pages; and whether there are tables.
        self.queries, self.keys, self.pages = sizes["Tq"], sizes["Tk"], sizes["P"]
        self.has_tables = any(name in given for name in TABLES)
        _add_positions(given, self.batch, has_lengths, has_offsets)
        if "init" in given:
            _check_out(given["init"], self.dtype, self.shape)
        else:
            given["init"] = ArrayType((self.dtype, self.shape, dense_steps(self.shape), IN_ELEMENTS))
        if "x" in given:
            _check_x(given, options, self.shape)
            _check_distinct(given["x"], "x")
        if "o2" in given:
            if self.is_single:
                raise UsageError("o2: expected none with one map, because it is of the second one")
            _check_saved(given, "o2", self.shape)
            _check_distinct(given["o2"], "o2")
        if shared:
            del given["k2"]
        self.slots = tuple(slot for slot, name in enumerate(NAMES) if name in given)
        self.arrays = [given[NAMES[slot]] for slot in self.slots]
        self.q1_on_device, self.any_on_device = given["q1"].on_device, any(array.on_device for array in self.arrays)
        tables = tuple(name for name in TABLES if name in given)
        types = tuple((NAMES[slot], memref(NAMES[slot], array, tables)) for slot, array in zip(self.slots, self.arrays))
        attributes = attributes_of(sizes["d"], options) + ("" if tables else size_bounds(sizes["Tq"], sizes["Tk"]))
        self.module, self.target = module(types, attributes, shared), target
        self._types, self._shared = types, shared
        self._lay_out()

    def name_of(self, slot: int) -> str:
        """Name in errors of the operand of a slot."""
        return display_name_of(NAMES[slot], self.is_single)


class StoringPlan(Plan):
    """The plan of a call with keys and values in pages of a CPU, which stores new ones there before it reads them: `new` has the specs of the
    three arguments behind the operands (`storing_module`). Calls of other options may have it too."""

    def __init__(self, specs, shared: bool, options, new):
        super().__init__(specs, True, False, shared, options, "cpu")
        pages = [array for slot, array in zip(self.slots, self.arrays) if NAMES[slot] in KEYS]
        heads = sum(array.shape[1] for array in pages[:-1])
        given = [ArrayType(spec) for spec in new]
        tokens = given[0].shape[0]
        for array, name, dtype, shape in zip(given, ("slots", "new keys", "new values"), (I64, self.dtype, self.dtype), (
                (tokens,), (tokens, heads, pages[0].shape[3]), (tokens, *pages[-1].shape[1::2]))):
            _check_array(array, name, (dtype,), shape)
            if array.steps[-1] != 1:
                raise InputError(f"{name}: expected a dense last axis, but got strides {list(array.steps)}")
        self.arrays += given
        self._pages = tuple(tuple(array.shape[1:]) for array in pages)
        self._lay_out()

    @property
    def form(self) -> tuple:
        """All that code follows from but the options."""
        return self._types, self._shared, self.dtype, self._pages

    def module_of(self, options) -> str:
        """The module that is compiled for calls with such options."""
        return storing_module(self._types, attributes_of(self._pages[0][2], options), self._shared, self.dtype, self._pages)


class BackwardPlan(_Packed):
    """The plan of a call of gradients. `specs` has one spec for each of BACKWARD_NAMES; destinations are given for the gradients that are
    wanted. `shared`: k1 is k2 too, and its destination, if there is one, is that of both."""

    entry = "attention_backward"

    def __init__(self, specs, has_lengths: bool, has_offsets: bool, shared: bool, options, target: str):
        is_single = specs[NAMES.index("q2")] is None
        given = {name: ArrayType(spec, name if name in SAVED else display_name_of(name, is_single) if name in NAMES else _operand(name).display_name)
                 for name, spec in zip(BACKWARD_NAMES, specs) if spec is not None}
        operands = {name: array for name, array in given.items() if name in NAMES and name not in RESULTS}
        sizes = check_arguments(operands, options, has_lengths)
        shape = tuple(sizes[axis] for axis in ("B", "Hs", "Tq", "dv"))
        _check_array(given["d_out"], "d_out", (operands["q1"].dtype, F32), shape)
        _check_read(given, sizes, shape, is_single)
        for name in DIFFERENTIABLE:
            if f"d_{name}" in given:
                _check_destination(given, name)
        #: Whether there is nothing that a gradient could come from, so that all are zero.
        self.is_empty = 0 in (sizes["Tk"], *given["d_out"].shape)
        self.batch, self.queries, self.keys = sizes["N"], sizes["Tq"], sizes["Tk"]
        tables = tuple(name for name in TABLES if name in operands)
        self.has_tables = bool(tables)
        given |= operands  # a mask has all its axes now
        if "d_bias" in given:
            given["d_bias"] = given["d_bias"].of_rank(4)
        _add_positions(given, self.batch, has_lengths, has_offsets)
        if shared:
            del given["k2"]
        self.slots = tuple(slot for slot, name in enumerate(BACKWARD_NAMES) if name in given)
        self.arrays = [given[BACKWARD_NAMES[slot]] for slot in self.slots]
        self.any_on_device = any(array.on_device for array in self.arrays)
        types = tuple((name, memref(_operand(name).name, array, tables)) for name, array in
                      zip((BACKWARD_NAMES[slot] for slot in self.slots), self.arrays))
        #: The module that is compiled, and its target.
        self.module, self.target = backward_module(types, attributes_of(sizes["d"], options), shared), target
        self._lay_out()


def _operand(name: str) -> Operand:
    """The operand whose sizes an array of BACKWARD_NAMES has."""
    if name == "d_out":
        return OPERAND["init"]._replace(display_name=name)
    operand = OPERAND[name.removeprefix("d_")]
    return operand._replace(display_name=f"gradient of {operand.display_name}") if name.startswith("d_") else operand


def _check_destination(given, name) -> None:
    destination, operand = given[f"d_{name}"], given.get(name)
    display_name = _operand(f"d_{name}").display_name
    if operand is None:
        raise UsageError(f"{display_name}: expected none, because {OPERAND[name].argument} was not given")
    if operand.dtype.kind == "b":
        raise UsageError(f"{display_name}: expected none, because a mask of truth values has no gradient")
    _check_array(destination, display_name, (operand.dtype, F32), operand.shape)
    _check_distinct(destination, display_name)


def _check_x(given, options, shape) -> None:
    """The output before norm and gate, which a call writes and that of its gradients reads."""
    if "gate" not in given and not any(option and option.startswith("norm = ") for option in options):
        raise UsageError("x: expected none without norm and gate, because it is the result then")
    _check_saved(given, "x", shape)


def _check_read(given, sizes, shape, is_single: bool) -> None:
    """Checks the results saved by a forward call: rows, and the logarithms of the sums of both maps."""
    rows = {"x": shape, "o2": shape}
    logarithms = {"lse1": (*shape[:3],), "lse2": (shape[0], sizes["Hn"], shape[2])}
    for name in ("lse2", "o2"):
        if is_single and name in given:
            raise UsageError(f"{name}: expected none with one map, because it is of the second one")
    if not is_single and ("lse1" in given) != ("lse2" in given):
        raise UsageError("lse1: expected it together with lse2")
    for name, of_name in {**rows, **logarithms}.items():
        if name in given:
            _check_array(given[name], name, (given["q1"].dtype, F32) if name in rows else (F32,), of_name)


def _check_saved(given, name: str, shape) -> None:
    if "block_table" in given:
        raise UsageError(f"{name}: expected none with block_table, because calls with pages have no gradients")
    _check_array(given[name], name, (given["q1"].dtype, F32), shape)


def _add_positions(given, batch: int, has_lengths: bool, has_offsets: bool) -> None:
    for name, is_given in (("kv_len", has_lengths), ("q_offset", has_offsets)):
        if not is_given:
            continue
        array = given.get(name)
        if array is not None and array.on_device:
            _check_place(array, name, given["q1"])
            if array.dtype != I64 or array.shape != (batch,):
                raise InputError(f"{name}: expected int64 of shape [{batch}] on a device, but got {array.dtype} of {list(array.shape)}")
        else:
            given[name] = ArrayType((I64, (batch,), (1,), IN_ELEMENTS))


def _check_place(array: ArrayType, name: str, q1: ArrayType) -> None:
    """Raises InputError for tables or positions on a device where queries are not: the call would copy those, and these say what of them."""
    if array.on_device and not q1.on_device:
        raise InputError(f"{name}: expected an array in memory of the host, as q1, but got an array on a device")


def check_arguments(given: dict[str, ArrayType], options: tuple[str | None, ...], has_lengths: bool) -> dict[str, int]:
    """The sizes of a call whose arguments by their `NAMES` have these types and shapes, of one map without q2, k2 and lambda. Raises
    InputError for those that do not fit together, and gives a mask ("bias") its four axes, in place. kv_len, q_offset and init are not
    looked at."""
    sizes = _check_operands(given)
    _check_others(given, sizes, options)
    _check_tables(given, sizes, options, has_lengths)
    return sizes


def _check_tables(given, sizes, options, has_lengths) -> None:
    """Sets N, the number of sequences. What tables hold is checked by each call."""
    sizes["N"] = sizes["B"]
    tables = [name for name in TABLES if name in given]
    if not tables:
        return
    for name in tables:
        array, rank = given[name], 2 if name == "block_table" else 1
        if array.dtype not in (I32, I64):
            raise InputError(f"{name}: expected int32 or int64, but got {array.dtype}")
        _check_place(array, name, given["q1"])
        if array.ndim != rank or (rank == 1 and array.shape[0] < 1):
            raise InputError(f"{name}: expected shape {'[N, pages]' if rank == 2 else '[N + 1]'}, but got {list(array.shape)}")
    if tables in (["cu_seqlens_q"], ["cu_seqlens_k"], list(TABLES), ["cu_seqlens_k", "block_table"]):
        raise UsageError("cu_seqlens_q: expected it with either cu_seqlens_k or block_table, and these two not together, but got "
                         + ", ".join(tables))
    if has_lengths != ("block_table" in given):
        raise UsageError("kv_len: expected it with block_table" if not has_lengths else
                         "kv_len: expected none with cu_seqlens_k, which says how many keys there are")
    others = [operand.display_name for operand in OPERANDS if operand.name in given and not operand.with_tables]
    if others or "integral" in options:
        raise UsageError(f"{(others or ['integral'])[0]}: expected none with {' and '.join(tables)}")
    for name in ("q1", *(KEYS if "cu_seqlens_k" in given else ())):
        if "cu_seqlens_q" in given and name in given and given[name].shape[0] != 1:
            raise InputError(f"{display_name_of(name, 'q2' not in given)}: expected one batch, in which sequences follow one another, but got "
                             f"{given[name].shape[0]}")
    if "cu_seqlens_q" in given:
        sizes["N"] = given["cu_seqlens_q"].shape[0] - 1
    if "cu_seqlens_k" in given:
        _check_type(given, "cu_seqlens_k", (I32, I64), (sizes["N"] + 1,))
    elif given["block_table"].shape[0] != sizes["N"]:
        raise InputError(f"block_table: expected shape [N, pages] with N = {sizes['N']} sequences, but got "
                         f"{list(given['block_table'].shape)}")
    elif sizes["P"] == 0 or sizes["Tk"] == 0:
        raise InputError(f"{display_name_of('k1', 'q2' not in given)}: expected at least one page, of at least one key, but got {sizes['P']} of "
                         f"{sizes['Tk']}")


def display_name_of(name: str, is_single: bool) -> str:
    """Name in errors of the op's operand `name`, in a call of one map or of two."""
    return OF_ONE_MAP[name] if is_single and name in OF_ONE_MAP else OPERAND[name].display_name


def _check_operands(given) -> dict[str, int]:
    display_names = {name: display_name_of(name, "q2" not in given) for name in NAMES[:5]}
    for name in NAMES[:5]:
        array = given.get(name)
        if array is None:
            continue
        if array.ndim != 4:
            raise InputError(f"{display_names[name]}: expected rank 4, [batch, heads, length, width], but got shape {list(array.shape)}")
        if array.dtype not in FLOATS:
            raise InputError(f"{display_names[name]}: expected float32, float16 or bfloat16, but got {array.dtype}")
    q1, k1, v = (given[name] for name in ("q1", "k1", "v"))
    # The heads of one map are their own noise heads.
    q2, k2 = given.get("q2", q1), given.get("k2", k1)
    sizes = {"B": q1.shape[0], "Hs": q1.shape[1], "Tq": q1.shape[2], "d": q1.shape[3], "Hn": q2.shape[1],
             "Hk1": k1.shape[1], "Hk2": k2.shape[1], "Hv": v.shape[1], "Tk": k1.shape[2], "dv": v.shape[3]}
    # Pages of keys have a first axis of their own.
    sizes["P"] = k1.shape[0]
    first = "P" if "block_table" in given else "B"
    wanted = {"k1": (first, "Hk1", "Tk", "d"), "q2": ("B", "Hn", "Tq", "d"), "k2": (first, "Hk2", "Tk", "d"),
              "v": (first, "Hv", "Tk", "dv")}
    for name, axes in wanted.items():
        if name not in given:
            continue
        if given[name].dtype != q1.dtype:
            raise InputError(f"{display_names[name]}: expected {q1.dtype} as {display_names['q1']}, but got {given[name].dtype}")
        expected = tuple(sizes[axis] for axis in axes)
        if given[name].shape != expected:
            raise InputError(f"{display_names[name]}: expected shape [{', '.join(axes)}] = {list(expected)}, but got "
                             f"{list(given[name].shape)}")
    for many, of, few, name in (("Hs", "q1", "Hn", "q2"), ("Hs", "q1", "Hk1", "k1"), ("Hn", "q2", "Hk2", "k2"),
                                ("Hs", "q1", "Hv", "v")):
        if sizes[few] == 0 or sizes[many] % sizes[few]:
            raise InputError(f"{display_names[name]}: expected {many} to be a multiple of {few}, a divisor of the {sizes[many]} heads of "
                             f"{display_names[of]}, but got {sizes[few]}")
    if sizes["d"] == 0:
        raise InputError(f"{display_names['q1']}: expected a width d of at least 1, but got 0")
    return sizes


def _check_others(given, sizes, options) -> None:
    dtype = given["q1"].dtype
    if "lambda" in given:
        lam, batch, heads, queries = given["lambda"], sizes["B"], sizes["Hs"], sizes["Tq"]
        forms = dict.fromkeys([(heads,), (batch, queries, heads), (batch, queries, sizes["Hn"])])
        if lam.shape and lam.shape not in forms:
            raise InputError(f"lam: expected a number or shape {' or '.join(str(list(f)) for f in forms)}, but got {list(lam.shape)}")
        _check_type(given, "lambda", (F32,), lam.shape)
    if "bias" in given:
        given["bias"] = _mask(given["bias"], dtype, sizes)
    if "norm_weight" in given and not any(option and option.startswith("norm = ") for option in options):
        raise UsageError("norm_weight: expected norm='rms' with it")
    for operand in OPERANDS:
        if operand.axes is not None:
            _check_type(given, operand.name, [dtype if one is AS_Q1 else one for one in operand.dtypes],
                        tuple(sizes[axis] for axis in operand.axes))
    for name in (*SINKS, *RESULTS[2:]):
        if name in given and "integral" in options:
            raise UsageError(f"integral: expected no {OPERAND[name].display_name.partition(':')[0]} with it, because no kernel computes both")
    if "integral" in options and "q_segments" in given:
        raise UsageError("integral: expected no segment_ids with it, because its mean is over all queries")
    if "q_segments" in given and given["q_segments"].dtype != given["kv_segments"].dtype:
        raise InputError(f"segment_ids: kv_segments: expected {given['q_segments'].dtype} as q_segments, but got "
                         f"{given['kv_segments'].dtype}")


def _check_type(given, name, dtypes, shape) -> None:
    if name in given:
        _check_array(given[name], OPERAND[name].display_name, dtypes, shape)


def _check_array(array, name, dtypes, shape) -> None:
    if array.dtype not in dtypes:
        raise InputError(f"{name}: expected {' or '.join(str(d) for d in dict.fromkeys(dtypes))}, but got {array.dtype}")
    if array.shape != shape:
        raise InputError(f"{name}: expected shape {list(shape)}, but got {list(array.shape)}")


def _mask(array, dtype, sizes):
    if array.dtype not in (np.dtype(np.bool_), F32, dtype):
        types = " or ".join(dict.fromkeys(["bool", "float32", str(dtype)]))
        raise InputError(f"attn_mask: expected {types}, but got {array.dtype}")
    full = tuple(sizes[axis] for axis in ("B", "Hn", "Tq", "Tk"))
    if array.ndim < 2 or array.ndim > 4:
        raise InputError(f"attn_mask: expected rank 2 to 4, but got shape {list(array.shape)}")
    array = array.of_rank(4)
    if array.shape[3] != full[3] or any(n not in (1, m) for n, m in zip(array.shape, full)):
        raise InputError(f"attn_mask: expected a shape that broadcasts to [B, Hn, Tq, Tk] = {list(full)} with all keys, but "
                         f"got {list(array.shape)}")
    return array


def _check_out(out, dtype, shape) -> None:
    _check_array(out, "out", (dtype, F32), shape)
    _check_distinct(out, "out")


def _check_distinct(array, name) -> None:
    """Checks that no two elements of an array that is written share memory."""
    if array.is_empty:
        return
    # From the closest elements to the farthest, each axis must step over all that the ones before it reach.
    reach = 1
    for step, size in sorted((abs(s), n) for s, n in zip(array.steps, array.shape) if n > 1):
        if step < reach:
            raise InputError(f"{name}: expected elements that share no memory, but got shape {list(array.shape)} with strides "
                             f"{[s * array.dtype.itemsize for s in array.steps]} bytes")
        reach += (size - 1) * step
