#!/usr/bin/env python3
"""Differential attention as random JAX functions, lowered to StableHLO and by IREE to linalg.

    python jax_family.py FOLDER 0-59      # seeds: FOLDER/jax_00000.mlir, .npz, .json, and so on

A seed decides the options and the inputs. Results are of the same function in f64.
"""

import random
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from graph_files import Facts, run_tool, write_graph
from jax_attention import attention
from seeds import export_seeds

STABLEHLO_TO_LINALG = ["--iree-stablehlo-input-transformation-pipeline", "--mlir-print-elementsattrs-with-hex-if-larger=-1"]
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": jnp.bfloat16}

#: Axes as in torch_options.py, but `lay` for the layout of the arguments and `om` for the factor 1 - lambda_init.
BASE = dict(B=2, T=12, Tk=12, H=2, Hk=2, d=8, dv=16, lay="bhtd", scale="mul", cap=0, mask="", sm="nn", lam="in", gq="rep",
            batched=0, comb="diff", norm="", om=0, out="", dt="f32")
SHAPES = [dict(), dict(B=1, T=9, Tk=9, H=3, Hk=3, dv=8), dict(T=10, Tk=10, H=4, Hk=2, d=4, dv=8), dict(B=1, T=5, Tk=11),
          dict(B=1, T=8, Tk=8, H=1, Hk=1), dict(B=3, T=7, Tk=7, H=4, Hk=1)]
#: The order of the axes and of the draws is part of what a seed stands for.
CHOICES = dict(
    lay=["bhtd", "bthd"], scale=["mul", "q", "qdiv", "div", "divd", "none"], cap=[0, 0, 1],
    mask=["", "tril", "tril_min", "tril_add", "win", "iota", "in_bool", "in_add", "lens", "lens_causal", "np"],
    sm=["nn", "manual", "stop", "nomax", "lse", "logsm", "f32", "exp2"], lam=["in", "const", "exp", "head", "tok"],
    gq=["rep", "rep", "group"], batched=[0, 1], comb=["diff", "after"], norm=["", "rms", "rms2", "ln", "rmsf"], om=[0, 1],
    out=["", "flat"], dt=["f32", "f32", "f32", "bf16", "f16"])


def draw(rng):
    options = BASE | rng.choice(SHAPES)
    for axis in rng.sample(list(CHOICES), rng.choice([2, 4, 6, 13])):
        options[axis] = rng.choice(CHOICES[axis])
    if options["gq"] == "group" and options["H"] > options["Hk"]:
        options.update(mask="", batched=0, lam="const", comb="diff", cap=0, scale="divd")
    return options


def inputs_of(o, rng):
    """q1, k1, q2, k2, v, then lambda and mask where they are arguments."""
    dtype = DTYPES[o["dt"]]
    H, Hk, d, dv, T, Tk, B = (o[axis] for axis in ("H", "Hk", "d", "dv", "T", "Tk", "B"))

    def heads(count, tokens, width):
        return (B, tokens, count, width) if o["lay"] == "bthd" else (B, count, tokens, width)

    shapes = [heads(H, T, d), heads(Hk, Tk, d), heads(H, T, d), heads(Hk, Tk, d), heads(Hk, Tk, dv)]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    if o["lam"] == "exp":
        arrays += [(rng.standard_normal(d) * .3).astype(dtype) for _ in range(4)]
    elif o["lam"] == "in":
        arrays.append(np.array(.3).astype(dtype))
    elif o["lam"] == "head":
        arrays.append((rng.standard_normal(H) * .3).astype(dtype))
    elif o["lam"] == "tok":
        arrays.append(rng.standard_normal((B, T, H)).astype(dtype))
    if o["mask"] == "in_bool":
        keep = rng.random((T, Tk)) > .3
        keep[:, 0] = True  # a row sees one key at least
        arrays.append(keep)
    elif o["mask"] == "in_add":
        arrays.append(rng.standard_normal((B, 1, T, Tk)).astype(dtype))
    elif o["mask"].startswith("lens"):
        arrays.append(np.array([Tk - 3, Tk, Tk - 1][:B], np.int32))
    return arrays


def linalg_text(function, inputs):
    jax.config.update("jax_enable_x64", False)
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs))
    with tempfile.TemporaryDirectory() as folder:
        stablehlo = Path(folder) / "stablehlo.mlir"
        stablehlo.write_text(str(lowered.compiler_ir("stablehlo")))
        return run_tool("iree-opt", *STABLEHLO_TO_LINALG, stablehlo)


def in_f64(function, inputs):
    jax.config.update("jax_enable_x64", True)
    wide = [jnp.asarray(x.astype(np.float64)) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in inputs]
    return np.asarray(function(*wide))


def export(seed, folder):
    jax.config.update("jax_platforms", "cpu")
    options = draw(random.Random(seed))
    inputs = inputs_of(options, np.random.default_rng(seed))
    function = attention(options)
    text = linalg_text(function, inputs)
    stored = [x.view(np.uint16) if x.dtype == jnp.bfloat16 else x for x in inputs]
    facts = Facts(f"jax_{seed:05d}", "jax", options["dt"], 1, options)
    write_graph(folder, facts, text, stored, [in_f64(function, inputs)])


if __name__ == "__main__":
    export_seeds(__doc__, export)
