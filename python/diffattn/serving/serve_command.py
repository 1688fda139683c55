"""`diffattn serve`: a model behind OpenAI's interface."""

from __future__ import annotations

import argparse
import ipaddress
import os
import stat
from collections.abc import Callable
from pathlib import Path

from .. import files
from ..errors import RunError, UsageError
from ..importing.requirements import require
from ..output import tell
from . import options
from .chat_template import ChatTemplate
from .model import PagedModel

#: Versions that were tried.
TRIED: dict[str, tuple[str, ...]] = {"starlette": ("1.",), "uvicorn": ("0.",), "pydantic": ("2.",), "prometheus-client": ("0.",), "jinja2": ("3.",)}
LEAST_KEY = 16
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def add_to(sub: argparse.ArgumentParser, integer) -> None:
    sub.add_argument("--host", default="127.0.0.1", help="address to listen at; others than this machine's own need --api-key-file (default: %(default)s)")
    sub.add_argument("--port", type=integer(0, 65535), default=8000, help="0 takes any that is free (default: %(default)s)")
    sub.add_argument("--name", help="of the model for clients (default: the folder's)")
    sub.add_argument("--api-key-file", type=Path, metavar="FILE", help="a key a line; requests need one of them as a bearer token")
    sub.add_argument("--waiting", type=integer(1, 1 << 16), default=256, metavar="N", help="requests that may wait; others get status 429 (default: %(default)s)")
    options.add_to(sub, integer, rows=16)


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> list[str]:
    """A key a line, in a file that others cannot read."""
    content = files.read_text(path)
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) and mode & 0o077:
        raise UsageError(f"{path}: expected a file that its owner alone can read (chmod 600), but got mode {stat.S_IMODE(mode):o}")
    keys = [line.strip() for line in content.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"{path}: expected at least one key, but got none")
    for number, key in enumerate(keys, 1):
        if len(key) < LEAST_KEY or not key.isascii() or " " in key:
            raise UsageError(f"{path}: expected keys of at least {LEAST_KEY} characters of ASCII without spaces, but key {number} is none")
    return keys


def check(args: argparse.Namespace) -> list[str]:
    """Checks the options before a model is compiled; returns the API keys."""
    require("serve", TRIED)
    keys = read_keys(args.api_key_file) if args.api_key_file is not None else []
    if not keys and not is_local(args.host):
        raise UsageError(f"--host: expected --api-key-file with an address that others reach, but got {args.host!r} alone")
    return keys


def run(args: argparse.Namespace, load: Callable[[argparse.Namespace], PagedModel]) -> int:
    """Serves until a signal ends it: requests in flight are computed first."""
    keys = check(args)
    with options.started_template(args) as template:
        return _serve(args, load(args), template, keys)


def _serve(args: argparse.Namespace, model: PagedModel, template: ChatTemplate | None, keys: list[str]) -> int:
    import uvicorn

    from .fingerprint import fingerprint
    from .listener import Listener
    from .server import Server

    engine = options.make_engine(model, args, args.waiting)
    name = args.name or model.directory.resolve().name
    pool, mib = engine.sequences.pool, 2.0**20
    states = f", and states of {engine.rows * model.slot_bytes / mib:.1f} MiB" if model.has_states else ""
    tell(f"diffattn: caches of {pool.pages} pages of {model.page_rows} tokens, {pool.pages * model.page_bytes / mib:.1f} MiB{states}; at most "
         f"{engine.capacity} tokens a request, {engine.rows} texts at a time")
    if model.executable.has_device:
        tell("diffattn: on a GPU a text may depend on what is computed beside it")
    engine.warm()
    server = Server(engine, name, fingerprint(model), template, keys, _LOCAL if is_local(args.host) else ("*",))
    config = uvicorn.Config(server.app, host=args.host, port=args.port, log_config=None, access_log=False, server_header=False,
                            proxy_headers=False, lifespan="on", timeout_keep_alive=30)
    listener = Listener(config, name)
    try:
        listener.run()
    except SystemExit:  # uvicorn has written the reason to its log alone
        raise RunError(f"expected to listen at {args.host}, port {args.port}, but could not: is it taken?") from None
    finally:
        engine.close(finish=False)
    tell("diffattn: ended")
    return 0
