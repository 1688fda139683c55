"""A directory as Hugging Face lays it out: config.json, safetensors (one file or shards), tokenizer.json.

What a weight file holds is read here from its header only, to choose a type and to say early what is missing. The
loader checks every byte of it again when it maps the file.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import checks, files
from .errors import CheckpointError, ConfigError
from .models.config import Config
from .models.quantization import Quantization, read_quantization, scale_name
from .text import shown

DTYPES = {"F32": "f32", "BF16": "bf16", "F16": "f16"}
# The header of the largest checkpoint known has 10 MB; the format itself allows 100.
LARGEST_HEADER = 100 * 1000 * 1000


@dataclass
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    file: Path
    #: Its first byte in the file, and the first one behind it, as the header says.
    begin: int = 0
    end: int = 0


@dataclass
class Checkpoint:
    directory: Path
    config: dict[str, Any]
    files: list[Path]
    tensors: dict[str, Tensor] = field(repr=False)

    @property
    def quantization(self) -> Quantization | None:
        """How its matrices are stored as integers; None if they are not."""
        return read_quantization(Config(self.config, str(self.directory / "config.json")))

    @property
    def dtype(self) -> str:
        """The element type of most weights: that of the matrices. Of integers, that of what is multiplied with them."""
        if (quantization := self.quantization) is not None:
            return quantization.dtype
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            if tensor.dtype in DTYPES:
                sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + math.prod(tensor.shape)
        return DTYPES[max(sizes, key=sizes.get)] if sizes else "f32"

    @property
    def parameters(self) -> int:
        """Numbers of the model: integers that share a byte count one by one, and scales do not."""
        quantization = self.quantization
        if quantization is None:
            return sum(math.prod(tensor.shape) for tensor in self.tensors.values())
        integers = {name for name in self.tensors if scale_name(name) in self.tensors}
        scales = {scale_name(name) for name in integers}
        return sum(math.prod(tensor.shape) * (8 // quantization.bits if name in integers else 1)
                   for name, tensor in self.tensors.items() if name not in scales)

    @property
    def tokenizer_file(self) -> Path | None:
        path = self.directory / "tokenizer.json"
        return path if files.exists(path) else None


def read_json(path: Path, limit: int = files.MOST_CONFIG_BYTES) -> Any:
    """The value in a JSON file of at most `limit` bytes; a name given twice in one object is an error, not the last one's win."""

    return parse_json(files.read_marked(path, limit, CheckpointError), str(path))


def parse_json(text: bytes, source: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = next(name for name, count in counts.items() if count > 1)
            raise CheckpointError(f"{source}: expected every name once, but got {shown(twice)} twice")
        return result

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:  # raised by the hook
        raise
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number of thousands of digits, too deep
        kind = files.mistaken(text[:64], is_text=True)
        raise CheckpointError(f"{source}: expected JSON, but got{f' {kind}' if kind else f': {error}'}") from None


def read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not files.exists(path):
        gguf = sorted(p.name for p in directory.glob("*.gguf"))
        if gguf:
            raise CheckpointError(f"{directory}: expected config.json and safetensors, but got {gguf[0]!r}; {_WAYS[GGUF]}")
        raise CheckpointError(f"{directory}: expected a config.json, but there is none")
    config = read_json(path)
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected an object, but got {type(config).__name__}")
    return config


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors that a safetensors file says it holds."""
    descriptor, size = files.open_regular(path, CheckpointError)
    try:
        with os.fdopen(descriptor, "rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{path}: expected a safetensors file, but got {size} bytes")
            (length,) = struct.unpack("<Q", prefix)
            if length > min(size - 8, LARGEST_HEADER):
                if kind := files.mistaken(prefix + file.read(56)):
                    raise CheckpointError(f"{path}: expected a safetensors file, but got {kind}")
                raise CheckpointError(f"{path}: expected a header of at most {min(size - 8, LARGEST_HEADER)} bytes, "
                                      f"but got {length}")
            header = parse_json(file.read(length), f"{path}: header")
    except OSError as error:
        raise CheckpointError(f"{path}: expected a readable file, but got: {error.strerror}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: expected the header to be an object, but got {type(header).__name__}")
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape = entry.get("shape") if isinstance(entry, dict) else None
        sized = isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
        if not sized or not isinstance(entry.get("dtype"), str):
            raise CheckpointError(f"{path}: expected {shown(name)} to have a dtype and a shape, but got {shown(entry)}")
        offsets = entry.get("data_offsets")
        begin, end = offsets if isinstance(offsets, list) and len(offsets) == 2 and all(type(n) is int and n >= 0 for n in offsets) else (0, 0)
        tensors[name] = Tensor(entry["dtype"], tuple(shape), path, 8 + length + begin, 8 + length + end)
    return tensors


def check_layout(checkpoint: Checkpoint) -> None:
    """Every byte behind a header is of one tensor, as the loader wants it, for those who read the files without it."""
    for file in checkpoint.files:
        descriptor, size = files.open_regular(file, CheckpointError)
        with os.fdopen(descriptor, "rb") as opened:
            position = 8 + struct.unpack("<Q", opened.read(8))[0]
        tensors = sorted((tensor.begin, tensor.end, name) for name, tensor in checkpoint.tensors.items() if tensor.file == file)
        for begin, end, name in tensors:
            if begin != position or end < begin:
                raise CheckpointError(f"{file}: tensor {shown(name)}: expected its data at byte {position}, but got bytes {begin} to {end}")
            position = end
        if position != size:
            raise CheckpointError(f"{file}: expected the tensors to end with the file at byte {size}, but they end at {position}")


def _shards(index: Path) -> dict[Path, list[str]]:
    """The files that an index names, which must lie beside it, and the tensors that it puts into each."""
    content = read_json(index, files.MOST_INDEX_BYTES)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        got = "an empty one" if names == {} else "none" if names is None else type(names).__name__
        raise CheckpointError(f"{index}: expected a weight_map with names of files, but got {got}")
    names_by_shard: dict[Path, list[str]] = {}
    for name, shard in names.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{index}: expected the name of a file for {shown(name)}, but got {shown(shard)}")
    for shard in dict.fromkeys(names.values()):
        if Path(shard).name != shard or shard in ("", ".", "..") or "\\" in shard or "\0" in shard:
            raise CheckpointError(f"{index}: expected names of files beside it, but got {shown(shard)}")
        if not files.exists(index.parent / shard):
            raise CheckpointError(f"{index}: expected the file {shown(shard)} beside it, but it is missing")
        names_by_shard[index.parent / shard] = []
    for name, shard in names.items():
        names_by_shard[index.parent / shard].append(name)
    return names_by_shard


def _check_shards(index: Path, shards: dict[Path, list[str]], tensors: dict[str, Tensor]) -> None:
    """The index and its shards agree on the place of each tensor, as the loader wants it too."""
    for file, names in shards.items():
        for name in names:
            if name not in tensors or tensors[name].file != file:
                raise CheckpointError(f"{index}: expected tensor {shown(name)} in {shown(file.name)}, but that file lacks it")
    listed = {name for names in shards.values() for name in names}
    for name, tensor in tensors.items():
        if name not in listed:
            raise CheckpointError(f"{index}: expected every tensor of {shown(tensor.file.name)} in the index, but it lacks {shown(name)}")


#: Weights in formats that are not read.
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.*.pth", "*.bin", "*.pt", "*.pth", "*.ckpt",
                  "*.onnx", "*.h5", "*.msgpack", "*.gguf")


def _other_weights(directory: Path) -> str | None:
    """A file of the folder that holds weights in another way."""
    return next((p.name for pattern in ("*.safetensors", *_OTHER_WEIGHTS) for p in sorted(directory.glob(pattern))), None)


def _missing_weights(directory: Path) -> CheckpointError:
    message = f"{directory}: expected model.safetensors or model.safetensors.index.json"
    other = _other_weights(directory)
    if other is None:
        return CheckpointError(f"{message}, but there is neither")
    if other.endswith(".safetensors"):
        return CheckpointError(f"{message}, but got {other!r}; give it that name, or link to it")
    if other.endswith(".gguf"):
        return CheckpointError(f"{message}, but got {other!r}; {_WAYS[GGUF]}")
    return CheckpointError(f"{message}, but got {other!r}, which is not read; write its tensors as safetensors: "
                           "safetensors.torch.save_file(state_dict, \"model.safetensors\"), or save_pretrained(...) of the library "
                           "that made it")


ONNX, MLIR, CODE, GGUF, FILE = "an ONNX file", "a file of MLIR", "compiled code", "a GGUF file", "a file"


def kind_of_file(path: str | Path) -> str:
    """Kind of a file that was given in place of a folder, by its name and its first bytes."""
    suffix = Path(path).suffix
    if suffix == ".onnx":
        return ONNX
    head = files.read_head(path)[:4]
    if head == b"\x7fELF":
        return CODE
    if head == b"GGUF":
        return GGUF
    return MLIR if head == b"ML\xefR" or suffix in (".mlir", ".mlirbc") else FILE


#: Advice for each kind of such a file.
_WAYS = {ONNX: "import it with: diffattn import MODEL.onnx -o model.mlir --weights=model.safetensors",
         MLIR: "run it with diffattn-run",
         GGUF: "GGUF is not read; take the folder of safetensors that it was made from", CODE: "if it is a bundle's, name the bundle's folder", FILE: "name the folder that it lies in"}


def _no_directory(given: str, directory: Path) -> CheckpointError:
    expected = f"{directory}: expected a directory with config.json and safetensors"
    if files.exists(directory):
        kind = kind_of_file(directory)
        return CheckpointError(f"{expected}, but got {kind}; {_WAYS[kind]}")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", given):
        return CheckpointError(f"{expected}, but there is none; if it is a model of the Hugging Face Hub, download it first: "
                               f"hf download {given} --local-dir {directory.name}")
    return CheckpointError(f"{expected}, but there is none")


# Kinds of folders, for messages alone: a folder is opened as what the caller asked for.


def is_bundle(directory: str | Path) -> bool:
    return os.path.isfile(os.path.join(directory, "manifest.json"))


def has_weights(directory: str | Path) -> bool:
    return any(os.path.isfile(os.path.join(directory, name)) for name in ("model.safetensors", "model.safetensors.index.json"))


def open_checkpoint(directory: str | Path, *, without_weights: bool = False) -> Checkpoint:
    """Reads what the directory holds, without its data. `without_weights` takes one that has none, in no format, too."""
    given = checks.path("directory", directory)
    directory = Path(given)
    if not os.path.isdir(directory):  # Path's own raises for names that are too long
        raise _no_directory(given, directory)
    if is_bundle(directory) and not has_weights(directory):
        raise CheckpointError(f"{directory}: expected a checkpoint, but got a bundle, which is code; diffattn.bundle.load opens it, "
                              "or --bundle in the command's arguments")
    config = read_config(directory)
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    shards: dict[Path, list[str]] = {}
    if files.exists(single):
        weight_files = [single]
    elif files.exists(index):
        shards = _shards(index)
        weight_files = list(shards)
    elif without_weights and _other_weights(directory) is None:
        weight_files = []
    else:
        raise _missing_weights(directory)
    tensors: dict[str, Tensor] = {}
    for file in weight_files:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise CheckpointError(f"{file}: expected every tensor once, but got {shown(name)} also in "
                                      f"{tensors[name].file.name}")
            tensors[name] = tensor
    if shards:
        _check_shards(index, shards, tensors)
    if config.get("tie_word_embeddings") is not False and _has_head_of_its_own(tensors):
        config = {**config, "tie_word_embeddings": False}
    return Checkpoint(directory, config, weight_files, tensors)


def _has_head_of_its_own(tensors: dict[str, Tensor]) -> bool:
    """Whether there is a matrix for the logits with other numbers than the embedding: it is used whatever the config says, as
    transformers 5 does."""
    head, embedding = (tensors.get(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    if head is None or embedding is None:
        return False
    if (head.dtype, head.shape, head.end - head.begin) != (embedding.dtype, embedding.shape, embedding.end - embedding.begin):
        return True
    return any(one != other for one, other in zip(_read_tensor(head), _read_tensor(embedding)))


def _read_tensor(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of a tensor, piece by piece; fewer if the file is too short, which the loader reports."""
    descriptor, _ = files.open_regular(tensor.file, CheckpointError)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(tensor.begin)
        left = tensor.end - tensor.begin
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            left -= len(piece)
            yield piece
