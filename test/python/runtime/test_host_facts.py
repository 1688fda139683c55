"""Measurements of a CPU: made once, kept beside compiled code, and only for code that is native."""
import re
import subprocess
import sys

import pytest

from diffattn import runtime

#: A step of decode with bf16 keys, and a product of one row: code that reads memory once.
MODULE = """
func.func @decode(%q: memref<1x2x1x64xbf16>, %k: memref<1x2x4096x64xbf16>, %v: memref<1x2x4096x128xbf16>, %l: memref<f32>,
                  %o: memref<1x2x1x128xbf16>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x1x64xbf16>, memref<1x2x4096x64xbf16>, memref<1x2x1x64xbf16>,
                         memref<1x2x4096x64xbf16>, memref<1x2x4096x128xbf16>)
      lambda(%l : memref<f32>) outs(%o : memref<1x2x1x128xbf16>) {scale = 0.125 : f32}
  return
}
func.func @product(%x: memref<1x64xf32>, %w: memref<96x64xbf16>, %y: memref<1x96xf32>) {
  diffattn.gemm ins(%x, %w : memref<1x64xf32>, memref<96x64xbf16>) outs(%y : memref<1x96xf32>) {transpose_b}
  return
}
"""
#: `MODULE` in f32, which needs what was measured or given on every instruction set.
WIDE = MODULE.replace("bf16", "f32")
SMALL = """
func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = arith.addf %x, %x : tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


@pytest.fixture
def run(build_dir, tmp_path):
    module = tmp_path / "module.mlir"
    module.write_text(MODULE)

    def start(*options, cache=tmp_path / "cache"):
        return subprocess.Popen([build_dir / "bin/diffattn-run", module, "--batch-invariant=false", "--emit=loops",
                                 f"--cache-dir={cache}", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(*options, **where):
        process = start(*options, **where)
        text, errors = process.communicate()
        assert process.returncode == 0 and not errors.count("rror"), errors
        return text

    run.start, run.cache, run.module = start, tmp_path / "cache", module
    return run


def file_of(folder):
    (path,) = folder.glob("cpu-*")
    return path


def read(folder):
    """The facts of a file that is whole."""
    speed, ahead = re.fullmatch(r"bf16 dot products (fast|slow), prefetch (\d+) bytes ahead", file_of(folder).read_text()).groups()
    return int(speed == "fast"), int(ahead)


def forge(folder, is_fast, ahead):
    file_of(folder).write_text(f"bf16 dot products {'fast' if is_fast else 'slow'}, prefetch {ahead} bytes ahead")


def native_has_bf16_dot(build_dir):
    """Whether native takes bf16 dot products where they are fast: tiles, which are better still, need no such fact."""
    info = subprocess.run([build_dir / "bin/diffattn-run", "--info"], capture_output=True, text=True, check=True).stdout
    name, can = re.search(r"ISA\s+(\S+) \(native\); can run([^;\n]*)", info).groups()
    return not name.startswith("amx") and "avx512bf16" in can.split()


def isas(text):
    return set(re.findall(r"_(avx512bf16|avx512|avx2|generic)\b", text))


def distances(text):
    """Constants that only code for this distance has; those of the product, in bytes as they are."""
    return {number for number in (2624, 1600, 3008) if f"%c{number}_i64" in text and "llvm.intr.prefetch" in text}


def kinds(text):
    """The kinds of functions that ask for lines."""
    return {re.match(r" private @diffattn_([a-z]+)", function).group(1) for function in text.split("llvm.func")
            if '"llvm.intr.prefetch"' in function}


def is_narrow(text):
    """Whether code is for few registers: it asks for numbers of 16 bits, which keep it busy, whatever was measured."""
    return isas(text) in ({"avx2"}, {"generic"})


def test_facts_are_measured_once_and_kept(run):
    text = run()
    is_fast, ahead = read(run.cache)
    before = file_of(run.cache).stat().st_mtime_ns, file_of(run.cache).read_bytes()
    assert file_of(run.cache).stat().st_mode & 0o777 == 0o600
    assert ("llvm.intr.prefetch" in text) == (ahead > 0 or is_narrow(text))
    assert run() == text
    assert file_of(run.cache).read_bytes() == before[1]
    again = run(cache=run.cache.with_name("other"))
    assert read(run.cache.with_name("other"))[0] == is_fast, "what changes bits comes out the same"
    assert isas(again) == isas(text)


def test_native_code_follows_them_and_named_code_does_not(run, build_dir):
    run()
    has_bf16 = native_has_bf16_dot(build_dir)
    native, named = {}, {}
    for facts in [(0, 0), (0, 2624), (1, 0), (1, 3008)]:
        forge(run.cache, *facts)
        native[facts] = run("--target=cpu:native")
        assert read(run.cache) == facts
        named[facts] = [run(f"--target=cpu:{isa}") for isa in ("avx512", "avx512bf16", "avx2", "amx")]
    assert all(text == named[0, 0] for text in named.values())
    assert [kinds(text) for text in named[0, 0]] == [{"attention", "gemv"}, set(), {"attention", "gemv"}, {"attention", "gemv", "tile"}], "what their rows say, not this machine"
    assert kinds(native[0, 0]) == kinds(native[1, 0]) == ({"attention", "gemv"} if is_narrow(native[0, 0]) else set())
    assert distances(native[0, 2624]) - distances(native[0, 0]) == {2624}
    assert 2624 not in distances(native[1, 3008]) and 3008 in distances(native[1, 3008])
    assert ("vdpbf16ps" in native[1, 0] or "avx512bf16" in native[1, 0]) == has_bf16
    assert "avx512bf16" not in native[0, 0]
    assert kinds(native[0, 2624]) == kinds(native[1, 3008]) == {"attention", "gemv"} | ({"tile"} if "tile_few_scores" in native[0, 0] else set())


def test_bundles_are_for_what_was_measured(run, build_dir, tmp_path):
    run()
    tool, small = build_dir / "bin/diffattn-run", tmp_path / "small.mlir"
    small.write_text(SMALL)
    has_bf16 = native_has_bf16_dot(build_dir)
    script = "import sys\nfrom diffattn import runtime\nruntime.write_bundle(open(sys.argv[1]).read(), sys.argv[2], cache=sys.argv[3])"
    for is_fast in (0, 1):
        forge(run.cache, is_fast, 0)
        ours, theirs = tmp_path / f"tool{is_fast}", tmp_path / f"python{is_fast}"
        subprocess.run([tool, small, "--emit=bundle", "-o", ours, f"--cache-dir={run.cache}"], check=True)
        subprocess.run([sys.executable, "-c", script, small, theirs, run.cache], check=True)
        for bundle in (ours, theirs):
            isa = re.search(r'"isa": *"([^"]*)"', (bundle / "manifest.json").read_text()).group(1)
            assert (isa == "avx512bf16") == bool(is_fast and has_bf16)


def test_every_command_measures_the_same(run, build_dir):
    run()
    is_fast, _ = read(run.cache)
    for _ in range(5):
        info = subprocess.run([build_dir / "bin/diffattn-run", "--info"], capture_output=True, text=True, check=True).stdout
        (name,) = re.search(r"ISA\s+(\S+) \(native\)", info).groups()
        assert (name == "avx512bf16") == bool(is_fast and native_has_bf16_dot(build_dir))


def test_options_win(run):
    run()
    forge(run.cache, 0, 2624)
    assert "llvm.intr.prefetch" not in run("--prefetch-bytes=0")
    run.module.write_text(WIDE)
    assert run("--prefetch-bytes=2624") == run()
    assert 3008 in distances(run("--prefetch-bytes=3008"))
    assert "llvm.intr.prefetch" in run("--target=cpu:avx2", "--prefetch-bytes=3008")
    for wrong in ("-2", "65537"):
        process = run.start(f"--prefetch-bytes={wrong}")
        assert f"--prefetch-bytes: expected a number of bytes from -1 to 65536, but got '{wrong}'" in process.communicate()[1]
        assert process.returncode != 0


def test_options_of_python():
    def emit(ahead, module=WIDE):
        return runtime.emit(module, "loops", target="cpu:avx2", batch_invariant=False, prefetch_bytes=ahead).decode()
    assert emit(None) == emit(0) and "llvm.intr.prefetch" not in emit(0)
    assert 1600 in distances(emit(1600))
    assert kinds(emit(None, MODULE)) == {"attention", "gemv"} and kinds(emit(0, MODULE)) == set()


def test_they_are_part_of_the_key(run, build_dir, tmp_path):
    run()

    small = tmp_path / "small.mlir"
    small.write_text(SMALL)

    def compiled(*options):
        subprocess.run([build_dir / "bin/diffattn-run", small, "--quiet", f"--cache-dir={run.cache}", *options], check=True)
        return len(list(run.cache.glob("*.diffattn")))

    forge(run.cache, 0, 2624)
    assert compiled() == compiled() == 1
    assert compiled("--prefetch-bytes=2624") == 2, "keys do not compare what code is"
    forge(run.cache, 0, 3008)
    assert compiled() == 3
    assert compiled("--target=cpu:avx2") == 4
    forge(run.cache, 1, 0)
    assert compiled("--target=cpu:avx2") == 4


@pytest.mark.parametrize("fault", ["empty", "cut", "longer", "too far", "bytes", "link", "folder"])
def test_what_is_no_whole_file_is_measured_again(fault, run, tmp_path):
    text = run()
    facts, path = read(run.cache), file_of(run.cache)
    whole = path.read_bytes()
    if fault == "link":
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
    elif fault == "folder":
        path.unlink()
        path.mkdir()
    elif fault == "too far":
        forge(run.cache, 0, 99999)
    else:
        path.write_bytes({"empty": b"", "cut": whole[:-1], "longer": whole + b"x", "bytes": bytes(range(256))}[fault])
    assert isas(run()) == isas(text)
    if fault in ("link", "folder"):  # something else that is not ours to replace
        assert path.is_symlink() or path.is_dir()
    else:
        assert read(run.cache)[0] == facts[0]


def test_a_cache_that_cannot_be_written_is_no_error(run, tmp_path):
    text = run()
    file = tmp_path / "file"
    file.write_text("")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for where in (file / "below", file, shared):
        assert isas(run(cache=where)) == isas(text)
    assert isas(run("--no-cache")) == isas(text) == isas(run("--cache-limit=0", cache=tmp_path / "none"))
    assert not list(shared.iterdir()) and not list(tmp_path.glob("none/*"))


def test_processes_at_once_leave_one_whole_file(run):
    started = [run.start() for _ in range(6)]
    texts = [(process.communicate()[0], process.returncode) for process in started]
    assert all(code == 0 for _, code in texts) and len({frozenset(isas(text)) for text, _ in texts}) == 1
    read(run.cache)
    assert [path.name for path in run.cache.iterdir()] == [file_of(run.cache).name], "nothing half written is left"
