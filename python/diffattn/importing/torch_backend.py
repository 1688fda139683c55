"""Steps shared by the importers that lower through torch-mlir."""

from __future__ import annotations

from collections.abc import Iterator

_TO_LINALG = "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true}"
#: The last pass, which refuses calls of functions. What it looks for else, `left_over` does.
_VERIFIER = "torch-verify-linalg-on-tensors-backend-contract"


def to_linalg(context, *before: str) -> str:
    """torch-mlir's own pipeline from its backend dialect to upstream dialects, behind those of `before`, as it prints it, without its
    verifier. `context`: one with its dialects."""
    from torch_mlir.passmanager import PassManager

    with context:
        return str(PassManager.parse(f"builtin.module({','.join([*before, _TO_LINALG])})")).replace(f",{_VERIFIER}", "")


def left_over(operation) -> Iterator[str]:
    """The places of ops of torch-mlir's own dialects, which MLIR 22 does not have."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                if op.operation.name.split(".")[0] in ("torch", "torch_c", "tm_tensor"):
                    yield str(op.location)
                yield from left_over(op.operation)
