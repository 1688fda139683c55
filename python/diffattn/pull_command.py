"""`diffattn pull`: a checkpoint from the Hugging Face hub, the only thing here that fetches anything.

What it takes is data alone (docs/security.md): weights as safetensors, the tokenizer, configs and chat templates, all of one commit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from . import files, hints
from .errors import CheckpointError, DiffAttnError, OutputError, UsageError
from .importing.requirements import require
from .output import say, tell
from .progress import Progress
from .text import printable_name, shown

NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json")
_WEIGHTS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}\.safetensors")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_COMMIT = re.compile("[0-9a-f]{40}")


def add_to(commands) -> None:
    """The command among others."""
    sub = commands.add_parser("pull", help="fetch a checkpoint from the Hugging Face hub", description="Fetch weights, tokenizer and configs "
                              "of a model, and nothing that is code. Sizes are shown before anything is fetched.",
                              epilog="example: diffattn pull owner/name -o model")
    sub.set_defaults(function=run)
    sub.add_argument("repository", metavar="OWNER/NAME", help="of the model on the hub")
    sub.add_argument("-o", "--output", metavar="OUT", help="a folder that is not there yet, or an empty one (default: NAME)")
    sub.add_argument("--revision", default="main", help="a branch, tag or commit (default: %(default)s); what is fetched is of the commit that it names")
    sub.add_argument("--yes", action="store_true", help="fetch without a question")


def run(args) -> int:
    require("pull", {"huggingface-hub": ("0.", "1.", "2.")})
    if not _REPOSITORY.fullmatch(args.repository):
        raise UsageError(f"expected a model as OWNER/NAME, but got {shown(args.repository)}")
    output = Path(args.output or args.repository.partition("/")[2])
    if files.exists(output) and (not output.is_dir() or any(output.iterdir())):
        raise OutputError(f"{output}: expected a folder that is not there yet, or an empty one")
    commit, sizes = _listed(args.repository, args.revision)
    for name, size in sizes.items():
        say(f"{size / 2**20:12.1f} MiB  {printable_name(name)}")
    say(f"{sum(sizes.values()) / 2**20:12.1f} MiB  of {args.repository} at commit {commit}")
    if not args.yes and not _agreed():
        tell("diffattn: nothing was fetched")
        return 1
    total = sum(sizes.values())
    with Progress("fetching", poll=lambda: (min(_bytes_in(output), total), total)):
        _fetch(args.repository, commit, list(sizes), output)
    tell(f"diffattn: wrote {printable_name(output)}; look at it with: {hints.command()} info {shlex.quote(str(output))}")
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("expected --yes where nobody can be asked")
    tell("diffattn: fetch them? [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def wanted(name: str) -> bool:
    """Whether a file of a repository is one to fetch."""
    return name in NAMES or _WEIGHTS.fullmatch(name) is not None


def _listed(repository: str, revision: str) -> tuple[str, dict[str, int]]:
    """The commit that a revision names, and the files to fetch with their bytes."""
    from huggingface_hub import HfApi

    with _Blaming(repository):
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    if not _COMMIT.fullmatch(info.sha or ""):
        raise CheckpointError(f"{repository}: expected a commit for revision {shown(revision)}, but got {shown(info.sha)}")
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or () if wanted(file.rfilename)}
    if "config.json" not in sizes or not any(_WEIGHTS.fullmatch(name) for name in sizes):
        raise CheckpointError(f"{repository}: expected config.json and weights as safetensors, but it has neither of them or only one")
    return info.sha, dict(sorted(sizes.items()))


def _fetch(repository: str, commit: str, names: list[str], output: Path) -> None:
    """Writes all files, or leaves no folder."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # they would be written also where no terminal is
    made = not output.exists()
    try:
        for name in names:
            with _Blaming(repository):
                hf_hub_download(repository, name, revision=commit, local_dir=output)
    except BaseException:
        for name in names:
            (output / name).unlink(missing_ok=True)
        shutil.rmtree(output / ".cache", ignore_errors=True)
        if made and output.exists():
            os.rmdir(output)
        raise
    shutil.rmtree(output / ".cache", ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    """Bytes of all files in a folder that is being written, also of those that have another name until they are whole."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_size if path.is_file() else 0
        except FileNotFoundError:  # renamed meanwhile
            pass
    return size


class _Blaming:
    """Turns what the hub's client raises into an error of ours."""

    def __init__(self, repository: str) -> None:
        self.repository = repository

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> None:
        if isinstance(error, Exception) and not isinstance(error, DiffAttnError):
            first = str(error).strip().split("\n")[0] or kind.__name__
            raise CheckpointError(f"{self.repository}: expected to fetch it from the hub, but got: {first}") from None
