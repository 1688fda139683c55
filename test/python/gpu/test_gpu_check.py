"""scripts/gpu-pack.sh and gpu-check.sh, on the simulator: every path that a GPU will take, but for the clock and the driver."""
import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time

import numpy as np
import pytest
import torch

from paths import ROOT
from gpu_check import check_kernels
from gpu_check import check_models
from gpu_check import check_timing
from gpu_check import device as devices
from gpu_check import generated
from gpu_check import launcher as launchers
from gpu_check import one_check
from gpu_check import operands
from gpu_check import pack as packs
from gpu_check import results
from gpu_check import sanitizer
from gpu_check import table
from gpu_check import targets
from gpu_check import time_models
from gpu_check import timing

pytestmark = pytest.mark.oracle
MODELS = ["diff_v1_f32", "diff_v2", "edifice", "tiny-lm", "decoder"]
CASES = ["v1_bf16", "v1_packed_i64_f16", "v1_packed_i64_bf16_decode", "v1_lengths_f16", "v1_heads_bf16", "v2_bf16_decode", "timm_mask_f16",
         "v1_pages_bf16", "v1_sequences_f16", "v1_f32_result_bf16", "v2_pages_bf16", "time_causal", "time_causal_tail", "time_decode",
         "time_decode_pages", "one_map_bf16", "one_map_pages_f16", "one_map_bf16_decode", "time_single_decode", "v1_sums_bf16_decode",
         "gpt_oss_window_f16", "v1_saved_bf16"]
HOPPER_CASES = ["v1_bf16", "v1_lengths_bf16", "v1_wide_f16", "v2_bf16", "v1_lengths_bf16_decode", "v1_pages_bf16", "v1_sequences_bf16",
                "motif_gda_pages_bf16", "time_one_k_causal", "time_decode_wide", "time_wide",
                "time_wide_clusters", "time_wide_persistent", "time_causal", "time_causal_blocks", "one_map_128_bf16"]
GENERATED = [f"{op}_{kind}" for op in ("row_norm", "gate", "turn", "project", "angles") for kind in ("bf16_64", "f16_4096")]


@pytest.fixture(scope="module")
def runtime(build_dir):
    return build_dir / packs.RUNTIME


@pytest.fixture(scope="module")
def pack(make_pack):
    return make_pack(["sm_80"], CASES + GENERATED, MODELS)


@pytest.fixture(scope="module")
def launcher(pack, open_pack):
    return open_pack(pack)


@pytest.fixture(scope="module")
def hopper_pack(make_pack):
    """A pack with the kernels that only sm_90a runs, beside those that it runs as sm_90 does."""
    return make_pack(["sm_90", "sm_90a"], HOPPER_CASES)


@pytest.fixture(scope="module")
def hopper(hopper_pack, open_pack):
    return open_pack(hopper_pack, "sm_90a")


def settings(triton=(16, 16)):
    backends = {name: "math" for name in check_timing.peers.PEERS if name.startswith(("flash", "cuDNN"))}
    return {"cache_bytes": 0, "free_bytes": lambda: 1 << 30, "backends": {**backends, "Triton, both maps": triton}}


def test_kernels_pass(launcher, full, monkeypatch):
    checked = {*GENERATED, *(case for case in CASES if not case.startswith("time"))}
    if not full:  # other tests have the simulator run each kind of kernel; this one has the checks find no fault
        checked = {name for number, name in enumerate(sorted(checked)) if number % 2}
        monkeypatch.setattr(launcher, "cases", {name: case for name, case in launcher.cases.items() if name in checked})
        monkeypatch.setattr(launcher, "generated", [item for item in launcher.generated if item.name in checked])
    result = check_kernels.run(launcher, seed=11)
    assert result["failures"] == []
    assert checked == {r["case"] for r in result["results"]}
    assert any("anystride" in k for r in result["results"] for k in r["kernels"])
    assert any("decode" in k for r in result["results"] for k in r["kernels"])


@pytest.mark.parametrize("packed, chip, least", [("pack", "sm_80", 20), ("hopper_pack", "sm_90a", 12)])
def test_the_shapes_of_a_gpu_choose_every_kernel(packed, chip, least, request, monkeypatch):
    """Shapes of the checks on a GPU are too large to be simulated, but which kernels they choose is known before anything runs."""
    memory = iter(range(1 << 20, 1 << 60, 1 << 40))
    device = argparse.Namespace(properties=lambda: {"chip": chip, "simulated": 1}, load=lambda image, kernels: None,
                                allocate=lambda size, name: next(memory), tensor_map=lambda *values: argparse.Namespace(address=64))
    planned = launchers.Launcher(devices.Pack(request.getfixturevalue(packed)), device)
    images = [planned, *([planned.plain] if planned.plain else [])]
    assert len(images) == (2 if chip == "sm_90a" else 1)
    for image in images:
        image.simulated = False

    class Shapes:
        """PyTorch, but tensors hold whatever was there."""
        randn = staticmethod(lambda shape, generator, device, dtype: torch.empty(shape, dtype=torch.bfloat16))

        def __getattr__(self, name):
            return getattr(torch, name)

    def plan(launcher, case, layout, batch, tq, tk, seed):
        with monkeypatch.context() as patched:
            patched.setattr(operands, "torch", Shapes())
            call = launcher.prepare(case, operands.make(case, batch, tq, tk, layout, seed))
        return {"kernels": call.kernels, "failures": []}

    chosen = {}

    def plan_generated(launcher, item, rows, aligned, seed):
        call = id(launcher), item.name, rows, aligned
        if call not in chosen:
            chosen[call] = launcher.prepare_function(item.name, generated.make(item, rows, aligned, seed, "cpu"), offsets=False).kernels
        return {"kernels": chosen[call], "failures": []}

    monkeypatch.setattr(check_kernels, "check", plan)
    monkeypatch.setattr(check_kernels, "check_generated", plan_generated)
    result = check_kernels.run(planned, seed=1)
    assert result["failures"] == [] and result["kernels"] == sum(len(image.kernels) for image in images) > least
    monkeypatch.setattr(check_kernels, "PREFILL", [check_kernels.PREFILL[0]])
    failures = check_kernels.run(planned, seed=1)["failures"]
    assert len(failures) == len(images) and all(f"{image.image['chip']} bc: no call chose " in f for image, f in zip(images, failures))
    assert all("anystride" in failure for failure in failures)


def test_kernels_of_one_chip_alone(hopper):
    """Prefill by warpgroups and decode by tensor maps, with NaNs behind kv_len, and then what other chips run."""
    result = check_kernels.run(hopper, seed=12)
    assert result["failures"] == [] and result["image"] == "sm_90a bc, sm_90 bc"
    ran = {image: {k for r in result["results"] if r["image"] == image for k in r["kernels"]} for image in result["image"].split(", ")}
    for part in ("64x128_bf16_wgmma_both", "128x128_bf16_wgmma_apart", "128x256_f16_wgmma_apart", "bulk"):
        assert any(part in kernel for kernel in ran["sm_90a bc"]) and not any(part in kernel for kernel in ran["sm_90 bc"])
    case = hopper.cases["v1_lengths_bf16"]
    tensors = operands.make(case, 2, 9, 30, seed=1)
    assert tensors["kv_len"].tolist() == [27, 17] and tensors["k1"][1, :, 17:].isnan().all() and not tensors["v"][1, :, :17].isnan().any()
    assert not any(t.isnan().any() for name, t in operands.for_reference(case, tensors).items() if name != "o")


def test_a_wrong_tensor_map_is_found(hopper, monkeypatch):
    """Rows of keys are taken to lie further apart than they do."""
    right = devices.Device.tensor_map

    def wrong(self, operand, dtype, box_rows, base, *rest):
        columns, rows, heads, batches, row_stride, *strides = rest
        longer = row_stride + 8 if devices.OPERANDS[operand] == "v" else row_stride
        return right(self, operand, dtype, box_rows, base, columns, min(rows, 16), heads, batches, longer, *strides)

    monkeypatch.setattr(devices.Device, "tensor_map", wrong)
    result = check_kernels.check(hopper, hopper.cases["v1_bf16"], "dense", 1, 19, 37, seed=3)
    assert any("of M, allowed" in failure for failure in result["failures"])
    with pytest.raises(devices.DeviceError, match="the tensor map of k1: tensor_map: .*multiple of 16 below 2\\^40, but got 72"):
        right(hopper.device, 1, devices.DTYPES["bf16"], 64, 1 << 20, 64, 9, 2, 1, 36, 64, 64)


def test_ours_against_ours(hopper, tmp_path, monkeypatch):
    """Where there are kernels of one chip alone, those of all chips are a contestant."""
    rows = {"forward": [check_timing.Row("(128,128) one K, causal 40", "time_one_k_causal", 1, 40, 40, 1, check_timing.WIDER)],
            "decode": [check_timing.Row("(128,256) B2, 40", "time_decode_wide", 2, 1, 40, 1, ()),
                       check_timing.Row("causal 70", "time_causal", 1, 70, 40, 1, (), (("diffattn, a block a tile", "time_causal_blocks"),)),
                       check_timing.Row("(128,256) 70", "time_wide", 1, 70, 40, 1, (),
                                        (("diffattn, clusters of two", "time_wide_clusters"), ("diffattn, persistent blocks", "time_wide_persistent")))]}
    monkeypatch.setattr(check_timing, "SMALL", rows)
    results = {part: check_timing.run(hopper, timing.CountingClock(), part, 5, settings()) for part in rows}
    assert [result["failures"] for result in results.values()] == [[], []]
    (row,) = results["forward"]["rows"]
    assert list(row["times"]) == ["diffattn", "diffattn, mma.sync", *check_timing.WIDER]
    assert all(entry["median_s"] == 1 and 0 < (entry["relative_error"] or 1e-3) < 2e-2 for entry in row["times"].values())
    assert row["nominal_flop"] == 4 * 2 * 40 * 40 * 128 * 16 // 2 and row["bytes"] == 5 * 16 * 40 * 128 * 2
    assert list(results["decode"]["rows"][0]["times"]) == ["diffattn", "diffattn, mma.sync"]
    assert list(results["decode"]["rows"][1]["times"]) == ["diffattn", "diffattn, mma.sync", "diffattn, a block a tile"]
    assert list(results["decode"]["rows"][2]["times"]) == ["diffattn", "diffattn, mma.sync", "diffattn, clusters of two", "diffattn, persistent blocks"]
    table.write(tmp_path / "table.md", results)
    assert "| diffattn, mma.sync | 1.000 s |" in (tmp_path / "table.md").read_text()


def test_a_wrong_kernel_is_found(launcher):
    """One number of a launch is changed: the factor of the scores."""
    case = launcher.cases["v1_heads_bf16"]
    function = launcher.functions[case.name]
    scale = next(s for s in function["steps"] if s.get("value") == 0x3E38AA3B)  # 0.125 * log2 e
    scale["value"] = 0x3E400000
    try:
        result = check_kernels.check(launcher, case, "dense", 1, 19, 37, seed=3)
    finally:
        scale["value"] = 0x3E38AA3B
    assert len(result["failures"]) == 2 and "of M, allowed" in result["failures"][0] and "times PyTorch's" in result["failures"][1]


def test_a_wrong_generated_kernel_is_found(launcher):
    """Half of the chunks of eight are left out."""
    item = next(g for g in launcher.generated if g.name == "gate_bf16_64")
    chunk = next(s for s in launcher.functions[item.name]["steps"] if s.get("value") == 8)
    chunk["value"] = 16
    try:
        result = check_kernels.check_generated(launcher, item, 3, True, 5)
    finally:
        chunk["value"] = 8
    assert result["failures"] == ["error inf times what is allowed"]


def test_time_left_out_is_a_failure(launcher):
    assert "sm_80 bc: v1_bf16: not reached in time" in check_kernels.run(launcher, seed=1, deadline=1.0)["failures"]
    row = check_timing.measure(launcher, timing.CountingClock(), check_timing.SMALL["decode"][0], 1, settings(), time.monotonic())
    assert all(row["times"][peer] == timing.NO_TIME for peer in check_timing.DECODE) and "median_s" in row["times"]["diffattn"]
    late = check_timing.run(launcher, timing.CountingClock(), "decode", 1, settings(), deadline=1.0)
    assert late["failures"] == [f"{row.name}: not reached in time" for row in check_timing.SMALL["decode"]] and late["rows"] == []


@pytest.mark.parametrize("name", ["forward", "decode", "module"])
def test_timed_parts_run(launcher, name, tmp_path):
    result = check_timing.run(launcher, timing.CountingClock(), name, 5, settings())
    assert result["failures"] == []
    for row, planned in zip(result["rows"], check_timing.SMALL[name], strict=True):
        own = ["diffattn", *(name for name, _ in planned.others)]
        assert list(row["times"])[:len(own)] == own and set(row["times"]) == {*own, *planned.peers}
        for contestant, entry in row["times"].items():
            if contestant == "Triton, both maps" and "refused" in entry:
                continue  # not installed, or no GPU for it
            assert entry["median_s"] == 1.0, (contestant, entry)
            assert contestant.endswith("alone") or entry["relative_error"] < 2e-2
        table.write(tmp_path / "table.md", {name: result})
        assert f"### {name}: {row['name']}" in (tmp_path / "table.md").read_text()


def test_a_peer_that_computes_something_else_is_not_timed(launcher, monkeypatch):
    wrong = lambda case, tensors, which: lambda: tensors["v"][:, :, :1] * 2  # noqa: E731
    refuses = lambda case, tensors, which: (_ for _ in ()).throw(RuntimeError("no such shape"))  # noqa: E731
    row = check_timing.SMALL["decode"][0]._replace(peers=("wrong", "refuses"))
    monkeypatch.setattr(check_timing, "SMALL", {"decode": [row]})
    monkeypatch.setattr(check_timing.peers, "PEERS", {"wrong": (wrong, ""), "refuses": (refuses, "")})
    (row,) = check_timing.run(launcher, timing.CountingClock(), "decode", 5, settings())["rows"]
    assert row["times"]["wrong"]["refused"].startswith("its relative error is")
    assert row["times"]["refuses"]["refused"] == "RuntimeError: no such shape"


def test_a_second_contestant_of_ours_that_fails_leaves_the_row(launcher, monkeypatch):
    row = check_timing.SMALL["forward"][0]._replace(peers=(), others=(("another", "time_causal_tail"),))
    monkeypatch.setattr(check_timing, "SMALL", {"forward": [row]})
    result = check_timing.run(launcher, timing.CountingClock(), "forward", 5, settings())
    assert result["failures"] == ["causal 48, another: KeyError: 'weight'"]
    assert result["rows"][0]["times"]["another"] == {"refused": "KeyError: 'weight'"} and "median_s" in result["rows"][0]["times"]["diffattn"]


def test_goals_are_judged():
    def row(name, ours, **peers):
        times = {"diffattn": {"median_s": ours, "nominal_tflops": 410.0, "tb_per_s": 3.0}}
        return {"name": name, "times": {**times, **{n.replace("_", " "): {"median_s": s} for n, s in peers.items()}}}

    flash, plain = "flash x4, kernels alone", "diffattn, mma.sync"
    rows = [row("full 4k", 1.0), row("full 16k", 1.0), row("causal 4k", 1.0)]
    for entry, seconds in zip(rows, (1.3, 1.4, 1.7)):
        entry["times"][flash] = {"median_s": seconds}
    results = {"forward": {"rows": rows}, "decode": {"rows": [row("B32, 8k", 1.0)]}, "probe": {"rates": {"copy_tb_per_s": 4.0, "gemm_tflops": 500.0}}}
    lines = targets.judge(results)
    verdicts = [line["verdict"] for line in lines]
    assert verdicts[:4] == ["missed", "must reached", "aim reached", "not measured"]
    assert verdicts[7:9] == ["aim reached", "missed"] and lines[8]["ratio"] == 0.75
    # Where nothing but our kernels of all chips ran, goals of the others are no matter; rows that did not run are said.
    assert {line["verdict"] for line in lines[9:]} == {"not measured"} and not any("full 16k, sm_90a" == line["row"][8:] for line in lines)
    # With both, goals are those of the kernels that they are about.
    rows[1]["times"][plain] = {"median_s": 1.5, "nominal_tflops": 270.0, "tb_per_s": 2.0}
    rows[1]["times"]["cuDNN x2, kernels alone"] = {"median_s": 1.05}
    judged = {(line["row"], line["peer"]): (line["verdict"], line["ratio"]) for line in targets.judge(results)}
    assert judged["forward full 16k, mma.sync", flash] == ("missed", 1.4 / 1.5)
    assert judged["forward full 16k, mma.sync", "nominal_tflops"] == ("missed", 270.0)
    assert judged["forward full 16k, sm_90a", "nominal_tflops / measured gemm_tflops"] == ("must reached", 410 / 500)
    assert judged["forward full 16k, sm_90a", plain] == ("must reached", 1.5)
    assert judged["forward full 16k, sm_90a", "cuDNN x2, kernels alone"] == ("must reached", 1.05)
    assert all(goal.row in {row.name for row in check_timing.WORK[goal.part]} for goal in targets.MMA + targets.HOPPER)
    peers = {(part, row.name): {plain, *row.peers, *(name for name, _ in row.others)} for part, of in check_timing.WORK.items() for row in of}
    assert all(set(goal.peers) <= peers[goal.part, goal.row] for goal in targets.MMA + targets.HOPPER)


def test_sanitizer_says_why_not(pack, tmp_path, monkeypatch):
    assert "needs a GPU" in sanitizer.run(tmp_path, "sim", 10)["not_run"]
    monkeypatch.setattr(sanitizer, "find", lambda: None)
    assert "no compute-sanitizer" in sanitizer.run(pack, "cuda", 10)["not_run"]
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho 'Device not supported'\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "find", lambda: str(tool))
    assert sanitizer.run(pack, "cuda", 10)["not_run"].endswith("Device not supported")
    tool.write_text("#!/bin/sh\ncase \"$*\" in *racecheck*) echo 'RACECHECK SUMMARY: 1 hazard'; exit 9;; *synccheck*) exit 0;; esac\n"
                    "echo checks done\n")
    monkeypatch.setattr(sanitizer, "CASES", ("other",))
    assert "the pack has none of other" in sanitizer.run(pack, "cuda", 10)["not_run"]
    monkeypatch.setattr(sanitizer, "CASES", ("v1_bf16", "v1_bf16@plain", "other"))
    result = sanitizer.run(pack, "cuda", 60)
    assert result["failures"] == ["racecheck: RACECHECK SUMMARY: 1 hazard", "synccheck: status 0, but no end of the checks"]
    assert len(result["results"]) == 3 and result["cases"] == ["v1_bf16", "v1_bf16@plain"]


def test_what_the_sanitizer_watches(pack, hopper_pack, simulator, capfd):
    """On the simulator, which checks accesses too."""
    def lines_of(folder, *arguments):
        sys.argv = ["one-check", str(folder), *arguments, f"--simulator={simulator}"]
        one_check.main()
        return capfd.readouterr().out.splitlines()

    assert lines_of(pack) == lines_of(pack, "") == ["checks done"]
    lines = lines_of(pack, "v1_bf16,v2_bf16_decode,v1_bf16@plain")
    assert len(lines) == 6 and "anystride" in lines[1] and "decode" in lines[2] and "merge" in lines[2]
    assert lines[4] == "v1_bf16@plain: the same kernels on this chip"
    lines = lines_of(hopper_pack, "v1_bf16,v1_bf16@plain", "--chip=sm_90a")
    assert ["wgmma" in line for line in lines] == [True, False, False, False, False]
    with pytest.raises(SystemExit, match="has mask"):
        lines_of(pack, "timm_mask_f16")
    with pytest.raises(SystemExit, match="expected cases of the pack, but got other"):
        lines_of(pack, "other")


def test_the_command(pack, simulator, tmp_path, full):
    def run(*arguments):
        return subprocess.run([ROOT / "scripts/gpu-check.sh", "--device=sim", f"--simulator={simulator}", f"--pack={pack}", *arguments],
                              capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path / "out")})

    done = run("probe", *["models"] * full, "--seed=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("probe: passed") and ("models: passed" in done.stdout or not full)
    result = json.loads((tmp_path / "out/probe.json").read_text())
    assert result["product"]["error"] < 2 ** -8 and result["device"]["simulated"] == 1
    assert "these figures are no times" in (tmp_path / "out/table.md").read_text()
    before = (tmp_path / "out/probe.json").stat().st_mtime_ns
    assert "probe: passed (as before)" in run("probe").stdout
    assert (tmp_path / "out/probe.json").stat().st_mtime_ns == before
    broken = run("probe", "--again", f"--pack={tmp_path}")
    assert broken.returncode == 1 and f"expected {tmp_path}/manifest.json" in broken.stdout
    unknown = run("speed")
    assert unknown.returncode == 2 and "but got speed" in unknown.stderr


def test_a_part_that_dies_says_so(tmp_path, monkeypatch):
    from gpu_check import check
    args = argparse.Namespace(pack=tmp_path, device="sim", chip="sm_80", seed=1, simulator=None)
    monkeypatch.setattr(check.sys, "executable", "/bin/false")
    assert check.run_part("probe", args, tmp_path)["failures"] == ["ended with status 1"]
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o755)
    monkeypatch.setattr(check.sys, "executable", str(slow))
    monkeypatch.setattr(results, "BUDGETS", {"probe": 0.1})
    assert "not done after" in check.run_part("probe", args, tmp_path)["failures"][0]


PART = """#!{python}
import os, sys, time
from pathlib import Path
sys.path.insert(0, {source!r})
from gpu_check import results
from gpu_check.journal import LOST, Journal
options = dict(zip(sys.argv[4::2], sys.argv[5::2]))
units = {{"well": lambda: 1, "dies": lambda: os._exit(9), "hangs": lambda: time.sleep(60), "fails": lambda: 1 / 0,
         "loses": lambda: open("no such file")}}
journal = Journal(Path(options["--journal"]), lambda: name == "loses" and os._exit(LOST))
found, failures = [], []
for name in {names}:
    if float(options["--seconds"]) == 0 and name not in journal.done:
        failures.append(name + ": not reached in time")
        continue
    result, failed = journal.run(name, 0.5, units[name.split()[0]])
    found.append(result)
    failures += failed
results.write(Path(options["--output"]), {{"complete": True, "results": found, "failures": failures}})
"""


def watched(names, tmp_path, monkeypatch):
    """The result of a part whose process runs the units of these names."""
    from gpu_check import check
    program = tmp_path / "part"
    program.write_text(PART.format(python=sys.executable, source=str(ROOT / "tools/gpu-check"), names=names))
    program.chmod(0o755)
    monkeypatch.setattr(check.sys, "executable", str(program))
    args = argparse.Namespace(pack=tmp_path, device="sim", chip="sm_80", seed=1, simulator=None)
    result = check.run_part("probe", args, tmp_path)
    assert not (tmp_path / "probe.journal").exists()
    return result["results"], result["failures"]


def test_a_unit_that_ends_the_process_is_a_failure_and_the_next_ones_are_done(tmp_path, monkeypatch):
    names = ["well", "dies", "well 2", "fails", "hangs", "loses", "well 3"]
    done, failures = watched(names, tmp_path, monkeypatch)
    assert done == [1, None, 1, None, None, None, 1]
    assert failures == ["dies: ended with status 9", "fails: ZeroDivisionError: division by zero", "hangs: not done after 0.5 s",
                        "loses: FileNotFoundError: [Errno 2] No such file or directory: 'no such file'"]


def test_a_part_without_time_keeps_what_it_has_done(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "BUDGETS", {"probe": 0.4})
    done, failures = watched(["well", "hangs", "well 2"], tmp_path, monkeypatch)
    assert done == [1, None] and failures == ["hangs: not done after 0 s", "well 2: not reached in time"]


def test_the_clock_of_a_gpu(monkeypatch, tmp_path):
    """Graphs and events that count calls in the place of CUDA's: 2 ms a call."""
    state = {"calls": 0, "captured": None}

    def call():
        state["calls"] += 1

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = state["calls"]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 2.0 * (end.at - self.at)

    class Graph:
        def replay(self):
            state["calls"] += self.calls

    class Capture:
        def __init__(self, graph):
            self.graph = graph

        def __enter__(self):
            self.before = state["calls"]

        def __exit__(self, *_):
            self.graph.calls, state["calls"] = state["calls"] - self.before, self.before

    class Stream:
        def wait_stream(self, other):
            assert isinstance(other, Stream)

    class Cuda:
        CUDAGraph, graph, stream = Graph, Capture, staticmethod(lambda stream: contextlib.nullcontext())
        current_stream, synchronize, empty_cache = staticmethod(Stream), staticmethod(lambda: None), staticmethod(lambda: None)

    Cuda.Event, Cuda.Stream = Event, Stream
    monkeypatch.setattr(timing.torch, "cuda", Cuda)
    wall = timing.WallClock()
    replay, count = wall.prepare([call, call])
    before = state["calls"]
    assert count == 2 and wall.sample(replay) < 1 and state["calls"] == before + 2 and wall.calls > wall.warm_up_calls
    # The decoder of PyTorch, captured: three calls to warm up, and one for each replay.
    peer = argparse.Namespace(step=lambda ids, position, *caches: call() or torch.tensor([float(position)]))
    graphed = time_models.theirs(peer, argparse.Namespace(is_cuda=True, shape=(1, 2)), 9, [], True)
    assert state["calls"] == before + 5 and graphed().item() == 7 and state["calls"] == before + 6
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '1980 MHz, 3201 MHz, 300.00 W, 50, 0x0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    clock = timing.CudaClock()
    replay, count = clock.prepare([call, call, call])
    assert count == 3 and clock.sample(replay) == pytest.approx(6e-3)
    times = timing.compare(clock, {"ours": [call] * 3, "twice": [lambda: [call(), call()]] * 3}, 5)
    assert times["ours"]["median_s"] == pytest.approx(2e-3) and times["twice"]["median_s"] == pytest.approx(4e-3)
    assert times["ours"]["calls"] >= 100 and times["ours"]["spread"] == 0 and times["ours"]["clocks"]["clocks.sm"] == "1980 MHz"
    assert timing.input_sets(10 << 20, 60 << 20, 1 << 40) == 12 and timing.input_sets(2 << 30, 60 << 20, 1 << 40) == 3
    assert timing.input_sets(2 << 30, 60 << 20, 5 << 30) == 1


@pytest.fixture(scope="module")
def simulated(simulator):
    opened = devices.Device.simulated(simulator, "sm_80")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def opened_pack(pack):
    return devices.Pack(pack)


def test_models_say_what_the_cpu_says(opened_pack, simulated):
    results, failures = check_models.run(opened_pack, simulated, tokens=2)
    assert failures == []
    checked = [(r["model"], r["what"]) for r in results]
    decoder = ["forward", "prefill", "decode", "decode from a graph", "decode against prefill"]
    assert checked[:11] == [*(("diff_v1_f32", what) for what in decoder), *(("diff_v2", what) for what in decoder), ("edifice", "forward")]
    assert len(checked) == 11 + 4 and all(r["same"] == r["sure"] == 2 for r in results[11:])


def test_a_wrong_model_is_found(opened_pack, simulated, monkeypatch):
    """Answers, and a token, of a model that is a little another one."""
    entry = {e["name"]: e for e in opened_pack.manifest["models"]}
    answers = dict(np.load(opened_pack.folder / entry["diff_v2"]["answers"]))
    model = check_models.open_model(opened_pack, entry["diff_v2"], simulated)
    answers["expected"][1, 7] *= 1.1  # what the first step after the second prompt has to say
    failures = check_models.failures_of(check_models.check_small(model, entry["diff_v2"], answers))
    assert [f.split(":")[0] for f in failures] == ["diff_v2 forward", "diff_v2 decode", "diff_v2 decode from a graph"]
    with monkeypatch.context() as patched:
        patched.setattr("diffattn.graph_capture.CapturedGraph.fallback_reason", "no graphs here")
        with pytest.raises(RuntimeError, match="expected decode to be captured, but got: no graphs here"):
            check_models.check_small(model, entry["diff_v2"], answers)
    changed = json.loads(json.dumps(entry["tiny-lm"]))
    changed["prompts"][2]["tokens"][1] += 1
    changed["prompts"][3]["tokens"][1] += 1
    changed["prompts"][3]["leads"][1] = 0.0  # one that was not sure
    model = check_models.open_model(opened_pack, changed, simulated)
    (failure,) = check_models.failures_of(check_models.check_tokens(model, changed, 2))
    assert failure == f"tiny-lm tokens after {changed['prompts'][2]['text']!r}: 1 of 2 are the CPU's, and 2 had to be"
    broken = argparse.Namespace(folder=opened_pack.folder, manifest={"models": [{**entry["edifice"], "folder": "models/none"}]})
    (failure,) = check_models.run(broken, simulated)[1]
    assert failure.startswith("edifice: BundleError") and "models/none" in failure


def test_the_decoder_against_pytorch(opened_pack, simulated, tmp_path):
    result, failures = time_models.run(opened_pack, simulated, timing.CountingClock(), 3)
    assert failures == [] and result["parameters"] == 76224
    assert [row["name"] for row in result["rows"]] == ["prefill 12", "decode at 24"]
    assert [row["launches"] for row in result["rows"]] == ["one by one", "as one graph"]
    for row, mine in zip(result["rows"], (["diffattn", time_models.AGAIN], ["diffattn"])):
        assert list(row["times"]) == [*mine, time_models.EAGER, time_models.GRAPH, time_models.COMPILED]
        assert all(entry["median_s"] == 1 and 0 < entry["relative_error"] < 3e-2 for entry in row["times"].values())
    checks = [{"model": "edifice", "what": "forward", "error": 1e-3, "allowed": 4e-3},
              {"model": "tiny-lm", "what": "tokens after 'x'", "same": 3, "of": 4, "sure": 2}]
    table.write(tmp_path / "table.md", {"models": {**result, "clock": "none", "checks": checks, "failures": []}})
    text = (tmp_path / "table.md").read_text()
    assert "### models: decode at 24" in text and "our kernels are launched as one graph" in text and "| edifice | forward | 0.001 | 0.004 |" in text and "| 3 of 4 as on the CPU | 2 |" in text
    entry = next(e for e in opened_pack.manifest["models"] if e["name"] == "decoder")
    soon = time.monotonic() + 1  # the first peer, no other
    tensors = time_models.make_weights((opened_pack.folder / entry["header"]).read_bytes(), tmp_path / entry["file"], 3, "cpu")
    eager = time_models.TorchDecoder(entry["config"], tensors, torch.bfloat16)
    exact = time_models.TorchDecoder(entry["config"], tensors, torch.float32)
    model = check_models.open_model(opened_pack, entry, simulated, weights=tmp_path)
    row = time_models.measure(time_models.SMALL[1], model, {time_models.EAGER: (eager, False), time_models.GRAPH: (eager, True)}, exact,
                              tensors, timing.CountingClock(), 3, "cpu", soon)
    assert row["times"][time_models.GRAPH] == timing.NO_TIME and "median_s" in row["times"][time_models.EAGER]
    late = time_models.run(opened_pack, simulated, timing.CountingClock(), 3, deadline=1.0)
    assert late[1] == ["prefill 12: not reached in time", "decode at 24: not reached in time"]


def test_a_wrong_decoder_is_not_timed(opened_pack, simulated, monkeypatch):
    right, rows = time_models.ours, time_models.SMALL
    with monkeypatch.context() as patched:
        patched.setattr("diffattn.graph_capture.CapturedGraph.fallback_reason", "no graphs here")
        patched.setattr(time_models, "SMALL", rows[:1])
        failures = time_models.run(opened_pack, simulated, timing.CountingClock(), 3)[1]
    assert failures == ["prefill 12: RuntimeError: expected a prompt that is launched as one graph, but got one that is launched one by "
                        "one: no graphs here"]
    monkeypatch.setattr(time_models, "SMALL", rows[1:])
    monkeypatch.setattr(time_models, "ours", lambda *args: (lambda: right(*args)[0]() * 1.1, right(*args)[1]))
    rows, failures = time_models.run(opened_pack, simulated, timing.CountingClock(), 3)
    assert rows["rows"] == [] and failures[0].startswith("decode at 24: RuntimeError: expected logits as near to f32 as PyTorch's")
    monkeypatch.setattr(time_models, "ours", right)
    captured = time_models.theirs
    monkeypatch.setattr(time_models, "theirs", lambda *args: captured(*args) if not args[4] else 1 / 0)
    rows, failures = time_models.run(opened_pack, simulated, timing.CountingClock(), 3)
    times = rows["rows"][0]["times"]
    assert failures == [] and times[time_models.GRAPH] == {"refused": "ZeroDivisionError: division by zero"} and "median_s" in times["diffattn"]


def test_a_pack_without_models(pack, simulator, tmp_path, monkeypatch):
    from gpu_check import part
    monkeypatch.setenv("DIFFATTN_BUILD_DIR", "")  # set by the part, for its process
    shutil.copytree(pack, tmp_path / "pack")
    manifest = json.loads((tmp_path / "pack/manifest.json").read_text())
    (tmp_path / "pack/manifest.json").write_text(json.dumps({**manifest, "models": []}))
    args = argparse.Namespace(pack=tmp_path / "pack", device="sim", simulator=simulator, chip="sm_80", seed=1, seconds=9, journal=None)
    assert part.run("models", args) == {"not_run": "not run: the pack has no models", "failures": []}


def test_damaged_and_foreign_packs(pack, tmp_path):
    def changed(change):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pack, folder)
        change(folder)
        return folder

    def version(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 9}))

    with pytest.raises(devices.DeviceError, match="expected .*manifest.json: make it"):
        devices.Pack(tmp_path)
    with pytest.raises(devices.DeviceError, match=f"of version {devices.PACK_VERSION} .* but got version 9"):
        devices.Pack(changed(version))
    with pytest.raises(devices.DeviceError, match=r"sm_80.bc.gz with \d+ bytes: the pack is damaged"):
        devices.Pack(changed(lambda folder: (folder / "sm_80.bc.gz").write_bytes(b"")))
    with pytest.raises(devices.DeviceError, match="the pack has them for sm_80 as bc"):
        devices.Pack(pack).choose("sm_90", simulated=False)


def test_the_image_for_a_chip(build_dir, tmp_path):
    """Cubins of the newest chip that is not newer, PTX for the rest; both made by one call."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin", os.path.join(sysconfig.get_paths()["purelib"], "nvidia/cu13/bin")])
    size, counts = packs.pack(tmp_path / "cuda", build_dir, ["sm_80", "sm_90", "sm_90a"], ["timm_bf16"], "cuda", ["edifice"],
                              ptxas=shutil.which("ptxas", path=path))
    # Two ways to copy, of two kernels, and the merge of decode.
    assert counts == {"sm_80.cubin": 5, "sm_90.cubin": 5, "sm_90a.cubin": 7, "sm_80.ptx": 5} and size < packs.LIMIT
    pack = devices.Pack(tmp_path / "cuda")
    (edifice,) = pack.manifest["models"]
    bundle = json.loads((tmp_path / "cuda" / edifice["folder"] / "manifest.json").read_text())
    assert bundle["cpu"]["isa"] == "avx2" and [part["chip"] for part in bundle["devices"]] == ["sm_80", "sm_90a"]
    assert {image["format"] for part in bundle["devices"] for image in part["images"]} == {"cubin", "ptx"}
    chosen = {chip: pack.choose(chip, simulated=False)[0] for chip in ("sm_80", "sm_89", "sm_90", "sm_100")}
    assert {chip: image["file"] for chip, image in chosen.items()} == {
        "sm_80": "sm_80.cubin.gz", "sm_89": "sm_80.cubin.gz", "sm_90": "sm_90a.cubin.gz", "sm_100": "sm_80.ptx.gz"}
    assert chosen["sm_90"]["data"].startswith(b"\x7fELF") and b".visible .entry diffattn_forward_32x64" in chosen["sm_100"]["data"]
    _, host = pack.choose("sm_90", simulated=False)
    assert all(k["spilled_bytes"] == 0 and k["registers"] > 0 for k in host["kernels"])
    # Behind maps, as machine code has them.
    (forward,) = [k["parameters"] for k in host["kernels"] if "wgmma" in k["name"]]
    assert forward.startswith("mmmmmmp") and "m" not in forward[6:]
    plain, host = pack.choose("sm_90", simulated=False, tied=False)
    assert plain["file"] == "sm_90.cubin.gz" and not any("m" in k["parameters"] for k in host["kernels"])
    # A letter for each parameter: the merge of decode, which sees no queries, keys or values, has the fewest.
    parameters = {k["name"].split("_")[1]: len(k["parameters"]) for k in host["kernels"]}
    assert 0 < parameters["merge"] < min(parameters["forward"], parameters["decode"]) < 60
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("keep")
    with pytest.raises(SystemExit, match="but it holds other files"):
        packs.pack(tmp_path / "mine", build_dir, ["sm_80"], ["timm_bf16"], "cuda")
    with pytest.raises(SystemExit, match="expected models of diff_v1, .*, but got other"):
        packs.pack(tmp_path / "other", build_dir, ["sm_80"], ["timm_bf16"], "cuda", ["other"])


def test_openmp_comes_along(pack):
    """In a process of its own, where no libgomp is loaded yet, and with a loader that finds none on the machine."""
    code = ("import ctypes, sys; sys.path.insert(0, sys.argv[1]); from gpu_check import device; plain = ctypes.CDLL; tried = []\n"
            "def refuse(name, **options):\n"
            "    tried.append(name)\n"
            "    if name == 'libgomp.so.1': raise OSError(name + ': not there')\n"
            "    return plain(name, **options)\n"
            "ctypes.CDLL = refuse; pack = device.Pack(sys.argv[2])\n"
            "print(pack.provide_openmp(), tried, 'libgomp' in open('/proc/self/maps').read())")
    done = subprocess.run([sys.executable, "-c", code, ROOT / "tools/gpu-check", pack], capture_output=True, text=True, check=True)
    path = str(pack / packs.OPENMP)
    assert done.stdout.split()[0] == path and str(["libgomp.so.1", path]) in done.stdout and done.stdout.endswith("True\n")


def test_the_driver_by_its_table(runtime, build_dir):
    """The CUDA maker over a library in the driver's place, which runs one kernel: x *= factor."""
    opened = devices.Device.cuda(runtime, driver=build_dir / "unittests/mocks/libMockCuda.so")
    facts = opened.properties()
    assert facts["chip"] == "sm_90" and not facts["simulated"]
    module = opened.load({"chip": "sm_90", "format": "cubin", "driver": 13000, "data": b"cubin scale\0"},
                         [{"name": "scale", "parameters": "p44", "starts_early": False}])
    host = (ctypes.c_float * 3)(1, 2, 3)
    address = opened.allocate(12)
    opened.copy_in(address, ctypes.addressof(host), 12)
    factor = int.from_bytes(bytes(ctypes.c_float(2.5)), "little")
    stream = opened.wrap_stream(None)
    opened.launch(module, 0, (1, 1, 1), (64, 1, 1), 0, [address, 3, factor], stream)
    opened.copy_out(ctypes.addressof(host), address, 12)
    assert list(host) == [2.5, 5.0, 7.5]
    with pytest.raises(devices.DeviceError, match="launch: expected a kernel from 0 to 0, but got 7"):
        opened.launch(module, 7, (1, 1, 1), (64, 1, 1), 0, [0, 0, 0])
    # The mock's map is the text of what it was made of: f16, sizes / box + strides, and how it is read.
    held = opened.tensor_map(3, devices.DTYPES["f16"], 128, address, 40, 9, 3, 1, 48, 512, 7)
    assert held.address % 64 == 0 and ctypes.string_at(held.address) == b"6: 40/64+96 9/128+1024 3/1+16 1/1 0 3 2 0"
    with pytest.raises(devices.DeviceError, match="the tensor map of v: tensor_map: .*strides of.* 30"):
        opened.tensor_map(4, devices.DTYPES["f16"], 128, address, 40, 9, 3, 1, 15, 512, 7)
    opened.destroy_stream(stream)
    opened.release(address)
    opened.unload(module)
    opened.close()
    with pytest.raises(devices.DeviceError, match="/nonexistent/libcuda.so"):
        devices.Device.cuda(runtime, driver="/nonexistent/libcuda.so")
