"""The ops of gradients whose kernels are shipped, and what their code depends on: rows as those of ptxas_report.VARIANTS."""
import itertools

from .op_attributes import CAUSAL, RMS, SIGMOID, SOFTCAP

#: name, d, dv, signal/noise/k1/k2/v heads, K shared, attributes, optional operands.
VARIANTS = [
    ("gradients-v1", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight"]),
    ("gradients-timm", 32, 64, (4, 4, 4, 4, 4), False, [RMS], ["weight"]),
    ("gradients-edifice", 64, 64, (4, 4, 4, 4, 4), False, [CAUSAL], []),
    ("gradients-v1-830m", 96, 192, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("gradients-v1-128", 128, 128, (2, 2, 2, 2, 2), False, [CAUSAL], ["gate"]),
    ("gradients-v2", 128, 128, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], []),
    ("gradients-one-map", 64, 64, (4, 0, 2, 0, 2), False, [CAUSAL], []),
    ("gradients-one-map-128", 128, 128, (4, 0, 1, 0, 1), False, [CAUSAL], []),
    ("gradients-v1-wide", 128, 256, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("gradients-v1-packed", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "segments"]),
    ("gradients-diffllama-bias", 64, 128, (4, 4, 2, 2, 2), False, [RMS], ["bias"]),
    ("gradients-v1-sequences", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "sequences"]),
    ("gradients-dragon", 128, 128, (4, 2, 2, 2, 2), True, [CAUSAL, SIGMOID, SOFTCAP], []),
]
#: Variants of f32, whose kernels are all of one form.
PLAIN = [("gradients-plain", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight"]),
         ("gradients-plain-sequences", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "sequences"]),
         ("gradients-plain-wide", 256, 256, (2, 2, 2, 2, 2), False, [SOFTCAP], ["bias", "segments-i64"])]
#: Other features on which the code of a kernel depends: attributes, operands.
FEATURES = [([], []), ([SOFTCAP], []), ([], ["bias"]), ([], ["mask"]), ([], ["segments"]), ([], ["segments-i64"]),
            ([SOFTCAP], ["bias", "segments-i64"]), ([], ["sequences"]), ([SOFTCAP], ["sequences"])]
#: Widths, and whether both maps read one K; None: there is one map.
WIDTHS = list(itertools.product([(32, 64), (64, 64), (64, 128), (96, 96), (96, 192), (128, 128), (128, 256), (192, 128), (256, 256)],
                                (False, True, None)))
HEADS = {False: (2, 2, 2, 2, 2), True: (2, 2, 2, 2, 2), None: (2, 0, 2, 0, 2)}
MASKS = ["bias", "mask"]


def operands(variant):
    """Names of the arguments of the function of `variant`, in order."""
    _, _, _, heads, shared, attributes, extra = variant
    two = bool(heads[1])
    tables = [name for name in ("q_segments", "kv_segments") if {"segments", "segments-i64"} & set(extra)]
    tables += [name for name in ("cu_seqlens_q", "cu_seqlens_k") if "sequences" in extra]
    given = [name for name in [*MASKS, "weight", "gate", "kv_len", "q_offset"] if name in extra]
    of_maps = ["q1", "k1", *["q2", *["k2"] * (not shared)] * two, "v"]
    return [*of_maps, "d_out", *["lambda"] * two, *given, *tables, "lse1", *["lse2"] * two, "x", *["o2"] * two, *results(variant)]


def results(variant):
    """Names of the gradients: of every operand that has one on GPUs."""
    _, _, _, heads, shared, _, extra = variant
    of_maps = ["d_q1", "d_k1", *["d_q2", *["d_k2"] * (not shared)] * bool(heads[1]), "d_v"]
    return of_maps + ["d_lambda"] * bool(heads[1]) + [f"d_{name}" for name in ("weight", "gate") if name in extra]


def text(name, element, variant):
    """A function with one op of `variant`, of any lengths and strides of rows; extra operands: bias, mask, weight, gate, kv_len, q_offset,
    segments (of i32) or segments-i64, sequences that are packed, and heads for a lambda of each head."""
    _, d, dv, (hs, hn, hk1, hk2, hv), shared, attributes, extra = variant
    batch = 1 if "sequences" in extra else "?"
    rows = lambda heads, width: f"memref<{batch}x{heads}x?x{width}x{element}, strided<[?, ?, ?, 1], offset: ?>>"
    ids = "i64" if "segments-i64" in extra else "i32"
    lam = f"memref<?x?x{hs}xf32>" if SIGMOID in attributes else f"memref<{hs}xf32>" if "heads" in extra else "memref<f32>"
    types = {"q1": rows(hs, d), "k1": rows(hk1, d), "q2": rows(hn, d), "k2": rows(hk2, d), "v": rows(hv, dv), "d_out": rows(hs, dv),
             "lambda": lam, "bias": f"memref<?x1x?x?x{element}>", "mask": "memref<?x1x?x?xi1>", "weight": f"memref<{dv}x{element}>",
             "gate": rows(hs, dv), "kv_len": "memref<?xi64>", "q_offset": "memref<?xi64>", "lse1": f"memref<?x{hs}x?xf32>",
             "lse2": f"memref<?x{hn}x?xf32>", "x": rows(hs, dv), "o2": rows(hs, dv),
             **{n: f"memref<?x?x{ids}, strided<[?, ?], offset: ?>>" for n in ("q_segments", "kv_segments")},
             **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "memref<?xi32>")}
    types.update({f"d_{n}": types[n] for n in ("q1", "k1", "q2", "k2", "v", "lambda", "weight", "gate")})
    clauses = {"mask": "bias", "weight": "norm_weight", "d_weight": "d_norm_weight"}
    names = operands(variant)
    maps = ["q1", "k1", "q2", "k1" if shared else "k2", "v"] if hn else ["q1", "k1", "v"]
    clause = lambda n: f"{clauses.get(n, n)}(%{n} : {types[n]})"
    inputs = " ".join(clause(n) for n in names if n not in maps and n not in results(variant))
    outs = " ".join(clause(n) for n in results(variant))
    return (f"func.func @{name.replace('-', '_')}({', '.join(f'%{n}: {types[n]}' for n in names)}) {{\n"
            f"  diffattn.attention_backward ins({', '.join(f'%{n}' for n in maps)} : {', '.join(types[n] for n in maps)})\n"
            f"    {inputs}\n    outs({outs}) {{{', '.join(['scale = 0.125 : f32', *attributes])}}}\n  return\n}}\n")


def module_text(elements, names, every):
    """The shipped rows, those of `names` if there are any; with `every`, each width with each feature too."""
    rows = [v for v in VARIANTS if not names or v[0] in names]
    if every:
        rows += [(f"gradients-{d}-{dv}", d, dv, HEADS[shared], bool(shared), *feature) for ((d, dv), shared), feature
                 in itertools.product(WIDTHS, FEATURES)]
    of_f32 = [("f32", v) for v in PLAIN if not names or v[0] in names]
    return "".join(text(f"{v[0]}_{element}_{number}", element, v)
                   for number, (element, v) in enumerate([*itertools.product(elements, rows), *of_f32]))
