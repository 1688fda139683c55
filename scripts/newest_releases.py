"""Writes python/requirements-newest.txt: the newest releases of the frameworks that models come from, with all that they need.

`scripts/test.sh --newest` installs exactly these files, whose hashes are given, into an environment of their own, so that a run can be
repeated. pip resolves for the Python and the machine that this runs on, whatever caps its configuration has:

    .venv/bin/python scripts/newest_releases.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

OUTPUT = Path(__file__).resolve().parents[1] / "python" / "requirements-newest.txt"

#: Without versions: the newest ones are asked for.
FRAMEWORKS = ("torch", "transformers", "timm", "torch-mlir", "onnx", "onnxscript", "jax", "jaxlib", "flax")
#: What our package and its tests need beside them.
OTHERS = ("numpy<3", "ml_dtypes", "tokenizers", "safetensors", "setuptools", "flatbuffers", "matplotlib", "nvidia-cuda-nvcc", "accelerate",
          "scikit-learn", "starlette", "uvicorn", "pydantic", "prometheus-client", "jinja2", "pytest", "pytest-xdist")


def resolve() -> list[dict]:
    """What pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--quiet",
               "--only-binary", ":all:", "--report", "-", *FRAMEWORKS, *OTHERS]
    run = subprocess.run(command, env={**os.environ, "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"error: expected pip to resolve the newest releases, but got:\n{run.stderr.strip()}")
    return json.loads(run.stdout)["install"]


def line(package: dict) -> str:
    name, version = package["metadata"]["name"], package["metadata"]["version"]
    return f"{name}=={version} --hash=sha256:{package['download_info']['archive_info']['hashes']['sha256']}"


def main() -> None:
    packages = sorted(resolve(), key=lambda package: package["metadata"]["name"].lower())
    head = ["# Written by scripts/newest_releases.py: the newest releases of the frameworks, and all that they need, on CPython "
            f"{sys.version_info.major}.{sys.version_info.minor} and x86-64.",
            "# `scripts/test.sh --newest` installs these files and no others. The ordinary tests use requirements-test.txt."]
    OUTPUT.write_text("\n".join([*head, *map(line, packages), ""]))
    newest = {package["metadata"]["name"].lower(): package["metadata"]["version"] for package in packages}
    print(f"wrote {OUTPUT}: " + ", ".join(f"{name} {newest[name]}" for name in FRAMEWORKS))


if __name__ == "__main__":
    main()
