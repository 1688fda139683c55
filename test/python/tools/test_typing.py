"""Type checkers, completion and older Pythons with the package."""
import pathlib
import re
import subprocess
import sys

import diffattn
from mypy_client import CLIENT, check_client
from paths import ROOT


def test_annotations_serve_a_client(tmp_path):
    check_client(tmp_path, "--follow-imports=silent", MYPYPATH=str(ROOT / "python"))


def test_dir_is_complete():
    """Every name is there, and every name that the documents and the client of test_annotations_serve_a_client use."""
    names = set(dir(diffattn))
    assert set(diffattn.__all__) <= names
    for name in names:
        getattr(diffattn, name)
    assert {name for name in names if not name.startswith("_")} == set(diffattn.__all__) - {"__version__"}
    text = "".join(block for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
                   for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S))
    text += re.sub(r"^.*# error: .*$", "", CLIENT.read_text(), flags=re.M)
    used = set(re.findall(r"(?<!torch\.ops\.)\bdiffattn\.(\w+)", re.sub(r'"[^"\n]*"|(?:from|import) diffattn\.\w+', "", text)))
    assert {"attention", "runtime"} <= used <= names


def test_sources_are_for_the_oldest_python():
    """The one that pyproject.toml names."""
    oldest = re.search(r'requires-python = ">=([0-9.]+)"', (ROOT / "python" / "pyproject.toml").read_text()).group(1)
    done = subprocess.run([pathlib.Path(sys.executable).parent / "vermin", f"--target={oldest}-", "--no-tips", "--violations", ROOT / "python" / "diffattn"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
