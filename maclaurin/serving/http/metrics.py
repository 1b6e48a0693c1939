"""What a server has done, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
NOW = ("active", "reading", "waiting", "state_bytes", "prefix_entries", "prefix_bytes", "prefix_disk_bytes")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "maclaurin_requests", "Requests that were answered.", ["route", "status"], registry=self.registry
        )
        self._first = Histogram(
            "maclaurin_first_token_seconds",
            "From a request to its first token.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._between = Histogram(
            "maclaurin_between_tokens_seconds", "From a token to the next one.", buckets=SECONDS, registry=self.registry
        )

    def answered(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def between_tokens(self, seconds: float) -> None:
        self._between.observe(seconds)

    def watch(self, models: Mapping[str, Any], sessions: Any) -> None:
        self.registry.register(_Engines(models, sessions))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Engines:
    """Read when somebody asks, from the engines themselves."""

    def __init__(self, models: Mapping[str, Any], sessions: Any) -> None:
        self.models, self.sessions = models, sessions

    def collect(self) -> Any:
        families: dict[str, Any] = {}
        for name, served in self.models.items():
            for key, value in served.engine.stats().items():
                kind = GaugeMetricFamily if key in NOW else CounterMetricFamily
                family = families.setdefault(key, kind(f"maclaurin_engine_{key}", f"The engine's {key}.", labels=["model"]))
                family.add_metric([name], value)
        yield from families.values()
        yield GaugeMetricFamily("maclaurin_sessions", "Open sessions.", value=len(self.sessions))
        yield GaugeMetricFamily("maclaurin_session_bytes", "Their states in memory.", value=self.sessions.nbytes)
