"""Modules as bytecode: MLIR's reader does not stand damage, so another process meets it first."""
import subprocess
import sys
import threading

import numpy as np
import pytest

from diffattn import runtime

MODULE = """func.func @f(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = math.exp %x : tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}"""
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)

#: Reads the file that is named with each byte of `places` changed, and then as it is.
DAMAGE = """
import sys
from diffattn import runtime

sound, said = open(sys.argv[1], "rb").read(), set()
for place in range(144, 176, 2):
    for value in 16, 80, 112, 224:
        damaged = sound[:place] + bytes([value]) + sound[place + 1:]
        try:
            runtime.emit(damaged, "input")
        except runtime.IRError as error:
            said.add("but it crashed" in str(error))
assert said == {False, True}, said
assert b"math.exp" in runtime.emit(sound, "input")
"""


@pytest.fixture(scope="module")
def bytecode(build_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("bytecode") / "f.mlirbc"
    subprocess.run([build_dir / "bin" / "diffattn-opt", "-", "--emit-bytecode", "-o", path], input=MODULE.encode(), check=True)
    return path


def test_bytecode_is_the_text(bytecode):
    results = [runtime.Executable(module, cache=False).call("f", X)[0] for module in (MODULE, bytecode.read_bytes())]
    assert results[0].tobytes() == results[1].tobytes()
    executable = runtime.Executable(MODULE, cache=False)
    assert executable.judge(bytecode.read_bytes(), "f", [X], results[:1])


def test_damage_is_an_error_of_a_process_that_lives(bytecode):
    done = subprocess.run([sys.executable, "-c", DAMAGE, bytecode], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_threads_may_compile_meanwhile(bytecode):
    """Bytecode is read in a fork, which must not take over a lock that another thread holds."""
    results = []

    def work(module):
        for _ in range(4):
            results.append(runtime.Executable(module, cache=False).call("f", X)[0].tobytes())

    threads = [threading.Thread(target=work, args=(module,)) for module in (MODULE, bytecode.read_bytes()) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 16 and len(set(results)) == 1
