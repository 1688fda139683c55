"""Starts a server of OpenAI's interface with examples/tiny-lm, asks it by two clients at once, and ends it."""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

MODEL = pathlib.Path("examples/tiny-lm")


def complete(address, prompt):
    body = {"model": "tiny-lm", "prompt": prompt, "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


server = subprocess.Popen([sys.executable, "-m", "diffattn", "serve", MODEL, "--port", "0", "--rows", "2", "--context", "64"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    lines = []
    for line in server.stdout:
        lines.append(line)
        if match := re.search(r"http://[\d.]+:\d+", line):
            break
    else:
        sys.exit("expected a server, but got:\n" + "".join(lines))
    prompts = ["In the beginning", "And the king said"]
    with concurrent.futures.ThreadPoolExecutor() as clients:
        together = list(clients.map(lambda prompt: complete(match[0], prompt), prompts))
    for prompt, text in zip(prompts, together):
        print(prompt + text)
        assert complete(match[0], prompt) == text, "what a request gets should not depend on other requests"
finally:
    server.terminate()
    server.wait()
