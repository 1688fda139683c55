"""A program that uses what the package offers. mypy reads it in test_typing.py; it is never run."""
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffattn
import numpy as np
from diffattn.device import Traffic
from diffattn.runtime import Counters, DeviceArray, Diagnostic, Executable, Judgement, counters, emit, versions, write_bundle  # noqa: F401 - all are exported
from typing_extensions import assert_type

q = np.ones((1, 2, 4, 8), np.float32)
out: np.ndarray = diffattn.attention(q, q, q, q, q, 0.25, is_causal=True, window=(3, None), norm="rms", norm_weight=q[0, 0, 0],
                                     segment_ids=(q, q), out=q)
plain: np.ndarray = diffattn.plain_attention(q, q, q, is_causal=True, window=(3, None), attn_mask=q, kv_len=3, out=q)
diffattn.attention(q, q, q, q, q)  # error: there is no lam
diffattn.plain_attention(q, q, q, 0.25)  # error: there is no lam of one map
diffattn.attention(q, q, q, q, q, 0.25, scale="1")  # error: a scale is a number


def progress(done: int, total: int) -> None:
    print(done / total)


model = diffattn.load(Path("model"), "cpu", "bf16", threads=2, progress=progress, batch_invariant=True)
assert_type(model.forward([[1, 2, 3]]), np.ndarray)
assert_type(model.generate("text", 8, temperature=0.5, stop=["."]), Iterator[str])
assert_type(model.generate(["one", "two"]), Iterator[Any])
assert_type(model.bits_per_character("text"), float)
assert_type(model.timing.prefill_tokens, int)
assert_type(model.vocabulary, int)
assert_type(model.context, "int | None")
diffattn.quantize(Path("model"), "narrow", "int4", group=64)
diffattn.quantize("model", "narrow", group="64")  # error: a group is a number
diffattn.load(3)  # error: no path
diffattn.lod("model")  # error: no such function

bundle = diffattn.bundle.load("model.bundle", threads=1, weights=Path("weights"))
assert_type(bundle.forward(q), np.ndarray)
assert_type(bundle.call("forward", q), "list[Any]")

executable = Executable(Path("m.mlir").read_text(), target="cpu:avx2", weights=["a.safetensors", Path("b")], cache=False, progress=progress)
assert_type(executable.call("main", q, 1.5), "list[Any]")
assert_type(executable.entries, "list[str]")
assert_type(executable.diagnostics, "list[Diagnostic]")
assert_type(executable.diagnostics[0].message, str)
arguments, results = executable.signature("main")
assert_type(arguments[0].shape, "tuple[int | None, ...]")
assert_type(arguments[0].in_place, bool)
assert_type(executable.judge("", "main", [q], [q], weights="w"), Judgement)
assert_type(executable.capture("main", q)(), "list[Any]")
assert_type(executable.traffic(), Traffic)
assert_type(executable.traffic().launches, int)
assert_type(DeviceArray.zeros(executable, (2, 3), np.float32).to_host(), np.ndarray)
Executable("", treads=2)  # error: a misspelt option

assert_type(diffattn.runtime.emit("", "scheduled"), bytes)
assert_type(emit(b"", "llvm", diagnostics=[]), bytes)
assert_type(write_bundle("", "out", weights=["w"], copy_weights=True), "list[Diagnostic]")
assert_type(versions(), str)
assert_type(counters(), Counters)
assert_type(counters().gemm_calls, int)

try:
    model.forward(q)
except diffattn.DiffAttnError as error:
    assert_type(error.code, int)
except diffattn.errors.LibraryError:
    pass
assert_type(diffattn.__version__, str)
