"""Importers' graphs, interpreted, against what the framework computed."""
import re

import numpy as np
import pytest

from interpreter import Interpreter
from paths import ROOT

GRAPHS = sorted(path.stem for path in (ROOT / "test/graphs").glob("*.npz"))


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_gives_what_its_framework_gave(name, build_dir):
    path = ROOT / "test/graphs" / f"{name}.mlir"
    entry = re.search(r"func\.func (?:public )?@(\w+)", path.read_text()).group(1)
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs = [arrays[f"in{i}"] for i in range(sum(key.startswith("in") for key in arrays))]
        wanted = [arrays[f"out{i}"] for i in range(sum(key.startswith("out") for key in arrays))]
    answers = Interpreter(build_dir, path).calls([(entry, precision, inputs) for precision in ("exact", "as-written")])
    for answer in answers:
        assert answer.kind == "ok", answer.message
        assert not answer.undefined
        assert len(answer.results) == len(wanted)
        for got, want in zip(answer.results, wanted):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=5e-6)
    for exact, written in zip(answers[0].results, answers[1].results):
        assert exact.dtype == np.float64 and written.dtype == np.float32
