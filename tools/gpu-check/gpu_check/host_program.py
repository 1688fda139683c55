"""The host code of attention ops, without MLIR: taken from the compiler when the kernels are packed, evaluated when they are launched.

What a launch passes, its grid, and which of two kernels fits the strides is decided by the `func.func` that the compiler
writes around its kernels. `parse` turns that function, printed in MLIR's generic form, into steps that JSON holds; `evaluate` runs
them on addresses, sizes and strides, and returns the launches. So no rule of a launch is written a second time.
"""
import math
import re
import struct
import typing

from .device import MAP_BYTES

BITS = {"index": 64, "i64": 64, "i32": 32, "i8": 8, "i1": 1}
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}
BINARY = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.andi": lambda a, b: a & b,
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.minui": min,
    "arith.maxui": max,
}


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


# Predicates of arith.cmpi on 64 bits.
COMPARE = {0: lambda a, b: a == b, 1: lambda a, b: a != b,
           2: lambda a, b: _signed(a) < _signed(b), 3: lambda a, b: _signed(a) <= _signed(b),
           4: lambda a, b: _signed(a) > _signed(b), 5: lambda a, b: _signed(a) >= _signed(b),
           6: lambda a, b: a < b, 7: lambda a, b: a <= b, 8: lambda a, b: a > b, 9: lambda a, b: a >= b}
ALLOCATE = {"gpu.alloc", "memref.alloc"}
# The call that writes a tensor map to memory of the host, and how kernels and such functions are told apart.
TENSOR_MAP, RUNTIME_PREFIX = "diffattn_rt_device_tensor_map", "diffattn_rt_"
SAME = {"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci", "llvm.inttoptr", "llvm.ptrtoint"}

OPERATION = re.compile(r'^\s*(?:(%\w+)(?::(\d+))? = )?"([\w.]+)"\(([^)]*)\)(.*)$')


class HostProgramError(Exception):
    """Host code, or a call of it, that this module does not know."""


def _memref(text):
    """Element type, sizes (None: any) and strides (None: any) of a memref type."""
    match = re.fullmatch(r"memref<((?:[\d?]+x)*)(\w+)(?:, strided<\[([^\]]*)\](?:, offset: [\d?]+)?>)?>", text)
    if not match or match[2] not in BYTES:
        raise HostProgramError(f"expected a memref of numbers, but got {text}")
    sizes = [None if s == "?" else int(s) for s in match[1].split("x")[:-1]]
    if match[3] is None:
        strides, step = [], 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step = None if step is None or size is None else step * size
    else:
        strides = [None if s.strip() == "?" else int(s) for s in match[3].split(",")] if match[3].strip() else []
    return {"element": match[2], "sizes": sizes, "strides": strides}


def _types(text):
    """The types of a list, split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += char in "<([{"
        depth -= char in ">)]}"
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return parts + [text[start:].strip()] if text.strip() else []


def _constant(rest):
    match = re.search(r"value = (\S+?)(?: : (\w+))?}>", rest)
    if not match:
        raise HostProgramError(f"expected a constant of one number, but got {rest.strip()}")
    text, kind = match[1], match[2]
    if text in ("true", "false"):
        return int(text == "true")
    if kind == "f32":
        if text.startswith("0x"):
            return int(text, 16)
        return struct.unpack("<I", struct.pack("<f", float(text)))[0]
    if kind not in BITS:
        raise HostProgramError(f"expected a constant of type index, i1, i8, i32, i64 or f32, but got {kind}")
    return int(text) % (1 << BITS[kind])


def _step(result, name, operands, rest):
    step = {"op": name, "in": operands, "out": result}
    if name in ("arith.constant", "llvm.mlir.constant"):
        step.update(op="arith.constant", value=_constant(rest))
    elif name == "llvm.mlir.zero":
        step.update(op="arith.constant", value=0)
    elif name == "arith.cmpi":
        step["predicate"] = int(re.search(r"predicate = (\d+)", rest)[1])
        if step["predicate"] not in COMPARE:
            raise HostProgramError(f"expected a predicate of arith.cmpi from 0 to {max(COMPARE)}, but got {step['predicate']}")
        # Signs are those of 64 bits.
        if 2 <= step["predicate"] <= 5 and (kind := rest.rsplit("(", 1)[1].split(",")[0]) not in ("index", "i64"):
            raise HostProgramError(f"expected signed comparisons of index or i64, but got {kind}")
    elif name in BINARY or name in SAME:
        if name in SAME:
            target = rest.rsplit("->", 1)[1].strip()
            step["bits"] = BITS.get(target, 64)
    elif name in ALLOCATE or name == "memref.view":
        step["type"] = _memref(rest.rsplit("->", 1)[1].strip())
    elif name == "gpu.memset":
        if _memref(_types(rest.rsplit(": (", 1)[1].split(") ->")[0])[0])["element"] != "i8":
            raise HostProgramError(f"expected bytes that are filled, but got {rest.strip()}")
    elif name == "gpu.launch_func":
        step["kernel"] = re.search(r"kernel = @[\w$.]+::@([\w$.]+)", rest)[1]
        segments = [int(n) for n in re.search(r"operandSegmentSizes = array<i32: ([^>]*)>", rest)[1].split(",")]
        # Async dependencies, grid, block, cluster, shared memory, arguments, async object.
        if segments[:7] != [0, 1, 1, 1, 1, 1, 1] or segments[7:11] != [0, 0, 0, 1] or segments[12] != 0:
            raise HostProgramError(f"expected a plain launch, but got operands {segments}")
    elif name == "llvm.call":
        if f"callee = @{TENSOR_MAP}" not in rest:
            raise HostProgramError(f"expected a call of {TENSOR_MAP}, but got {rest.strip()[:120]}")
    elif name == "memref.collapse_shape":
        groups = re.search(r"reassociation = \[(\[.*\])\]}", rest)[1]
        step["groups"] = [[int(axis) for axis in group.split(",")] for group in re.findall(r"\[([\d, ]+)\]", groups)]
    # A product of the library is for calls that a kernel of few rows does not take: `evaluate` refuses one that comes to it.
    elif name not in ("memref.dim", "memref.extract_aligned_pointer_as_index", "memref.extract_strided_metadata", "arith.select",
                      "gpu.dealloc", "llvm.alloca", "diffattn.gemm"):
        raise HostProgramError(f"expected host code of a launch, but got {name}")
    return step


def parse(text):
    """The functions of a module in generic form: name -> {"arguments": [type], "steps": [...]}."""
    functions, current = {}, None
    for line in text.splitlines():
        stripped = line.strip()
        head = re.match(r'"func\.func"\(\) <\{.*function_type = \((.*)\) -> (?:\(\)|memref<[^()]*>), sym_name = "([^"]+)"', stripped)
        if head:
            current = {"arguments": [_memref(t) for t in _types(head[1])], "names": [], "steps": [], "result": None}
            functions[head[2]] = current
            lists = [current["steps"]]  # of steps, the innermost last
            continue
        if current is None or not stripped:
            continue
        if stripped.startswith("^bb0("):
            current["names"] = re.findall(r"(%\w+):", stripped)
        elif stripped.startswith('"scf.if"'):
            step = {"op": "scf.if", "in": re.findall(r"%[\w#]+", stripped), "regions": [[], []]}
            lists[-1].append(step)
            lists.append(step["regions"][0])
        elif stripped.startswith("}, {"):
            lists.pop()
            lists.append(lists[-1][-1]["regions"][1])
        elif stripped.startswith("}) : (i1)"):
            lists.pop()
        elif stripped.startswith('"func.return"'):
            current["result"] = (re.findall(r"%\w+", stripped) or [None])[0]
            current = None
        elif not stripped.startswith('"scf.yield"'):
            match = OPERATION.match(stripped)
            if not match:
                raise HostProgramError(f"expected an operation in generic form, but got {stripped[:120]}")
            operands = [o.strip() for o in match[4].split(",")] if match[4].strip() else []
            lists[-1].append(_step(match[1], match[3], operands, match[5]))
    return functions


def kernel_parameters(text):
    """The layout of each kernel's parameters, as diffattn_kernel has it."""
    letters = {"i64": "8", "i32": "4", "f32": "4", "i16": "2", "i8": "1"}
    letters_by_kernel = {}
    for attributes, types, name in re.findall(
            r'"llvm\.func"\(\) <\{(.*?)function_type = !llvm\.func<void \((.*?)\)>.*?sym_name = "([^"]+)"', text):
        if name.startswith(RUNTIME_PREFIX):
            continue
        # A map is passed by value: what its pointer points at.
        listed = re.search(r"arg_attrs = \[(.*)\], $", attributes)
        values = [f"llvm.byval = !llvm.array<{MAP_BYTES} x i8>" in a for a in _types(listed[1])] if listed else [False] * len(_types(types))
        letters_by_kernel[name] = "".join("m" if v else "p" if t.startswith("ptr") else letters[t] for v, t in zip(values, _types(types), strict=True))
    return letters_by_kernel


def early_kernels(text):
    """The kernels that wait themselves for those ahead of them, and so may start before these have ended."""
    parts = re.split(r'"llvm\.func"\(\) <\{.*?sym_name = "([^"]+)"', text)
    return {name for name, body in zip(parts[1::2], parts[2::2], strict=True) if '"griddepcontrol.wait;"' in body}


class MapPlace:
    """Where host code writes a tensor map: once it has, the map's address on the host."""

    def __init__(self):
        self.address = None


class Fill(typing.NamedTuple):
    """Memory of the device of which every byte is set to `value`, between launches."""
    address: int
    value: int
    size: int


class Buffer:
    """A memref in the memory of a device: `offset` and `strides` in elements."""

    def __init__(self, address, sizes, strides, offset=0):
        self.address, self.sizes, self.strides, self.offset = address, list(sizes), list(strides), offset


def _contiguous(sizes):
    """Strides of a buffer whose elements lie one behind the other."""
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return strides


def _collapse(buffer, groups):
    """Axes that follow one another without a gap become one."""
    sizes, strides = [], []
    for group in groups:
        for axis, after in zip(group, group[1:]):
            if buffer.strides[axis] != buffer.strides[after] * buffer.sizes[after]:
                raise HostProgramError(f"expected axes {group} without a gap, but got strides {buffer.strides}")
        sizes.append(math.prod(buffer.sizes[axis] for axis in group))
        strides.append(buffer.strides[group[-1]])
    return Buffer(buffer.address, sizes, strides, buffer.offset)


def _check(function, buffers):
    if len(buffers) != len(function["arguments"]):
        raise HostProgramError(f"expected {len(function['arguments'])} arguments, but got {len(buffers)}")
    for number, (type_, buffer) in enumerate(zip(function["arguments"], buffers)):
        for what in ("sizes", "strides"):
            want, got = type_[what], getattr(buffer, what)
            if len(want) != len(got) or any(w is not None and w != g for w, g in zip(want, got)):
                raise HostProgramError(f"expected {what} {want} of argument {number}, but got {got}")


def evaluate(function, buffers, allocate, encode_map=None):
    """The launches of a call, (kernel, grid, block, shared bytes, arguments), with fills in order, and the buffer that it returns, or None.

    `allocate(bytes)` returns an address; what it gives must stay until the launches are done. `encode_map(operand, element type, rows
    of a box, address, columns, rows, heads, batches, and the strides of the last three in elements)` returns the address of a tensor
    map on the host, which must stay until the launches are made."""
    _check(function, buffers)
    values, launches = {}, []
    for name, buffer in zip(function["names"], buffers):
        values[name] = buffer

    def run(steps):
        for step in steps:
            name, operands = step["op"], [values[o] for o in step["in"]]
            if name == "arith.constant":
                value = step["value"]
            elif name in BINARY:
                value = BINARY[name](*operands) % (1 << 64)
            elif name in SAME:
                value = operands[0] % (1 << step["bits"])
            elif name == "arith.cmpi":
                value = int(COMPARE[step["predicate"]](*operands))
            elif name == "arith.select":
                value = operands[1] if operands[0] else operands[2]
            elif name == "memref.dim":
                value = operands[0].sizes[operands[1]]
            elif name == "memref.extract_aligned_pointer_as_index":
                value = operands[0].address
            elif name == "memref.extract_strided_metadata":
                buffer = operands[0]
                for number, part in enumerate([buffer, buffer.offset, *buffer.sizes, *buffer.strides]):
                    values[f"{step['out']}#{number}"] = part
                continue
            elif name == "memref.view":
                sizes = [s if s is not None else operands.pop(2) for s in step["type"]["sizes"]]
                value = Buffer(operands[0].address + operands[1], sizes, _contiguous(sizes))
            elif name == "memref.collapse_shape":
                value = _collapse(operands[0], step["groups"])
            elif name in ALLOCATE:
                sizes = [s if s is not None else operands.pop(0) for s in step["type"]["sizes"]]
                value = Buffer(allocate(math.prod(sizes) * BYTES[step["type"]["element"]]), sizes, _contiguous(sizes))
            elif name == "llvm.alloca":
                value = MapPlace()
            elif name == "llvm.call":
                operands[0].address = encode_map(*operands[1:])
                continue
            elif name == "gpu.memset":
                launches.append(Fill(operands[0].address, operands[1], math.prod(operands[0].sizes)))
                continue
            elif name == "gpu.launch_func":
                arguments = [o.address if isinstance(o, MapPlace) else o for o in operands[7:]]
                launches.append((step["kernel"], operands[:3], operands[3:6], operands[6], arguments))
                continue
            elif name == "scf.if":
                run(step["regions"][0 if operands[0] else 1])
                continue
            elif name == "gpu.dealloc":
                continue
            else:
                raise HostProgramError(f"expected a step of a launch, but got {name}")
            values[step["out"]] = value

    run(function["steps"])
    return launches, values.get(function["result"])
