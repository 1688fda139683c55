"""The device table of include/DiffAttn/Runtime/ABI/Device.h by ctypes: the CUDA driver's, or the simulator's."""
import ctypes
import gzip
import json
import re
from pathlib import Path

# Versions of the device table, and of packs.
VERSION, PACK_VERSION = 4, 7
FORMATS = {"cubin": 0, "ptx": 1, "bc": 2}
# A tensor map: its bytes, and what of it is the same for every operand (diffattn_rt_device_tensor_map).
MAP_BYTES, MAP_ALIGNMENT, MAP_COLUMNS, MAP_ELEMENT_BYTES, MAP_STRIDE = 128, 128, 64, 2, 16
OPERANDS = ("q1", "k1", "q2", "k2", "v", "o")
DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3}

_p, _i32, _i64, _u32, _u64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64


class DeviceError(Exception):
    """An error of the device, with its message."""


class Properties(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 256), ("chip", ctypes.c_char * 16), ("ordinal", _i32), ("multiprocessors", _i32),
                ("driver", _i32), ("memory_bytes", _i64), ("shared_bytes", _i64), ("simulated", _i32),
                ("gemm_library", ctypes.c_char * 256)]


class Image(ctypes.Structure):
    _fields_ = [("chip", ctypes.c_char_p), ("format", _i32), ("driver", _i32), ("data", ctypes.c_char_p), ("bytes", _i64)]


class Kernel(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("hash", ctypes.c_char_p), ("parameters", ctypes.c_char_p),
                ("starts_early", _i32)]


class Shape(ctypes.Structure):
    _fields_ = [("grid", _u32 * 3), ("block", _u32 * 3), ("shared_bytes", _u32)]


class Product(ctypes.Structure):
    _fields_ = [("dtype_a", _i32), ("dtype_b", _i32), ("dtype_c", _i32), ("transpose_b", _i32), ("m", _i64), ("n", _i64),
                ("k", _i64), ("a", _u64), ("b", _u64), ("c", _u64), ("lda", _i64), ("ldb", _i64), ("ldc", _i64), ("batch", _i64),
                ("stride_a", _i64), ("stride_b", _i64), ("stride_c", _i64), ("beta", ctypes.c_float)]


class Tensor(ctypes.Structure):
    _fields_ = [("dtype", _i32), ("box_columns", _i32), ("box_rows", _i32), ("base", _u64), ("sizes", _i64 * 4), ("strides", _i64 * 3)]


class CudaOptions(ctypes.Structure):
    _fields_ = [("ordinal", _i32), ("driver_library", ctypes.c_char_p), ("gemm_library", ctypes.c_char_p),
                ("package_folders", ctypes.POINTER(ctypes.c_char_p)), ("num_package_folders", _i32)]


def _function(*arguments, result=_i32):
    return ctypes.CFUNCTYPE(result, _p, *arguments)


_out = ctypes.POINTER(_p)


class Table(ctypes.Structure):
    _fields_ = [
        ("version", _i32), ("struct_bytes", _i32),
        ("close", _function(result=None)), ("last_error", _function(result=ctypes.c_char_p)),
        ("properties", _function(ctypes.POINTER(Properties))),
        ("allocate", _function(_i64, ctypes.c_char_p, ctypes.POINTER(_u64))), ("release", _function(_u64)),
        ("host_allocate", _function(_i64, _out)), ("host_release", _function(_p)), ("name_range", _function(_u64, _i64, ctypes.c_char_p)),
        ("copy_in", _function(_p, _u64, _p, _i64)), ("copy_out", _function(_p, _p, _u64, _i64)),
        ("copy", _function(_p, _u64, _u64, _i64)), ("fill", _function(_p, _u64, _i32, _i64)),
        ("stream_create", _function(_out)), ("stream_wrap", _function(_p, _out)), ("stream_destroy", _function(_p)),
        ("stream_wait", _function(_p)), ("stream_wait_event", _function(_p, _p)),
        ("event_create", _function(_out)), ("event_destroy", _function(_p)), ("event_record", _function(_p, _p)),
        ("event_wait", _function(_p)), ("event_elapsed", _function(_p, _p, ctypes.POINTER(ctypes.c_float))),
        ("capture_begin", _function(_p)), ("capture_end", _function(_p, _out)), ("graph_launch", _function(_p, _p)),
        ("graph_destroy", _function(_p)),
        ("module_load", _function(ctypes.POINTER(Image), _i32, ctypes.POINTER(Kernel), _i32, _out)),
        ("module_destroy", _function(_p)),
        ("launch", _function(_p, _i32, ctypes.POINTER(Shape), _p, ctypes.POINTER(_u64))),
        ("tensor_map", _function(ctypes.POINTER(Tensor), _p)), ("gemm", _function(_p, ctypes.POINTER(Product))),
    ]


class Device:
    """One device. Addresses are numbers; a stream of 0 is the default one."""

    def __init__(self, pointer):
        self.pointer = pointer
        self.table = ctypes.cast(pointer, ctypes.POINTER(Table)).contents
        if self.table.version != VERSION or self.table.struct_bytes != ctypes.sizeof(Table):
            raise DeviceError(f"expected a device table of version {VERSION} with {ctypes.sizeof(Table)} bytes, but got version "
                              f"{self.table.version} with {self.table.struct_bytes}")

    @classmethod
    def cuda(cls, runtime, package_folders=(), driver=None):
        """The GPU 0 by the CUDA driver. `runtime` is the path of libDiffAttnRuntime.so."""
        library = ctypes.CDLL(str(runtime))
        library.diffattn_cuda_open_error.restype = ctypes.c_char_p
        folders = (ctypes.c_char_p * max(1, len(package_folders)))(*[str(f).encode() for f in package_folders])
        options = CudaOptions(0, str(driver).encode() if driver else None, None, folders, len(package_folders))
        pointer = _p()
        if library.diffattn_cuda_open(ctypes.byref(options), ctypes.byref(pointer)):
            raise DeviceError(library.diffattn_cuda_open_error().decode())
        return cls(pointer)

    @classmethod
    def simulated(cls, library, chip):
        """A GPU that the compiler's library, libDiffAttnC.so, simulates."""
        library = ctypes.CDLL(str(library))
        library.diffattn_last_error.restype = ctypes.c_char_p
        pointer = _p()
        if library.diffattn_open_simulated_device(chip.encode(), ctypes.byref(pointer)):
            raise DeviceError(library.diffattn_last_error().decode())
        return cls(pointer)

    def _call(self, name, *arguments):
        if getattr(self.table, name)(self.pointer, *arguments):
            raise DeviceError(f"{name}: {self.table.last_error(self.pointer).decode()}")

    def properties(self):
        result = Properties()
        self._call("properties", ctypes.byref(result))
        return {name: getattr(result, name).decode() if kind not in (_i32, _i64) else getattr(result, name)
                for name, kind in Properties._fields_}

    def allocate(self, size, name="buffer"):
        address = _u64()
        self._call("allocate", size, name.encode(), ctypes.byref(address))
        return address.value

    def release(self, address):
        self._call("release", address)

    def copy_in(self, address, host, size):
        self._call("copy_in", None, address, host, size)
        self.wait()

    def copy_out(self, host, address, size):
        self._call("copy_out", None, host, address, size)
        self.wait()

    def fill(self, address, value, size, stream=None):
        self._call("fill", stream, address, value, size)

    def wait(self):
        self._call("stream_wait", None)

    def wrap_stream(self, native):
        stream = _p()
        self._call("stream_wrap", native, ctypes.byref(stream))
        return stream

    def destroy_stream(self, stream):
        self._call("stream_destroy", stream)

    def load(self, image, kernels):
        """`image`: chip, format, driver, data. `kernels`: name, parameters and starts_early of each."""
        data = image["data"]
        images = (Image * 1)(Image(image["chip"].encode(), FORMATS[image["format"]], image["driver"], data, len(data)))
        table = (Kernel * len(kernels))(*[Kernel(k["name"].encode(), b"", k["parameters"].encode(), k["starts_early"])
                                           for k in kernels])
        module = _p()
        self._call("module_load", images, 1, table, len(kernels), ctypes.byref(module))
        return module

    def launch(self, module, number, grid, block, shared, arguments, stream=None):
        shape = Shape((_u32 * 3)(*grid), (_u32 * 3)(*block), shared)
        self._call("launch", module, number, ctypes.byref(shape), stream, (_u64 * len(arguments))(*arguments))

    def tensor_map(self, operand, dtype, box_rows, base, *sizes_and_strides):
        """The tensor map of an operand of attention, as an object with an `address` on the host. Behind `base`: columns, rows, heads and
        batches, then the strides of the last three in elements."""
        sizes, strides = sizes_and_strides[:4], sizes_and_strides[4:]
        # Any legal stride does for an axis of one element.
        steps = [MAP_STRIDE if size == 1 else MAP_ELEMENT_BYTES * stride for size, stride in zip(sizes[1:], strides)]
        tensor = Tensor(dtype, MAP_COLUMNS, box_rows, base, (_i64 * 4)(*sizes), (_i64 * 3)(*steps))
        held = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        held.address = -(-ctypes.addressof(held) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        try:
            self._call("tensor_map", ctypes.byref(tensor), held.address)
        except DeviceError as error:
            raise DeviceError(f"the tensor map of {OPERANDS[operand]}: {error}") from None
        return held

    def gemm(self, product, stream=None):
        self._call("gemm", stream, ctypes.byref(product))

    def unload(self, module):
        self._call("module_destroy", module)

    def close(self):
        self.table.close(self.pointer)


def chip_number(name):
    """sm_90a is (90, "a"): code with a letter is for this one chip."""
    match = re.fullmatch(r"sm_(\d+)([a-z]?)", name)
    if not match:
        raise DeviceError(f"expected a chip as sm_80, but got {name}")
    return int(match[1]), match[2]


class Pack:
    """A folder of scripts/gpu-pack.sh."""

    def __init__(self, folder):
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        if not path.is_file():
            raise DeviceError(f"expected {path}: make it with scripts/gpu-pack.sh on a machine with the build")
        self.manifest = json.loads(path.read_text())
        if self.manifest.get("format") != "diffattn gpu pack" or self.manifest.get("version") != PACK_VERSION:
            raise DeviceError(f"expected a pack of version {PACK_VERSION} in {path}, but got version {self.manifest.get('version')}")
        for name, facts in self.manifest["files"].items():
            file = self.folder / name
            if not file.is_file() or file.stat().st_size != facts["bytes"]:
                raise DeviceError(f"expected {file} with {facts['bytes']} bytes: the pack is damaged")

    def provide_openmp(self):
        """Loads libgomp, which the runtime needs: the machine's, else the pack's. Says which."""
        for name in ("libgomp.so.1", str(self.folder / self.manifest["openmp"])):
            try:
                ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
                return name
            except OSError as problem:
                error = problem
        raise DeviceError(f"expected libgomp, the machine's or the pack's: {error}")

    def choose(self, chip, simulated, tied=True):
        """The image for `chip`: machine code for this chip alone, for it, or for an older one of the same major number, else PTX. Without
        `tied` none that is for this chip alone, as sm_90a's is, with TMA and wgmma."""
        number, letter = chip_number(chip)
        fitting = []
        for image in self.manifest["images"]:
            built, alone = chip_number(image["chip"])
            if alone and (not tied or built != number or (simulated and not letter)):
                continue
            if simulated and image["format"] == "bc":
                fitting.append((built == number, built, alone, image))
            elif not simulated and image["format"] == "cubin" and built // 10 == number // 10 and built <= number:
                fitting.append((2, built, alone, image))
            elif not simulated and image["format"] == "ptx" and built <= number:
                fitting.append((1, built, alone, image))
        if not fitting:
            had = ", ".join(f"{i['chip']} as {i['format']}" for i in self.manifest["images"])
            raise DeviceError(f"expected kernels for {chip}{'' if tied else ' and others'}, but the pack has them for {had}")
        image = max(fitting, key=lambda entry: entry[:3])[3]
        data, host = (gzip.decompress((self.folder / image[part]).read_bytes()) for part in ("file", "host"))
        return {**image, "data": data}, json.loads(host)
