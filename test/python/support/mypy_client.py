"""Checks of typed_client.py by mypy: the lines with "# error: ", and no others, must have an error."""
import os
import re
import subprocess
import sys

from paths import ROOT

CLIENT = ROOT / "test" / "python" / "support" / "typed_client.py"
#: Libraries that the client does not use, and that take most of the time.
UNREAD = "[mypy]\n" + "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in ("torch", "transformers"))


def check_client(cache, *options, **environment):
    """Errors are where the client says that it is wrong, and nowhere else."""
    config = cache / "mypy.ini"
    config.write_text(UNREAD)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", config, "--cache-dir", cache, "--no-error-summary", *options, CLIENT], cwd=cache,
                          env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.stderr == ""
    errors = [(int(line), message) for line, message in re.findall(r"typed_client\.py:(\d+): error: (.*)$", done.stdout, re.M)]
    wrong = {number for number, line in enumerate(CLIENT.read_text().splitlines(), 1) if "# error: " in line}
    assert [(number, message) for number, message in errors if number not in wrong] == []
    assert wrong == {number for number, _ in errors} and len(wrong) == 7
