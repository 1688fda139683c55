"""The server over HTTP, as its clients see it."""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from paths import ROOT
from serving_client import TINY, serving

import diffattn
from diffattn.cli import main
from diffattn.errors import BundleError
from diffattn.serving import model as paged_model
from diffattn.serving.engine import Engine
from diffattn.serving.model import load_bundle
from diffattn.serving.requests import Request

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model with a chat template."""
    place = tmp_path_factory.mktemp("chat") / "tiny-lm"
    place.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(TINY / name, place)
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": {"content": "<|bos|>"}}))
    return place


@pytest.fixture(scope="module")
def client(folder, tmp_path_factory):
    with serving(folder, tmp_path_factory.mktemp("log"), "--rows=32", "--context=600") as one:
        yield one


@pytest.fixture(scope="module")
def model():
    return diffattn.load(TINY, batch_invariant=True)


def test_what_takes_no_model(client):
    assert client.ask("GET", "/health")[2] == {"status": "ok"}
    listed = client.ask("GET", "/v1/models")[2]
    assert [one["id"] for one in listed["data"]] == ["tiny-lm"] and listed["data"][0]["max_model_len"] == 600
    assert client.ask("GET", "/v1/models/tiny-lm")[2] == listed["data"][0]
    assert client.ask("GET", "/v1/models/other")[0] == 404


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 4}])
def test_texts_are_those_of_generate(client, model, options):
    answer = client.complete(max_tokens=40, **options)
    text = "".join(model.generate("In the beginning", 40, **{"temperature": 0} | options))
    choice, = answer["choices"]
    assert choice == {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
    assert answer["object"] == "text_completion" and answer["model"] == "tiny-lm"
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45}
    assert answer["seed"] == options.get("seed", answer["seed"])


def test_a_seed_that_was_chosen_gives_the_text_again(client):
    first, second = (client.complete(temperature=1.2, max_tokens=30) for _ in range(2))
    assert first["choices"] != second["choices"]
    again = client.complete(temperature=1.2, max_tokens=30, seed=first["seed"])
    assert again["choices"] == first["choices"] and again["system_fingerprint"] == first["system_fingerprint"]


def test_prompts_of_every_form(client, model):
    ids = model.tokenizer.encode("In the beginning")
    one = client.complete()["choices"][0]["text"]
    for prompt in (["In the beginning"], ids, [ids]):
        assert client.complete(prompt=prompt)["choices"][0]["text"] == one
    several = client.complete(prompt=["In the beginning", "And the king said"], n=2, temperature=1.0, seed=5)
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    other = client.complete(prompt="And the king said", n=2, temperature=1.0, seed=5)
    assert [choice["text"] for choice in several["choices"][2:]] == [choice["text"] for choice in other["choices"]]
    assert several["usage"]["completion_tokens"] == 48


def test_stops_and_biases(client, model):
    whole = client.complete(max_tokens=30)["choices"][0]["text"]
    stop = whole[20:24]
    answer = client.complete(max_tokens=30, stop=stop)["choices"][0]
    assert answer["text"] == whole[: whole.index(stop)] and answer["finish_reason"] == "stop"
    token = model.tokenizer.encode("LORD", special=False)[-1]
    assert client.complete(max_tokens=3, logit_bias={str(token): 100})["choices"][0]["text"] == model.tokenizer.decode([token] * 3)
    plain = client.complete(max_tokens=40)["choices"][0]["text"]
    assert client.complete(max_tokens=40, frequency_penalty=2.0)["choices"][0]["text"] != plain


def test_log_probabilities_of_prompt_and_text(client, model):
    answer = client.complete(prompt="In the beginning God made the house", echo=True, logprobs=1, max_tokens=2)["choices"][0]
    logprobs = answer["logprobs"]
    assert "".join(logprobs["tokens"]) == answer["text"] and answer["text"].startswith("In the beginning God made the house")
    assert [answer["text"][at:].startswith(text) for at, text in zip(logprobs["text_offset"], logprobs["tokens"])] == [True] * len(logprobs["tokens"])
    ids = model.tokenizer.encode("In the beginning God made the house")
    logits = model.forward([ids])[0].astype(np.float64)
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    np.testing.assert_allclose(logprobs["token_logprobs"][1 : len(ids)], log_p[np.arange(len(ids) - 1), ids[1:]], atol=1e-5)
    for at in range(1, len(ids)):  # as evaluators ask whether a text is the likeliest
        likeliest = log_p[at - 1].argmax() == ids[at]
        assert (logprobs["token_logprobs"][at] == max(logprobs["top_logprobs"][at].values())) == likeliest
    for likely in (0, 3, 5):
        asked = client.complete(prompt=ids, echo=True, logprobs=likely, max_tokens=2)["choices"][0]["logprobs"]
        assert asked["token_logprobs"] == logprobs["token_logprobs"]
        for at in range(1, len(ids)):
            ranked = np.argsort(-logits[at - 1], kind="stable")[:likely].tolist()
            expected = {model.tokenizer.decode([ids[at - 1], token])[len(model.tokenizer.decode([ids[at - 1]])):]: log_p[at - 1, token]
                        for token in [*ranked, ids[at]]}
            got = asked["top_logprobs"][at]
            assert list(got) == list(expected)
            np.testing.assert_allclose(list(got.values()), list(expected.values()), atol=1e-5)
        assert [len(asked["top_logprobs"][at]) for at in (-2, -1)] == [max(likely, 1)] * 2
    nothing = client.complete(prompt=ids, echo=True, logprobs=1, max_tokens=0)["choices"][0]
    assert nothing["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][: len(ids)] and nothing["finish_reason"] == "length"
    assert nothing["text"] == "In the beginning God made the house"
    assert len(client.complete(logprobs=4)["choices"][0]["logprobs"]["top_logprobs"][3]) == 4


def test_streams_are_the_same(client):
    options = {"temperature": 1.0, "seed": 8, "n": 3, "max_tokens": 25, "logprobs": 2, "echo": False}
    whole = client.complete(**options)
    *chunks, last = client.events("/v1/completions", model="tiny-lm", prompt="In the beginning", stream_options={"include_usage": True}, **options)
    assert last["usage"] == whole["usage"] and last["choices"] == [] and all(chunk["usage"] is None for chunk in chunks)
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [value for part in parts for value in part["logprobs"][name]] == choice["logprobs"][name]


def test_chats(client):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Who is "}, {"type": "text", "text": "he?"}]}]
    asked = {"model": "tiny-lm", "messages": messages, "temperature": 0, "max_completion_tokens": 10}
    answer = client.post("/v1/chat/completions", logprobs=True, top_logprobs=2, **asked)
    # The tokenizer sets the begin token of completions, the template that of chats.
    plain = client.complete(prompt="system: Be kind.\nuser: Who is he?\nassistant:", max_tokens=10)["choices"][0]["text"]
    choice, = answer["choices"]
    assert answer["object"] == "chat.completion" and choice["message"] == {"role": "assistant", "content": plain}
    content = choice["logprobs"]["content"]
    assert "".join(part["token"] for part in content) == plain and all(len(part["top_logprobs"]) == 2 for part in content)
    chunks = client.events("/v1/chat/completions", **asked)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and chunks[0]["object"] == "chat.completion.chunk"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == plain
    # Without a limit a chat may go on up to the context.
    assert client.post("/v1/chat/completions", **{**asked, "max_completion_tokens": None})["usage"]["total_tokens"] == 600


@pytest.mark.parametrize("path, body, status, message", [
    ("completions", b"{", 400, "expected a body of JSON, but got: Expecting property name"),
    ("completions", b"[" * 100000, 400, "expected a body of JSON, but got"),
    ("completions", b"\xff\xfe", 400, "expected a body of JSON, but got"),
    ("completions", b"[1]", 400, "expected an object as the body, but got list"),
    ("completions", b"1" * 5000, 400, "expected a body of JSON, but got"),
    ("completions", {"prompt": None}, 400, "prompt: expected a valid string or a valid list"),
    ("completions", {"prompt": [["a"]]}, 400, "prompt: expected"),
    ("completions", {"prompt": []}, 400, "prompt: expected from 1 to 64 prompts, but got 0"),
    ("completions", {"prompt": [[]]}, 400, "prompt: expected at least one token, but got none"),
    ("completions", {"prompt": [2048]}, 400, "prompt: expected token ids to be at least 0 and below 2048, but got 2048"),
    ("completions", {"prompt": [-1]}, 400, "prompt: expected token ids to be at least 0"),
    ("completions", {"prompt": [1 << 70]}, 400, "prompt: expected"),
    ("completions", {"prompt": "a" * 4000}, 400, "expected at most 600 tokens, but got a prompt of"),
    ("completions", {"max_tokens": 0}, 400, "max_tokens: expected at least 1 without echo, but got 0"),
    ("completions", {"max_tokens": -1}, 400, "max_tokens: expected greater than or equal to 0, but got -1"),
    ("completions", {"max_tokens": 1.5}, 400, "max_tokens: expected a valid integer"),
    ("completions", {"temperature": "hot"}, 400, "temperature: expected a valid number, but got 'hot'"),
    ("completions", {"temperature": -1}, 400, "temperature: expected greater than or equal to 0, but got -1"),
    ("completions", {"temperature": float("nan")}, 400, "temperature: expected"),
    ("completions", {"top_p": 0}, 400, "top_p: expected greater than 0, but got 0"),
    ("completions", {"n": 0}, 400, "n: expected greater than or equal to 1"),
    ("completions", {"n": 33}, 400, "expected at most 32 choices, but got 33"),
    ("completions", {"best_of": 2}, 400, "best_of: expected none, or the n of 1, but got 2"),
    ("completions", {"echo": True, "logprobs": 6}, 400, "logprobs: expected at most 5 with echo, but got 6"),
    ("completions", {"logit_bias": {"x": 1}}, 400, "logit_bias: expected token ids and numbers from -100 to 100, but got 'x': 1"),
    ("completions", {"logit_bias": {"5": 101}}, 400, "logit_bias: expected token ids and numbers from -100 to 100"),
    ("completions", {"logit_bias": {"2048": 1}}, 400, "logit_bias: expected token ids below 2048, but got 2048"),
    ("completions", {"stop": ["a"] * 17}, 400, "stop: expected at most 16 texts"),
    ("completions", {"stop": ""}, 400, "stop: expected at most 16 texts that are not empty"),
    ("completions", {"suffix": "x"}, 400, "suffix: expected none, because this server does not have it"),
    ("completions", {"color": "red"}, 400, "color: expected none, because this server does not have it, but got 'red'"),
    ("completions", {"max_completion_tokens": 9}, 400, "max_completion_tokens: expected none, because this route does not have it, but got 9"),
    ("completions", {"model": "gpt-4"}, 404, "model: expected 'tiny-lm', but got 'gpt-4'"),
    ("completions", {"model": None}, 400, "model: expected a valid string, but got None"),
    ("chat/completions", {}, 400, "messages: expected it in the body, but it is missing"),
    ("chat/completions", {"messages": []}, 400, "messages: expected"),
    ("chat/completions", {"messages": [{"content": "a"}]}, 400, "messages.0.role: expected it in the body, but it is missing"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "expected content of text, but got a part of type 'image_url'"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, 400, "messages.0.tool_calls: expected none"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "tools: expected none, because this server does not have it"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}}, 400, "response_format: expected none"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, 400, "top_logprobs: expected logprobs of true with it"),
])
def test_bad_requests(client, path, body, status, message):
    if isinstance(body, dict):
        body = json.dumps(({"prompt": "a"} if path == "completions" else {}) | {"model": "tiny-lm"} | body)
    got, _, answer = client.ask("POST", f"/v1/{path}", body, JSON)
    assert (got, answer["error"]["type"]) == (status, "invalid_request_error")
    assert message in answer["error"]["message"]


def test_what_is_no_request(client):
    assert client.ask("GET", "/v1/nothing")[:1] == (404,) and client.ask("GET", "/v1/completions")[0] == 405
    # A page in a browser may send this to this machine without asking.
    body = json.dumps({"model": "tiny-lm", "prompt": "a"})
    status, _, answer = client.ask("POST", "/v1/completions", body, {"Content-Type": "text/plain"})
    assert status == 400 and "expected a body of type application/json, but got 'text/plain'" in answer["error"]["message"]
    assert client.ask("POST", "/v1/completions", body, JSON | {"Host": "evil.example"})[0] == 400
    status, headers, _ = client.ask("OPTIONS", "/v1/completions", None, {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"})
    assert status == 405 and not any(name.lower().startswith("access-control") for name in headers)


@pytest.mark.parametrize("parts", [None, 160])
def test_a_large_body_ends_early(client, parts):
    """One that says how long it is, of which nothing is kept, and one that comes in parts."""
    body, before = json.dumps({"model": "tiny-lm", "prompt": "a" * (10 << 20)}).encode(), resident(client.process)
    for _ in range(3):
        connection = client.connect()
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", body if parts is None else iter([body[: len(body) // parts]] * parts), JSON)
            answer = connection.getresponse()
            assert answer.status == 413 and "expected a body of at most 4194304 bytes" in answer.read().decode()
    assert parts or resident(client.process) < before + (3 << 20)


def test_a_client_that_goes_frees_its_pages(client):
    """With a stream that it reads, and with an answer that it waits for."""
    for is_stream in (True, False):
        before = client.metric("cancelled")
        body = json.dumps({"model": "tiny-lm", "prompt": "In", "max_tokens": 590, "n": 8, "stream": is_stream}).encode()
        with socket.create_connection(client.address) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            while not client.metric("used_pages"):
                pass
        deadline = time.time() + 20
        while client.metric("used_pages") and time.time() < deadline:
            pass
        assert client.metric("used_pages") == 0 and client.metric("cancelled") == before + 1


def random_body(rng):
    text = (TINY / "heldout.txt").read_text()
    begin = rng.choice([0, 0, 500, rng.randrange(5000)])
    body = {"prompt": text[begin : begin + rng.choice([20, 200, 700, rng.randint(1, 900)])], "max_tokens": rng.randint(1, 24), "seed": rng.randrange(1 << 40),
            "temperature": rng.choice([0, 0.7, 1.3]), "top_p": rng.choice([1, 0.9]), "n": rng.choice([1, 1, 1, 3])}
    if rng.random() < 0.5:
        body["logprobs"], body["echo"] = rng.choice([0, 1, 5]), rng.random() < 0.5
    return body


def test_sixty_four_clients_get_what_each_gets_alone(client, folder, tmp_path, full):
    """Every text and every log-probability, of a server with one thread and of one with two. A thousand requests in the long form."""
    rng = random.Random(12)
    bodies = [random_body(rng) for _ in range(1000 if full else 128)]
    alone = [client.complete(**body) for body in bodies]
    with serving(folder, tmp_path, "--rows=24", "--context=600", "--cache-memory=12", "--threads=2") as other:
        for busy in (client, other):
            got = {}

            def one(number):
                for at in range(number, len(bodies), 64):
                    time.sleep(random.random() * 0.2)
                    got[at] = busy.complete(**bodies[at])

            threads = [threading.Thread(target=one, args=(number,)) for number in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for at, answer in got.items():
                assert answer["choices"] == alone[at]["choices"], bodies[at]
            assert len(got) == len(bodies) and busy.metric("steps") < busy.metric("new_tokens") / 2
            assert busy.metric("used_pages") == 0


@pytest.mark.oracle
def test_likelihoods_are_those_of_transformers(tmp_path):
    """Through HTTP, as an evaluator asks for them: near transformers, and to the last digit what the engine says in this process."""
    import torch
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    torch.manual_seed(0)
    config = DiffLlamaConfig(vocab_size=2048, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                             max_position_embeddings=600, bos_token_id=0, eos_token_id=None)
    oracle = DiffLlamaForCausalLM(config).eval()
    folder = tmp_path / "llama"
    oracle.save_pretrained(folder)
    shutil.copy(TINY / "tokenizer.json", folder)
    engine = Engine(paged_model.load(folder, threads=2), pages=20, capacity=600)
    rng = np.random.default_rng(0)
    with serving(folder, tmp_path) as one:
        for length in (2, 150, 500):
            ids = rng.integers(0, 2048, length).tolist()
            answer = one.post("/v1/completions", model="llama", prompt=ids, max_tokens=1, temperature=0, echo=True, logprobs=1)
            got = answer["choices"][0]["logprobs"]["token_logprobs"][1:-1]
            with torch.no_grad():
                log_p = torch.log_softmax(oracle(torch.tensor([ids])).logits[0].double(), -1).numpy()
            np.testing.assert_allclose(got, log_p[np.arange(length - 1), ids[1:]], atol=1e-4)
            scored = next(engine.events(Request(tuple(ids), 0, scores=True)))
            assert got == [float(value) for value in scored.scores.log_p]
    engine.close()


def resident(process):
    """Bytes of memory that a process has."""
    pages = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def other_sockets(client):
    """Sockets of the internet that a server has beside those at its own port: lines of the kernel's tables."""
    held, others, place = set(), [], pathlib.Path(f"/proc/{client.process.pid}")
    for number in (place / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by now
            held.add(os.readlink(number))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in (place / "net" / table).read_text().splitlines()[1:]:
            _, local, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in held and (table.startswith("udp") or int(local.rpartition(":")[2], 16) != client.address[1]):
                others.append(line)
    return others


def test_soak(folder, tmp_path, full):
    """Good requests, clients that go, bodies that are none and bodies of 10 MB, at once: memory stays, and so does the answer, and the
    server opens no connection."""
    seconds = 1800 if full else 4
    with serving(folder, tmp_path, "--context=600", "--rows=8", "--cache-memory=20") as one:
        end, wrong, sizes = time.time() + seconds, [], []
        first = one.complete(prompt="And the king said", max_tokens=20)["choices"]

        def raw(body, wait):
            with socket.create_connection(one.address) as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                time.sleep(wait)

        def client(number):
            rng = random.Random(number)
            while time.time() < end:
                kind = rng.randrange(6)
                if kind == 0 and one.complete(prompt="And the king said", max_tokens=20)["choices"] != first:
                    wrong.append("another text")
                elif kind == 1:
                    raw(json.dumps({"model": "tiny-lm", "prompt": "In", "max_tokens": 500, "stream": rng.random() < 0.5}).encode(), rng.random() * 0.1)
                elif kind == 2 and (status := one.ask("POST", "/v1/completions", rng.choice([b"{", b"[" * 50000, b"\xff", b'{"model": "tiny-lm"}']), JSON)[0]) != 400:
                    wrong.append(status)
                elif kind == 3 and rng.random() < 0.2:
                    body = json.dumps({"model": "tiny-lm", "prompt": "a" * (10 << 20)})
                    if (status := one.ask("POST", "/v1/completions", body, JSON)[0]) != 413:
                        wrong.append(status)
                elif kind == 4:
                    one.complete(**random_body(rng))
                elif kind == 5:
                    raw(b'{"model": ', 0)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            sizes.append((time.time(), resident(one.process)))
            wrong += other_sockets(one)
            time.sleep(0.2)
        deadline = time.time() + 30
        while one.metric("used_pages") and time.time() < deadline:
            time.sleep(0.05)
        assert not wrong and one.metric("used_pages") == 0 and one.metric("failed") == 0
        # The long form compares halves, once everything has been touched.
        if full:
            late = [size for at, size in sizes if at > end - seconds / 2]
            assert max(late) <= 1.01 * min(late), f"{min(late)} to {max(late)} bytes"
        assert one.complete(prompt="And the king said", max_tokens=20)["choices"] == first


def test_overload(folder, tmp_path):
    with serving(folder, tmp_path, "--rows=1", "--waiting=1", "--context=600") as one:
        statuses = []

        def ask():
            statuses.append(one.ask("POST", "/v1/completions", json.dumps({"model": "tiny-lm", "prompt": "In", "max_tokens": 590}), JSON)[:2])

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {status for status, _ in statuses} == {200, 429}
        assert all(int(headers["retry-after"]) >= 1 for status, headers in statuses if status == 429)


def test_keys(folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-key-of-some-length\nsecond-key-of-some-length\n")
    keys.chmod(0o600)
    with serving(folder, tmp_path, f"--api-key-file={keys}", "--context=100", host="0.0.0.0") as one:
        one.address = ("127.0.0.1", one.address[1])
        assert one.ask("GET", "/health")[0] == 200
        for headers in ({}, {"Authorization": "Bearer first"}, {"Authorization": "Basic first-key-of-some-length"}):
            for path in ("/v1/models", "/metrics", "/v1/nothing"):
                status, answered, _ = one.ask("GET", path, headers=headers)
                assert status == 401 and answered["www-authenticate"] == "Bearer"
        for key in ("first", "second"):
            assert one.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {key}-key-of-some-length"})[0] == 200


@pytest.mark.parametrize("options, code, message", [
    (["--host=0.0.0.0"], 2, "--host: expected --api-key-file with an address that others reach, but got '0.0.0.0' alone"),
    (["--api-key-file=KEYS"], 2, "expected a file that its owner alone can read (chmod 600), but got mode 644"),
    (["--api-key-file=EMPTY"], 2, "expected at least one key, but got none"),
    (["--api-key-file=SHORT"], 2, "expected keys of at least 16 characters of ASCII without spaces, but key 1 is none"),
    (["--context=100000", "--cache-memory=1"], 2, "--cache-memory: expected at least 196 MiB for a context of 100000 tokens, but got 1"),
    (["--chat-template=BROKEN"], 5, "expected a chat template in Jinja, but got: TemplateSyntaxError"),
    (["--port=PORT"], 7, "expected to listen at 127.0.0.1, port"),
])
def test_bad_options(folder, tmp_path, capsys, options, code, message):
    for name, text, mode in (("KEYS", "a-key-of-some-length", 0o644), ("EMPTY", "\n", 0o600), ("SHORT", "a key", 0o600), ("BROKEN", "{% for %}", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = [option.replace("PORT", str(taken.getsockname()[1])) for option in options]
        for name in ("KEYS", "EMPTY", "SHORT", "BROKEN"):
            options = [option.replace(name, str(tmp_path / name)) for option in options]
        assert main(["serve", str(folder), "--port=0", *options]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_requests_in_flight_first(folder, tmp_path, number):
    with serving(folder, tmp_path, "--context=600") as one:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(one.complete(max_tokens=500)))
        thread.start()
        while not one.metric("new_tokens"):
            pass
        assert one.end(number) == 0
        thread.join()
        assert answers[0]["usage"]["completion_tokens"] == 500
        assert one.log.read_text().endswith("diffattn: ended\n")


def test_bundles(folder, client, tmp_path):
    """Code that a bundle holds, without a compiler in the process."""
    bundle = tmp_path / "tiny.bundle"
    assert main(["bundle", str(folder), "-o", str(bundle), "--paged"]) == 0
    with serving(bundle, tmp_path, "--bundle", "--name=tiny-lm", "--context=600") as one:
        body = {"prompt": "And the king said", "temperature": 1.0, "seed": 2, "logprobs": 1, "echo": True}
        assert one.complete(**body)["choices"] == client.complete(**body)["choices"]
        talk = {"model": "tiny-lm", "max_tokens": 12, "messages": [{"role": "user", "content": "Who was Moses?"}], "temperature": 0}
        assert one.post("/v1/chat/completions", **talk)["choices"] == client.post("/v1/chat/completions", **talk)["choices"]
        libraries = open(f"/proc/{one.process.pid}/maps").read()
        assert "libDiffAttnBundle" in libraries and "MLIR" not in libraries
    manifest = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(manifest.replace('"batch_invariant": "true"', '"batch_invariant": "auto"'))
    with pytest.raises(BundleError, match="expected a bundle whose rows do not depend on their batch"):
        load_bundle(bundle)
    assert main(["bundle", str(folder), "-o", str(tmp_path / "none"), "--paged", "--no-batch-invariant"]) == 2
    contiguous = tmp_path / "other.bundle"
    assert main(["bundle", str(folder), "-o", str(contiguous)]) == 0
    done = subprocess.run([sys.executable, "-m", "diffattn", "serve", "--bundle", str(contiguous)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])})
    assert done.returncode == 9 and "expected a bundle with pages, which diffattn bundle --paged writes" in done.stderr
