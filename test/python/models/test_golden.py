"""The golden vectors of the variants, through whole layers and through small graphs around one attention.

A one-hot input makes a layer's projections return the rows of its matrices, so inputs given as queries, keys and values
become weights.
"""
import types

import numpy as np
import pytest
from checkpoints import write_checkpoint

import diffattn
from diffattn.models import layers, motif
from diffattn.models.decoder import LAYER
from diffattn.models.diff_v1 import LAMBDA, mix_heads
from diffattn.models.mlir_text import Module
from diffattn.runtime import Executable


def tagged(tag, *shape):
    """Flat element i is sin(0.7 (i + 1) + tag)."""
    flat = np.sin(0.7 * (np.arange(np.prod(shape, dtype=int)) + 1) + tag)
    return flat.reshape(shape).astype(np.float32)


VECTORS = {name: 0.1 * tagged(tag, 2) for name, tag in zip(LAMBDA, (0.4, 0.5, 0.6, 0.7))}
NORM = 1 + 0.1 * tagged(0.8, 4)
GOLDEN = {
    "A": ([0.8135910, 0.9423308, 0.6080552, 0.0349388], [0.3109371, -0.3738470, -0.8312483, -0.8563064],
          0.5630499, 14.8766661),
    "B": ([0.8135910, 0.9423308, 0.6080552, 0.0349388], [0.3007192, -0.3826919, -0.8345525, -0.8532029],
          0.1342202, 29.7943042),
    "B'": ([0.8135910, 0.9423308, 0.6080552, 0.0349388], [-0.0620605, -0.6561957, -0.8931255, -0.6949880],
           -0.6212230, 29.6275232),
    "C": ([0.6239853, 0.7353602, -0.4537178, -0.7248787], [0.7141022, 0.5016984, -0.6959708, -0.6445076],
          1.0866141, 28.6657167),
    "D": ([0.2377250, 0.2801564, 0.2353001, 0.2772987], [0.0022468, -0.0106312, 0.0673486, 0.0292450],
          1.5636380, 6.6851549),
    "E": ([1.2749115, 1.4766490, 0.9528332, 0.0547497], [-0.4453971, -1.2320497, -1.3707010, -0.8676830],
          -0.0092228, 46.3686589),
    "H": ([1.2624038, 1.4621622, 0.9434854, 0.0542126], [0.8150617, 1.4510611, 1.0938384, 0.6805933],
          6.7013949, 11.6019172),
}


def assert_golden(case, out):
    first, last, total, absolute = GOLDEN[case]
    flat = np.asarray(out, np.float64).ravel()
    np.testing.assert_allclose(flat[:4], first, atol=2e-6)
    np.testing.assert_allclose(flat[-4:], last, atol=2e-6)
    np.testing.assert_allclose([flat.sum(), np.abs(flat).sum()], [total, absolute], atol=3e-5)


def run(module, *inputs):
    return Executable(str(module)).call("forward", *inputs)[0]


@pytest.mark.parametrize("case, heads, kv_heads", [("A", 2, 2), ("B", 4, 2)])
@pytest.mark.parametrize("kind", ["diff_multihead", "diff_attention"])
def test_layers(case, heads, kv_heads, kind, tmp_path):
    hidden = 4 * heads
    weights = {"W_q": tagged(0.1, 3, hidden), "W_k": tagged(0.2, 3, 4 * kv_heads), "W_v": tagged(0.3, 3, 4 * kv_heads)}
    # One-hot rows of a wider input: only the first three rows of each matrix are ever read.
    weights = {name: np.pad(w, ((0, hidden - 3), (0, 0))) for name, w in weights.items()}
    weights["W_o"] = np.eye(hidden, dtype=np.float32)
    weights["norm.weight"] = NORM
    if kind == "diff_attention":
        names = {"W_q": "wq.weight", "W_k": "wk.weight", "W_v": "wv.weight", "W_o": "out_proj.weight",
                 "norm.weight": "sublayer_norm.weight"}
        weights = {names[n]: w.T.copy() if w.ndim == 2 else w for n, w in weights.items()}
    config = {"model_type": kind, "hidden_size": hidden, "num_attention_heads": heads, "depth": 1,
              "num_key_value_heads": kv_heads, "rope": False}
    model = diffattn.load(write_checkpoint(tmp_path, config, weights | VECTORS))
    assert_golden(case, model.forward(np.eye(hidden, dtype=np.float32)[None, :3]))


def core(q_heads, k_heads, v_shape, write, *extra):
    """A graph with arguments q, k, v `[1, 3, heads, width]` and more, whose result `write` makes of them."""
    m = Module()
    f = m.function("forward")
    q, k, v = (f.argument(n, "f32", [1, 3, *shape]) for n, shape in (("q", (q_heads, 2)), ("k", (k_heads, 2)), ("v", v_shape)))
    more = [f.argument(f"x{i}", "f32", list(shape)) for i, shape in enumerate(extra)]
    f.ret(write(f, q, k, v, *more))
    return m


def test_b_prime_maps_keys_as_the_naive_file_does():
    """Both maps of a pair read the same key head; kept as a fixture, since it must differ from B."""
    def write(f, q, k, v, *rest):
        *vectors, norm = rest
        # Key head (2 j + m) // 2 for map m of head j: pairs (0, 0), (1, 1), (2, 2), (3, 3).
        return mix_heads(f, layers.split_pairs(f, q, "adjacent"), (k, k), v, vectors, norm,
                         f.f32(layers.lambda_init(1)), causal=True)

    module = core(8, 4, (2, 4), write, (2,), (2,), (2,), (2,), (4,))
    out = run(module, tagged(0.1, 1, 3, 8, 2), tagged(0.2, 1, 3, 4, 2), tagged(0.3, 1, 3, 2, 4), *VECTORS.values(), NORM)
    assert_golden("B'", out)
    assert np.abs(out.ravel()[-4:] - GOLDEN["B"][1]).max() > 0.3


def test_c_diffllama():
    def write(f, q, k, v, *vectors):
        pairs = [layers.split_pairs(f, x, "halves") for x in (q, k)]
        return mix_heads(f, *pairs, v, list(vectors), None, f.f32(layers.lambda_init(1)), causal=True)

    module = core(8, 4, (2, 4), write, (2,), (2,), (2,), (2,))
    v = tagged(0.3, 1, 3, 4, 2)
    joined = np.concatenate([v[:, :, :2], v[:, :, 2:]], -1)
    assert_golden("C", run(module, tagged(0.1, 1, 3, 8, 2), tagged(0.2, 1, 3, 4, 2), joined, *VECTORS.values()))


def test_d_second_version():
    def write(f, q, k, v, lam):
        return layers.attention(f, layers.split_pairs(f, q, "adjacent"), (k, k), v, lam, scale=2**-0.5, causal=True,
                                lambda_act="sigmoid")

    module = core(8, 2, (2, 2), write, (1, 3, 4))
    assert_golden("D", run(module, tagged(0.1, 1, 3, 8, 2), tagged(0.2, 1, 3, 2, 2), tagged(0.3, 1, 3, 2, 2),
                           tagged(0.5, 1, 3, 4)))


def test_e_groups_of_signal_heads_and_a_noise_head(tmp_path):
    """Motif's own projections, heads in its files' order, and attention of its first layer; no rotation, no output projection."""
    mixer = motif.MotifMixer(groups=2, signals=2, kv_heads=2, width=2, hidden=16, depth=1, eps=1e-5, bias=False)
    m = Module()
    frame = types.SimpleNamespace(elem="f32", layer_weight=lambda m, name, *args, **more: m.weight(LAYER + name, *args, layers=1, **more),
                                  layer_matrix=lambda m, name, shape, **more: m.matrix(LAYER + name, shape, "f32", layers=1, **more))
    mixer.declare(m, frame)
    f = m.function("forward")
    x, layer = f.argument("x", "f32", [3, 16]), f.index(0)
    q, k, v = mixer.project(f, x, layer)
    q, k, v = (layers.heads_of(f, rows, 1, 3, heads) for rows, heads in ((q, 6), (k, 4), (v, 2)))
    f.ret(mixer.mix(f, x, mixer.queries(f, q), layers.split_pairs(f, k, "adjacent"), v, layer, causal=True))

    rows = {"q": tagged(0.1, 3, 12), "k": tagged(0.2, 3, 8), "v": tagged(0.3, 3, 8)}
    weights = {f"{name}_proj.weight": np.pad(w, ((0, 13), (0, 0))).T.copy() for name, w in rows.items()}
    weights |= VECTORS | {"subln.weight": NORM, "o_proj.weight": np.zeros((16, 16), np.float32)}
    folder = write_checkpoint(tmp_path, {}, {f"model.layers.0.self_attn.{name}": w for name, w in weights.items()})
    executable = Executable(str(m), weights=[folder / "model.safetensors"])
    assert_golden("E", executable.call("forward", np.eye(16, dtype=np.float32)[:3])[0])


def test_h_edifice(tmp_path):
    weights = {"a_q_proj.kernel": tagged(0.1, 3, 8), "a_k_proj.kernel": tagged(0.2, 3, 8),
               "a_v_proj.kernel": tagged(0.3, 3, 4)}
    weights = {name: np.pad(w, ((0, 1), (0, 0))) for name, w in weights.items()}
    weights["a_out_proj.kernel"] = np.eye(4, dtype=np.float32)
    for name, w in list(weights.items()):
        weights[name.replace("kernel", "bias")] = np.zeros(w.shape[1], np.float32)
    weights["a_compute.a_lambda"] = np.float32(0.2)
    weights["a_compute.a_rms_scale"] = NORM
    config = {"model_type": "edifice_diff_attention", "hidden_size": 4, "num_heads": 2, "name": "a"}
    model = diffattn.load(write_checkpoint(tmp_path, config, weights))
    assert_golden("H", model.forward(np.eye(4, dtype=np.float32)[None, :3]))
