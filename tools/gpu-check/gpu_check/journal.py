"""Journal of the finished work of a part: one that dies on the device, or hangs there, loses its current unit and goes on behind it.

A part's work is cut into units. The process that does it (part.py) writes a line of JSON when a unit begins and one when it ends;
the one that watches it (check.py) ends in its place a unit that killed it, and starts the part again.
"""
import json
import time
from pathlib import Path

#: The status of a process whose device takes no more calls; a new one may go on.
LOST = 3


def _message(problem):
    return f"{type(problem).__name__}: {problem}"[:1000]


class Journal:
    """Units of a part by their names. Without a path nothing outlives the process. `after_failure` is called when a unit has failed and
    that is written."""

    def __init__(self, path=None, after_failure=lambda: None):
        self.path, self.after_failure = path, after_failure
        self.done = {line["end"]: line for line in lines(path) if "end" in line}

    def run(self, name, seconds, work):
        """Runs `work`, unless an earlier process has done it. Returns its result, which is JSON, None if it failed, and its failures. `seconds`
        is more than it takes: a longer one hangs."""
        if name not in self.done:
            self._write({"begin": name, "seconds": seconds, "time": time.time()})
            result, failures = None, []
            try:
                result = work()
            except Exception as problem:  # the next unit may be well
                failures = [f"{name}: {_message(problem)}"]
            self.done[name] = {"end": name, "result": result, "failures": failures}
            self._write(self.done[name])
            if failures:
                self.after_failure()
        return self.done[name]["result"], self.done[name]["failures"]

    def run_rows(self, units, deadline=None):
        """Runs units (name, seconds, work) whose results are rows of times, while `deadline` of `time.monotonic` is ahead. Returns the rows, and
        the failures of all: a row may have some of its own, under "failures"."""
        rows, failures = [], []
        for name, seconds, work in units:
            if deadline and time.monotonic() > deadline and name not in self.done:
                failures.append(f"{name}: not reached in time")
                continue
            row, failed = self.run(name, seconds, work)
            rows += [row] if row else []
            failures += failed + (row.get("failures", []) if row else [])
        return rows, failures

    def _write(self, line):
        if self.path:
            append(self.path, line)


def append(path, line):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def lines(path):
    """The lines that were written whole."""
    if not path or not Path(path).is_file():
        return []
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def unfinished(path):
    """The line of the unit that has begun and not ended, or None."""
    written = lines(path)
    return written[-1] if written and "begin" in written[-1] else None


def end(path, unit, problem):
    """Ends a unit in the place of the process that did not."""
    append(path, {"end": unit["begin"], "result": None, "failures": [f"{unit['begin']}: {problem}"]})
