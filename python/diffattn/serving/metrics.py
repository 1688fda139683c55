"""Counts of the engine and times of requests, in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .engine import Engine

_COUNTERS = {
    "requests": "Requests that were admitted", "prompt_tokens": "Tokens of their prompts",
    "shared_tokens": "Of these, those whose keys another prompt had left", "new_tokens": "Tokens that were drawn",
    "steps": "Steps of decoding", "cancelled": "Requests that were cancelled", "failed": "Requests that failed",
}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self, engine: Engine) -> None:
        self._engine, self._registry = engine, CollectorRegistry()
        self._registry.register(self)
        self.first_token = Histogram("diffattn_first_token_seconds", "From a request to its first token", buckets=_SECONDS,
                                     registry=self._registry)
        self.duration = Histogram("diffattn_request_seconds", "From a request to its end", buckets=_SECONDS, registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        engine = self._engine
        for name, what in _COUNTERS.items():
            yield CounterMetricFamily(f"diffattn_{name}", what, value=getattr(engine.statistics, name))
        pool = engine.sequences.pool
        for name, what, value in (("waiting_requests", "Requests that wait for a place", engine.waiting),
                                  ("writing_choices", "Texts that are being written", engine.writing),
                                  ("pages", "Pages of the caches", pool.pages), ("used_pages", "Pages that requests hold", pool.used)):
            yield GaugeMetricFamily(f"diffattn_{name}", what, value=value)
