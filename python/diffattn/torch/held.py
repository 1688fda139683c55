"""What a module holds, as a call of its exported graph needs it: parameters, buffers and constants, looked up anew each time."""

from __future__ import annotations

from torch.export.graph_signature import InputKind

from ..errors import InputError


class Held:
    """`specs`: the inputs of the graph; `constants` by their names."""

    def __init__(self, module, specs, constants):
        self._module, self._empty = module, [None] * len(specs)
        self._given = [i for i, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT]
        self._by_owner: dict[tuple[str, ...], list[tuple[str, int]]] = {}
        for i, spec in enumerate(specs):
            if spec.kind == InputKind.CONSTANT_TENSOR:
                self._empty[i] = constants[spec.target]
            elif spec.kind != InputKind.USER_INPUT:
                *path, name = spec.target.split(".")
                self._by_owner.setdefault(tuple(path), []).append((name, i))

    def values(self, leaves) -> list:
        """All inputs of the graph, `leaves` being those of the call."""
        result = self._empty.copy()
        for i, leaf in zip(self._given, leaves):
            result[i] = leaf
        for path, names in self._by_owner.items():
            owner = self._module
            for part in path:
                owner = owner._modules.get(part) if owner is not None else None
            parameters, buffers = (owner._parameters, owner._buffers) if owner is not None else ({}, {})
            for name, i in names:
                tensor = parameters.get(name)
                result[i] = buffers.get(name) if tensor is None else tensor
                if result[i] is None:
                    raise InputError(f"{'.'.join((*path, name))}: expected the tensor that the module had when it was compiled, but it has "
                                     "none of that name; compile it anew")
        return result
