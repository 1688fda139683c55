"""Every option of `Executable`, `emit`, `load` and `bundle.load` with values of other types, at the ends of their ranges and beyond."""
import pathlib
import tempfile

import numpy as np

import diffattn
import diffattn.bundle
from diffattn.runtime import Executable, emit, write_bundle
from judge import Tally

ROOT = pathlib.Path(__file__).resolve().parents[4]
MODULE = """func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {
  %y = arith.addf %x, %x : tensor<?xf32>
  return %y : tensor<?xf32>
}"""
ODD = [None, True, 0, 1, -1, 1.5, 2**31, 2**63, float("nan"), "", "x", "\0", "a\0b", "\ud800", "\x1b[31m", b"x", [], {}, object(), pathlib.Path("/nowhere"), "/dev/null/x",
       "x" * 5000, np.float32(1), np.int64(2), np.array([1, 2])]
STAGES = ["input", "imported", "raised", "scheduled", "bufferized", "loops", "llvm", "llvm-ir", "assembly", "object", "gpu", "ptx", "cubin", "inputs", "", "object "]
TEXTS = ["", "func.func", "module {", "}" * 1000, "(" * 5000, "func.func @f() { return }" * 50, "\0", "\xff", "// only a comment", "func.func private @f()",
         'func.func @"a\x1b[31m"() { return }', "func.func @f(%x: tensor<9999999999999x9999999999xf32>) { return }", "#a = affine_map<(i) -> (i floordiv 0)>",
         "func.func @f() { %c = arith.constant dense<0> : tensor<4611686018427387904xi8>\n return }", "func.func @f(%x: !llvm.ptr) { return }",
         "func.func @f(%x: tensor<*xf32>) { return }", "func.func @f(%x: vector<3xf32>) -> vector<3xf32> { return %x : vector<3xf32> }",
         "func.func @f() -> i64 { %r = func.call @g() : () -> i64\n return %r : i64 }\nfunc.func private @g() -> i64", "llvm.func @f()",
         "func.func @f(%x: tensor<3x?xcomplex<f32>>) { return }", "func.func @f(%x: tensor<3xi4>) { return }", "func.func @main() { return }\nfunc.func @main() { return }",
         "ml_program.global private @w(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32>\nfunc.func @f() -> tensor<4xf32> {\n"
         "  %w = ml_program.global_load_const @w : tensor<4xf32>\n  return %w : tensor<4xf32>\n}"]


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 7])
    pick = lambda options: options[rng.integers(len(options))]
    tally = Tally()
    x = np.arange(3, dtype=np.float32)

    def compiled(code):
        assert np.array_equal(code.call("f", x)[0], x + x)

    for _ in range(3):
        given = {pick(["target", "weights", "threads", "cache", "raise_attention", "reference", "from_stage", "progress", "name"]): pick(ODD)}
        given.setdefault("cache", False)
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(given["cache"], str) and given["cache"].isprintable():
                given["cache"] = folder
            tally.attempt(lambda: Executable(MODULE, **given), compiled, what=f"Executable {given!r}")
        text = pick(TEXTS)
        if pick([0, 1]):
            at = int(rng.integers(len(MODULE)))
            text = MODULE[:at] + pick(["", "?", "%", "-1", "\0", "99999999999999999999", "f64", "(", "\n"]) + MODULE[at + pick([0, 1, 5]):]
        tally.attempt(lambda: Executable(text, cache=False), lambda code: None, what=f"text {text[:200]!r}")
        stage, target = pick(STAGES), pick(["cpu", "cpu:avx2", "cuda:sm_80", "cuda-sim:sm_90", "cuda", "cuda:sm_91", "cuda:sm_80@-1", ""])
        tally.attempt(lambda: emit(MODULE, stage, target=target), lambda got: None, what=f"emit {stage!r} {target!r}")
        which = pick(["directory", "target", "dtype", "threads", "progress"])
        options = {which: pick(ODD + ["f32", "f64", "float32", ".", str(ROOT), "cpu:avx2"])}
        folder = options.pop("directory", ROOT / "examples" / "tiny-lm")
        tally.attempt(lambda: diffattn.load(folder, **options), lambda got: None, what=f"load {folder!r} {options!r}")
        folder = pick(ODD + [str(ROOT), str(ROOT / "examples" / "tiny-lm")])
        tally.attempt(lambda: diffattn.bundle.load(folder), lambda got: None, must="refuse", what=f"bundle.load {folder!r}")
        with tempfile.TemporaryDirectory() as name:
            given = {pick(["weights", "target", "model_folder", "name"]): pick(ODD)}
            tally.attempt(lambda: write_bundle(MODULE, pathlib.Path(name) / "b", cache=False, **given), lambda got: None, what=f"write_bundle {given!r}")
    return tally
