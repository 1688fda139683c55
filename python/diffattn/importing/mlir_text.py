"""What torch-mlir writes that MLIR 22 does not read."""

from __future__ import annotations

import re
from collections.abc import Iterator


def left_over(operation) -> Iterator[str]:
    """The places of ops of torch-mlir's own dialects, which MLIR 22 does not have."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                if op.operation.name.split(".")[0] in ("torch", "torch_c", "tm_tensor"):
                    yield str(op.location)
                yield from left_over(op.operation)


def readable_constants(text: str) -> str:
    """Truth values that are written as hex, which MLIR 22 does not read, as a list of them."""

    def spelled(found) -> str:
        sizes = [int(size) for size in re.findall(r"\d+", found[2])]
        count = 1
        for size in sizes:
            count *= size
        data = bytes.fromhex(found[1])
        if len(data) == count:
            values = [byte != 0 for byte in data]
        else:
            values = [bool(data[i // 8] >> i % 8 & 1) for i in range(count)]
        words = ["true" if value else "false" for value in values]
        for size in reversed(sizes):
            words = ["[" + ", ".join(words[i: i + size]) + "]" for i in range(0, len(words), size)]
        return f"dense<{words[0]}> : tensor<{found[2]}i1>"

    return re.sub(r'dense<"0x([0-9A-Fa-f]+)"> : tensor<((?:\d+x)+)i1>', spelled, text)
