"""Calls of packed cases on tensors of PyTorch: on a GPU in place, on the simulator through copies."""
import ctypes

import torch

from . import cases, gradient_cases, host_program
from .device import Device, DeviceError, Pack, Shape, chip_number
from .generated import Generated


class Call:
    """Launches that are ready: a fixed case on fixed tensors. `run` may be called any number of times."""

    def __init__(self, launcher, launches, workspaces, mirrors, maps, result):
        self.launcher, self.launches, self.workspaces, self.mirrors, self.result = launcher, launches, workspaces, mirrors, result
        self.maps = maps  # on the host, where launches find them

    @property
    def kernels(self):
        return [launch[0] for launch in self.launches if not isinstance(launch, host_program.Fill)]

    def run(self):
        """On PyTorch's current stream."""
        self.launcher.run(self.launches)

    def fetch(self, output):
        """The operand `output`, brought back where it was copied to the device."""
        if self.mirrors:
            storage = output.untyped_storage()
            self.launcher.device.copy_out(storage.data_ptr(), self.mirrors[storage.data_ptr()], storage.nbytes())
        return output

    def fetch_result(self, element):
        """The buffer that the function returns, dense, as a tensor."""
        tensor = torch.empty(self.result.sizes, dtype=element)
        self.launcher.device.copy_out(tensor.data_ptr(), self.result.address, tensor.nbytes)
        return tensor.to(self.launcher.torch_device)

    def close(self):
        for address in [*self.workspaces, *self.mirrors.values()]:
            self.launcher.device.release(address)
        self.workspaces, self.mirrors = [], {}


class Launcher:
    """The kernels of a pack on a device. Where these are for one chip alone, `plain` has those that other chips run too."""

    def __init__(self, pack, device, tied=True):
        facts = device.properties()
        self.pack, self.device, self.facts = pack, device, facts
        self.simulated = bool(facts["simulated"])
        self.image, host = pack.choose(facts["chip"], self.simulated, tied)
        self.functions, self.kernels = host["functions"], host["kernels"]
        self.numbers = {kernel["name"]: number for number, kernel in enumerate(self.kernels)}
        self.module = device.load(self.image, self.kernels)
        self.cases = {fields["name"]: cases.from_json(fields) for fields in pack.manifest["cases"]}
        self.gradients = {fields["name"]: gradient_cases.from_json(fields) for fields in pack.manifest["gradients"]}
        self.generated = [Generated(**fields) for fields in pack.manifest["generated"]]
        self.torch_device = "cpu" if self.simulated else "cuda"
        self.streams = {}
        self.plain = Launcher(pack, device, tied=False) if chip_number(self.image["chip"])[1] else None

    def _buffer(self, tensor, mirrors):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if self.simulated:
            if address not in mirrors:
                mirrors[address] = self.device.allocate(storage.nbytes())
                self.device.copy_in(mirrors[address], address, storage.nbytes())
            address = mirrors[address]
        return host_program.Buffer(address, tensor.shape, tensor.stride(), tensor.storage_offset())

    def prepare(self, case, tensors):
        """The call of `case` on operands of operands.make. The tensors must live as long as the call."""
        return self.prepare_function(case.name, [tensors[name] for name in case.operands()])

    def prepare_function(self, name, tensors, offsets=True):
        """The call of a function. Without `offsets` its types say that buffers begin at their address."""
        mirrors, workspaces, maps = {}, [], []

        def allocate(size):
            workspaces.append(self.device.allocate(size, "workspace"))
            return workspaces[-1]

        def encode_map(*values):
            maps.append(self.device.tensor_map(*values))
            return maps[-1].address

        buffers = [self._buffer(tensor, mirrors) for tensor in tensors]
        if not offsets:
            for buffer, tensor in zip(buffers, tensors):
                buffer.address, buffer.offset = buffer.address + buffer.offset * tensor.element_size(), 0
        evaluated, result = host_program.evaluate(self.functions[name], buffers, allocate, encode_map)
        launches = []
        for launch in evaluated:
            if isinstance(launch, host_program.Fill):
                launches.append(launch)
                continue
            name, grid, block, shared, arguments = launch
            shape = Shape((ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(*block), shared)
            launches.append((name, shape, (ctypes.c_uint64 * len(arguments))(*arguments)))
        return Call(self, launches, workspaces, mirrors, maps, result)

    def _stream(self):
        if self.simulated:
            return None
        native = torch.cuda.current_stream().cuda_stream
        if not native:
            return None
        if native not in self.streams:
            self.streams[native] = self.device.wrap_stream(native)
        return self.streams[native]

    def run(self, launches):
        stream = self._stream()
        for launch in launches:
            if isinstance(launch, host_program.Fill):
                self.device.fill(*launch, stream)
                continue
            name, shape, arguments = launch
            self.device._call("launch", self.module, self.numbers[name], ctypes.byref(shape), stream, arguments)

    def unload(self):
        for stream in self.streams.values():
            self.device.destroy_stream(stream)
        self.device.unload(self.module)

    def close(self):
        if self.plain:
            self.plain.unload()
        self.unload()
        self.device.close()


def open_launcher(pack_folder, kind, simulator=None, chip="sm_80", package_folders=()):
    """The pack on the GPU (`kind` cuda) or on a simulated one, for which `simulator` is libDiffAttnC.so."""
    pack = Pack(pack_folder)
    if kind == "cuda":
        # PyTorch first: then its context is the device's, and its cuBLASLt is the one that is found.
        if not torch.cuda.is_available():
            raise DeviceError("expected a GPU that PyTorch sees, but torch.cuda.is_available() is false")
        torch.zeros(1, device="cuda")
        pack.provide_openmp()
        device = Device.cuda(pack.folder / pack.manifest["runtime"], package_folders)
    else:
        device = Device.simulated(simulator, chip)
    return Launcher(pack, device)
