"""Fuzz targets of the Python package: functions that give bytes to what reads them, and hold the outcome to what is promised.

Each returns whether the bytes were taken, and lets through whatever is no error of the package: a finding. atheris calls one
(`python fuzz/python --target=NAME`, scripts/fuzz.sh), the tests call each with its corpus (test_fuzz_corpora.py).
"""
from __future__ import annotations

import functools
import io
import itertools
import os
import signal
import sys
import tempfile
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

#: Modules that each target imports, whose branches guide atheris.
IMPORTS = {
    "config": ("diffattn.checkpoint", "diffattn.models"),
    "generation-config": ("diffattn.generation_config",),
    "weight-header": ("diffattn.checkpoint",),
    "tokenizer": ("diffattn.tokenizer",),
    "requests": ("diffattn.serving.server",),
    "chat-template": ("diffattn.serving.chat_template", "diffattn.serving.template_worker"),
    "onnx": ("diffattn.onnx.files", "diffattn.onnx.lowering"),
    "stablehlo": ("diffattn.jax.stablehlo",),
    "saved-program": ("diffattn.torch.archive",),
}


@functools.lru_cache
def _memory_file() -> int:
    return os.memfd_create("input")


def _path(data: bytes) -> Path:
    """A file that holds `data` and lies in memory alone, the same one for every call."""
    descriptor = _memory_file()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    return Path(f"/proc/self/fd/{descriptor}")


@functools.lru_cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="diffattn-fuzz")
    _folder.kept = folder  # goes with the process
    return Path(folder.name)


def _is_told(error: BaseException) -> bool:
    """Whether `error` is one of the package's, which has a text; a text may name what the file does, and not much more."""
    from diffattn.errors import DiffAttnError

    if not isinstance(error, DiffAttnError):
        return False
    assert 0 < len(str(error)) < 100_000, f"a message of {len(str(error))} characters"
    str(error).encode()  # to a terminal or a client
    return True


def _taken(read: Callable[[], object]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
    except Exception as error:
        if not _is_told(error):
            raise
        return False
    return True


# ---- checkpoints ----------------------------------------------------------------------------------------------


def config(data: bytes) -> bool:
    """config.json: the graph of the model that it describes."""
    from diffattn import models
    from diffattn.checkpoint import parse_json

    def read():
        values = parse_json(data, "config.json")
        for dtype in ("f32", "bf16"):
            assert "func.func" in str(models.build(values, dtype))

    return _taken(read)


def generation_config(data: bytes) -> bool:
    from diffattn.generation_config import NAME, read_defaults

    (_folder() / NAME).write_bytes(data)

    def read():
        defaults = read_defaults(_folder(), {"vocab_size": 1000})
        defaults.sampler()
        assert 0 <= defaults.temperature and 0 < defaults.top_p <= 1 and defaults.top_k >= 0 and all(defaults.stop)

    return _taken(read)


def weight_header(data: bytes) -> bool:
    """A safetensors file, as Python looks into it."""
    from diffattn.checkpoint import read_header

    def read():
        for tensor in read_header(_path(data)).values():
            assert all(size >= 0 for size in tensor.shape) and tensor.begin >= 8

    return _taken(read)


def tokenizer(data: bytes) -> bool:
    from diffattn.tokenizer import TextStream, Tokenizer

    def read():
        made = Tokenizer(_path(data))
        ids = made.encode("Hello, wörld \U0001f600")
        made.decode(ids)
        stream = TextStream(made, ids[:2], ["lo"])
        for token in ids[2:]:
            stream.push(token)
        stream.finish()

    return _taken(read)


# ---- the server -----------------------------------------------------------------------------------------------


class _Words:
    """A tokenizer that cannot fail, as the one of the checkpoint is another target's."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [ord(character) % 97 for character in text[:1000]] or [1]

    def decode(self, ids) -> str:
        return "".join(chr(97 + i % 26) for i in ids)


@functools.lru_cache
def _server():
    from diffattn.generation_config import GenerationDefaults
    from diffattn.serving.server import Server

    model = types.SimpleNamespace(directory=_folder(), tokenizer=_Words(), defaults=GenerationDefaults(ends=frozenset({0})), vocabulary=97)
    template = types.SimpleNamespace(render=lambda messages, **options: "".join(f"{m['role']}: {m['content']}\n" for m in messages))
    engine = types.SimpleNamespace(model=model, capacity=4096)
    return Server(engine, "m", "f", template)


def requests(data: bytes) -> bool:
    """The body of a request, first as one of completions, then as one of chats: what is asked of the engine."""
    from diffattn.serving.protocol import ChatBody, CompletionBody, parse

    def read(kind):
        body = parse(kind, data)
        answer, asked = _server()._work(body, 1)
        assert asked and all(one.prompt and one.choices >= 1 for one in asked)

    taken = [_taken(functools.partial(read, kind)) for kind in (CompletionBody, ChatBody)]
    return any(taken)


#: Beginnings of audit events that rendering a template may not cause.
_FORBIDDEN = ("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "import", "pathlib.", "glob.")
_watched = False
_seen: list[str] = []


@functools.lru_cache
def _watch() -> None:
    from diffattn.serving import template_worker

    def hook(event: str, arguments) -> None:
        if _watched and event.startswith(_FORBIDDEN):
            _seen.append(event)

    sys.addaudithook(hook)
    # Imports what any template needs, as the process of templates does before it reads one.
    template_worker.compiled(r"{{ '\n' | tojson }}").render()


def _out_of_time(number, frame):
    raise TimeoutError("as the process of templates is ended")


def chat_template(data: bytes) -> bool:
    """A template, rendered as its process does, but in this one. The limits of that process stand in for those here."""
    global _watched
    from diffattn.serving import template_worker

    messages = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": ""}]
    variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}
    _watch()
    former = signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        template = template_worker.compiled(data.decode("utf-8", "replace"))
        _watched = True
        answer = template_worker.rendered(template, variables)
    except Exception:  # as the process says of whatever is wrong with a template
        return False
    finally:
        _watched = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert not _seen, f"a template that does {_seen}"
    assert messages == [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": ""}], "a template that changes messages"
    assert len(answer.get("text", "")) <= template_worker.LONGEST
    return "text" in answer


# ---- models of other frameworks -------------------------------------------------------------------------------


def onnx(data: bytes) -> bool:
    """An ONNX file up to the pass of torch-mlir, which runs in a process of its own."""
    from diffattn.errors import CompileError
    from diffattn.onnx import lowering
    from diffattn.onnx.files import read_model

    class Lowered(Exception):
        pass

    def stop(*arguments):
        raise Lowered

    def read():
        former, lowering._linalg = lowering._linalg, stop
        try:
            lowering.lower(read_model(str(_path(data))))
        except Lowered:
            return
        finally:
            lowering._linalg = former
        raise CompileError("expected a model to reach torch-mlir")

    return _taken(read)


_modules = itertools.count()


@functools.lru_cache(maxsize=1)
def _jax_context(generation: int):
    """A context of MLIR for many modules, which takes longer to make than most modules to read. It keeps each type for good, so another
    `generation` of modules gets a new one."""
    from diffattn.jax import stablehlo as reader

    return reader.make_context()


def stablehlo(data: bytes) -> bool:
    """The text of a module, of whose sizes those that are not known become 2."""
    from diffattn.errors import IRError
    from diffattn.jax import stablehlo as reader

    def read():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise IRError("expected text") from None
        module = reader.parse(_jax_context(next(_modules) // 256), text)
        with module.context:
            arguments, _ = reader.signature(module)
        reader.lower(module, "f", arguments, [tuple(2 if isinstance(size, str) else size for size in value.sizes) for value in arguments])

    return _taken(read)


def saved_program(data: bytes) -> bool:
    """The graph in an archive of torch.export, without weights; whatever torch trusts in it may run nothing."""
    from diffattn.torch import archive

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("m/models/model.json", data)
        for kind in ("weights", "constants"):
            made.writestr(f"m/data/{kind}/model_{kind}_config.json", '{"config": {}}')
    return _taken(lambda: archive.load(str(_path(file.getvalue()))))


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "config": config, "generation-config": generation_config, "weight-header": weight_header, "tokenizer": tokenizer, "requests": requests,
    "chat-template": chat_template, "onnx": onnx, "stablehlo": stablehlo, "saved-program": saved_program}
