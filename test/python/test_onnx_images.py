"""Images that are read at places which are computed, cut, filled, and turned around."""
import numpy as np
import pytest
import torch
from onnx import TensorProto as T
from onnx_cases import load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("opset, sizes", [(16, ["b", "r", "c", 2]), (20, [2, 6, 7, 2])])
def test_places_in_images(load, opset, sizes):
    """Also outside of the image, each against PyTorch's."""
    grid = np.random.default_rng(1).uniform(-2.5, 2.5, (2, 6, 7, 2)).astype(np.float32)
    cases = [("bilinear", "zeros", 0), ("bilinear", "reflection", opset // 20), ("bilinear", "border", 1), ("nearest", "zeros", 1), ("nearest", "reflection", 0), ("nearest", "border", 0)][opset == 20::2]
    nodes = [node("GridSample", ["x", "grid"], [f"{mode} {padding} {align}"], mode="linear" if opset == 20 and mode == "bilinear" else mode, padding_mode=padding, align_corners=align) for mode, padding, align in cases]
    made = model(nodes, [("x", T.FLOAT, ["b" if "b" in sizes else 2, 3, 4, 5]), ("grid", T.FLOAT, sizes)], [(one.output[0], T.FLOAT, [None] * 4) for one in nodes], opset=opset)
    for (mode, padding, align), got in zip(cases, load(made)(X, grid), strict=True):
        want = torch.nn.functional.grid_sample(torch.from_numpy(X), torch.from_numpy(grid), mode, padding, bool(align))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{mode} {padding} {align}")


def test_places_that_are_refused(load):
    for sizes, mode in ((["b", 3, "h", 5], "linear"), ([2, 3, 4, 5], "cubic")):
        made = model([node("GridSample", ["x", "grid"], ["y"], mode=mode)], [("x", T.FLOAT, sizes), ("grid", T.FLOAT, [2, 6, 7, 2])], [("y", T.FLOAT, [None] * 4)])
        with pytest.raises(errors.CompileError, match=f"expected GridSample by mode linear or nearest of .* of known sizes, but got mode {mode} and sizes"):
            load(made)


def test_middles_of_images(load):
    """Cut or filled; what is odd is cut behind less, and filled behind more."""
    made = model([node("CenterCropPad", ["x", "s"], ["y"], axes=[-1, 1])], [("x", T.FLOAT, ["b", 3, "h", 5])], [("y", T.FLOAT, [None] * 4)], {"s": np.array([2, 6])})
    np.testing.assert_array_equal(load(made)(X), np.pad(X[..., 1:3], [(0, 0), (1, 2), (0, 0), (0, 0)]))
    made = model([node("CenterCropPad", ["x", "s"], ["y"], axes=[2])], [("x", T.FLOAT, ["b", 3, "h", 5])], [("y", T.FLOAT, [None] * 4)], {"s": np.array([2])})
    with pytest.raises(errors.CompileError, match="expected CenterCropPad along axes of known sizes"):
        load(made)


@pytest.mark.parametrize("sizes", [[2, 3, 4, 5], ["b", 3, "h", "w"]])
def test_slices_and_pads_beyond_the_image(load, sizes):
    """Backwards from behind the last element, and pads below 0."""
    nodes = [node("Slice", ["x", "start", "end", "axis", "step"], ["a"]), *(node("Pad", ["x", "pads"], [mode], mode=mode) for mode in ("constant", "edge"))]
    made = model(nodes, [("x", T.FLOAT, sizes)], [(one.output[0], T.FLOAT, [None] * 4) for one in nodes],
                 {"start": np.array([2**31 - 1, 2**63 - 1]), "end": np.array([-2**31, 0]), "axis": np.array([3, 2]), "step": np.array([-1, -2]), "pads": np.array([0, 0, -1, 2, 0, 0, 1, -1])})
    a, *padded = load(made)(X)
    np.testing.assert_array_equal(a, X[:, :, :0:-2, ::-1])
    for got, mode in zip(padded, ("constant", "edge")):
        np.testing.assert_array_equal(got, np.pad(X[:, :, 1:, :-1], [(0, 0), (0, 0), (0, 1), (2, 0)], mode=mode))


def test_blocks_of_another_order_are_refused(load):
    made = model([node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD")], [("x", T.FLOAT, [1, 1, 4, 4])], [("y", T.FLOAT, [1, 4, 2, 2])], opset=28)
    made.ir_version = 13
    with pytest.raises(errors.CompileError, match="expected SpaceToDepth of mode DCR, but got CRD"):
        load(made)
