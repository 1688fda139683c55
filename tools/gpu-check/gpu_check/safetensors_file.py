"""Weight files in the safetensors format: eight bytes with the length of a JSON header, the header, the numbers of all tensors."""
import json
import math
import struct

BYTES = {"F32": 4, "BF16": 2}


def header(tensors):
    """`tensors`: name -> (F32 or BF16, shape). The header with its length before it, and the bytes of the numbers."""
    entries, at = {}, 0
    for name, (kind, shape) in tensors.items():
        end = at + math.prod(shape) * BYTES[kind]
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text, at


def entries(header_bytes):
    """The tensors of a header: name -> dtype, shape, data_offsets, in the order of their numbers."""
    header = json.loads(header_bytes[8:])
    return dict(sorted(header.items(), key=lambda entry: entry[1]["data_offsets"]))


def write(path, arrays):
    """Arrays of float32 by their names."""
    with open(path, "wb") as file:
        file.write(header({name: ("F32", array.shape) for name, array in arrays.items()})[0])
        for array in arrays.values():
            file.write(array.tobytes())
