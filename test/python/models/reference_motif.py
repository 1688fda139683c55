"""Motif in float64: also with groups of signal heads and a noise head."""
import numpy as np
from reference_f64 import causal, differential_heads, joined_pairs, lambda_init, poly_norm, rms_norm, rotate_half, vectors_lambda


def sizes(config):
    heads = config["num_attention_heads"]
    return heads, config["num_key_value_heads"], config.get("head_dim", config["hidden_size"] // heads)


def shapes(config):
    """Names and shapes of all weights."""
    heads, kv, d = sizes(config)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    signals = heads - config.get("num_noise_heads", heads // 2)
    result = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        result["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        matrices = {"self_attn.q_proj": (heads * d, hidden), "self_attn.k_proj": (kv * d, hidden), "self_attn.v_proj": (kv * d, hidden),
                    "self_attn.o_proj": (hidden, signals * 2 * d), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                    "mlp.down_proj": (hidden, inner)}
        layer = {f"{name}.weight": shape for name, shape in matrices.items()}
        if config.get("use_bias"):
            layer |= {f"{name}.bias": shape[:1] for name, shape in matrices.items()}
        layer |= {f"self_attn.lambda_{name}": (d,) for name in ("q1", "k1", "q2", "k2")}
        layer |= {"self_attn.subln.weight": (2 * d,), "mlp.act_fn.weight": (3,), "mlp.act_fn.bias": (1,),
                  "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        result |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return result


def attention(x, w, config, depth, linear):
    heads, kv, d = sizes(config)
    groups = config.get("num_noise_heads", heads // 2)
    length = len(x)
    q = rotate_half(linear(x, "self_attn.q_proj").reshape(length, heads, d), config["rope_theta"])
    q = q.reshape(length, groups, heads // groups, d)  # in each group the last is noise
    k = rotate_half(linear(x, "self_attn.k_proj").reshape(length, kv, d), config["rope_theta"])
    v = joined_pairs(linear(x, "self_attn.v_proj").reshape(length, kv, d))
    init = lambda_init(depth - 1)
    lam = vectors_lambda({name[10:]: value for name, value in w.items() if "lambda" in name}, init)
    out = differential_heads(q[:, :, :-1].reshape(length, -1, d), q[:, :, -1], k[:, 0::2], k[:, 1::2], v, lam, causal(length))
    out = rms_norm(out, w["self_attn.subln.weight"], config.get("attn_rms_norm_eps", 1e-5)) * (1 - init)
    return linear(out.reshape(length, -1), "self_attn.o_proj")


def logits(config, weights, ids):
    """`[T, V]` of one sequence of token ids."""
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    eps = config.get("rms_norm_eps", 1e-6)
    h = weights["model.embed_tokens.weight"][np.asarray(ids)]
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        w = {name[len(prefix):]: value for name, value in weights.items() if name.startswith(prefix)}

        def linear(x, name):
            return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

        h = h + attention(rms_norm(h, w["input_layernorm.weight"], eps), w, config, i, linear)
        x = rms_norm(h, w["post_attention_layernorm.weight"], eps)
        gate = poly_norm(linear(x, "mlp.gate_proj"), w["mlp.act_fn.weight"], w["mlp.act_fn.bias"])
        h = h + linear(gate * linear(x, "mlp.up_proj"), "mlp.down_proj")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return rms_norm(h, weights["model.norm.weight"], eps) @ head.T
