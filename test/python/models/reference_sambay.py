"""Phi-4-mini-flash (SambaY) in float64: every layer of every token, no caches, one step of the recurrence after another."""
import math

import numpy as np
from reference_f64 import causal, differential_heads, joined_pairs, lambda_init, layer_norm, rms_norm, silu, vectors_lambda


def sizes(config):
    """Inner width, states, taps and rank of a Mamba layer."""
    hidden, rank = config["hidden_size"], config.get("mamba_dt_rank", "auto")
    return (config.get("mamba_expand", 2) * hidden, config.get("mamba_d_state", 16), config.get("mamba_d_conv", 4),
            math.ceil(hidden / 16) if rank == "auto" else rank)


def kind_of(config, i):
    half = config["num_hidden_layers"] // 2
    if i % 2 == 0:
        return "mamba" if i <= half else "gmu"
    return "window" if i < half else "full" if i == half + 1 else "cross"


def shapes(config):
    """Names and shapes of all weights."""
    hidden, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    d = hidden // heads
    inner, states, taps, rank = sizes(config)
    result = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    result |= {f"model.final_layernorm.{part}": (hidden,) for part in ("weight", "bias")}
    if not config.get("tie_word_embeddings", True):
        result["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        kind = kind_of(config, i)
        if kind in ("mamba", "gmu"):
            layer = {"in_proj.weight": (inner * (2 if kind == "mamba" else 1), hidden), "out_proj.weight": (hidden, inner)}
            if config.get("mamba_proj_bias"):
                layer |= {name.replace("weight", "bias"): shape[:1] for name, shape in layer.items()}
            if kind == "mamba":
                layer |= {"conv1d.weight": (inner, 1, taps), "x_proj.weight": (rank + 2 * states, inner), "dt_proj.weight": (inner, rank),
                          "dt_proj.bias": (inner,), "A_log": (inner, states), "D": (inner,)}
                if config.get("mamba_conv_bias", True):
                    layer["conv1d.bias"] = (inner,)
        else:
            rows = (heads + (0 if kind == "cross" else 2 * kv)) * d
            layer = {"Wqkv.weight": (rows, hidden), "Wqkv.bias": (rows,), "out_proj.weight": (hidden, heads * d), "out_proj.bias": (hidden,),
                     "inner_cross_attn.subln.weight": (2 * d,)}
            layer |= {f"inner_cross_attn.lambda_{name}": (d,) for name in ("q1", "k1", "q2", "k2")}
        result |= {f"model.layers.{i}.attn.{name}": shape for name, shape in layer.items()}
        layer = {"mlp.fc1.weight": (2 * config["intermediate_size"], hidden), "mlp.fc2.weight": (hidden, config["intermediate_size"])}
        layer |= {f"{norm}.{part}": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm") for part in ("weight", "bias")}
        result |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return result


def mamba(x, w, config):
    """The layer's output, and its scan without the gate."""
    inner, states, taps, rank = sizes(config)
    xz = x @ w["in_proj.weight"].T + w.get("in_proj.bias", 0)
    before = np.concatenate([np.zeros((taps - 1, inner)), xz[:, :inner]])
    u = np.array([(before[t: t + taps] * w["conv1d.weight"][:, 0].T).sum(0) for t in range(len(x))])
    u = silu(u + w.get("conv1d.bias", 0))
    dbc = u @ w["x_proj.weight"].T
    dt = np.log1p(np.exp(dbc[:, :rank] @ w["dt_proj.weight"].T + w["dt_proj.bias"]))
    b, c = dbc[:, rank: rank + states], dbc[:, rank + states:]
    a, h, y = -np.exp(w["A_log"]), np.zeros((inner, states)), []
    for t in range(len(x)):
        h = np.exp(dt[t][:, None] * a) * h + (dt[t] * u[t])[:, None] * b[t]
        y.append(h @ c[t] + w["D"] * u[t])
    y = np.array(y)
    return (y * silu(xz[:, inner:])) @ w["out_proj.weight"].T + w.get("out_proj.bias", 0), y


def attention(x, w, config, i, shared):
    """The layer's output, and its keys and values."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    d, length, kind = config["hidden_size"] // heads, len(x), kind_of(config, i)
    rows = (x @ w["Wqkv.weight"].T + w["Wqkv.bias"]).reshape(length, -1, d)
    q = rows[:, :heads]
    if kind != "cross":
        shared = rows[:, heads: heads + kv], joined_pairs(rows[:, heads + kv:])
    k, v = shared
    inner = {name.split(".")[-1]: value for name, value in w.items() if "lambda" in name}
    lam = vectors_lambda(inner, lambda_init(i))
    visible = causal(length, config["sliding_window"] if kind == "window" else None)
    out = differential_heads(q[:, 0::2], q[:, 1::2], k[:, 0::2], k[:, 1::2], v, lam, visible)
    out = rms_norm(out, w["inner_cross_attn.subln.weight"], 1e-5) * (1 - lambda_init(i))
    return out.reshape(length, -1) @ w["out_proj.weight"].T + w["out_proj.bias"], shared


def logits(config, weights, ids):
    """`[T, V]` of one sequence of token ids."""
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    eps, inner = config.get("layer_norm_eps", 1e-5), config["intermediate_size"]
    h = weights["model.embed_tokens.weight"][np.asarray(ids)]
    memory = shared = None
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        all_of = {name[len(prefix):]: value for name, value in weights.items() if name.startswith(prefix)}
        w = {name[5:]: value for name, value in all_of.items() if name.startswith("attn.")}
        x = layer_norm(h, all_of["input_layernorm.weight"], all_of["input_layernorm.bias"], eps)
        kind = kind_of(config, i)
        if kind == "mamba":
            out, memory = mamba(x, w, config)
        elif kind == "gmu":
            gate = silu(x @ w["in_proj.weight"].T + w.get("in_proj.bias", 0))
            out = (memory * gate) @ w["out_proj.weight"].T + w.get("out_proj.bias", 0)
        else:
            out, shared = attention(x, w, config, i, shared)
        h = h + out
        x = layer_norm(h, all_of["post_attention_layernorm.weight"], all_of["post_attention_layernorm.bias"], eps)
        both = x @ all_of["mlp.fc1.weight"].T
        h = h + (both[:, inner:] * silu(both[:, :inner])) @ all_of["mlp.fc2.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return layer_norm(h, weights["model.final_layernorm.weight"], weights["model.final_layernorm.bias"], eps) @ head.T
