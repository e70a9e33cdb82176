"""Metrics of a server, in the format of Prometheus."""

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmrc.serve.jobs import Jobs
from lmrc.serve.served import Served

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counts what a server does."""

    def __init__(self, models: dict[str, Served], jobs: Jobs) -> None:
        self.models, self.jobs = models, jobs
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "lmrc_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "lmrc_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=registry
        )
        self.batches = Histogram(
            "lmrc_batch_images", "Images of a mini-batch.", ["model"], buckets=BATCH,
            registry=registry,
        )  # fmt: skip
        registry.register(self)
        for name, served in models.items():
            served.batcher.on_batch = self.batches.labels(name).observe

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the gauges, measured now."""
        version = GaugeMetricFamily("lmrc_version", "Version that predicts.", labels=["model"])
        queue = GaugeMetricFamily("lmrc_queue_images", "Images that wait.", labels=["model"])
        states = GaugeMetricFamily("lmrc_jobs", "Jobs by state.", labels=["state"])
        held = GaugeMetricFamily("lmrc_held_bytes", "Images held for learning.", self.jobs.held)
        for name, served in self.models.items():
            version.add_metric([name], served.version)
            queue.add_metric([name], served.batcher.waiting)
        found = [job.state for job in self.jobs]
        for state in sorted(set(found)):
            states.add_metric([state], found.count(state))
        return [version, queue, states, held]

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self.registry)


class Measured:
    """Counts requests and measures their time."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and measure it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began = 500, perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if route != "none" else "none"  # clients choose no label
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(perf_counter() - began)
