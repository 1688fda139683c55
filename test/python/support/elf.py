"""Reading of ELF files: which libraries they need, and where the loader looks for them."""
import pathlib
import struct

LOAD, DYNAMIC = 1, 2
NULL, NEEDED, STRING_TABLE, RPATH, RUNPATH = 0, 1, 5, 15, 29


def is_loaded(path) -> bool:
    """Whether it is a program or a shared library, and no object file."""
    path = pathlib.Path(path)
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(18)
    return head[:4] == b"\x7fELF" and struct.unpack_from("<H", head, 16)[0] in (2, 3)


def _texts(path, tags) -> list[str]:
    """The texts with these tags in the dynamic section of a 64-bit file."""
    data = pathlib.Path(path).read_bytes()
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, headers + i * size) for i in range(count)]
    entries = []
    for kind, _, offset, _, _, length in segments:
        if kind == DYNAMIC:
            entries = [struct.unpack_from("<qQ", data, at) for at in range(offset, offset + length, 16)]
    entries = entries[: next((i for i, (tag, _) in enumerate(entries) if tag == NULL), len(entries))]
    result = []
    for tag, value in entries:
        if tag in tags:
            table = dict(entries)[STRING_TABLE]
            start = next(table - address + offset for kind, _, offset, address, _, length in segments
                         if kind == LOAD and address <= table < address + length) + value
            result.append(data[start : data.index(b"\0", start)].decode())
    return result


def search_path(path) -> list[str]:
    """The entries of RPATH and RUNPATH."""
    return [entry for text in _texts(path, (RPATH, RUNPATH)) for entry in text.split(":")]


def needed(path) -> list[str]:
    """Names of the libraries that it is loaded with."""
    return _texts(path, (NEEDED,))
