"""`diffattn quantize`: a model's folder with matrices of integers (docs/models.md#quantized-weights)."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from . import arguments, checks, files, hints, models
from .arguments import FilePath
from .arrays import BFLOAT16
from .checkpoint import Checkpoint, Tensor, check_layout, open_checkpoint
from .errors import CheckpointError, OutputError, UsageError
from .importing.safetensors import Part, bytes_of, parts_of_file
from .model import build_graph
from .models.quantization import BITS, GROUP_UNIT, MOST_GROUP, Quantization, scale_name
from .output import tell
from .progress import Progress
from .text import printable_name, shown

#: The types that a model's weights have in files.
_DTYPES = {"F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": BFLOAT16}
#: Files that are copied into the new folder.
_COPIED = ("tokenizer.json", "generation_config.json")
#: Numbers that are made integers at a time.
_NUMBERS = 1 << 22


def add_to(commands) -> None:
    """The command among others."""
    sub = commands.add_parser("quantize", help="write a model with weights of 8 or 4 bits", description="Write a model's folder with "
                              "matrices of 8-bit or 4-bit integers, for the other commands.",
                              epilog="example: diffattn quantize examples/tiny-lm tiny-int8 --weights=int8")
    sub.set_defaults(function=run)
    sub.add_argument("directory", metavar="DIR", help="config.json and safetensors")
    sub.add_argument("output", metavar="OUT", help="a folder that is not there yet, or an empty one")
    sub.add_argument("--weights", required=True, choices=BITS, help="type of the integers")
    sub.add_argument("--group", type=int, default=128, metavar="N", help="neighbours in a row that share a scale (default: %(default)s)")


def run(args) -> int:
    with Progress("quantizing") as progress:
        quantize(args.directory, args.output, args.weights, args.group, progress)
    size = sum(file.stat().st_size for file in Path(args.output).glob("*.safetensors"))
    tell(f"diffattn: wrote {printable_name(args.output)} ({size / 2**20:.1f} MiB of weights); look at it with: "
         f"{hints.command()} info {shlex.quote(args.output)}")
    return 0


def quantize(directory: FilePath, output: FilePath, weights: str = "int8", group: int = 128,
             progress: arguments.Progress | None = None) -> None:
    """Writes the model in `directory` with the matrices of its linear layers as integers to `output`, a folder that is not there
    yet or an empty one, which is left as it is after any error. `weights` is int8 or int4; `group` neighbours in a row share a
    scale: a multiple of 8 that divides the columns of every such matrix. `progress(done, total)` is called with bytes of them.

    Raises:  UsageError: `weights` or `group`. CheckpointError: the folder, or a weight that is NaN or infinite. OutputError.
    """
    weights = checks.choice("weights", weights, tuple(BITS))
    group = checks.integer("group", group, GROUP_UNIT, MOST_GROUP)
    checks.callback("progress", progress)
    if group % GROUP_UNIT:
        raise UsageError(f"group: expected a multiple of {GROUP_UNIT}, but got {group}")
    checkpoint = open_checkpoint(directory)
    if checkpoint.quantization is not None:
        raise CheckpointError(f"{checkpoint.directory}: expected weights that are not quantized yet, but its config.json has a "
                              "quantization_config")
    check_layout(checkpoint)
    module, how = build_graph(checkpoint), Quantization(BITS[weights], group, checkpoint.dtype)
    _check_groups(checkpoint, module, group)
    place = Path(checks.path("output", output))
    fills = _check_empty(place)
    part = None
    try:
        part = Path(tempfile.mkdtemp(prefix=".diffattn-", suffix=".part", dir=place if fills else place.parent))
        _write_folder(checkpoint, module, how, part, progress)
        if fills:
            for name in sorted(os.listdir(part), key=lambda name: (name == "config.json", name)):  # it is a model once it has that
                (part / name).replace(place / name)
        else:
            umask = os.umask(0)
            os.umask(umask)
            part.chmod(0o777 & ~umask)
            part.replace(place)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{place}: expected to write the folder, but got: {error.strerror}") from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)  # renamed, if all went well


def _check_groups(checkpoint: Checkpoint, module: models.Module, group: int) -> None:
    for name, transposed in module.matrices.items():
        columns = checkpoint.tensors[name].shape[0 if transposed else 1]
        if columns % group:
            raise UsageError(f"group: expected a divisor of the {columns} columns of {shown(name)}, but got {group}")


def _check_empty(place: Path) -> bool:
    """Whether it is there, an empty folder, which stays the same one."""
    expected = f"{place}: expected a folder that is not there yet, or an empty one"
    if not files.exists(place):
        return False
    if not place.is_dir():
        raise OutputError(f"{expected}, but got {'a link that leads nowhere' if place.is_symlink() and not place.exists() else 'a file'}")
    if any(place.iterdir()):
        raise OutputError(f"{expected}, but it has files")
    return True


def _write_folder(checkpoint: Checkpoint, module: models.Module, how: Quantization, folder: Path, progress: arguments.Progress | None) -> None:
    for name in _COPIED:
        if files.exists(checkpoint.directory / name):
            shutil.copyfile(checkpoint.directory / name, folder / name)
    used = {file: [] for file in checkpoint.files}
    for name in module.file_names():
        tensor = checkpoint.tensors[name]
        used[tensor.file].append((name, tensor))
    done, matrices = 0, sum(math.prod(tensor.shape) * _DTYPES[tensor.dtype].itemsize
                            for tensor in (checkpoint.tensors[name] for name in module.matrices))

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, matrices)

    names, total = {}, 0
    for file, tensors in used.items():
        # Integers and their scales first, then wider elements: all but float64, which is converted, lie at multiples of their size.
        tensors.sort(key=lambda entry: -8 if entry[0] in module.matrices else -_DTYPES[entry[1].dtype].itemsize)
        parts = [part for name, tensor in tensors for part in _parts(name, tensor, module.matrices.get(name), how, report)]
        with open(folder / file.name, "wb") as out:
            out.writelines(parts_of_file(parts))
            out.flush()
            os.fsync(out.fileno())
        names |= {part.name: file.name for part in parts}
        total += sum(math.prod(part.shape) * part.dtype.itemsize for part in parts)
    if checkpoint.files[0].name != "model.safetensors":
        index = {"metadata": {"total_size": total}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    config = checkpoint.config | {"quantization_config": how.values()}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _parts(name: str, tensor: Tensor, transposed: bool | None, how: Quantization, report: Callable[[int], None]) -> list[Part]:
    """The parts that replace a tensor: itself, or integers and scales if `transposed` says how the matrix lies; `report` is called with the bytes of its numbers."""
    array = _map(name, tensor)
    if transposed is None:
        return [Part(name, array.dtype, array.shape, bytes_of(array))]
    matrix = array.T if transposed else array
    rows, columns = matrix.shape
    # Filled while the integers are written, which stand before them.
    scales = np.empty((rows, columns // how.group), np.float32)

    def integers() -> Iterator[bytes]:
        step = max(1, _NUMBERS // columns)
        for first in range(0, rows, step):
            block = _widened(name, tensor, matrix[first: first + step], first, transposed)
            numbers, scales[first: first + step] = quantized(block, how.bits, how.group)
            yield (numbers if how.bits == 8 else packed(numbers)).tobytes()
            report(len(block) * columns * array.itemsize)

    return [Part(name, np.dtype(np.int8), [rows, columns * how.bits // 8], integers()),
            Part(scale_name(name), np.dtype(np.float32), scales.shape, bytes_of(scales))]


def _map(name: str, tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor where they lie in its file."""
    dtype = _DTYPES[tensor.dtype]
    size = math.prod(tensor.shape) * dtype.itemsize
    whole = np.memmap(tensor.file, np.uint8, "r")
    if tensor.end - tensor.begin != size or tensor.begin < 8 or tensor.end > whole.size:
        raise CheckpointError(f"{tensor.file}: weight {shown(name)}: expected {size} bytes within the file, but got data_offsets of "
                              f"{tensor.end - tensor.begin} bytes that end at byte {tensor.end} of {whole.size}")
    return whole[tensor.begin: tensor.end].view(dtype).reshape(tensor.shape)


def _widened(name: str, tensor: Tensor, block: np.ndarray, first: int, transposed: bool) -> np.ndarray:
    """Finite float32 rows; `first` is the number of the first."""
    with np.errstate(over="ignore"):  # a float64 may be infinite in float32, which is checked below
        wide = np.ascontiguousarray(block, np.float32)
    wrong = np.argwhere(~np.isfinite(wide))
    if len(wrong):
        row, column = int(wrong[0][0]), int(wrong[0][1])
        index = [column, first + row] if transposed else [first + row, column]
        raise CheckpointError(f"{tensor.file}: weight {shown(name)}: expected finite numbers of float32, but got {wide[row, column]} at {index}")
    return wide


def quantized(block: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of float32 `[n, k]` as integers, int8 `[n, k]` from -(2^(bits-1) - 1) to 2^(bits-1) - 1, and scales, float32
    `[n, k / group]`, of which the largest magnitude of a group is that many times its scale; groups of zeros have scale 0."""
    most = 2 ** (bits - 1) - 1
    groups = block.reshape(len(block), -1, group)
    scales = np.abs(groups).max(2) / np.float32(most)
    # A scale below the least number of float32 is 0, and so are its integers.
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    numbers = np.clip(np.rint(groups / divisors[:, :, None]), -most, most)
    return numbers.astype(np.int8).reshape(block.shape), scales


def packed(numbers: np.ndarray) -> np.ndarray:
    """Integers of 4 bits `[n, k]`, two in a byte `[n, k / 2]`: those with even columns in the low halves."""
    halves = numbers.view(np.uint8) & 15
    return halves[:, ::2] | halves[:, 1::2] << 4
