"""The goals of this project for the timed rows: what must be reached against which peer, and what is aimed at."""

# part, row, peers (the fastest that ran counts), must, aim: how often faster we are than the peer.
RATIOS = [
    ("forward", "full 4k", ["flash x4, kernels alone"], 1.35, 1.65),
    ("forward", "full 16k", ["flash x4, kernels alone"], 1.35, 1.65),
    ("forward", "causal 4k", ["flash x4, kernels alone"], 1.35, 1.65),
    ("forward", "causal 16k", ["flash x4, kernels alone"], 1.35, 1.65),
    ("forward", "causal 2k with tail", ["PyTorch's choice x2, eager tail", "cuDNN x2, eager tail"], 1.0, 1.2),
    ("module", "causal 4k with tail", ["naive, eager"], 5.0, 9.0),
    ("decode", "B32, 8k", ["PyTorch's choice x2, eager tail", "cuDNN x2, eager tail"], 1.4, None),
]
# part, row, field of `diffattn`, what it is a part of in the probe's rates (None: itself), aim.
RATES = [("forward", "full 16k", "nominal_tflops", None, 400.0), ("decode", "B32, 8k", "tb_per_s", "copy_tb_per_s", 0.85)]


def _row(results, part, name):
    return next((row for row in results.get(part, {}).get("rows", []) if row["name"] == name), None)


def judge(results):
    """One line for each goal: row, peer, ratio, must, aim, verdict."""
    lines = []
    for part, name, names, must, aim in RATIOS:
        row = _row(results, part, name)
        times = row["times"] if row else {}
        ran = [(times[n]["median_s"], n) for n in names if "median_s" in times.get(n, {})]
        if not ran:
            lines.append({"row": f"{part} {name}", "peer": " or ".join(names), "ratio": None, "must": must, "aim": aim,
                          "verdict": "not measured"})
            continue
        seconds, peer = min(ran)
        ratio = seconds / times["diffattn"]["median_s"]
        verdict = "aim reached" if aim and ratio >= aim else "must reached" if ratio >= must else "missed"
        lines.append({"row": f"{part} {name}", "peer": peer, "ratio": ratio, "must": must, "aim": aim, "verdict": verdict})
    for part, name, field, of, aim in RATES:
        row, rates = _row(results, part, name), results.get("probe", {}).get("rates", {})
        value = row["times"]["diffattn"][field] if row else None
        if value is not None and of:
            value = value / rates[of] if of in rates else None
        lines.append({"row": f"{part} {name}", "peer": f"{field}{f' / measured {of}' if of else ''}", "ratio": value, "must": None,
                      "aim": aim, "verdict": "not measured" if value is None else "aim reached" if value >= aim else "missed"})
    return lines
