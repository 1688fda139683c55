"""`| head` and the like: a program whose reader has gone ends without a word and with 141, as a shell reports SIGPIPE. Streams that are
full, or closed from the start, are errors all the same."""
import os
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

from paths import ROOT

READER_GONE = 128 + signal.SIGPIPE
TINY = str(ROOT / "examples" / "tiny-lm")
#: As the script does that pip makes of an entry point.
ENTRY_POINT = [sys.executable, "-c", "import sys\nfrom diffattn.cli import main\nsys.exit(main())"]
INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"processId":1,"rootUri":null,"capabilities":{}}}'

#: Texts that a program may write to standard error although it does not fail.
SAID = {"generate": b"diffattn: compiling ", "eval": b"diffattn: compiling ", "bench": b"diffattn: compiling ", "lsp": b"initialize",
        "reduce": b""}

#: Names of commands, each of which prints; those with `large` print more than pipes and streams hold.
COMMANDS = {
    "opt --help": ["diffattn-opt", "--help"],
    "opt --version": ["diffattn-opt", "--version"],
    "opt --show-dialects": ["diffattn-opt", "--show-dialects"],
    "opt": ["diffattn-opt", "small.mlir"],
    "opt large": ["diffattn-opt", "large.mlir"],
    "opt bytecode": ["diffattn-opt", "large.mlir", "--emit-bytecode"],
    "opt -o /dev/stdout": ["diffattn-opt", "large.mlir", "-o", "/dev/stdout"],
    "reduce --help": ["diffattn-reduce", "--help"],
    "reduce": ["diffattn-reduce", "small.mlir", "--reduction-tree=traversal-mode=0 test=interesting.sh"],
    "lsp --help": ["diffattn-lsp-server", "--help"],
    "lsp": ["diffattn-lsp-server", "--log=error"],
    "run --help": ["diffattn-run", "--help"],
    "run --version": ["diffattn-run", "--version"],
    "run --info": ["diffattn-run", "--info"],
    "run model --info": ["diffattn-run", "small.mlir", "--info", "--no-cache"],
    "run cache ls": ["diffattn-run", "cache", "ls", "--cache-dir=cache"],
    "run call": ["diffattn-run", "small.mlir", "--entry=f0", "--input=f32=1", "--no-cache"],
    "run --output": ["diffattn-run", "small.mlir", "--entry=f0", "--input=f32=1", "--no-cache", "--quiet", "--output=/dev/stdout"],
    "run --emit": ["diffattn-run", "small.mlir", "--emit=bufferized"],
    "run --emit large": ["diffattn-run", "large.mlir", "--emit=input"],
    "run --emit object": ["diffattn-run", "small.mlir", "--emit=object"],
    "run -o /dev/stdout": ["diffattn-run", "small.mlir", "--emit=bufferized", "-o", "/dev/stdout"],
    "--help": ["diffattn", "--help"],
    "--version": ["diffattn", "--version"],
    "generate --help": ["diffattn", "generate", "--help"],
    "generate": ["diffattn", "generate", TINY, "--prompt", "In the", "--max-new-tokens", "3"],
    "generate long": ["diffattn", "generate", TINY, "--prompt", "In the", "--max-new-tokens", "200"],
    "eval": ["diffattn", "eval", TINY, "text.txt"],
    "info": ["diffattn", "info", TINY],
    "info --json": ["diffattn", "info", TINY, "--json"],
    "build": ["diffattn", "build", TINY],
    "build -o /dev/stdout": ["diffattn", "build", TINY, "-o", "/dev/stdout"],
    "bench": ["diffattn", "bench", TINY, "--prompt-tokens", "4", "--max-new-tokens", "2", "--runs", "1"],
    "plugin": ["diffattn", "plugin"],
    "info by the entry point": ["entry-point", "info", TINY],
    "--version by the entry point": ["entry-point", "--version"],
    "gpu-check": ["gpu-check"],
    "gpu-check --help": ["gpu-check", "--help"],
    "gpu-check check --help": ["gpu-check", "check", "--help"],
    "gpu-check ptxas --help": ["gpu-check", "ptxas", "--help"],
    "gpu-check ptxas large": ["gpu-check", "ptxas", "--print-module"],
}
OF_PYTHON = [name for name, words in COMMANDS.items() if words[0] in ("diffattn", "entry-point", "gpu-check")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipes")
    function = "func.func @f{0}(%x: tensor<f32>) -> tensor<f32> {{\n  return %x : tensor<f32>\n}}\n"
    (folder / "small.mlir").write_text(function.format(0))
    (folder / "large.mlir").write_text("".join(function.format(i) for i in range(3000)))
    (folder / "text.txt").write_text("In the beginning")
    (folder / "cache").mkdir()
    script = folder / "interesting.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def spelled(build_dir):
    """The command line of one of COMMANDS, or of a list like theirs, and what it reads."""

    def spelled(command):
        tool, *arguments = COMMANDS[command] if isinstance(command, str) else command
        start = {"diffattn": [sys.executable, "-m", "diffattn"], "entry-point": ENTRY_POINT,
                 "gpu-check": [sys.executable, str(ROOT / "tools" / "gpu-check")]}.get(tool, [str(build_dir / "bin" / tool)])
        arguments = [f"--reduction-tree=traversal-mode=0 test={os.path.abspath('interesting.sh')}" if "interesting.sh" in word else word
                     for word in arguments]
        return [*start, *arguments], b"Content-Length: %d\r\n\r\n" % len(INITIALIZE) + INITIALIZE if tool == "diffattn-lsp-server" else b""

    return spelled


@pytest.fixture
def run(folder, spelled, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def run(command, sigpipe="default", **options):
        def prepare():
            signal.signal(signal.SIGPIPE, signal.SIG_IGN if sigpipe == "ignored" else signal.SIG_DFL)
            if sigpipe == "blocked":
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])

        line, text = spelled(command)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.run(line, input=text, timeout=120, preexec_fn=prepare, restore_signals=False, **options)

    return run


@pytest.fixture
def gone():
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


def is_quiet(command, text):
    """No error, no traceback; a line of progress at most."""
    allowed = SAID.get(command.split()[0])
    lines = text.splitlines()
    return not lines or (allowed is not None and len(lines) == 1 and allowed in lines[0] and b"rror" not in lines[0])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sigpipe", ["default", "ignored", "blocked"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone(command, sigpipe, run, gone):
    done = run(command, sigpipe, stdout=gone)
    assert done.returncode == READER_GONE and is_quiet(command, done.stderr), done


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", OF_PYTHON)
def test_a_reader_that_has_gone_of_python_without_buffers(command, run, gone, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    done = run(command, stdout=gone)
    assert done.returncode == READER_GONE and is_quiet(command, done.stderr), done


@pytest.mark.parametrize("trap", ["", "trap '' PIPE; "])
@pytest.mark.parametrize("command, head", [("opt large", "head -1"), ("run --emit large", "head -1"), ("opt --help", "head -1"),
                                           ("generate long", "head -c 1"), ("gpu-check ptxas large", "head -1")])
def test_head_in_a_shell(command, head, trap, folder, spelled, monkeypatch):
    monkeypatch.chdir(folder)
    line, _ = spelled(command)
    done = subprocess.run(["bash", "-c", f'{trap}"$@" | {head}; exit ${{PIPESTATUS[0]}}', "bash", *line], capture_output=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, restore_signals=True)
    assert done.returncode == READER_GONE and done.stdout and is_quiet(command, done.stderr), done


#: Exit status of each program where it cannot print.
FAILURES = {"diffattn-run": 8, "diffattn": 8, "entry-point": 8}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command, unbuffered", [*((name, "") for name in COMMANDS), *((name, "1") for name in OF_PYTHON)])
def test_a_full_standard_output(command, unbuffered, run, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = run(command, stdout=full)
    assert done.returncode == FAILURES.get(COMMANDS[command][0], 1) and b"No space left on device" in done.stderr, done
    assert b"Traceback" not in done.stderr and b"ignored" not in done.stderr and b"PLEASE submit" not in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", [name for name in COMMANDS if "/dev/stdout" not in " ".join(COMMANDS[name])])
def test_a_standard_output_that_was_closed_before(command, folder, spelled, monkeypatch):
    monkeypatch.chdir(folder)
    line, text = spelled(command)
    done = subprocess.run(["bash", "-c", 'exec "$@" >&-', "bash", *line], input=text, capture_output=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == FAILURES.get(COMMANDS[command][0], 1) and b"Bad file descriptor" in done.stderr, done
    assert b"Traceback" not in done.stderr and b"LLVM ERROR" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("tool", ["diffattn-opt", "diffattn-run", "diffattn"])
def test_a_file_does_not_take_the_place_of_a_closed_stream(tool, closed, folder, spelled, tmp_path, monkeypatch):
    """Else what is printed would land in it."""
    monkeypatch.chdir(folder)
    target = tmp_path / "out"
    command = {"diffattn-opt": [tool, "small.mlir", "--mlir-timing", "-o", str(target)],
               "diffattn-run": [tool, "small.mlir", "--entry=f0", "--input=f32=1", "--no-cache", f"--output={target}"],
               "diffattn": [tool, "build", TINY, "-o", str(target)]}[tool]
    subprocess.run(["bash", "-c", f'exec "$@" {closed}', "bash", *spelled(command)[0]], capture_output=True, timeout=120,
                   env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    if tool == "diffattn-run":
        assert np.load(target) == 1
    else:
        assert target.read_text().startswith("module") and target.read_text().rstrip().endswith("}")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command, code", [(["diffattn", "--bad"], 2), (["diffattn", "info", "/nowhere"], 5), (["diffattn", "info", TINY], 0),
                                           (["diffattn-run", "nowhere.mlir"], 2), (["gpu-check", "nothing"], 2)])
def test_messages_that_nobody_reads(command, code, unbuffered, run, gone, monkeypatch):
    """They change no exit status, nor does Python when it ends."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert run(command, stderr=gone).returncode == code
    with open("/dev/full", "w") as full:
        assert run(command, stderr=full).returncode == code


@pytest.mark.parametrize("sigpipe", ["default", "ignored"])
def test_the_optimizer_leaves_no_half_written_file(sigpipe, run, gone, tmp_path):
    """It writes the file last; what it prints on the way has no reader."""
    done = run(["diffattn-opt", "large.mlir", "--canonicalize", "--mlir-print-ir-after-all", "-o", str(tmp_path / "out")], sigpipe, stderr=gone)
    assert done.returncode == READER_GONE and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["diffattn-run", "large.mlir", "--emit=input", "-o"], ["diffattn", "build", TINY, "-o"]])
def test_a_named_pipe_whose_reader_goes(command, run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def read():
        with open(pipe, "rb", buffering=0) as file:
            file.read(1)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    done = run([*command, str(pipe)])
    reader.join(30)
    assert done.returncode == READER_GONE and not done.stderr and stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_library_raises_what_its_caller_can_catch(gone):
    """Only commands end without a word."""
    from diffattn import errors, output

    with pytest.raises(errors.OutputError, match="Broken pipe"):
        output.write_file(f"/proc/self/fd/{gone}", "text")
