"""Explanations with times: a row for each product and attention, beside roofs that are measured on the spot."""
import json

import numpy as np
import pytest

from diffattn import cli, roof
from diffattn.errors import RunError, UsageError
from diffattn.explain import Explanation, Row, Times
from diffattn.explain_times import _sums, _times, png, timed
from diffattn.roof import Roof
from diffattn.runtime import Executable
from test_trace import TEXT, TOKENS, arguments

ROOF = Roof(2, 200.0, 400.0, 20.0)


@pytest.fixture(scope="module", autouse=True)
def quick_roof():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roof, "_SECONDS", 0.02)
        patch.setattr(roof, "_BYTES", 1 << 24)
        roof.measure.cache_clear()
        yield
    roof.measure.cache_clear()


@pytest.fixture(scope="module")
def explained():
    code, given = Executable(TEXT, name="two", threads=1), arguments()
    return timed(lambda: [code.call("main", *given) for _ in range(2)])


def test_rows(explained):
    product, attention, other = explained.rows
    assert (product.place, product.function, product.op, product.sizes) == ("two:3:8", "main", "product", "gemm ?x1024 by 1024x256 f32")
    assert (attention.place, attention.op, attention.sizes) == ("two:4:8", "attention", "attention 1x4x?x32 f32")
    assert attention.kernels and not attention.is_raised and not product.kernels
    assert (product.time.calls, attention.time.calls, other.op) == (2, 2, "other")
    flops = 2 * 2 * TOKENS * 256 * 1024
    assert product.time.gflops == pytest.approx(flops / product.time.ms / 1e6)
    assert product.time.share > 0 and product.time.bound == "compute"
    assert product.time.share == pytest.approx(product.time.gflops / explained.roof.gflops)
    assert explained.roof.threads == 1 and explained.roof.gflops > 1 and explained.roof.gbs > 0.5


def test_texts(explained):
    lines = str(explained).splitlines()
    assert lines[0].split() == ["place", "function", "op", "calls", "ms", "GFLOP/s", "GB/s", "of", "roof", "attention", "kernels"]
    assert lines[1].startswith("two:3:8") and "% of compute" in lines[1] and lines[3].split()[:2] == ["all", "else"]
    assert lines[-1].startswith("roof of 1 thread: ")
    rows = json.loads(explained.json())
    assert rows[0]["time"]["calls"] == 2 and rows[1]["kernels"][0]["name"]


def test_picture(explained):
    assert png(explained).startswith(b"\x89PNG")
    with pytest.raises(RunError, match="expected an explanation with times of ops that are counted, but got one without"):
        png(Explanation((Row("m:1:1", "main", False, (), ()),)))


def test_counting():
    """Spans are those of the call of compiled code that they lie in, on its thread; the nearer roof counts."""
    one, two = object(), object()

    def event(category, name, begin, duration, thread=1, **arguments):
        return {"cat": category, "name": name, "ts": begin, "dur": duration, "tid": thread, "args": arguments}

    events = [event("python", "program 0", 0, 10), event("function", "f", 1, 8), event("product", "gemm f32", 2, 3, place="1:2", flops=600_000, bytes=600),
              event("thread", "gemm f32", 2, 3), event("product", "gemm f32", 6, 1, place="1:2", flops=200_000, bytes=200),
              event("thread", "gemm f32", 2, 3, thread=2), event("product", "gemm f32", 3, 1, thread=2),
              event("python", "program 1", 20, 5), event("product", "gemm f32", 21, 3, place="1:2")]
    sums = _sums(events, {"program 0": one, "program 1": two})
    product = sums[one, "product", "gemm f32", "1:2", ""]
    assert (product.calls, product.us, product.flops, product.bytes) == (2, 4, 800_000, 800) and sums[two, "product", "gemm f32", "1:2", ""].us == 3
    assert set(sums) == {(one, "function", "f", "", ""), (one, "product", "gemm f32", "1:2", ""), (two, "product", "gemm f32", "1:2", "")}
    assert _times(product, "f32", ROOF) == Times(2, 0.004, 200.0, 0.2, 1.0, "compute")
    assert _times(product, "bf16", ROOF).share == 0.5 and _times(product, "f64", ROOF).share == 2.0
    assert _times(product, "bf16", Roof(2, 200.0, None, 20.0)).share is None
    product.bytes = 40_000_000
    assert _times(product, "f32", ROOF) == Times(2, 0.004, 200.0, 10000.0, 500.0, "memory")
    product.flops = 0
    assert _times(product, "f32", ROOF) == Times(2, 0.004, None, None, None, "")


def test_refused():
    with pytest.raises(RunError, match="expected a call that runs code that was compiled in this process, but it runs none"):
        timed(lambda: None)
    with pytest.raises(UsageError, match="call: expected"):
        timed(3)


def test_functions():
    import torch

    import diffattn

    module, x = torch.nn.Linear(64, 96), torch.randn(10, 64)
    f, g = diffattn.compile(module, (x,), threads=1), torch.compile(module, backend="diffattn")
    with torch.no_grad():
        for explanation in (f.explain(x), timed(lambda: g(x))):
            product, _ = explanation.rows
            assert product.op == "product" and product.sizes == "gemm 10x64 by 96x64 f32" and product.time.calls == 1
        torch.testing.assert_close(f(x), module(x))
    assert f.explain().rows == () and f.explain().roof is None


def test_command(root, tmp_path, capsys):
    command = ["explain", str(root / "examples/tiny-lm"), "--time", "--prompt-tokens", "8", "--max-new-tokens", "2", "--threads", "1"]
    assert cli.main([*command, "--json", "--png", str(tmp_path / "roofline.png")]) == 0
    rows = json.loads(capsys.readouterr().out)
    timed_rows = [row for row in rows if row["time"]]
    assert {row["function"] for row in timed_rows if row["op"] == "attention"} == {"prefill_layer", "decode_layer"}
    assert all(row["time"]["ms"] > 0 for row in timed_rows if row["op"] != "other") and rows[-1]["op"] == "other"
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_roof():
    """Both are rates of what is really done: the sums are those of all steps."""
    code = Executable(roof._fma(8))
    (total,) = code.call("main", 3, np.float32(0.5), np.float32(0.25))
    starts = np.arange(roof._SUMS) + 0.5
    for _ in range(3):
        starts = starts * 0.5 + 0.25
    assert total == pytest.approx(8 * starts.sum())
    numbers = np.arange(8 * 8 * 4, dtype=np.float32)
    assert Executable(roof._read(8)).call("main", numbers)[0] == numbers.sum()
