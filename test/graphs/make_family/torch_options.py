"""How a differential attention in PyTorch may be spelled, and the drawing of one spelling from a seed.

Options are a dict from an axis to one of its choices. A graph's manifest entry lists those that differ from BASE.
The order of CHOICES and of the draws decides what a seed stands for: a change of either makes other graphs.
"""

#: Axis: its value where it was not drawn.
BASE = dict(
    B=2, T=12, Tk=12,  # batch, queries, keys
    H=2, Hk=2,  # heads of the queries, and of keys and values
    d=8, dv=16, D=16,  # width of a query, of a value, of the model
    inp="heads",  # the arguments: q1, k1, q2, k2, v by heads or by tokens, or x with projections inside
    pair="view5",  # how a projection's columns are shared out to the two maps
    bias=False,  # whether projections add a bias
    lam="in0", clamp=False,  # where lambda comes from; whether a parameter is clamped or goes through a sigmoid
    norm="none", norm_w=0,  # behind the difference: the norm, and its weight (none, to the left, to the right)
    out="heads",  # the layout of the result
    gate="",  # sigmoid or silu of x, before (pre) or behind (post) the norm
    mask="none", sm="torch", scale="mul", mm="matmul",
    cap=0, nan=False,  # softcap of the scores, and a guard against NaN in them
    rep="expand", gq="rep",  # heads that share keys: keys repeated, or queries grouped
    shareK=False,  # both maps read one key
    batched="no",  # both maps in one product and softmax
    comb="diff",  # how the difference meets the values
    sdpa_causal=False, one_minus=False, dtype="f32",
    dyn="",  # sizes known only at run time: T, B or both
    extra={})  # the arguments that mask and lambda add: kind and shape

CHOICES = dict(
    shape=[dict(B=2, T=12, Tk=12, H=2, Hk=2, d=8, dv=16), dict(B=1, T=9, Tk=9, H=3, Hk=3, d=8, dv=8),
           dict(B=2, T=10, Tk=10, H=4, Hk=2, d=4, dv=8), dict(B=1, T=5, Tk=11, H=2, Hk=2, d=16, dv=32),
           dict(B=1, T=8, Tk=8, H=1, Hk=1, d=8, dv=16), dict(B=3, T=7, Tk=7, H=4, Hk=1, d=8, dv=16)],
    inp=["heads", "heads", "bthd", "proj", "proj", "proj", "qkv"],
    pair=["view5", "lastchunk", "chunkfirst", "unbind", "stride", "halves"],
    bias=[False, True],
    lam=["const", "exp", "exp_h", "param", "head", "head4", "tok_lin", "in0", "in_tok", "in_h"],
    clamp=[True, False],
    norm=["none", "none", "rms_pow", "rms_float", "rms_sqrt", "rms_norm", "rms_F", "rms_out", "rms_sum", "l2", "layer", "group",
          "rms_all"],
    norm_w=[0, 1, 2],
    out=["heads", "bthd", "flat", "linear"],
    gate=["", "", "", "sig_post", "silu_post", "sig_pre", "silu_pre"],
    mask=["none", "none", "triu_add", "triu_full", "tril_fill", "tril_not", "triu_bool", "where_min", "where_1e9", "window",
          "window_or", "sym", "mul_1e4", "mul_min", "in_bool", "in_bool4", "in_int", "in_add", "in_add4", "in_sliced", "lens",
          "lens_causal", "causal_pad", "buf_tril", "buf_bool", "buf_inf", "buf_window", "buf_alibi"],
    sm=["torch", "torch", "torch", "F32", "up", "manual", "nomax", "recip", "recip2", "lse", "logsm", "exp2", "detach", "pow",
        "nan"],
    scale=["mul", "rmul", "div", "divt", "divs", "qmul", "qdiv", "both", "kmul", "tensor", "none"],
    mm=["matmul", "matmul", "einsum"],
    cap=[0, 0, 0, 1, 2],
    nan=[False] * 5 + [True],
    rep=["expand", "interleave"],
    gq=["rep"] * 6 + ["einsum5"],
    shareK=[False] * 4 + [True],
    batched=["no", "no", "cat", "stack", "chunk"],
    comb=["diff", "diff", "diff_r", "addneg", "after", "negsum", "halves", "halves2", "sdpa", "sdpa_mask", "sdpa4"],
    sdpa_causal=[True, False],
    one_minus=[True, False],
    dtype=["f32"] * 6 + ["f16", "bf16"],
    dyn=[""] * 4 + ["T", "B", "BT"])

#: Masks that are square by the way they are written.
SQUARE_MASKS = {"triu_bool", "where_1e9", "window", "window_or", "sym", "mul_1e4", "mul_min", "lens_causal", "causal_pad",
                "buf_tril", "buf_bool", "buf_inf", "buf_window", "buf_alibi"}


def draw(rng):
    """Options and a route. A few axes at once leave the base, so that a failure names its axis."""
    options = dict(BASE)
    options.update(rng.choice(CHOICES["shape"]))
    axes = [axis for axis in CHOICES if axis != "shape"]
    for axis in rng.sample(axes, rng.choice([2, 4, 7, 20])):
        options[axis] = rng.choice(CHOICES[axis])
    return settle(options), rng.choice(["fx", "fx", "onnx"])


def settle(o):
    """Makes drawn options agree with one another, and says which arguments they need."""
    o["extra"] = {}
    if o["inp"] == "qkv":
        o["Hk"] = o["H"]
    if o["inp"] in ("proj", "qkv"):
        o["Tk"] = o["T"]
    else:  # no x that a gate or a lambda could be computed from
        o["gate"] = ""
        if o["lam"] == "tok_lin":
            o["lam"] = "in_tok"
    if o["gq"] == "einsum5":
        if o["H"] == o["Hk"]:
            o["H"], o["Hk"] = 4, 2
        if o["inp"] == "qkv":
            o["inp"] = "heads"
        lam = o["lam"] if o["lam"] in ("in0", "param", "exp") else "const"
        o.update(mask="none", batched="no", comb="diff", lam=lam, gate="")
    if o["mask"] in SQUARE_MASKS:
        o["Tk"] = o["T"]
    if o["comb"].startswith("sdpa"):
        o.update(mask="in_add" if o["comb"] == "sdpa_mask" else "none", cap=0, nan=False, batched="no", shareK=False)
        if o["sdpa_causal"]:
            o["Tk"] = o["T"]
    if o["batched"] != "no":
        o["shareK"] = False
    o["extra"] = arguments(o)
    return o


def arguments(o):
    """Arguments for mask and lambda: name -> (kind, shape)."""
    B, T, Tk, H = o["B"], o["T"], o["Tk"], o["H"]
    masks = {"in_bool": ("bool", (T, Tk)), "in_bool4": ("bool", (B, 1, T, Tk)), "in_int": ("int", (B, Tk)),
             "in_add": ("add", (T, Tk)), "in_add4": ("add", (B, 1, T, Tk)), "in_sliced": ("add", (B, 1, T, Tk + 3)),
             "lens": ("len", (B,)), "lens_causal": ("len", (B,)), "causal_pad": ("bool", (B, Tk))}
    lambdas = {"in0": ("f", ()), "in_tok": ("f", (B, T, H)), "in_h": ("f", (H,))}
    arguments_by_name = {"mask": masks.get(o["mask"]), "lam": lambdas.get(o["lam"])}
    return {name: argument for name, argument in arguments_by_name.items() if argument}


def dynamic_axes(o):
    """For each argument its dynamic axes, axis -> "B" or "T"; None where there are none or the spelling fixes the sizes."""
    batch = "B" if "B" in o["dyn"] else None
    tokens = "T" if "T" in o["dyn"] and o["T"] == o["Tk"] else None
    if o["mask"] == "in_sliced" or (tokens and o["mask"].startswith("buf")):
        o["dyn"] = ""
    if not o["dyn"] or not (batch or tokens):
        return None
    by_argument = {"in_tok": {0: batch, 1: tokens}, "in_bool": {0: tokens, 1: tokens}, "in_add": {0: tokens, 1: tokens},
                   "in_bool4": {0: batch, 2: tokens, 3: tokens}, "in_add4": {0: batch, 2: tokens, 3: tokens},
                   "in_int": {0: batch, 1: tokens}, "causal_pad": {0: batch, 1: tokens}, "lens": {0: batch},
                   "lens_causal": {0: batch}}
    main = {0: batch, (2 if o["inp"] == "heads" else 1): tokens}
    axes = [main] * (5 if o["inp"] in ("heads", "bthd") else 1)
    axes += [by_argument.get(o[name], {}) for name in ("lam", "mask") if name in o["extra"]]
    return [{axis: size for axis, size in argument.items() if size} for argument in axes]
