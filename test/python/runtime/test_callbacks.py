"""Exceptions of Python functions that C calls: they end the work and reach the caller."""
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from malformed import MODEL
from safetensors.numpy import save_file

import diffattn
from paths import ROOT
from diffattn import bundle, errors, runtime

TINY = ROOT / "examples" / "tiny-lm"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file({"w": np.ones((3, 4), np.float32), "layers.0.b": np.ones(3, np.float32), "layers.1.b": np.ones(3, np.float32)}, path)
    return path


class Stop(BaseException):
    """No Exception, as KeyboardInterrupt is none."""


def raising(error, calls):
    def progress(done, total):
        calls.append(done)
        raise error

    return progress


@pytest.mark.parametrize("error", [ValueError("of the caller"), Stop("now"), SystemExit(3)])
@pytest.mark.parametrize("target", ["cpu", "cuda-sim:sm_80"])
def test_what_progress_raises_ends_the_binding(error, target, weights, capfd):
    executable, calls = runtime.Executable(MODEL, target=target), []
    with pytest.raises(type(error)) as raised:
        executable.bind_weights(weights, raising(error, calls))
    assert raised.value is error and len(calls) == 1, "nothing is bound after it"
    assert "ignored" not in capfd.readouterr().err
    executable.bind_weights(weights, lambda *_: None)
    (y,) = executable.call("forward", np.ones((1, 4), np.float32))
    assert y.tolist() == [[5, 5, 5]]


def test_the_constructor_and_load_raise_it_too(weights):
    with pytest.raises(Stop):
        runtime.Executable(MODEL, weights=weights, progress=raising(Stop(), []))
    with pytest.raises(Stop):
        diffattn.load(TINY, progress=raising(Stop(), []))


def test_a_bundle_is_not_opened(weights, tmp_path):
    runtime.write_bundle(MODEL, tmp_path / "b", weights=weights)
    calls = []
    with pytest.raises(Stop):
        bundle.load(tmp_path / "b", progress=raising(Stop(), calls))
    assert len(calls) == 1
    assert bundle.load(tmp_path / "b").call("forward", np.ones((1, 4), np.float32))[0].tolist() == [[5, 5, 5]]


def test_ctrl_c_within_progress():
    def progress(done, total):
        calls.append(done)
        os.kill(os.getpid(), signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, [])  # a call in which it is noticed

    calls, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            diffattn.load(TINY, progress=progress)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 1


def test_ctrl_c_at_any_time(capfd):
    """Also where Python is about to enter the callback, or leaves it."""
    executable = diffattn.load(TINY).executable
    files, ended, hook = [TINY / "model.safetensors"], [], sys.unraisablehook
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for trial in range(200):
            timer = threading.Timer(1e-5 * (trial % 100), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                executable.bind_weights(files, lambda *_: None)
                while timer.is_alive():
                    time.sleep(1e-3)
                time.sleep(1e-3)
                ended.append("lost")
            except KeyboardInterrupt:
                ended.append("raised")
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["raised"] * 200
    assert "ignored" not in capfd.readouterr().err and sys.unraisablehook is hook


def test_weights_stay_where_binding_was_stopped(weights, tmp_path):
    other = tmp_path / "other.safetensors"
    save_file({"w": np.zeros((3, 4), np.float32), "layers.0.b": np.zeros(3, np.float32), "layers.1.b": np.zeros(3, np.float32)}, other)
    executable = runtime.Executable(MODEL, weights=weights)
    with pytest.raises(Stop):
        executable.bind_weights(other, raising(Stop(), []))
    assert executable.call("forward", np.ones((1, 4), np.float32))[0].tolist() == [[5, 5, 5]]


def test_the_c_interface_says_that_it_was_stopped(weights):
    from diffattn.calls import GoOn

    executable, lib = runtime.Executable(MODEL), runtime.library()
    array = runtime._paths(weights)
    status = lib.bind_weights_while(executable._handle, array, 1, GoOn(lambda *_: 0), None)
    assert status == errors.RunError.code and b"told to stop after 48 of 72 bytes" in lib.last_error()
