"""What every request to the API must pass first: its key, its origin, its size."""

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.serving.errors import error_response

# A reference clip of the largest size in base64, and a long text.
MAX_BODY_BYTES = 16 * 2**20
_TOO_LARGE = f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB."


class Guard:
    """ASGI middleware in front of the API.

    `api_key` None asks for none. `closed` is a sentence that refuses every request, or "".
    Browsers' requests from other sites are refused: the page beside this API makes it part of a
    site, so CORS is off however the page's own server is set.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, closed: str = "") -> None:
        self._app, self._api_key, self._closed = app, api_key, closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The API has no WebSockets, so nothing below answers one.
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, _limited(receive), send)

    def _refusal(self, headers: Headers) -> Response | None:
        if _from_another_site(headers):
            return error_response(403, "Browsers may call this API only from pages of its own site.")
        if self._closed:
            return error_response(403, self._closed)
        if self._api_key is not None and not _has_key(headers, self._api_key):
            return error_response(
                401,
                "Send the server's API key, as the header Authorization: Bearer KEY.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return error_response(413, _TOO_LARGE)
        return None


def _has_key(headers: Headers, key: str) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    # Bytes: compare_digest takes no other characters in strings than ASCII.
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())


def _from_another_site(headers: Headers) -> bool:
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    hosts = (headers.get("host"), headers.get("x-forwarded-host"))
    return origin.partition("://")[2] not in hosts


def _limited(receive: Receive) -> Receive:
    """`receive`, for bodies that do not say how long they are."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return limited
