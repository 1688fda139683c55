"""Products on a device that read the same rows: one product, whose weights lie side by side in the device's memory."""
import ctypes
import json

import numpy as np
import pytest
from paths import ROOT
from safetensors.numpy import save_file

import diffattn
from diffattn import bundle, runtime
from diffattn.errors import BundleError, WeightsError
from diffattn.models.mlir_text import Module

TARGET = "cuda-sim:sm_80"
FEW = 4  # rows of a product that is a kernel
LAYERS = 3
#: Rows of each weight, and how the files have it.
WEIGHTS = {"q": (64, {}), "k": (16, {"transpose": True}), "v": (32, {"row_blocks": [3, 0, 2, 1]})}


def model():
    """Sums over layers of x times q, k and v; and x times one layer's k alone."""
    m = Module()
    m.weight("first", [32, 32], "f32")
    for name, (rows, how) in WEIGHTS.items():
        m.weight(f"l.{{}}.{name}", [rows, 32], "f32", layers=LAYERS, **how)
        m.weight(f"l.{{}}.{name}_norm", [rows], "f32", layers=LAYERS)
    m.weight("second", [16, 32], "f32")
    f = m.function("sums")
    x = f.argument("x", "f32", [None, 32])

    def add(total, product):
        return f.generic("m n, m n -> m n", [total, product], f.empty(total.dims, "f32"), lambda a, b, _: f.scalar("arith.addf", a, b))

    f.ret(*f.loop(LAYERS, [f.fill(f.f32(0), [x.dims[0], rows]) for rows, _ in WEIGHTS.values()],
                  lambda layer, *totals: [add(total, f.matmul(x, f.weight(f"l.{{}}.{name}", layer))) for total, name in zip(totals, WEIGHTS)]))
    f = m.function("alone")
    x = f.argument("x", "f32", [None, 32])
    f.ret(f.matmul(x, f.weight("l.{}.k", f.index(1))))
    f = m.function("pair")
    x = f.argument("x", "f32", [None, 32])
    f.ret(*(f.matmul(x, f.weight(name)) for name in ("first", "second")))
    return str(m)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small integers, so that no order of sums changes a bit; and what the module makes of them."""
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp("merged")
    arrays, tensors = {}, {}
    shapes = {"first": (32, {}), "second": (16, {}), **{f"l.{i}.{name}": how for i in range(LAYERS) for name, how in WEIGHTS.items()}}
    for name, (rows, how) in shapes.items():
        tensors[name] = array = rng.integers(-4, 5, (rows, 32)).astype(np.float32)
        if "row_blocks" in how:
            array = np.concatenate([np.split(array, len(how["row_blocks"]))[block] for block in how["row_blocks"]])
        arrays[name] = array
        if how.get("transpose"):
            tensors[name] = np.ascontiguousarray(tensors[name].T)
    tensors |= {f"l.{i}.{name}_norm": np.ones(rows, np.float32) for i in range(LAYERS) for name, (rows, _) in WEIGHTS.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder, arrays


def check(call, arrays, x):
    """All three functions, whose products are counted where they are the library's."""
    runtime.reset_counters()
    each = 0 if len(x) <= FEW else 2  # once by the device, and once by the CPU that simulates it
    for got, name in zip(call("sums", x), WEIGHTS):
        np.testing.assert_array_equal(got, sum(x @ arrays[f"l.{i}.{name}"].T for i in range(LAYERS)))
    assert runtime.counters().gemm_calls == each * LAYERS
    for got, name in zip(call("pair", x), ("first", "second")):
        np.testing.assert_array_equal(got, x @ arrays[name].T)
    assert runtime.counters().gemm_calls == each * (LAYERS + 1)
    np.testing.assert_array_equal(call("alone", x)[0], x @ arrays["l.1.k"].T)


def test_one_product_of_all_weights(files):
    folder, arrays = files
    executable = runtime.Executable(model(), target=TARGET, weights=[folder / "model.safetensors"])
    for rows in (1, 5):
        check(executable.call, arrays, np.random.default_rng(rows).integers(-4, 5, (rows, 32)).astype(np.float32))
    assert not executable.diagnostics


@pytest.fixture(scope="module")
def simulated():
    device = ctypes.c_void_p()
    runtime.library().check(runtime.library().c.diffattn_open_simulated_device(b"sm_80", ctypes.byref(device)))
    return device.value


def test_bundles_lay_weights_out_so(files, simulated, tmp_path):
    folder, arrays = files
    runtime.write_bundle(model(), tmp_path / "b", weights=[folder / "model.safetensors"], target=TARGET, cache=False)
    x = np.random.default_rng(0).integers(-4, 5, (6, 32)).astype(np.float32)
    check(bundle.BundledCode(tmp_path / "b", device=simulated).call, arrays, x)
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    follows = {weight["name"]: weight["follows"] for weight in manifest["weights"] if "follows" in weight}
    assert follows == {"l.{}.k": "l.{}.q", "l.{}.v": "l.{}.k", "second": "first"}
    # The code depends on it.
    for name, value, message in (("l.{}.v", None, "to have the functions and weights|expected the functions, weights and kernels"),
                                 ("l.{}.v", "l.{}.q", "weight 'l.{}.v': expected to follow a weight before it that no other follows"),
                                 ("second", "l.{}.q", "weight 'second': expected to follow a weight before it")):
        (weight,) = (weight for weight in manifest["weights"] if weight["name"] == name)
        before = weight.pop("follows")
        if value is not None:
            weight["follows"] = value
        (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(BundleError, match=message.replace("{}", r"\{\}")):
            bundle.BundledCode(tmp_path / "b", device=simulated)
        weight["follows"] = before


@pytest.mark.parametrize("name, tensor, message", [
    ("l.1.k", None, "weight 'l.1.k': expected it in the weight files, but they lack it"),
    ("l.2.v", np.zeros((32, 31), np.float32), r"weight 'l.2.v': expected shape \[32, 32\], but got \[32, 31\]"),
    ("second", np.zeros((16, 32), np.int32), "weight 'second': expected element type f32 or another float, but got I32"),
], ids=["missing", "shape", "type"])
def test_errors_name_the_weight_itself(files, tmp_path, name, tensor, message):
    from safetensors.numpy import load_file

    tensors = load_file(files[0] / "model.safetensors")
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        runtime.Executable(model(), target=TARGET, weights=[tmp_path / "model.safetensors"])


def test_code_for_the_cpu_is_as_it_was(files):
    folder, _ = files
    text = runtime.emit(model(), "bufferized").decode()
    assert "follows" not in text and text.count("diffattn.gemm") == 6
    text = runtime.emit(model(), "bufferized", target=TARGET).decode()
    assert text.count("follows") == 3 and text.count("diffattn.gemm") == 3


def test_one_layout_for_several_chips(files, tmp_path):
    runtime.write_bundle(model(), tmp_path / "b", weights=[files[0] / "model.safetensors"], target="cuda:sm_80,sm_90a")
    assert not bundle.BundledCode(tmp_path / "b", read_only=True).has_device
    assert (tmp_path / "b" / "manifest.json").read_text().count('"follows"') == 3


def test_launches_of_a_language_model():
    """Numbers of launches agree with those of docs/gpu.md."""
    row = "| `examples/tiny-lm`, 4 layers | {} | {} | {} | {} |"
    lm = diffattn.load(ROOT / "examples" / "tiny-lm", target=TARGET)
    ids, lengths, counts = np.random.default_rng(1).integers(0, 60, (2, 8)), np.array([8, 5]), []

    def counted(entry, *arrays):
        runtime.reset_counters()
        before = lm.executable.traffic().launches
        result = lm.executable.call(entry, *arrays)
        counts.append((runtime.counters().gemm_calls // 2, lm.executable.traffic().launches - before))
        return result

    _, *caches = counted("prefill", ids, lengths, *lm.new_caches(2, 64))
    counted("decode", np.array([3, 4]), lengths, *caches)
    (products, prefill), (again, step) = counts
    assert row.format(products, prefill, again, step) in (ROOT / "docs" / "gpu.md").read_text()
