"""Bundles with kernels: the numbers that they compute on the simulator's device, and over a library in the place of the CUDA
driver which code is taken for which GPU, and a clear error for each that has none."""
import ctypes
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from paths import ROOT

from diffattn import bundle, cli, decoding, errors, runtime
from diffattn.calls import Progress
from diffattn.device import DeviceArray
from test_sequences import MODULE as SEQUENCES

# Kernels of attention and of others, and a weight.
MODEL = """
ml_program.global private @w(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32>
func.func @attend(%q: tensor<1x2x?x32xf32>, %k: tensor<1x2x?x32xf32>, %v: tensor<1x2x?x64xf32>, %lambda: tensor<f32>,
                  %init: tensor<1x2x?x64xf32>) -> tensor<1x2x?x64xf32> {
  %r = diffattn.attention ins(%q, %k, %q, %k, %v : tensor<1x2x?x32xf32>, tensor<1x2x?x32xf32>, tensor<1x2x?x32xf32>,
    tensor<1x2x?x32xf32>, tensor<1x2x?x64xf32>) lambda(%lambda : tensor<f32>)
    outs(%init : tensor<1x2x?x64xf32>) {scale = 0.2 : f32, is_causal, norm = #diffattn.norm<rms>} -> tensor<1x2x?x64xf32>
  return %r : tensor<1x2x?x64xf32>
}
func.func @shift(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %b = ml_program.global_load_const @w : tensor<4xf32>
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(j)>, affine_map<(i,j)->(i,j)>],
                       iterator_types = ["parallel", "parallel"]}
         ins(%x, %b : tensor<?x4xf32>, tensor<4xf32>) outs(%e : tensor<?x4xf32>) {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %s = arith.addf %p, %q : f32
      linalg.yield %s : f32
  } -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("sources")
    (folder / "model.mlir").write_text(MODEL)
    # A constant that no kernel holds, in the place of the weight.
    text = runtime.emit(MODEL[:MODEL.index("func.func @attend")] + MODEL[MODEL.index("func.func @shift"):], "gpu",
                        target="cuda:sm_80").decode()
    text = re.sub(r"diffattn\.weights = \[.*?\}\], ", "", text)
    text = re.sub(r"diffattn\.weight %\w+", "memref.get_global @steps", text)
    at = text.index("func.func")
    (folder / "constant.mlir").write_text(
        text[:at] + 'memref.global "private" constant @steps : memref<4xf32> = dense<[4.0, 3.0, 2.0, 0.5]>\n' + text[at:])
    save_file({"w": np.array([1, 2, 3, 4.5], np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def write(build_dir, sources):
    def write(directory, target, model="model.mlir", stage="input"):
        done = subprocess.run([str(build_dir / "bin" / "diffattn-run"), str(sources / model), f"--from={stage}",
                               f"--target={target}", f"--weights={sources / 'model.safetensors'}", "--copy-weights",
                               "--emit=bundle", "--no-cache", "-o", str(directory)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return directory

    return write


@pytest.fixture(scope="module")
def written(write, tmp_path_factory):
    return write(tmp_path_factory.mktemp("gpu") / "bundle", "cuda:sm_80,sm_90")


@pytest.fixture(scope="module")
def constant(write, tmp_path_factory):
    return write(tmp_path_factory.mktemp("constant") / "bundle", "cuda:sm_90", "constant.mlir", "gpu")


@pytest.fixture(scope="module")
def simulate(build_dir):
    """Opens a simulated GPU; returns its address."""
    maker = ctypes.CDLL(str(build_dir / "lib" / "libDiffAttnC.so"))

    def simulate(chip):
        device = ctypes.c_void_p()
        assert maker.diffattn_open_simulated_device(chip, ctypes.byref(device)) == 0
        return device.value

    return simulate


@pytest.fixture
def simulated(simulate):
    return simulate(b"sm_80")


class Driver:
    """The library in the driver's place, which writes down what it is asked."""

    def __init__(self, path):
        self.path, self.c = path, ctypes.CDLL(str(path))
        self.c.mock_cuda_log.restype = ctypes.c_char_p
        self.c.mock_cuda_set.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self.c.mock_cuda_live.argtypes = [ctypes.c_char_p]
        self.c.mock_cuda_live.restype = ctypes.c_long
        self.c.mock_cuda_reset()

    def set(self, name, value):
        self.c.mock_cuda_set(name.encode(), value)

    def log(self):
        return self.c.mock_cuda_log().decode("latin-1")


@pytest.fixture
def driver(build_dir):
    return Driver(build_dir / "unittests/mocks/libMockCuda.so")


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def inputs(tokens=40):
    rng = np.random.default_rng(3)
    q, k, v, init = (rng.normal(size=(1, 2, tokens, w)).astype(np.float32) for w in (32, 32, 64, 64))
    return q, k, v, np.array(0.3, np.float32), init


def test_the_simulated_device_computes_what_the_program_does(write, sources, simulated, tmp_path):
    write(tmp_path / "b", "cuda-sim:sm_80")
    code = bundle.BundledCode(tmp_path / "b", device=simulated)
    program = runtime.Executable(MODEL, target="cuda-sim:sm_80", weights=[sources / "model.safetensors"], cache=False)
    (ours,), (theirs,) = code.call("attend", *inputs()), program.call("attend", *inputs())
    assert np.isfinite(ours).all() and ours.tobytes() == theirs.tobytes()
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(code.call("shift", x)[0], x + np.array([1, 2, 3, 4.5], np.float32))

    write(tmp_path / "c", "cuda-sim:sm_80", "constant.mlir", "gpu")
    code = bundle.BundledCode(tmp_path / "c", device=simulated)
    np.testing.assert_array_equal(code.call("shift", x)[0], x + np.array([4, 3, 2, 0.5], np.float32))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "b"
    assert cli.main(["bundle", str(ROOT / "examples" / "tiny-lm"), "--target=cuda-sim:sm_80", "-o", str(folder)]) == 0
    return folder


def test_a_language_model(tiny, simulated):
    import diffattn

    steps = []
    model = bundle.load(tiny, device=simulated, progress=lambda done, total: steps.append((done, total)))
    ids = np.array([[1, 20, 300, 4, 50]])
    logits, expected = model.forward(ids), diffattn.load(ROOT / "examples" / "tiny-lm", "cuda-sim:sm_80").forward(ids)
    assert np.isfinite(logits).all() and logits.tobytes() == expected.tobytes()
    # A line for each weight of each layer, as they are copied.
    assert len(steps) > 20 and [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert {total for _, total in steps} == {steps[-1][0]}


def test_a_step_is_one_launch_and_caches_stay_on_the_device(tiny, simulated, monkeypatch):
    import diffattn

    model, cpu = bundle.load(tiny, device=simulated), diffattn.load(ROOT / "examples" / "tiny-lm")
    monkeypatch.setattr(decoding, "LEAST_BUCKET", 8)
    capture, steps = model.executable.capture, []

    def counted(entry, *arrays):
        assert entry == "decode" and all(isinstance(cache, DeviceArray) for cache in arrays[2:])
        step, capacity = capture(entry, *arrays), arrays[2].shape[2]

        class Counted:
            fallback_reason = ""

            def __call__(self):
                before = model.executable.traffic()
                results = step()
                after = model.executable.traffic()
                assert step.fallback_reason == "" and all(r is a for r, a in zip(results[1:], arrays[2:]))
                change = {name: getattr(after, name) - getattr(before, name) for name, _ in before._fields_}
                steps.append((capacity, change, results[0].nbytes))
                return results

        return Counted()

    monkeypatch.setattr(model.executable, "capture", counted)
    prompt = cpu.tokenizer.encode("In the beginning")[:5]
    assert list(model.generate(prompt, 7)) == list(cpu.generate(prompt, 7))
    assert [capacity for capacity, _, _ in steps] == [8] * 3 + [16] * 3
    for _, change, logits in steps[1:3] + steps[4:]:
        assert change == {"allocations": 0, "bytes_in": 2 * 8, "bytes_out": logits, "bytes_within": 0, "launches": 1}


def test_arrays_on_the_device(write, simulated, tmp_path):
    code = bundle.BundledCode(write(tmp_path / "b", "cuda-sim:sm_80"), device=simulated)
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    array = DeviceArray.from_host(code, x)
    before = code.traffic()
    (y,) = code.call("shift", array)
    after = code.traffic()
    np.testing.assert_array_equal(y, x + np.array([1, 2, 3, 4.5], np.float32))
    assert after.bytes_in == before.bytes_in and after.bytes_out - before.bytes_out == x.nbytes
    np.testing.assert_array_equal(array.grown(0, 7).to_host()[:5], x)
    other = bundle.BundledCode(tmp_path / "b", device=simulated)
    with pytest.raises(errors.InputError, match="argument 0 of 'shift': expected an array on the device of this executable"):
        other.call("shift", array)
    runtime.write_bundle(MODEL, tmp_path / "cpu", weights=[os.path.join(tmp_path / "b/weights", name)
                                                           for name in os.listdir(tmp_path / "b/weights")])
    steps = []
    cpu = bundle.BundledCode(tmp_path / "cpu", progress=lambda *bytes: steps.append(bytes))
    assert not cpu.has_device and isinstance(cpu.zeros((2,), np.float32), np.ndarray) and steps == [(16, 16)]
    with pytest.raises(errors.UsageError, match="expected a bundle that runs on a device, but got one without"):
        DeviceArray.zeros(cpu, (5, 4), np.float32)
    with pytest.raises(errors.UsageError, match="expected a bundle that runs on a device to capture calls of, but got one without"):
        cpu.capture("shift", x)


def test_options_of_an_older_header(write, simulated, tmp_path):
    write(tmp_path / "b", "cuda-sim:sm_80")
    library, handle, calls = bundle.library(), ctypes.c_void_p(), []
    options = bundle._Options(bundle._Options.progress.offset, 0, None, None, None, None, simulated,
                              Progress(lambda *_: calls.append(1)), None, 1)
    assert library.open_with(os.fsencode(tmp_path / "b"), ctypes.byref(options), ctypes.byref(handle)) == 0
    assert library.has_device(handle) == 1 and not calls
    library.close(handle)


def test_what_is_in_it_is_told_without_a_gpu(written, tmp_path, capsys):
    assert cli.main(["info", "--bundle", str(written)]) == 0
    listing = capsys.readouterr().out
    assert "kernels                 sm_80 (cubin and ptx), sm_90 (cubin and ptx)" in listing
    assert "function shift          tensor<?x4xfloat32> -> tensor<?x4xfloat32>" in listing
    code = bundle.BundledCode(written, read_only=True)
    assert code.entries == ["attend", "shift"] and not code.has_device
    with pytest.raises(errors.UsageError, match="opened to be read only"):
        code.call("shift", np.ones((3, 4), np.float32))
    shutil.copytree(written, tmp_path / "b")
    (tmp_path / "b/sm_90/kernels.cubin").write_bytes(b"\x7fELF")
    assert cli.main(["info", "--bundle", str(tmp_path / "b")]) == 9
    assert "sm_90/kernels.cubin: expected" in capsys.readouterr().err


def test_python_writes_them(sources, tmp_path):
    weights = [sources / "model.safetensors"]
    runtime.write_bundle(MODEL, tmp_path / "b", target="cuda:sm_80,sm_90/generic", weights=weights, cache=False)
    manifest = manifest_of(tmp_path / "b")
    assert [part["chip"] for part in manifest["devices"]] == ["sm_80", "sm_90"] and manifest["cpu"]["isa"] == "generic"
    with pytest.raises(errors.UsageError, match="but got 'cuda:sm_80,sm_80'"):
        runtime.write_bundle(MODEL, tmp_path / "c", target="cuda:sm_80,sm_80", weights=weights)
    with pytest.raises(errors.UsageError, match='but got "sm_80,sm_90"'):
        runtime.Executable(MODEL, target="cuda:sm_80,sm_90")


def test_each_gpu_gets_its_code(written, driver):
    parts = {part["chip"]: part for part in manifest_of(written)["devices"]}
    assert list(parts) == ["sm_80", "sm_90"]
    for part in parts.values():
        assert [(image["format"], image["driver"]) for image in part["images"]] == [("cubin", 13000), ("ptx", 12000)]
        assert part["constant_bytes"] == [] and all(len(k["hash"]) == 64 for k in part["kernels"])
    driver.set("capability", 90)
    code = bundle.BundledCode(written, cuda_driver=driver.path)
    (y,) = code.call("shift", np.ones((3, 4), np.float32))
    assert y.shape == (3, 4)
    log = driver.log()
    # Here and there its kernels wait themselves for those ahead.
    assert "cuModuleLoadDataEx \x7fELF" in log and re.findall(r"cuLaunchKernelEx diffattn_elementwise_.*( attribute 6=1)", log), log
    assert log.count("cuLaunchKernelEx diffattn_elementwise") == 1, log
    # The weight when it is opened, and the argument.
    assert [int(line.split()[1]) for line in log.splitlines() if line.startswith("cuMemcpyHtoD")] == [16, 48]
    code.call("attend", *inputs())
    assert "cuLaunchKernelEx diffattn_" in driver.log()[len(log):]
    del code
    assert driver.c.mock_cuda_live(b"memory") == 0 and "cuDevicePrimaryCtxRelease" in driver.log()


@pytest.mark.parametrize("capability,version,image", [(80, 13000, "\x7fELF"), (86, 13000, "\x7fELF"), (90, 12040, "sm_90"),
                                                      (89, 12040, "sm_80"), (100, 13000, "sm_90")])
def test_the_image_that_fits_best(written, driver, capability, version, image):
    driver.set("capability", capability)
    driver.set("version", version)
    bundle.BundledCode(written, cuda_driver=driver.path)
    loaded = driver.log().split("cuModuleLoadDataEx ")[1:]
    assert len(loaded) == 1
    assert loaded[0].startswith(image) if image[0] == "\x7f" else f".target {image}" in loaded[0]


#: Attention alone, of 16 bits: what Hopper's kernels take.
HALF = MODEL[MODEL.index("func.func @attend"):MODEL.index("func.func @shift")].replace("xf32", "xf16")


def half_inputs(tokens=40):
    return [array.astype(np.float16) if array.ndim else array for array in inputs(tokens)]


def test_code_for_hopper_alone_lies_beside_that_of_other_chips(tmp_path, driver):
    """A chip with a letter takes code that no other chip runs, and no later one. Its calls make tensor maps."""
    folder = tmp_path / "b"
    runtime.write_bundle(HALF, folder, target="cuda:sm_80,sm_90,sm_90a", cache=False)
    assert list(part["chip"] for part in manifest_of(folder)["devices"]) == ["sm_80", "sm_90", "sm_90a"]
    driver.set("version", 12040)  # this driver compiles the PTX
    for capability, chip in ((90, "sm_90a"), (100, "sm_90"), (89, "sm_80")):
        driver.set("capability", capability)
        before = len(driver.log())
        code = bundle.BundledCode(folder, cuda_driver=driver.path)
        assert re.search(rf"\.target {chip}$", driver.log()[before:], re.MULTILINE)
        code.call("attend", *half_inputs())
        log = driver.log()[before:]
        assert ("cuLaunchKernelEx diffattn_forward_32x64_f16_wgmma_both" in log) == (chip == "sm_90a"), log
        maps = re.findall("cuTensorMapEncodeTiled (.*)", log)
        # Q by the rows of a block, the one K and V by those of a tile, the result by those of a warp: columns, rows, heads, batches,
        # the last of one element.
        q, k, v = "32/64+64 40/128+2560 2/1+16 1/1", "32/64+64 40/96+2560 2/1+16 1/1", "64/64+128 40/96+5120 2/1+16 1/1"
        o = v.replace("40/96", "40/16")
        assert maps == ([f"6: {of} 0 3 2 0" for of in (q, q, k, v, o)] if chip == "sm_90a" else [])


def test_the_simulated_hopper_computes_what_the_program_does(simulate, tmp_path):
    runtime.write_bundle(HALF, tmp_path / "b", target="cuda-sim:sm_90a", cache=False)
    code = bundle.BundledCode(tmp_path / "b", device=simulate(b"sm_90a"))
    program = runtime.Executable(HALF, target="cuda-sim:sm_90a", cache=False)
    on_cpu = runtime.Executable(HALF, cache=False)
    for tokens in (40, 300):
        (ours,), (theirs,), (expected,) = (of.call("attend", *half_inputs(tokens)) for of in (code, program, on_cpu))
        assert ours.tobytes() == theirs.tobytes()
        np.testing.assert_allclose(ours.astype(np.float32), expected.astype(np.float32), atol=4e-3)


def sequences_inputs():
    """Calls of SEQUENCES in f16: three packed sequences, and two with their keys in pages."""
    rng = np.random.default_rng(3)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float16)
    table = np.array([[2, 0, -9], [1, -9, -9]], np.int32)
    return {"packed": [make(1, 2, 40, 8), make(1, 1, 50, 8), make(1, 2, 40, 8), make(1, 1, 50, 16), make(1, 40, 2).astype(np.float32),
                       np.array([0, 17, 17, 40], np.int32), np.array([0, 30, 31, 50]), np.zeros((1, 2, 40, 16), np.float16)],
            "paged": [make(2, 2, 3, 8), make(3, 1, 16, 8), make(2, 2, 3, 8), make(3, 1, 16, 16), np.float32(0.3), np.array([25, 16]), table,
                      np.zeros((2, 2, 3, 16), np.float16)]}


def test_packed_sequences_and_pages(simulate, driver, tmp_path):
    """The numbers of the program on the simulator, and over the driver a merge of decode that may start early where the chip lets it."""
    text = re.sub(r"x(8|16)xf32>", r"x\1xf16>", SEQUENCES)
    calls = sequences_inputs()
    on_cpu = runtime.Executable(text, cache=False)
    for chip in ("sm_80", "sm_90a"):
        runtime.write_bundle(text, tmp_path / chip, target=f"cuda-sim:{chip}", cache=False)
        code = bundle.BundledCode(tmp_path / chip, device=simulate(chip.encode()))
        program = runtime.Executable(text, target=f"cuda-sim:{chip}", cache=False)
        for name, arguments in calls.items():
            (ours,), (theirs,), (expected,) = (of.call(name, *arguments) for of in (code, program, on_cpu))
            assert ours.tobytes() == theirs.tobytes()
            np.testing.assert_allclose(ours.astype(np.float32), expected.astype(np.float32), atol=4e-3)
    runtime.write_bundle(text, tmp_path / "b", target="cuda:sm_80,sm_90a", cache=False)
    early = {part["chip"]: [kernel["name"] for kernel in part["kernels"] if kernel.get("starts_early")]
             for part in manifest_of(tmp_path / "b")["devices"]}
    assert not early["sm_80"] and [name.split("_")[1] for name in early["sm_90a"]].count("merge") == 1
    assert early["sm_90a"] == [kernel["name"] for part in manifest_of(tmp_path / "b")["devices"] if part["chip"] == "sm_90a"
                               for kernel in part["kernels"]]
    for capability in (80, 90):
        driver.set("capability", capability)
        before = len(driver.log())
        bundle.BundledCode(tmp_path / "b", cuda_driver=driver.path).call("paged", *calls["paged"])
        launches = re.findall(r"cuLaunchKernelEx diffattn_(\w+?)_.*?( attribute 6=1)? on", driver.log()[before:])
        early = " attribute 6=1" if capability == 90 else ""
        assert launches == [("decode", early), ("merge", early)]


@pytest.mark.parametrize("settings,message", [
    ({"version": 11080}, "expected a driver of CUDA 12.0 or newer, but .* is of CUDA 11.8"),
    ({"capability": 75}, r"expected kernels for Mock GPU \(sm_75\), but got ones for sm_80, sm_90 and later chips"),
    ({"devices": 0}, "expected a"),
])
def test_a_gpu_that_does_not_fit(written, driver, settings, message):
    for name, value in settings.items():
        driver.set(name, value)
    with pytest.raises(errors.BundleError, match=message):
        bundle.BundledCode(written, cuda_driver=driver.path)
    assert driver.c.mock_cuda_live(b"retained") == 0 and driver.c.mock_cuda_live(b"memory") == 0


def test_no_driver_and_no_such_gpu(written, driver):
    with pytest.raises(errors.BundleError, match="could open none of:\n.*/no/such/libcuda.so.1: cannot open"):
        bundle.load(written, cuda_driver="/no/such/libcuda.so.1")
    with pytest.raises(errors.BundleError, match="expected a device from 0 to 0, but got 3"):
        bundle.load(written, cuda_driver=driver.path, gpu=3)


def edit(change):
    def damage(folder):
        manifest = manifest_of(folder)
        change(manifest["devices"][-1])
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return damage


@pytest.mark.parametrize("damage,message", [
    (lambda f: (f / "sm_90/kernels.cubin").write_bytes(b"\x7fELF"), "sm_90/kernels.cubin: expected .* bytes, but got 4"),
    (lambda f: (f / "sm_80/kernels.ptx").write_bytes(b"." * os.path.getsize(f / "sm_80/kernels.ptx")), "the file has been changed"),
    (edit(lambda part: part["kernels"].reverse()), "functions, weights and kernels of sm_90/model.so, but got others"),
    (edit(lambda part: part.update(library="sm_90/no.so")), "sm_90: expected 'sm_90/no.so' among the files"),
    (edit(lambda part: part.update(chip="sm_80")), "expected each chip once, but got sm_80 twice"),
], ids=["short image", "changed image", "kernels in another order", "no library", "one chip twice"])
def test_damages(written, driver, tmp_path, damage, message):
    shutil.copytree(written, tmp_path / "b")
    damage(tmp_path / "b")
    with pytest.raises(errors.BundleError, match=message):
        bundle.load(tmp_path / "b", cuda_driver=driver.path)
    assert driver.c.mock_cuda_live(b"retained") == 0


def test_constants(constant, driver, tmp_path):
    (part,) = manifest_of(constant)["devices"]
    assert part["constant_bytes"] == [16]
    assert np.fromfile(constant / part["constants"], np.float32).tolist() == [4, 3, 2, 0.5]
    bundle.load(constant, cuda_driver=driver.path)
    assert "cuMemcpyHtoDAsync 16" in driver.log()
    shutil.copytree(constant, tmp_path / "b")
    edit(lambda part: part.update(constant_bytes=[8, 8]))(tmp_path / "b")
    with pytest.raises(errors.BundleError, match="functions, weights and kernels of sm_90/model.so, but got others"):
        bundle.load(tmp_path / "b", cuda_driver=driver.path)
    (tmp_path / "b/sm_90/constants.bin").unlink()
    with pytest.raises(errors.BundleError, match="constants.bin: expected a readable file"):
        bundle.load(tmp_path / "b", cuda_driver=driver.path)


def test_bitcode_is_not_for_a_gpu(write, driver, tmp_path):
    write(tmp_path / "b", "cuda-sim:sm_80")
    with pytest.raises(errors.BundleError, match="bitcode of sm_80: is for the simulator"):
        bundle.load(tmp_path / "b", cuda_driver=driver.path)
