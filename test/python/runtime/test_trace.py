"""Traces: what ran when, on which thread, as Chrome's JSON."""
import contextlib
import json
import subprocess
import threading
import time

import numpy as np
import pytest

import diffattn
from diffattn import cli, runtime, tracing
from diffattn.errors import OutputError, RunError, UsageError
from diffattn.runtime import Executable

#: A product and an attention at lines 2 and 4.
TEXT = """func.func @main(%x: tensor<?x1024xf32>, %w: tensor<1024x256xf32>, %i: tensor<?x256xf32>,
    %q: tensor<1x4x?x32xf32>, %n: tensor<1x4x?x32xf32>) -> (tensor<?x256xf32>, tensor<1x4x?x32xf32>) {
  %y = linalg.matmul ins(%x, %w : tensor<?x1024xf32>, tensor<1024x256xf32>) outs(%i : tensor<?x256xf32>) -> tensor<?x256xf32>
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x4x?x32xf32>, tensor<1x4x?x32xf32>, tensor<1x4x?x32xf32>) outs(%n : tensor<1x4x?x32xf32>)
      {scale = 0.2 : f32, is_causal} -> tensor<1x4x?x32xf32>
  return %y, %o : tensor<?x256xf32>, tensor<1x4x?x32xf32>
}
"""
TOKENS = 900


def arguments():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in
            ((TOKENS, 1024), (1024, 256), (TOKENS, 256), (1, 4, TOKENS, 32), (1, 4, TOKENS, 32))]


def events_of(path):
    trace = json.loads(path.read_text())
    assert trace["otherData"]["spans_left_out"] == 0
    return trace["traceEvents"], trace["otherData"]["wall_us"]


def check_nesting(events):
    """Spans of a thread lie in one another or apart; gives the outermost ones of each."""
    outer = {}
    for thread in {event["tid"] for event in events}:
        open_until, outer[thread] = [], []
        for event in sorted((e for e in events if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
            assert event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0 and event["name"]
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            # To the nanosecond, which the text is written to.
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 1e-3, "spans overlap"
            if not open_until:
                outer[thread].append(event)
            open_until.append(event["ts"] + event["dur"])
    return outer


@pytest.fixture(scope="module")
def compiled():
    return Executable(TEXT, name="two", cache=False, threads=2)


@pytest.mark.parametrize("threads", [1, 2])
def test_calls(compiled, tmp_path, threads):
    """Also of code that was compiled without spans."""
    given = arguments()
    code = compiled if threads == 2 else Executable(TEXT, name="two", threads=1)
    expected = code.call("main", *given)
    with diffattn.trace(tmp_path / "warm.json"):
        code.call("main", *given)
    for _ in range(5):  # what else the machine runs may come between two spans
        with diffattn.trace(tmp_path / "t.json"):
            begin = time.perf_counter()
            for _ in range(8):
                results = code.call("main", *given)
            us = (time.perf_counter() - begin) * 1e6
        events, wall = events_of(tmp_path / "t.json")
        outer = check_nesting(events)
        (main,) = {event["tid"] for event in events if event["cat"] == "function"}
        spans = sum(event["dur"] for event in outer[main])
        assert spans <= us <= wall
        if spans > 0.95 * us:
            break
    else:
        pytest.fail(f"expected spans of nearly all of {us} us, but got {spans}")
    for result, wanted in zip(results, expected):
        np.testing.assert_array_equal(result, wanted)
    ops = [event for event in events if event["cat"] in ("product", "attention")]
    assert [event["name"] for event in ops] == ["gemm ?x1024 by 1024x256 f32", "attention 1x4x?x32 f32"] * 8
    assert [event["args"]["place"] for event in ops[:2]] == ["3:8", "4:8"] and ops[0]["args"]["function"] == "main"
    assert ops[0]["args"]["flops"] == 2 * TOKENS * 256 * 1024
    assert ops[1]["args"]["flops"] == 2 * 4 * (32 + 32) * TOKENS * (TOKENS + 1) // 2
    assert ops[1]["args"]["bytes"] == 4 * 4 * 4 * TOKENS * 32
    functions = [event for event in events if event["cat"] == "function"]
    assert len(functions) == 8 and {event["name"] for event in functions} == {"main"}
    shares = [event for event in events if event["cat"] == "thread"]
    assert ({event["tid"] for event in shares} >= {main}) == (threads == 2) and (len({e["tid"] for e in events}) == 2) == (threads == 2)
    assert {event["name"] for event in shares} <= {event["name"] for event in ops}


def test_compiling(tmp_path):
    with diffattn.trace(tmp_path / "t.json"):
        code = Executable(TEXT, cache=tmp_path / "cache")
        Executable(TEXT, cache=tmp_path / "cache")
    events, _ = events_of(tmp_path / "t.json")
    check_nesting(events)
    names = {(event["cat"], event["name"]) for event in events}
    assert names >= {("compile", "compile"), ("compile", "parse"), ("compile", "lower to llvm"), ("compile", "translate to LLVM IR"),
                     ("compile", "optimize LLVM IR"), ("compile", "generate machine code"), ("compile", "link"), ("cache", "look up"),
                     ("cache", "keep"), ("pass", "diffattn-select-schedule"), ("pass", "one-shot-bufferize"), ("pass", "diffattn-trace-ops")}
    assert sum(event["name"] == "compile" for event in events) == 1, "the second is from the cache"
    assert not code.from_cache
    nested = [event for event in events if event["cat"] == "pass" and event.get("args", {}).get("function") == "main"]
    assert nested, "passes of functions name them"


def test_without_a_trace_nothing_is_recorded(compiled, tmp_path):
    """Code that is compiled outside of a trace has no calls for one, and what is recorded before and after is not written."""
    assert b"trace" not in runtime.emit(TEXT, "assembly")
    compiled.call("main", *arguments())
    with diffattn.trace(tmp_path / "t.json"):
        pass
    compiled.call("main", *arguments())
    assert events_of(tmp_path / "t.json")[0] == []


def test_failing_calls_leave_nothing_open(tmp_path):
    text = """func.func @main(%x: tensor<4x4xf32>, %i: index) -> tensor<4x4xf32> {
  %c4 = arith.constant 4 : index
  %ok = arith.cmpi ult, %i, %c4 : index
  cf.assert %ok, "expected a small number"
  %e = tensor.empty() : tensor<4x4xf32>
  %y = linalg.matmul ins(%x, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}"""
    x = np.ones((4, 4), np.float32)
    with diffattn.trace(tmp_path / "t.json"):
        code = Executable(text)
        for i in (9, 1):
            with pytest.raises(RunError) if i == 9 else contextlib.nullcontext():
                code.call("main", x, i)
    events, _ = events_of(tmp_path / "t.json")
    check_nesting(events)
    first, second = [event for event in events if event["cat"] == "function"]
    assert first["ts"] + first["dur"] <= second["ts"]


def test_threads_of_python(compiled, tmp_path):
    codes = [Executable(TEXT, threads=1) for _ in range(2)]
    with diffattn.trace(tmp_path / "t.json"):
        callers = [threading.Thread(target=code.call, args=("main", *arguments())) for code in codes]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        with tracing.span('mine "\\\n'):
            pass
    events, _ = events_of(tmp_path / "t.json")
    check_nesting(events)
    assert len({event["tid"] for event in events if event["cat"] == "function"}) == 2
    assert any(event["name"] == 'mine "\\' for event in events)


def test_the_attention_operator(tmp_path):
    """Whose code is kept for its kind of call."""
    q = np.ones((1, 2, 8, 16), np.float32)
    expected = diffattn.plain_attention(q, q, q)
    with diffattn.trace(tmp_path / "t.json"):
        np.testing.assert_array_equal(diffattn.plain_attention(q, q, q), expected)
    assert [event["name"] for event in events_of(tmp_path / "t.json")[0] if event["cat"] == "attention"] == ["attention ?x2x?x16 f32"]


def test_code_that_is_to_have_none(tmp_path):
    code = Executable(TEXT, threads=1, trace=False)
    with diffattn.trace(tmp_path / "t.json"):
        code.call("main", *arguments())
    assert [event["cat"] for event in events_of(tmp_path / "t.json")[0]] == ["python", "function"]


def test_one_at_a_time(tmp_path):
    with diffattn.trace(tmp_path / "t.json"):
        with pytest.raises(UsageError, match="expected one trace at a time, but another one is being recorded"), diffattn.trace(tmp_path / "u.json"):
            pass
    with pytest.raises(KeyError), diffattn.trace(tmp_path / "u.json"):
        raise KeyError
    assert events_of(tmp_path / "u.json")[0] == [], "the file is written, and the next trace can begin"


def test_files_that_cannot_be_written(tmp_path):
    ran = []
    for path, why in ((tmp_path / "none" / "t.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(OutputError, match=f"{path}: expected to write the file, but got: {why}"), diffattn.trace(path):
            ran.append(path)
    assert not ran, "it is known before"
    with pytest.raises(UsageError, match="path: expected"), diffattn.trace(7):
        pass


def test_command(root, tmp_path, capsys):
    path = tmp_path / "t.json"
    arguments = ["generate", str(root / "examples/tiny-lm"), "--prompt", "In the", "--max-new-tokens", "3", "--threads", "1", "--trace"]
    assert cli.main([*arguments, str(path)]) == 0
    events, wall = events_of(path)
    outer = check_nesting(events)
    (command,) = (event for spans in outer.values() for event in spans if event["name"] == "generate")
    assert command["dur"] > 0.95 * wall
    inside = [event for event in events if event["name"] in ("open the model", "prefill", "decode") and event["cat"] in ("python", "function")]
    assert [event["name"] for event in inside] == ["open the model", "prefill", "decode", "decode"]
    assert {event["args"]["function"] for event in events if event["cat"] == "attention"} == {"prefill_layer", "decode_layer"}
    assert {event["args"]["function"] for event in events if event["cat"] == "product"} == {"prefill_layer", "decode_layer", "prefill", "decode"}
    capsys.readouterr()
    assert cli.main([*arguments, str(tmp_path / "none" / "t.json")]) == OutputError.code
    assert "expected to write the file, but got: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("threads", [1, 2])
def test_runner(build_dir, tmp_path, threads):
    """The phases of a run are what it takes."""
    (tmp_path / "two.mlir").write_text(TEXT)
    inputs = [f"--input=random:{'x'.join(map(str, array.shape))}xf32" for array in arguments()]
    run = [build_dir / "bin/diffattn-run", tmp_path / "two.mlir", *inputs, f"--threads={threads}", f"--cache-dir={tmp_path / 'cache'}", "--quiet"]
    for _ in range(2):  # compiled, and from the cache
        subprocess.run([*run, "--bench=5", f"--trace={tmp_path / 't.json'}"], check=True, capture_output=True)
        events, wall = events_of(tmp_path / "t.json")
        outer = check_nesting(events)
        (main,) = {event["tid"] for event in events if event["cat"] == "function"}
        assert sum(event["dur"] for event in outer[main]) > 0.95 * wall
        ops = [event["name"] for event in events if event["cat"] in ("product", "attention")]
        assert ops == ["gemm ?x1024 by 1024x256 f32", "attention 1x4x?x32 f32"] * 9
    broken = subprocess.run([*run, f"--trace={tmp_path / 'none' / 't.json'}"], capture_output=True, text=True)
    assert broken.returncode == 8 and "expected to write the file, but got: No such file or directory" in broken.stderr
    plain, traced = (subprocess.run([*run[:2], "--emit=llvm", *more], check=True, capture_output=True).stdout
                     for more in ([], [f"--trace={tmp_path / 't.json'}"]))
    assert plain == traced, "what is emitted is what it would be without"
    assert any(event["name"] == "emit llvm" for event in events_of(tmp_path / "t.json")[0])
