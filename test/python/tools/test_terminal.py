"""Names and text that come from elsewhere, and streams that are closed, full, or of another encoding."""
import json
import os
import pty
import shutil
import struct
import subprocess
import sys

import pytest

from paths import ROOT

from diffattn import cli, errors
from diffattn.text import printable, printable_generated, printable_name

TINY = ROOT / "examples" / "tiny-lm"
EVIL = "\x1b]0;owned\x07\x9b31m\x7f\r\u202e"
GENERATE = ["generate", str(TINY), "--prompt", "In the", "--max-new-tokens", "3"]


def diffattn_command(*arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, "-m", "diffattn", *arguments], cwd=ROOT / "python", timeout=120, **options)


def clean(text) -> bool:
    text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    return not any(c in text for c in EVIL if not c.isprintable())


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny"
    shutil.copytree(TINY, folder)
    return folder


def test_what_is_escaped():
    assert printable("Größe λ 大 😀\ta\nb") == "Größe λ 大 😀\ta\nb"
    assert printable("\x1b[2J\x9b\u202e\ud800\U000e0041") == "\\x1b[2J\\x9b\\u202e\\ud800\\U000e0041"
    assert printable("\udcff") == "\\xff", "the byte that a path or an argument had"
    assert printable_name("a\nb\x85") == "a\\nb\\x85"
    # Text of a model keeps the marks that its language needs.
    assert printable_generated("می\u200cخواهم \U0001f468\u200d\U0001f469\n\x1b[31m") == "می\u200cخواهم \U0001f468\u200d\U0001f469\n\\x1b[31m"


def test_messages_of_exceptions_are_clean():
    for kind in (errors.ConfigError, errors.OutputError, errors.RunError):
        assert str(kind("a\x1b[31m\nb")) == "a\\x1b[31m\nb"


# ---- names in files -----------------------------------------------------------------------------------------------------


def with_tensor(path, name):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8: 8 + size])
    header[name] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data) - 8 - size] * 2}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])


def test_names_of_tensors(tiny, capsys):
    with_tensor(tiny / "model.safetensors", "a\n" + EVIL)
    assert cli.main(["info", str(tiny)]) == 0
    output = capsys.readouterr().out
    assert clean(output) and "a\\n\\x1b]0;owned\\x07\\x9b31m\\x7f\\x0d\\u202e" in output


@pytest.mark.parametrize("place", ["tensor", "key", "dtype", "config", "shard"])
def test_errors_about_names(place, tiny, capsys):
    data = (tiny / "model.safetensors").read_bytes()
    if place == "config":
        (tiny / "config.json").write_text(json.dumps({"model_type": EVIL}))
    elif place == "shard":
        (tiny / "model.safetensors").unlink()
        (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EVIL: EVIL}}))
    else:
        entry = {"tensor": {"dtype": "F32", "shape": [4], "data_offsets": [0, 7]}, "key": {EVIL: 1},
                 "dtype": {"dtype": EVIL, "shape": [4], "data_offsets": [0, 16]}}[place]
        text = json.dumps({EVIL: entry}).encode()
        (tiny / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[-16:])
    assert cli.main(["generate", str(tiny)]) == errors.WeightsError.code
    assert clean(capsys.readouterr().err)


def test_names_of_the_runner(build_dir, tmp_path):
    (tmp_path / "m.mlir").write_text('''
ml_program.global private @"w\\1B[31m\\0A"(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32>
func.func @"f\\1B[2J\\0A"(%x: tensor<4xf32>) -> tensor<4xf32> {
  %w = ml_program.global_load_const @"w\\1B[31m\\0A" : tensor<4xf32>
  return %w : tensor<4xf32>
}''')
    text = json.dumps({"w": {"dtype": "\x1b[31m\n", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "bad.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    text = json.dumps({"w\x1b[31m\n": {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}}).encode()
    (tmp_path / "worse.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(17))
    evil = tmp_path / f"no{EVIL}file.mlir"
    (tmp_path / "parse.mlir").write_text("func.func @f() { \x1b[31m }")
    run = [build_dir / "bin" / "diffattn-run", "--no-cache"]
    for arguments, code, expected in [
        (["m.mlir", "--info"], 0, "function f\\x1b[2J\\x0a\n"),
        (["m.mlir", "--info"], 0, "weight w\\x1b[31m\\x0a: "),
        (["m.mlir", "--entry=g"], 2, "f\\x1b[2J"),
        (["m.mlir", "--weights=bad.safetensors", "--input=4xf32=0"], 5, "\\x1b[31m\\x0a"),
        (["m.mlir", "--weights=worse.safetensors", "--input=4xf32=0"], 5, "w\\x1b[31m\\x0a"),
        (["parse.mlir"], 3, "\\x1b[31m"),
        ([evil], 2, "no\\x1b]0;owned"),
    ]:
        done = subprocess.run([*run, *arguments], cwd=tmp_path, capture_output=True, timeout=60)
        shown = done.stdout + done.stderr
        assert done.returncode == code and expected in shown.decode() and clean(shown), shown


def test_warnings_and_remarks(build_dir, tmp_path):
    """The compiler's warning with a function's name, and the cache's with a file's."""
    folder = tmp_path / "cache\x1b[31m"
    source = tmp_path / "a\x1b[31mb.mlir"
    source.write_text("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    tool = build_dir / "bin" / "diffattn-run"
    assert subprocess.run([tool, source, f"--cache-dir={folder}"], capture_output=True, timeout=60).returncode == 0
    done = subprocess.run([tool, "cache", "ls", f"--cache-dir={folder}"], capture_output=True, timeout=60)
    assert b"a\\x1b[31mb.mlir" in done.stdout and b"cache\\x1b[31m" in done.stdout and clean(done.stdout)


# ---- what a model writes ------------------------------------------------------------------------------------------------


def hostile_tokenizer(path):
    """Every token that was text is an escape sequence now."""
    tree = json.loads(path.read_text())
    vocabulary = tree["model"]["vocab"]
    tree["added_tokens"] = tree.get("added_tokens") or []
    tree["decoder"] = {"type": "Sequence", "decoders": [tree["decoder"], {"type": "Replace", "pattern": {"String": "e"},
                                                                            "content": "\x1b[31m\x9b\x07"}]}
    assert vocabulary
    path.write_text(json.dumps(tree))


def test_generated_text_of_a_hostile_tokenizer(tiny):
    hostile_tokenizer(tiny / "tokenizer.json")
    command = ["generate", str(tiny), "--prompt", "In the beginning", "--max-new-tokens", "20"]
    done = diffattn_command(*command)
    assert done.returncode == 0 and b"\x1b[31m" in done.stdout, "a pipe gets what the model wrote"
    ours, theirs = pty.openpty()
    try:
        done = diffattn_command(*command, stdout=theirs)
        os.close(theirs)
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
    assert done.returncode == 0 and b"\\x1b[31m\\x9b\\x07" in shown and b"\x1b" not in shown and b"\x07" not in shown


# ---- streams ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [GENERATE, ["info", str(TINY)], ["info", str(TINY), "--json"], ["build", str(TINY)],
                                     ["--help"], ["--version"]])
def test_full_standard_output(command):
    with open("/dev/full", "w") as full:
        done = diffattn_command(*command, stdout=full, text=True)
    assert done.returncode == errors.OutputError.code
    assert done.stderr.count("diffattn: error: standard output: ") == 1 and "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


@pytest.mark.parametrize("command", [GENERATE, ["info", str(TINY)], ["build", str(TINY)]])
def test_closed_streams(command):
    script = 'exec "$@" {}'

    def run(redirect):
        return subprocess.run(["bash", "-c", script.format(redirect), "bash", sys.executable, "-m", "diffattn", *command],
                              cwd=ROOT / "python", capture_output=True, text=True, timeout=120)

    done = run(">&-")
    assert done.returncode == errors.OutputError.code and "Bad file descriptor" in done.stderr and "Traceback" not in done.stderr
    done = run("2>&-")
    assert done.returncode == 0 and done.stdout and "diffattn:" not in done.stdout, "messages do not become results"
    assert run("2>/dev/full").returncode == 0
    assert run("<&-").returncode == 0


POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("locale", [POSIX, {"LC_ALL": "POSIX"}, {"LC_ALL": "C.UTF-8"}])
def test_locales(locale, tiny):
    """Arguments are UTF-8 in every locale; what its encoding lacks is printed as escapes."""
    folder = tiny.rename(tiny.with_name("größe"))
    environment = {**os.environ, **locale}
    done = diffattn_command("generate", os.fsencode(folder), "--prompt", "Größe 大".encode(), "--stop", "ß".encode(),
                            "--max-new-tokens", "3", env=environment)
    assert done.returncode == 0, done.stderr
    expected = "Größe 大".encode() if locale is not POSIX else b"Gr\\xf6\\xdfe \\u5927"
    assert done.stdout.startswith(expected)
    done = diffattn_command("generate", os.fsencode(folder) + b"-gone", env=environment)
    assert done.returncode == 5 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--prompt", "--stop"])
def test_arguments_that_are_no_utf8(option):
    done = diffattn_command(*GENERATE, option, b"a\xff")
    assert done.returncode == errors.UsageError.code and b"Traceback" not in done.stderr
    assert f"diffattn: error: {option}: expected UTF-8 text".encode() in done.stderr and b"where byte 1 is 0xff" in done.stderr


def test_paths_that_are_no_utf8(tiny, tmp_path):
    odd = os.fsencode(tmp_path) + b"/a\xffb"
    os.rename(tiny, odd)
    done = diffattn_command("generate", odd, "--prompt", "In", "--max-new-tokens", "2")
    assert done.returncode == 0, done.stderr
    assert b"compiling " in done.stderr and b"a\\xffb" in done.stderr
    done = diffattn_command("build", odd, "-o", odd + b"/\xfe.mlir")
    assert done.returncode == 0 and os.path.exists(odd + b"/\xfe.mlir") and b"\\xfe.mlir" in done.stderr
    done = diffattn_command("generate", odd + b"\x1b[31m")
    assert done.returncode == 5 and b"a\\xffb\\x1b[31m" in done.stderr


def test_text_of_half_characters():
    import diffattn

    model = diffattn.load(TINY)
    for call in (lambda: list(model.generate("a\udcff", 2)), lambda: model.bits_per_character("\ud800")):
        with pytest.raises(errors.UsageError, match="expected text that UTF-8 can encode"):
            call()
