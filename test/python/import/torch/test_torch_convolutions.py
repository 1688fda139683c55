"""Convolutions beside eager PyTorch: as products of matrices, by tiles where there is much to copy, and as loops."""
import pytest

torch = pytest.importorskip("torch")

import diffattn  # noqa: E402

pytestmark = pytest.mark.oracle

#: Channels and image, channels of the result, filter, options.
CASES = {
    "one axis": ((80, 100), 24, (3,), {"padding": 1}), "one axis, steps": ((8, 101), 12, (3,), {"stride": 2, "padding": 1}),
    "two axes": ((16, 12, 10), 8, (3, 3), {"padding": 1}), "apart": ((4, 19, 23), 6, (2, 5), {"stride": (2, 1), "dilation": (2, 3), "padding": (1, 0)}),
    "patches": ((3, 32, 32), 20, (16, 16), {"stride": 16}), "one element": ((6, 7, 9), 5, (1, 1), {}), "one element, steps": ((6, 7, 9), 5, (1, 1), {"stride": 2}),
    "one place": ((5, 4, 4), 7, (4, 4), {}), "one channel": ((1, 9, 9), 1, (3, 3), {}), "three axes": ((2, 5, 6, 7), 3, (2, 3, 2), {"padding": 1}),
    "groups": ((8, 9, 9), 12, (3, 3), {"groups": 4}), "groups, products": ((12, 9, 8), 24, (3, 3), {"groups": 3, "stride": (2, 1)}),
    "groups, one axis": ((20, 50), 20, (9,), {"groups": 2}), "channels by themselves, twice": ((6, 20, 20), 12, (3, 5), {"groups": 6, "stride": 2}),
    "depthwise, large": ((5, 12, 40), 5, (9, 9), {"groups": 5, "padding": 4}), "depthwise, one axis": ((6, 70), 6, (4,), {"groups": 6, "padding": 3}), "depthwise": ((8, 9, 9), 8, (3, 3), {"groups": 8, "padding": 1}),
    # 53 rows have no divisor: one row at a time.
    "tiles": ((64, 26, 126), 5, (3, 3), {}), "rows": ((64, 55, 126), 3, (3, 3), {}),
}


class Convolution(torch.nn.Module):
    def __init__(self, channels, result, kernel, bias, options):
        super().__init__()
        kind = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[len(kernel) - 1]
        self.layer = kind(channels, result, kernel, bias=bias, **options)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_convolutions(case, dtype):
    (channels, *image), result, kernel, options = CASES[case]
    torch.manual_seed(0)
    module = Convolution(channels, result, kernel, case != "patches", options).to(dtype).eval()
    x = torch.randn(2 if case in ("rows", "two axes", "one element", "groups, products") else 1, channels, *image).to(dtype)
    want = Convolution(channels, result, kernel, case != "patches", options).double()
    want.load_state_dict({name: value.double() for name, value in module.state_dict().items()})
    torch.testing.assert_close(diffattn.compile(module, (x,))(x), want(x.double()).to(dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-4,
                               atol=1e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("groups", [1, 3, 6])
@torch.no_grad()
def test_any_number_of_images(groups):
    module = Convolution(6, 24 if groups == 3 else 6, (3, 3), True, {"padding": 1, "groups": groups}).eval()
    compiled = diffattn.compile(module, (torch.randn(2, 6, 8, 8),), dynamic_shapes=({0: torch.export.Dim("images")},))
    for count in (1, 2, 5):
        x = torch.randn(count, 6, 8, 8)
        got = compiled(x)
        torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-5)
        # An image has the same numbers in any batch.
        torch.testing.assert_close(got[-1:], compiled(x[-1:]), rtol=0, atol=0)


@torch.no_grad()
def test_nan_and_infinity_reach_what_the_filter_reads_them_for():
    module = Convolution(3, 4, (3, 3), True, {"padding": 1}).eval()
    x = torch.randn(1, 3, 9, 9)
    x[0, 1, 2, 3], x[0, 0, 7, 7] = float("nan"), float("inf")
    got, want = diffattn.compile(module, (x,))(x), module(x)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
