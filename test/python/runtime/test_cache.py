"""The cache of compiled code: machine code, so it is this user's alone; bounded; never in the way."""
import os
import pwd
import socket
import stat
import subprocess
import time
import warnings

import numpy as np
import pytest

from diffattn import runtime, text_cache

MODULE = """
func.func @add(%x: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%a: f32, %o: f32):
      %s = arith.addf %a, %a : f32
      linalg.yield %s : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}"""


def module(number):
    return MODULE + f"\n// {number}"


def works(folder, number=0):
    """Compiles and calls; whether the code came from the cache."""
    executable = runtime.Executable(module(number), cache=folder)
    assert executable.call("add", np.ones(4, np.float32))[0].tolist() == [2, 2, 2, 2]
    return executable.from_cache


def records(folder):
    return sorted(path.name for path in folder.glob("*.diffattn"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def test_the_stage_is_part_of_the_key(folder):
    assert not works(folder) and works(folder)
    for stage, message in (("nonsense", "expected 'input' or 'gpu'"), ("gpu", "expected target cuda")):
        with pytest.raises(runtime.UsageError, match=message):
            runtime.Executable(module(0), from_stage=stage, cache=folder)


def test_quick_code_has_records_of_its_own(folder, monkeypatch):
    """Both ways, neither gets the other's code; the quick one is longer, as nothing of it was optimized."""
    sizes = []
    for quick in ("0", "1"):
        monkeypatch.setenv("DIFFATTN_QUICK_CODE", quick)
        known = set(records(folder))
        assert not works(folder) and works(folder)
        (record,) = set(records(folder)) - known
        sizes.append((folder / record).stat().st_size)
    assert sizes[0] < sizes[1]


def test_what_was_not_used_for_longest_makes_room(folder, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE_LIMIT", "1")
    assert not works(folder, 0)
    (first,) = records(folder)
    size = (folder / first).stat().st_size
    kept = (1 << 20) // size
    # As old as their number, and all of this size: as many as fit, and the first one, which is used again.
    for number in range(kept - 1):
        path = folder / f"{number:064x}.diffattn"
        path.write_bytes(bytes(size))
        path.chmod(0o600)
        os.utime(path, (1000 + number, 1000 + number))
    os.utime(folder / first, (999, 999))
    (folder / "total").unlink()  # what says how much there is
    assert works(folder, 0), "it is read, and so counts as used now"
    assert not works(folder, 1)
    left = records(folder)
    assert first in left and f"{0:064x}.diffattn" not in left and f"{kept - 2:064x}.diffattn" in left
    # An eighth is free again, and no more than needed.
    assert 7 << 17 >= sum((folder / name).stat().st_size for name in left) > (7 << 17) - size
    assert (folder / "total").read_text() == f"{sum((folder / name).stat().st_size for name in left)} 0"
    assert works(folder, 0) and works(folder, 1)


def test_a_record_of_nearly_the_limit_stays(folder, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE_LIMIT", "1")
    for name, size in (("a", 300_000), ("b", 1_000_000)):
        text_cache.keep(name, name, name * size, folder)
    assert text_cache.read("a", folder) is None and text_cache.read("b", folder) == "b" * 1_000_000


@pytest.mark.parametrize("text", ["", "many 3", "-5 2", "5", "5 1 x", "99999999999999999999 1", "7 1024"])
def test_records_are_counted_where_it_is_not_known_how_much_there_is(text, folder):
    assert not works(folder, 0)
    (folder / "total").write_text(text)
    assert not works(folder, 1)
    sizes = [(folder / name).stat().st_size for name in records(folder)]
    assert (folder / "total").read_text() == f"{sum(sizes)} 0"
    assert not works(folder, 2)
    sizes = [(folder / name).stat().st_size for name in records(folder)]
    assert (folder / "total").read_text() == f"{sum(sizes)} 1"


def test_a_limit_of_nothing_keeps_nothing(folder, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE_LIMIT", "0")
    assert not works(folder) and not works(folder) and records(folder) == []
    for wrong in ("-1", "many", str(1 << 40)):
        monkeypatch.setenv("DIFFATTN_CACHE_LIMIT", wrong)
        with pytest.raises(runtime.UsageError, match="cache_limit: expected a number of MiB from 0 to 1048576"):
            works(folder)


def test_what_a_killed_process_left_goes(folder):
    works(folder)
    old, new = folder / ".diffattn-0123abcd.part", folder / ".diffattn-4567abcd.part"
    for path, age in ((old, 7200), (new, 10)):
        path.write_bytes(b"half")
        path.chmod(0o600)
        os.utime(path, (time.time() - age,) * 2)
    (folder / "total").unlink()
    works(folder, 1)
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "link", "dangling link", "folder", "device"])
def test_special_files_are_left_alone(kind, folder, tmp_path, build_dir):
    works(folder)
    (name,) = records(folder)
    path, other = folder / name, tmp_path / "other"
    other.write_bytes(path.read_bytes())
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        os.chdir(folder)  # the path of a socket is short
        server.bind(name)
    elif kind == "link":
        path.symlink_to(other)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("expected the right to make a device")
    before = path.lstat()
    runtime._reported.clear()
    with pytest.warns(UserWarning, match="expected a regular file or none"):
        assert not works(folder)
    tool = build_dir / "bin" / "diffattn-run"
    for command, printed in (("ls", "0 in"), ("clear", "removed 0")):
        done = subprocess.run([tool, "cache", command, f"--cache-dir={folder}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and printed in done.stdout
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert not (tmp_path / "nowhere").exists()


def test_records_that_others_can_write_are_not_read(folder):
    works(folder)
    (name,) = records(folder)
    (folder / name).chmod(0o666)
    assert not works(folder)
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600 and works(folder)


def test_records_are_private_whatever_the_umask(folder):
    before = os.umask(0o002)
    try:
        assert not works(folder)
    finally:
        os.umask(before)
    assert works(folder)


@pytest.mark.parametrize("fault, message", [("shared", "expected a folder that this user alone can write"),
                                            ("file", "expected a folder, but got"), ("loop", "expected a folder, but got")])
def test_a_cache_that_cannot_be_used_is_one_warning(fault, message, folder, build_dir, tmp_path):
    if fault == "shared":
        folder.mkdir()
        folder.chmod(0o777)
    elif fault == "file":
        folder.write_text("")
    else:
        folder.symlink_to(folder)
    runtime._reported.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not works(folder) and not works(folder)
    assert [str(w.message) for w in caught if "not kept" in str(w.message)] == [str(caught[0].message)]
    assert f"compiled code is not kept in {folder}: {message}" in str(caught[0].message)

    (tmp_path / "m.mlir").write_text(MODULE)
    done = subprocess.run([build_dir / "bin" / "diffattn-run", tmp_path / "m.mlir", f"--cache-dir={folder}", "--check=unfused"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.count("warning: compiled code is not kept in") == 1, done.stderr


def test_relative_folders_are_none(build_dir, tmp_path, monkeypatch):
    """They would be of whoever filled the place that a program is started in."""
    (tmp_path / "m.mlir").write_text(MODULE)
    tool = build_dir / "bin" / "diffattn-run"

    def run(*arguments):
        return subprocess.run([tool, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    monkeypatch.delenv("DIFFATTN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    kept = str(tmp_path / "home" / ".cache" / "diffattn")
    assert runtime.cache_folder() == kept and f"cache    {kept}\n" in run("--info").stdout
    home = pwd.getpwuid(os.getuid()).pw_dir
    for place in ("", "relative"):
        monkeypatch.setenv("HOME", place)
        assert runtime.cache_folder() == f"{home}/.cache/diffattn" and f"cache    {home}/.cache/diffattn\n" in run("--info").stdout
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert runtime.cache_folder() == f"{tmp_path}/xdg/diffattn" and f"cache    {tmp_path}/xdg/diffattn\n" in run("--info").stdout
    assert not (tmp_path / "relative").exists()

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(runtime, "_home", lambda: "")
    runtime._reported.clear()
    with pytest.warns(UserWarning, match="compiled code is not kept: expected DIFFATTN_CACHE_DIR"):
        assert not works(True)
    assert not works(True)  # told once


def test_the_limit_of_the_runner(folder, build_dir, tmp_path):
    (tmp_path / "m.mlir").write_text(MODULE)
    tool, environment = build_dir / "bin" / "diffattn-run", {**os.environ, "DIFFATTN_CACHE_LIMIT": "many"}

    def run(*more, env=None):
        return subprocess.run([tool, tmp_path / "m.mlir", f"--cache-dir={folder}", *more], capture_output=True, text=True, env=env,
                              timeout=60)

    assert run("--cache-limit=0").returncode == 0 and records(folder) == []
    done = run(env=environment)
    assert done.returncode == 2 and "DIFFATTN_CACHE_LIMIT: expected a number of MiB from 0 to 1048576, but got 'many'" in done.stderr
    assert run("--cache-limit=-3").returncode == 2
    assert run("--cache-limit=1", env=environment).returncode == 0 and len(records(folder)) == 1


def test_compiled_calls_are_bounded_in_memory(monkeypatch):
    import diffattn
    from diffattn import _attention

    monkeypatch.setattr(_attention, "MOST_COMPILED", 2)
    monkeypatch.setattr(_attention, "_compiled", {})
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 16)).astype(np.float32)

    def call(scale):
        return diffattn.attention(x, x, -x, x, x, 0.3, scale=scale)

    first = call(1.0)
    call(2.0)
    kept = next(iter(_attention._compiled.values()))
    assert np.array_equal(call(1.0), first)  # now the last to go
    call(3.0)
    assert len(_attention._compiled) == 2 and kept in _attention._compiled.values()
