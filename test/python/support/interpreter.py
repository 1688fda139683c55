"""Calls the interpreter of tensor programs through the tool that is built with the unit tests."""
import pathlib
import subprocess
import tempfile
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Answer:
    """The outcome of one call: results, or the kind and message of an error."""

    results: list = field(default_factory=list)
    steps: int = 0
    milliseconds: float = 0.0
    undefined: str = ""
    kind: str = "ok"
    message: str = ""


class InterpreterFault(Exception):
    """An error of the interpreter, as its tool printed it."""


class Interpreter:
    """Interprets functions of one module; each batch of calls is one process."""

    def __init__(self, build_dir, module):
        self.tool = build_dir / "unittests/tools/diffattn-interpret"
        self.module = module

    def calls(self, calls):
        """Answers for calls (function, precision, arguments) or (function, precision, arguments, most steps)."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            module = self.module
            if not isinstance(module, pathlib.Path):
                module = folder / "module.mlir"
                module.write_text(self.module)
            lines = []
            for i, (function, precision, arguments, *steps) in enumerate(calls):
                paths = [folder / f"{i}in{j}.npy" for j in range(len(arguments))]
                for path, argument in zip(paths, arguments):
                    np.save(path, np.asarray(argument, order="C"))
                lines.append(" ".join([function, precision, str(*steps or [0]), f"{folder}/{i}out", *map(str, paths)]))
            done = subprocess.run([self.tool, module], input="\n".join(lines) + "\n", capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            lines = done.stdout.splitlines()
            assert len(lines) == len(calls), done.stdout + done.stderr
            return [self._answer(folder, i, line) for i, line in enumerate(lines)]

    def call(self, function, *arguments, precision="as-written"):
        """The results of one call, which must not fail."""
        answer, = self.calls([(function, precision, arguments)])
        if answer.kind != "ok":
            raise InterpreterFault(f"{answer.kind}: {answer.message}")
        return answer.results

    @staticmethod
    def _answer(folder, i, line):
        if not line.startswith("ok "):
            kind, _, message = line.partition(": ")
            return Answer(kind=kind, message=message)
        _, steps, milliseconds, undefined = line.split(" ", 3)
        files = sorted(folder.glob(f"{i}out*.npy"), key=lambda path: int(path.stem.partition("out")[2]))
        return Answer([np.load(path) for path in files], int(steps), float(milliseconds), undefined)
