"""A headless Chromium without a network, driven through a pipe: no package is needed."""
import fcntl
import json
import os
import shutil
import subprocess
import time

PATH = shutil.which("chromium")
#: How long anything may take.
SECONDS = 60


class Browser:
    """One page. `errors` are what its scripts failed with or wrote as errors, `requests` the addresses that it asked for."""

    def __init__(self, folder, width=1400, height=1800):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Numbers that those below do not take the place of.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_browser, from_browser)]
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                   "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}",
                   f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "-", PATH, *options], pass_fds=ends,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._rest, self._number, self._session = b"", 0, None
        self.errors, self.requests = [], []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Closes it by its own command, so that none of its processes is left."""
        self._session = None
        try:
            self.ask("Browser.close")
            self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def ask(self, method, **parameters):
        """The answer to one command; events that come before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _message(self):
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _note(self, event, given):
        if event == "Runtime.exceptionThrown":
            self.errors.append(given["exceptionDetails"].get("exception", {}).get("description", given["exceptionDetails"]["text"]))
        elif event == "Runtime.consoleAPICalled" and given["type"] == "error":
            self.errors.append(str(given["args"]))
        elif event == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(given["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def open(self, path):
        self.ask("Page.navigate", url=path.as_uri())
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def run(self, script):
        """The value of an expression."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition):
        end = time.monotonic() + SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, (condition, self.errors)
            time.sleep(0.02)

    def point(self, selector, across, down, click=False):
        """Moves the mouse over a place of an element, as shares of its width and height, and may click it."""
        x, y = self.run(f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); "
                        f"return [b.left + b.width * {across}, b.top + b.height * {down}]; }})(document.querySelector({json.dumps(selector)}))")
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, selector, key):
        """A key while an element has the focus."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Home": 36, "End": 35}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def pixel(self, selector, column, row):
        """Red, green and blue of a pixel of a canvas."""
        return self.run(f"[...document.querySelector({json.dumps(selector)}).getContext('2d').getImageData({column}, {row}, 1, 1).data].slice(0, 3)")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")
