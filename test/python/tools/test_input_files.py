"""Input from files, pipes and devices: limits, no waiting, and errors that say what to do next."""
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from paths import ROOT

import malformed

TINY = ROOT / "examples" / "tiny-lm"
IDENTITY = "func.func @same(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}\n"
CALL = ["--input=2xf32=1"]


@pytest.fixture
def tool(build_dir, tmp_path):
    def run(*arguments, stdin=subprocess.DEVNULL, timeout=60, **options):
        return subprocess.run([build_dir.resolve() / "bin" / "diffattn-run", *map(str, arguments), "--no-cache"], cwd=tmp_path, text=True,
                              capture_output=True, timeout=timeout, stdin=None if "input" in options else stdin, **options)

    return run


@pytest.fixture
def command(tmp_path):
    def run(*arguments, stdin=subprocess.DEVNULL, **options):
        return subprocess.run([sys.executable, "-m", "diffattn", *map(str, arguments)], cwd=ROOT / "python", text=True, capture_output=True,
                              timeout=60, stdin=None if "input" in options else stdin, **options)

    return run


@pytest.fixture
def folder(tmp_path):
    """A copy of the example's folder, to be changed."""
    return shutil.copytree(TINY, tmp_path / "model")


def sparse(path, size):
    """A file that says it has so many bytes and takes none."""
    path.unlink(missing_ok=True)
    with open(path, "wb") as file:
        file.truncate(size)


def replace(path, kind):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


# ---- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [17 << 30, 1 << 40])
def test_modules_have_a_limit(tool, tmp_path, size):
    sparse(tmp_path / "model.mlir", size)
    done = tool("model.mlir")
    assert done.returncode == 2 and f"model.mlir: expected at most {16 << 30} bytes, but got {size}" in done.stderr


@pytest.mark.parametrize("name, limit", [("config.json", 16 << 20), ("generation_config.json", 16 << 20), ("tokenizer.json", 1 << 30)])
def test_files_of_models_have_limits(command, folder, name, limit):
    sparse(folder / name, limit + 1)
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode == 5 and f"{name}: expected at most {limit} bytes, but got {limit + 1}" in done.stderr
    assert "compiling" not in done.stderr


def test_an_index_has_a_limit(command, tool, folder, tmp_path):
    (folder / "model.safetensors").unlink()
    sparse(folder / "model.safetensors.index.json", 1 << 40)
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode == 5 and "index.json: expected at most 100000000 bytes" in done.stderr
    (tmp_path / "model.mlir").write_text(malformed.MODEL)
    done = tool("model.mlir", f"--weights={folder}")
    assert done.returncode == 5 and "index.json: expected at most 100000000 bytes" in done.stderr


def test_texts_have_a_limit(command, tmp_path):
    sparse(tmp_path / "text", (4 << 30) + 1)
    for arguments in (("eval", TINY, tmp_path / "text"), ("generate", TINY, "--prompt-file", tmp_path / "text")):
        done = command(*arguments)
        assert done.returncode == 6 and f"text: expected at most {4 << 30} bytes" in done.stderr and "compiling" not in done.stderr


def test_large_inline_constants_are_read(tool, tmp_path):
    """Far below the limit, and far above a page or a pipe's buffer."""
    values = ", ".join(["1.0"] * 300_000)
    (tmp_path / "model.mlir").write_text(f"func.func @f() -> tensor<300000xf32> {{\n  %c = arith.constant dense<[{values}]> : "
                                         "tensor<300000xf32>\n  return %c : tensor<300000xf32>\n}\n")
    assert tool("model.mlir", "--emit=input", "-o", os.devnull).returncode == 0
    with open(tmp_path / "model.mlir") as file, subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) as pipe:
        assert tool("-", "--emit=input", "-o", os.devnull, stdin=pipe.stdout).returncode == 0


# ---- byte order marks, and files that are others ------------------------------------------------------------------------

MARK = b"\xef\xbb\xbf"


def texts_with_a_mark(folder, tmp_path):
    """One text without and with a mark, as a file of prompts and for `eval`."""
    for name, mark in (("plain", b""), ("marked", MARK)):
        (tmp_path / name).write_bytes(mark + b"In the beginning\r\nAnd the king said\r\n")
    return tmp_path / "plain", tmp_path / "marked"


def test_a_byte_order_mark_is_no_text(command, folder, tmp_path):
    plain, marked = texts_with_a_mark(folder, tmp_path)
    generate = ("generate", folder, "--max-new-tokens", 4, "--prompt-file")
    expected, scored = command(*generate, plain).stdout, command("eval", folder, plain).stdout
    assert "\n---\n" in expected and "bits per character" in scored
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes(MARK + (folder / name).read_bytes())
    (folder / "generation_config.json").write_bytes(MARK + b"{}")
    assert command(*generate, marked).stdout == expected and command("eval", folder, marked).stdout == scored
    assert command(*generate, "-", input=marked.read_bytes().decode()).stdout == expected
    assert command("eval", folder, "-", input=marked.read_bytes().decode()).stdout == scored
    inner = tmp_path / "inner"
    inner.write_bytes(b"In the " + MARK + b"beginning\n")  # elsewhere it is a character
    assert command(*generate, inner).stdout.startswith("In the \ufeffbeginning")
    marked.write_bytes(MARK)
    assert "marked: expected a text, but got an empty file" in command("eval", folder, marked).stderr


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_an_error(command, tmp_path, encoding):
    (tmp_path / "text").write_bytes("\ufeffIn the beginning".encode(encoding))
    for arguments in (("eval", TINY, tmp_path / "text"), ("generate", TINY, "--prompt-file", tmp_path / "text")):
        done = command(*arguments)
        assert done.returncode == 6 and "expected UTF-8 text, but got the byte order mark of UTF-16" in done.stderr


def test_an_index_may_have_a_mark(command, tool, folder, tmp_path):
    names = list(diffattn_names(folder))
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(MARK + json.dumps({"weight_map": dict.fromkeys(names, "part.safetensors")}).encode())
    assert command("info", folder).returncode == 0
    assert command("build", folder, "-o", tmp_path / "m.mlir").returncode == 0
    assert tool("m.mlir", "--entry=forward", f"--weights={folder}", "--input=1x2xi64=0,40").returncode == 0


def diffattn_names(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as file:
        return list(file.keys())


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234\n"
PAGE = b"<!DOCTYPE html>\n<html><body>404</body></html>"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("content, kind", [(POINTER, "a pointer of Git LFS, which stands for the file"), (PAGE, "a page of HTML"),
                                           (MARK + b"\n" + PAGE, "a page of HTML"), (b"<?xml version='1.0'?><Error/>", "XML")])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_files_that_stand_for_others(command, folder, name, content, kind):
    (folder / name).write_bytes(content)
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode != 0 and f"{name}: expected " in done.stderr and f"but got {kind}" in done.stderr


@pytest.mark.parametrize("content, kind", [(b"Not Found, and why it is not: read the page", "text that begins with 'Not Found"),
                                           (b"PK\x03\x04" + b"\1" * 60, "a zip archive, as torch.save writes it"),
                                           (b"\x1f\x8b" + b"\x91" * 60, "data compressed by gzip"), (b"\xff" * 60, "")])
def test_weights_that_are_something_else(command, folder, content, kind):
    (folder / "model.safetensors").write_bytes(content)
    done = command("generate", folder, "--prompt", "And")
    expected = f"expected a safetensors file, but got {kind}" if kind else "expected a header of at most"
    assert done.returncode == 5 and f"model.safetensors: {expected}" in done.stderr


# ---- pipes ------------------------------------------------------------------------------------------------------------


def test_modules_come_from_pipes(tool, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert tool("-", *CALL, input=IDENTITY).returncode == 0
    assert tool("/dev/stdin", *CALL, input=IDENTITY).returncode == 0
    (tmp_path / "model.mlir").write_text(IDENTITY)
    with open(tmp_path / "model.mlir") as file:
        assert tool("-", *CALL, stdin=file).returncode == 0
    with subprocess.Popen(["cp", tmp_path / "model.mlir", tmp_path / "pipe"]):
        done = tool("pipe", *CALL)
    assert done.returncode == 0 and "result 0" in done.stdout


def test_modules_come_from_substituted_processes(build_dir, tmp_path):
    (tmp_path / "model.mlir").write_text(IDENTITY)
    run = build_dir.resolve() / "bin" / "diffattn-run"
    done = subprocess.run(["bash", "-c", f"{run} <(cat model.mlir) --input=2xf32=1,2 --no-cache"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0 and "[1, 2]" in done.stdout, done.stderr
    done = subprocess.run(["bash", "-c", f"{run} <(echo oops) --no-cache"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and done.stderr.startswith("error (ir): /dev/fd/"), done.stderr


def test_a_device_is_no_module(tool):
    done = tool("/dev/zero")
    assert done.returncode == 2 and "/dev/zero: expected a file or a pipe, but got a device" in done.stderr
    with open("/dev/zero") as zero:
        assert "-: expected a file or a pipe, but got a device" in tool("-", stdin=zero).stderr


def test_prompts_come_from_pipes(command, tmp_path):
    expected = command("generate", TINY, "--prompt", "And the king", "--prompt", "The LORD", "--max-new-tokens", 3)
    lines = "And the king\nThe LORD\n"
    assert expected.returncode == 0
    for name in ("-", "/dev/stdin"):
        for text in (lines, lines.replace("\n", "\r\n"), lines[:-1]):
            assert command("generate", TINY, "--prompt-file", name, "--max-new-tokens", 3, input=text).stdout == expected.stdout
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lines").write_text(lines)
    with subprocess.Popen(["cp", tmp_path / "lines", tmp_path / "pipe"]):
        assert command("generate", TINY, "--prompt-file", tmp_path / "pipe", "--max-new-tokens", 3).stdout == expected.stdout


def test_eval_reads_pipes(command, tmp_path):
    text = (TINY / "heldout.txt").read_text()[:500]
    (tmp_path / "text").write_text(text)
    expected = command("eval", TINY, tmp_path / "text").stdout
    assert expected.startswith("bits per character")
    for name in ("-", "/dev/stdin"):
        assert command("eval", TINY, name, input=text).stdout == expected
    assert "expected a file or a pipe, but got a device" in command("eval", TINY, "/dev/zero").stderr


def test_a_folder_is_no_text(command, tmp_path):
    for arguments in (["eval", TINY, tmp_path], ["generate", TINY, "--prompt-file", tmp_path]):
        done = command(*arguments)
        assert done.returncode == 6 and f"{tmp_path}: expected a file or a pipe, but got a folder" in done.stderr, done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind, got", [("pipe", "a pipe"), ("device", "a device"), ("folder", "a folder")])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"])
def test_no_pipe_is_waited_for(command, folder, name, kind, got):
    replace(folder / name, kind)
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode == 5 and f"{name}: expected a regular file, but got {got}" in done.stderr and "compiling" not in done.stderr


@pytest.mark.parametrize("kind, got", [("pipe", "a pipe"), ("device", "a device"), ("folder", "a folder")])
def test_no_pipe_is_waited_for_by_the_runner(tool, tmp_path, kind, got):
    (tmp_path / "model.mlir").write_text(malformed.MODEL)
    replace(tmp_path / "x.npy", kind)
    done = tool("model.mlir", "--input=x.npy")
    assert done.returncode == 6 and f"argument 0 of 'forward': x.npy: expected a regular file, but got {got}" in done.stderr
    if kind != "folder":
        replace(tmp_path / "w.safetensors", kind)
        done = tool("model.mlir", "--weights=w.safetensors", "--input=2x4xf32=1")
        assert done.returncode == 5 and f"w.safetensors: expected a regular file, but got {got}" in done.stderr
    replace(tmp_path / "i.json", kind)
    done = tool("model.mlir", f"--weights={tmp_path}/i.json", "--input=2x4xf32=1")
    assert done.returncode == 5 and ("i.json: expected a regular file" in done.stderr or kind == "folder")


# ---- the command line -------------------------------------------------------------------------------------------------


def test_prompts_that_are_no_text(command):
    done = command("generate", TINY, "--prompt", os.fsdecode(b"And \xff"))
    assert done.returncode == 2 and re.search(r"--prompt: expected .*UTF-8.*, but got .*\\udcff", done.stderr)
    done = subprocess.run([sys.executable, "-m", "diffattn", "generate", TINY, "--prompt-file", "-"], cwd=ROOT / "python", input=b"And\xff\n",
                          capture_output=True, timeout=60)
    assert done.returncode == 6 and b"standard input: expected UTF-8 text" in done.stderr


@pytest.mark.parametrize("text, line", [("a\n\nb\n", 2), ("\na\n", 1), ("a\n \t\n", 2), ("a\n\n", 2)])
def test_blank_prompts(command, text, line):
    done = command("generate", TINY, "--prompt-file", "-", input=text)
    assert done.returncode == 6 and f"expected a prompt in each line, but line {line} is blank" in done.stderr


def test_prompts_from_two_places(command):
    done = command("generate", TINY, "--prompt", "a", "--prompt-file", "-", input="b\n")
    assert done.returncode == 2 and "expected --prompt or --prompt-file, but got both" in done.stderr
    done = command("generate", TINY, "--prompt", "And", "--max-new-tokens", 1, input="b\n")
    assert done.returncode == 0 and "standard input is not read; --prompt-file - takes prompts from it" in done.stderr
    assert "standard input" not in command("generate", TINY, "--prompt", "And", "--max-new-tokens", 1).stderr


INTEGERS = ["0", "-1", "1.7", "1e3", "nan", "", "x", "1_0", "\u0663", "99999999999999999999", "10" * 40]
NUMBERS = ["nan", "inf", "-inf", "1e999", "", "x", "1_0", "0x1p3", "\u0663"]


@pytest.mark.parametrize("words, values", [
    (["generate", TINY, "--threads"], [*INTEGERS, "4097", "1000000000"]), (["generate", TINY, "--max-new-tokens"], INTEGERS),
    (["generate", TINY, "--top-k"], INTEGERS[1:]), (["generate", TINY, "--seed"], INTEGERS[1:]),
    (["generate", TINY, "--temperature"], [*NUMBERS, "-1"]), (["generate", TINY, "--top-p"], [*NUMBERS, "0", "1.5", "-1"]),
    (["generate", TINY, "--repetition-penalty"], [*NUMBERS, "0", "-1"]), (["generate", TINY, "--stop"], [""]),
    (["eval", TINY, TINY / "heldout.txt", "--window"], [*INTEGERS, "1"]), (["bench", TINY, "--batch"], INTEGERS),
    (["bench", TINY, "--runs"], INTEGERS), (["bench", TINY, "--prompt-tokens"], INTEGERS), (["bench", TINY, "--seed"], INTEGERS[1:]),
    (["bundle", TINY, "-o", "nowhere", "--threads"], ["4"]), (["generate", TINY, "--dtype"], ["f64", ""]),
    (["generate", TINY, "--target"], ["tpu", "", "cpu:"]), (["generate", TINY, "--weights"], ["."]),
], ids=lambda value: value[-1][2:] if isinstance(value, list) and str(value[-1]).startswith("--") else "")
def test_wrong_options(words, values, monkeypatch, capsys):
    """In this process, since there are many."""
    from diffattn import cli

    for value in values:
        try:
            code = cli.main([str(word) for word in words[:-1]] + [f"{words[-1]}={value}"])
        except SystemExit as end:  # as argparse does
            code = end.code
        error = capsys.readouterr().err
        assert code == 2 and "expected" in error or "invalid choice" in error, (value, error)
        assert words[-1] in error or words[-1][2:].replace("-", "_") in error


@pytest.mark.parametrize("option, value, message", [
    ("--rtol", "nan", "--rtol: expected a number of at least 0"), ("--atol", "-1", "--atol: expected a number of at least 0, but got -1"),
    ("--threads", "-1", "--threads: expected a number from 0 to 4096, but got '-1'"),
    ("--threads", "1000000000", "--threads: expected a number from 0 to 4096"), ("--threads", "1.7", "from 0 to 4096, but got '1.7'"),
    ("--bench", "1.5", "'1.5' value invalid"), ("--seed", "-1", "'-1' value invalid"),
    ("--raise", "maybe", "--raise: expected true or false, but got 'maybe'"), ("--target", "cpu:", "expected a target with a name after ':'"),
    ("--copy-weights", "true", "--copy-weights: expected it with --emit=bundle"), ("--from", "ptx", "expected input or gpu"),
])
def test_wrong_options_of_the_runner(tool, tmp_path, option, value, message):
    (tmp_path / "model.mlir").write_text(IDENTITY)
    done = tool("model.mlir", f"{option}={value}", *CALL)
    assert done.returncode in (1, 2) and message in done.stderr, done.stderr


@pytest.mark.parametrize("values", ["2xf32=1e39", "2xf32=1,-1e400", "2xf64=1e400", "2xf16=70000", "2xbf16=3.4e38", "2xi8=128", "2xui8=-1", "2xi32=2147483648",
                                    "2xi1=2", "2xi64=9223372036854775808", "random:2xf16:0:70000", "random:2xf32:-1e39:0"])
def test_elements_that_no_type_holds(tool, tmp_path, values):
    dtype = re.search(r"2x([a-z0-9]+)", values)[1]
    (tmp_path / "model.mlir").write_text(f"func.func @f(%a: tensor<2x{dtype}>) {{\n  return\n}}\n")
    done = tool("model.mlir", f"--input={values}")
    assert done.returncode == 2 and f"argument 0 of 'f': --input={values}: expected" in done.stderr, done.stderr
    for right in {"f32": ["inf", "-inf", "nan", "3.4e38"], "f16": ["65504", "inf"], "bf16": ["3.38e38"]}.get(dtype, []):
        assert tool("model.mlir", f"--input=2x{dtype}={right}").returncode == 0


@pytest.mark.parametrize("option", ["--input=2xf32=1", "--output=o.npy", "--expected=o.npy", "--check=unfused", "--bench=3"])
def test_options_of_calls_do_not_go_with_emit(tool, tmp_path, option):
    (tmp_path / "model.mlir").write_text(IDENTITY)
    done = tool("model.mlir", "--emit=input", option)
    assert done.returncode == 2 and f"{option.partition('=')[0]}: expected none with --emit" in done.stderr


def test_the_runner_names_arguments(tool, tmp_path):
    (tmp_path / "model.mlir").write_text("func.func @f(%a: tensor<2xf32>, %b: tensor<?x3xi64>) {\n  return\n}\n")
    for inputs, message in [(["2xf32=1", "2x4xi64=1"], "argument 1 of 'f': expected tensor<?x3xi64>, but got 2x4xi64 (size 4 on axis 1, not 3)"),
                            (["2xf32=1", "2xi64=1"], "argument 1 of 'f': expected tensor<?x3xi64>, but got 2xi64 (rank 1, not 2)"),
                            (["2xf32=1", "2x3xf32=1"], "but got 2x3xf32 (element type f32, not i64)"),
                            (["2xf32=1", "2x3xi64=1.5"], "argument 1 of 'f': --input=2x3xi64=1.5: expected a value of i64"),
                            (["gone.npy"], "argument 0 of 'f': gone.npy: expected a readable file"),
                            ([], "because argument 1 is tensor<?x3xi64>")]:
        done = tool("model.mlir", *[f"--input={text}" for text in inputs])
        assert done.returncode in (2, 6) and message in done.stderr, done.stderr


# ---- before anything is compiled --------------------------------------------------------------------------------------


def changed_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize("change, code, message", [
    (lambda f: changed_config(f, intermediate_size=json.loads((f / "config.json").read_text())["intermediate_size"] + 8), 5,
     r"weight 'model.layers.0.mlp.gate_proj.weight': expected shape \[\d+, \d+\], but got \[\d+, \d+\]"),
    (lambda f: changed_config(f, num_hidden_layers=99), 5, "more are missing"),
    (lambda f: (f / "tokenizer.json").unlink(), 5, "expected a tokenizer.json, because the command works on text"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), 5, "expected a tokenizer of Hugging Face's tokenizers"),
    (lambda f: changed_config(f, vocab_size=8), 5, "tokenizer.json: expected tokens below the config's vocab_size, 8, but the text has"),
    (lambda f: (f / "generation_config.json").write_text('{"temperature": "hot"}'), 5, "'temperature' to be a finite number"),
])
def test_faults_are_told_before_compiling(command, folder, change, code, message):
    change(folder)
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode == code and re.search(message, done.stderr) and done.stdout == "", done.stderr
    # The runtime's reason for a weight comes from the same check, which is made before the compiler is called.
    assert not re.search(r"compiling .* [0-9.]+ s", done.stderr)


def test_the_kind_of_model_is_told_before_compiling(command, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "diff_attention", "hidden_size": 8, "num_attention_heads": 2}))
    from diffattn import models

    module = models.build(json.loads((folder / "config.json").read_text()))
    header, data = {}, b""
    for name, (shape, _) in module.file_types().items():
        size = 4 * int(np.prod(shape, dtype=int))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += bytes(size)
    (folder / "model.safetensors").write_bytes(malformed.safetensors(header, data))
    (tmp_path / "text").write_text("text")
    for arguments in (["generate", folder], ["eval", folder, tmp_path / "text"], ["bench", folder]):
        done = command(*arguments)
        assert done.returncode == 6 and "expected a decoder, but got diff_attention" in done.stderr and "compiling" not in done.stderr


def test_weights_are_checked_before_the_runner_compiles(tool, tmp_path):
    """A module that no pass lowers, whose weights do not fit either: the weights are told."""
    (tmp_path / "model.mlir").write_text(malformed.MODEL.replace("func.func @forward", "func.func private @nowhere()\nfunc.func @forward")
                                         .replace("  %c0 =", "  func.call @nowhere() : () -> ()\n  %c0 =", 1))
    wrong = malformed.changed(w=malformed.entry("F32", [4, 3], 0, 48))
    (tmp_path / "w.safetensors").write_bytes(malformed.safetensors(wrong))
    for more in (["--input=2x4xf32=1"], ["--emit=bundle", "-o", "b"]):
        done = tool("model.mlir", "--weights=w.safetensors", "--reproducer=", *more)
        assert done.returncode == 5 and "expected shape [3, 4], but got [4, 3]" in done.stderr, done.stderr


def test_tensors_left_over_are_named(command, folder):
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    changed_config(folder, num_hidden_layers=layers - 1)
    done = command("generate", folder, "--prompt", "And", "--max-new-tokens", 1)
    assert done.returncode == 0
    # On a line of its own, not behind the progress.
    assert re.search(rf"^diffattn: warning: .*: \d+ of \d+ tensors are not used.*model\.layers\.{layers - 1}\.", done.stderr, re.M)
    assert "not used" not in command("generate", TINY, "--prompt", "And", "--max-new-tokens", 1).stderr


# ---- what to do next --------------------------------------------------------------------------------------------------


def test_a_hub_id_is_no_folder(command):
    for name in ("microsoft/some-model", "org.x/model-7B_v1.5"):
        done = command("generate", name)
        assert done.returncode == 5 and f"hf download {name} --local-dir" in done.stderr
    for name in ("/nowhere/at/all", "a/b/c", "nowhere", "x" * 5000):
        done = command("generate", name)
        assert done.returncode == 5 and "but there is none" in done.stderr and "hf download" not in done.stderr


def pytorch_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.onnx", "weights.pth"])
def test_weights_in_other_formats(command, tool, folder, tmp_path, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"\x80\x02}.")
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode == 5 and f"but got {name!r}, which is not read; write its tensors as safetensors" in done.stderr


def test_gguf(command, folder):
    """Beside a config.json, alone in a folder, and named itself: it is never read."""
    (folder / "model.safetensors").unlink()
    (folder / "m.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    way = "GGUF is not read; take the folder of safetensors that it was made from"
    for verb in ("generate", "info"):
        done = command(verb, folder)
        assert done.returncode == 5 and f"expected model.safetensors or model.safetensors.index.json, but got 'm.gguf'; {way}" in done.stderr
    (folder / "config.json").unlink()
    done = command("info", folder)
    assert done.returncode == 5 and f"expected config.json and safetensors, but got 'm.gguf'; {way}" in done.stderr
    done = command("info", folder / "m.gguf")
    assert done.returncode == 5 and f"but got a GGUF file; {way}" in done.stderr


def test_safetensors_under_another_name(command, folder):
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    done = command("generate", folder, "--prompt", "And")
    assert done.returncode == 5 and "but got 'weights.safetensors'; give it that name" in done.stderr


def test_weights_in_other_formats_for_the_runner(tool, tmp_path):
    (tmp_path / "model.mlir").write_text(malformed.MODEL)
    pytorch_archive(tmp_path / "pytorch_model.bin")
    for weights in ("pytorch_model.bin", "."):
        done = tool("model.mlir", f"--weights={weights}", "--input=2x4xf32=1")
        assert done.returncode == 5 and "safetensors.torch.save_file" in done.stderr, done.stderr
    for content, what in [(b"\x80\x04\x95" + b"\0" * 20, "a PyTorch archive"), (b"GGUF\3\0\0\0" + b"\0" * 20, "a GGUF file"),
                          (b"\x89HDF\r\n\x1a\n" + b"\0" * 20, "an HDF5 file")]:
        (tmp_path / "w.bin").write_bytes(content)
        done = tool("model.mlir", "--weights=w.bin", "--input=2x4xf32=1")
        assert done.returncode == 5 and f"expected a safetensors file, but got {what}" in done.stderr


@pytest.mark.parametrize("length", [640, 0x0380, 0x0480, 0x0580, 0x120108, 0x3A0908, 0x04034B50 & 0xFFFFFF, 0x54554747 & 0x3FFFFFF])
def test_no_header_is_taken_for_another_format(tool, tmp_path, length):
    """Lengths of headers whose bytes begin files of other formats."""
    text = json.dumps(malformed.GOOD).encode()
    (tmp_path / "model.mlir").write_text(malformed.MODEL)
    (tmp_path / "w.safetensors").write_bytes(malformed.safetensors(text + b" " * (length - len(text))))
    done = tool("model.mlir", "--weights=w.safetensors", "--input=2x4xf32=1")
    assert done.returncode == 0, done.stderr
    (tmp_path / "w.safetensors").write_bytes(malformed.safetensors(b"!" + b" " * (640 - 1)))
    assert "starts with '{'" in tool("model.mlir", "--weights=w.safetensors", "--input=2x4xf32=1").stderr


def test_an_onnx_file_is_no_module(tool, command, tmp_path):
    # ModelProto: ir_version 9, producer_name "pytorch", then the graph.
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09\x12\x07pytorch\x3a\x04\x0a\x02ab")
    done = tool("model.onnx")
    assert done.returncode == 3 and "but got an ONNX model; import the model with diffattn import MODEL.onnx" in done.stderr
    done = command("generate", tmp_path / "model.onnx")
    assert done.returncode == 5 and "but got an ONNX file; import it with: diffattn import" in done.stderr
    pytorch_archive(tmp_path / "model.pt2")
    assert "but got a PyTorch archive; save the model with torch.export.save and import it with diffattn import MODEL.pt2" in tool("model.pt2").stderr
    (tmp_path / "model.safetensors").write_bytes(malformed.SHARD)
    assert "but got a safetensors file; weights are named by --weights" in tool("model.safetensors").stderr


TORCH = """func.func @f(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
  return %a : !torch.vtensor<[2],f32>
}
"""
FOREIGN = {
    "type of torch": (TORCH, "torch: lower it with torch-mlir-opt"),
    "op of torch": ('func.func @f() {\n  %0 = torch.constant.int 1\n  return\n}\n', "torch: lower it with torch-mlir-opt"),
    "generic op of torch": ('func.func @f() {\n  %0 = "torch.constant.int"() : () -> i64\n  return\n}\n', "torch: lower it with"),
    "onnx in torch": ('func.func @f() {\n  %0 = torch.operator "onnx.Add"() : () -> i64\n  return\n}\n', "torch-mlir-opt"),
    "stablehlo": ("func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = stablehlo.add %a, %a : tensor<2xf32>\n"
                  "  return %0 : tensor<2xf32>\n}\n", "stablehlo: import it with diffattn import FILE"),
    "generic stablehlo": ('func.func @f(%a: tensor<2xf32>) {\n  %0 = "stablehlo.add"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>'
                          "\n  return\n}\n", "stablehlo: import it with diffattn import FILE"),
    "vhlo": ('func.func @f() {\n  "vhlo.return_v1"() : () -> ()\n}\n', "vhlo: import it with diffattn import FILE"),
    "mhlo": ("func.func @f(%a: tensor<2xf32>) {\n  %0 = mhlo.add %a, %a : tensor<2xf32>\n  return\n}\n", "mhlo: convert it with mlir-hlo-opt"),
    "op of tm_tensor": ("func.func @f(%x: tensor<2x24xi64>, %o: tensor<2x24xi64>, %a: tensor<2xi64>) {\n"
                        "  %0:2 = tm_tensor.scan dimension(1) inclusive(true) ins(%x : tensor<2x24xi64>)\n"
                        "    outs(%o, %a : tensor<2x24xi64>, tensor<2xi64>) {\n  ^bb0(%p: i64, %q: i64):\n    %s = arith.addi %p, %q : i64\n"
                        "    tm_tensor.yield %s : i64\n  } -> tensor<2x24xi64>, tensor<2xi64>\n  return\n}\n",
                        "tm_tensor: torch-mlir makes it of cumsum, sort, scatter and the like; export the model with what it computes by them"),
    "onnx": ('func.func @f(%a: tensor<2xf32>) {\n  %0 = "onnx.Add"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n  return\n}\n',
             "onnx: import the model with diffattn import MODEL.onnx"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_modules_of_other_dialects(tool, name):
    text, advice = FOREIGN[name]
    done = tool("-", input=text)
    assert done.returncode == 3 and f"the module holds {advice}" in done.stderr or name == "onnx in torch" and advice in done.stderr, done.stderr


def test_a_module_of_tosa(tool, build_dir):
    """MLIR reads it; what nothing lowers is its ops. The passes that are named make a module that runs."""
    text = ("func.func @f(%a: tensor<1x2x3xf32>, %b: tensor<1x3x2xf32>) -> tensor<1x2x2xf32> {\n"
            '  %z = "tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>\n'
            "  %c = tosa.matmul %a, %b, %z, %z : (tensor<1x2x3xf32>, tensor<1x3x2xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x2x2xf32>\n"
            "  %s = tosa.const_shape {values = dense<[1, 2, 2]> : tensor<3xindex>} : () -> !tosa.shape<3>\n"
            "  %d = tosa.reshape %c, %s : (tensor<1x2x2xf32>, !tosa.shape<3>) -> tensor<1x2x2xf32>\n"
            "  return %d : tensor<1x2x2xf32>\n}\n")
    done = tool("-", input=text)
    advice = re.search("the module holds tosa: lower it with diffattn-opt (.*)", done.stderr)
    assert done.returncode == 4 and advice, done.stderr
    lowered = subprocess.run([build_dir / "bin" / "diffattn-opt", *advice[1].split()], input=text, capture_output=True, text=True, check=True)
    done = tool("-", "--check=oracle", input=lowered.stdout)
    assert done.returncode == 0 and "matches" in done.stdout, done.stderr


def test_other_faults_get_no_advice(tool):
    for text in ("func.func @f(%torch: tensor<2xf32>) {\n  retrun\n}\n", "func.func @stablehlo() {\n  oops.op\n}\n"):
        done = tool("-", input=text)
        assert done.returncode == 3 and "the module holds" not in done.stderr, done.stderr


def test_no_gpu(tool, command, tmp_path):
    (tmp_path / "model.mlir").write_text(IDENTITY)
    hidden = {**os.environ, "LD_LIBRARY_PATH": "/nowhere"}
    done = tool("model.mlir", "--target=cuda", "--cuda-driver=/nowhere/libcuda.so.1", *CALL, env=hidden)
    assert done.returncode == 2 and "--cuda-driver" in done.stderr and "cuda-sim" in done.stderr
    done = command("generate", TINY, "--prompt", "And", "--target", "cuda", "--cuda-driver", "/nowhere/libcuda.so.1")
    assert done.returncode == 2 and "--cuda-driver" in done.stderr and "cuda-sim" in done.stderr


def test_a_moved_bundle(command, tmp_path):
    model = shutil.copytree(TINY, tmp_path / "model")
    assert command("bundle", model, "-o", tmp_path / "b").returncode == 0
    expected = command("generate", "--bundle", tmp_path / "b", "--prompt", "And", "--max-new-tokens", 3)
    assert expected.returncode == 0
    model.rename(tmp_path / "elsewhere")
    done = command("generate", "--bundle", tmp_path / "b", "--prompt", "And")
    assert done.returncode == 5 and "diffattn --weights" in done.stderr and "model.safetensors" in done.stderr
    done = command("generate", "--bundle", tmp_path / "b", "--prompt", "And", "--max-new-tokens", 3, "--weights", tmp_path / "elsewhere")
    assert done.returncode == 0 and done.stdout == expected.stdout
