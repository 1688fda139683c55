"""The server: routes of OpenAI's interface over an engine. It knows nothing of pages, and the engine nothing of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Optional

import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import files
from ..errors import DiffAttnError, InputError
from ..generation_config import NAME as GENERATION_CONFIG
from ..text import printable_name, shown
from .answers import Answer, ChatAnswer
from .chat_template import ChatTemplate
from .engine import Engine, Ticket
from .metrics import Metrics
from .protocol import Body, BodyError, ChatBody, CompletionBody, parse
from .requests import ClosedError, Event, OverloadedError, PromptScored, Request, RequestEnded, RequestFailed

#: Largest size of a request, in bytes.
MOST_BYTES = 4 << 20
#: Largest part of a longer request that is read and dropped: a client that is cut off while it sends does not see the answer.
MOST_DROPPED = 64 << 20
#: Number of tokens of OpenAI's completions where a request does not say it.
NEW_TOKENS = 16
#: Seeds that are chosen here. Clients read numbers as doubles.
SEEDS = 1 << 53
OPEN_ROUTES = ("/health",)


def failure(status: int, message: str, parameter: Optional[str] = None, headers: Optional[dict[str, str]] = None) -> JSONResponse:
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error" if status < 500 else "server_error")
    return JSONResponse({"error": {"message": message, "type": kind, "param": parameter, "code": None}}, status, headers)


class TooLargeError(InputError):
    """A body with more than `MOST_BYTES`."""


class Authorization:
    """Lets requests through that have one of the keys, and those to `OPEN_ROUTES`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app, self.keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_ROUTES and not self._has_key(scope):
            answer = failure(401, "expected a key of this server as Authorization: Bearer KEY, but got "
                             + ("another" if b"authorization" in dict(scope["headers"]) else "none"), headers={"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        kind, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        known = [hmac.compare_digest(given.strip(), key) for key in self.keys]  # all of them, so that time tells nothing
        return kind.lower() == b"bearer" and any(known)


class EventStream(StreamingResponse):
    """Server-sent events. However it ends, also before it began, nothing is computed for it any more."""

    def __init__(self, content: AsyncIterator[str], tickets: Sequence[Ticket]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._tickets = tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for ticket in self._tickets:
                ticket.cancel()


class Server:
    """`name` is the model's for clients, `template` its chat template, `hosts` the names that clients may call this machine by: a page
    in a browser that makes its own name lead here is refused."""

    def __init__(self, engine: Engine, name: str, fingerprint: str, template: Optional[ChatTemplate] = None, keys: Sequence[str] = (),
                 hosts: Sequence[str] = ("*",)) -> None:
        self.engine, self.name, self.fingerprint, self.template = engine, name, fingerprint, template
        self.created, self.metrics = int(time.time()), Metrics(engine)
        self.has_defaults = files.exists(engine.model.directory / GENERATION_CONFIG)
        middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
        if keys:
            middleware.append(Middleware(Authorization, keys=keys))
        handlers = {404: self._no_route, 405: self._no_method}
        self.app = Starlette(routes=[
            Route("/health", self.health), Route("/metrics", self.show_metrics), Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model), Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ], middleware=middleware, exception_handlers=handlers, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(self.engine.close)

    # ---- what takes no model ----------------------------------------------------------------------------------

    async def health(self, request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, request: HttpRequest) -> Response:
        return Response(self.metrics.text(), media_type=self.metrics.content_type)

    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "diffattn", "max_model_len": self.engine.capacity}

    async def models(self, request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        return JSONResponse(self._model()) if name == self.name else self._no_model(name)

    def _no_model(self, name: str) -> JSONResponse:
        return failure(404, f"model: expected {shown(self.name)}, but got {shown(name)}", "model")

    async def _no_route(self, request: HttpRequest, error: Exception) -> Response:
        return failure(404, f"expected a route of this server, but got {printable_name(request.url.path)[:200]}")

    async def _no_method(self, request: HttpRequest, error: Exception) -> Response:
        return failure(405, f"expected another method for {printable_name(request.url.path)[:200]}, but got {printable_name(request.method)[:20]}",
                       headers=getattr(error, "headers", None))

    # ---- texts ------------------------------------------------------------------------------------------------

    async def completions(self, request: HttpRequest) -> Response:
        return await self._answered(request, CompletionBody)

    async def chat(self, request: HttpRequest) -> Response:
        return await self._answered(request, ChatBody)

    async def _answered(self, request: HttpRequest, kind: type[Body]) -> Response:
        try:
            body = parse(kind, await _read(request))
            if body.model != self.name:
                return self._no_model(body.model)
            seed = secrets.randbelow(SEEDS) if body.seed is None else body.seed % (1 << 63)
            work = await anyio.to_thread.run_sync(self._work, body, seed)
            events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
            tickets = self._submit(work, events)
        except TooLargeError as error:
            return failure(413, str(error), headers={"Connection": "close"})
        except OverloadedError as error:
            return failure(429, str(error), headers={"Retry-After": str(error.retry_after)})
        except ClosedError as error:
            return failure(503, str(error), headers={"Retry-After": "10"})
        except ClientDisconnect:
            return Response(status_code=499)  # the client is gone
        except DiffAttnError as error:
            return failure(400, str(error), getattr(error, "parameter", None))
        begin, (answer, _) = time.perf_counter(), work
        stream = self._events(events, tickets, begin)
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            return EventStream(self._stream(answer, stream, with_usage), tickets)
        return await self._whole(request, answer, stream)

    def _work(self, body: Body, seed: int) -> tuple[Answer, list[Request]]:
        """The answer to a body, and the engine's requests for it. Long texts take long to cut into tokens, so not in the event loop."""
        model, defaults = self.engine.model, self.engine.model.defaults
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise InputError(f"expected a model with a tokenizer.json, but {self.name} has none")
        options: dict[str, Any] = {"sampler": body.sampler(defaults, self.has_defaults), "seed": seed, "choices": body.n or 1,
                                   "ends": model.defaults.ends, "stop": body.stops(defaults)}
        if isinstance(body, ChatBody):
            prompts = [self._chat_prompt(body)]
            given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
            limit = max(self.engine.capacity - len(prompts[0]), 1) if given is None else given
            options["likely"] = (body.top_logprobs or 0) if body.logprobs else None
            requests = [Request(tuple(prompt), limit, **options) for prompt in prompts]
            answer: Answer = ChatAnswer(self.name, self.fingerprint, seed, prompts, options["choices"], tokenizer, options["likely"])
        else:
            assert isinstance(body, CompletionBody)
            prompts = [self._prompt(prompt) for prompt in body.prompts()]
            limit = NEW_TOKENS if body.max_tokens is None else body.max_tokens
            options |= {"likely": body.logprobs, "scores": bool(body.echo) and (body.logprobs is not None or limit == 0)}
            requests = [Request(tuple(prompt), limit, **options) for prompt in prompts]
            texts = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in body.prompts()] if body.echo else []
            answer = Answer(self.name, self.fingerprint, seed, prompts, options["choices"], tokenizer, body.logprobs, texts)
        return answer, requests

    def _prompt(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        model = self.engine.model
        ids = model.tokenizer.encode(prompt)
        return ids or ([model.defaults.bos] if model.defaults.bos is not None else [])  # as `generate` takes an empty text

    def _chat_prompt(self, body: ChatBody) -> list[int]:
        if self.template is None:
            raise BodyError(f"messages: expected a model with a chat template, but {self.name} has none; use /v1/completions", "messages")
        text = self.template.render([message.plain() for message in body.messages])
        return self.engine.model.tokenizer.encode(text, special=False)

    def _submit(self, work: tuple[Answer, list[Request]], events: asyncio.Queue) -> list[Ticket]:
        """All requests of a client, or none of them."""
        loop, tickets = asyncio.get_running_loop(), []

        def deliver_to(number: int) -> Any:
            def deliver(event: Event) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody listens
                    loop.call_soon_threadsafe(events.put_nowait, (number, event))
            return deliver

        try:
            for number, request in enumerate(work[1]):
                tickets.append(self.engine.submit(request, deliver_to(number)))
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            raise
        return tickets

    async def _events(self, events: asyncio.Queue, tickets: list[Ticket], begin: float) -> AsyncGenerator[tuple[int, Event], None]:
        """Events of all prompts of a client, until the last one has ended. Whoever stops to listen cancels them."""
        left, is_first = len(tickets), True
        try:
            while left:
                number, event = await events.get()
                if is_first and not isinstance(event, PromptScored):
                    self.metrics.first_token.observe(time.perf_counter() - begin)
                    is_first = False
                if isinstance(event, RequestFailed):
                    raise event.error
                if isinstance(event, RequestEnded):
                    left -= 1
                    if event.cancelled:
                        raise ClosedError("expected the request to end, but the server ends first")
                yield number, event
            self.metrics.duration.observe(time.perf_counter() - begin)
        finally:
            for ticket in tickets:
                ticket.cancel()

    async def _whole(self, request: HttpRequest, answer: Answer, stream: AsyncGenerator[tuple[int, Event], None]) -> Response:
        async def gather() -> Response:
            try:
                async for number, event in stream:
                    answer.take(number, event)
            finally:
                await stream.aclose()
            # Texts of tokens are made in a thread, as there may be many.
            return JSONResponse(await anyio.to_thread.run_sync(answer.whole))

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(gather()), asyncio.ensure_future(gone())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                return tasks[0].result()
            return Response(status_code=499)  # the client is gone
        except DiffAttnError as error:
            return failure(503 if isinstance(error, ClosedError) else 500, str(error))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, answer: Answer, stream: AsyncGenerator[tuple[int, Event], None], with_usage: bool) -> AsyncIterator[str]:
        try:
            if isinstance(answer, ChatAnswer):
                for number in range(len(answer.choices)):
                    yield _sent(answer.first_chunk(number))
            async for prompt, event in stream:
                if (number := answer.take(prompt, event)) is not None:
                    yield _sent(answer.chunk(number) | ({"usage": None} if with_usage else {}))
            if with_usage:
                yield _sent(answer.last_chunk())
            yield "data: [DONE]\n\n"
        except DiffAttnError as error:  # the status has been sent
            yield _sent({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
        finally:
            await stream.aclose()


def _sent(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def _read(request: HttpRequest) -> bytes:
    """The body, which a page in a browser cannot send here without asking first: it may not name this type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BodyError(f"expected a body of type application/json, but got {shown(kind)}")
    # A body that says that it is too long is not kept at all: several at once would leave holes in the memory.
    declared = request.headers.get("content-length", "")
    is_long = declared.isdecimal() and (len(declared) > 19 or int(declared) > MOST_BYTES)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= MOST_BYTES and not is_long:
            parts.append(part)
            continue
        parts.clear()
        if size > MOST_DROPPED:
            break
    if size > MOST_BYTES:
        raise TooLargeError(f"expected a body of at most {MOST_BYTES} bytes, but got more")
    return b"".join(parts)
