"""Options, markers and paths that all Python tests share."""
import os
import pathlib

import pytest

from paths import ROOT


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="more random configurations and the long tests")


def pytest_configure(config):
    config.addinivalue_line("markers", "oracle: needs PyTorch, transformers or timm as the oracle")


#: The files that take longest, first of all: processes that take whole files then end together.
LONGEST = ["test_torch_family.py", "test_attention_random.py", "test_docs.py", "test_batch_invariant.py", "test_torch_models.py",
           "test_attack.py", "test_onnx_models.py", "test_wheel_binary.py", "test_simulated.py", "test_patch.py", "test_captured.py",
           "test_lowering.py", "test_phi4flash.py"]


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session")
def full(request):
    """Whether the long form of a test was asked for."""
    return request.config.getoption("--full")


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
