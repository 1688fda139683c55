"""Promises of the pipeline about every model's lowered IR: attention is fused and reads its operands where they were made."""
import re

import pytest

from diffattn import models
from test_builders import SMALL, opt  # noqa: F401

VIEWS = re.compile(r"(%\w+) = memref\.(?:expand_shape|collapse_shape|subview|cast|reinterpret_cast) (%\w+)")
CACHE = re.compile(r"memref<\d+x\?x(\?|\d+)x\d+x\d+x\w+>")
#: Input of the convolution of a Mamba layer: inputs before a chunk, and behind them those of the chunk, which are moved there.
INPUTS = re.compile(r"memref<\?x\?x64xf32>")


class Buffers:
    """Views and writers of the buffers of one function after bufferization."""

    def __init__(self, text):
        self.views = dict(VIEWS.findall(text))
        self.lines = text.splitlines()
        self.text = text

    def root(self, name):
        while name in self.views:
            name = self.views[name]
        return name

    def writers(self, root):
        """(line, whether it only moves elements) for each op that writes to `root`."""
        for i, line in enumerate(self.lines):
            copied = re.search(r"memref\.copy %\w+, (%\w+)", line)
            written = re.search(r"(?:linalg\.\w+|diffattn\.\w+) .*outs\((%\w+)", line)
            if copied and self.root(copied[1]) == root:
                yield line, True
            elif written and self.root(written[1]) == root:
                # A bias that a product is added to is no move of an operand.
                bias = re.search(r"ins\((%\w+) : memref<\d+x\w+>\)", line)
                yield line, "linalg.generic" in line and "linalg.yield" in self.lines[i + 2] and not bias


def functions(text):
    return re.findall(r"^  func\.func .*?^  }$", text, re.M | re.S)


def is_argument(function, name):
    return re.search(rf"{name}: memref", function.splitlines()[0]) is not None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", models.BUILDERS)
def test_attention_reads_its_operands_where_they_were_made(kind, dtype, opt):  # noqa: F811
    source = str(models.build(SMALL | {"model_type": kind}, dtype))
    text = opt(source, "--diffattn-cpu-pipeline=until=bufferized")
    count = 0
    for function in functions(text):
        buffers = Buffers(function)
        for line in buffers.lines:
            if "diffattn.attention ins" not in line:
                continue
            count += 1
            operands = re.search(r"ins\(([^:]*):", line)[1].split(",")
            for operand in [buffers.root(name.strip()) for name in operands]:
                if is_argument(function, operand):
                    continue  # a cache
                moved = [writer for writer, moves in buffers.writers(operand) if moves]
                assert not moved, f"{operand} of\n{line}\nis rearranged by\n{moved}"
            result = buffers.root(re.search(r"outs\((%\w+)", line)[1])
            copies = [other for other in buffers.lines
                      if (move := re.search(r"memref\.copy (%\w+),", other)) and buffers.root(move[1]) == result]
            assert not copies, f"the result of\n{line}\nis moved by\n{copies}"
    assert count == source.count("diffattn.attention ins")


@pytest.mark.parametrize("kind", models.BUILDERS)
def test_copies_are_of_new_rows_into_caches_only(kind, opt):  # noqa: F811
    text = opt(str(models.build(SMALL | {"model_type": kind})), "--diffattn-cpu-pipeline=until=bufferized")
    for function in functions(text):
        buffers = Buffers(function)
        for line in buffers.lines:
            copy = re.search(r"memref\.copy (%\w+), (%\w+) : (\S+)", line)
            if not copy or re.match(r"memref<i\d+>", copy[3]):
                continue
            source, target = buffers.root(copy[1]), buffers.root(copy[2])
            kinds = dict(re.findall(r"(%\w+): (memref<[^ ,)]*)", buffers.lines[0]))
            if "@mamba_layer(" in buffers.lines[0]:
                made = re.search(rf"{re.escape(target)} = memref.alloc\(.*: (memref<\S*)", buffers.text)
                assert made and INPUTS.match(made[1]), line
                continue
            assert CACHE.match(kinds.get(target, "")), line
            assert not CACHE.match(kinds.get(source, "")), line


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", models.BUILDERS)
def test_one_nest_and_one_call_a_product(kind, opt):  # noqa: F811
    source = str(models.build(SMALL | {"model_type": kind}))
    text = opt(source, "--diffattn-cpu-pipeline=until=loops")
    assert "diffattn.attention" not in text and "linalg." not in text
    products = len(re.findall(r"linalg\.(?:batch_)?matmul", source))
    assert len(re.findall(r"llvm\.call @diffattn_rt_(?:batch_)?gemm", text)) == products
    # For many queries one loop. For few, four: scores of blocks of keys, factors of rows, blocks times values, and the joining of blocks.
    # One kernel is there where their number is known (images, a decode step), both where it is not.
    text = re.sub(r"^  llvm\.func private @diffattn_gemv.*?^  }$", "", text, flags=re.M | re.S)
    kernels = text.count("llvm.call @diffattn_rt_parallel_for")
    assert kernels == {4: 5 + 5 + 5 + 4, 8: 5 * 5 + 3 * 4}.get(source.count("diffattn.attention ins"), 1 if kind.startswith("vit") else 5)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("kind", models.BUILDERS)
def test_compiles_to_the_llvm_dialect_alone(kind, dtype, opt):  # noqa: F811
    text = opt(str(models.build(SMALL | {"model_type": kind}, dtype)), "--diffattn-cpu-pipeline")
    assert set(re.findall(r"^ +(?:%\S+ = )?\"?(\w+)\.", text, re.M)) <= {"llvm"}
