"""Edifice's differential transformer in f64 NumPy, written from its definition around the oracle of attention, and random weights for it."""
import math

import attention_reference
import numpy as np


def lambda_init(layer):
    """lambda_init of the layer with 1-based number `layer`."""
    return 0.8 - 0.6 * math.exp(-0.3 * max(layer - 1, 0))


def attention_names(prefix, hidden):
    for name, columns in (("q", 2 * hidden), ("k", 2 * hidden), ("v", hidden), ("out", hidden)):
        yield f"{prefix}_{name}_proj.kernel", (hidden, columns)
        yield f"{prefix}_{name}_proj.bias", (columns,)
    yield f"{prefix}_compute.{prefix}_lambda", ()
    yield f"{prefix}_compute.{prefix}_rms_scale", (hidden,)


def names(embed, hidden, layers):
    if embed != hidden:
        yield "input_projection.kernel", (embed, hidden)
        yield "input_projection.bias", (hidden,)
    for i in range(1, layers + 1):
        block = f"diff_block_{i}"
        yield from attention_names(f"{block}_attn", hidden)
        for norm in (f"{block}_attn_norm", f"{block}_ffn_norm"):
            yield f"{norm}.gamma", (hidden,)
            yield f"{norm}.beta", (hidden,)
        for name, rows, columns in (("up", hidden, 4 * hidden), ("down", 4 * hidden, hidden)):
            yield f"{block}_ffn_{name}.kernel", (rows, columns)
            yield f"{block}_ffn_{name}.bias", (columns,)
    yield "final_norm.gamma", (hidden,)
    yield "final_norm.beta", (hidden,)


def random_weights(names, seed=0):
    """Axon's way of starting: Glorot-uniform kernels and gammas, and here biases that are not zero."""
    generator, weights = np.random.default_rng(seed), {}
    for name, shape in names:
        if len(shape) == 2:
            bound = math.sqrt(6 / sum(shape))
        else:
            bound = math.sqrt(3) if "gamma" in name else 0.5
        value = generator.uniform(-bound, bound, shape)
        if name.endswith("_lambda"):
            value = np.float64(0.2 + 0.3 * value)
        weights[name] = np.asarray(value, np.float32)
    return weights


def attention(w, prefix, x, heads):
    batch, length, hidden = x.shape
    width = hidden // heads

    def project(name):
        rows = x @ w[f"{prefix}_{name}_proj.kernel"] + w[f"{prefix}_{name}_proj.bias"]
        return rows.reshape(batch, length, -1, width).transpose(0, 2, 1, 3)

    q, k, v = project("q"), project("k"), project("v")
    mixed, _ = attention_reference.attention(q[:, :heads], k[:, :heads], q[:, heads:], k[:, heads:], v, w[f"{prefix}_compute.{prefix}_lambda"],
                                             scale=width**-0.5, is_causal=True)
    rows = mixed.transpose(0, 2, 1, 3).reshape(batch, length, hidden)
    rms = np.sqrt((rows**2).mean(-1, keepdims=True)) + 1e-6
    rows = rows / rms * w[f"{prefix}_compute.{prefix}_rms_scale"]
    return rows @ w[f"{prefix}_out_proj.kernel"] + w[f"{prefix}_out_proj.bias"]


def layer_norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.gamma"] + w[f"{name}.beta"]


def model(w, x, heads, layers, mode="last_timestep"):
    w = {name: value.astype(np.float64) for name, value in w.items()}
    x = x.astype(np.float64)
    erf = np.vectorize(math.erf)
    if "input_projection.kernel" in w:
        x = x @ w["input_projection.kernel"] + w["input_projection.bias"]
    for i in range(1, layers + 1):
        block = f"diff_block_{i}"
        x = x + attention(w, f"{block}_attn", layer_norm(w, f"{block}_attn_norm", x), heads)
        y = layer_norm(w, f"{block}_ffn_norm", x) @ w[f"{block}_ffn_up.kernel"] + w[f"{block}_ffn_up.bias"]
        y = y * 0.5 * (1 + erf(y / math.sqrt(2)))
        x = x + y @ w[f"{block}_ffn_down.kernel"] + w[f"{block}_ffn_down.bias"]
    x = layer_norm(w, "final_norm", x)
    return {"last_timestep": x[:, -1], "all": x, "mean_pool": x.mean(1)}[mode]
