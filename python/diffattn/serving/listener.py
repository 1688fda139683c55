"""uvicorn's server, as a command runs it: it says where it listens, and a signal ends it without ending the process by itself."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import uvicorn

from ..output import tell
from ..text import printable_name


class Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, name: str) -> None:
        super().__init__(config)
        self._name = name

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            tell(f"diffattn: serving {printable_name(self._name)} at http://{host}:{port}/v1")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and the first SIGINT let requests in flight end, a second SIGINT does not."""
        former = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
