"""Convolutions and pools of ONNX, with pads of every kind, against PyTorch's."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto as T
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
    with pytest.raises(errors.CompileError, match="'Conv', which makes 'y': expected Conv with auto_pad of known sizes, or with strides of 1"):
        load(made)


@pytest.mark.parametrize("options, pad", [({}, 0), ({"pads": [1, 1, 1, 1], "output_padding": [1, 0]}, 1)])
def test_transposed_convolutions(load, options, pad):
    weight = normal(4, 3, 3, 2)
    made = model([node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **options)], [("x", T.FLOAT, ["b", 4, "h", 8])], [("y", T.FLOAT, [None] * 4)], {"w": weight})
    want = F.conv_transpose2d(torch.from_numpy(X), torch.from_numpy(weight), stride=2, padding=pad, output_padding=options.get("output_padding", 0))
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
@pytest.mark.parametrize("sizes", [["b", 4, 9, 8], ["b", "c", "h", "w"]])
def test_pools(load, kind, sizes):
    """Also by dilated windows, with uneven pads, and where sizes are rounded up or follow from the strides. A NaN is in the windows that have
    it."""
    even, uneven, cases, x = {"pads": [1, 1, 1, 1]}, {"pads": [1, 0, 1, 1]}, [], X.copy()
    x[0, 0, 4, 4] = np.nan
    for counts in (0, 1) if kind == "AveragePool" else (0,):
        cases += [(even, [3, 3], [2, 2], [1, 1], (1, 1), (1, 1), (0, 0), counts), (even, [3, 3], [1, 1], [2, 1], (1, 1), (1, 1), (0, 0), counts),
                  (uneven, [3, 2], [2, 2], [1, 1], (1, 0), (1, 1), (0, 0), counts), ({"auto_pad": "SAME_UPPER"}, [3, 3], [2, 2], [1, 1], (1, 0), (1, 1), (0, 0), counts),
                  ({"auto_pad": "SAME_LOWER"}, [2, 3], [1, 2], [1, 1], (1, 1), (0, 0), (0, 0), counts), ({"auto_pad": "SAME_UPPER"}, [3, 3], [1, 1], [1, 1], (1, 1), (1, 1), (0, 0), counts)]
    if kind == "MaxPool":
        cases += [({"ceil_mode": 1}, [2, 3], [2, 2], [1, 1], (0, 0), (0, 0), (1, 1), 0), ({**even, "ceil_mode": 1}, [3, 3], [2, 2], [1, 1], (1, 1), (1, 1), (0, 1), 0)]
    if "h" in sizes:
        cases = [one for one in cases if one[0] is even or "ceil_mode" in one[0] or kind == "AveragePool" and one[0] is uneven or one[0].get("auto_pad") == "SAME_UPPER" and one[2] == [1, 1]]
    nodes = [node(kind, ["x"], [f"y{n}"], kernel_shape=kernel, strides=strides, dilations=dilations, **options, **({"count_include_pad": counts} if kind == "AveragePool" else {}))
             for n, (options, kernel, strides, dilations, *_, counts) in enumerate(cases)]
    made = model(nodes, [("x", T.FLOAT, sizes)], [(one.output[0], T.FLOAT, [None] * 4) for one in nodes])
    for (options, *case, counts), got in zip(cases, load(made)(x), strict=True):
        np.testing.assert_allclose(got, pooled(x, *case, kind, counts), rtol=1e-5, atol=1e-6, err_msg=f"{options} {case} {counts}")


@pytest.mark.parametrize("kind, options, sizes, message", [
    ("MaxPool", {"auto_pad": "SAME_UPPER", "strides": [2, 2], "kernel_shape": [3, 3]}, "hw", "MaxPool with auto_pad of known sizes, or with strides of 1, but got others"),
    ("AveragePool", {"ceil_mode": 1}, [6, 6], "AveragePool without ceil_mode, but got it"), ("MaxPool", {"ceil_mode": 1, "pads": [0, 0, 1, 1]}, [6, 6], "MaxPool with even pads, or without ceil_mode"),
    ("MaxPool", {"ceil_mode": 1, "auto_pad": "VALID"}, [6, 6], "MaxPool with even pads, or without ceil_mode"), ("MaxPool", {"pads": [1, 0, 1, 1]}, "hw", "MaxPool with even pads, or of known sizes"),
    ("AveragePool", {"pads": [1, 0, 1, 1], "dilations": [2, 3], "count_include_pad": 1}, [6, 6], "AveragePool with even pads, or without dilations")])
def test_pools_that_are_refused(load, kind, options, sizes, message):
    made = model([node(kind, ["x"], ["y"], **{"kernel_shape": [2, 2], **options})], [("x", T.FLOAT, [1, 2, *sizes])], [("y", T.FLOAT, [None] * 4)])
    with pytest.raises(errors.CompileError, match=f"'{kind}', which makes 'y': expected {message}"):
        load(made)
