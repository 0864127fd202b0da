"""GET /health: whether the engine serves, for load balancers and supervisors."""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from backend.contract import Phase, SpeechEngine


def health_route(engine: SpeechEngine) -> Route:
    """200 while the engine is ready, else 503, with its phase and counts in either case."""

    async def health(request: Request) -> JSONResponse:
        status = engine.status
        content = {
            "phase": status.phase.value,
            "detail": status.detail,
            "running": status.running,
            "queued": status.queued,
        }
        return JSONResponse(content, 200 if status.phase is Phase.READY else 503)

    return Route("/health", health)
