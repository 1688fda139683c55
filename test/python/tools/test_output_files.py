"""Files written by the tools: whole ones or none, through links, into pipes and devices, and an error where there is no room."""
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from malformed import MODEL, PLAIN
from safetensors.numpy import save_file

from paths import LLVM, ROOT

TINY = ROOT / "examples" / "tiny-lm"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    (folder / "m.mlir").write_text(PLAIN)
    (folder / "w.mlir").write_text(MODEL)
    save_file({"w": np.ones((3, 4), np.float32), "layers.0.b": np.ones(3, np.float32), "layers.1.b": np.ones(3, np.float32)},
              folder / "model.safetensors")
    return folder


#: Each tool that writes a file, and what the file starts with.
TOOLS = {"array": b"\x93NUMPY", "stage": b"#map", "object": b"\x7fELF", "graph": b"module"}


@pytest.fixture(scope="module")
def write(build_dir, model):
    def write(tool, path, **options):
        run = str(build_dir / "bin" / "diffattn-run")
        command = {
            "array": [run, model / "m.mlir", "--entry=twice", "--input=3xf32=1", "--quiet", "--no-cache", f"--output={path}"],
            "stage": [run, model / "m.mlir", "--emit=bufferized", "-o", path],
            "object": [run, model / "m.mlir", "--emit=object", "-o", path],
            "graph": [sys.executable, "-m", "diffattn", "build", TINY, "-o", path],
            "bundle": [run, model / "w.mlir", f"--weights={model / 'model.safetensors'}", "--emit=bundle", "--copy-weights",
                       "--no-cache", "-o", path],
        }[tool]
        return subprocess.run(list(map(str, command)), cwd=ROOT / "python", capture_output=True, timeout=120, **options)

    return write


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("tool", TOOLS)
def test_a_pipe_is_written_to(tool, write, tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    done = write(tool, pipe)
    reader.join(30)
    assert done.returncode == 0 and got and got[0].startswith(TOOLS[tool])
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("tool", [*TOOLS, "bundle"])
def test_folders_may_have_signs_of_patterns(tool, write, tmp_path):
    folder = tmp_path / "100%% {} %d"
    folder.mkdir()
    done = write(tool, folder / "50%")
    assert done.returncode == 0, done.stderr
    assert names(folder) == ["50%"] and names(tmp_path) == [folder.name]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_link_stays_and_its_file_is_replaced(tool, write, tmp_path):
    (tmp_path / "far").mkdir()
    target, link, chain = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "chain"
    target.write_text("old")
    target.chmod(0o640)
    inode = target.stat().st_ino
    link.symlink_to("far/target")
    chain.symlink_to(link)
    with open(target) as before:
        assert write(tool, chain).returncode == 0
        assert before.read() == "old", "a reader keeps what it has opened"
    assert chain.is_symlink() and link.is_symlink() and os.readlink(link) == "far/target"
    assert target.read_bytes().startswith(TOOLS[tool]) and target.stat().st_ino != inode
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert names(tmp_path) == ["chain", "far", "link"] and names(tmp_path / "far") == ["target"]
    # Where a link leads to nothing yet, the file is made there.
    target.unlink()
    assert write(tool, link).returncode == 0
    assert link.is_symlink() and target.read_bytes().startswith(TOOLS[tool])
    link.unlink()
    link.symlink_to("link")
    done = write(tool, link)
    assert done.returncode == 8 and b"Too many levels of symbolic links" in done.stderr


@pytest.mark.parametrize("tool", TOOLS)
def test_devices_are_written_to(tool, write, tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        null.symlink_to("/dev/null")
    before = null.lstat()
    assert write(tool, null).returncode == 0
    assert (null.lstat().st_ino, null.lstat().st_mode) == (before.st_ino, before.st_mode)
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    done = write(tool, full)
    assert done.returncode == 8 and b"No space left on device" in done.stderr
    assert full.is_symlink() and stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_open_file_by_its_number(tool, write, tmp_path):
    """As /dev/stdout is where the output is redirected: what others have written to it stays."""
    path = tmp_path / "out"
    with open(path, "wb") as out:
        out.write(b"before\n")
        out.flush()
        done = write(tool, f"/proc/self/fd/{out.fileno()}", pass_fds=[out.fileno()])
    assert done.returncode == 0, done.stderr
    data = path.read_bytes()
    assert data.startswith(b"before\n") and data[7:].startswith(TOOLS[tool]) and names(tmp_path) == ["out"]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_longest_name_and_a_folder(tool, write, tmp_path):
    long = tmp_path / ("x" * 255)
    assert write(tool, long).returncode == 0 and long.read_bytes().startswith(TOOLS[tool])
    done = write(tool, tmp_path)
    assert done.returncode == 8 and b"Is a directory" in done.stderr and names(tmp_path) == [long.name]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tool", [*TOOLS, "bundle"])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_limit_of_file_sizes_is_an_error(tool, ignored, write, tmp_path):
    def limit():
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN if ignored else signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    place = tmp_path / "out"
    place.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = write(tool, place / "result", preexec_fn=limit, env={**os.environ, "TMPDIR": str(scratch)})
    assert done.returncode == 8 and b"error" in done.stderr and b"Traceback" not in done.stderr, done.stderr
    assert names(place) == [] and names(scratch) == []


def test_the_cache_under_a_limit_is_a_warning(build_dir, model, tmp_path):
    command = [build_dir / "bin" / "diffattn-run", model / "m.mlir", "--entry=twice", "--input=3xf32=1",
               f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
    assert done.returncode == 0 and "warning: compiled code is not kept" in done.stderr and "File too large" in done.stderr
    assert all(name.startswith("cpu-") for name in names(tmp_path / "cache")), "what is known of the CPU fits, compiled code does not"


def test_the_library_does_not_end_its_process(model, tmp_path):
    """A program in C or another language does not ignore the signal as Python does."""
    code = f"""
import resource, signal
import numpy as np
from diffattn import errors, runtime
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
try:
    runtime.write_bundle(open({str(model / "m.mlir")!r}).read(), {str(tmp_path / "b")!r}, cache=False)
except errors.OutputError as error:
    assert "File too large" in str(error), error
    assert signal.sigpending() == set() and signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    print("right")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "python", capture_output=True, text=True, timeout=60)
    assert done.stdout == "right\n", done.stderr
    assert names(tmp_path) == []


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_of_the_runner(closed, build_dir, model, tmp_path):
    """Its number does not go to a file, and what cannot be printed is an error; what cannot be told is not."""
    target = tmp_path / "out.npy"
    script = f'exec {closed}>&-; exec "$@"'
    command = [build_dir / "bin" / "diffattn-run", model / "m.mlir", "--entry=twice", "--input=3xf32=1", "--no-cache",
               f"--output={target}"]
    done = subprocess.run(["bash", "-c", script, "bash", *command], capture_output=True, text=True, timeout=60)
    assert np.load(target).tolist() == [2, 2, 2]
    assert done.returncode == (8 if closed == 1 else 0)
    if closed == 1:
        assert "Bad file descriptor" in done.stderr


def test_full_streams_of_the_runner(build_dir, model, tmp_path):
    tool, target = build_dir / "bin" / "diffattn-run", tmp_path / "out.npy"
    command = [tool, model / "m.mlir", "--entry=twice", "--input=3xf32=1", f"--cache-dir={tmp_path / 'file'}", f"--output={target}"]
    (tmp_path / "file").write_text("")  # so that there is a warning
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60)
        assert done.returncode == 0 and done.stdout and target.exists(), "that nobody can be told is no failure"
        done = subprocess.run([*command, "--entry=nope"], stdout=subprocess.PIPE, stderr=full, timeout=60)
        assert done.returncode == 2
        for arguments in (["--help"], ["--version"], ["--info"], ["cache", "ls"]):
            done = subprocess.run([tool, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            assert done.returncode != 0 and "No space left on device" in done.stderr and "PLEASE submit" not in done.stderr, done


def test_a_bundle_goes_where_a_link_leads(write, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert write("bundle", tmp_path / "link").returncode == 0
    assert (tmp_path / "link").is_symlink() and "manifest.json" in names(tmp_path / "real")
    (tmp_path / "private").mkdir(mode=0o700)
    assert write("bundle", tmp_path / "private").returncode == 0
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700 and names(tmp_path / "private") == names(tmp_path / "real")
    shutil.rmtree(tmp_path / "private")
    os.mkfifo(tmp_path / "pipe")
    done = write("bundle", tmp_path / "pipe")
    assert done.returncode == 8 and b"expected a folder" in done.stderr and names(tmp_path) == ["link", "pipe", "real"]


#: Sends a signal from within a process, where it writes a file out or moves a folder to its place.
INTERRUPTER = """
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void interrupt(const char *at) {
  if (strcmp(getenv("INTERRUPT_AT"), at) != 0)
    return;
  kill(getpid(), atoi(getenv("INTERRUPT_BY")));
  usleep(300000); /* another thread may be the one that it ends */
}
int fsync(int file) { interrupt("file"); return 0; }
int rename(const char *from, const char *to) {
  struct stat status;
  if (stat(from, &status) == 0 && S_ISDIR(status.st_mode))
    interrupt("folder");
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
"""


@pytest.fixture(scope="module")
def interrupter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupter")
    (folder / "i.c").write_text(INTERRUPTER)
    subprocess.run([LLVM / "clang", "-shared", "-fPIC", "-o", folder / "i.so", folder / "i.c"], check=True)
    return folder / "i.so"


def interrupted(write, interrupter, tool, path, number, at, action):
    preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(interrupter)]))
    environment = {**os.environ, "LD_PRELOAD": preload, "INTERRUPT_AT": at, "INTERRUPT_BY": str(int(number))}
    return write(tool, path, env=environment, preexec_fn=lambda: signal.signal(number, action))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("tool, at", [("array", "file"), ("object", "file"), ("bundle", "file"), ("bundle", "folder")])
def test_an_interrupt_leaves_nothing_half_written(tool, at, number, write, interrupter, tmp_path):
    (tmp_path / "y.npy").write_text("before")
    path = tmp_path / ("b" if tool == "bundle" else "y.npy")
    done = interrupted(write, interrupter, tool, path, number, at, signal.SIG_DFL)
    assert done.returncode == -number, done.stderr
    assert names(tmp_path) == ["y.npy"] and (tmp_path / "y.npy").read_text() == "before"


def test_an_interrupt_of_the_command_leaves_nothing_half_written(write, interrupter, tmp_path):
    done = interrupted(write, interrupter, "graph", tmp_path / "m.mlir", signal.SIGINT, "file", signal.default_int_handler)
    assert done.returncode == 130 and names(tmp_path) == [], done.stderr


@pytest.mark.parametrize("tool", ["array", "bundle"])
def test_an_interrupt_that_the_caller_ignores(tool, write, interrupter, tmp_path):
    """As nohup does, and a shell for what it starts in the background."""
    done = interrupted(write, interrupter, tool, tmp_path / "y", signal.SIGHUP, "file", signal.SIG_IGN)
    assert done.returncode == 0 and names(tmp_path) == ["y"], done.stderr
