"""One line that says how far a command is: on a terminal alone, in place, and gone at the end."""
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

from diffattn import cli, output, progress, quantize
from diffattn.model import load
from diffattn.progress import Progress


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal of 40 columns, for the rest of a test; gives what says what was written to it."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    os.set_blocking(main, False)
    stream = os.fdopen(side, "w")

    def written():
        parts = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(main, 1 << 16):
                parts += part
        return parts.decode()

    def make():  # in the test itself: pytest has a stream of its own for each phase
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(output, "_open_line", "")
        monkeypatch.setattr(progress, "AFTER", 0.01)
        monkeypatch.setattr(progress, "EVERY", 0.01)
        return written

    yield make
    stream.close()
    os.close(main)


def screen(text):
    """The lines that a terminal shows in the end."""
    lines = [""]
    for part in re.split(r"(\r\n|\n|\r\x1b\[K)", text):
        if part in ("\r\n", "\n"):
            lines.append("")
        elif part == "\r\x1b[K":
            lines[-1] = ""
        else:
            lines[-1] += part
    return lines


def wait_for(shown, words):
    begin, text = time.monotonic(), ""
    while words not in text:
        assert time.monotonic() - begin < 20, f"expected {words!r}, but got {text!r}"
        time.sleep(0.01)
        text += shown()
    return text


def test_a_line_in_place(terminal):
    written = terminal()
    with Progress("evaluating", "pieces") as shown:
        shown(1, 4)
        text = wait_for(written, "evaluating: 0 s, 1 of 4 pieces (25 %)")
        output.tell("a message")
        shown(3, 4)
        text += wait_for(written, "3 of 4 pieces")
    text += written()
    assert screen(text) == ["a message", ""], "what was told stays, and the line is gone"
    assert max(map(len, re.split(r"\r\n|\r\x1b\[K", text))) < 40, "a line that is broken cannot be written over"


def test_behind_an_open_line(terminal):
    written = terminal()
    output.tell("compiling ...", end="")
    with Progress("weights") as shown:
        shown(3 << 20, 8 << 20)
        text = wait_for(written, "compiling ... weights: ")
    output.tell(" 2 s")
    assert screen(text + written()) == ["compiling ... 2 s", ""]
    output.tell("x" * 30, end="")  # more than half of the terminal
    with Progress("weights"):
        text = wait_for(written, "weights")
    assert screen(text + written()) == ["x" * 30, ""]


def test_gone_after_an_error(terminal):
    written = terminal()
    with pytest.raises(KeyboardInterrupt), Progress("fetching", poll=lambda: (1 << 20, 2 << 20)):
        text = wait_for(written, "1 of 2 MiB (50 %)")
        raise KeyboardInterrupt
    assert screen(text + written()) == [""]


def test_what_takes_little_says_nothing(terminal, monkeypatch):
    written = terminal()
    monkeypatch.setattr(progress, "AFTER", 2.0)
    with Progress("evaluating"):
        pass
    assert written() == ""


def test_quiet_where_no_terminal_is(capsys, monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 0.001)
    with Progress("evaluating", poll=lambda: pytest.fail("nobody looks at it")):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_text():
    shown = Progress("binding \x1b[2J", "bytes")
    assert shown.text(3.4) == "binding \\x1b[2J: 3 s"
    shown(5 << 20, 20 << 20)
    assert shown.text(10) == "binding \\x1b[2J: 10 s, 5 of 20 MiB (25 %), 30 s left"
    shown(20 << 20, 20 << 20)
    assert shown.text(40) == "binding \\x1b[2J: 40 s, 20 of 20 MiB (100 %)"


def test_commands_say_how_far_they_are(root, tmp_path, monkeypatch, capsys):
    """Each has work that is counted, up to the end."""
    last = {}

    class Kept(Progress):
        def __call__(self, done, total):
            assert 0 < done <= total and total == last.get(self._what, (0, total))[1]
            last[self._what] = done, total

    for module in (cli, sys.modules["diffattn.quantization"]):
        monkeypatch.setattr(module, "Progress", Kept)
    tiny, text = str(root / "examples/tiny-lm"), tmp_path / "text"
    text.write_text("In the beginning God created the heaven and the earth.")
    assert cli.main(["eval", tiny, str(text), "--window", "8", "--threads", "1"]) == 0
    assert cli.main(["bench", tiny, "--prompt-tokens", "4", "--max-new-tokens", "3", "--runs", "1", "--batch", "2", "--threads", "1"]) == 0
    assert cli.main(["quantize", tiny, str(tmp_path / "narrow"), "--weights", "int8"]) == 0
    assert set(last) == {"code and weights", "evaluating", "measuring", "quantizing"}
    assert all(done == total for done, total in last.values())


def test_functions_tell_their_caller(root, tmp_path):
    model, steps = load(root / "examples/tiny-lm", threads=1), []
    model.bits_per_character("In the beginning", 4, progress=lambda *at: steps.append(at))
    assert steps[-1][0] == steps[-1][1] and np.all(np.diff([done for done, _ in steps]) > 0)
    steps.clear()
    quantize(root / "examples/tiny-lm", tmp_path / "narrow", "int4", progress=lambda *at: steps.append(at))
    assert steps[-1][0] == steps[-1][1] and np.all(np.diff([done for done, _ in steps]) > 0)


def test_the_runner(build_dir, root, tmp_path):
    """It says nothing where standard error is no terminal, and on one has a line that is gone at the end."""
    inputs = [*["random:1x8x64x64xf32"] * 4, "random:1x8x64x128xf32", "8xf32=0.5"]
    run = [build_dir / "bin/diffattn-run", root / "examples/attention.mlir", *[f"--input={one}" for one in inputs], "--quiet", "--threads=1",
           f"--cache-dir={tmp_path}"]
    main, side = pty.openpty()
    subprocess.run(run, capture_output=True, check=True)  # compiles
    quiet, process = (subprocess.Popen([*run, "--bench=1000000000"], stderr=stream, stdout=subprocess.DEVNULL) for stream in (subprocess.PIPE, side))
    os.close(side)
    text = b""
    with contextlib.suppress(OSError):  # what a terminal without a writer gives
        while part := os.read(main, 1 << 12):
            text += part
            if text.count(b"\r\x1b[Ktiming calls: ") >= 2:
                process.kill()
    process.wait()
    quiet.kill()
    assert quiet.communicate()[1] == b"", "which began before the other one"
    os.close(main)
    assert re.fullmatch(rb"(\r\x1b\[Ktiming calls: [0-9]+ s)+", text)
