"""Arrays between two pages that no one may touch: a read or write beside one ends the process, or leaves a trace in the slack."""
import ctypes
import mmap
import weakref

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PAGE = mmap.PAGESIZE
_TRACE = 0xA5


class Guarded:
    """Memory of `count` bytes that ends at a forbidden page, or begins behind one."""

    def __init__(self, count: int, at_end: bool):
        pages = -(-max(count, 1) // _PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._base, self._pages = base, pages
        inside = pages * _PAGE
        ctypes.memset(base + _PAGE, _TRACE, inside)
        self._first = inside - count if at_end else 0
        self._count = count
        self.address = base + _PAGE + self._first
        for page in (base, base + _PAGE + inside):
            if _libc.mprotect(page, _PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        weakref.finalize(self, _open_again, self._map, base, pages)

    def slack_is_clean(self) -> bool:
        inside = ctypes.string_at(self._base + _PAGE, self._pages * _PAGE)
        slack = inside[: self._first] + inside[self._first + self._count:]
        return slack.count(_TRACE) == len(slack)


def _open_again(memory, base, pages):
    _libc.mprotect(base, (pages + 2) * _PAGE, mmap.PROT_READ | mmap.PROT_WRITE)


class Fence:
    """Makes guarded arrays, and tells in the end whether all memory beside them is as it was."""

    def __init__(self, rng):
        self._rng, self._all = rng, []

    def copy(self, array) -> np.ndarray:
        """`array` in guarded memory, with its shape, dense."""
        array = np.asarray(array)
        if array.nbytes == 0:
            return array.copy()
        memory = Guarded(array.nbytes, bool(self._rng.integers(2)))
        self._all.append(memory)
        raw = (ctypes.c_char * array.nbytes).from_address(memory.address)
        raw.owner = memory
        view = np.frombuffer(raw, np.uint8).view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    def check(self) -> None:
        if not all(memory.slack_is_clean() for memory in self._all):
            raise AssertionError("memory beside an array was written")
