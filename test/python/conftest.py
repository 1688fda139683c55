"""Options, markers and paths that all Python tests share."""
import collections
import gc
import os
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))
from paths import MODULES, ROOT  # noqa: E402

sys.path[:1] = map(str, MODULES)
# Threads that spin while they wait slow a busy machine down; to be said before any library with OpenMP is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="more random configurations and the long tests")


def pytest_configure(config):
    # A full collection goes over all of PyTorch and takes a fifth of a second; by default it comes every few compiled modules.
    gc.set_threshold(700, 10, 200)
    config.addinivalue_line("markers", "integration: of INTEGRATION (ninja check-diffattn-integration; the others: check-diffattn-python)")
    config.addinivalue_line("markers", "oracle: needs PyTorch, transformers or timm as the oracle")
    config.addinivalue_line("markers", "long: runs with --full alone, as quicker tests find nearly all that it finds")
    config.addinivalue_line("markers", "sampled(every): without --full one in so many of the test's cases runs, always the same, with every "
                            "value of each parameter")


#: The rooms and files of check-diffattn-integration, whose tests have an item of this name: whole models, what drives the package from
#: outside, and what takes minutes.
INTEGRATION = {"models", "fuzz", "test_docs.py", "test_install.py", "test_wheel.py", "test_wheel_binary.py", "test_gpu_check.py", "test_ptxas_gate.py",
               "test_torch_training.py", "test_torch_attention.py", "test_torch_backend.py", "test_jax_training.py", "test_hints.py",
               "test_closed_pipes.py", "test_backward_benchmark.py", "test_benchmark_cpu.py", "test_model_benchmark.py", "test_products_benchmark.py",
               "test_step_benchmark.py", "test_training_benchmark.py"}

#: The rooms and files whose tests compile whole programs to see what they compute: without --full their machine code is made quickly
#: (DIFFATTN_QUICK_CODE), since most of what they take is compiling. Kernels and bits are judged by optimized code, in the other rooms and in those of EXACT.
QUICK = {"models", "torch", "onnx", "jax", "graphs"}
EXACT = {"test_batch_invariant.py", "test_golden.py"}

#: The files that take longest, first of all: processes that take whole files then end together.
LONGEST = ["test_docs.py", "test_gpu_check.py", "test_ptxas_gate.py", "test_torch_models.py", "test_attention_extremes.py",
           "test_closed_pipes.py", "test_quantized.py", "test_batch_invariant.py", "test_attention_exact.py", "test_torch_family.py",
           "test_backward_kernel.py", "test_attention_backward.py", "test_cuda_sim.py", "test_sequences.py", "test_onnx_models.py",
           "test_attention_random.py", "test_row_invariance.py", "test_torch_partition.py", "test_torch_attention.py", "test_jax_training.py",
           "test_attack.py", "test_digits.py", "test_wheel_binary.py"]


def drawn(cases, count, seed):
    """The numbers of `count` of a test's cases, always the same; of more, where `count` do not have every value of each parameter that has
    no more values than that. `cases`: the parameters of each one by their names."""
    cases = [{(name, value if isinstance(value, str) else id(value)) for name, value in case.items()} for case in cases]
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    values = collections.Counter(name for name, _ in set().union(*cases))
    wanted, chosen = {one for one in set().union(*cases) if values[one[0]] <= count}, []
    while wanted:
        chosen.append(max(order, key=lambda number: len(wanted & cases[number])))
        wanted -= cases[chosen[-1]]
    chosen += [number for number in order if number not in chosen][:max(0, count - len(chosen))]
    return set(chosen)


def thin_out(items):
    """Splits `items` into those of the quick suite and those of the long one alone: tests marked `long`, and of tests marked `sampled` all but
    a draw from a fixed seed."""
    cases = {}
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            cases.setdefault((item.path, item.originalname, marker.args[0]), []).append(item)
    left = {item for item in items if item.get_closest_marker("long")}
    for (path, name, every), of_test in cases.items():
        kept = drawn([item.callspec.params for item in of_test], -(-len(of_test) // every), f"{path.name} {name}")
        left.update(item for number, item in enumerate(of_test) if number not in kept)
    return [item for item in items if item not in left], [item for item in items if item in left]


def pytest_itemcollected(item):
    if not INTEGRATION.isdisjoint(item.path.parts):
        item.add_marker("integration")


@pytest.hookimpl(trylast=True)  # what the command line chooses is chosen before
def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        items[:], left = thin_out(items)
        config.hook.pytest_deselected(items=left)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


def pytest_collection_finish():
    gc.freeze()  # nothing that is imported by now becomes garbage


def pytest_terminal_summary(terminalreporter):
    """The files that took longest, over all processes: what --durations says of tests alone."""
    seconds = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "duration")):
        file = report.nodeid.partition("::")[0]
        seconds[file] = seconds.get(file, 0.0) + report.duration
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:20]
    terminalreporter.section("slowest files")
    for file, spent in longest:
        terminalreporter.write_line(f"{spent:7.1f} s  {file}")
    terminalreporter.write_line(f"{sum(seconds.values()):7.1f} s  in all")


@pytest.fixture(scope="session")
def full(request):
    """Whether the long form of a test was asked for."""
    return request.config.getoption("--full")


@pytest.fixture(scope="module", autouse=True)
def code(request, full):
    """How machine code of the file's tests is made, also by the processes that they start."""
    parts = set(request.path.parts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DIFFATTN_QUICK_CODE", "1" if not full and parts & QUICK and not parts & EXACT else "0")
        yield


@pytest.fixture(scope="session")
def root():
    """The top of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def build_dir():
    """The folder that the project was built into."""
    return pathlib.Path(os.environ.get("DIFFATTN_BUILD_DIR", ROOT / "build"))


@pytest.fixture
def programs(monkeypatch):
    """The graphs of PyTorch that a test compiles, as they come."""
    import torch
    from diffattn.torch import program

    torch._dynamo.reset()
    made, init = [], program.GraphProgram.__init__

    def keep(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(program.GraphProgram, "__init__", keep)
    yield made
    torch._dynamo.reset()
