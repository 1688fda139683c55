"""table.md: the results of all parts that have one, for people."""
import textwrap

from . import targets

WIDTH = 100  # of prose, as elsewhere in the documentation


def _seconds(value):
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"


def _part(value, of):
    return f"{value / of:.0%}" if of else ""


def _contestants(times, columns):
    """A line for each: its median and quartiles, what `columns` says of it, and its median over ours."""
    ours = times["diffattn"]["median_s"]
    lines = []
    for name, entry in times.items():
        if "refused" in entry:
            lines.append(f"| {name} | refused: {entry['refused'].replace('|', '/')} |" + " |" * 6)
            continue
        low, high = entry["quartiles_s"]
        cells = [name, _seconds(entry["median_s"]), f"{_seconds(low)} – {_seconds(high)}", *columns(entry), f"{entry['median_s'] / ours:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines + [""]


def _clocks(entry):
    return ", ".join(f"{k} {v}" for k, v in entry["clocks"].items()) or "unknown"


def _rows(part, result, rates):
    def columns(entry):
        return [f"{entry['nominal_tflops']:.1f}", _part(entry["nominal_tflops"], rates.get("gemm_tflops")), f"{entry['tb_per_s']:.2f}",
                _part(entry["tb_per_s"], rates.get("copy_tb_per_s"))]

    lines = []
    for row in result["rows"]:
        ours = row["times"]["diffattn"]
        lines += [f"### {part}: {row['name']}", "",
                  f"batch {row['batch']}, {row['queries']} queries, {row['keys']} keys, {row['input_sets']} input sets; our two "
                  f"places in a turn differ by {ours['spread']:.1%}; clocks: {_clocks(ours)}", "",
                  "| | median | quartiles | nominal TFLOP/s | of the measured product | TB/s | of the measured copy | against ours |",
                  "|---|---|---|---|---|---|---|---|"]
        lines += _contestants(row["times"], columns)
        if "same_bits" in ours:
            others = [name for name, entry in row["times"].items() if not entry.get("same_bits", True)]
            lines += [f"Other bits in a second call: {', '.join(others) or 'none'}.", ""]
    return lines


def _models(result, rates):
    def columns(entry):
        return [f"{entry['tokens_per_s']:.1f}", f"{entry['tb_per_s']:.2f}", _part(entry["tb_per_s"], rates.get("copy_tb_per_s")),
                f"{entry['relative_error']:.2g}"]

    lines = ["## Whole models", "", "| model | what | error of a row | allowed |", "|---|---|---|---|"]
    for check in result["checks"]:
        if "error" in check:
            lines.append(f"| {check['model']} | {check['what']} | {check['error']:.2g} | {check['allowed']:.2g} |")
        else:
            lines.append(f"| {check['model']} | {check['what']} | {check['same']} of {check['of']} as on the CPU | {check['sure']} |")
    if result["rows"]:
        lines += ["", f"DiffLlama with {result['parameters'] / 1e6:.0f} M parameters in bf16, batch 1; {result['clock']}.", ""]
    for row in result["rows"]:
        ours = row["times"]["diffattn"]
        lines += [f"### models: {row['name']}", "",
                  f"{row['tokens']} tokens, context {row['context']}; our kernels are launched {row['launches']}; our two places "
                  f"in a turn differ by {ours['spread']:.1%}; clocks: {_clocks(ours)}", "",
                  "| | median | quartiles | tokens/s | weights and caches, TB/s | of the measured copy | error against f32 | against ours |",
                  "|---|---|---|---|---|---|---|---|"]
        lines += _contestants(row["times"], columns)
    return lines


def write(path, results):
    """`results`: part -> what its file holds."""
    probe = results.get("probe", {})
    rates = probe.get("rates", {})
    device = probe.get("device", {})
    lines = [f"# {device.get('name', 'A device that the part `probe` has not named')}", ""]
    if device.get("simulated"):
        lines += ["**A simulated device: these figures are no times.**", ""]
    for part, result in results.items():
        state = f"failed: {'; '.join(result['failures'])}" if result["failures"] else result.get("not_run", "passed")
        lines.append(f"- {part}: {state}")
    if rates:
        lines += ["", f"Product {rates['size']}³ in bf16 {rates['gemm_tflops']:.1f} TFLOP/s, copy {rates['copy_tb_per_s']:.2f} TB/s (read and "
                  f"written). Versions: {', '.join(f'{k} {v}' for k, v in probe['versions'].items())}."]
    if "kernels" in results and "results" in results["kernels"]:
        kernels = results["kernels"]
        worst = max(kernels["results"], key=lambda r: r["error_over_m"] / r["allowed"])
        lines += ["", f"{kernels['kernels']} kernels in {kernels['checks']} checks; nearest to its bound is {worst['case']} "
                  f"{worst['layout']}, with {worst['error_over_m'] / worst['allowed']:.0%} of it."]
    timed = ("forward", "decode", "module", "backward")
    if any(part in results for part in timed):
        lines += ["", "| goal | peer or rate | reached | must | aim | |", "|---|---|---|---|---|---|"]
        for line in targets.judge(results):
            reached = "" if line["ratio"] is None else f"{line['ratio']:.2f}"
            lines.append(f"| {line['row']} | {line['peer']} | {reached} | {line['must'] or ''} | {line['aim'] or ''} | {line['verdict']} |")
        lines.append("")
        for part in timed:
            if "rows" in results.get(part, {}):
                lines += _rows(part, results[part], rates)
    if "rows" in results.get("models", {}):
        lines += ["", *_models(results["models"], rates)]
    text = "\n".join(line if line.startswith(("|", "#")) else textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
                     for line in lines)
    path.write_text(text.rstrip() + "\n")
