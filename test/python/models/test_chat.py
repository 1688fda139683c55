"""The command `chat`: turns, a system prompt, what is forgotten, and what Ctrl-C ends."""
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from paths import ROOT
from serving_client import TINY

import diffattn
from diffattn.cli import main

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("chat")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(TINY / name, place)
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": "<|bos|>"}))
    return place


def start(folder, *options):
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    # A test run in the background of a shell hands on that interrupts are ignored, and a command rightly keeps to it.
    return subprocess.Popen([sys.executable, "-m", "diffattn", "chat", str(folder), "--threads=1", *options], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path},
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def talk(folder, lines, *options):
    process = start(folder, *options)
    out, err = process.communicate("".join(f"{line}\n" for line in lines), timeout=120)
    return process.returncode, out, err


def test_turns(folder):
    """An answer follows all that was said before it, also the system prompt."""
    model = diffattn.load(folder, batch_invariant=True)
    code, out, _ = talk(folder, ["Who is he?", "", "And she?", "/reset", "Who is he?", "/exit", "not read"], "--max-new-tokens=9", "--temperature=0",
                        "--system=Be kind.", "--context=300")

    def answer(text):
        return "".join(model.generate(text, 9, temperature=0))

    first = "system: Be kind.\nuser: Who is he?\n"
    one = answer(first)
    two = answer(f"{first}assistant: {one}\nuser: And she?\n")
    assert (code, out) == (0, f"{one}\n{two}\n{one}\n")


def test_seeds(folder):
    once, again, other = (talk(folder, ["a", "a"], "--max-new-tokens=12", "--temperature=1", f"--seed={seed}")[1] for seed in (1, 1, 2))
    assert once == again != other


def test_what_does_not_fit_is_forgotten_or_refused(folder):
    code, out, err = talk(folder, ["word " * 50, "word " * 60, "word " * 400, "Who?"], "--max-new-tokens=5", "--context=128")
    assert code == 0 and len(out.splitlines()) >= 3
    assert "1 earlier turns are forgotten, as the context is full" in err
    assert "expected at most 127 tokens, but got" in err


def test_an_interrupt_ends_the_answer_and_not_the_program(folder):
    process = start(folder, "--temperature=1", "--context=100000", "--cache-memory=300")
    process.stdin.write("Who?\n")
    process.stdin.flush()
    process.stdout.read(20)  # it writes
    process.send_signal(signal.SIGINT)
    while "the answer was ended" not in process.stderr.readline():
        assert process.poll() is None
    process.stdin.write("/exit\n")
    process.stdin.flush()
    assert process.wait(60) == 0
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_without_a_template(capsys):
    assert main(["chat", str(TINY)]) == 2
    assert "expected a chat template, but the checkpoint has none; name one with --chat-template" in capsys.readouterr().err
