"""Convolutions and pools of ONNX, with pads of every kind, against PyTorch's."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto as T
from onnx import helper
from onnx_cases import load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def padded(x, begin, end, value=0.0):
    return np.pad(x, [(0, 0), (0, 0), *zip(begin, end)], constant_values=value)


X = normal(2, 4, 9, 8)


def test_convolutions_whose_pads_follow_from_sizes(load):
    """Two axes of 9 and 8, one stride of which leaves an odd number of pads; without a bias, which an empty name says too."""
    weight, cases = normal(6, 2, 3, 2), [("SAME_UPPER", [2, 3], (1, 0), (1, 0)), ("SAME_LOWER", [2, 3], (1, 0), (1, 0)), ("SAME_UPPER", [1, 1], (1, 0), (1, 1)),
                                         ("SAME_LOWER", [1, 1], (1, 1), (1, 0))]
    nodes = [node("Conv", ["x", "w", ""], [f"y{n}"], auto_pad=kind, strides=strides, group=2) for n, (kind, strides, *_) in enumerate(cases)]
    made = model(nodes, [("x", T.FLOAT, ["b", 4, 9, 8])], [(one.output[0], T.FLOAT, [None] * 4) for one in nodes], {"w": weight})
    for (kind, strides, begin, end), got in zip(cases, load(made)(X), strict=True):
        want = F.conv2d(torch.from_numpy(padded(X, begin, end)), torch.from_numpy(weight), stride=strides, groups=2)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{kind} {strides}")
    made = model([node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])], [("x", T.FLOAT, ["b", 2, "h", 8])], [("y", T.FLOAT, [None] * 4)], {"w": weight})
    with pytest.raises(errors.CompileError, match=r"expected Conv with auto_pad of known sizes, or with strides of 1, but got strides \[2, 2\]"):
        load(made)


@pytest.mark.parametrize("options, begin, end", [({"pads": [1, 0, 2, 1]}, (1, 0), (2, 1)), ({"auto_pad": "SAME_UPPER"}, (0, 0), (1, 0)), ({"auto_pad": "SAME_LOWER"}, (1, 0), (0, 0)),
                                                 ({"pads": [0, 1, 1, 0], "output_padding": [1, 0]}, (0, 1), (1, 0)), ({"output_shape": [17, 16]}, (1, 0), (1, 0))])
def test_transposed_convolutions_of_uneven_pads(load, options, begin, end):
    weight = normal(4, 3, 3, 2)
    made = model([node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **options)], [("x", T.FLOAT, ["b", 4, *([9, 8] if "output_shape" in options else ["h", 8])])],
                 [("y", T.FLOAT, [None] * 4)], {"w": weight})
    whole = F.conv_transpose2d(torch.from_numpy(X), torch.from_numpy(weight), stride=2, output_padding=options.get("output_padding", 0)).numpy()
    want = whole[:, :, begin[0]:whole.shape[2] - end[0], begin[1]:whole.shape[3] - end[1]]
    np.testing.assert_allclose(load(made)(X), want, rtol=1e-4, atol=1e-5)


def pooled(x, kernel, strides, dilations, begin, end, more, kind, counts):
    """Every window by itself; `more` are places behind the pads, which no average counts."""
    fill = -np.inf if kind == "MaxPool" else 0
    wide = padded(padded(x.astype(np.float64), begin, end, fill), (0, 0), more, fill)
    counted = padded(padded(np.ones_like(x, np.float64), begin, end, float(counts)), (0, 0), more)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    made = np.empty([*x.shape[:2], *((size - extent) // stride + 1 for size, extent, stride in zip(wide.shape[2:], extents, strides))])
    for i, j in np.ndindex(*made.shape[2:]):
        at = (..., *(slice(n * stride, n * stride + extent, dilation) for n, stride, extent, dilation in zip((i, j), strides, extents, dilations)))
        made[..., i, j] = wide[at].max((-2, -1)) if kind == "MaxPool" else wide[at].sum((-2, -1)) / counted[at].sum((-2, -1))
    return made


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pools_of_uneven_pads(load, kind):
    """Also by dilated windows, and where sizes are rounded up or follow from the strides. A NaN is in the windows that have it."""
    pads, cases, x = {"pads": [1, 0, 1, 1]}, [], X.copy()
    x[0, 0, 4, 4] = np.nan
    for counts in (0, 1) if kind == "AveragePool" else (0,):
        cases += [(pads, [3, 2], [2, 2], [1, 1], (1, 0), (1, 1), (0, 0), counts), (pads, [2, 2], [1, 1], [2, 3], (1, 0), (1, 1), (0, 0), counts),
                  ({"pads": [1, 0, 1, 1], "ceil_mode": 1}, [3, 2], [3, 3], [1, 1], (1, 0), (1, 1), (1, 0), counts), ({"pads": [0, 0, 0, 0], "ceil_mode": 1}, [2, 3], [2, 2], [1, 1], (0, 0), (0, 0), (1, 1), counts),
                  ({"auto_pad": "SAME_UPPER"}, [3, 3], [2, 2], [1, 1], (1, 0), (1, 1), (0, 0), counts), ({"auto_pad": "SAME_LOWER"}, [2, 3], [1, 2], [1, 1], (1, 1), (0, 0), (0, 0), counts)]
    for sizes in (["b", 4, 9, 8], ["b", "c", "h", "w"]):
        known = [one for one in cases if "h" not in sizes or "pads" in one[0] and "ceil_mode" not in one[0]]
        nodes = [node(kind, ["x"], [f"y{n}"], kernel_shape=kernel, strides=strides, dilations=dilations, **options, **({"count_include_pad": counts} if kind == "AveragePool" else {}))
                 for n, (options, kernel, strides, dilations, *_, counts) in enumerate(known)]
        made = model(nodes, [("x", T.FLOAT, sizes)], [(one.output[0], T.FLOAT, [None] * 4) for one in nodes])
        for (options, *case, counts), got in zip(known, load(made)(x), strict=True):
            np.testing.assert_allclose(got, pooled(x, *case, kind, counts), rtol=1e-5, atol=1e-6, err_msg=f"{options} {case} {counts}")


def test_pools_of_bytes(load):
    x = np.random.default_rng(0).integers(0, 255, (1, 2, 6, 6)).astype(np.uint8)
    made = model([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])], [("x", T.UINT8, ["b", 2, 6, 6])], [("y", T.UINT8, [None] * 4)])
    np.testing.assert_array_equal(load(made)(x), np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).max((-2, -1)))


@pytest.mark.parametrize("kind, options, outputs, message", [
    ("MaxPool", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, ["y"], r"expected MaxPool with auto_pad of known sizes, .* but got strides \[2, 2\]"), ("MaxPool", {}, ["y", "places"], "without the places .* as 'places'"),
    ("MaxPool", {"pads": [0, 0, 1, 1], "ceil_mode": 1}, ["y"], r"with ceil_mode and these pads of known sizes, but got pads \[0, 0, 1, 1\]"),
    ("AveragePool", {"ceil_mode": 1, "count_include_pad": 1}, ["y"], r"with ceil_mode and these pads of known sizes, but got pads \[0, 0, 0, 0\]")])
def test_pools_that_are_refused(load, kind, options, outputs, message):
    made = model([node(kind, ["x"], outputs, kernel_shape=[2, 2], **options)], [("x", T.FLOAT, [1, 2, "h", "w"])], [("y", T.FLOAT, [None] * 4)])
    with pytest.raises(errors.CompileError, match=message):
        load(made)


@pytest.mark.parametrize("sizes, size", [(["b", 7, "h", "w"], 3), ([2, 7, 4], 4)])
def test_local_responses(load, sizes, size):
    """Of an even number of channels, one more counts behind a channel than before it."""
    x = normal(2, 7, 4, 3)[:, :, :, 0] if len(sizes) == 3 else normal(2, 7, 4, 3)
    made = model([node("LRN", ["x"], ["y"], size=size, alpha=0.1, beta=0.6, bias=2.0)], [("x", T.FLOAT, sizes)], [("y", T.FLOAT, [None] * len(sizes))])
    squares = np.stack([(x.astype(np.float64)[:, max(0, c - (size - 1) // 2):c + size // 2 + 1] ** 2).sum(1) for c in range(7)], 1)
    np.testing.assert_allclose(load(made)(x), x / (2 + 0.1 / size * squares) ** 0.6, rtol=1e-5)
