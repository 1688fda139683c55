"""Programs that torch.export has saved (.pt2), read as data.

torch.export.load runs what such a file says: it unpickles, evaluates the texts of symbolic sizes, calls functions by their names and
compiles source with the names of nodes in it. So the archive is opened here, only what the tables below allow is let through, and
weights are mapped; torch makes the graph of what is left.
"""

from __future__ import annotations

import json
import keyword
import math
import os
import re
import zipfile

import numpy as np
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, _bytes_to_dataclass, deserialize_scalar_type

from ..errors import CompileError, DiffAttnError, InputError, IRError, WeightsError
from ..files import mistaken, open_regular, read_head
from ..text import shown

#: Largest text of a graph; real ones have some megabytes.
MOST_GRAPH_BYTES = 1 << 30
_TARGET = re.compile(r"torch\.ops\.(aten|prims|diffattn)\.\w+(\.\w+)?|torch\.sym_\w+|math\.(ceil|floor|trunc)|"
                     r"_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|getitem)", re.ASCII)
#: Ops that read files.
_NEVER = ("torch.ops.aten.from_file",)
_SYMBOL = re.compile(r"[a-z]{1,3}[0-9]+")
_FUNCTIONS = {"And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Ge", "Gt", "Identity",
              "IntTrueDiv", "Le", "Lt", "Max", "Min", "Mod", "ModularIndexing", "Ne", "Not", "Or", "PowByNatural", "PythonMod", "RoundToInt",
              "ToFloat", "TruncToFloat", "TruncToInt", "Where", "False", "True", "Add", "Equality", "GreaterThan", "Integer", "LessThan",
              "Mul", "Pow", "Rational", "StrictGreaterThan", "StrictLessThan", "Unequality"}
#: As SymPy writes a symbol.
_WRITTEN_SYMBOL = re.compile(r"Symbol\('([a-z]{1,3}[0-9]+)'(?:, [a-z]+=(?:True|False))*\)")


def load(path: str) -> torch.export.ExportedProgram:
    """Raises InputError for a file that cannot be read, IRError for one that is no such archive or says what no graph needs, and
    WeightsError for weights that are damaged or pickled."""
    descriptor, _ = open_regular(path, InputError)
    try:
        with os.fdopen(descriptor, "rb") as file, zipfile.ZipFile(file) as archive:
            return _load(_Archive(path, file, archive))
    except DiffAttnError as error:
        raise type(error)(f"{path}: {error}") from None
    except zipfile.BadZipFile as error:
        kind = mistaken(read_head(path)) or f"BadZipFile: {error}"
        raise IRError(f"{path}: expected a program that torch.export has saved, but got {kind}") from None
    except Exception as error:  # torch trusts its files and raises many classes
        raise IRError(f"{path}: expected a program that torch.export has saved, but got {type(error).__name__}: "
                      f"{shown(' '.join(str(error).split()), 400)}") from None


class _Archive:
    """Records by their names below the one folder of the archive."""

    def __init__(self, path, file, archive):
        self._path, self._file, self._archive = path, file, archive
        self._entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}

    def names(self, folder: str) -> list[str]:
        return [name for name in self._entries if name.startswith(folder) and name != folder]

    def text(self, name: str):
        if name not in self._entries:
            raise IRError(f"expected a record {shown(name)} in the archive, but there is none")
        if self._entries[name].file_size > MOST_GRAPH_BYTES:
            raise IRError(f"{name}: expected at most {MOST_GRAPH_BYTES} bytes, but got {self._entries[name].file_size}")
        return json.loads(self._archive.read(self._entries[name]))

    def bytes(self, name: str) -> np.ndarray:
        """The bytes of a record, mapped; what is written to them stays in this process."""
        entry = self._entries.get(name)
        if entry is None:
            raise WeightsError(f"expected a record {shown(name)} in the archive, but there is none")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise WeightsError(f"{name}: expected a record that is not compressed")
        self._file.seek(entry.header_offset)
        header = self._file.read(30)
        offset = entry.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if offset + entry.file_size > os.fstat(self._file.fileno()).st_size:
            raise WeightsError(f"{name}: expected {entry.file_size} bytes at {offset}, but the file ends before")
        return np.memmap(self._file, np.uint8, "c", offset, (entry.file_size,)) if entry.file_size else np.empty(0, np.uint8)


def _load(archive: _Archive) -> torch.export.ExportedProgram:
    if archive.names("data/aotinductor/"):
        raise IRError("expected a program, but got one with compiled code in it")
    models = archive.names("models/")
    if len(models) != 1 or not models[0].endswith(".json"):
        raise IRError(f"expected one program, but got {', '.join(map(shown, models)) or 'none'}")
    name = models[0][len("models/"): -len(".json")]
    program = archive.text(models[0])
    version = program["schema_version"]["major"]
    if version != schema.SCHEMA_VERSION[0]:
        raise IRError(f"expected version {schema.SCHEMA_VERSION[0]} of the format, but got {shown(version)}")
    _check(program)
    graph = program["graph_module"]
    # Structures of Python, and checks as source, are not needed.
    graph["module_call_graph"] = [{"fqn": "", "signature": _flat_signature(graph["signature"])}]
    program["guards_code"] = []
    weights, constants = (_tensors(archive, archive.text(f"data/{kind}/{name}_{kind}_config.json"), f"data/{kind}/")
                          for kind in ("weights", "constants"))
    return ExportedProgramDeserializer().deserialize(_bytes_to_dataclass(schema.ExportedProgram, json.dumps(program).encode()), weights,
                                                     constants, None)


def _flat_signature(signature) -> dict:
    """Every argument and result for itself."""

    def node(kind, children):
        return {"type": kind, "context": "null" if kind != "builtins.dict" else "[]", "children_spec": children}

    leaf = {"type": None, "context": None, "children_spec": []}
    given = sum("user_input" in spec for spec in signature["input_specs"])
    made = sum("user_output" in spec for spec in signature["output_specs"])
    arguments = node("builtins.tuple", [node("builtins.tuple", [leaf] * given), node("builtins.dict", [])])
    return {"inputs": [], "outputs": [], "in_spec": json.dumps([1, arguments]),
            "out_spec": json.dumps([1, node("builtins.tuple", [leaf] * made)]), "forward_arg_names": None}


def _check(program) -> None:
    """Checks that every name is one, and every text that torch evaluates is arithmetic."""
    values = [program]
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                _check_entry(key, inner)
            if isinstance(value.get("metadata"), dict) and "target" in value:
                trace = value["metadata"].get("stack_trace")
                value["metadata"] = {"stack_trace": trace} if isinstance(trace, str) else {}
            values += value.values()


def _check_entry(key: str, value) -> None:
    if key == "target":
        if not isinstance(value, str) or not _TARGET.fullmatch(value) or value.startswith(_NEVER):
            raise CompileError(f"expected ops of ATen and arithmetic, but got {shown(value)}")
    elif key == "name":
        if not isinstance(value, str) or value and (not value.isidentifier() or not value.isascii() or keyword.iskeyword(value)):
            raise IRError(f"expected names that Python has, but got {shown(value)}")
    elif key == "expr_str":
        if not isinstance(value, str) or not _is_arithmetic(_WRITTEN_SYMBOL.sub(r"\1", value)):
            raise IRError(f"expected arithmetic as a size, but got {shown(value)}")
    elif key in ("as_operator", "as_custom_obj", "custom_obj", "custom_obj_values") and value:
        raise CompileError(f"expected tensors and numbers, but got {shown(value)} as {key}")


def _is_arithmetic(text: str) -> bool:
    words = re.findall(r"[A-Za-z_]\w*", text)
    return bool(re.fullmatch(r"[\w\s+\-*/%(),.<>=]{1,4096}", text, re.ASCII)) and all(word in _FUNCTIONS or _SYMBOL.fullmatch(word)
                                                                                     for word in words)


def _tensors(archive: _Archive, config, folder: str) -> dict[str, torch.Tensor]:
    result = {}
    for name, entry in config["config"].items():
        place, meta = entry["path_name"], entry["tensor_meta"]
        if entry["use_pickle"] or not re.fullmatch(r"(weight|tensor)_[0-9]+", str(place)):
            raise WeightsError(f"expected {shown(name)} as plain bytes, but it is pickled, which may run code")
        if meta["device"]["type"] != "cpu":
            raise WeightsError(f"expected {shown(name)} in memory of the host, but it is for {shown(meta['device']['type'])}; move the module "
                               "there, with cpu(), before it is exported")
        dtype = deserialize_scalar_type(meta["dtype"])
        sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
        offset, data = meta["storage_offset"]["as_int"], archive.bytes(folder + place)
        reach = offset + sum((n - 1) * s for n, s in zip(sizes, strides)) + 1 if math.prod(sizes) else 0
        if any(type(n) is not int or n < 0 for n in (*sizes, *strides, offset)) or len(sizes) != len(strides) or reach * dtype.itemsize > data.size:
            raise WeightsError(f"expected {reach * dtype.itemsize} bytes of {shown(name)}, but got {data.size}")
        memory = torch.from_numpy(data[: data.size // dtype.itemsize * dtype.itemsize]).view(dtype)
        tensor = torch.as_strided(memory, sizes, strides, offset)
        result[name] = torch.nn.Parameter(tensor, requires_grad=False) if entry["is_param"] else tensor
    return result
