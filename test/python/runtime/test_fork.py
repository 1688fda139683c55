"""A child of fork() computes, also where its parent had threads."""
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from paths import ROOT

COMMON = """
import multiprocessing, os, signal, threading
import numpy as np
import diffattn
from diffattn import runtime

rng = np.random.default_rng(0)
x = [rng.normal(size=(2, 4, 200, 32)).astype(np.float32) for _ in range(5)]
GEMM = '''
func.func @product(%a: tensor<?x96xf32>, %b: tensor<96x128xf32>) -> tensor<?x128xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %n = tensor.dim %a, %c0 : tensor<?x96xf32>
  %e = tensor.empty(%n) : tensor<?x128xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x128xf32>) -> tensor<?x128xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x96xf32>, tensor<96x128xf32>) outs(%f : tensor<?x128xf32>) -> tensor<?x128xf32>
  return %r : tensor<?x128xf32>
}'''
a, b = rng.normal(size=(300, 96)).astype(np.float32), rng.normal(size=(96, 128)).astype(np.float32)
product = runtime.Executable(GEMM, threads=2)

def attend():
    return diffattn.attention(*x, 0.3)

def multiply():
    return product.call("product", a, b)[0]

def threads():
    return len(os.listdir("/proc/self/task"))
"""

CASES = {
    "os.fork": """
        expected = attend(), multiply()
        pid = os.fork()
        if pid == 0:
            alone = threads()
            got = attend(), multiply()
            assert all(np.array_equal(g, e) for g, e in zip(got, expected))
            assert threads() > alone, "the child has threads of its own"
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert np.array_equal(attend(), expected[0])  # and the parent goes on
        """,
    "a child of a child": """
        expected = multiply()
        pid = os.fork()
        if pid == 0:
            multiply()
            pid = os.fork()
            if pid == 0:
                os._exit(0 if np.array_equal(multiply(), expected) else 1)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert os.waitpid(pid, 0)[1] == 0
        """,
    "multiprocessing": """
        def work(_):
            return float(attend().sum() + multiply().sum())

        expected = work(0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(work, range(4)) == [expected] * 4
        """,
    "fork from another thread": """
        attend()
        status = []

        def fork():
            attend()
            pid = os.fork()
            if pid == 0:
                attend()
                multiply()
                os._exit(0)
            status.append(os.waitpid(pid, 0)[1])

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert status == [0]
        """,
}


@pytest.mark.parametrize("case", CASES)
def test_the_child_computes(case):
    code = COMMON + textwrap.dedent(CASES[case])
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT / "python", env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children, which wait for threads that are gone
        process.communicate()
        pytest.fail("the child never returned from its call")
    assert process.returncode == 0, errors
