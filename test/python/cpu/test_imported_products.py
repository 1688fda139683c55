"""Linear layers as importers write them: the weight transposed, and repeated for a batch, by ops of their own."""
import numpy as np
import pytest

import diffattn
from diffattn import runtime

#: y = x W^T of [B, T, 64] and [96, 64]. %w is what a test says it is.
LAYER = """
func.func @layer({arguments}) -> tensor<?x?x96xf32> {{
  {weight}
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %b = tensor.dim %x, %c0 : tensor<?x?x64xf32>
  %t = tensor.dim %x, %c1 : tensor<?x?x64xf32>
  %e = tensor.empty() : tensor<64x96xf32>
  %turned = linalg.transpose ins(%w : tensor<96x64xf32>) outs(%e : tensor<64x96xf32>) permutation = [1, 0]
  %many = tensor.empty(%b) : tensor<?x64x96xf32>
  %repeated = linalg.broadcast ins(%turned : tensor<64x96xf32>) outs(%many : tensor<?x64x96xf32>) dimensions = [0]
  %init = tensor.empty(%b, %t) : tensor<?x?x96xf32>
  %f = linalg.fill ins(%zero : f32) outs(%init : tensor<?x?x96xf32>) -> tensor<?x?x96xf32>
  %y = linalg.batch_matmul ins(%x, %repeated : tensor<?x?x64xf32>, tensor<?x64x96xf32>) outs(%f : tensor<?x?x96xf32>) -> tensor<?x?x96xf32>
  return %y : tensor<?x?x96xf32>
}}"""
W = np.random.default_rng(0).standard_normal((96, 64), np.float32)
X = "%x: tensor<?x?x64xf32>"


def constant():
    return LAYER.format(arguments=X, weight=f'%w = arith.constant dense<"0x{W.tobytes().hex().upper()}"> : tensor<96x64xf32>')


def extern():
    load = "%w = ml_program.global_load_const @w : tensor<96x64xf32>"
    return "ml_program.global private @w(#ml_program.extern<tensor<96x64xf32>>) : tensor<96x64xf32>\n" + LAYER.format(
        arguments=X, weight=load)


def argument():
    return LAYER.format(arguments=X + ", %w: tensor<96x64xf32>", weight="")


@pytest.fixture
def weights(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": W}, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def check(call, *more):
    rng = np.random.default_rng(1)
    for shape in ((1, 1), (3, 1), (1, 9), (2, 7), (0, 3)):
        x = rng.standard_normal((*shape, 64), np.float32)
        y = call("layer", x, *more)[0]
        np.testing.assert_allclose(y, x.astype(np.float64) @ W.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_invariant", [True, None, False])
@pytest.mark.parametrize("module, packs", [(constant, 1), (extern, 1), (argument, 0)])
def test_a_weight_is_packed_once(module, packs, batch_invariant, weights):
    """An argument may hold something else in the next call, so it is read where it lies."""
    executable = runtime.Executable(module(), batch_invariant=batch_invariant, cache=False,
                                    weights=[weights] if module is extern else ())
    runtime.reset_counters()
    check(executable.call, *[W] * (module is argument))
    first = runtime.counters()
    check(executable.call, *[W] * (module is argument))
    assert runtime.counters().packs == first.packs
    assert first.packs == packs or (batch_invariant is not True and first.packs <= packs)


@pytest.mark.parametrize("module", [constant, extern, argument])
def test_no_copy_of_the_weight_is_made(module):
    text = runtime.emit(module(), "bufferized").decode()
    assert text.count("diffattn.gemm") == 1
    assert "linalg.transpose" not in text and "linalg.broadcast" not in text and "linalg.generic" not in text
    assert "memref.copy" not in text


def test_a_bundle_packs_its_constants(tmp_path):
    runtime.write_bundle(constant(), tmp_path / "layer.bundle", batch_invariant=True)
    for _ in range(2):  # the second one is loaded when the first has freed what it packed
        code = diffattn.bundle.BundledCode(tmp_path / "layer.bundle")
        runtime.reset_counters()
        check(code.call)
        check(code.call)
        assert runtime.counters().packs == 1
        del code
