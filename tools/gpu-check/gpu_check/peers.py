"""PyTorch's ways to the same result, each a function that makes a call: (case, tensors, backend) -> function."""
import contextlib

import torch

from . import cases, exact_attention

sdpa = torch.nn.functional.scaled_dot_product_attention


def backend(name):
    """Only this backend of scaled_dot_product_attention; "any" leaves the choice to PyTorch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kinds = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "math": "MATH"}
    return sdpa_kernel([getattr(SDPBackend, kinds[name])]) if name in kinds else contextlib.nullcontext()


def _maps(case, tensors, which):
    """Both maps by two calls, V as it is."""
    causal = case.causal and tensors["q1"].shape[2] > 1
    with backend(which):
        return (sdpa(tensors["q1"], tensors["k1"], tensors["v"], is_causal=causal, scale=cases.SCALE),
                sdpa(tensors["q2"], tensors["k2"], tensors["v"], is_causal=causal, scale=cases.SCALE))


def _halves(case, tensors, which):
    """Both maps by four calls, as flash kernels want: V in two halves of the width of Q."""
    causal = case.causal and tensors["q1"].shape[2] > 1
    half = case.dv // 2
    parts = tensors["v"][..., :half], tensors["v"][..., half:]
    with backend(which):
        return [sdpa(tensors[q], tensors[k], part, is_causal=causal, scale=cases.SCALE)
                for q, k in (("q1", "k1"), ("q2", "k2")) for part in parts]


def two_kernels(case, tensors, which):
    """The two calls alone: no difference, no tail."""
    return lambda: list(_maps(case, tensors, which))


def _end(case, tensors, first, second):
    return exact_attention.tail(case, tensors, first - tensors["lambda"].to(first.dtype) * second)


def two_calls(case, tensors, which):
    return lambda: _end(case, tensors, *_maps(case, tensors, which))


def one_call(case, tensors, which):
    """One call of scaled_dot_product_attention, for a single map."""
    causal = case.causal and tensors["q1"].shape[2] > 1

    def run():
        with backend(which):
            return exact_attention.tail(case, tensors, sdpa(tensors["q1"], tensors["k1"], tensors["v"], is_causal=causal, scale=cases.SCALE))
    return run


def four_calls(case, tensors, which):
    def run():
        a, b, c, d = _halves(case, tensors, which)
        return _end(case, tensors, torch.cat([a, b], -1), torch.cat([c, d], -1))
    return run


def four_kernels(case, tensors, which):
    """The four calls alone: no difference, no tail."""
    return lambda: _halves(case, tensors, which)


def compiled(case, tensors, which):
    """Two calls, and what follows them by torch.compile."""
    # Without a GPU the code is tried, not timed: no compiler is needed then.
    compiler = "inductor" if tensors["q1"].is_cuda else "eager"
    end = torch.compile(lambda first, second: _end(case, tensors, first, second), dynamic=False, backend=compiler)
    return lambda: end(*_maps(case, tensors, which))


def naive(case, tensors, which):
    """The module as it is published without kernels: the maps in memory, their difference times V."""
    del which
    tq, tk = tensors["q1"].shape[2], tensors["k1"].shape[2]
    mask = torch.full((tq, tk), float("-inf"), dtype=tensors["q1"].dtype, device=tensors["q1"].device).triu(1) if case.causal else None

    def one_map(q, k):
        scores = (q * cases.SCALE) @ k.transpose(-1, -2)
        scores = scores if mask is None else scores + mask
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)

    def run():
        weights = one_map(tensors["q1"], tensors["k1"]) - tensors["lambda"].to(tensors["v"].dtype) * one_map(tensors["q2"], tensors["k2"])
        return exact_attention.tail(case, tensors, weights @ tensors["v"])
    return run


def triton_kernel(case, tensors, which):
    """triton_diff_attention.py; `which` may be the sizes of its blocks."""
    from . import triton_diff_attention
    out = torch.empty_like(tensors["o"])
    return lambda: triton_diff_attention.forward(
        tensors["q1"], tensors["k1"], tensors["q2"], tensors["k2"], tensors["v"], tensors["lambda"], out, scale=cases.SCALE,
        causal=case.causal, norm=case.norm, weight=tensors.get("weight"), eps=cases.EPS, out_scale=case.out_scale,
        blocks=which if isinstance(which, tuple) else None)


# name -> (maker, backend). The first part of a name tells what runs, the second what follows it.
PEERS = {
    "flash x4, kernels alone": (four_kernels, "flash"),
    "flash x4, eager tail": (four_calls, "flash"),
    "cuDNN x2, kernels alone": (two_kernels, "cudnn"),
    "cuDNN x2, eager tail": (two_calls, "cudnn"),
    "cuDNN x2, compiled tail": (compiled, "cudnn"),
    "cuDNN x4, eager tail": (four_calls, "cudnn"),
    "PyTorch's choice x2, eager tail": (two_calls, "any"),
    "flash x1": (one_call, "flash"),
    "cuDNN x1": (one_call, "cudnn"),
    "PyTorch's choice x1": (one_call, "any"),
    "naive, eager": (naive, ""),
    "Triton, both maps": (triton_kernel, ""),
}
