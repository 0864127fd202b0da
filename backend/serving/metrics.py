"""GET /metrics: what the engine did, for the page and the API together, and what the API answered."""

from fastapi.routing import APIRoute
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.contract import FinishReason, Phase, RunReport, SpeechEngine

_TTFA_BUCKETS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_RTF_BUCKETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 4.0)
_QUEUE_BUCKETS_S = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """One engine's figures, in a registry of their own: vLLM's are in the default one."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._registry = registry = CollectorRegistry()
        self._runs = Counter(
            "tts_runs", "Runs of the engine by how they ended.", ["finish_reason"], registry=registry
        )
        self._ttfa = Histogram(
            "tts_ttfa_seconds",
            "From taken up to the first chunk.",
            buckets=_TTFA_BUCKETS_S,
            registry=registry,
        )
        self._rtf = Histogram(
            "tts_rtf",
            "Generation time / audio time, of finished runs.",
            buckets=_RTF_BUCKETS,
            registry=registry,
        )
        self._queue = Histogram(
            "tts_queue_seconds",
            "Wait before a run was taken up.",
            buckets=_QUEUE_BUCKETS_S,
            registry=registry,
        )
        self._audio = Counter("tts_audio_seconds", "Audio made.", registry=registry)
        self._answers = Counter(
            "tts_http_requests", "Answers of the HTTP API.", ["method", "path", "status"], registry=registry
        )
        for reason in FinishReason:
            self._runs.labels(reason.value)
        for name, about, value in (
            ("tts_running", "Runs being served.", lambda: engine.status.running),
            ("tts_queued", "Runs that wait.", lambda: engine.status.queued),
            ("tts_ready", "1 while the engine serves.", lambda: engine.status.phase is Phase.READY),
        ):
            Gauge(name, about, registry=registry).set_function(value)
        engine.on_report = self.observe

    def observe(self, report: RunReport) -> None:
        """Counts a run that has ended; callable from any thread."""
        self._runs.labels(report.finish_reason.value).inc()
        self._queue.observe(report.queue_s)
        self._audio.inc(report.audio_s)
        if report.ttfa_s is not None:
            self._ttfa.observe(report.ttfa_s)
        if report.rtf is not None and report.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._rtf.observe(report.rtf)

    def answered(self, method: str, path: str, status: int) -> None:
        self._answers.labels(method, path, str(status)).inc()

    def route(self) -> Route:
        async def metrics(request: Request) -> Response:
            return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

        return Route("/metrics", metrics)


class CountAnswers:
    """ASGI middleware: counts the answers of `app` by route, never by what a client made up."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        def count(status: int) -> None:
            nonlocal started
            started = True
            route = scope.get("route")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            path = f"/v1{route.path}" if isinstance(route, APIRoute) else "other"
            self._metrics.answered(method, path, status)

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            # Answered with 500 further out, where nothing counts.
            if not started:
                count(500)
            raise


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
