"""Explanations with times: a row for each product and attention, beside roofs that are measured on the spot."""
import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from diffattn import cli, roof, runtime
from diffattn.errors import RunError, UsageError
from diffattn.explain import Explanation, Row, Times, explain
from diffattn.explain_times import _by_code, png, timed
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


def event(category, name, begin, duration, thread=1, **arguments):
    return {"cat": category, "name": name, "ts": begin, "dur": duration, "tid": thread, "args": arguments}


def test_spans_of_code():
    """A span is of the code whose call it lies in, on the same thread."""
    one, two = (object.__new__(Executable) for _ in range(2))
    events = [event("python", "program 0", 0, 10), event("function", "f", 1, 8), event("product", "gemm f32", 2, 3),
              event("product", "gemm f32", 3, 1, thread=2), event("python", "program 1", 20, 5), event("product", "gemm f32", 21, 3)]
    assert _by_code(events, {"program 0": one, "program 1": two}) == {one: events[1:3], two: events[5:]}


def rows_of(*runs, roof=ROOF):
    return explain(SimpleNamespace(applied=[], diagnostics=[]), "", name="m", runs=runs, roof=roof).rows


def test_counting():
    """Calls of a run are added up, the quickest run and the nearer roof count."""
    def product(element="f32", us=4, flops=800_000, **more):
        return [event("function", "f", 0, 10), event("product", f"gemm {element}", 1, us - 1, place="1:2", flops=flops - 200_000, bytes=600, **more),
                event("product", f"gemm {element}", 6, 1, place="1:2", flops=200_000, bytes=200, **more), event("thread", "gemm f32", 2, 3)]

    row, other = rows_of(product(us=5), product(), product(us=6))
    assert (row.place, row.sizes, row.time) == ("m:1:2", "gemm f32", Times(2, 0.004, 200.0, 0.2, 1.0, "compute"))
    assert (other.op, other.sizes, other.time) == ("other", "all else", Times(1, 0.006, None, None, None, ""))
    assert rows_of(product("bf16"))[0].time.share == 0.5 and rows_of(product("f64"))[0].time.share == 2.0
    assert rows_of(product("bf16"), roof=Roof(2, 200.0, None, 20.0))[0].time.share is None
    one = event("product", "gemm f32", 0, 4, place="a.py:3:1", flops=800_000, bytes=40_000_000)
    assert rows_of([one])[0].time == Times(1, 0.004, 200.0, 10000.0, 500.0, "memory") and rows_of([one])[0].place == "a.py:3:1"
    del one["args"]["flops"]
    assert rows_of([one])[0].time == Times(1, 0.004, None, None, None, "")
    # Code for other sizes has the place of the attention that it was made of; what is not counted is not, with what is.
    attentions = [event("attention", f"attention {size} f32", size, 1, place="2:3", flops=1000 * size, bytes=10) for size in (1, 2)]
    assert rows_of(attentions)[0].time == Times(2, 0.002, 1.5, 0.01, 0.0075, "compute")
    del attentions[1]["args"]["flops"]
    assert rows_of(attentions)[0].time == Times(2, 0.002, None, None, None, "")


def test_wrong_facts():
    with pytest.raises(UsageError, match="facts: expected JSON as docs/c-api.md has it, but got .*expected a kind of diagnostics.*diagnostics"):
        runtime.explain(json.dumps({"name": "", "module": "", "runs": [], "roof": None, "diagnostics": [
            {"kind": "rumour", "category": "", "name": "", "message": "", "place": ""}]}))
    for text in ("", "{", "[]", '{"rows": [1], "roof": null}'):
        with pytest.raises(UsageError, match="explanation: expected JSON"):
            runtime.explanation_table(text)
    for given, message in (((0, 1, 1.0), "threads: expected a number from 1 to 4096, but got 0"),
                           ((1, 0, 1.0), "bytes: expected a number of at least 1, but got 0"),
                           ((1, 1, 0.0), "seconds: expected a number above 0, but got 0")):
        with pytest.raises(UsageError, match=message):
            runtime.measure_roof(*given)


def test_lengths_of_a_call():
    """Pairs of query and key of packed and paged sequences are those of the lengths that a call gives; gradients have more products."""
    code = Executable("""
func.func @packed(%q: tensor<1x2x?x16xf32>, %k: tensor<1x2x?x16xf32>, %a: tensor<?xi32>, %b: tensor<?xi64>) -> tensor<1x2x?x16xf32> {
  %two = arith.constant 2 : index
  %size = tensor.dim %q, %two : tensor<1x2x?x16xf32>
  %n = tensor.empty(%size) : tensor<1x2x?x16xf32>
  %o = diffattn.attention ins(%q, %k, %k : tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>)
    cu_seqlens_q(%a : tensor<?xi32>) cu_seqlens_k(%b : tensor<?xi64>) outs(%n : tensor<1x2x?x16xf32>) {scale = 0.25 : f32, is_causal}
    -> tensor<1x2x?x16xf32>
  return %o : tensor<1x2x?x16xf32>
}
func.func @paged(%q: tensor<2x2x1x16xf32>, %k: tensor<4x2x16x16xf32>, %l: tensor<2xi64>, %t: tensor<2x2xi32>) -> tensor<2x2x1x16xf32> {
  %n = tensor.empty() : tensor<2x2x1x16xf32>
  %o = diffattn.attention ins(%q, %k, %k : tensor<2x2x1x16xf32>, tensor<4x2x16x16xf32>, tensor<4x2x16x16xf32>) kv_len(%l : tensor<2xi64>)
    block_table(%t : tensor<2x2xi32>) outs(%n : tensor<2x2x1x16xf32>) {scale = 0.25 : f32} -> tensor<2x2x1x16xf32>
  return %o : tensor<2x2x1x16xf32>
}
func.func @gradients(%q: tensor<1x2x9x16xf32>, %k: tensor<1x2x9x16xf32>, %d: tensor<1x2x9x16xf32>) -> (tensor<1x2x9x16xf32>, tensor<1x2x9x16xf32>) {
  %n = tensor.empty() : tensor<1x2x9x16xf32>
  %a, %v = diffattn.attention_backward ins(%q, %k, %k : tensor<1x2x9x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x16xf32>)
    d_out(%d : tensor<1x2x9x16xf32>) outs(d_q1(%n : tensor<1x2x9x16xf32>) d_v(%n : tensor<1x2x9x16xf32>)) {scale = 0.25 : f32, is_causal}
    -> tensor<1x2x9x16xf32>, tensor<1x2x9x16xf32>
  return %a, %v : tensor<1x2x9x16xf32>, tensor<1x2x9x16xf32>
}
""", name="m", threads=1)
    numbers = np.random.default_rng(0).standard_normal((1, 2, 9, 16), np.float32)
    pages = np.ones((4, 2, 16, 16), np.float32)

    def call():
        code.call("packed", numbers[:, :, :5].copy(), numbers, np.array([0, 3, 5], np.int32), np.array([0, 4, 9]))
        code.call("paged", numbers[0, :, :2].transpose(1, 0, 2)[:, :, None].copy(), pages, np.array([5, 17]), np.array([[0, 0], [1, 3]], np.int32))
        code.call("gradients", numbers, numbers, numbers)

    operations = {row.function: round(row.time.gflops * row.time.ms * 1e6) for row in timed(call).rows if row.op == "attention"}
    # Three queries of four keys see 2 + 3 + 4 of them, two of five 4 + 5; each pair has two heads' scores and values of 16.
    assert operations == {"packed": (9 + 9) * 2 * 2 * 2 * 16, "paged": (5 + 17) * 2 * 2 * 2 * 16, "gradients": 45 * 2 * 2 * 4 * 16}


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


@pytest.mark.parametrize("threads", [1, 2])
def test_roof(threads):
    """Within what cores and memory can do: loops that were left out would reach more."""
    reached = roof.measure(threads)
    assert reached.threads == threads and 1 < reached.gflops < 1000 * threads and 0.5 < reached.gbs < 1000
    assert reached.bf16_gflops in (None, reached.gflops, 2 * reached.gflops)


def test_runner(build_dir, tmp_path):
    """The rows of diffattn-run are those of Python."""
    (tmp_path / "two.mlir").write_text(TEXT)
    run = [build_dir / "bin/diffattn-run", tmp_path / "two.mlir", *(f"--input=random:{'x'.join(map(str, array.shape))}xf32" for array in arguments()),
           "--threads=1", f"--cache-dir={tmp_path / 'cache'}"]
    rows = json.loads(subprocess.run([*run, "--explain=json"], check=True, capture_output=True, text=True).stdout)
    code, given = Executable(TEXT, name=str(tmp_path / "two.mlir"), threads=1), arguments()
    expected = json.loads(timed(lambda: code.call("main", *given)).json())
    for row, other in zip(rows, expected, strict=True):
        time, counted = row.pop("time"), other.pop("time")
        assert row == other and time.keys() == counted.keys() and time["calls"] == counted["calls"]
        if row["op"] != "other":
            assert time["gflops"] * time["ms"] == pytest.approx(counted["gflops"] * counted["ms"])
