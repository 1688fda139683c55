"""Assembly of decode for AMX: tiles are configured once in a function and never spilled, and each step along a key's columns is one product."""
import re
import subprocess

import pytest

from kernel_library import memref

#: Heads of queries and of keys, and the width of a head.
SHAPES = [(4, 1, 32), (8, 2, 64), (1, 1, 64), (3, 1, 80), (5, 1, 96), (16, 1, 128), (7, 1, 160), (8, 1, 256), (2, 1, 300), (4, 1, 33), (20, 1, 64)]
UNROLLED = 256


def function(number, heads, keys, width):
    query, key = memref("bf16", 4, [1, heads, 1, width]), memref("bf16", 4, [1, keys, "?", width])
    return (f"func.func @f{number}(%q: {query}, %k: {key}, %l: memref<f32>, %o: {query}) {{\n"
            f"  diffattn.attention ins(%q, %k, %q, %k, %k : {query}, {key}, {query}, {key}, {key}) lambda(%l : memref<f32>)\n"
            f"      outs(%o : {query}) {{scale = 0.125 : f32}}\n  return\n}}\n")


@pytest.fixture(scope="module")
def assembly(build_dir, tmp_path_factory):
    """The functions of all shapes by name, each a list of its instructions."""
    source = tmp_path_factory.mktemp("decode") / "decode.mlir"
    source.write_text("".join(function(number, *shape) for number, shape in enumerate(SHAPES)))
    done = subprocess.run([str(build_dir / "bin/diffattn-run"), str(source), "--emit=assembly", "--target=cpu:amx"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    functions, body = {}, []
    for line in done.stdout.splitlines():
        if label := re.match(r"(?:\.L)?((?:diffattn_|f\d)\w*):", line):
            body = functions.setdefault(label[1], [])
        elif line.startswith("\t") and not line.startswith("\t."):
            body.append(line.strip())
    return functions


@pytest.mark.parametrize("heads, keys, width", SHAPES)
def test_products_of_a_tile_of_keys(assembly, heads, keys, width):
    rows, columns = heads // keys, width + width % 2
    steps = -(-columns // 32) if columns // 32 * 32 <= UNROLLED else 1 + (columns % 32 > 0)
    blocks = [16] * (rows >= 16) + [rows % 16] * (rows % 16 > 0)
    for block in blocks:
        body = assembly[f"diffattn_tile_few_scores_{block}x{columns}_bf16_ahead_16_amx"]
        count = lambda name: sum(line.startswith(name) for line in body)
        assert count("tdpbf16ps") == steps, (block, width)
        # Sums are stored once for 16 keys, and no tile on the stack.
        assert count("tilestored") == 1 and not any(line.startswith("tile") and "%rsp" in line for line in body)
        assert count("ldtilecfg") == count("tilerelease") == 1
        assert count("call") == 0


def test_the_emulation_rounds_nothing(build_dir, tmp_path):
    """Numbers of narrow tiles are moved as they are: a vector of few bf16 is easily taken for floats that a call rounds."""
    source = tmp_path / "narrow.mlir"
    source.write_text("".join(function(number, rows, 1, 48) for number, rows in enumerate((1, 2, 3))))
    done = subprocess.run([str(build_dir / "bin/diffattn-run"), str(source), "--emit=assembly", "--target=cpu:amx-emulated"], capture_output=True, text=True)
    assert done.returncode == 0 and "emulated_tdpbf16ps_16x1x16" in done.stdout
    assert "__truncsfbf2" not in done.stdout


def test_no_other_function_of_decode_holds_tiles(assembly):
    for name, body in assembly.items():
        if not name.startswith("diffattn_tile_"):
            assert not any("tile" in line.split()[0] or line.startswith("tdp") for line in body), name
