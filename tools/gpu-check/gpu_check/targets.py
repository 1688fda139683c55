"""The goals of this project for the timed rows: what must be reached against which peer, and what is aimed at."""
import typing

from .results import DENSE, OURS, PLAIN


class Goal(typing.NamedTuple):
    """How often faster than the fastest of `peers` that ran; or, with `field`, which part of the probe's rate `of` (None: itself)."""
    part: str
    row: str
    peers: tuple = ()
    must: typing.Optional[float] = None
    aim: typing.Optional[float] = None
    field: str = ""
    of: typing.Optional[str] = None


FLASH, CHOICE, TWO = "flash x4, kernels alone", "PyTorch's choice x2, eager tail", "cuDNN x2, eager tail"
EAGER = (TWO, CHOICE, "flash x4, eager tail", "cuDNN x4, eager tail")
#: Goals of the kernels that all chips run, by mma.sync.
MMA = [
    Goal("forward", "full 4k", (FLASH,), 1.35, 1.65), Goal("forward", "full 16k", (FLASH,), 1.35, 1.65),
    Goal("forward", "causal 4k", (FLASH,), 1.35, 1.65), Goal("forward", "causal 16k", (FLASH,), 1.35, 1.65),
    Goal("forward", "causal 2k with tail", (CHOICE, TWO), 1.0, 1.2),
    Goal("module", "causal 4k with tail", ("naive, eager",), 5.0, 9.0),
    Goal("decode", "B32, 8k", (CHOICE, TWO), 1.4),
    Goal("forward", "full 16k", aim=400.0, field="nominal_tflops"),
    Goal("decode", "B32, 8k", aim=0.85, field="tb_per_s", of="copy_tb_per_s")]


def _of_product(row, must, aim):
    return [Goal("forward", row, must=must, aim=aim, field="nominal_tflops", of="gemm_tflops"), Goal("forward", row, (PLAIN,), 1.4, 1.7)]


def _of_copy(row, must, aim):
    return [Goal("decode", row, must=must, aim=aim, field="tb_per_s", of="copy_tb_per_s")]


#: Goals of the kernels for sm_90a, by TMA and wgmma.
HOPPER = [
    *_of_product("full 16k", 0.70, 0.85), *_of_product("causal 16k", 0.68, 0.82), *_of_product("causal 4k", 0.60, 0.75),
    *_of_product("(128,256) full 16k", 0.75, 0.90),
    *_of_product("(128,128) one K, full 16k", 0.80, 0.90), *_of_product("(128,128) one K, causal 16k", 0.75, 0.86),
    Goal("forward", "full 16k", ("cuDNN x2, kernels alone",), 1.0, 1.1),
    Goal("forward", "causal 2k with tail", EAGER, 1.6, 2.0),
    Goal("forward", "causal 2k with tail", ("cuDNN x2, compiled tail",), 1.02, 1.15),
    *_of_copy("B32, 8k", 0.80, 0.88), *_of_copy("(128,256) B32, 8k", 0.80, 0.88), *_of_copy("B1, 128k", 0.70, 0.85),
    Goal("decode", "B32, 8k, pages of 64", (DENSE,), 0.93, 0.98)]


#: Goals of gradients: parts of the product, and against two calls. Nothing was measured yet.
GRADIENTS = [
    Goal("backward", "causal 16k", must=0.46, aim=0.54, field="nominal_tflops", of="gemm_tflops"),
    Goal("backward", "full 16k", must=0.50, aim=0.58, field="nominal_tflops", of="gemm_tflops"),
    Goal("backward", "causal 16k", ("cuDNN x2, kernels alone",), 1.1, 1.3),
    Goal("backward", "full 16k", ("cuDNN x2, kernels alone",), 1.1, 1.3),
    Goal("backward", "(128,128) one K, causal 16k", ("cuDNN x2, kernels alone",), 0.95, 1.1)]


def _times(results, goal):
    rows = results.get(goal.part, {}).get("rows", [])
    return next((row["times"] for row in rows if row["name"] == goal.row), {})


def _reached(goal, times, ours, rates):
    """The value of a goal, and what it is compared with; None: not measured."""
    if goal.field:
        value = times[ours][goal.field] if ours in times else None
        if value is not None and goal.of:
            value = value / rates[goal.of] if goal.of in rates else None
        return value, f"{goal.field}{f' / measured {goal.of}' if goal.of else ''}"
    ran = [(times[peer]["median_s"], peer) for peer in goal.peers if "median_s" in times.get(peer, {})]
    if not ran or ours not in times:
        return None, " or ".join(goal.peers)
    seconds, peer = min(ran)
    return seconds / times[ours]["median_s"], peer


def judge(results):
    """One line for each goal: row, peer, ratio, must, aim, verdict. Goals of sm_90a's kernels only where these ran, those of inference and of
    gradients only where there is a part of them."""
    rates = results.get("probe", {}).get("rates", {})
    lines = []
    of_inference = MMA + HOPPER if {goal.part for goal in MMA} & set(results) else []
    for goal in of_inference + (GRADIENTS if "backward" in results else []):
        times = _times(results, goal)
        both = PLAIN in times
        if goal in HOPPER and times and not both:
            continue
        value, peer = _reached(goal, times, PLAIN if both and goal in MMA else OURS, rates)
        verdict = ("not measured" if value is None else "aim reached" if goal.aim and value >= goal.aim
                   else "must reached" if goal.must and value >= goal.must else "missed")
        kernels = "" if goal in GRADIENTS else ", mma.sync" if goal in MMA else ", sm_90a"
        lines.append({"row": f"{goal.part} {goal.row}{kernels}", "peer": peer, "ratio": value,
                      "must": goal.must, "aim": goal.aim, "verdict": verdict})
    return lines
