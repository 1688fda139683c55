"""Launches that are joined: random sequences of ops on few buffers, simulated on a GPU, against the CPU."""
import re

import numpy as np
import pytest

from diffattn import runtime
from diffattn.runtime import Executable

TARGET = "cuda-sim:sm_80"
WIDTHS = (8, 40, 300)  # a part of a warp, a warp, and a block to a row
BUFFERS = 3            # buffers of each width

MAPS = {"whole": "affine_map<(i, j) -> (i, j)>", "row": "affine_map<(i, j) -> (i)>"}
HEAD = "func.func @main(%n: index, {arguments}) {{\n"
ELEMENTS = """  linalg.generic {{indexing_maps = [{whole}, {whole}, {whole}], iterator_types = ["parallel", "parallel"]}}
      ins({a}, {b} : {type}, {type}) outs({c} : {type}) {{
  ^bb0(%x: f32, %y: f32, %o: f32):
    %z = arith.{op} %x, %y : f32
    linalg.yield %z : f32
  }}
"""
ROWS = """  linalg.generic {{indexing_maps = [{whole}, {row}], iterator_types = ["parallel", "reduction"]}}
      ins({a} : {type}) outs({s} : memref<?xf32>) {{
  ^bb0(%x: f32, %o: f32):
    %z = arith.addf %x, %o : f32
    linalg.yield %z : f32
  }}
"""
SPREAD = """  linalg.generic {{indexing_maps = [{row}, {whole}], iterator_types = ["parallel", "parallel"]}}
      ins({s} : memref<?xf32>) outs({a} : {type}) {{
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  }}
"""


def program(rng, steps):
    """(text, width of each buffer by name, names of those with a number a row): ops that read and write buffers that the function allocates and fills."""
    widths = {f"%b{w}_{i}": w for w in WIDTHS for i in range(BUFFERS)}
    sums = [f"%s{i}" for i in range(3)]
    arguments = {name: f"memref<?x{w}xf32>" for name, w in widths.items()} | {name: "memref<?xf32>" for name in sums}
    text = HEAD.format(arguments=", ".join(f"{name}_in: {kind}" for name, kind in arguments.items()))
    for name, kind in arguments.items():
        text += f"  {name} = memref.alloc(%n) {{alignment = 64 : i64}} : {kind}\n"
        text += f"  memref.copy {name}_in, {name} : {kind} to {kind}\n"
    for _ in range(steps):
        width = int(rng.choice(WIDTHS))
        a, b, c = (f"%b{width}_{i}" for i in rng.integers(0, BUFFERS, 3))
        form = (ELEMENTS, ROWS, SPREAD)[rng.choice(3, p=[0.5, 0.25, 0.25])]
        text += form.format(**MAPS, a=a, b=b, c=c, s=rng.choice(sums), type=arguments[a], op=rng.choice(["addf", "subf", "maximumf"]))
    for name, kind in arguments.items():
        text += f"  memref.copy {name}, {name}_in : {kind} to {kind}\n"
    return text + "  return\n}\n", widths, sums


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_sequences(seed):
    rng = np.random.default_rng(seed)
    text, widths, sums = program(rng, steps=10)
    results = []
    for target in ("cpu", TARGET):
        executable = Executable(text, target=target, cache=False)
        for rows in (1, 5, 37):
            draw = np.random.default_rng([seed, rows])
            # Whole numbers that few steps keep exact, so that no order of a sum shows.
            arrays = [draw.integers(-3, 4, (rows, w)).astype(np.float32) for w in widths.values()]
            arrays += [draw.integers(-3, 4, rows).astype(np.float32) for _ in sums]
            executable.call("main", rows, *arrays)
            results.append(arrays)
    for cpu, gpu in zip(results[:3], results[3:]):
        for name, want, got in zip([*widths, *sums], cpu, gpu):
            exact = np.abs(want) < 2 ** 24
            assert exact.any()
            np.testing.assert_array_equal(got[exact], want[exact], err_msg=name)


def test_such_sequences_are_joined():
    joined = 0
    for seed in range(12):
        text, *_ = program(np.random.default_rng(seed), steps=10)
        gpu = runtime.emit(text, "gpu", target=TARGET).decode()
        joined += len(re.findall(r"gpu.launch_func +@diffattn_kernels::@diffattn_horizontal", gpu))
    assert joined >= 24
