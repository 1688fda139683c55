"""A server of its own process, and what a client says to it."""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys

from paths import ROOT

TINY = ROOT / "examples" / "tiny-lm"


class Client:
    """A server's address; each call has a connection of its own."""

    def __init__(self, process, address, log):
        self.process, self.address, self.log = process, address, log

    def connect(self):
        return http.client.HTTPConnection(*self.address, timeout=60)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body, as JSON where it is that."""
        connection = self.connect()
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            data = answer.read()
            is_json = answer.getheader("content-type", "").startswith("application/json")
            return answer.status, dict(answer.getheaders()), json.loads(data) if is_json else data.decode()

    def post(self, path, **body):
        """The answer to a request that is to succeed."""
        status, _, answer = self.ask("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        assert status == 200, answer
        return answer

    def complete(self, **body):
        return self.post("/v1/completions", **{"model": "tiny-lm", "max_tokens": 12, "temperature": 0, "prompt": "In the beginning"} | body)

    def events(self, path, **body):
        """The objects of a stream, which ends as OpenAI's do."""
        text = self.post(path, stream=True, **body)
        *lines, last = [line for line in text.split("\n\n") if line]
        assert last == "data: [DONE]" and all(line.startswith("data: {") for line in lines)
        return [json.loads(line[6:]) for line in lines]

    def metric(self, name):
        return float(re.search(rf"^diffattn_{name}(_total)? (\S+)$", self.ask("GET", "/metrics")[2], re.M)[2])

    def end(self, number=signal.SIGTERM):
        """The exit status, after a signal."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(folder, tmp_path, *options, host="127.0.0.1"):
    log = tmp_path / f"server-{os.urandom(4).hex()}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "diffattn", "serve", str(folder), "--port=0", "--threads=1", f"--host={host}", *options],
                                   stderr=out, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])})
    try:
        while not (match := re.search(r"serving .* at http://([\d.]+):(\d+)/v1\n", log.read_text())):
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        yield Client(process, (match[1], int(match[2])), log)
    finally:
        process.kill()
        process.wait()
        assert "Traceback" not in log.read_text(), log.read_text()
