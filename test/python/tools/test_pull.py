"""The command `pull`, with the hub's own client, from a hub on this machine."""
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest
from paths import ROOT

import diffattn

TINY = ROOT / "examples" / "tiny-lm"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: Files that a repository may have beside a checkpoint: code, pickles, other folders.
OTHERS = {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"\x80", "original/model.safetensors": b"x", "README.md": b"a model", ".gitattributes": b""}


class Hub(http.server.BaseHTTPRequestHandler):
    files = {name: (TINY / name).read_bytes() for name in ("config.json", "model.safetensors", "tokenizer.json")} | OTHERS
    asked = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            if path.split("/revision/")[-1] not in ("main", COMMIT):
                return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            info = {"id": "owner/tiny", "modelId": "owner/tiny", "sha": COMMIT,
                    "siblings": [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]}
            return self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        name = path.removeprefix(f"/owner/tiny/resolve/{COMMIT}/")
        if name not in self.files:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        content = self.files[name]
        self.answer(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "none"})

    do_HEAD = do_GET

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture(scope="module")
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def pull(hub, tmp_path):
    def run(*arguments):
        environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                                    "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
        return subprocess.run([sys.executable, "-m", "diffattn", "pull", *arguments], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=120)
    return run


def test_data_alone_is_fetched(pull, tmp_path):
    done = pull("owner/tiny", "--yes", "-o", "model")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert done.stdout.endswith(f" MiB  of owner/tiny at commit {COMMIT}\n") and done.stdout.count("\n") == 4
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (TINY / "model.safetensors").read_bytes()
    fetched = [path for path in Hub.asked if "/resolve/" in path]
    assert fetched and not [path for path in fetched if any(name in path for name in OTHERS) or COMMIT not in path]
    assert list(diffattn.load(tmp_path / "model").generate([1, 2, 3], 2, temperature=0))


@pytest.mark.parametrize("arguments, code, message", [
    (("tiny",), 2, "expected a model as OWNER/NAME, but got 'tiny'"),
    (("../etc/passwd",), 2, "expected a model as OWNER/NAME"),
    (("owner/tiny",), 2, "expected --yes where nobody can be asked"),
    (("owner/tiny", "--revision=other", "--yes"), 5, "owner/tiny: expected to fetch it from the hub, but got"),
    (("owner/tiny", "--yes", "-o", "."), 8, "expected a folder that is not there yet, or an empty one"),
])
def test_errors(pull, tmp_path, arguments, code, message):
    (tmp_path / "something").write_text("")
    done = pull(*arguments)
    assert done.returncode == code and message in done.stderr, done.stderr
    assert not (tmp_path / "tiny").exists()


def test_nothing_is_left_of_half_a_model(pull, tmp_path, monkeypatch):
    listed = Hub.do_GET

    def broken(self):
        if "tokenizer.json" in self.path:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return listed(self)

    monkeypatch.setattr(Hub, "do_GET", broken)
    monkeypatch.setattr(Hub, "do_HEAD", broken)
    done = pull("owner/tiny", "--yes")
    assert done.returncode == 5 and not (tmp_path / "tiny").exists()


def test_a_repository_without_safetensors(pull, monkeypatch):
    monkeypatch.setattr(Hub, "files", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    done = pull("owner/tiny", "--yes")
    assert done.returncode == 5 and "expected config.json and weights as safetensors, but it has neither of them or only one" in done.stderr
