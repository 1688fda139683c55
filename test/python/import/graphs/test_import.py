"""`diffattn import`: what it writes runs as the model does; nothing of a file runs while it is read, and nothing half is written."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from torch import nn

from diffattn import cli, errors, import_command
from diffattn.importing.function import Imported
from diffattn.importing.names import weight_names
from diffattn.importing.safetensors import pieces
from diffattn.output import write_files
from diffattn.runtime import Executable

pytestmark = pytest.mark.oracle


class Model(nn.Module):
    """Parameters, constants and buffers of several types."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 5).to(torch.float64)
        self.register_buffer("places", torch.arange(40))
        self.register_buffer("seen", torch.tensor([True, False] * 20))
        self.shift = torch.randn(5, dtype=torch.float64)

    def forward(self, x):
        n = x.shape[0]
        y = self.linear(x) + self.places[:n, None] + self.shift
        return y.T, torch.where(self.seen[:n, None], y, 0)


X = torch.arange(18, dtype=torch.float64).reshape(3, 6) / 18


def save_pt2(path):
    rows = torch.export.Dim("rows", min=2, max=40)
    torch.export.save(torch.export.export(Model(), (X,), dynamic_shapes=({0: rows},)), path)
    return [one.detach().numpy() for one in Model()(X)]


def save_onnx(path):
    weight = np.random.default_rng(0).standard_normal((6, 5))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", T.DOUBLE, ["rows", 6])],
                              [helper.make_tensor_value_info("y", T.DOUBLE, ["rows", 5])], [numpy_helper.from_array(weight, "w")])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString())
    return [X.numpy() @ weight]


TEXT = """func.func @main(%x: tensor<?x6xf64>) -> tensor<?x5xf64> {
  %w = stablehlo.constant dense<WEIGHT> : tensor<6x5xf64>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x6xf64>, tensor<6x5xf64>) -> tensor<?x5xf64>
  return %0 : tensor<?x5xf64>
}"""


def save_stablehlo(path):
    weight = np.arange(30.0).reshape(6, 5)
    path.write_text(TEXT.replace("WEIGHT", str(weight.tolist())))
    return [X.numpy() @ weight]


KINDS = {"m.pt2": (save_pt2, []), "m.onnx": (save_onnx, []), "m.mlir": (save_stablehlo, ["--size=arg0.0=3"])}


def run(*words):
    return cli.main(["import", *map(str, words)])


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_runs(name, tmp_path, build_dir, capsys):
    save, options = KINDS[name]
    want = save(tmp_path / name)
    texts = []
    for turn in ("a", "b"):
        module, weights = tmp_path / f"{turn} out.mlir", tmp_path / f"{turn}.safetensors"
        assert run(tmp_path / name, "-o", module, f"--weights={weights}", *options) == 0
        texts.append((module.read_text(), weights.read_bytes()))
    assert texts[0] == texts[1]
    assert f"diffattn: wrote {module} and {weights}; run it with: " in capsys.readouterr().err
    for got, one in zip(Executable(texts[0][0], weights=[weights], cache=False).call("main", X), want, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-12)
    np.save(tmp_path / "x.npy", X)
    for program, arguments in (("diffattn-run", [f"--weights={weights}", f"--input={tmp_path / 'x.npy'}", f"--expected={want_file(tmp_path, want)}"]),
                               ("diffattn-opt", ["--diffattn-cpu-pipeline=until=raised"])):
        done = subprocess.run([build_dir / "bin" / program, module, *arguments], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def want_file(folder, want):
    np.save(folder / "want.npy", np.ascontiguousarray(want[0]))
    return folder / "want.npy"


def refused(capsys, code, message, *words):
    assert run(*words) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error, error


def test_wrong_words(tmp_path, capsys):
    save_onnx(tmp_path / "m.onnx")
    save_stablehlo(tmp_path / "m.mlir")
    out = tmp_path / "out.mlir"
    out.write_text("as it was")
    weights = f"--weights={tmp_path / 'w.safetensors'}"
    refused(capsys, 2, "expected --weights=FILE, because", tmp_path / "m.onnx", "-o", out)
    refused(capsys, 2, "--weights: expected another file than that of --output", tmp_path / "m.onnx", "-o", out, f"--weights={out}")
    refused(capsys, 2, "expected sizes for arg0.0, but got none; for each give --size arg0.0=N", tmp_path / "m.mlir", "-o", out, weights)
    refused(capsys, 2, "expected sizes for arg0.0, but got b", tmp_path / "m.mlir", "-o", out, weights, "--size=b=3")
    refused(capsys, 2, "--size: expected it with StableHLO", tmp_path / "m.onnx", "-o", out, weights, "--size=rows=3")
    refused(capsys, 6, "none.onnx: expected a readable file", tmp_path / "none.onnx", "-o", out, weights)
    refused(capsys, 3, "expected an ONNX model", tmp_path / "m.mlir", "-o", out, weights, "--format=onnx")
    refused(capsys, 3, "expected a program that torch.export has saved", tmp_path / "m.onnx", "-o", out, weights, "--format=pt2")
    refused(capsys, 3, "m.onnx: expected", tmp_path / "m.onnx", "-o", out, weights, "--format=stablehlo")
    with pytest.raises(SystemExit):
        run(tmp_path / "m.mlir", "-o", out, "--size=3")
    assert "expected NAME=N, but got '3'" in capsys.readouterr().err
    assert out.read_text() == "as it was" and not (tmp_path / "w.safetensors").exists()


def test_what_would_not_be_read_is_not_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(import_command, "read", lambda *_: Imported("of another MLIR", [], [], {}))
    refused(capsys, 3, "m.onnx: expected to be imported as a module that this MLIR reads", "m.onnx", "-o", tmp_path / "o.mlir")
    assert not (tmp_path / "o.mlir").exists()


def test_nothing_half_is_written(tmp_path, capsys):
    """Neither file is replaced where the other cannot be written, and no part stays."""
    save_onnx(tmp_path / "m.onnx")
    (tmp_path / "out.mlir").write_text("as it was")
    (tmp_path / "w.safetensors").write_text("as it was")
    (tmp_path / "folder").mkdir()
    refused(capsys, 8, "expected to write the file, but got: No such file", tmp_path / "m.onnx", "-o", tmp_path / "none/out.mlir",
            f"--weights={tmp_path / 'w.safetensors'}")
    refused(capsys, 8, "folder: expected to write the file, but got: Is a directory", tmp_path / "m.onnx", "-o", tmp_path / "out.mlir",
            f"--weights={tmp_path / 'folder'}")
    for name in ("out.mlir", "w.safetensors"):
        assert (tmp_path / name).read_text() == "as it was"

    def ends():
        yield b"some"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_files([(tmp_path / "out.mlir", [b"new"]), (tmp_path / "w.safetensors", ends())])
    assert (tmp_path / "out.mlir").read_text() == "as it was"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_pickle_is_not_opened(tmp_path, capsys):
    """A constant that torch.export would unpickle, in an archive that is otherwise sound."""
    save_pt2(tmp_path / "m.pt2")
    mark = tmp_path / "ran"

    def pickled(name, data):
        if not name.endswith("constants_config.json"):
            return data
        config = json.loads(data)
        for entry in config["config"].values():
            entry["use_pickle"] = True
        return json.dumps(config)

    code = f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    damaged(tmp_path / "m.pt2", lambda name, data: code if name.endswith("constants/tensor_0") else pickled(name, data))
    refused(capsys, 5, "is pickled, which may run code", tmp_path / "m.pt2", "-o", tmp_path / "o.mlir", f"--weights={tmp_path / 'w'}")
    assert not mark.exists()


def damaged(path, change):
    with zipfile.ZipFile(path) as archive:
        records = [(name, change(name, archive.read(name))) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records:
            archive.writestr(name, data)


def test_sample_inputs_are_not_read(tmp_path):
    """torch.export.load unpickles them."""
    save_pt2(tmp_path / "m.pt2")
    mark = tmp_path / "ran"
    damaged(tmp_path / "m.pt2", lambda name, data: f"cos\nsystem\n(S'touch {mark}'\ntR.".encode() if "sample_inputs" in name else data)
    assert run(tmp_path / "m.pt2", "-o", tmp_path / "o.mlir", f"--weights={tmp_path / 'w.safetensors'}") == 0
    assert not mark.exists()


EVIL = "__import__('os').system('touch MARK')"


@pytest.mark.parametrize("old, new, code, message", [
    ("Symbol('SYMBOL', positive=True, integer=True)", EVIL, 3, "expected arithmetic as a size, but got"),
    ("Symbol('SYMBOL', positive=True, integer=True)", "Max.__class__", 3, "expected arithmetic as a size"),
    ("torch.ops.aten.where.ScalarOther", "torch.os.system", 4, "expected ops of ATen and arithmetic, but got 'torch.os.system'"),
    ("torch.ops.aten.where.ScalarOther", "torch.ops.aten.from_file.default", 4, "expected ops of ATen"),
    ("torch.ops.aten.where.ScalarOther", "_operator.attrgetter", 4, "expected ops of ATen"),
    ('{"name": "x"}', json.dumps({"name": f"x={EVIL}"}), 3, "expected names that Python has, but got"),
])
def test_texts_are_not_evaluated(old, new, code, message, tmp_path, capsys):
    save_pt2(tmp_path / "m.pt2")
    mark = tmp_path / "ran"

    def change(name, data):
        if not name.endswith("models/model.json"):
            return data
        text = data.decode()
        (symbol_name,) = json.loads(text)["range_constraints"]
        was = old.replace("SYMBOL", symbol_name)
        assert was in text
        return text.replace(was, new.replace("MARK", str(mark)))

    damaged(tmp_path / "m.pt2", change)
    refused(capsys, code, message, tmp_path / "m.pt2", "-o", tmp_path / "o.mlir", f"--weights={tmp_path / 'w'}")
    assert not mark.exists() and not (tmp_path / "o.mlir").exists()


def test_cut_archives(tmp_path, capsys):
    save_pt2(tmp_path / "m.pt2")
    whole = (tmp_path / "m.pt2").read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt2").write_bytes(whole[:cut])
        refused(capsys, 3, "cut.pt2: expected a program that torch.export has saved", tmp_path / "cut.pt2", "-o", tmp_path / "o", f"--weights={tmp_path / 'w'}")
    for kept, code in (("weight_0", 5), ("model.json", 3)):
        damaged(tmp_path / "m.pt2", lambda name, data: data[:7] if name.endswith(kept) else data)
        refused(capsys, code, "m.pt2: expected", tmp_path / "m.pt2", "-o", tmp_path / "o", f"--weights={tmp_path / 'w'}")
        (tmp_path / "m.pt2").write_bytes(whole)


def test_a_program_that_changes_something(tmp_path, capsys):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * self.count

    torch.export.save(torch.export.export(Counts(), (X,)), tmp_path / "m.pt2")
    refused(capsys, 4, "expected a program that changes nothing, but it changes 'count'", tmp_path / "m.pt2", "-o", tmp_path / "o")


@pytest.mark.parametrize("missing, name, extra", [("onnx", "m.onnx", "onnx"), ("torch_mlir", "m.pt2", "torch"), ("jax", "m.mlir", "jax")])
def test_packages_that_are_missing(missing, name, extra, tmp_path):
    code = f"import sys; sys.modules[{missing!r}] = None; from diffattn import cli; sys.exit(cli.main(['import', {name!r}, '-o', 'o']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == errors.LibraryError.code
    assert f"pip install 'diffattn[{extra}]'" in done.stderr and "Traceback" not in done.stderr


UNKNOWN = {"model.safetensors": b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ", "model.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(40), "config.json": b'{"module": "func"}', "notes": b"some text of a module",
           "model.pt": b"PK\x03\x04" + bytes(40), "bytes": bytes(range(256)), "empty.bin": b""}


@pytest.mark.parametrize("name", UNKNOWN)
def test_files_of_no_known_kind(name, tmp_path, capsys, monkeypatch):
    """The error lists the kinds that there are, whatever packages are installed."""
    (tmp_path / name).write_bytes(UNKNOWN[name])
    for package in ("jax", "onnx", "torch_mlir"):
        monkeypatch.setitem(sys.modules, package, None)
    out = tmp_path / "out.mlir"
    kinds = "expected a model of ONNX (a file .onnx), of torch.export (.pt2), or of StableHLO (text .mlir, bytecode, or what jax.export has serialized), but got"
    refused(capsys, 3, f"{name}: {kinds} {'an empty file' if not UNKNOWN[name] else 'a file that is none of them'}", tmp_path / name, "-o", out)
    assert not out.exists()
    for missing in ("none.bin", "."):
        refused(capsys, 6, "expected a readable file" if missing != "." else "expected a regular file, but got a folder", tmp_path / missing, "-o", out)


@pytest.mark.parametrize("kind, name", [("export", "m.bin"), ("bytecode", "m"), ("text", "m.txt"), ("onnx", "M.ONNX"), ("pt2", "m.PT2")])
def test_kinds_that_the_content_tells(kind, name, tmp_path):
    """Names that do not tell it, and names in capitals."""
    import io

    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        lowered = jax.jit(lambda x: x * 2).trace(X.numpy()).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
        memory = io.BytesIO()
        lowered.operation.write_bytecode(memory)
        exported = jax.export.export(jax.jit(lambda x: x * 2))(X.numpy()).serialize()
    finally:
        jax.config.update("jax_enable_x64", False)
    path, wanted = tmp_path / name, [X.numpy() * 2]
    if kind in ("onnx", "pt2"):
        wanted = {"onnx": save_onnx, "pt2": save_pt2}[kind](path)
    else:
        path.write_bytes({"export": exported, "bytecode": memory.getvalue(), "text": str(lowered).encode()}[kind])
    assert run(path, "-o", tmp_path / "o.mlir", f"--weights={tmp_path / 'w.safetensors'}") == 0
    weights = [tmp_path / "w.safetensors"] if kind in ("onnx", "pt2") else []
    for got, one in zip(Executable((tmp_path / "o.mlir").read_text(), weights=weights, cache=False).call("main", X.numpy()), wanted, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-12)


def test_names_of_weights():
    names = weight_names(["a.b", "a.b", "", "{}", 'q"', "\x00\n", "a\\b", "ä"])
    assert names == ["a.b", "a.b.2", "weight", "{ }", "q'", "/x00/n", "a/b", "ä"]


def test_safetensors_are_read_by_others(tmp_path):
    import ml_dtypes
    from safetensors.numpy import load

    weights = {"half": np.arange(3, dtype=np.float16), "wide": np.arange(4.0).reshape(2, 2).T, "truth": np.array([True, False, True]),
               "none": np.empty((0, 3), np.float32), "one": np.array(5, np.int64)}
    data = b"".join(pieces({**weights, "short": np.ones(2, ml_dtypes.bfloat16)}))
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8: 8 + size])
    assert header["short"]["dtype"] == "BF16" and size % 8 == 0
    for name, array in weights.items():  # at a multiple of its elements' size, so that it can be mapped
        assert header[name]["data_offsets"][0] % array.dtype.itemsize == 0
    read = load(b"".join(pieces(weights)))
    assert set(read) == set(weights)
    for name, array in weights.items():
        assert read[name].dtype == array.dtype and np.array_equal(read[name], array)


def test_the_command_is_in_the_help(build_dir):
    done = subprocess.run([sys.executable, "-m", "diffattn", "import", "--help"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(pathlib.Path(cli.__file__).parents[1])})
    assert done.returncode == 0 and "diffattn import m.onnx -o m.mlir --weights=m.safetensors" in " ".join(done.stdout.split())
